//! Inserting documents. A batch is cut into chunks; a chunk is one log entry, so it is there whole or not at all, and its
//! session record with it.

use crate::op::{Held, OpCtx};
use crate::records::{self, duplicate_id, latch_hash};
use crate::write::capped::{self, CappedRoom};
use crate::write::retry::{Retry, StmtResult};
use bson::{Doc, Val, tag};
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

/// What the record key of a clustered collection may take; its `_id` stands in every index entry.
const MAX_CLUSTERED_KEY_BYTES: usize = 8 << 20;

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
        let (coll, lock) = match docs.get(at).and_then(|d| d.get("_id")) {
            Some(id) => lay_out(ctx, coll, lock, id)?,
            None => (coll, lock),
        };
        let mut chunk = Vec::new();
        let mut bytes = 0;
        let mut failed = None;
        while at < docs.len() && chunk.len() < CHUNK_DOCS && bytes < CHUNK_BYTES && failed.is_none()
        {
            match prepare(ctx, &coll, docs[at]) {
                Ok((record_key, b)) => {
                    bytes += b.len();
                    chunk.push(New {
                        at,
                        record_key,
                        bytes: b,
                    });
                }
                Err(e) if e.is_interruption() => return Err(e),
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
            check_writable(&coll)?;
            return Ok((coll, lock));
        }
        ctx.need_worker()?;
        check_not_list(ns)?;
        catalog::check_system_name(ns)?;
        ctx.engine.catalog.get_or_create(ns)?;
    }
}

/// Decides where the records of an empty collection are going to lie, by the `_id` of the first one that comes: under their `_id`, or under
/// numbers (see `catalog::numbers`).
pub(crate) fn lay_out(
    ctx: &mut OpCtx,
    coll: Arc<Collection>,
    lock: WriteLock,
    id: Val<'_>,
) -> Result<(Arc<Collection>, WriteLock)> {
    if !records::comes_in_no_order(id)
        || !coll.may_be_numbered()
        || ctx.engine.store.counts(coll.tablet).0 > 0
    {
        return Ok((coll, lock));
    }
    ctx.need_worker()?;
    drop(lock);
    let store = ctx.engine.store.clone();
    match (ctx.engine.catalog).number_records(&coll.ns, |c| records::none(&store.latest(), c)) {
        // Dropped meanwhile; the next line makes it anew, where one is as good as the other.
        Err(e) if e.code == Code::NamespaceNotFound => {}
        done => {
            done?;
        }
    }
    lock_or_create(ctx, &coll.ns)
}

/// Nobody writes to views, nor to the collection that lists them.
#[inline]
pub(crate) fn check_writable(coll: &Collection) -> Result<()> {
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {} is a view, not a collection",
            coll.ns
        );
    }
    check_not_list(&coll.ns)
}

#[inline]
fn check_not_list(ns: &str) -> Result<()> {
    if ns.ends_with(".system.views") && catalog::view_definition::is_list(ns) {
        bail!(
            InvalidNamespace,
            "cannot write to {ns}: it tells of the views that there are"
        );
    }
    Ok(())
}

fn prepare(ctx: &OpCtx, coll: &Collection, doc: Doc<'_>) -> Result<(Vec<u8>, Vec<u8>)> {
    let bytes = records::prepare(doc, || ctx.engine.next_stamp())?;
    let stored = Doc::new(&bytes).ok_or_else(|| Error::internal("prepared document is damaged"))?;
    crate::write::validation::check(ctx, coll, stored, None)?;
    let id = records::id_of(stored)?;
    let key = match coll.is_numbered() {
        false => {
            if id.bytes.len() > MAX_CLUSTERED_KEY_BYTES / 2
                && coll.option("clusteredIndex").is_some()
            {
                check_clustered_key(id)?;
            }
            records::record_key(coll, id)
        }
        // Where it will lie is known when it may come.
        true => Vec::new(),
    };
    Ok((key, bytes))
}

