//! New records of insert and upsert: a chunk of documents becomes one atomic log entry, with the
//! session's record of it.

use crate::op::OpCtx;
use crate::operation_memory;
use crate::records::{self, duplicate_id, latch_hash};
use crate::write::capped::{self, Placement};
use crate::write::index_changes::Versions;
use crate::write::locked::LockedCollection;
use crate::write::record_write::RecordWrite;
use crate::write::retry::{Retry, StmtResult};
use crate::write::taken_keys::TakenKeys;
use bson::DocBuf;
use errors::{Code, Error, Result, Stop};
use std::ops::Range;
use storage::{Effect, View};

/// A document that is to be inserted.
pub(crate) struct NewRecord {
    /// Position in the command.
    at: usize,
    /// Positions of others that are in the same document: a bucket of measurements.
    with: Vec<usize>,
    /// The server has made its `_id`, which nothing else has.
    fresh: bool,
    doc: DocBuf,
    /// The store's key of the record. Empty where records lie under numbers, until it has one.
    key: Vec<u8>,
    /// The range of its index changes among those of the write.
    changed: Range<usize>,
    /// The error of a document that cannot be inserted.
    refused: Option<Error>,
    /// A document of a move is here already, as it is to be.
    is_there: bool,
}

impl NewRecord {
    /// Prepares `doc` for the collection, whose layout is decided.
    pub fn new(target: &LockedCollection, at: usize, doc: DocBuf) -> Result<NewRecord> {
        let key = match target.coll.is_numbered() {
            false => records::record_key(&target.coll, records::id_of(doc.as_doc())?),
            true => Vec::new(),
        };
        Ok(NewRecord {
            at,
            with: Vec::new(),
            fresh: false,
            doc,
            key,
            changed: 0..0,
            refused: None,
            is_there: false,
        })
    }

    /// The record of a new bucket that holds the measurements at these positions too.
    pub fn holding(mut self, with: Vec<usize>) -> NewRecord {
        self.with = with;
        self.fresh = true;
        self
    }

    pub fn size(&self) -> usize {
        self.doc.as_bytes().len()
    }
}

/// The outcome of a chunk.
#[derive(Default)]
pub(crate) struct InsertedChunk {
    pub n: usize,
    /// Position in the command and error of the documents that were refused, in order.
    pub errors: Vec<(usize, Error)>,
}

