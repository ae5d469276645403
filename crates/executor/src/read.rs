//! Reading: from a plan to documents, in order.
//!
//! [`RecordStream`] gives the records that match, one at a time, in the order asked for; skip, limit and projection are its users'.
//! Index scans gather record keys and fetch them in batches. Between batches of a cursor nothing of the engine is held but
//! the snapshot ([`RecordStream::release`]).

use self::top_k::Narrow;
use crate::op::OpCtx;
use crate::read::index_scan::{IndexScan, Position, RecordScan};
use crate::read::sorter::{Sorted, Sorter};
use crate::read::union::Union;
use bson::{Doc, Value};
use catalog::keyspace::PREFIX;
use catalog::{Collection, Index};
use errors::{Error, Result, bail};
pub(crate) mod dedup;
pub(crate) mod distinct;
pub(crate) mod find;
pub(crate) mod idle;
pub(crate) mod index_scan;
pub(crate) mod merge;
pub(crate) mod multi_range;
pub(crate) mod request;
pub(crate) mod skip_scan;
pub(crate) mod sorter;
pub(crate) mod tail;
pub(crate) mod union;
pub(crate) mod zones;

pub use distinct::{distinct, distinct_of, distinct_plan};
pub use find::{FindCursor, FindRequest};
use planner::{Access, IndexAccess, Plan};
use query::filter::Filter;
use query::sort::SortPattern;
pub use request::ReadRequest;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use storage::{Slice, View};
pub use tail::TailCursor;
pub use zones::ZoneMaps;

/// A document up to this length is copied to outlast a batch of its cursor, in bytes.
pub(crate) const KEPT_BYTES: usize = 16 << 10;

/// What a plan has examined so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Examined {
    pub keys: u64,
    pub docs: u64,
    /// Seeks: to the start of a range, and within it past what later fields exclude.
    pub seeks: u64,
}

/// The document that a source stands on.
pub(crate) enum Current {
    None,
    /// The scan's own value.
    Scanned,
    Fetched(Slice),
    Built(Vec<u8>),
    /// The record of the current key, to be read again.
    Left,
}

pub(crate) enum Source {
    Eof,
    Ids { ids: Vec<Value>, at: usize },
    Records(RecordScan),
    Index(Box<IndexScan>),
    Or(Box<Union>),
    Merge(Box<crate::read::merge::Merge>),
    Sorted(Sorted),
}

/// A step of some rows' source: of fields, so that the source is still free.
macro_rules! step {
    ($rows:expr) => {
        Step {
            view: &$rows.view,
            coll: &$rows.coll,
            vars: $rows.vars.as_deref(),
            examined: &mut $rows.examined,
            record_key: &mut $rows.record_key,
        }
    };
}

mod top_k;

/// A blocking sort of some rows.
enum Order {
    /// None is wanted, or it is made.
    There,
    /// The order, and how many results of it are wanted.
    Wanted(SortPattern, Option<u64>),
    /// Some rows are in it; it was interrupted.
    Begun(Box<Sorter>),
    /// The same, where not all rows are read.
    Narrow(Box<Narrow>),
}

pub struct RecordStream {
    view: View,
    pub(crate) coll: Arc<Collection>,
    pub(crate) plan: Arc<Plan>,
    source: Source,
    vars: Option<Arc<query::expr::Vars>>,
    current: Current,
    record_key: Vec<u8>,
    /// The order to be made first.
    order: Order,
    /// A row that had been fetched was lost to an error.
    lost: bool,
    /// Whether that may go to temporary files.
    disk_use: bool,
    /// How many of the results will be skipped, as far as is known before the order is made; how many of these are not in it.
    will_skip: u64,
    passed: u64,
    pub examined: Examined,
    /// What the sort held at most, in bytes, and how many rows it saw.
    pub sort_bytes: usize,
    pub sort_rows: u64,
}

impl RecordStream {
    /// Plans and opens. Nothing is read yet.
    pub fn open(
        ctx: &mut OpCtx,
        view: View,
        coll: Arc<Collection>,
        req: &ReadRequest,
    ) -> Result<RecordStream> {
        let plan = Arc::new(req.plan(ctx.engine, &view, &coll, false)?);
        RecordStream::with_plan(ctx, view, coll, plan, req.limit, req.vars.clone())
    }

