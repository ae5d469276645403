//! Deletes documents. Like an update: find a candidate, latch it, read it again.

use crate::op::{Latched, OpCtx};
use crate::read::request::ReadRequest;
use crate::read::text;
use crate::records;
use crate::write::candidate::{Candidate, CandidateBatches};
use crate::write::locked::LockedCollection;
use crate::write::record_write::{ATTEMPTS, Decision, RecordChange, RecordWrite, Statement};
use crate::write::retry::{Retry, StmtResult};
use crate::write::time_series;
use bson::{Doc, DocBuf};
use catalog::Collection;
use errors::{Result, bail};
use query::filter::Filter;
use query::sort::SortPattern;
use std::borrow::Cow;
use std::sync::Arc;

pub struct DeleteRequest<'a> {
    pub filter: &'a Filter,
    pub multi: bool,
    pub sort: Option<&'a SortPattern>,
    pub hint: Option<planner::Hint>,
    pub vars: Option<Arc<query::expr::Vars>>,
    /// Whether to return the deleted document (findAndModify).
    pub images: bool,
}

#[derive(Debug, Default)]
pub struct Deleted {
    pub n: u64,
    pub before: Option<DocBuf>,
}

/// Runs one delete statement. `at` is its position in the command.
pub fn delete(
    ctx: &mut OpCtx,
    ns: &str,
    req: &DeleteRequest,
    at: usize,
    retry: Option<&mut dyn Retry>,
) -> Result<Deleted> {
    if req.filter.text().is_some()
        && let Cow::Owned(filter) = text::bound(req.filter, ctx.view(ns).1.as_deref())?
    {
        let filter = &filter;
        let bound = DeleteRequest {
            filter,
            vars: req.vars.clone(),
            multi: req.multi,
            sort: req.sort,
            hint: req.hint.clone(),
            images: req.images,
        };
        return delete(ctx, ns, &bound, at, retry);
    }
    ctx.flush_own();
    if let Some(series) = time_series::of(ctx, ns) {
        return time_series::delete(ctx, &series, req, at, retry);
    }
    if req.multi {
        return delete_many(ctx, ns, req);
    }
    let mut stmt = Statement { at, retry };
    for _ in 0..ATTEMPTS {
        if let Some(done) = delete_one(ctx, ns, req, &mut stmt)? {
            return Ok(done);
        }
    }
    bail!(WriteConflict, "the delete conflicted with others too often")
}

/// Deletes the first match. `None`: another operation changed the candidate meanwhile; search
/// again.
fn delete_one(
    ctx: &mut OpCtx,
    ns: &str,
    req: &DeleteRequest,
    stmt: &mut Statement,
) -> Result<Option<Deleted>> {
    let Some(target) = LockedCollection::existing(ctx, ns)? else {
        return Ok(Some(Deleted::default()));
    };
    let read = ReadRequest {
        sort: req.sort,
        limit: Some(1),
        ..read_request(req)
    };
    let Some(Candidate { key, only }) = Candidate::first(ctx, &target.coll, &read)? else {
        return Ok(Some(Deleted::default()));
    };
    let mut write = RecordWrite::of_records(ctx, target, std::slice::from_ref(&key))?;
    let Some(record) = ctx.latest().get(&key)? else {
        return Ok(only.then(Deleted::default));
    };
    let before = records::stored(write.coll(), &key, &record)?;
    if !crate::read::step::test(req.filter, before, req.vars.as_deref())? {
        return Ok(only.then(Deleted::default));
    }
    let change = RecordChange {
        key,
        before,
        after: None,
    };
    if write.stage(ctx, change)? == Latched::Conflict {
        return Ok(None);
    }
    let out = Deleted {
        n: 1,
        before: req.images.then(|| before.to_buf()),
    };
    let at = stmt.at;
    write.commit(ctx, stmt.retry.as_deref_mut(), || {
        vec![StmtResult {
            at,
            n: 1,
            image: out.before.clone(),
            ..Default::default()
        }]
    })?;
    Ok(Some(out))
}

fn read_request<'a>(req: &DeleteRequest<'a>) -> ReadRequest<'a> {
    ReadRequest {
        hint: req.hint.clone(),
        vars: req.vars.clone(),
        ..ReadRequest::new(req.filter)
    }
}

/// Deletes all matches, in batches. Not atomic as a whole, as in MongoDB.
fn delete_many(ctx: &mut OpCtx, ns: &str, req: &DeleteRequest) -> Result<Deleted> {
    delete_in_parts(ctx, ns, &read_request(req), |_| Ok(Some(())))
}

/// The same of documents by no session, each batch while what `hold` gives is held; until it gives
/// nothing.
pub fn delete_in_parts<G>(
    ctx: &mut OpCtx,
    ns: &str,
    req: &ReadRequest,
    mut hold: impl FnMut(&OpCtx) -> Result<Option<G>>,
) -> Result<Deleted> {
    ctx.need_worker()?;
    ctx.flush_own();
    let mut out = Deleted::default();
    let Some(mut batches) = CandidateBatches::open(ctx, ns, req)? else {
        return Ok(out);
    };
    loop {
        let keys = batches.next(ctx)?;
        if keys.is_empty() {
            return Ok(out);
        }
        let decide = |_: &OpCtx, _: &Collection, before: Doc<'_>| {
            let matches = crate::read::step::test(req.filter, before, req.vars.as_deref())?;
            Ok(if matches {
                Decision::Delete
            } else {
                Decision::Skip
            })
        };
        let Some(_held) = hold(ctx)? else {
            return Ok(out);
        };
        let (deleted, _) = batches.change(ctx, &keys, "deleted from", decide)?;
        out.n += deleted;
        if batches.unread {
            ctx.examined.docs += deleted;
        }
    }
}
