//! The store: log and engine as one.

use crate::{Effect, Entry, Latches, View};
use errors::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub dir: PathBuf,
    /// Blocks and memtables together.
    pub cache_bytes: usize,
    /// The share of the cache that keeps whole rows; 0 turns the row cache off.
    pub row_cache_percent: u8,
    /// How long an acknowledged write that asked for no sync may stay out of the disk.
    pub sync_interval: Duration,
    pub log_segment_bytes: u64,
    pub log_retain_bytes: u64,
    pub log_retain_age: Duration,
}

impl StoreOptions {
    pub fn new(dir: impl Into<PathBuf>) -> StoreOptions {
        StoreOptions {
            dir: dir.into(),
            cache_bytes: 256 << 20,
            row_cache_percent: 0,
            sync_interval: Duration::from_millis(100),
            log_segment_bytes: 64 << 20,
            log_retain_bytes: 1 << 30,
            log_retain_age: Duration::from_secs(24 * 3600),
        }
    }
}

/// Where a proposal ended up: the index and timestamp of its last entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    pub index: u64,
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
}

#[derive(Clone, Debug, Default)]
pub struct StoreStats {
    pub cache_capacity_bytes: u64,
    pub cache_used_bytes: u64,
    pub cache_pinned_bytes: u64,
    pub memtable_bytes: u64,
    pub sst_bytes: u64,
    pub pending_compaction_bytes: u64,
    pub running_flushes: u64,
    pub running_compactions: u64,
    pub estimated_keys: u64,
    pub log_bytes: u64,
    pub log_segments: u64,
    pub last_index: u64,
    pub durable_index: u64,
    pub snapshots: u64,
}

pub struct Store {}

#[allow(unused_variables)]
impl Store {
    /// Opens or creates the directory, takes its lock, recovers.
    pub fn open(opts: StoreOptions) -> Result<Arc<Store>> {
        todo!()
    }
    /// A snapshot.
    pub fn view(self: &Arc<Self>) -> View {
        todo!()
    }
    /// The newest state at each read, without a snapshot: cheapest for a single get.
    pub fn latest(self: &Arc<Self>) -> View {
        todo!()
    }
    /// Writes the entries to the log (one write with whoever else proposes) and applies them; returns when both are done.
    pub fn propose(&self, entries: Vec<Entry>) -> Result<Committed> {
        todo!()
    }
    pub fn last_index(&self) -> u64 {
        todo!()
    }
    pub fn last_ts(&self) -> u64 {
        todo!()
    }
    pub fn durable_index(&self) -> u64 {
        todo!()
    }
    /// Asks for an fdatasync soon; `on_durable` callbacks tell when.
    pub fn request_sync(&self) {
        todo!()
    }
    pub fn wait_durable(&self, index: u64) -> Result<()> {
        todo!()
    }
    /// Called after each sync with the durable index, and after the log failed for good (see `healthy`).
    pub fn on_durable(&self, callback: Box<dyn Fn(u64) + Send + Sync>) {
        todo!()
    }
    /// An error when the store takes no more writes.
    pub fn healthy(&self) -> Result<()> {
        todo!()
    }
    /// Writes past the log: only for what can be derived again (index builds).
    pub fn write_unlogged(&self, effects: &[Effect]) -> Result<()> {
        todo!()
    }
    pub fn approximate_size(&self, low: &[u8], high: &[u8]) -> u64 {
        todo!()
    }
    pub fn stats(&self) -> StoreStats {
        todo!()
    }
    pub fn flush(&self) -> Result<()> {
        todo!()
    }
    pub fn compact(&self, low: &[u8], high: &[u8]) -> Result<()> {
        todo!()
    }
    /// A consistent copy (hard links) of the engine in `dir`, which must not exist.
    pub fn checkpoint(&self, dir: &Path) -> Result<()> {
        todo!()
    }
    pub fn latches(&self) -> &Latches {
        todo!()
    }
    /// Syncs the log and flushes the engine, so that the next start replays nothing. Dropping the store is as safe, only slower to start from.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
}
