//! Updates, upserts, replacements and findAndModify's update.
//!
//! One document's update: find a candidate, latch its record key, read the newest version, match again, apply, latch the new
//! values of unique indexes, check them, stage one log entry. What the candidate's view showed decides nothing.

use crate::op::{Held, OpCtx};
use crate::read::RecordStream;
use crate::read::request::ReadRequest;
use crate::records::{self, duplicate_id, latch_hash};
use crate::write::capped::{self, CappedRoom};
use crate::write::insert::{check_writable, lay_out, lock_or_create, mark_multikey};
use crate::write::retry::{Retry, StmtResult};
use bson::{Doc, DocBuf, Value};
use catalog::keyspace::PREFIX;
use catalog::{Collection, WriteLock};
use errors::{Code, Error, Result, bail};
use query::expr::Vars;
use query::filter::Filter;
use query::index_keys::KeySet;
use query::sort::SortPattern;
use query::update::{Applied, Update, UpdateCtx};
use std::sync::Arc;
use storage::{Effect, Entry, LatchGuard, Op};

/// How many documents a multi-update prepares before it commits them together.
const BATCH: usize = 128;
/// What the new documents of one group come to at most, but for the last of them, in bytes.
const GROUP_BYTES: usize = 1 << 20;
/// How often a statement starts again because others were faster, before it gives up.
const ATTEMPTS: usize = 1000;

pub struct UpdateRequest<'a> {
    pub filter: &'a Filter,
    pub update: &'a Update,
    pub multi: bool,
    pub upsert: bool,
    pub sort: Option<&'a SortPattern>,
    pub hint: Option<planner::Hint>,
    /// Variables of the command: `let`, `$$NOW`.
    pub vars: &'a Arc<Vars>,
    /// Milliseconds since 1970 of `$currentDate`.
    pub now_millis: i64,
    /// Whether images of the document are wanted (findAndModify).
    pub images: bool,
}

#[derive(Debug, Default)]
pub struct Updated {
    pub matched: u64,
    pub modified: u64,
    pub upserted: Option<Value>,
    /// The document before and after, when asked for.
    pub before: Option<DocBuf>,
    pub after: Option<DocBuf>,
}

/// Runs one update statement. `at` is its position in the command.
pub fn update(
    ctx: &mut OpCtx,
    ns: &str,
    req: &UpdateRequest,
    at: usize,
    mut retry: Option<&mut dyn Retry>,
) -> Result<Updated> {
    let mut duplicate = None;
    for _ in 0..ATTEMPTS {
        let done = if req.multi {
            update_many(ctx, ns, req)?
        } else {
            update_one(ctx, ns, req, at, &mut retry)?
        };
        let done = match done {
            Some(d) => d,
            None => continue,
        };
        if done.matched > 0 || !req.upsert {
            return Ok(done);
        }
        match upsert(ctx, ns, req, at, &mut retry) {
            // Somebody inserted the document meanwhile: it can be updated now.
            Err(e) if e.code == Code::DuplicateKey && may_retry_upsert(&e, req) => {
                duplicate = Some(e);
            }
            r => return r,
        }
    }
    match duplicate {
        Some(e) => Err(e),
        None => bail!(WriteConflict, "the update conflicted with others too often"),
    }
}

/// MongoDB retries an upsert's duplicate key where the document that is in the way must match the filter: the filter is
/// equalities on exactly the fields of that index, with the values that collided, and nothing else.
fn may_retry_upsert(e: &Error, req: &UpdateRequest) -> bool {
    if req.multi {
        return false;
    }
    let Some(extra) = e.extra.as_deref().and_then(Doc::new) else {
        return false;
    };
    let (Some(pattern), Some(value)) = (
        extra.get("keyPattern").and_then(|v| v.as_doc()),
        extra.get("keyValue").and_then(|v| v.as_doc()),
    ) else {
        return false;
    };
    let Some(equalities) = req.filter.nothing_but_equalities() else {
        return false;
    };
    pattern.iter().count() == equalities.len()
        && equalities.iter().all(|(p, v)| {
            pattern.get(p.as_str()).is_some()
                && (value.get(p.as_str())).is_some_and(|x| bson::order::equal(x, *v))
        })
}