/// Fails when an `_id` is larger than a clustered collection takes, by MongoDB's encoding of it.
fn check_clustered_key(id: Val<'_>) -> Result<()> {
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
    let mut hashes: Vec<u64> = match coll.is_numbered() {
        false => chunk.iter().map(|n| latch_hash(&n.record_key)).collect(),
        true => Vec::with_capacity(chunk.len() + 1),
    };
    hashes.extend(coll.capped.is_some().then(|| capped::tail_hash(&coll)));
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
    let (latches, verdict, mut room) = loop {
        let mut latches = ctx.latch(&hashes)?;
        let verdict = judge(&ctx.latest(), &coll, &chunk, &sets, &bad, ordered)?;
        if !coll.is_numbered() {
            break (latches, verdict, CappedRoom::default());
        }
        let sizes: Vec<usize> = verdict
            .accepted
            .iter()
            .filter_map(|d| Some(chunk.get(*d)?.bytes.len()))
            .collect();
        match capped::place(ctx, &coll, &mut latches, &sizes)? {
            Some(room) => break (latches, verdict, room),
            None => drop(latches),
        }
        std::thread::yield_now();
    };
    let Verdict {
        accepted,
        errors,
        stop,
    } = verdict;
    out.errors.extend(errors);
    let mut effects = std::mem::take(&mut room.effects);
    effects.reserve(accepted.len() * (1 + coll.indexes.len()) + 1);
    let (mut results, mut records, mut bytes) = (Vec::new(), -room.records, -room.bytes);
    let indexes = coll.indexes.len();
    let mut sequenced = room.keys.into_iter();
    let mut next = accepted.iter().copied().enumerate().peekable();
    for (d, mut new) in chunk.into_iter().enumerate() {
        let Some((n, _)) = next.next_if(|(_, accepted)| *accepted == d) else {
            continue;
        };
        if retry.is_some() {
            results.push(StmtResult {
                at: new.at,
                n: 1,
                ..Default::default()
            });
        }
        if let Some(key) = sequenced.next() {
            new.record_key = key;
        }
        if n < room.dropped {
            continue;
        }
        for (i, index) in coll.indexes.iter().enumerate() {
            for (k, t) in sets[d * indexes + i].iter() {
                effects.push(records::put_entry(index, k, t, &new.record_key));
            }
        }
        records += 1;
        bytes += new.bytes.len() as i64;
        effects.push(Effect::Put(new.record_key, new.bytes));
    }
    if !accepted.is_empty() {
        let mut entry = Entry::new(coll.ns.clone(), coll.uuid, Op::Insert, effects);
        if let Some(r) = retry {
            let (session, effect) = r.record(&results);
            entry.session = Some(session);
            entry.effects.push(effect);
        }
        entry.count(coll.tablet, records, bytes);
        ctx.wake(coll.capped.as_ref());
        ctx.commit(vec![entry], Held { latches, lock })?;
        out.n += accepted.len();
    }
    Ok(stop)
}

/// What becomes of the documents of a chunk.
struct Verdict {
    /// Those to insert, by their place in the chunk.
    accepted: Vec<usize>,
    /// Position in the batch and error of the others.
    errors: Vec<(usize, Error)>,
    /// An ordered batch ends here.
    stop: bool,
}

/// Which documents may be inserted, once all is latched that their keys depend on.
fn judge(
    view: &storage::View,
    coll: &Collection,
    chunk: &[New],
    sets: &[KeySet],
    bad: &[(usize, Error)],
    ordered: bool,
) -> Result<Verdict> {
    // Where records lie under numbers they have no key yet; the index on _id tells.
    let by_id = !coll.is_numbered();
    let exists = if by_id {
        existing(view, chunk)?
    } else {
        vec![false; chunk.len()]
    };
    let mut seen: HashSet<&[u8]> = HashSet::new();
    let mut seen_unique: HashSet<(u32, &[u8])> = HashSet::new();
    let many = chunk.len() > 1;
    let unique = || {
        let all = coll.indexes.iter().enumerate();
        all.filter(|(_, i)| i.info.unique)
    };
    let mut out = Verdict {
        accepted: Vec::with_capacity(chunk.len()),
        errors: Vec::new(),
        stop: false,
    };
    for (d, new) in chunk.iter().enumerate() {
        let doc = Doc::new(&new.bytes).unwrap_or(Doc::EMPTY);
        let mut error = bad.iter().find(|(i, _)| *i == d).map(|(_, e)| e.clone());
        if error.is_none()
            && by_id
            && (exists[d] || many && seen.contains(new.record_key.as_slice()))
        {
            error = Some(duplicate_id(coll, records::id_of(doc)?));
        }
        if error.is_none() {
            'indexes: for (i, index) in unique() {
                for (k, t) in sets[d * coll.indexes.len() + i].iter() {
                    let clash = if many && seen_unique.contains(&(index.id, k)) {
                        Err(records::duplicate(coll, index, k, t))
                    } else {
                        records::check_unique(view, coll, index, k, t, &new.record_key)
                    };
                    match clash {
                        Ok(()) => {}
                        Err(e) if e.code == Code::DuplicateKey => {
                            error = Some(e);
                            break 'indexes;
                        }
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        if let Some(e) = error {
            out.errors.push((new.at, e));
            if ordered {
                out.stop = true;
                break;
            }
            continue;
        }
        if many {
            seen.insert(&new.record_key);
            for (i, index) in unique() {
                seen_unique.extend(
                    sets[d * coll.indexes.len() + i]
                        .iter()
                        .map(|(k, _)| (index.id, k)),
                );
            }
        }
        out.accepted.push(d);
    }
    Ok(out)
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