    pub fn with_plan(
        ctx: &mut OpCtx,
        view: View,
        coll: Arc<Collection>,
        plan: Arc<Plan>,
        limit: Option<u64>,
        vars: Option<Arc<query::expr::Vars>>,
    ) -> Result<RecordStream> {
        let batch_hint = if plan.sort.is_some() { None } else { limit };
        let source = open_source(&coll, &plan.access, plan.covered, batch_hint)?;
        count_uses(ctx, &coll, &plan.access);
        let order = match plan.sort.clone() {
            Some(pattern) => Order::Wanted(pattern, limit),
            None => Order::There,
        };
        if ctx.plan.is_none() {
            ctx.plan = Some(plan.clone());
        }
        Ok(RecordStream {
            view,
            coll,
            plan,
            source,
            vars,
            current: Current::None,
            record_key: Vec::new(),
            order,
            lost: false,
            disk_use: ctx.disk_use,
            will_skip: 0,
            passed: 0,
            examined: Examined::default(),
            sort_bytes: 0,
            sort_rows: 0,
        })
    }

    /// To the next result; `false` at the end.
    pub fn next(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        let before = self.examined;
        let more = match self.order {
            Order::There => self.next_unsorted(ctx),
            _ => self.make_order(ctx).and_then(|()| self.next_unsorted(ctx)),
        };
        ctx.examined.keys += self.examined.keys - before.keys;
        ctx.examined.docs += self.examined.docs - before.docs;
        more
    }

    /// Passes over `n` results, or those that are left of them; what the order and the index decide alone is never fetched.
    pub fn skip(&mut self, ctx: &mut OpCtx, n: &mut u64) -> Result<()> {
        let before = self.examined;
        let skipped = self.pass_over(ctx, n);
        ctx.examined.keys += self.examined.keys - before.keys;
        ctx.examined.docs += self.examined.docs - before.docs;
        skipped
    }

    fn pass_over(&mut self, ctx: &mut OpCtx, n: &mut u64) -> Result<()> {
        self.will_skip = *n;
        self.make_order(ctx)?;
        *n -= std::mem::take(&mut self.passed).min(*n);
        let trivial = self.plan.residual.is_trivial();
        match &mut self.source {
            Source::Sorted(s) => {
                *n -= s.skip(usize::try_from(*n).unwrap_or(usize::MAX))? as u64;
            }
            Source::Index(scan) if trivial => {
                let mut step = step!(self);
                let asked = *n;
                while *n > 0 && scan.next_entry(ctx, &mut step)? {
                    *n -= 1;
                }
                scan.skipped(asked - *n);
                *n = 0;
                return Ok(());
            }
            _ => {}
        }
        while *n > 0 && self.next_unsorted(ctx)? {
            *n -= 1;
        }
        *n = 0;
        Ok(())
    }

    /// Whether [`RecordStream::next_key`] tells keys without reading the documents.
    pub(crate) fn tells_keys(&self) -> bool {
        let known = match &self.source {
            Source::Ids { .. } => !self.coll.is_numbered(),
            Source::Index(_) => true,
            _ => false,
        };
        known && matches!(self.order, Order::There) && self.plan.residual.is_trivial()
    }

    /// To the next record that matches, for one who reads it anyway: its key is told and, if possible, no more. Where
    /// records lie under their `_id` there may be none under the key.
    pub(crate) fn next_key(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        if !self.tells_keys() {
            return self.next(ctx);
        }
        self.current = Current::None;
        let before = self.examined;
        let mut step = step!(self);
        let more = match &mut self.source {
            Source::Ids { ids, at } => {
                ctx.tick(1)?;
                let id = ids.get(*at);
                *at += 1;
                step.record_key.clear();
                if let Some(id) = id {
                    step.examined.keys += 1;
                    bson::key::encode(id.as_val(), false, step.record_key, None);
                }
                id.is_some()
            }
            Source::Index(scan) => scan.next_entry(ctx, &mut step)?,
            _ => false,
        };
        ctx.examined.keys += self.examined.keys - before.keys;
        ctx.examined.docs += self.examined.docs - before.docs;
        Ok(more)
    }