/// Updates the first match. `None`: the candidate was changed by another meanwhile, look again.
fn update_one(
    ctx: &mut OpCtx,
    ns: &str,
    req: &UpdateRequest,
    at: usize,
    retry: &mut Option<&mut dyn Retry>,
) -> Result<Option<Updated>> {
    ctx.flush_own();
    let Some((coll, lock)) = lock_existing(ctx, ns)? else {
        return Ok(Some(Updated::default()));
    };
    // By `_id`: the latest version under the latch is all there is to read.
    if req.sort.is_none()
        && req.hint.is_none()
        && let Some(id) = planner::id_lookup(req.filter)
    {
        let Some(key) = records::locate(&ctx.latest(), &coll, id)? else {
            return Ok(Some(Updated::default()));
        };
        let latches = ctx.latch(&[latch_hash(&key)])?;
        ctx.tick(1)?;
        let looked_up = coll.is_numbered();
        return match update_record(ctx, coll, lock, latches, key, req, at, retry)? {
            // It went between the look at the index and the latch; there may be another one by now.
            Some(u) if looked_up && u.matched == 0 => Ok(None),
            done => Ok(done),
        };
    }
    let read = ReadRequest {
        sort: req.sort,
        hint: req.hint.clone(),
        limit: Some(1),
        vars: vars(req),
        ..ReadRequest::new(req.filter)
    };
    let (view, _) = ctx.view(ns);
    let mut rows = RecordStream::open(ctx, view, coll.clone(), &read)?;
    if !rows.next(ctx)? {
        return Ok(Some(Updated::default()));
    }
    let key = coll.record_key(rows.record_key());
    drop(rows);
    let latches = ctx.latch(&[latch_hash(&key)])?;
    match update_record(ctx, coll, lock, latches, key, req, at, retry)? {
        // It matched in the view and no longer does.
        Some(u) if u.matched == 0 => Ok(None),
        r => Ok(r),
    }
}

/// The collection with its lock, if there is one; refuses views.
pub(crate) fn lock_existing(
    ctx: &mut OpCtx,
    ns: &str,
) -> Result<Option<(Arc<Collection>, WriteLock)>> {
    let locked = ctx.lock(ns)?;
    if let Some((c, _)) = &locked {
        check_writable(c)?;
    }
    Ok(locked)
}

/// Updates the latched record, if it is there and matches.
#[allow(clippy::too_many_arguments)]
fn update_record(
    ctx: &mut OpCtx,
    coll: Arc<Collection>,
    lock: WriteLock,
    mut latches: LatchGuard,
    key: Vec<u8>,
    req: &UpdateRequest,
    at: usize,
    retry: &mut Option<&mut dyn Retry>,
) -> Result<Option<Updated>> {
    let view = ctx.latest();
    let Some(old) = view.get(&key)? else {
        return Ok(Some(Updated::default()));
    };
    let old_doc = Doc::new(&old).ok_or_else(|| damaged(&coll))?;
    if !req.filter.matches_with(old_doc, req.vars)? {
        return Ok(Some(Updated::default()));
    }
    let applied = apply(ctx, &coll, req, old_doc)?;
    let mut out = Updated {
        matched: 1,
        ..Default::default()
    };
    if req.images {
        out.before = Some(old_doc.to_buf());
        out.after = Some(
            applied
                .as_ref()
                .map_or_else(|| old_doc.to_buf(), |a| a.doc.clone()),
        );
    }
    let mut effects = Vec::with_capacity(4);
    let mut op = Op::Noop;
    let mut growth = 0;
    let mut coll = coll;
    if let Some(applied) = applied {
        out.modified = 1;
        growth = applied.doc.as_bytes().len() as i64 - old.len() as i64;
        match index_changes(
            ctx,
            coll,
            &mut latches,
            &key,
            old_doc,
            applied.doc.as_doc(),
            req.update,
            &mut effects,
        )? {
            Some(c) => coll = c,
            None => return Ok(None),
        }
        op = update_op(&key, applied.diff);
        effects.insert(0, Effect::Put(key, applied.doc.into_vec()));
    }
    let mut entry = Entry::new(coll.ns.clone(), coll.uuid, op, effects);
    if let Some(r) = retry {
        let result = StmtResult {
            at,
            n: 1,
            n_modified: out.modified,
            upserted: None,
            image: crate::write::find_and_modify::retry_image(req, &out),
        };
        let (session, effect) = r.record(&[result]);
        entry.session = Some(session);
        entry.effects.push(effect);
    }
    if !entry.effects.is_empty() {
        entry.count(coll.tablet, 0, growth);
        ctx.commit(vec![entry], Held { latches, lock })?;
    }
    Ok(Some(out))
}

