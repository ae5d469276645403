//! Key locks: the keys that transactions have locked, the plain writes that wait for them, and
//! figures of all transactions.
//!
//! Invariants: a key is locked only with its latch held, and a plain write looks for locks only
//! with its latches held, so neither misses the other. Transactions never wait for key locks, so
//! there is no deadlock.

use crate::conflict_queue::ConflictQueue;
use auth::session_id::Lsid;
use errors::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use storage::write_conflict;

/// The most plain writes that may wait for transactions at a time. Each holds a worker thread, and
/// some threads must stay free.
const MOST_WAITING: usize = 100;

/// Which keys are locked by transactions, by their latch hash. Two keys of one hash cost a needless
/// conflict.
#[derive(Default)]
pub struct KeyLocks {
    /// How many keys are locked: plain writes look no further while there are none.
    locked: AtomicUsize,
    waiting: AtomicUsize,
    table: Mutex<Table>,
    released: Condvar,
}

#[derive(Default)]
struct Table {
    /// The transaction that holds each key.
    owners: HashMap<u64, u64>,
    /// The number of plain writes that wait for each key. No transaction gets a key that a plain
    /// write waits for, so plain writes are not starved.
    waiters: HashMap<u64, u32>,
}

/// A plain write's place in the queue for keys, given back on drop.
pub(crate) struct Waiting<'l> {
    locks: &'l KeyLocks,
    hashes: Vec<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut table = self.locks.table.lock();
        for hash in &self.hashes {
            let Some(n) = table.waiters.get_mut(hash) else {
                panic!("a write that waits for a key is counted");
            };
            *n -= 1;
            if *n == 0 {
                table.waiters.remove(hash);
            }
        }
        self.locks.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Waiting<'_> {
    /// Waits for at most `patience` until none of the keys is locked; returns whether that is so.
    pub fn wait(&self, patience: Duration) -> bool {
        let mut table = self.locks.table.lock();
        if !table.holds(&self.hashes) {
            return true;
        }
        self.locks.released.wait_for(&mut table, patience);
        !table.holds(&self.hashes)
    }
}

impl Table {
    fn holds(&self, hashes: &[u64]) -> bool {
        hashes.iter().any(|h| self.owners.contains_key(h))
    }
}

impl KeyLocks {
    /// Whether a transaction has locked one of these keys. Asked with their latches held.
    #[inline]
    pub(crate) fn meets(&self, hashes: &[u64]) -> bool {
        // The latch orders this read after the locking by the previous holder of the latch.
        self.locked.load(Ordering::Relaxed) != 0 && self.table.lock().holds(hashes)
    }

    /// Queues for these keys; a write conflict when too many wait already.
    pub(crate) fn queue(&self, hashes: &[u64]) -> Result<Waiting<'_>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(write_conflict().into());
        }
        let mut table = self.table.lock();
        for hash in hashes {
            *table.waiters.entry(*hash).or_default() += 1;
        }
        Ok(Waiting {
            locks: self,
            hashes: hashes.to_vec(),
        })
    }

    /// Locks keys for the transaction `id`, which has their latches, and adds those that are new to
    /// `locked`; a write conflict when another transaction has one of them, or a plain write waits
    /// for it.
    pub(crate) fn lock(&self, id: u64, hashes: &[u64], locked: &mut Vec<u64>) -> Result<()> {
        let mut table = self.table.lock();
        for hash in hashes {
            match table.owners.get(hash) {
                Some(owner) if *owner == id => continue,
                Some(_) => return Err(write_conflict().into()),
                None if table.waiters.contains_key(hash) => return Err(write_conflict().into()),
                None => {}
            }
            table.owners.insert(*hash, id);
            locked.push(*hash);
            self.locked.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives keys to `id`, also those of another owner: a transaction's become those of its prepared
    /// form.
    pub(crate) fn take_over(&self, id: u64, hashes: &[u64]) {
        let mut table = self.table.lock();
        for hash in hashes {
            if table.owners.insert(*hash, id).is_none() {
                self.locked.fetch_add(1, Ordering::Relaxed);
            }
        }
        let locked = self.locked.load(Ordering::Relaxed);
        assert_eq!(locked, table.owners.len(), "locked keys are counted");
    }

    /// Lets go of those of the keys that `id` has.
    pub(crate) fn release(&self, id: u64, hashes: &[u64]) {
        if hashes.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        for hash in hashes {
            if table.owners.get(hash) == Some(&id) {
                table.owners.remove(hash);
                self.locked.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // A plain write that finds none locked looks no further.
        let locked = self.locked.load(Ordering::Relaxed);
        assert_eq!(locked, table.owners.len(), "locked keys are counted");
        if !table.waiters.is_empty() {
            self.released.notify_all();
        }
    }
}

/// Figures of an open transaction.
pub struct OpenTransaction {
    pub lsid: Lsid,
    pub number: i64,
    pub started: Instant,
    /// Whether one of its statements runs.
    pub active: AtomicBool,
    pub operations: AtomicU64,
    pub bytes: AtomicUsize,
}

/// All transactions of the server: their key locks, which are open, and how many there were.
pub struct Transactions {
    pub(crate) locks: KeyLocks,
    pub(crate) open: Mutex<HashMap<u64, Arc<OpenTransaction>>>,
    pub(crate) next: AtomicU64,
    pub started: AtomicU64,
    pub committed: AtomicU64,
    /// How many were prepared.
    pub prepared: AtomicU64,
    pub aborted: AtomicU64,
    /// The most memory that one transaction's writes may hold, in bytes.
    pub most_bytes: AtomicUsize,
    /// What all of them hold together, and the most that may be.
    pub held_bytes: AtomicUsize,
    pub most_held_bytes: AtomicUsize,
    /// For those that begin again after a conflict.
    pub conflict_queue: ConflictQueue,
    /// How long one waits for DDL (`maxTransactionLockRequestTimeoutMillis`).
    pub lock_patience_millis: AtomicU64,
}

/// A transaction's share of memory with a large cache, in bytes.
const MOST_BYTES: usize = 256 << 20;
/// That of all transactions with a small one.
const LEAST_HELD_BYTES: usize = 128 << 20;

impl Default for Transactions {
    fn default() -> Transactions {
        Transactions {
            locks: KeyLocks::default(),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            started: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            prepared: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            most_bytes: AtomicUsize::new(MOST_BYTES),
            held_bytes: AtomicUsize::new(0),
            most_held_bytes: AtomicUsize::new(2 * MOST_BYTES),
            conflict_queue: ConflictQueue::default(),
            lock_patience_millis: AtomicU64::new(5),
        }
    }
}

impl Transactions {
    /// Has all of them together hold half of the cache at most, but for [`LEAST_HELD_BYTES`].
    pub fn keep_within(&self, cache_bytes: u64) {
        let half = usize::try_from(cache_bytes / 2).unwrap_or(usize::MAX);
        let held = half.clamp(LEAST_HELD_BYTES, 2 * MOST_BYTES);
        self.most_held_bytes.store(held, Ordering::Relaxed);
        self.most_bytes
            .store(held.min(MOST_BYTES), Ordering::Relaxed);
    }

    pub fn open(&self) -> Vec<Arc<OpenTransaction>> {
        self.open.lock().values().cloned().collect()
    }

    pub(crate) fn lock_patience(&self) -> Duration {
        Duration::from_millis(self.lock_patience_millis.load(Ordering::Relaxed))
    }
}
