//! Counts matching records, where possible without reading them.

use crate::examined::Examined;
use crate::op::OpCtx;
use crate::read::index_scan::{IndexScan, Position};
use crate::read::source::{count_uses, index};
use crate::read::step::Step;
use crate::read::text;
use crate::read::{ReadRequest, RecordStream};
use crate::records;
use catalog::{Collection, Index};
use errors::{Result, bail};
use planner::{Access, IndexAccess};
use std::sync::Arc;
use storage::View;

/// Up to so many ranges are counted by one scan each, the cheapest way for each entry.
const FEW_RANGES: usize = 8;

/// Whether the operation sees records in a collection.
pub fn has_records(ctx: &OpCtx, ns: &str) -> Result<bool> {
    match ctx.view(ns) {
        (view, Some(coll)) => Ok(!records::none(&view, &coll)?),
        _ => Ok(false),
    }
}

/// The number of matching records; `limit` and `skip` as in the count command.
pub fn count(ctx: &mut OpCtx, ns: &str, req: &ReadRequest, skip: u64, limit: u64) -> Result<u64> {
    let (view, Some(coll)) = ctx.view(ns) else {
        return text::bound(req.filter, None).map(|_| 0);
    };
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    let bounded = |n: u64| {
        let n = n.saturating_sub(skip);
        if limit > 0 { n.min(limit) } else { n }
    };
    if req.filter.is_trivial() && req.hint.is_none() {
        return Ok(bounded(ctx.engine.store.counts(coll.tablet).0));
    }
    let choice = req.choose_timed(ctx, &view, &coll, true)?;
    let most = if limit > 0 {
        Some(skip.saturating_add(limit))
    } else {
        None
    };
    if let Access::Index(a) = &choice.plan.access
        && choice.plan.residual.is_trivial()
    {
        let plan = &choice.plan;
        let index = index(&coll, a.index)?;
        count_uses(ctx, &coll, &plan.access);
        if ctx.plan.is_none() {
            ctx.runs_plan(&Arc::new(plan.clone()));
        }
        let planner::Bounds::Ranges(ranges) = &a.bounds;
        let bare = a.key_filter.is_empty() && a.skip.is_empty() && !a.dedup;
        let n = if bare && ranges.len() <= FEW_RANGES {
            count_ranges(ctx, &view, &index, a, most)?
        } else {
            count_entries(
                ctx,
                &view,
                &coll,
                IndexScan::new(index, a, true, most)?,
                most,
            )?
        };
        return Ok(bounded(n));
    }
    // A race of plans ends where there is enough.
    let enough = ReadRequest {
        limit: most,
        ..req.clone()
    };
    let mut rows = RecordStream::open_chosen(ctx, view, coll, choice, &enough)?;
    let mut n = 0;
    while Some(n) != most && rows.next(ctx)? {
        n += 1;
    }
    Ok(bounded(n))
}

/// The number of entries in an index's ranges, when they alone answer the count.
fn count_ranges(
    ctx: &mut OpCtx,
    view: &View,
    index: &Index,
    access: &IndexAccess,
    most: Option<u64>,
) -> Result<u64> {
    let mut n = 0;
    for (low, high) in Position::ranges(index, &access.bounds)? {
        let mut scan = view.scan(&low, &high, storage::Direction::Forward);
        while Some(n) != most && scan.next()? {
            ctx.tick(1)?;
            n += 1;
        }
    }
    ctx.examined.keys += n;
    Ok(n)
}

/// The number of entries that a scan gives; no document is built or fetched.
fn count_entries(
    ctx: &mut OpCtx,
    view: &View,
    coll: &Arc<Collection>,
    mut scan: IndexScan,
    most: Option<u64>,
) -> Result<u64> {
    let (mut examined, mut record_key) = (Examined::default(), Vec::new());
    let mut n = 0;
    loop {
        let mut step = Step {
            view,
            coll,
            vars: None,
            examined: &mut examined,
            record_key: &mut record_key,
        };
        if Some(n) == most || !scan.next_entry(ctx, &mut step)? {
            ctx.examined.keys += examined.keys;
            ctx.examined.docs += examined.docs;
            ctx.examined.seeks += examined.seeks;
            return Ok(n);
        }
        n += 1;
    }
}