fn damaged(coll: &Collection) -> Error {
    Error::internal(format!("a record of {} is damaged", coll.ns))
}

fn update_op(key: &[u8], diff: Option<Vec<u8>>) -> Op {
    Op::Update {
        diff: diff.unwrap_or_default(),
        record_key: key.get(PREFIX..).unwrap_or(&[]).to_vec(),
    }
}

fn vars(req: &UpdateRequest) -> Option<Arc<Vars>> {
    req.filter.wants_vars().then(|| req.vars.clone())
}

/// The document's new version, which the collection's validator allows; `None` when nothing changes.
fn apply(
    ctx: &OpCtx,
    coll: &Collection,
    req: &UpdateRequest,
    doc: Doc<'_>,
) -> Result<Option<Applied>> {
    let uctx = UpdateCtx::new(
        req.vars,
        req.now_millis,
        ctx.engine.stamp_at(req.now_millis),
    );
    let applied = req.update.apply(doc, req.filter, &uctx)?;
    if let Some(a) = &applied {
        crate::write::validation::check(ctx, coll, a.doc.as_doc(), Some(doc))?;
    }
    Ok(applied)
}

/// Adds the effects of a document's change on the indexes; latches and checks new values of unique ones. Gives the collection
/// in its newest version; `None` when a latch is held by another: let go and start again.
#[allow(clippy::too_many_arguments)]
fn index_changes(
    ctx: &mut OpCtx,
    mut coll: Arc<Collection>,
    latches: &mut LatchGuard,
    key: &[u8],
    old: Doc<'_>,
    new: Doc<'_>,
    update: &Update,
    effects: &mut Vec<Effect>,
) -> Result<Option<Arc<Collection>>> {
    if coll.indexes.is_empty() {
        return Ok(Some(coll));
    }
    let (mut before, mut after) = (KeySet::default(), KeySet::default());
    for i in 0..coll.indexes.len() {
        let index = coll.indexes[i].clone();
        if index.info.partial.is_none() && !index.info.key.concerned(|p| update.may_touch(p)) {
            continue;
        }
        records::keys_of(&index, old, &mut before)?;
        let bits = records::keys_of(&index, new, &mut after)?;
        if bits | index.info.multikey != index.info.multikey {
            let mut all = vec![0; coll.indexes.len()];
            all[i] = bits;
            coll = mark_multikey(ctx, coll, &all)?;
        }
        for (k, _) in before.iter() {
            if !after.iter().any(|(n, _)| n == k) {
                effects.push(records::delete_entry(&index, k, key));
            }
        }
        for (k, t) in after.iter() {
            match before.iter().find(|(o, _)| *o == k) {
                // The same key; its types may have changed (1 to 1.0).
                Some((_, old_types)) => {
                    if old_types != t {
                        effects.push(records::put_entry(&index, k, t, key));
                    }
                }
                None => {
                    if index.info.unique {
                        if !ctx.latch_more(latches, &[records::unique_hash(&index, k)])? {
                            return Ok(None);
                        }
                        records::check_unique(&ctx.latest(), &coll, &index, k, t, key)?;
                    }
                    effects.push(records::put_entry(&index, k, t, key));
                }
            }
        }
    }
    Ok(Some(coll))
}

