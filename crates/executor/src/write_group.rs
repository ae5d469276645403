//! The writes of one turn of an event loop, committed together.
//!
//! Invariant: latches and locks of a staged write are held until the group is applied, or has
//! failed.

use catalog::{Tail, WriteLock};
use errors::{Error, Fallible};
use std::sync::Arc;
use storage::{Entry, Epoch, LatchGuard, Store};

/// The latches and locks that are held until a staged write is applied.
#[derive(Default)]
pub struct Held {
    pub latches: Option<LatchGuard>,
    pub lock: Option<WriteLock>,
    /// Anything else to be dropped then: a committing transaction with its key locks.
    pub kept: Option<Box<dyn Send>>,
    /// The tail of a capped collection that grows: its waiting cursors are notified then.
    pub grown: Option<Arc<Tail>>,
}

impl Held {
    /// Releases latches and locks, and then wakes the cursors that wait for the collection to grow.
    pub(crate) fn release(self) {
        drop((self.latches, self.lock, self.kept));
        if let Some(tail) = self.grown {
            tail.tell();
        }
    }
}

/// The writes of one turn of an event loop, committed together.
#[derive(Default)]
pub struct WriteGroup {
    entries: Vec<Entry>,
    held: Vec<Held>,
    /// When the first of them was decided.
    epoch: Epoch,
    failed: Option<Error>,
}

impl WriteGroup {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.failed.is_none()
    }

    /// Adds the entries of one write.
    pub(crate) fn stage(&mut self, epoch: Epoch, entries: Vec<Entry>, held: Held) {
        if self.entries.is_empty() || epoch < self.epoch {
            self.epoch = epoch;
        }
        self.entries.extend(entries);
        self.held.push(held);
    }

    /// Writes and applies the staged entries; then releases latches and locks.
    pub fn flush(&mut self, store: &Store) {
        if self.entries.is_empty() {
            return;
        }
        assert!(
            !self.held.is_empty(),
            "a staged write holds its latches until it is applied"
        );
        let entries = std::mem::take(&mut self.entries);
        match store.propose_in(self.epoch, entries) {
            Ok(_) => {}
            Err(e) => self.failed = Some(e),
        }
        self.held.drain(..).for_each(Held::release);
    }

    /// Flushes; returns the outcome of all writes staged since the last call: a log index at or
    /// after their last entry. The index also covers earlier entries of other writers, because a
    /// reply to a retried write may stand for one of those.
    pub fn commit(&mut self, store: &Store) -> Fallible<u64> {
        self.flush(store);
        match self.failed.take() {
            Some(e) => Err(e),
            None => Ok(store.last_index()),
        }
    }
}
