//! The door of the server and of the router: the table of commands, their arguments, and the privileges
//! that each needs.
//!
//! - [`specification`]: one table of all commands: names, flags, required access;
//! - [`args`]: the arguments that every command takes, parted from the command's own in one pass;
//!   [`parsed_command`]: a command with them;
//! - [`idl`]: how the arguments of a command are declared and read;
//! - [`check`], [`needs`]: whether a user may run a command, from its arguments;
//! - [`cluster_settings`]: which settings are those of the whole cluster; [`redact`]: the secret fields
//!   of commands;
//! - [`bulk_write`], [`map_reduce`]: arguments that decide a right and that the command reads too.
//!
//! Invariant: pure, and knows no code that runs a command. Where a right depends on an argument, the
//! command and the check read it by the same function of this room.

pub mod args;
pub mod bulk_write;
pub mod check;
pub mod cluster_settings;
pub mod idl;
pub mod map_reduce;
pub mod needs;
pub mod parsed_command;
pub mod redact;
pub mod specification;

pub use args::Args;
pub use check::{Check, Subject};
pub use needs::RequiredAccess;
pub use parsed_command::{FromClient, ParsedCommand};
pub use specification::{Specification, flag};
