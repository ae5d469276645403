//! The keyspace: one embedded engine (RocksDB) behind one log. See `Store`.

mod entry;
mod latch;
mod store;
mod view;

pub use entry::{Effect, Entry, Key, Op, OpSession, Uuid};
pub use latch::{LatchGuard, Latches};
pub use store::{Committed, Store, StoreOptions, StoreStats};
pub use view::{Direction, Scan, Slice, View};
