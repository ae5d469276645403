//! The write protocol: the steps of every write of records, for all commands.
//!
//! ```text
//! lock ─► latch ─► look ─► match ─► unique check ─► stage ─► retry record ─► commit
//! ```
//!
//! 1. *Lock*: the collection cannot be dropped or get other indexes ([`LockedCollection`]).
//! 2. *Latch*: record keys, and new keys of unique indexes, only by [`OpCtx::latch_keys`].
//! 3. *Look*: the write is decided on [`OpCtx::latest`], read with the latches held. The
//!    candidate's snapshot decides nothing.
//! 4. *Stage*: a log entry with absolute effects: the record and its index entries
//!    ([`IndexChanges`]).
//! 5. *Commit*: the statement's retry record joins the entry. [`OpCtx::commit`] takes the entry
//!    with the latches and the lock, which are released when it is applied.
//!
//! Invariant: latches are held from the first look until the entry is applied. A write never waits
//! for a latch while it holds others: it releases all and starts again ([`Latched::Conflict`]).

use crate::op::{Latched, OpCtx};
use crate::operation_memory;
use crate::records::{self, latch_hash};
use crate::write::index_changes::{IndexChanges, Versions};
use crate::write::locked::LockedCollection;
use crate::write::retry::{Retry, StmtResult};
use crate::write_group::Held;
use bson::Doc;
use catalog::Collection;
use changes::event::document_key;
use errors::Result;
use query::update::{Applied, Update};
use smallvec::SmallVec;
use std::sync::Arc;
use storage::{Effect, Entry, LatchGuard, Op};

/// The most times that a statement starts again after conflicts.
pub(crate) const ATTEMPTS: usize = 1000;

/// The limit of the new documents of one group, in bytes; the last one may exceed it.
const GROUP_BYTES: usize = 1 << 20;

/// The retry record of one statement: its position in the command, and the recorder of results.
pub(crate) struct Statement<'r, 's> {
    pub at: usize,
    pub retry: Option<&'r mut (dyn Retry + 's)>,
}

/// The change of one latched record that exists.
pub(crate) struct RecordChange<'d> {
    /// The store's key of the record.
    pub key: Vec<u8>,
    pub before: Doc<'d>,
    /// The new version and the update that made it; `None` deletes the record.
    pub after: Option<(Applied, &'d Update)>,
}

/// A statement's decision on a latched record.
pub(crate) enum Decision<'u> {
    /// The record does not match.
    Skip,
    /// The record matches, and stays unchanged.
    Keep,
    Update(Applied, &'u Update),
    Delete,
}

/// The outcome of staging a batch of latched records.
pub(crate) struct StagedBatch {
    /// The number of records decided: a group of entries ends early when it is large.
    pub read: usize,
    pub matched: u64,
    pub changed: u64,
}

/// A write in progress: a locked collection, the latches held, and the entries staged so far.
pub(crate) struct RecordWrite {
    pub target: LockedCollection,
    pub latches: Option<LatchGuard>,
    pub changes: IndexChanges,
    entries: Vec<Entry>,
    /// Records were added to a capped collection: its waiting cursors are notified when they are
    /// applied.
    grows: bool,
}

impl RecordWrite {
    pub fn new(target: LockedCollection) -> RecordWrite {
        // The latches of one that was given up have gone with it.
        operation_memory::latched(false);
        RecordWrite {
            target,
            latches: None,
            changes: IndexChanges::default(),
            entries: Vec::new(),
            grows: false,
        }
    }

    /// A write with these records latched. It holds no other latches yet, so it may wait for them.
    pub fn of_records(
        ctx: &mut OpCtx,
        target: LockedCollection,
        keys: &[Vec<u8>],
    ) -> Result<RecordWrite> {
        let mut write = RecordWrite::new(target);
        let hashes: SmallVec<[u64; 4]> = keys.iter().map(|k| latch_hash(k)).collect();
        write.latch(ctx, &hashes)?;
        Ok(write)
    }

    /// Takes the first latches of the write, and waits for them if necessary.
    pub fn latch(&mut self, ctx: &mut OpCtx, hashes: &[u64]) -> Result<()> {
        let latched = ctx.latch_keys(&mut self.latches, hashes)?;
        assert!(latched == Latched::Held, "who holds no latch waits for one");
        Ok(())
    }

    pub fn coll(&self) -> &Arc<Collection> {
        &self.target.coll
    }

    /// Releases the latches, drops staged entries, and yields to another write.
    pub fn let_go(&mut self) {
        self.latches = None;
        operation_memory::latched(false);
        self.entries.clear();
        std::thread::yield_now();
    }

