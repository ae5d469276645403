//! A pinned snapshot: a state of records and catalog that is read later.
//!
//! Invariant: it never changes. What transactions over several shards had prepared in it can be shown
//! over it, where they had committed by then, and makes another snapshot of the same time.

use crate::engine::Engine;
use crate::prepared::{self, damaged, entry_of};
use catalog::Snapshot;
use errors::Result;
use std::sync::Arc;
use std::time::Instant;
use storage::{View, WriteSet};

/// A pinned state of records and catalog, and its cluster time.
pub struct PinnedSnapshot {
    pub ts: u64,
    pub view: View,
    pub catalog: Arc<Snapshot>,
    /// What the view shows over the engine's state: parts of transactions over several shards that
    /// had committed, and of which this shard had not heard.
    pub base: WriteSet,
    pub taken: Instant,
}

impl PinnedSnapshot {
    /// Pins the newest state. Its cluster time is not later than what the view shows.
    pub fn newest(engine: &Engine) -> PinnedSnapshot {
        // The time is taken before the view, so the view shows all that was acknowledged by then.
        let ts = engine.store.last_ts();
        loop {
            let before = engine.catalog.snapshot();
            let view = engine.store.view();
            let catalog = engine.catalog.snapshot();
            if Arc::ptr_eq(&before, &catalog) {
                return PinnedSnapshot::of(ts, view, catalog);
            }
        }
    }

    /// Pins the state at a time that other shards pin too; `None` where the log is later already. From
    /// then on nothing is written at that time or before.
    pub fn at(engine: &Engine, ts: u64) -> Result<Option<PinnedSnapshot>> {
        let pinned = (engine.store).view_at(ts, || engine.catalog.snapshot())?;
        Ok(pinned.map(|(view, catalog)| PinnedSnapshot::of(ts, view, catalog)))
    }

    fn of(ts: u64, view: View, catalog: Arc<Snapshot>) -> PinnedSnapshot {
        PinnedSnapshot {
            ts,
            view,
            catalog,
            base: WriteSet::default(),
            taken: Instant::now(),
        }
    }

    /// Whether nothing is prepared in it.
    pub fn is_whole(&self) -> Result<bool> {
        Ok(prepared::stored_in(&self.view)?.is_empty())
    }

    /// The transactions prepared in it under these keys, as they would be shown.
    pub fn parts(&self, keys: &[Vec<u8>]) -> Result<WriteSet> {
        let mut parts = self.base.clone();
        for key in keys {
            let stored = self.view.get(key)?;
            let entry = stored.and_then(|stored| entry_of(&stored));
            for part in entry.ok_or_else(damaged)?.plain() {
                for effect in &part.effects {
                    parts.add(effect)?;
                }
            }
        }
        Ok(parts)
    }

    /// The same state, where these are shown over it.
    pub fn showing(&self, base: WriteSet) -> PinnedSnapshot {
        PinnedSnapshot {
            ts: self.ts,
            view: self.view.with_writes(base.clone()),
            catalog: self.catalog.clone(),
            base,
            taken: self.taken,
        }
    }
}
