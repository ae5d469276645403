//! The keyspace that all crates above read and write: one embedded engine behind one log.
//!
//! ```text
//! read    Store::view ─► View ─► get, get_some, scan                               no locks; a snapshot
//! write   Store::propose(entries) ─► log: one write(2) ─► engine: one batch         ordered; with other proposals of the time
//! ```
//!
//! Invariants:
//! - No write goes around [`Store::propose`], except what can be derived again
//!   ([`Store::write_unlogged`]: index builds).
//! - The engine's state is always a prefix of the log, and carries the index where it ends;
//!   recovery replays the rest.
//! - An effect is absolute; applying an entry twice, or over newer state, converges.
//! - This crate knows neither documents nor collections: keys and values are bytes, and namespaces
//!   are opaque.
//!
//! Latches are in this crate because they guard keys. Writers take them, not the store: from
//! reading what they will change until their proposal has returned.

pub mod at_rest;
mod background_error;
mod batch;
mod batched_read;
mod bounded_iterator;
mod cache_balance;
mod cache_loan;
mod commit;
mod commit_env;
mod compaction_ranges;
mod counts;
mod data_dir;
mod dead_ranges;
mod dead_search;
mod empty_stretches;
mod encrypted_env;
mod engine;
mod engine_scan;
mod entry;
mod family;
mod ghost_list;
pub mod hidden_keys;
mod insert_order;
mod latch;
mod log_pack;
mod log_window;
pub mod long_steps;
mod maintenance;
mod nonblocking_read;
mod offline;
mod planted_fault;
pub mod received_copy;
mod record_cache;
mod replay;
mod replicator;
mod restore;
mod store;
mod tuning;
mod view;
mod watch;
mod write_set;
mod write_throttle;

pub use cache_loan::CacheLoan;
pub use counts::{CountDelta, count_key};
pub use data_dir::FORMAT as DATA_FORMAT;
pub use engine::damage;
pub use entry::{Effect, Entry, EntryGlance, Key, MAX_ENTRY_BYTES, Op, OpSession, Uuid};
pub use latch::{LatchGuard, Latches};
pub use log_pack::{LogMaker, pack_record, record_fingerprint, unpack_record};
pub use nonblocking_read::{Block, Missing, without};
pub use offline::{LogFindings, Offline, Unreadable};
pub use oplog::{
    LogMark, LogReader, MOST_WINDOWS as LEASED_LOG_WINDOWS, Record, Trimmed as LogTrimmed,
    Window as LogWindow,
};
pub use replicator::{Appended, Epoch, FlushGate, Replicator};
pub use restore::{
    BackupRecord, Completion, LogFiles, PointInTime, RestoreError, RestoreRequest, Restored, Until,
    fingerprint, log_files, restore,
};
pub use store::{Committed, HasRoom, Store, StoreOptions, StoreStats};
pub use tuning::EngineOptions;
pub use view::{Direction, SOME_BYTES, Scan, Slice, View, write_conflict};
pub use watch::{Observer, Watcher};
pub use write_set::WriteSet;