/// Inserts a chunk. When ordered, the first refused document ends it. `result` gives the retry
/// record's result for the document at a position.
pub(crate) fn insert_chunk(
    ctx: &mut OpCtx,
    target: LockedCollection,
    mut chunk: Vec<NewRecord>,
    ordered: bool,
    retry: Option<&mut (dyn Retry + '_)>,
    result: impl Fn(usize) -> StmtResult,
) -> Result<InsertedChunk> {
    if chunk.is_empty() {
        return Ok(InsertedChunk::default());
    }
    ctx.check()?;
    let mut write = RecordWrite::new(target);
    let hashes = latches_of(ctx, &mut write, &mut chunk)?;
    // The entry, and the engine's batch.
    ctx.reserve(2 * operation_memory::held())?;
    let placement = loop {
        write.latch(ctx, &hashes)?;
        refuse_duplicates(ctx, &write, &mut chunk, ordered)?;
        let coll = write.target.coll.clone();
        if !coll.is_numbered() {
            break Placement::default();
        }
        let sizes: Vec<usize> = accepted(&chunk).map(NewRecord::size).collect();
        match capped::place(ctx, &coll, &mut write.latches, &sizes)? {
            Some(placement) => break placement,
            None => write.let_go(),
        }
    };
    let mut out = InsertedChunk::default();
    chunk.retain_mut(|new| match new.refused.take() {
        Some(e) => {
            out.errors.push((new.at, e));
            false
        }
        None => {
            out.n += 1 + new.with.len();
            !new.is_there
        }
    });
    if chunk.is_empty() {
        return Ok(out);
    }
    let at: Vec<usize> = match retry {
        Some(_) => chunk
            .iter()
            .flat_map(|new| std::iter::once(new.at).chain(new.with.iter().copied()))
            .collect(),
        None => Vec::new(),
    };
    stage(&mut write, chunk, placement);
    write.commit(ctx, retry, || at.into_iter().map(result).collect())?;
    Ok(out)
}

fn accepted(chunk: &[NewRecord]) -> impl Iterator<Item = &NewRecord> {
    chunk.iter().filter(|new| new.refused.is_none())
}

/// Computes the index keys of the documents before any latch is taken: they decide which latches
/// are needed, and may fail.
fn latches_of(
    ctx: &mut OpCtx,
    write: &mut RecordWrite,
    chunk: &mut [NewRecord],
) -> Result<Vec<u64>> {
    let coll = write.target.coll.clone();
    let mut hashes: Vec<u64> = Vec::with_capacity(chunk.len() + 1);
    hashes.extend(coll.capped.is_some().then(|| capped::tail_hash(&coll)));
    write.changes.watched_by(ctx, &coll);
    for new in chunk.iter_mut() {
        if !coll.is_numbered() {
            hashes.push(latch_hash(&new.key));
        }
        if coll.indexes.is_empty() {
            continue;
        }
        let versions = Versions {
            before: None,
            after: Some(new.doc.as_doc()),
            update: None,
        };
        match write.changes.add(&coll, versions) {
            Ok(changed) => new.changed = changed,
            Err(Stop::Failed(e)) if !e.is_interruption() => new.refused = Some(e),
            Err(stop) => return Err(stop),
        }
        hashes.extend(write.changes.unique_hashes(&coll, new.changed.clone()));
    }
    write.mark_multikey(ctx)?;
    Ok(hashes)
}

/// Refuses documents with a duplicate `_id` or unique key; all their keys are latched. An ordered
/// chunk ends with the first refused document. A document of a move that is here as it is to be is not
/// refused, and not written again.
fn refuse_duplicates(
    ctx: &OpCtx,
    write: &RecordWrite,
    chunk: &mut Vec<NewRecord>,
    ordered: bool,
) -> Result<()> {
    let view = &ctx.latest();
    let mut ids = TakenKeys::default();
    let many = chunk.len() > 1;
    let mut taken = match many {
        true => write.changes.none_taken(write.coll()),
        false => Vec::new(),
    };
    let mut refused: Vec<(usize, Error)> = Vec::new();
    let mut there: Vec<usize> = Vec::new();
    for (i, new) in chunk.iter().enumerate() {
        if new.refused.is_none() {
            match check(view, write, new, &ids, &taken) {
                Ok(()) if many => {
                    if !new.fresh {
                        ids.insert(&new.key);
                    }
                    (write.changes).take(write.coll(), new.changed.clone(), &mut taken);
                    continue;
                }
                Ok(()) => continue,
                Err(Stop::Failed(e)) if e.code == Code::DuplicateKey => {
                    if ctx.from_migrate && is_stored(view, write, new)? {
                        there.push(i);
                        continue;
                    }
                    refused.push((i, e));
                }
                Err(e) => return Err(e),
            }
        }
        if ordered {
            break;
        }
    }
    for (i, e) in refused {
        chunk[i].refused = Some(e);
    }
    for i in there {
        chunk[i].is_there = true;
    }
    if ordered && let Some(last) = chunk.iter().position(|new| new.refused.is_some()) {
        chunk.truncate(last + 1);
    }
    Ok(())
}

/// Whether the record of this `_id` is this document, byte by byte.
fn is_stored(view: &View, write: &RecordWrite, new: &NewRecord) -> Result<bool> {
    if write.coll().is_numbered() {
        return Ok(false);
    }
    let record = view.get(&new.key)?;
    Ok(record.is_some_and(|record| *record == *new.doc.as_bytes()))
}

/// Fails with DuplicateKey when a record, or an earlier document of the chunk, has the document's
/// `_id` or unique keys.
fn check(
    view: &View,
    write: &RecordWrite,
    new: &NewRecord,
    ids: &TakenKeys<'_>,
    taken: &[TakenKeys<'_>],
) -> Result<()> {
    let coll = write.coll();
    // Where records lie under numbers, the index on `_id` is one of the unique ones.
    let may_be_there = !coll.is_numbered() && !new.fresh;
    if may_be_there && (ids.contains(&new.key) || view.exists(&new.key)?) {
        return Err(duplicate_id(coll, records::id_of(new.doc.as_doc())?).into());
    }
    view.check_first_writer(&new.key)?;
    if coll.indexes.is_empty() {
        return Ok(());
    }
    (write.changes).check_taken(coll, new.changed.clone(), taken)?;
    (write.changes).check_unique(view, coll, new.changed.clone(), None)
}

/// Stages the accepted documents as one entry.
fn stage(write: &mut RecordWrite, chunk: Vec<NewRecord>, placement: Placement) {
    let coll = write.coll();
    let mut effects = placement.effects;
    effects.reserve(chunk.len() * (1 + coll.indexes.len()) + 1);
    let (mut records, mut bytes) = (-placement.records, -placement.bytes);
    let mut numbered = placement.keys.into_iter();
    for (n, mut new) in chunk.into_iter().enumerate() {
        if let Some(key) = numbered.next() {
            new.key = key;
        }
        if n < placement.dropped {
            continue;
        }
        (write.changes).effects(coll, new.changed, &new.key, &mut effects);
        records += 1;
        bytes += new.doc.as_bytes().len() as i64;
        effects.push(Effect::Put(new.key, new.doc.into_vec()));
    }
    write.stage_insert(effects, records, bytes);
}