    /// Stages the change of a latched record: latches and checks its new unique keys, and makes the
    /// log entry.
    pub fn stage(&mut self, ctx: &mut OpCtx, change: RecordChange<'_>) -> Result<Latched> {
        assert!(
            self.latches.is_some(),
            "a record is latched before its change is decided"
        );
        let RecordChange { key, before, after } = change;
        ctx.latest().check_first_writer(&key)?;
        self.changes.clear();
        let versions = Versions {
            before: Some(before),
            after: after.as_ref().map(|(applied, _)| applied.doc.as_doc()),
            update: after.as_ref().map(|(_, update)| *update),
        };
        self.changes.watched_by(ctx, &self.target.coll);
        let changed = self.changes.add(&self.target.coll, versions)?;
        self.mark_multikey(ctx)?;
        let coll = &self.target.coll;
        let unique: SmallVec<[u64; 4]> =
            (self.changes.unique_hashes(coll, changed.clone())).collect();
        if !unique.is_empty() {
            if ctx.latch_keys(&mut self.latches, &unique)? == Latched::Conflict {
                return Ok(Latched::Conflict);
            }
            self.changes
                .check_unique(&ctx.latest(), coll, changed.clone(), Some(&key))?;
        }
        // Capacity for the session's record as well.
        let mut effects = Vec::with_capacity(2 + changed.len());
        self.changes.effects(coll, changed, &key, &mut effects);
        let old_len = before.len() as i64;
        let (op, records, bytes) = match after {
            Some((applied, _)) => {
                let op = Op::Update {
                    diff: applied.diff.unwrap_or_default(),
                    record_key: records::own_part(&key).to_vec(),
                };
                let new_len = applied.doc.as_bytes().len() as i64;
                effects.push(Effect::Put(key, applied.doc.into_vec()));
                (op, 0, new_len - old_len)
            }
            None => {
                let shard_key = ctx.engine.shard_key_of(&coll.ns);
                records::id_of(before)?;
                let record_key = document_key(before, &shard_key).into_vec();
                effects.push(Effect::Delete(key));
                (Op::Delete { record_key }, -1, -old_len)
            }
        };
        let mut entry = Entry::new(coll.ns.clone(), coll.uuid, op, effects);
        entry.count(coll.tablet, records, bytes);
        if coll.keeps_images() {
            entry.pre_image = Some(before.as_bytes().to_vec());
        }
        self.entries.push(entry);
        Ok(Latched::Held)
    }

    /// Calls `decide` for each latched record that exists, with its position in `keys`, and stages the
    /// decision. `None`: [`Latched::Conflict`]. After an error, entries staged before it may be
    /// committed.
    pub fn change_each<'u>(
        &mut self,
        ctx: &mut OpCtx,
        keys: &[Vec<u8>],
        mut decide: impl FnMut(&OpCtx, &Collection, Doc<'_>) -> Result<Decision<'u>>,
    ) -> Result<Option<StagedBatch>> {
        let refs: Vec<&[u8]> = keys.iter().map(|k| k.as_slice()).collect();
        let (mut bytes, mut conflict) = (0, false);
        let mut staged = StagedBatch {
            read: keys.len(),
            matched: 0,
            changed: 0,
        };
        ctx.latest().get_each(&refs, |at, record| {
            let before = records::stored(self.coll(), &keys[at], record)?;
            let after = match decide(ctx, self.coll(), before)? {
                Decision::Skip => return Ok(true),
                Decision::Keep => {
                    staged.matched += 1;
                    return Ok(true);
                }
                Decision::Update(applied, update) => Some((applied, update)),
                Decision::Delete => None,
            };
            staged.matched += 1;
            staged.changed += 1;
            bytes += after.as_ref().map_or(0, |(a, _)| a.doc.as_bytes().len());
            let key = keys[at].clone();
            conflict = self.stage(ctx, RecordChange { key, before, after })? == Latched::Conflict;
            let full = bytes >= GROUP_BYTES;
            if full {
                staged.read = at + 1;
            }
            Ok(!full && !conflict)
        })?;
        Ok((!conflict).then_some(staged))
    }

    /// Stages the insertion of records as one entry. `records` and `bytes`: the growth of the
    /// collection.
    pub fn stage_insert(&mut self, effects: Vec<Effect>, records: i64, bytes: i64) {
        let coll = &self.target.coll;
        let mut entry = Entry::new(coll.ns.clone(), coll.uuid, Op::Insert, effects);
        entry.count(coll.tablet, records, bytes);
        self.entries.push(entry);
        self.grows = true;
    }

    /// Marks multikey fields in the catalog, before such an entry is staged.
    pub fn mark_multikey(&mut self, ctx: &mut OpCtx) -> Result<()> {
        for (i, bits) in self.changes.multikey().iter().enumerate() {
            let index = &self.target.coll.indexes[i];
            if index.info.multikey | bits != index.info.multikey {
                self.target.mark_multikey(ctx, i, *bits)?;
            }
        }
        Ok(())
    }

    /// Commits the staged entries. With a retry record, `results` says what the statement did; it is
    /// recorded even when nothing changed. All writes of records are committed here.
    pub fn commit(
        mut self,
        ctx: &mut OpCtx,
        retry: Option<&mut (dyn Retry + '_)>,
        results: impl FnOnce() -> Vec<StmtResult>,
    ) -> Result<()> {
        assert!(
            self.latches.is_some() || self.entries.is_empty(),
            "latches are held until the entry is applied"
        );
        let coll = &self.target.coll;
        if let Some(retry) = retry {
            let (session, effect) = retry.record(&results());
            if self.entries.is_empty() {
                let (ns, uuid) = (coll.ns.clone(), coll.uuid);
                self.entries.push(Entry::new(ns, uuid, Op::Noop, vec![]));
            }
            if let Some(entry) = self.entries.last_mut() {
                entry.session = Some(session);
                entry.effects.push(effect);
            }
        }
        let grown = coll.capped.as_ref().filter(|_| self.grows);
        let held = Held {
            latches: self.latches,
            grown: grown.map(|c| c.tail.clone()),
            lock: Some(self.target.lock),
            kept: None,
        };
        ctx.commit(self.entries, held)
    }

    /// Commits a write that belongs to no retryable statement.
    pub fn commit_unrecorded(self, ctx: &mut OpCtx) -> Result<()> {
        self.commit(ctx, None, Vec::new)
    }
}
