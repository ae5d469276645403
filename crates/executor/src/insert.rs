//! Inserting documents. A batch is cut into chunks; a chunk is one log entry, so it is there whole or not at all, and its
//! session record with it.

use crate::op::{Held, OpCtx};
use crate::records::{self, duplicate_id, latch_hash};
use crate::retry::{Retry, StmtResult};
use bson::Doc;
use catalog::{Collection, WriteLock};
use errors::{Code, Error, Result, bail};
use query::index_keys::KeySet;
use std::collections::HashSet;
use std::sync::Arc;
use storage::{Effect, Entry, Op};

/// A chunk ends when it holds this many documents or bytes.
const CHUNK_DOCS: usize = 500;
const CHUNK_BYTES: usize = 4 << 20;
/// What may be inserted on an event loop in one go.
const INLINE_DOCS: usize = 64;
const INLINE_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub struct Inserted {
    pub n: usize,
    /// Position in the batch and error, in order.
    pub errors: Vec<(usize, Error)>,
}

struct New {
    /// Position in the batch.
    at: usize,
    record_key: Vec<u8>,
    bytes: Vec<u8>,
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
    let mut out = Inserted::default();
    let mut at = 0;
    while at < docs.len() {
        let (coll, lock) = lock_or_create(ctx, ns)?;
        let ts = ctx.engine.store.last_ts();
        let mut chunk = Vec::new();
        let mut bytes = 0;
        let mut failed = None;
        while at < docs.len() && chunk.len() < CHUNK_DOCS && bytes < CHUNK_BYTES && failed.is_none()
        {
            match prepare(&coll, docs[at], ts) {
                Ok((record_key, b)) => {
                    bytes += b.len();
                    chunk.push(New {
                        at,
                        record_key,
                        bytes: b,
                    });
                }
                Err(e) if ordered => failed = Some((at, e)),
                Err(e) => out.errors.push((at, e)),
            }
            at += 1;
        }
        let stop = insert_chunk(ctx, coll, lock, chunk, ordered, &mut retry, &mut out)?;
        if stop {
            break;
        }
        if let Some(f) = failed {
            out.errors.push(f);
            break;
        }
    }
    out.errors.sort_by_key(|e| e.0);
    Ok(out)
}

/// The collection, created when missing, with its write lock held; refuses views.
pub(crate) fn lock_or_create(ctx: &mut OpCtx, ns: &str) -> Result<(Arc<Collection>, WriteLock)> {
    loop {
        if let Some((coll, lock)) = ctx.lock(ns)? {
            if coll.is_view() {
                bail!(
                    CommandNotSupportedOnView,
                    "Namespace {ns} is a view, not a collection"
                );
            }
            return Ok((coll, lock));
        }
        ctx.need_worker()?;
        ctx.engine.catalog.get_or_create(ns)?;
    }
}

fn prepare(coll: &Collection, doc: Doc<'_>, ts: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let bytes = records::prepare(doc, ts)?;
    let stored = Doc::new(&bytes).ok_or_else(|| Error::internal("prepared document is damaged"))?;
    let key = records::record_key(coll, records::id_of(stored)?);
    Ok((key, bytes))
}

