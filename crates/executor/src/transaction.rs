//! Multi-document transactions: a transaction's snapshot, its writes and its locks.
//!
//! ```text
//! statement ─ reads: snapshot + own writes                      (storage::View::with_writes)
//!           ─ writes: key locks ─ compare with the newest state ─ write set, entries in memory
//! commit    ─ one log entry with all parts ─ applied ─ key locks are given back
//! abort     ─ forgotten
//! prepare   ─ one log entry that stores all parts ─ the key locks are the prepared one's (crate::prepared)
//! ```
//!
//! Snapshot isolation, first writer wins. A transaction locks each key when it first writes it. A
//! key that changed since the snapshot, or that another transaction has locked, is a write
//! conflict. So the commit needs no check. A plain write that meets a locked key waits until the
//! transaction has ended.
//!
//! Locks and snapshot are this member's own. So a transaction ends with the term in which it began:
//! its entry is appended in no other epoch (`storage::Epoch`).
//!
//! Invariant: dropping a transaction releases all that it holds.

use crate::conflict_queue::Turn;
use crate::engine::Engine;
use crate::key_locks::OpenTransaction;
use crate::pinned_snapshot::PinnedSnapshot;
use crate::prepared::Stored;
use auth::session_id::Lsid;
use bson::DocBuf;
use catalog::{Collection, NewIndex, PendingCollection, WriteLock};
use errors::{Result, bail};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use storage::{Effect, Entry, Epoch, MAX_ENTRY_BYTES, Op, View, WriteSet, write_conflict};

/// What a commit's entry has besides the parts, at the most.
const COMMIT_BYTES: usize = 4096;

/// The state of a transaction before a statement, to roll the statement back.
pub struct Savepoint {
    writes: WriteSet,
    entries: usize,
    created: Vec<Arc<Collection>>,
}

/// What a transaction counts as when it is dropped.
#[derive(Clone, Copy)]
enum Ended {
    Aborted,
    Committed,
    /// It is neither yet.
    Prepared,
}