    fn next_unsorted(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        let trivial = self.plan.residual.is_trivial() || matches!(self.source, Source::Sorted(_));
        // Most of what a scan of records costs besides the engine would be the way through `step_source`.
        if trivial && let Source::Records(scan) = &mut self.source {
            ctx.tick(1)?;
            let more = scan.next(&self.view)?;
            self.examined.docs += u64::from(more);
            let now = if more {
                Current::Scanned
            } else {
                Current::None
            };
            if !matches!((&self.current, &now), (Current::Scanned, Current::Scanned)) {
                self.current = now;
            }
            return Ok(more);
        }
        loop {
            let mut step = step!(self);
            match step_source(&mut self.source, ctx, &mut step)? {
                None => {
                    self.current = Current::None;
                    return Ok(false);
                }
                Some(c) => self.current = c,
            }
            if trivial {
                return Ok(true);
            }
            match test(&self.plan.residual, self.doc(), self.vars.as_deref()) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(e) => {
                    self.lost = true;
                    return Err(e);
                }
            }
        }
    }

    /// The document of the current result.
    pub fn doc(&self) -> Doc<'_> {
        match &self.current {
            Current::None | Current::Left => Doc::EMPTY,
            Current::Scanned => doc_of_scan(&self.source),
            Current::Fetched(s) => Doc::new(s).unwrap_or(Doc::EMPTY),
            Current::Built(b) => Doc::new(b).unwrap_or(Doc::EMPTY),
        }
    }

    /// The record key of the current result, without the collection's prefix.
    pub fn record_key(&self) -> &[u8] {
        match (&self.current, &self.source) {
            (Current::Scanned, Source::Records(s)) => s.key().get(PREFIX..).unwrap_or(&[]),
            _ => &self.record_key,
        }
    }

    /// Sorts first, if the order has yet to be made.
    fn make_order(&mut self, ctx: &mut OpCtx) -> Result<()> {
        let mut sorter = match std::mem::replace(&mut self.order, Order::There) {
            Order::There => return Ok(()),
            Order::Begun(sorter) => sorter,
            Order::Narrow(narrow) => return self.make_narrow(ctx, narrow),
            Order::Wanted(pattern, limit) => {
                let sequence = self.view.sequence();
                if let Some(narrow) = Narrow::of(
                    &self.coll,
                    &self.plan,
                    &pattern,
                    limit,
                    sequence,
                    self.will_skip,
                ) {
                    return self.make_narrow(ctx, Box::new(narrow));
                }
                let limit = limit.and_then(|l| usize::try_from(l).ok());
                let limit = limit.filter(|l| *l > 0);
                Box::new(Sorter::new(ctx, pattern, limit, self.disk_use))
            }
        };
        loop {
            match self.next_unsorted(ctx) {
                Ok(true) => sorter
                    .add(ctx, self.doc(), self.record_key(), self.plan.covered)
                    .inspect_err(|_| self.lost = true)?,
                Ok(false) => break,
                Err(e) => {
                    self.order = Order::Begun(sorter);
                    return Err(e);
                }
            }
        }
        self.sort_bytes = sorter.peak_bytes();
        self.sort_rows = sorter.rows();
        top_k::note_wasted(ctx, &self.coll, &self.plan, &sorter);
        self.lost = true;
        self.source = Source::Sorted(sorter.finish(ctx)?);
        self.lost = false;
        Ok(())
    }

    /// Whether [`RecordStream::next`], having failed for want of records, may be called again: those that an index or a sort wants next are
    /// still to be told.
    pub(crate) fn can_go_on(&self) -> bool {
        match &self.source {
            _ if self.lost => false,
            _ if matches!(&self.order, Order::Narrow(n) if n.is_reading()) => true,
            Source::Index(scan) => scan.can_go_on(),
            Source::Sorted(sorted) => sorted.has_keys(),
            _ => false,
        }
    }

    /// Lets go of everything but the snapshot; the next `next` goes on from the same place.
    pub fn release(&mut self) {
        release_source(&mut self.source);
        if !matches!(self.current, Current::Built(_) | Current::Left) {
            self.current = Current::None;
        }
    }

    /// Makes the current result survive [`RecordStream::release`]: as a copy, or where that would be long by its key. To be called
    /// before it, and [`RecordStream::read_current`] before the result is asked for again.
    pub(crate) fn keep_current(&mut self) {
        self.record_key = self.record_key().to_vec();
        self.current = match self.doc().as_bytes() {
            // What was made of an index is in no record.
            long if long.len() > KEPT_BYTES && !self.plan.covered => Current::Left,
            short => Current::Built(short.to_vec()),
        };
    }

    /// Reads what [`RecordStream::keep_current`] has left; `false` when it is gone, which cannot be with a snapshot.
    pub(crate) fn read_current(&mut self) -> Result<bool> {
        if matches!(self.current, Current::Left) {
            let found = self.view.get(&self.coll.record_key(&self.record_key))?;
            self.current = found.map_or(Current::None, Current::Fetched);
        }
        Ok(!matches!(self.current, Current::None))
    }

    pub(crate) fn forget_current(&mut self) {
        self.current = Current::None;
    }

    pub(crate) fn is_cached_only(&self) -> bool {
        self.view.is_cached_only()
    }

    /// Reads from here on also what is not in the cache (`true`), or only what is.
    pub fn read_all(&mut self, all: bool) {
        self.release();
        self.view = if all {
            self.view.anywhere()
        } else {
            self.view.cached_only()
        };
    }
}

