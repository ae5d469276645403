//! The write protocol: what every write of records goes through, whatever command it comes from.
//!
//! ```text
//! lock ─► latch ─► look ─► match ─► unique check ─► stage ─► retry record ─► commit
//! ```
//!
//! 1. *Lock*: the collection cannot be dropped or get other indexes ([`LockedCollection`]).
//! 2. *Latch*: record keys, and new keys of unique indexes, by [`OpCtx::latch_keys`] alone.
//! 3. *Look*: what is written is decided on [`OpCtx::latest`], read with the latches held. What a candidate's snapshot showed
//!    decides nothing.
//! 4. *Stage*: a log entry with absolute effects: the record and its index entries ([`IndexChanges`]).
//! 5. *Commit*: the statement's retry record joins the entry, and all goes to [`OpCtx::commit`], with the latches and the lock
//!    that are let go when it is applied.
//!
//! Invariant: latches are held from the first look until the entry is applied. Nobody waits for a latch while he holds others:
//! he lets go of all and starts again ([`Latched::Conflict`]).

use crate::op::{Latched, OpCtx};
use crate::records::{self, latch_hash};
use crate::write::index_changes::{IndexChanges, Versions};
use crate::write::locked::LockedCollection;
use crate::write::retry::{Retry, StmtResult};
use crate::write_group::Held;
use bson::{Doc, DocBuf, Writer};
use catalog::Collection;
use errors::Result;
use query::update::{Applied, Update};
use smallvec::SmallVec;
use std::sync::Arc;
use storage::{Effect, Entry, LatchGuard, Op};

/// How often a statement starts again because others were faster, before it gives up.
pub(crate) const ATTEMPTS: usize = 1000;

/// What the new documents of one group come to at most, but for the last of them, in bytes.
const GROUP_BYTES: usize = 1 << 20;

/// The retry record of one statement: its position in the command, and who keeps the results of statements.
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

/// What a statement makes of a latched record that it looks at.
pub(crate) enum Decision<'u> {
    /// It does not match, or no longer does.
    Skip,
    /// It matches, and stays as it is.
    Keep,
    Update(Applied, &'u Update),
    Delete,
}

/// What was staged of a batch of latched records.
pub(crate) struct StagedBatch {
    /// So many of them were looked at: a group of entries ends when it is large.
    pub read: usize,
    pub matched: u64,
    pub changed: u64,
}

/// A write under way: a locked collection, the latches held, and the entries staged so far.
pub(crate) struct RecordWrite {
    pub target: LockedCollection,
    pub latches: Option<LatchGuard>,
    pub changes: IndexChanges,
    entries: Vec<Entry>,
    /// Records were added: who waits for a capped collection to grow is told when they are applied.
    grows: bool,
}

impl RecordWrite {
    pub fn new(target: LockedCollection) -> RecordWrite {
        RecordWrite {
            target,
            latches: None,
            changes: IndexChanges::default(),
            entries: Vec::new(),
            grows: false,
        }
    }

    /// A write with these records latched. It holds no others yet, so it gets them, if need be after it has waited.
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

    /// The first latches of the write, waiting for them if need be.
    pub fn latch(&mut self, ctx: &mut OpCtx, hashes: &[u64]) -> Result<()> {
        let latched = ctx.latch_keys(&mut self.latches, hashes)?;
        assert!(latched == Latched::Held, "who holds no latch waits for one");
        Ok(())
    }

    pub fn coll(&self) -> &Arc<Collection> {
        &self.target.coll
    }

    /// Lets go of the latches and of what is staged, and lets another go first.
    pub fn let_go(&mut self) {
        self.latches = None;
        self.entries.clear();
        std::thread::yield_now();
    }

    /// Stages the change of a latched record: latches its new values in unique indexes, checks them, makes the log entry.
    pub fn stage(&mut self, ctx: &mut OpCtx, change: RecordChange<'_>) -> Result<Latched> {
        let RecordChange { key, before, after } = change;
        ctx.latest().check_first_writer(&key)?;
        self.changes.clear();
        let versions = Versions {
            before: Some(before),
            after: after.as_ref().map(|(applied, _)| applied.doc.as_doc()),
            update: after.as_ref().map(|(_, update)| *update),
        };
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
        // The session's record may join them.
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
                let record_key = id_document(before)?.into_vec();
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

    /// Shows `decide` those of the latched records that are there, with their position in `keys`, and stages what it says.
    /// `None`: [`Latched::Conflict`]. After an error, what was staged before it may be committed.
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

    /// Stages the insertion of records, as one entry. `records` and `bytes`: by how much the collection grows.
    pub fn stage_insert(&mut self, effects: Vec<Effect>, records: i64, bytes: i64) {
        let coll = &self.target.coll;
        let mut entry = Entry::new(coll.ns.clone(), coll.uuid, Op::Insert, effects);
        entry.count(coll.tablet, records, bytes);
        self.entries.push(entry);
        self.grows = true;
    }

    /// Makes sure that the catalog knows which fields of which index hold arrays, before such an entry is staged.
    pub fn mark_multikey(&mut self, ctx: &mut OpCtx) -> Result<()> {
        for (i, bits) in self.changes.multikey().iter().enumerate() {
            let index = &self.target.coll.indexes[i];
            if index.info.multikey | bits != index.info.multikey {
                self.target.mark_multikey(ctx, i, *bits)?;
            }
        }
        Ok(())
    }

    /// Commits what is staged. With a retry record, `results` says what the statement did; it is kept also when it changed
    /// nothing. The one place where writes of records are committed.
    pub fn commit(
        mut self,
        ctx: &mut OpCtx,
        retry: Option<&mut (dyn Retry + '_)>,
        results: impl FnOnce() -> Vec<StmtResult>,
    ) -> Result<()> {
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

    /// Commits what belongs to no retryable statement.
    pub fn commit_unrecorded(self, ctx: &mut OpCtx) -> Result<()> {
        self.commit(ctx, None, Vec::new)
    }
}

/// `{_id}` of a document.
fn id_document(doc: Doc<'_>) -> Result<DocBuf> {
    let id = records::id_of(doc)?;
    let mut w = Writer::with_capacity(16 + id.bytes.len());
    w.val("_id", id);
    Ok(w.finish())
}
