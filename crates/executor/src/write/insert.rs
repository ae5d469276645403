//! Inserts documents. A batch is split into chunks; a chunk is one log entry.

use crate::op::OpCtx;
use crate::records;
use crate::write::locked::LockedCollection;
use crate::write::new_records::{NewRecord, insert_chunk};
use crate::write::retry::{Retry, StmtResult};
use crate::write::time_series;
use crate::write::validation;
use bson::{Doc, Val, tag};
use catalog::Collection;
use errors::{Error, Result, Stop, bail};

/// A chunk ends when it holds this many documents or bytes.
const CHUNK_DOCS: usize = 500;
const CHUNK_BYTES: usize = 4 << 20;
/// The most that an event loop inserts at once.
const INLINE_DOCS: usize = 64;
const INLINE_BYTES: usize = 256 << 10;

/// The longest record key of a clustered collection. Its `_id` is part of every index entry.
const MAX_CLUSTERED_KEY_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub struct Inserted {
    pub n: usize,
    /// Position in the batch and error, in order.
    pub errors: Vec<(usize, Error)>,
}

/// Inserts `docs` into `ns`, which is created when missing. Ordered: stops at the first error.
pub fn insert(
    ctx: &mut OpCtx,
    ns: &str,
    docs: &[Doc<'_>],
    ordered: bool,
    mut retry: Option<&mut dyn Retry>,
) -> Result<Inserted> {
    let total: usize = docs.iter().map(|d| d.len()).sum();
    if docs.len() > INLINE_DOCS || total > INLINE_BYTES {
        ctx.need_worker()?;
    }
    if let Some(series) = time_series::of(ctx, ns) {
        return time_series::insert(ctx, &series, docs, ordered, retry);
    }
    time_series::note_buckets(ctx, ns, docs)?;
    let mut out = Inserted::default();
    let mut rest = docs;
    while let Some(first) = rest.first() {
        let mut target = LockedCollection::or_create(ctx, ns)?;
        if let Some(id) = first.get("_id") {
            target = target.lay_out(ctx, id)?;
        }
        let at = docs.len() - rest.len();
        let chunk = next_chunk(ctx, &target, rest, at, ordered)?;
        rest = rest.split_at(chunk.read).1;
        let result = |at| StmtResult {
            at,
            n: 1,
            ..StmtResult::default()
        };
        let done = insert_chunk(
            ctx,
            target,
            chunk.records,
            ordered,
            retry.as_deref_mut(),
            result,
        )?;
        out.n += done.n;
        let failed = !done.errors.is_empty();
        out.errors.extend(done.errors);
        if ordered && failed {
            break;
        }
        // These come after the chunk's: an ordered chunk ends before the document that failed.
        out.errors.extend(chunk.errors);
        if ordered && !out.errors.is_empty() {
            break;
        }
    }
    out.errors.sort_by_key(|e| e.0);
    Ok(out)
}

/// The prepared first part of a batch.
#[derive(Default)]
struct Chunk {
    /// The number of documents of the batch in it.
    read: usize,
    records: Vec<NewRecord>,
    errors: Vec<(usize, Error)>,
}

/// Prepares documents, the first of which is at position `at`, until a chunk is full; an ordered
/// one ends with an error.
fn next_chunk(
    ctx: &OpCtx,
    target: &LockedCollection,
    docs: &[Doc<'_>],
    at: usize,
    ordered: bool,
) -> Result<Chunk> {
    let mut chunk = Chunk::default();
    let mut bytes = 0;
    for (n, doc) in docs.iter().enumerate() {
        if n >= CHUNK_DOCS || bytes >= CHUNK_BYTES || ordered && !chunk.errors.is_empty() {
            break;
        }
        match prepare(ctx, target, at + n, *doc) {
            Ok(record) => {
                bytes += record.size();
                chunk.records.push(record);
            }
            Err(Stop::Failed(e)) if !e.is_interruption() => chunk.errors.push((at + n, e)),
            Err(stop) => return Err(stop),
        }
        chunk.read += 1;
    }
    Ok(chunk)
}

fn prepare(ctx: &OpCtx, target: &LockedCollection, at: usize, doc: Doc<'_>) -> Result<NewRecord> {
    let coll = &target.coll;
    let prepared = records::prepare(doc, || ctx.engine.next_stamp())?;
    validation::check(ctx, coll, prepared.as_doc(), None)?;
    check_clustered_key(coll, records::id_of(prepared.as_doc())?)?;
    if coll.time_series.is_some() {
        time_series::check_bucket(coll, prepared.as_doc())?;
    }
    NewRecord::new(target, at, prepared)
}

/// Fails when an `_id` is larger than a clustered collection takes, by MongoDB's encoding of it.
fn check_clustered_key(coll: &Collection, id: Val<'_>) -> Result<()> {
    if id.bytes.len() <= MAX_CLUSTERED_KEY_BYTES / 2 || coll.option("clusteredIndex").is_none() {
        return Ok(());
    }
    let len = match id.tag {
        // The length and the terminator of BSON, against a type byte and a terminator.
        tag::STRING => id.bytes.len().saturating_sub(3),
        // The length and subtype of BSON, against type byte, length, subtype and terminator.
        tag::BINARY => id.bytes.len() + 2,
        _ => id.bytes.len(),
    };
    if len > MAX_CLUSTERED_KEY_BYTES {
        bail!(
            5894900,
            "RecordId too large: {len} bytes. Maximum length is {MAX_CLUSTERED_KEY_BYTES} bytes"
        );
    }
    Ok(())
}