pub(crate) fn test(f: &Filter, doc: Doc<'_>, vars: Option<&query::expr::Vars>) -> Result<bool> {
    match vars {
        Some(v) => f.matches_with(doc, v),
        None => f.matches(doc),
    }
}

/// What one step of a source works with.
pub(crate) struct Step<'s> {
    pub view: &'s View,
    pub coll: &'s Arc<Collection>,
    pub vars: Option<&'s query::expr::Vars>,
    pub examined: &'s mut Examined,
    pub record_key: &'s mut Vec<u8>,
}

fn open_source(
    coll: &Arc<Collection>,
    access: &Access,
    covered: bool,
    limit: Option<u64>,
) -> Result<Source> {
    Ok(match access {
        Access::Eof => Source::Eof,
        Access::Ids(ids) => Source::Ids {
            ids: ids.clone(),
            at: 0,
        },
        Access::Records { low, high, reverse } => {
            Source::Records(RecordScan::new(coll, low, high, *reverse))
        }
        Access::Index(a) => Source::Index(Box::new(IndexScan::new(
            index(coll, a.index)?,
            a,
            covered,
            limit,
        ))),
        Access::Or(branches) => {
            let mut open = Vec::with_capacity(branches.len());
            for b in branches.iter() {
                open.push(open_source(coll, &b.access, false, None)?);
            }
            Source::Or(Box::new(Union::new(branches.clone(), open)))
        }
        Access::Merge(branches, pattern) => {
            let mut scans = Vec::with_capacity(branches.len());
            for b in branches.iter() {
                let index = index(coll, b.access.index)?;
                scans.push(IndexScan::new(index, &b.access, false, limit));
            }
            let merge = crate::read::merge::Merge::new(branches.clone(), scans, pattern.clone());
            Source::Merge(Box::new(merge))
        }
    })
}

fn index(coll: &Collection, id: u32) -> Result<Arc<Index>> {
    let i = coll
        .index(id)
        .ok_or_else(|| Error::internal("the plan names an index that is not there"))?;
    Ok(i.clone())
}

/// Counts each index once for a plan, however often the plan reads it.
fn count_uses(ctx: &mut OpCtx, coll: &Collection, access: &Access) {
    match access {
        Access::Eof => {}
        Access::Records { .. } if access.is_scan() => {}
        Access::Ids(_) | Access::Records { .. } => ctx.uses(&coll.id_index_accesses),
        Access::Index(a) => {
            if let Some(i) = coll.index(a.index) {
                ctx.uses(&i.accesses);
            }
        }
        Access::Or(_) | Access::Merge(..) => {
            let mut seen: Vec<&Arc<AtomicU64>> = Vec::new();
            gather_uses(coll, access, &mut seen);
            seen.into_iter().for_each(|accesses| ctx.uses(accesses));
        }
    }
}

fn gather_uses<'c>(coll: &'c Collection, access: &Access, out: &mut Vec<&'c Arc<AtomicU64>>) {
    let mut add = |accesses: &'c Arc<AtomicU64>| {
        if !out.iter().any(|a| Arc::ptr_eq(a, accesses)) {
            out.push(accesses);
        }
    };
    match access {
        Access::Eof => {}
        Access::Records { .. } if access.is_scan() => {}
        Access::Ids(_) | Access::Records { .. } => add(&coll.id_index_accesses),
        Access::Index(a) => coll
            .index(a.index)
            .into_iter()
            .for_each(|i| add(&i.accesses)),
        Access::Merge(scans, _) => scans
            .iter()
            .filter_map(|b| coll.index(b.access.index))
            .for_each(|i| add(&i.accesses)),
        Access::Or(branches) => branches
            .iter()
            .for_each(|b| gather_uses(coll, &b.access, out)),
    }
}

