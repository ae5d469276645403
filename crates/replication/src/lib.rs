//! Replica sets: what their configuration may say, and the consensus of their members on one log.
//!
//! ```text
//! peers ─► Message ─┐                       ┌─► MemberLog: append, apply, cut      (a store, or a simulator's)
//! the store's own ──┼─► Member (raft-rs) ───┼─► messages to peers
//! entries, clock ───┘                       └─► News: role, commit point, start again
//! ```
//!
//! - [`config`]: the configuration document, and when a write has reached the members asked for.
//! - [`member`]: one member of a set, driven by inputs, without sockets and clocks.
//! - [`driver`]: the thread that drives a member over a real store.
//! - [`message`]: the bytes of messages between members.
//! - [`initial_sync`]: files for a member that the log does not reach any more.
//! - [`rollback`]: files of documents that are rolled back.
//! - [`state_file`]: what a member must not forget besides its log.
//!
//! Invariant: knows no command and no socket of a client.

pub mod config;
pub mod driver;
pub mod initial_sync;
mod log_view;
pub mod member;
pub mod message;
pub mod rollback;
pub mod state_file;

pub use config::{Config, Host};
pub use driver::{Changed, Driver, SetName, Status, Transport};
pub use member::{Member, MemberRole};
