//! Updates, upserts, replacements and findAndModify's update.

use crate::op::{Latched, OpCtx};
use crate::read::request::ReadRequest;
use crate::read::text;
use crate::records;
use crate::write::candidate::{Candidate, CandidateBatches};
use crate::write::find_and_modify::retry_image;
use crate::write::locked::LockedCollection;
use crate::write::new_records::{NewRecord, insert_chunk};
use crate::write::record_write::{ATTEMPTS, Decision, RecordChange, RecordWrite, Statement};
use crate::write::retry::{Retry, StmtResult};
use crate::write::time_series;
use crate::write::validation;
use bson::hex_text::{Strings, in_hex};
use bson::{Doc, DocBuf, Val, Value};
use catalog::Collection;
use errors::{Code, Error, Result, Stop, bail};
use query::expr::Vars;
use query::filter::Filter;
use query::sort::SortPattern;
use query::update::{Applied, Update, UpdateCtx};
use std::borrow::Cow;
use std::sync::Arc;

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
    /// Whether to return images of the document (findAndModify).
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
    retry: Option<&mut dyn Retry>,
) -> Result<Updated> {
    if req.filter.text().is_some()
        && let Cow::Owned(filter) = text::bound(req.filter, ctx.view(ns).1.as_deref())?
    {
        let filter = &filter;
        let bound = UpdateRequest {
            filter,
            update: req.update,
            upsert: req.upsert,
            now_millis: req.now_millis,
            vars: req.vars,
            multi: req.multi,
            sort: req.sort,
            hint: req.hint.clone(),
            images: req.images,
        };
        return update(ctx, ns, &bound, at, retry);
    }
    if let Some(series) = time_series::of(ctx, ns) {
        return time_series::update(ctx, &series, req);
    }
    time_series::refuse_buckets(ctx, ns)?;
    let mut stmt = Statement { at, retry };
    let mut duplicate = None;
    for _ in 0..ATTEMPTS {
        let done = if req.multi {
            Some(update_many(ctx, ns, req)?)
        } else {
            update_one(ctx, ns, req, &mut stmt)?
        };
        let Some(done) = done else {
            continue;
        };
        if done.matched > 0 || !req.upsert {
            return Ok(done);
        }
        match upsert(ctx, ns, req, &mut stmt) {
            // Another operation inserted the document meanwhile: it can be updated now.
            Err(Stop::Failed(e)) if may_retry_upsert(&e, req) => {
                duplicate = Some(e);
            }
            r => return r,
        }
    }
    match duplicate {
        Some(e) => Err(e.into()),
        None => bail!(WriteConflict, "the update conflicted with others too often"),
    }
}

/// MongoDB retries an upsert after a duplicate key when the existing document must match the
/// filter: the filter has only equalities, on exactly the fields of that index, with the values
/// that collided.
fn may_retry_upsert(e: &Error, req: &UpdateRequest) -> bool {
    if e.code != Code::DuplicateKey || req.multi {
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
    // Under a collation the error has the strings' keys, as digits.
    let collation = req.filter.root().collation();
    let spec = extra.get("collation").and_then(|v| v.as_doc());
    let by_key = match (&collation, spec) {
        (Some(c), Some(spec)) if c.spec().as_bytes() == spec.as_bytes() => true,
        (_, Some(_)) => false,
        _ => extra.get("hexEncoded").is_some(),
    };
    let collided = |x: Val<'_>, v: Val<'_>| match &collation {
        Some(c) if by_key => {
            let (key, _) = in_hex(c.fold(v).as_val(), Strings::All, "");
            bson::order::equal(x, key.as_val())
        }
        _ => bson::order::equal(x, v),
    };
    pattern.iter().count() == equalities.len()
        && equalities.iter().all(|(p, v)| {
            pattern.get(p.as_str()).is_some()
                && (value.get(p.as_str())).is_some_and(|x| collided(x, *v))
        })
}

/// Updates the first match. `None`: another operation changed the candidate meanwhile; search
/// again.
fn update_one(
    ctx: &mut OpCtx,
    ns: &str,
    req: &UpdateRequest,
    stmt: &mut Statement,
) -> Result<Option<Updated>> {
    ctx.flush_own();
    let Some(target) = LockedCollection::existing(ctx, ns)? else {
        return Ok(Some(Updated::default()));
    };
    let read = ReadRequest {
        sort: req.sort,
        limit: Some(1),
        ..read_request(req)
    };
    let Some(Candidate { key, only }) = Candidate::first(ctx, &target.coll, &read)? else {
        return Ok(Some(Updated::default()));
    };
    let write = RecordWrite::of_records(ctx, target, std::slice::from_ref(&key))?;
    match update_record(ctx, write, key, req, stmt)? {
        Some(done) if done.matched == 0 && !only => Ok(None),
        done => Ok(done),
    }
}

fn read_request<'a>(req: &UpdateRequest<'a>) -> ReadRequest<'a> {
    ReadRequest {
        hint: req.hint.clone(),
        vars: req.filter.wants_vars().then(|| req.vars.clone()),
        ..ReadRequest::new(req.filter)
    }
}

