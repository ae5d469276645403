//! Where the log is one of several members': who is asked before an entry is made here, and told of
//! each that was appended.
//!
//! ```text
//! primary    propose ─► admit ─ append ─► Replicator::appended ─ apply ─ acknowledged for w: 1
//! secondary  append_records ─► (a majority has them) ─► apply_up_to
//! ```
//!
//! Invariants:
//! - [`Replicator::appended`] is called under the commit lock, so in the order of the log.
//! - What was decided in one [`Epoch`] is appended in no other. So no write rests on what it saw before
//!   another member was primary, and no entry of an old term lies behind one of a new.
//! - What the engine has on disk is never ahead of [`FlushGate::allow`]: memory tables with later
//!   entries are not flushed. So a member that starts again can forget what no majority had.
//! - Nor is it ahead of this member's own log on disk: a majority may have an entry that this disk
//!   has not, and a log that ends before its engine has a hole.

use errors::{Error, err};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An entry as it was appended to the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    pub index: u64,
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
    pub term: u64,
    pub wall_millis: i64,
    /// The bytes of the entry, see [`crate::Entry::decode`].
    pub payload: Vec<u8>,
}

/// For how long what a write has seen holds: taken before the first look at what it changes, and
/// compared when it is appended. Another is a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// The term in which this member is primary; 0 where it takes no writes, or is in no set.
    pub(crate) term: u64,
    /// How many groups were applied after their writers had let go of their latches.
    pub(crate) applied_late: u64,
}

impl Epoch {
    #[doc(hidden)]
    pub fn of_term(term: u64) -> Epoch {
        Epoch {
            term,
            applied_late: 0,
        }
    }
}

/// Is asked before entries are made here, and told of them.
pub trait Replicator: Send + Sync {
    /// The term in which entries may be made here now; 0 where none may.
    fn term(&self) -> u64;

    /// Entries are in the log, and about to be applied. It holds all writers up: it must be quick.
    fn appended(&self, entries: Vec<Appended>);

    /// Somebody waits until other members have what was appended. It must be quick.
    fn awaited(&self);
}

/// What a write hears that this member does not take, or takes no more. A driver sends a retryable
/// write again, to the next primary.
pub(crate) fn not_primary() -> Error {
    err!(NotWritablePrimary, "not primary").with_label("RetryableWriteError")
}

/// Holds back flushes of memory tables until what is in them may reach the disk.
pub struct FlushGate {
    /// The last index that a majority has.
    allowed: AtomicU64,
    /// The last index of this member's log that is on disk.
    synced: AtomicU64,
    /// The last index that may be in a memory table.
    applied: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

/// How often a flush that is held back looks again by itself.
const LOOK: Duration = Duration::from_millis(100);

impl Default for FlushGate {
    fn default() -> FlushGate {
        FlushGate {
            allowed: AtomicU64::new(u64::MAX),
            synced: AtomicU64::new(u64::MAX),
            applied: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

impl FlushGate {
    /// Flushes may bring to disk what is applied up to `index`; all of it for `u64::MAX`.
    pub fn allow(&self, index: u64) {
        self.allowed.store(index, Ordering::Release);
        let _lock = self.lock.lock();
        self.changed.notify_all();
    }

    /// The log is on disk up to `index`; without a set it is not asked for.
    pub(crate) fn synced(&self, index: u64) {
        self.synced.store(index, Ordering::Release);
        let _lock = self.lock.lock();
        self.changed.notify_all();
    }

    /// The last index that a majority has.
    pub fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Acquire)
    }

    /// Entries up to `index` are about to be in a memory table.
    pub(crate) fn applying(&self, index: u64) {
        self.applied.store(index, Ordering::Release);
    }

    /// Waits until what is applied now may reach the disk. A flush takes only memory tables that
    /// were full before it began.
    pub(crate) fn pass(&self) {
        let applied = self.applied.load(Ordering::Acquire);
        let mut lock = self.lock.lock();
        while self.reached() < applied {
            self.changed.wait_for(&mut lock, LOOK);
        }
    }

    /// Whether a flush would not wait. Who has stopped the set asks before a flush: nobody lets it go on.
    pub(crate) fn is_open(&self) -> bool {
        self.reached() >= self.applied.load(Ordering::Acquire)
    }

    fn reached(&self) -> u64 {
        let synced = self.synced.load(Ordering::Acquire);
        self.allowed.load(Ordering::Acquire).min(synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_flush_waits_for_what_it_would_bring_to_disk() {
        let gate = Arc::new(FlushGate::default());
        gate.allow(4);
        gate.applying(4);
        gate.pass();
        assert!(gate.is_open());
        gate.applying(6);
        assert!(!gate.is_open());
        let (told, passed) = std::sync::mpsc::channel();
        let flush = gate.clone();
        let thread = std::thread::spawn(move || {
            flush.pass();
            told.send(()).unwrap();
        });
        gate.allow(5);
        assert!(passed.recv_timeout(Duration::from_millis(250)).is_err());
        gate.synced(5);
        gate.allow(6);
        assert!(passed.recv_timeout(Duration::from_millis(250)).is_err());
        gate.synced(6);
        passed.recv_timeout(Duration::from_secs(10)).unwrap();
        thread.join().unwrap();
    }
}