/// Updates all matches, in batches. Not atomic as a whole, as in MongoDB.
fn update_many(ctx: &mut OpCtx, ns: &str, req: &UpdateRequest) -> Result<Option<Updated>> {
    ctx.need_worker()?;
    ctx.flush_own();
    let mut out = Updated::default();
    let (view, Some(coll)) = ctx.view(ns) else {
        return Ok(Some(out));
    };
    check_writable(&coll)?;
    let read = ReadRequest {
        hint: req.hint.clone(),
        vars: vars(req),
        ..ReadRequest::new(req.filter)
    };
    let mut rows = RecordStream::open(ctx, view, coll.clone(), &read)?;
    let unread = rows.tells_keys();
    let mut more = true;
    while more {
        let mut keys = Vec::with_capacity(BATCH);
        while keys.len() < BATCH {
            more = rows.next_key(ctx)?;
            if !more {
                break;
            }
            keys.push(coll.record_key(rows.record_key()));
        }
        if !keys.is_empty() {
            let before = out.matched;
            update_batch(ctx, ns, &coll, keys, req, &mut out)?;
            if unread {
                ctx.examined.docs += out.matched - before;
            }
        }
    }
    Ok(Some(out))
}

/// Updates those of the records that still match, as one group. Falls back to one by one when documents of the batch meet in
/// a unique index.
fn update_batch(
    ctx: &mut OpCtx,
    ns: &str,
    started: &Arc<Collection>,
    keys: Vec<Vec<u8>>,
    req: &UpdateRequest,
    out: &mut Updated,
) -> Result<()> {
    let unique = started.indexes.iter().any(|i| i.info.unique);
    let step = if unique { 1 } else { keys.len() };
    for mut part in keys.chunks(step) {
        while !part.is_empty() {
            let Some((mut coll, lock)) = lock_existing(ctx, ns)? else {
                return Ok(());
            };
            if coll.uuid != started.uuid {
                bail!(
                    QueryPlanKilled,
                    "collection dropped or replaced while it was updated"
                );
            }
            let hashes: Vec<u64> = part.iter().map(|k| latch_hash(k)).collect();
            let mut latches = ctx.latch(&hashes)?;
            let view = ctx.latest();
            let refs: Vec<&[u8]> = part.iter().map(|k| k.as_slice()).collect();
            let mut entries = Vec::with_capacity(part.len());
            let (mut matched, mut modified, mut again) = (0, 0, false);
            let (mut done, mut bytes) = (part.len(), 0);
            let each = |at: usize, old: &storage::Slice| {
                let key = &part[at];
                let old_doc = Doc::new(old).ok_or_else(|| damaged(&coll))?;
                if !req.filter.matches_with(old_doc, req.vars)? {
                    return Ok(true);
                }
                matched += 1;
                let Some(applied) = apply(ctx, &coll, req, old_doc)? else {
                    return Ok(true);
                };
                modified += 1;
                let growth = applied.doc.as_bytes().len() as i64 - old.len() as i64;
                let mut effects = Vec::with_capacity(4);
                match index_changes(
                    ctx,
                    coll.clone(),
                    &mut latches,
                    key,
                    old_doc,
                    applied.doc.as_doc(),
                    req.update,
                    &mut effects,
                )? {
                    Some(c) => coll = c,
                    None => {
                        again = true;
                        return Ok(false);
                    }
                }
                bytes += applied.doc.as_bytes().len();
                let op = update_op(key, applied.diff);
                effects.insert(0, Effect::Put(key.clone(), applied.doc.into_vec()));
                let mut entry = Entry::new(coll.ns.clone(), coll.uuid, op, effects);
                entry.count(coll.tablet, 0, growth);
                entries.push(entry);
                if bytes < GROUP_BYTES {
                    return Ok(true);
                }
                done = at + 1;
                Ok(false)
            };
            if let Err(e) = view.get_each(&refs, each) {
                // What was done before the failing document stays done, as in MongoDB.
                ctx.commit(entries, Held { latches, lock })?;
                return Err(e);
            }
            if again {
                drop(latches);
                std::thread::yield_now();
                continue;
            }
            ctx.commit(entries, Held { latches, lock })?;
            out.matched += matched;
            out.modified += modified;
            part = part.get(done..).unwrap_or(&[]);
        }
    }
    Ok(())
}

