//! A request on its way through the server: [`dispatch`] looks its command up in the [`table`],
//! parts the generic arguments from the command's own ([`args`], [`idl`]), admits it
//! ([`admission`]), runs it with a [`CommandContext`] and accounts for it ([`accounting`]).

mod accounting;
mod admission;
pub mod args;
pub mod collation;
pub mod concern;
pub mod connection;
mod context;
mod dispatch;
pub mod idl;
mod own;
pub mod reply_reservation;
pub mod routed;
pub mod table;
pub mod transaction;

pub use admission::operation;
pub use context::{CommandContext, Done};
pub use dispatch::Call;
