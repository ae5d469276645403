//! Locking and commit of an operation: the gate, the collection's write lock, latches, the write
//! group.
//!
//! Invariant: on an event loop an operation does not wait here. On a conflict it moves to a worker,
//! unless it has staged a write.

use super::OpCtx;
use crate::engine::Engine;
use crate::fsync_lock::PATIENCE;
use crate::key_locks::Waiting;
use crate::operation_memory;
use crate::transaction::Transaction;
use crate::write_group::Held;
use catalog::{Collection, WriteLock};
use errors::{Fallible, Result, bail, operation};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use storage::{Entry, LatchGuard};

/// The outcome of latching keys.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Latched {
    Held,
    /// Another operation holds one of them, and this one held others: it must release everything
    /// and start again.
    Conflict,
}

/// How long a later statement of a command waits on an event loop for a transaction. The first
/// statement goes to a worker; one after it cannot, because the command has written.
const LOOP_PATIENCE: Duration = Duration::from_millis(20);

impl<'a> OpCtx<'a> {
    /// Locks the collection for writing; returns its version under the lock.
    pub fn lock(&mut self, ns: &str) -> Result<Option<(Arc<Collection>, WriteLock)>> {
        if let Some(again) = self.relock(ns) {
            return Ok(Some(again));
        }
        loop {
            self.pass_gate()?;
            let Some(c) = self.engine.catalog.get(ns) else {
                return Ok(None);
            };
            let lock = match c.try_write_lock() {
                Some(l) => l,
                None => {
                    // DDL may wait for locks that this loop's own group holds.
                    self.flush();
                    self.need_worker()?;
                    self.wait_for_lock(&c)?
                }
            };
            // A thread that closes the gate then waits for all holders of such locks: no operation
            // may take one afterwards.
            if self.engine.fsync_lock.is_closed() {
                continue;
            }
            // DDL may have changed or dropped it before the lock was taken.
            match self.engine.catalog.get(ns) {
                Some(now) if now.uuid == c.uuid => {
                    if let Some(t) = &mut self.transaction {
                        t.keep_locked(&now)?;
                    }
                    return Ok(Some((now, lock)));
                }
                Some(_) => continue,
                None => return Ok(None),
            }
        }
    }

    /// The collection with its lock, when the transaction has already written to it.
    fn relock(&self, ns: &str) -> Option<(Arc<Collection>, WriteLock)> {
        let transaction = self.transaction.as_ref()?;
        let created = transaction.created(ns).cloned();
        let coll = created.or_else(|| self.engine.catalog.get(ns))?;
        let lock = transaction.relock(&coll)?;
        Some((coll, lock))
    }

    /// Waits for DDL on a collection; a transaction waits for a short time only.
    fn wait_for_lock(&self, coll: &Collection) -> Result<WriteLock> {
        if self.transaction.is_some() {
            let patience = self.engine.transactions.lock_patience();
            let Some(lock) = coll.write_lock_within(patience) else {
                bail!(
                    LockTimeout,
                    "Unable to acquire IX lock on '{}' within {}ms.",
                    coll.ns,
                    patience.as_millis()
                );
            };
            return Ok(lock);
        }
        loop {
            if let Some(lock) = coll.write_lock_within(PATIENCE) {
                return Ok(lock);
            }
            self.check()?;
        }
    }

    /// Waits until no write is under way on the collection, for a change in two steps of which the
    /// second cannot be interrupted: that one waits only for what has begun meanwhile.
    pub fn wait_for_writers(&self, ns: &str) -> Result<()> {
        loop {
            match self.engine.catalog.get(ns) {
                Some(c) if !c.is_idle_within(PATIENCE) => self.check()?,
                _ => return Ok(()),
            }
        }
    }

    /// Waits until the server is not locked against writes.
    pub fn pass_gate(&mut self) -> Result<()> {
        if !self.engine.fsync_lock.is_closed() {
            return Ok(());
        }
        self.flush();
        self.need_worker()?;
        let tell = |waits| {
            if let Some(w) = self.waiting {
                w.store(waits, Ordering::Relaxed);
            }
        };
        tell(true);
        let passed = self.engine.fsync_lock.wait(|| self.check());
        tell(false);
        passed
    }

    /// Latches keys by their hashes ([`crate::records::latch_hash`],
    /// [`crate::records::unique_hash`]), in addition to those held. Every latch of every write of
    /// records is taken here.
    ///
    /// On an event loop an earlier command of the same turn may hold one of them until the loop's
    /// group is committed. So a conflict first commits the group, with the writes of all commands
    /// of the turn so far. None of their replies has been sent, and the outcome is kept for them
    /// ([`WriteGroup::commit`]). If the conflict remains, the operation moves to a worker.
    ///
    /// An operation that holds no latch waits, so it never gets a conflict; one that holds some
    /// does not wait.
    pub(crate) fn latch_keys(
        &mut self,
        held: &mut Option<LatchGuard>,
        hashes: &[u64],
    ) -> Result<Latched> {
        if held.is_none() && self.engine.store.is_stalled() {
            // The engine stalls writers: a worker should wait, not a loop with its readers.
            self.flush();
            self.need_worker()?;
        }
        let first = held.is_none();
        loop {
            let waiting = self.wait_for_transactions(first)?;
            if self.latch_once(held, hashes)? == Latched::Conflict {
                return Ok(Latched::Conflict);
            }
            drop(waiting);
            operation_memory::latched(true);
            if let Some(transaction) = &mut self.transaction {
                transaction.lock_keys(hashes)?;
                return Ok(Latched::Held);
            }
            if !self.engine.transactions.locks.meets(hashes) {
                return Ok(Latched::Held);
            }
            // A transaction has locked one of them. An operation that waits for it holds nothing.
            self.blocked = hashes.to_vec();
            *held = None;
            operation_memory::latched(false);
            if !first {
                return Ok(Latched::Conflict);
            }
        }
    }