fn upsert(
    ctx: &mut OpCtx,
    ns: &str,
    req: &UpdateRequest,
    at: usize,
    retry: &mut Option<&mut dyn Retry>,
) -> Result<Updated> {
    let (coll, lock) = lock_or_create(ctx, ns)?;
    let uctx = UpdateCtx::new(
        req.vars,
        req.now_millis,
        ctx.engine.stamp_at(req.now_millis),
    );
    let bytes = req.update.upsert(req.filter, &uctx)?.into_vec();
    let doc = Doc::new(&bytes).ok_or_else(|| damaged(&coll))?;
    let id = records::id_of(doc)?;
    let (mut coll, lock) = lay_out(ctx, coll, lock, id)?;
    crate::write::validation::check(ctx, &coll, doc, None)?;
    let own_key = (!coll.is_numbered()).then(|| records::record_key(&coll, id));
    let mut hashes: Vec<u64> = own_key.iter().map(|key| latch_hash(key)).collect();
    hashes.extend(coll.capped.is_some().then(|| capped::tail_hash(&coll)));
    let mut sets: Vec<KeySet> = Vec::new();
    sets.resize_with(coll.indexes.len(), KeySet::default);
    let mut bits = Vec::new();
    for (index, set) in coll.indexes.iter().zip(&mut sets) {
        bits.push(records::keys_of(index, doc, set)?);
        if index.info.unique {
            hashes.extend(set.iter().map(|(k, _)| records::unique_hash(index, k)));
        }
    }
    coll = mark_multikey(ctx, coll, &bits)?;
    let (latches, key, room) = loop {
        let mut latches = ctx.latch(&hashes)?;
        let view = ctx.latest();
        if let Some(key) = &own_key
            && view.get(key)?.is_some()
        {
            return Err(duplicate_id(&coll, id));
        }
        for (index, set) in coll.indexes.iter().zip(&sets) {
            if index.info.unique {
                for (k, t) in set.iter() {
                    let own = own_key.as_deref().unwrap_or(&[]);
                    records::check_unique(&view, &coll, index, k, t, own)?;
                }
            }
        }
        if let Some(key) = own_key {
            break (latches, key, CappedRoom::default());
        }
        match capped::place(ctx, &coll, &mut latches, &[bytes.len()])? {
            Some(mut room) => break (latches, room.keys.pop().unwrap_or_default(), room),
            None => drop(latches),
        }
        std::thread::yield_now();
    };
    let mut effects = room.effects;
    for (index, set) in coll.indexes.iter().zip(&sets) {
        for (k, t) in set.iter() {
            effects.push(records::put_entry(index, k, t, &key));
        }
    }
    let mut out = Updated {
        upserted: Some(id.to_value()),
        ..Default::default()
    };
    if req.images {
        out.after = Some(doc.to_buf());
    }
    let size = bytes.len() as i64;
    effects.insert(0, Effect::Put(key, bytes));
    let mut entry = Entry::new(coll.ns.clone(), coll.uuid, Op::Insert, effects);
    entry.count(coll.tablet, 1 - room.records, size - room.bytes);
    if let Some(r) = retry {
        let result = StmtResult {
            at,
            n: 1,
            n_modified: 0,
            upserted: out.upserted.clone(),
            image: crate::write::find_and_modify::retry_image(req, &out),
        };
        let (session, effect) = r.record(&[result]);
        entry.session = Some(session);
        entry.effects.push(effect);
    }
    ctx.wake(coll.capped.as_ref());
    ctx.commit(vec![entry], Held { latches, lock })?;
    Ok(out)
}
