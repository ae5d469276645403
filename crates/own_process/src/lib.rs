//! Functions of both programs for their own process: end quietly when the output has no reader, rest
//! while others use the machine, and spend CPU time in vain on purpose. Invariant: knows nothing of
//! databases.

pub mod broken_pipe;
pub mod handicap;
pub mod pace;