    /// Waits until no transaction holds the keys that blocked the last latch. Returns the place in
    /// the queue, which the caller keeps until the keys are latched.
    fn wait_for_transactions(&mut self, holds_nothing: bool) -> Result<Option<Waiting<'a>>> {
        if self.blocked.is_empty() || !holds_nothing {
            return Ok(None);
        }
        self.flush();
        self.need_worker()?;
        let engine: &'a Arc<Engine> = self.engine;
        let waiting = engine.transactions.locks.queue(&self.blocked)?;
        let on_loop = self.group.is_some().then(|| Instant::now() + LOOP_PATIENCE);
        while !waiting.wait(PATIENCE) {
            self.check()?;
            if on_loop.is_some_and(|until| Instant::now() >= until) {
                return Err(storage::write_conflict().into());
            }
        }
        self.blocked.clear();
        Ok(Some(waiting))
    }

    fn latch_once(&mut self, held: &mut Option<LatchGuard>, hashes: &[u64]) -> Result<Latched> {
        if self.try_latch(held, hashes) {
            return Ok(Latched::Held);
        }
        if self.group.is_some() {
            self.flush();
            if self.try_latch(held, hashes) {
                return Ok(Latched::Held);
            }
            self.need_worker()?;
        }
        if held.is_some() {
            return Ok(Latched::Conflict);
        }
        *held = Some(self.engine.store.latches().acquire(hashes));
        Ok(Latched::Held)
    }

    fn try_latch(&self, held: &mut Option<LatchGuard>, hashes: &[u64]) -> bool {
        match held {
            Some(guard) => guard.try_extend(hashes),
            None => {
                *held = self.engine.store.latches().try_acquire(hashes);
                held.is_some()
            }
        }
    }

    /// Commits entries: at once on a worker, with the loop's group inline.
    pub fn commit(&mut self, mut entries: Vec<Entry>, held: Held) -> Result<()> {
        operation_memory::latched(false);
        if entries.is_empty() {
            return Ok(());
        }
        if self.from_migrate {
            entries.iter_mut().for_each(|e| e.migrated = true);
        }
        if let Some(transaction) = &mut self.transaction {
            return transaction.stage(entries);
        }
        match &mut self.group {
            Some(g) => {
                g.stage(self.epoch, entries, held);
                self.staged = true;
            }
            None => {
                let proposed = in_time(&entries)
                    .and_then(|()| self.engine.store.propose_in(self.epoch, entries));
                self.commit_failed |= proposed.is_err();
                let c = proposed?;
                self.last_index = c.index;
                held.release();
            }
        }
        Ok(())
    }

    /// Commits a transaction: all that it wrote is one entry, to which `record` adds the session's
    /// record.
    pub fn commit_transaction(
        &mut self,
        mut transaction: Box<Transaction>,
        record: impl FnOnce(&mut Entry),
    ) -> Result<()> {
        self.epoch = transaction.epoch();
        let mut entry = transaction.take_entry();
        record(&mut entry);
        let held = Held {
            kept: Some(transaction),
            ..Held::default()
        };
        self.commit(vec![entry], held)
    }

    /// Prepares a transaction: its parts are stored under `key`, and its key locks stay until it is
    /// decided ([`crate::Prepared`]). `recovery_shard`: the shard that knows the outcome.
    pub fn prepare_transaction(
        &mut self,
        mut transaction: Box<Transaction>,
        key: Vec<u8>,
        recovery_shard: &str,
    ) -> Result<()> {
        self.epoch = transaction.epoch();
        let entry = transaction.take_prepared(key, recovery_shard)?;
        let held = Held {
            kept: Some(transaction),
            ..Held::default()
        };
        self.commit(vec![entry], held)
    }

    /// Commits the loop's group so far, so that this operation sees it.
    pub fn flush(&mut self) {
        if let Some(g) = &mut self.group {
            g.flush(&self.engine.store);
        }
    }

    /// Called before a statement that must see the earlier statements of its command.
    pub fn flush_own(&mut self) {
        if self.staged {
            self.flush();
        }
    }
}

/// What a key takes at least to be written: once that has begun it cannot be ended.
const KEY: Duration = Duration::from_nanos(250);

/// Fewer are written before anybody could notice.
const MANY_KEYS: usize = 4096;

/// Whether there is time to write so much: fails before anything of it is written.
fn in_time(entries: &[Entry]) -> Fallible<()> {
    let keys: usize = entries.iter().map(|e| e.effects.len()).sum();
    if keys < MANY_KEYS {
        return Ok(());
    }
    let many = u32::try_from(keys).unwrap_or(u32::MAX);
    operation::ask_ahead(KEY.saturating_mul(many))
}