pub(crate) fn doc_of_scan(source: &Source) -> Doc<'_> {
    match source {
        Source::Records(s) => Doc::new(s.value()).unwrap_or(Doc::EMPTY),
        Source::Or(u) => u.scanned(),
        _ => Doc::EMPTY,
    }
}

pub(crate) fn step_source(
    source: &mut Source,
    ctx: &mut OpCtx,
    step: &mut Step,
) -> Result<Option<Current>> {
    match source {
        Source::Eof => Ok(None),
        Source::Ids { ids, at } => {
            while let Some(id) = ids.get(*at) {
                ctx.tick(1)?;
                let key = crate::records::locate(step.view, step.coll, id.as_val())?;
                let found = match &key {
                    Some(key) => step.view.get(key)?,
                    None => None,
                };
                *at += 1;
                step.examined.keys += 1;
                if let (Some(slice), Some(key)) = (found, key) {
                    step.examined.docs += 1;
                    step.record_key.clear();
                    step.record_key
                        .extend_from_slice(key.get(PREFIX..).unwrap_or(&[]));
                    return Ok(Some(Current::Fetched(slice)));
                }
            }
            Ok(None)
        }
        Source::Records(scan) => {
            ctx.tick(1)?;
            if scan.next(step.view)? {
                step.examined.docs += 1;
                Ok(Some(Current::Scanned))
            } else {
                Ok(None)
            }
        }
        Source::Index(scan) => scan.next(ctx, step),
        Source::Or(u) => u.next(ctx, step),
        Source::Merge(m) => m.next(ctx, step),
        Source::Sorted(s) => s.next(ctx, step),
    }
}

pub(crate) fn release_source(source: &mut Source) {
    match source {
        Source::Records(s) => s.release(),
        Source::Index(s) => s.release(),
        Source::Or(u) => u.release(),
        Source::Merge(m) => m.release(),
        Source::Sorted(s) => s.release(),
        Source::Eof | Source::Ids { .. } => {}
    }
}

/// Up to so many ranges are counted by a scan each, which costs least for each entry.
const FEW_RANGES: usize = 8;

/// How many records match, without giving them: `limit` and `skip` as count's.
pub fn count(ctx: &mut OpCtx, ns: &str, req: &ReadRequest, skip: u64, limit: u64) -> Result<u64> {
    let (view, Some(coll)) = ctx.view(ns) else {
        return Ok(0);
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
    let plan = Arc::new(req.plan(ctx.engine, &view, &coll, true)?);
    let most = if limit > 0 {
        Some(skip.saturating_add(limit))
    } else {
        None
    };
    if let Access::Index(a) = &plan.access
        && plan.residual.is_trivial()
    {
        let index = index(&coll, a.index)?;
        count_uses(ctx, &coll, &plan.access);
        if ctx.plan.is_none() {
            ctx.plan = Some(plan.clone());
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
                IndexScan::new(index, a, true, most),
                most,
            )?
        };
        return Ok(bounded(n));
    }
    let mut rows = RecordStream::with_plan(ctx, view, coll, plan, None, req.vars.clone())?;
    let mut n = 0;
    while Some(n) != most && rows.next(ctx)? {
        n += 1;
    }
    Ok(bounded(n))
}

/// How many entries the ranges of an index hold, where they are all that was asked for.
fn count_ranges(
    ctx: &mut OpCtx,
    view: &View,
    index: &Index,
    access: &IndexAccess,
    most: Option<u64>,
) -> Result<u64> {
    let mut n = 0;
    for (low, high) in Position::ranges(index, &access.bounds) {
        let mut scan = view.scan(&low, &high, storage::Direction::Forward);
        while Some(n) != most && scan.next()? {
            ctx.tick(1)?;
            n += 1;
        }
    }
    ctx.examined.keys += n;
    Ok(n)
}

/// How many entries a scan gives; no document is built or fetched.
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