/// One transaction in progress.
pub struct Transaction {
    id: u64,
    engine: Arc<Engine>,
    /// When it began.
    epoch: Epoch,
    snapshot: Arc<PinnedSnapshot>,
    writes: WriteSet,
    /// The entries of its statements, in order: the parts of the log entry.
    entries: Vec<Entry>,
    locked: Vec<u64>,
    /// Write locks on the collections written to: they block DDL until the transaction ends.
    collections: HashMap<[u8; 16], WriteLock>,
    /// Collections that the transaction has created.
    created: Vec<PendingCollection>,
    description: Arc<OpenTransaction>,
    /// Its part in [`crate::key_locks::Transactions::held_bytes`].
    accounted: usize,
    ended: Ended,
    /// Dropped with it.
    kept: Vec<Box<dyn Send>>,
    /// Where its session had to wait for one; it ends after all else was released.
    turn: Option<Turn>,
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let all = &self.engine.transactions;
        all.locks.release(self.id, &self.locked);
        all.held_bytes.fetch_sub(self.accounted, Ordering::Relaxed);
        all.open.lock().remove(&self.id);
        let ended = match self.ended {
            Ended::Committed => &all.committed,
            Ended::Aborted => &all.aborted,
            Ended::Prepared => &all.prepared,
        };
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Transaction {
    /// Begins with the newest state, or with a given snapshot.
    pub fn begin(
        engine: &Arc<Engine>,
        snapshot: Option<Arc<PinnedSnapshot>>,
        lsid: Lsid,
        number: i64,
    ) -> Transaction {
        let all = &engine.transactions;
        let id = all.next.fetch_add(1, Ordering::Relaxed);
        let description = Arc::new(OpenTransaction {
            lsid,
            number,
            started: Instant::now(),
            active: AtomicBool::new(true),
            operations: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
        });
        // Before the snapshot is taken.
        let epoch = engine.store.epoch();
        all.started.fetch_add(1, Ordering::Relaxed);
        all.open.lock().insert(id, description.clone());
        let snapshot = snapshot.unwrap_or_else(|| Arc::new(PinnedSnapshot::newest(engine)));
        Transaction {
            id,
            epoch,
            writes: snapshot.base.clone(),
            snapshot,
            engine: engine.clone(),
            entries: Vec::new(),
            locked: Vec::new(),
            collections: HashMap::new(),
            created: Vec::new(),
            description,
            accounted: 0,
            ended: Ended::Aborted,
            kept: Vec::new(),
            turn: None,
        }
    }

    pub fn hold_turn(&mut self, turn: Option<Turn>) {
        self.turn = turn;
    }

    /// Holds something until the transaction has ended: until its commit is applied, or it is
    /// aborted.
    pub fn keep(&mut self, what: impl Send + 'static) {
        self.kept.push(Box::new(what));
    }

    pub fn description(&self) -> &OpenTransaction {
        &self.description
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether it can commit no more: another member may have written since it began, where its locks
    /// had no effect.
    pub fn is_overtaken(&self) -> bool {
        self.epoch != self.engine.store.epoch()
    }

    pub fn snapshot(&self) -> &Arc<PinnedSnapshot> {
        &self.snapshot
    }

    pub fn has_written(&self) -> bool {
        !self.entries.is_empty()
    }

    /// The approximate memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.writes.bytes() * 2
    }

    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            writes: self.writes.clone(),
            entries: self.entries.len(),
            created: self.created.iter().map(|c| c.get().clone()).collect(),
        }
    }

    /// Rolls back to the savepoint; the keys stay locked.
    pub fn return_to(&mut self, savepoint: Savepoint) {
        self.writes = savepoint.writes;
        self.entries.truncate(savepoint.entries);
        self.created.truncate(savepoint.created.len());
        for (pending, before) in self.created.iter_mut().zip(savepoint.created) {
            pending.set(before);
        }
        self.account(self.bytes());
    }

    /// A view of the snapshot with the transaction's own writes.
    pub(crate) fn reading(&self) -> View {
        self.snapshot.view.with_writes(self.writes.clone())
    }

    /// The view on which writes are decided.
    pub(crate) fn writing(&self, newest: View) -> View {
        (self.snapshot.view).for_writing(self.snapshot.base.clone(), self.writes.clone(), newest)
    }

    /// A collection as of the snapshot, but with the newest multikey information of its indexes:
    /// the transaction's own entries may be among them.
    pub(crate) fn collection(&self, ns: &str) -> Option<Arc<Collection>> {
        if let Some(created) = self.created(ns) {
            return Some(created.clone());
        }
        let then = self.snapshot.catalog.get(ns)?;
        match self.engine.catalog.get(ns) {
            Some(now) if !Arc::ptr_eq(then, &now) && now.uuid == then.uuid => {
                Some(then.with_multikey_of(&now))
            }
            _ => Some(then.clone()),
        }
    }

    /// A collection that this transaction has created.
    pub fn created(&self, ns: &str) -> Option<&Arc<Collection>> {
        let mut created = self.created.iter().map(PendingCollection::get);
        created.find(|c| *c.ns == *ns)
    }

    /// The catalog that it reads.
    pub(crate) fn catalog(&self) -> Arc<catalog::Snapshot> {
        let then = &self.snapshot.catalog;
        match self.created.is_empty() {
            true => then.clone(),
            false => Arc::new(then.with(self.created.iter().map(|c| c.get().clone()))),
        }
    }

    /// Creates a collection that others see after the commit; false when the name exists.
    pub fn create(&mut self, ns: &str, options: DocBuf) -> Result<bool> {
        if self.created(ns).is_some() {
            return Ok(false);
        }
        let catalog = &self.engine.catalog;
        let Some((pending, entry)) = catalog.begin_create(ns, options)? else {
            return Ok(false);
        };
        self.created.push(pending);
        self.stage(vec![entry])?;
        Ok(true)
    }

    /// Adds indexes to an empty collection that the transaction has created.
    pub fn create_indexes(&mut self, ns: &str, new: &[NewIndex]) -> Result<()> {
        let engine = self.engine.clone();
        self.alter_created(ns, |c| engine.catalog.add_pending_indexes(c, new))
    }

    /// Marks fields of an index as multikey, in a collection that the transaction has created.
    pub(crate) fn mark_multikey(&mut self, ns: &str, id: u32, bits: u64) -> Result<()> {
        let engine = self.engine.clone();
        self.alter_created(ns, |c| engine.catalog.set_pending_multikey(c, id, bits))
    }

    fn alter_created(
        &mut self,
        ns: &str,
        change: impl FnOnce(&Collection) -> Result<(Arc<Collection>, Entry)>,
    ) -> Result<()> {
        let pending = self.created.iter_mut().find(|c| *c.get().ns == *ns);
        let Some(pending) = pending else {
            bail!(NamespaceNotFound, "ns not found {ns}");
        };
        let (next, entry) = change(pending.get())?;
        pending.set(next);
        self.stage(vec![entry])
    }

    /// The write lock of a collection that the transaction has written to before.
    pub(crate) fn relock(&self, coll: &Collection) -> Option<WriteLock> {
        let held = self.collections.contains_key(&coll.uuid) || self.created(&coll.ns).is_some();
        held.then(|| coll.write_lock_again())
    }

    /// Keeps a collection locked until the transaction ends. Fails when the collection changed
    /// since the snapshot, or when transactions may not write to it.
    pub(crate) fn keep_locked(&mut self, coll: &Collection) -> Result<()> {
        if coll.capped.is_some() {
            bail!(
                OperationNotSupportedInTransaction,
                "Collection '{}' is a capped collection. Writes in transactions are not allowed on capped collections.",
                coll.ns
            );
        }
        let then = self.snapshot.catalog.get(&coll.ns);
        if then.is_none_or(|then| then.uuid != coll.uuid || then.tablet != coll.tablet) {
            bail!(
                SnapshotUnavailable,
                "Unable to read from a snapshot due to pending collection catalog changes to collection '{}'; please retry the operation.",
                coll.ns
            );
        }
        self.collections.insert(coll.uuid, coll.write_lock_again());
        Ok(())
    }

    /// Locks keys whose latches are held.
    pub(crate) fn lock_keys(&mut self, hashes: &[u64]) -> Result<()> {
        let engine = self.engine.clone();
        engine
            .transactions
            .locks
            .lock(self.id, hashes, &mut self.locked)
    }

    /// Adds the entries of a statement.
    pub(crate) fn stage(&mut self, entries: Vec<Entry>) -> Result<()> {
        for entry in &entries {
            for effect in &entry.effects {
                self.writes.add(effect)?;
            }
        }
        self.entries.extend(entries);
        let (operations, bytes) = (self.entries.len() as u64, self.bytes());
        self.description
            .operations
            .store(operations, Ordering::Relaxed);
        self.description.bytes.store(bytes, Ordering::Relaxed);
        let held = self.account(bytes);
        let most = self.engine.transactions.most_bytes.load(Ordering::Relaxed);
        if bytes > most {
            bail!(
                TransactionTooLargeForCache,
                "Transaction is too large: it holds {bytes} bytes in memory, the limit is {most}"
            );
        }
        if held
            > self
                .engine
                .transactions
                .most_held_bytes
                .load(Ordering::Relaxed)
        {
            // Drivers begin again, when others may have ended.
            return Err(write_conflict().into());
        }
        Ok(())
    }

    /// Counts what it holds with what all hold; returns the sum.
    fn account(&mut self, bytes: usize) -> usize {
        let all = &self.engine.transactions.held_bytes;
        let before = std::mem::replace(&mut self.accounted, bytes);
        all.fetch_sub(before, Ordering::Relaxed);
        all.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Takes the log entry of all writes, without the session's record. The transaction has
    /// committed when it is applied.
    pub(crate) fn take_entry(&mut self) -> Entry {
        assert!(
            matches!(self.ended, Ended::Aborted),
            "a transaction ends once"
        );
        self.ended = Ended::Committed;
        let mut entry = Entry::noop(Vec::new());
        entry.op = Op::Transaction(std::mem::take(&mut self.entries));
        entry
    }

    /// Takes the log entry that prepares it: it stores the parts under `key`, for their later commit.
    pub(crate) fn take_prepared(&mut self, key: Vec<u8>, recovery_shard: &str) -> Result<Entry> {
        if !self.created.is_empty() {
            bail!(
                OperationNotSupportedInTransaction,
                "Cannot create new collections inside a transaction that writes on several shards"
            );
        }
        let mut whole = Entry::noop(Vec::new());
        whole.op = Op::Transaction(std::mem::take(&mut self.entries));
        let prepared = Stored {
            lsid: self.description.lsid,
            number: self.description.number,
            recovery_shard,
            since_millis: self.engine.now_millis(),
            locks: &self.locked,
        };
        let stored = prepared.write(&whole);
        // Its commit has the parts once more, and the session's record.
        if whole.size_bound().max(stored.len()) + COMMIT_BYTES > MAX_ENTRY_BYTES {
            bail!(
                TransactionTooLarge,
                "the transaction takes more than the {MAX_ENTRY_BYTES} bytes that an entry of the log may have"
            );
        }
        assert!(
            matches!(self.ended, Ended::Aborted),
            "a transaction ends once"
        );
        self.ended = Ended::Prepared;
        Ok(Entry::noop(vec![Effect::Put(key, stored)]))
    }
}
