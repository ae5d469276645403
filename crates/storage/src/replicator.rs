//! The log of a replica set's member: the replicator admits entries before they are made here, and
//! learns of each that was appended.
//!
//! ```text
//! primary    propose ─► admit ─ append ─► Replicator::appended ─ apply ─ acknowledged for w: 1
//! secondary  append_records ─► (a majority has them) ─► apply_up_to
//! ```
//!
//! Invariants:
//! - [`Replicator::appended`] is called under the commit lock, so in the order of the log.
//! - A write that was decided in one [`Epoch`] is appended in no other. So no write rests on what it saw
//!   before another member was primary, and no entry of an old term lies behind one of a new.
//! - What the engine has on disk is never ahead of [`FlushGate::allow`]: memory tables with later
//!   entries are not flushed. So a member that starts again can forget what no majority had.
//! - Nor is it ahead of this member's own log on disk: a majority may have an entry that this disk
//!   has not, and a log that ends before its engine has a hole.

use errors::{Error, err};
use oplog::DurableIndex;
use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;
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

    /// A write waits until other members have its entries. It must be quick.
    fn awaited(&self);
}

/// What a write hears that this member does not take, or takes no more. A driver sends a retryable
/// write again, to the next primary.
pub(crate) fn not_primary() -> Error {
    err!(NotWritablePrimary, "not primary").with_label("RetryableWriteError")
}

/// Holds back flushes of memory tables until their content may reach the disk.
pub struct FlushGate {
    /// The last index that a majority has.
    allowed: AtomicU64,
    /// The last index of this member's log that is on disk; nothing where there is no set. It is asked for and not told: of two
    /// threads that have synced, the one that was earlier may tell later.
    synced: OnceLock<DurableIndex>,
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
            synced: OnceLock::new(),
            applied: AtomicU64::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

impl FlushGate {
    /// Flushes may bring applied entries up to `index` to disk; all of them for `u64::MAX`.
    pub fn allow(&self, index: u64) {
        self.allowed.store(index, Ordering::Release);
        let _lock = self.lock.lock();
        self.changed.notify_all();
    }

    /// From now on flushes bring no more to disk than the log has there.
    pub(crate) fn follow(&self, log: DurableIndex) {
        // There is one log for the life of the process.
        let _ = self.synced.set(log);
    }

    /// More of the log is on disk.
    pub(crate) fn synced(&self) {
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

    /// Waits until the entries applied by now may reach the disk. A flush takes only memory tables that
    /// were full before it began.
    pub(crate) fn pass(&self) {
        let applied = self.applied.load(Ordering::Acquire);
        let mut lock = self.lock.lock();
        while self.reached() < applied {
            self.changed.wait_for(&mut lock, LOOK);
        }
    }

    /// Whether a flush would not wait. For the time after the set has stopped: no later call lets a
    /// flush go on.
    pub(crate) fn is_open(&self) -> bool {
        self.reached() >= self.applied.load(Ordering::Acquire)
    }

    fn reached(&self) -> u64 {
        let synced = self.synced.get().map_or(u64::MAX, DurableIndex::get);
        self.allowed.load(Ordering::Acquire).min(synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Effect, Entry, Op, Store, StoreOptions};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread::spawn;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_flush_waits_for_what_it_would_bring_to_disk() {
        let gate = Arc::new(FlushGate::default());
        let durable = Arc::new(AtomicU64::new(0));
        gate.follow(DurableIndex::of(durable.clone()));
        let sync = |index| {
            durable.store(index, Ordering::Release);
            gate.synced();
        };
        sync(4);
        gate.allow(4);
        gate.applying(4);
        gate.pass();
        assert!(gate.is_open());
        gate.applying(6);
        assert!(!gate.is_open());
        let (told, passed) = channel();
        let flush = gate.clone();
        let thread = spawn(move || {
            flush.pass();
            told.send(()).unwrap();
        });
        gate.allow(5);
        assert!(passed.recv_timeout(Duration::from_millis(250)).is_err());
        sync(5);
        gate.allow(6);
        assert!(passed.recv_timeout(Duration::from_millis(250)).is_err());
        sync(6);
        passed.recv_timeout(SOON).unwrap();
        thread.join().unwrap();
    }

    struct Primary;

    impl Replicator for Primary {
        fn term(&self) -> u64 {
            1
        }
        fn appended(&self, _: Vec<Appended>) {}
        fn awaited(&self) {}
    }

    fn primary(dir: &std::path::Path) -> Arc<Store> {
        let store = Store::open(StoreOptions::new(dir)).unwrap();
        store.flush_gate().allow(0);
        store.set_term(1).unwrap();
        store
    }

    fn write(store: &Store, key: &str) -> u64 {
        let effects = vec![Effect::Put(key.into(), b"1".to_vec())];
        let entry = Entry::new("db.coll".into(), [9; 16], Op::Noop, effects);
        store.propose(vec![entry]).unwrap().index
    }

    /// Closes the store in time, and opens it again: so many entries were replayed.
    fn replayed_after_close(store: Arc<Store>, dir: &std::path::Path) -> u64 {
        let (told, closed) = channel();
        spawn(move || {
            store.close().unwrap();
            drop(store);
            told.send(()).unwrap();
        });
        closed.recv_timeout(SOON).expect("the store is closed");
        let store = Store::open(StoreOptions::new(dir)).unwrap();
        store.stats().replayed_entries
    }

    #[test]
    fn a_word_of_an_earlier_sync_that_comes_late_holds_no_flush_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = primary(dir.path());
        let (begun, begins) = channel();
        let (late, goes_on) = channel();
        let goes_on = Mutex::new(Some((begun, goes_on)));
        store.on_durable(Box::new(move |_| {
            // The first is overtaken by all others.
            let first = goes_on.lock().take();
            if let Some((begun, goes_on)) = first {
                begun.send(()).unwrap();
                goes_on.recv().unwrap();
            }
        }));
        store.replicate(Arc::new(Primary)).unwrap();
        write(&store, "a");
        let slow = store.clone();
        let thread = spawn(move || slow.call_back());
        begins.recv_timeout(SOON).unwrap();
        let last = write(&store, "b");
        store.decided(last);
        store.wait_durable(last).unwrap();
        late.send(()).unwrap();
        thread.join().unwrap();
        assert!(store.flush_gate().is_open());
        assert_eq!(replayed_after_close(store, dir.path()), 0);
    }
}
