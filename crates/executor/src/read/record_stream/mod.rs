//! Record stream: the matching records, one at a time, in the requested order. Its users add skip,
//! limit and projection.
//!
//! Between batches of a cursor only the snapshot is held ([`RecordStream::release`]).

use self::race::{Kept, Late};
use self::top_k::TopK;
use crate::examined::Examined;
use crate::op::OpCtx;
use crate::read::ReadRequest;
use crate::read::measure::Measure;
use crate::read::sorter::Sorter;
use crate::read::source::{
    Source, count_uses, doc_of_scan, open_source, release_source, step_source,
};
use crate::read::step::{Current, KEPT_BYTES, Step, test};
use crate::records;
use bson::Doc;
use catalog::Collection;
use errors::{Error, Result, Stop};
use planner::{Choice, Plan, Reads};
use query::sort::SortPattern;
use std::sync::Arc;
use storage::View;

/// Makes a [`Step`] from the stream's fields, so that the source can be borrowed separately.
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

mod race;
pub use race::Trial;
mod top_k;

/// The state of a blocking sort.
enum Order {
    /// No sort is needed, or it is done.
    There,
    /// The requested order, and the number of wanted results.
    Wanted(SortPattern, Option<u64>),
    /// An interrupted sort that already has some rows.
    Begun(Box<Sorter>),
    /// A top-k sort.
    Narrow(Box<TopK>),
    /// Rows that a race of plans has found come first.
    Kept(Kept),
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
    /// Whether a fetched row was lost because of an error.
    lost: bool,
    /// Whether the sort may use temporary files.
    disk_use: bool,
    /// The number of results that will be skipped, as known before the sort; and how many of these
    /// the sort has already left out.
    will_skip: u64,
    passed: u64,
    /// The plans that may join while no result was given.
    late: Option<Box<Late>>,
    pub examined: Examined,
    /// The peak memory of the sort in bytes, and the number of rows it saw.
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
        let choice = req.choose_timed(ctx, &view, &coll, false)?;
        RecordStream::open_chosen(ctx, view, coll, choice, req)
    }

    /// Runs plans of one request against each other until one has a first batch, for explain.
    pub fn try_plans(
        ctx: &mut OpCtx,
        view: &View,
        coll: &Arc<Collection>,
        plans: impl Iterator<Item = Plan>,
        req: &ReadRequest,
    ) -> Result<Vec<Trial>> {
        race::try_plans(ctx, view, coll, plans, req)
    }

    /// Opens a chosen plan. Nothing is read yet, unless only that can tell which plan is the best.
    pub(crate) fn open_chosen(
        ctx: &mut OpCtx,
        view: View,
        coll: Arc<Collection>,
        choice: Choice,
        req: &ReadRequest,
    ) -> Result<RecordStream> {
        let counted = choice.counted;
        let is_watched = choice.watch.is_some() && !choice.others.is_empty() && !ctx.only_plans;
        let mut rows =
            match is_watched || choice.watch.is_none() && choice.others.iter().any(|o| o.rival) {
                true => race::race(ctx, view, coll, choice, req)?,
                false => {
                    let late = Late::of(choice.wider, req).filter(|_| !ctx.only_plans);
                    let (plan, vars) = (Arc::new(choice.plan), req.vars.clone());
                    let rows = RecordStream::with_plan(ctx, view, coll, plan, req.limit, vars)?;
                    RecordStream { late, ..rows }
                }
            };
        rows.examined.planning += counted;
        ctx.examined.planning += counted;
        Ok(rows)
    }

    pub fn with_plan(
        ctx: &mut OpCtx,
        view: View,
        coll: Arc<Collection>,
        plan: Arc<Plan>,
        limit: Option<u64>,
        vars: Option<Arc<query::expr::Vars>>,
    ) -> Result<RecordStream> {
        let rows = RecordStream::begin(ctx, view, coll, plan, limit, vars)?;
        rows.is_run(ctx);
        Ok(rows)
    }

    /// The plan is the one that answers the operation.
    fn is_run(&self, ctx: &mut OpCtx) {
        count_uses(ctx, &self.coll, &self.plan.access);
        ctx.runs_plan(&self.plan);
    }

    /// The state that it reads.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Whether it has not begun and gives what it scans, as it comes, or sorted after all was read.
    pub(crate) fn is_plain_scan(&self, to_sort: bool) -> bool {
        let ordered = match &self.order {
            Order::There => !to_sort,
            Order::Wanted(by, limit) if to_sort => {
                let sequence = self.view.sequence();
                TopK::of(&self.coll, &self.plan, by, *limit, sequence, 0).is_none()
            }
            _ => false,
        };
        ordered && matches!(self.current, Current::None) && self.late.is_none()
    }

    /// Opens the part of a plan that another stream has.
    pub(crate) fn begin(
        ctx: &OpCtx,
        view: View,
        coll: Arc<Collection>,
        plan: Arc<Plan>,
        limit: Option<u64>,
        vars: Option<Arc<query::expr::Vars>>,
    ) -> Result<RecordStream> {
        let batch_hint = if plan.sort.is_some() { None } else { limit };
        // What a search has found so far cannot be found again half-way.
        if matches!(plan.access, planner::Access::Near(_)) {
            ctx.need_worker()?;
        }
        let source = open_source(&coll, &plan.access, plan.covered, batch_hint)?;
        let order = match plan.sort.clone() {
            Some(pattern) => Order::Wanted(pattern, limit),
            None => Order::There,
        };
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
            late: None,
            examined: Examined::default(),
            sort_bytes: 0,
            sort_rows: 0,
        })
    }

    /// To the next result; `false` at the end.
    pub fn next(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        match self.late {
            None => self.next_counted(ctx),
            Some(_) => self.next_or_join(ctx),
        }
    }

    /// As long as nothing was given: when much was read for that, others join, and the stream becomes that of the one which
    /// wins.
    fn next_or_join(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        let more = loop {
            // An event loop ends its turns itself, and a worker goes on.
            if ctx.may_offload() {
                break self.next_counted(ctx);
            }
            let left = Late::AFTER.saturating_sub(race::cost(&self.examined));
            if left == 0 {
                let late = self.late.take();
                race::join(ctx, self, late.map(|l| *l).unwrap_or_default())?;
                break self.next_counted(ctx);
            }
            ctx.begin_turn(left);
            let more = self.next_counted(ctx);
            if !(ctx.end_turn() && more.as_ref().is_err_and(Stop::is_suspension)) {
                break more;
            }
        };
        if matches!(more, Ok(true)) {
            self.late = None;
        }
        more
    }

    fn next_counted(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        let before = self.examined;
        let more = match self.order {
            Order::There => self.next_unsorted(ctx),
            _ => self.next_in_order(ctx),
        };
        ctx.examined.keys += self.examined.keys - before.keys;
        ctx.examined.docs += self.examined.docs - before.docs;
        more
    }

    /// Skips up to `n` results. Records are not fetched where order and index alone decide.
    pub fn skip(&mut self, ctx: &mut OpCtx, n: &mut u64) -> Result<()> {
        while self.late.is_some() && *n > 0 {
            *n = match self.next(ctx)? {
                true => *n - 1,
                false => 0,
            };
        }
        let before = self.examined;
        let skipped = self.pass_over(ctx, n);
        ctx.examined.keys += self.examined.keys - before.keys;
        ctx.examined.docs += self.examined.docs - before.docs;
        skipped
    }

    fn pass_over(&mut self, ctx: &mut OpCtx, n: &mut u64) -> Result<()> {
        self.will_skip = *n;
        while *n > 0 && self.next_kept() {
            *n -= 1;
        }
        if *n == 0 {
            return Ok(());
        }
        self.make_order(ctx)?;
        *n -= std::mem::take(&mut self.passed).min(*n);
        // A race has gathered more than it has kept.
        while *n > 0 && matches!(&self.source, Source::Index(scan) if scan.has_gathered()) {
            if !self.next_unsorted(ctx)? {
                break;
            }
            *n -= 1;
        }
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

    fn next_in_order(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        if self.next_kept() {
            return Ok(true);
        }
        self.make_order(ctx)?;
        self.next_unsorted(ctx)
    }

    /// To the next of the rows that a race has kept; `false` behind them.
    fn next_kept(&mut self) -> bool {
        let Order::Kept(kept) = &mut self.order else {
            return false;
        };
        if let Some((key, doc)) = kept.next() {
            self.record_key = key;
            self.current = Current::Built(doc);
            return true;
        }
        if let Order::Kept(kept) = std::mem::replace(&mut self.order, Order::There) {
            self.order = kept.then();
        }
        false
    }

    /// Whether [`RecordStream::next_key`] gives keys without reading documents.
    pub(crate) fn tells_keys(&self) -> bool {
        let known = match &self.source {
            Source::Ids { .. } => !self.coll.is_numbered(),
            Source::Index(scan) => !scan.has_gathered(),
            _ => false,
        };
        known && matches!(self.order, Order::There) && self.plan.residual.is_trivial()
    }

    /// Moves to the next matching record, for a caller that will read the record itself: gives its
    /// key and, if possible, nothing more. Where records lie under their `_id` the record need not
    /// exist.
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
        // A shortcut: besides the engine, `step_source` would be most of the cost of a record scan.
        if trivial && let Source::Records(scan) = &mut self.source {
            ctx.tick(1)?;
            let more = scan.next(&self.view)?;
            if more {
                records::stored(&self.coll, scan.key(), scan.value())?;
            }
            self.examined.docs += u64::from(more) + scan.take_passed();
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

    /// What the plan reads from its beginning to its end, where that was counted or is estimated.
    pub(crate) fn expected_reads(&self, ctx: &mut OpCtx) -> Result<Reads> {
        let measure = Measure::new(ctx.engine, &self.view, &self.coll, None);
        let reads = measure.reads(&[&self.plan.access]);
        ctx.examined.planning += measure.counted();
        match (measure.stopped(), reads.first()) {
            (Some(stop), _) => Err(stop),
            (None, reads) => Ok(reads.copied().unwrap_or_default()),
        }
    }

    /// Results whose `_id` is not before `low`, and before `high`, need not come. Only a scan of
    /// records in the order of `_id` passes over them.
    pub(crate) fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        if self.coll.is_numbered() || self.coll.collation.is_some() {
            return;
        }
        if let Source::Records(scan) = &mut self.source {
            let key = |id: Doc<'_>| self.coll.record_key(&bson::key::of(id.as_val()));
            scan.leave_out(key(low), key(high));
        }
    }

    /// The document of the current result.
    pub fn doc(&self) -> Doc<'_> {
        match &self.current {
            Current::Scanned => doc_of_scan(&self.source),
            held => held.doc().expect("a result that was not let go"),
        }
    }

    /// The record key of the current result, without the collection's prefix.
    pub fn record_key(&self) -> &[u8] {
        match (&self.current, &self.source) {
            (Current::Scanned, Source::Records(s)) => records::own_part(s.key()),
            _ => &self.record_key,
        }
    }

    /// Performs the sort, if it is not done yet.
    fn make_order(&mut self, ctx: &mut OpCtx) -> Result<()> {
        let mut sorter = match std::mem::replace(&mut self.order, Order::There) {
            Order::There => return Ok(()),
            Order::Kept(kept) => {
                self.order = Order::Kept(kept);
                return Err(Error::internal("rows of a race are left").into());
            }
            Order::Begun(sorter) => sorter,
            Order::Narrow(narrow) => return self.make_narrow(ctx, narrow),
            Order::Wanted(pattern, limit) => {
                let sequence = self.view.sequence();
                if let Some(narrow) = TopK::of(
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
                let mut sorter = Box::new(Sorter::new(ctx, pattern, limit, self.disk_use));
                sorter.score_by(&self.plan);
                sorter
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

    /// Whether [`RecordStream::next`] may be called again after it failed for want of records:
    /// nothing that was read is lost.
    pub(crate) fn can_go_on(&self) -> bool {
        match &self.source {
            _ if self.lost => false,
            _ if matches!(&self.order, Order::Narrow(n) if n.is_reading()) => true,
            Source::Index(scan) => scan.can_go_on(),
            Source::Sorted(sorted) => sorted.has_keys(),
            _ => false,
        }
    }

    /// Releases everything but the snapshot; the next `next` continues at the same place.
    pub fn release(&mut self) {
        release_source(&mut self.source);
        if !matches!(self.current, Current::Built(_) | Current::Left) {
            self.current = Current::None;
        }
    }

    /// Keeps the current result across [`RecordStream::release`]: as a copy, or, when it is long,
    /// by its key. Called before `release`; [`RecordStream::read_current`] restores the result.
    pub(crate) fn keep_current(&mut self) {
        self.record_key = self.record_key().to_vec();
        self.current = match self.doc().as_bytes() {
            // A document built from an index cannot be read again.
            long if long.len() > KEPT_BYTES && !self.plan.covered => Current::Left,
            short => Current::Built(short.to_vec()),
        };
    }

    /// Restores what [`RecordStream::keep_current`] kept; `false` when the record is gone, which a
    /// snapshot rules out.
    pub(crate) fn read_current(&mut self) -> Result<bool> {
        if matches!(self.current, Current::Left) {
            let found = self.view.get(&self.coll.record_key(&self.record_key))?;
            if let Some(record) = &found {
                records::stored(&self.coll, &self.record_key, record)?;
            }
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

    /// From here on reads may go to the disk (`true`), or are answered from memory only.
    pub fn read_all(&mut self, all: bool) {
        self.release();
        self.view = if all {
            self.view.anywhere()
        } else {
            self.view.cached_only()
        };
    }
}
