//! What commands share of the request that they answer: its [`CommandContext`], concerns, collations,
//! transactions, the place of its reply.

pub mod collation;
pub mod concern;
mod context;
mod operation;
mod own;
pub mod reply_reservation;
pub mod retryable_errors;
pub mod session_of;
pub mod transaction;

pub use context::{Begun, Call, CommandContext, Done, StillHolds, check_generic};
pub use operation::operation;
