//! What the programs ask of the system for their own process: to end quietly when the output has no
//! reader, to end at a failed assertion where durable state is written, to rest while others use the
//! machine, to spend CPU time in vain on purpose, how much room a disk has, and what the system tells of
//! processes and machine. Invariant: knows nothing of databases.

pub mod broken_pipe;
pub mod disk_space;
pub mod fail_stop;
pub mod handicap;
pub mod pace;
pub mod system;

/// The stack of a thread that runs commands, in bytes: expressions and pipelines are evaluated recursively, within bounds that 8 MB
/// suffice for when the compiler optimizes. Without, frames are larger. Untouched pages take no memory.
pub const COMMAND_STACK_BYTES: usize = 16 << 20;
