//! The writes of one turn of an event loop, committed together.
//!
//! Invariant: latches and locks of a staged write are held until the group is applied, or has failed.

use catalog::{Tail, WriteLock};
use errors::{Error, Result};
use std::sync::Arc;
use storage::{Entry, LatchGuard, Store};

/// What is held until a staged write is applied: it keeps others away from what the write touches.
#[derive(Default)]
pub struct Held {
    pub latches: Option<LatchGuard>,
    pub lock: Option<WriteLock>,
    /// Whatever else is to be dropped then: the transaction that commits, with its key locks.
    pub kept: Option<Box<dyn Send>>,
    /// The capped collection that grows: whoever waits for that is told then.
    pub grown: Option<Arc<Tail>>,
}

impl Held {
    /// Lets go of the latches and the lock, and then wakes who waits for the collection to grow.
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
    failed: Option<Error>,
}

impl WriteGroup {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.failed.is_none()
    }

    /// Adds the entries of one write.
    pub(crate) fn stage(&mut self, entries: Vec<Entry>, held: Held) {
        self.entries.extend(entries);
        self.held.push(held);
    }

    /// Writes and applies what was staged; then lets go of latches and locks.
    pub fn flush(&mut self, store: &Store) {
        if self.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.entries);
        match store.propose(entries) {
            Ok(_) => {}
            Err(e) => self.failed = Some(e),
        }
        self.held.drain(..).for_each(Held::release);
    }

    /// Flushes and tells how all that was staged since the last call fared: a log index at or after its last entry. It is
    /// not before entries that others made, which the answer to a retried write stands for.
    pub fn commit(&mut self, store: &Store) -> Result<u64> {
        self.flush(store);
        match self.failed.take() {
            Some(e) => Err(e),
            None => Ok(store.last_index()),
        }
    }
}