/// Updates the latched record, if it exists and matches. `None`: search again.
fn update_record(
    ctx: &mut OpCtx,
    mut write: RecordWrite,
    key: Vec<u8>,
    req: &UpdateRequest,
    stmt: &mut Statement,
) -> Result<Option<Updated>> {
    let Some(record) = ctx.latest().get(&key)? else {
        return Ok(Some(Updated::default()));
    };
    let before = records::stored(write.coll(), &key, &record)?;
    if !req.filter.matches_with(before, req.vars)? {
        return Ok(Some(Updated::default()));
    }
    let applied = apply(ctx, write.coll(), req, before)?;
    let mut out = Updated {
        matched: 1,
        modified: u64::from(applied.is_some()),
        ..Default::default()
    };
    if req.images {
        let after = applied.as_ref().map_or(before, |a| a.doc.as_doc());
        out.after = Some(after.to_buf());
        out.before = Some(before.to_buf());
    }
    if let Some(applied) = applied {
        let change = RecordChange {
            key,
            before,
            after: Some((applied, req.update)),
        };
        if write.stage(ctx, change)? == Latched::Conflict {
            return Ok(None);
        }
    }
    let at = stmt.at;
    write.commit(ctx, stmt.retry.as_deref_mut(), || {
        vec![StmtResult {
            at,
            n: 1,
            n_modified: out.modified,
            upserted: None,
            image: retry_image(req, &out),
        }]
    })?;
    Ok(Some(out))
}

/// The document's new version, which has passed the validator; `None` when nothing changes.
fn apply(
    ctx: &OpCtx,
    coll: &Collection,
    req: &UpdateRequest,
    doc: Doc<'_>,
) -> Result<Option<Applied>> {
    let applied = req.update.apply(doc, req.filter, &update_ctx(ctx, req))?;
    if let Some(a) = &applied {
        validation::check(ctx, coll, a.doc.as_doc(), Some(doc))?;
    }
    Ok(applied)
}

pub(crate) fn update_ctx<'a>(ctx: &OpCtx, req: &UpdateRequest<'a>) -> UpdateCtx<'a> {
    let stamp = ctx.engine.stamp_at(req.now_millis);
    UpdateCtx::new(req.vars, req.now_millis, stamp)
}

/// Updates all matches, in batches. Not atomic as a whole, as in MongoDB.
fn update_many(ctx: &mut OpCtx, ns: &str, req: &UpdateRequest) -> Result<Updated> {
    ctx.need_worker()?;
    ctx.flush_own();
    let mut out = Updated::default();
    let Some(mut batches) = CandidateBatches::open(ctx, ns, &read_request(req))? else {
        return Ok(out);
    };
    loop {
        let keys = batches.next(ctx)?;
        if keys.is_empty() {
            return Ok(out);
        }
        // Documents of one group could collide in a unique index: then each is its own group.
        let group = if batches.has_unique() { 1 } else { keys.len() };
        for keys in keys.chunks(group) {
            let decide = |ctx: &OpCtx, coll: &Collection, before: Doc<'_>| {
                if !req.filter.matches_with(before, req.vars)? {
                    return Ok(Decision::Skip);
                }
                Ok(match apply(ctx, coll, req, before)? {
                    Some(applied) => Decision::Update(applied, req.update),
                    None => Decision::Keep,
                })
            };
            let (matched, modified) = batches.change(ctx, keys, "updated", decide)?;
            out.matched += matched;
            out.modified += modified;
            if batches.unread {
                ctx.examined.docs += matched;
            }
        }
    }
}

/// Inserts the document made from the filter's equalities and the update.
fn upsert(ctx: &mut OpCtx, ns: &str, req: &UpdateRequest, stmt: &mut Statement) -> Result<Updated> {
    let target = LockedCollection::or_create(ctx, ns)?;
    let doc = req.update.upsert(req.filter, &update_ctx(ctx, req))?;
    let id = records::id_of(doc.as_doc())?;
    let target = target.lay_out(ctx, id)?;
    validation::check(ctx, &target.coll, doc.as_doc(), None)?;
    let out = Updated {
        upserted: Some(id.to_value()),
        after: req.images.then(|| doc.clone()),
        ..Default::default()
    };
    let new = NewRecord::new(&target, stmt.at, doc)?;
    let retry = stmt.retry.as_deref_mut();
    let done = insert_chunk(ctx, target, vec![new], true, retry, |at| StmtResult {
        at,
        n: 1,
        n_modified: 0,
        upserted: out.upserted.clone(),
        image: retry_image(req, &out),
    })?;
    match done.errors.into_iter().next() {
        Some((_, e)) => Err(e.into()),
        None => Ok(out),
    }
}