/// Inserts one chunk; `true` when an ordered batch must stop.
fn insert_chunk(
    ctx: &mut OpCtx,
    mut coll: Arc<Collection>,
    lock: WriteLock,
    chunk: Vec<New>,
    ordered: bool,
    retry: &mut Option<&mut dyn Retry>,
    out: &mut Inserted,
) -> Result<bool> {
    if chunk.is_empty() {
        return Ok(false);
    }
    ctx.check()?;
    let mut hashes: Vec<u64> = chunk.iter().map(|n| latch_hash(&n.record_key)).collect();
    // Keys of every index first: they decide the latches, and they may fail before anything is held.
    let mut sets: Vec<KeySet> = Vec::new();
    let mut bad: Vec<(usize, Error)> = Vec::new();
    if !coll.indexes.is_empty() {
        sets.resize_with(chunk.len() * coll.indexes.len(), KeySet::default);
        let mut multikey = vec![0u64; coll.indexes.len()];
        'docs: for (d, new) in chunk.iter().enumerate() {
            let doc = Doc::new(&new.bytes).unwrap_or(Doc::EMPTY);
            for (i, index) in coll.indexes.iter().enumerate() {
                let set = &mut sets[d * coll.indexes.len() + i];
                match records::keys_of(index, doc, set) {
                    Ok(bits) => multikey[i] |= bits,
                    Err(e) if e.is_offload() => return Err(e),
                    Err(e) => {
                        bad.push((d, e));
                        continue 'docs;
                    }
                }
                if index.info.unique {
                    hashes.extend(set.iter().map(|(k, _)| records::unique_hash(index, k)));
                }
            }
        }
        coll = mark_multikey(ctx, coll, &multikey)?;
    }
    let latches = ctx.latch(&hashes)?;
    let view = ctx.latest();
    let exists = existing(&view, &chunk)?;
    let mut seen: HashSet<&[u8]> = HashSet::new();
    let mut seen_unique: HashSet<(u32, &[u8])> = HashSet::new();
    let mut effects = Vec::with_capacity(chunk.len() * (1 + coll.indexes.len()) + 1);
    let (mut done, mut bytes, mut stop) = (Vec::new(), 0i64, false);
    let many = chunk.len() > 1;
    for (d, new) in chunk.iter().enumerate() {
        let doc = Doc::new(&new.bytes).unwrap_or(Doc::EMPTY);
        let mut error = bad.iter().find(|(i, _)| *i == d).map(|(_, e)| e.clone());
        if error.is_none() && (exists[d] || many && seen.contains(new.record_key.as_slice())) {
            error = Some(duplicate_id(&coll, records::id_of(doc)?));
        }
        if error.is_none() {
            for (i, index) in coll
                .indexes
                .iter()
                .enumerate()
                .filter(|(_, i)| i.info.unique)
            {
                for (k, t) in sets[d * coll.indexes.len() + i].iter() {
                    let clash = if many && seen_unique.contains(&(index.id, k)) {
                        Err(records::duplicate(&coll, index, k, t))
                    } else {
                        records::check_unique(&view, &coll, index, k, t, &new.record_key)
                    };
                    match clash {
                        Ok(()) => {}
                        Err(e) if e.code == Code::DuplicateKey => {
                            error = Some(e);
                            break;
                        }
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        if let Some(e) = error {
            out.errors.push((new.at, e));
            if ordered {
                stop = true;
                break;
            }
            continue;
        }
        if many {
            seen.insert(&new.record_key);
            for (i, index) in coll
                .indexes
                .iter()
                .enumerate()
                .filter(|(_, i)| i.info.unique)
            {
                seen_unique.extend(
                    sets[d * coll.indexes.len() + i]
                        .iter()
                        .map(|(k, _)| (index.id, k)),
                );
            }
        }
        done.push(d);
        bytes += new.bytes.len() as i64;
    }
    drop(seen);
    drop(seen_unique);
    let mut results = Vec::new();
    let indexes = coll.indexes.len();
    let mut next = done.iter().copied().peekable();
    for (d, new) in chunk.into_iter().enumerate() {
        if next.peek() != Some(&d) {
            continue;
        }
        next.next();
        for (i, index) in coll.indexes.iter().enumerate() {
            for (k, t) in sets[d * indexes + i].iter() {
                effects.push(records::put_entry(index, k, t, &new.record_key));
            }
        }
        if retry.is_some() {
            results.push(StmtResult {
                at: new.at,
                n: 1,
                ..Default::default()
            });
        }
        effects.push(Effect::Put(new.record_key, new.bytes));
    }
    if !done.is_empty() {
        let mut entry = Entry::new(coll.uuid, Op::Insert, effects);
        if let Some(r) = retry {
            let (session, effect) = r.record(&results);
            entry.session = Some(session);
            entry.effects.push(effect);
        }
        entry.count(coll.tablet, done.len() as i64, bytes);
        ctx.commit(vec![entry], Held { latches, lock })?;
        out.n += done.len();
    }
    Ok(stop)
}

/// Which of the chunk's records exist already. Mostly none does, and the filters in memory say so.
fn existing(view: &storage::View, chunk: &[New]) -> Result<Vec<bool>> {
    chunk.iter().map(|n| view.exists(&n.record_key)).collect()
}

/// Makes sure that the catalog knows which fields of which index hold arrays, before such an entry is staged.
pub(crate) fn mark_multikey(
    ctx: &mut OpCtx,
    mut coll: Arc<Collection>,
    bits: &[u64],
) -> Result<Arc<Collection>> {
    for (i, bits) in bits.iter().enumerate() {
        let index = &coll.indexes[i];
        if index.info.multikey | bits != index.info.multikey {
            let id = index.id;
            coll = ctx
                .engine
                .catalog
                .set_multikey(&coll.ns, id, *bits, !ctx.may_offload())?;
        }
    }
    Ok(coll)
}
