//! The keyspace: what all rooms above read and write. One embedded engine behind one log.
//!
//! ```text
//! read    Store::view ─► View ─► get, get_some, scan                               no locks; a snapshot
//! write   Store::propose(entries) ─► log: one write(2) ─► engine: one batch         ordered; with whoever else proposes
//! ```
//!
//! Invariants:
//! - No write goes around [`Store::propose`], except what can be derived again ([`Store::write_unlogged`]: index builds).
//! - The engine's state is always a prefix of the log, and carries the index where it ends; recovery replays the rest.
//! - An effect is absolute; applying an entry twice, or over newer state, converges.
//! - This crate knows neither documents nor collections: keys and values are bytes, `ns` is carried and not looked at.
//!
//! Latches are here because they guard keys, not because the store takes them: writers do, from reading what they change until
//! their proposal returned.

mod ahead;
mod arrival;
mod batch;
mod commit;
mod counts;
mod data_dir;
mod engine;
mod entry;
mod family;
mod ghost;
mod keeper;
mod latch;
mod missing;
mod offline;
mod pace;
mod pieces;
mod rows;
mod shares;
mod store;
mod trouble;
mod tuning;
mod view;
mod watch;

pub use counts::{CountDelta, count_key};
pub use entry::{Effect, Entry, Key, Op, OpSession, Uuid};
pub use latch::{LatchGuard, Latches};
pub use log::{LogReader, Record};
pub use missing::{Block, Missing, without};
pub use offline::{LogFindings, Offline, Unreadable};
pub use store::{Committed, HasRoom, Store, StoreOptions, StoreStats};
pub use tuning::EngineOptions;
pub use view::{Direction, SOME_BYTES, Scan, Slice, View};
pub use watch::Watcher;
