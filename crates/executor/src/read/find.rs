//! Find cursor: skip, limit and projection over [`RecordStream`].

use crate::examined::Examined;
use crate::interrupt::Interrupt;
use crate::op::OpCtx;
use crate::read::RecordStream;
use crate::read::index_scan::{Position, behind};
use crate::read::request::ReadRequest;
use crate::read::step::built;
use crate::read::text;
use crate::records::{self, latch_hash};
use bson::{Doc, DocBuf, Val, Writer};
use catalog::Collection;
use catalog::keyspace;
use catalog::numbers::sequence_of;
use errors::{Error, Result, bail};
use planner::{Access, Bounds, Hint, IndexAccess, Plan, Reads};
use query::expr::Vars;
use query::filter::{Filter, nearest};
use query::index_keys::KeySet;
use query::metadata::Metadata;
use query::pipeline::geo_near;
use query::projection::Projection;
use query::sort::SortPattern;
use std::borrow::Cow;
use std::sync::Arc;

/// A parsed find. Owned, so that a cursor can keep what it needs.
pub struct FindRequest<'a> {
    pub filter: Filter,
    pub sort: Option<SortPattern>,
    pub projection: Option<Projection>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub hint: Option<Hint>,
    pub min: Option<Doc<'a>>,
    pub max: Option<Doc<'a>>,
    pub vars: Arc<Vars>,
    pub show_record_id: bool,
    pub return_key: bool,
    /// The plan, if one is already chosen.
    pub plan: Option<Arc<Plan>>,
}

impl FindRequest<'_> {
    pub fn new(filter: Filter) -> FindRequest<'static> {
        FindRequest {
            filter,
            sort: None,
            projection: None,
            skip: 0,
            limit: None,
            hint: None,
            min: None,
            max: None,
            vars: Arc::default(),
            show_record_id: false,
            return_key: false,
            plan: None,
        }
    }
}

/// The shape of a result: how a document is projected on its way into a batch.
pub(crate) struct Shape {
    pub projection: Option<Projection>,
    /// It asks for the score of a text.
    shows_score: bool,
    vars: Arc<Vars>,
    show_record_id: bool,
    return_key: bool,
    /// Records are scanned in `_id` order, so `_id` counts as the index that found them.
    by_id: bool,
    scratch: Vec<u8>,
}

impl Shape {
    pub(crate) fn new(
        projection: Option<Projection>,
        vars: Arc<Vars>,
        show_record_id: bool,
        return_key: bool,
    ) -> Shape {
        Shape {
            shows_score: projection
                .as_ref()
                .is_some_and(|p| p.asks_for("textScore") || p.asks_for("score")),
            projection,
            vars,
            show_record_id,
            return_key,
            by_id: false,
            scratch: Vec::new(),
        }
    }

    /// Whether documents are returned unchanged.
    #[inline]
    fn is_plain(&self) -> bool {
        self.projection.is_none() && !self.show_record_id && !self.return_key
    }

    /// Shapes a document that `filter` matched. `plan`: the plan that found it; `None` for a
    /// collection scan.
    pub(crate) fn apply<'d>(
        &'d mut self,
        filter: &Filter,
        doc: Doc<'d>,
        coll: &Collection,
        plan: Option<&Plan>,
        record_key: &[u8],
    ) -> Result<Doc<'d>> {
        if self.is_plain() {
            return Ok(doc);
        }
        self.scratch.clear();
        if self.return_key {
            let key = index_key(doc, coll, plan, self.by_id)?;
            self.scratch.extend_from_slice(key.as_bytes());
        } else if let Some(p) = &self.projection {
            let matched = if p.needs_match_index() {
                filter.first_matched_index(doc, &self.vars)?.flatten()
            } else {
                None
            };
            let known = match plan.filter(|_| self.shows_score) {
                Some(plan) => text::metadata(plan, doc),
                None => Metadata::default(),
            };
            match plan
                .filter(|_| p.reads_near())
                .and_then(|p| near_of(p, doc))
            {
                None => p.apply_with(doc, matched, &self.vars, &known, &mut self.scratch)?,
                Some((distance, shape)) => {
                    let doc = geo_near::with_meta(doc, distance, shape);
                    p.apply_with(built(&doc), matched, &self.vars, &known, &mut self.scratch)?;
                    self.scratch = geo_near::without_meta(built(&self.scratch));
                }
            }
            if !p.index_key_fields().is_empty() {
                let key = index_key(doc, coll, plan, self.by_id)?;
                if !key.as_doc().is_empty() {
                    let mut w = Writer::with_capacity(self.scratch.len() + key.as_bytes().len());
                    w.extend(built(&self.scratch));
                    for name in p.index_key_fields() {
                        w.doc(name, key.as_doc());
                    }
                    self.scratch = w.finish().into_vec();
                }
            }
        } else {
            self.scratch.extend_from_slice(doc.as_bytes());
        }
        if self.show_record_id && !self.return_key {
            let mut w = Writer::with_capacity(self.scratch.len() + 32);
            w.extend(built(&self.scratch));
            record_id(&mut w, coll, record_key);
            self.scratch = w.finish().into_vec();
        }
        Ok(self.shaped())
    }

    fn shaped(&self) -> Doc<'_> {
        built(&self.scratch)
    }
}

/// `$recordId`: the sequence number where records have one, or the key itself in a clustered
/// collection. Other records have no number; a hash of the key, which is stable for an `_id`,
/// stands for it.
fn record_id(w: &mut Writer, coll: &Collection, record_key: &[u8]) {
    const NAME: &str = "$recordId";
    match sequence_of(record_key).filter(|_| coll.is_numbered()) {
        Some(n) => w.i64(NAME, n as i64),
        None if coll.option("clusteredIndex").is_some() => w.binary(NAME, 0, record_key),
        None => w.i64(NAME, latch_hash(record_key) as i64 & i64::MAX),
    };
}

/// How far a document is from the point that its plan looked near to, and its nearest shape.
fn near_of<'d>(plan: &Plan, doc: Doc<'d>) -> Option<(f64, Val<'d>)> {
    match &plan.access {
        Access::Near(a) => nearest(&a.path, &a.test.near, doc),
        _ => None,
    }
}

/// `returnKey`: the document's fields in the index that found it; empty without an index, and where
/// a text index did.
fn index_key(
    doc: Doc<'_>,
    coll: &Collection,
    plan: Option<&Plan>,
    ordered: bool,
) -> Result<DocBuf> {
    let by_id = || {
        let mut w = Writer::new();
        w.val("_id", doc.get("_id").unwrap_or(Val::NULL));
        Ok(w.finish())
    };
    match plan.filter(|p| p.text.is_none()).map(|p| (&p.access, p)) {
        Some((Access::Index(a), _)) => {
            let Some(index) = coll.index(a.index) else {
                return Ok(DocBuf::new());
            };
            let mut keys = KeySet::default();
            index.info.key.extract(doc, false, &mut keys)?;
            let inside = |k: &[u8]| a.holds(&index.info.key.fields, k);
            let found = keys.iter().find(|(k, _)| inside(k));
            // A sparse index may have none.
            let Some((k, types)) = found.or(keys.iter().next()) else {
                return Ok(DocBuf::new());
            };
            let shown = index.info.key.decode(k, types, false);
            let shown = shown.ok_or_else(|| records::damaged_entry(index))?;
            Ok(match index.info.key.collation() {
                Some(_) => in_hex(shown.as_doc()),
                None => shown,
            })
        }
        Some((Access::Ids(_), _)) => by_id(),
        Some((Access::Records { .. }, p)) if ordered || !p.id_bounds.is_empty() => by_id(),
        _ => Ok(DocBuf::new()),
    }
}

/// A key whose strings are a collation's, which are no text: in hexadecimal, as errors tell them.
fn in_hex(key: Doc<'_>) -> DocBuf {
    use bson::hex_text::{Strings, in_hex};
    let mut w = Writer::new();
    for e in key {
        w.val(e.name, in_hex(e.val, Strings::All, "").0.as_val());
    }
    w.finish()
}

/// An open query. Send and owned: it lives in the cursor registry between batches.
pub struct FindCursor {
    rows: RecordStream,
    filter: Filter,
    shape: Shape,
    skip: u64,
    left: Option<u64>,
    /// The current result of `rows` did not fit into the last batch.
    pending: bool,
    /// A search for the next result is under way.
    seeking: bool,
    pub returned: u64,
    /// Present when expressions are evaluated.
    interrupt: Option<Arc<Interrupt>>,
    /// The metadata of the current result, if requested.
    known: Metadata,
    wants_score: bool,
    wants_index_key: bool,
}

/// The range of the keyspace that a cursor scans forward: bounds behind a prefix, an empty `high` is the prefix's end.
pub(crate) struct ScannedRange<'c> {
    pub prefix: &'c keyspace::Prefix,
    pub low: &'c [u8],
    pub high: &'c [u8],
    /// Each of its entries stands for a document elsewhere.
    pub is_index: bool,
}

impl ScannedRange<'_> {
    /// Its first key, or its last one, without the prefix.
    pub(crate) fn end(&self, view: &storage::View, last: bool) -> Result<Option<Vec<u8>>> {
        let (low, high) = behind(self.prefix, self.low, self.high);
        let mut at = Position::new(low, high, last);
        let found = at.next(view)?;
        let key = found.then(|| {
            at.key()
                .get(self.prefix.len()..)
                .unwrap_or_default()
                .to_vec()
        });
        Ok(key)
    }
}

/// A part of the range that a cursor scans.
pub(crate) struct FindPart {
    view: storage::View,
    coll: Arc<Collection>,
    plan: Arc<Plan>,
    filter: Filter,
    projection: Option<Projection>,
}

impl FindPart {
    /// Its results, with variables of their own.
    pub(crate) fn open(self, ctx: &OpCtx, vars: &Arc<Vars>) -> Result<FindCursor> {
        let own = self.filter.wants_vars().then(|| vars.clone());
        let rows = RecordStream::begin(ctx, self.view, self.coll, self.plan, None, own)?;
        let shape = Shape::new(self.projection, vars.clone(), false, false);
        Ok(FindCursor::of(rows, self.filter, shape))
    }
}

impl FindCursor {
    fn of(rows: RecordStream, filter: Filter, shape: Shape) -> FindCursor {
        FindCursor {
            rows,
            filter,
            shape,
            skip: 0,
            left: None,
            pending: false,
            seeking: false,
            returned: 0,
            interrupt: None,
            known: Metadata::default(),
            wants_score: false,
            wants_index_key: false,
        }
    }

    /// The range that it scans, if it has not begun, and gives all that match as they come; `to_sort`: the first of them
    /// in an order for which it reads all.
    pub(crate) fn scans_forward(&self, to_sort: bool) -> Option<ScannedRange<'_>> {
        let plan = &*self.rows.plan;
        let is_plain = (to_sort || self.skip == 0 && self.left.is_none())
            && !self.wants_score
            && !self.wants_index_key
            && plan.text.is_none()
            && self.rows.is_plain_scan(to_sort);
        let coll = self.collection();
        match &plan.access {
            _ if !is_plain || coll.capped.is_some() => None,
            Access::Records {
                low,
                high,
                reverse: false,
            } => Some(ScannedRange {
                prefix: &coll.record_prefix,
                low,
                high,
                is_index: false,
            }),
            Access::Index(a)
                if !a.reverse && !a.dedup && a.distinct.is_none() && a.skip.is_empty() =>
            {
                let Bounds::Ranges(ranges) = &a.bounds;
                let [(low, high)] = ranges.as_slice() else {
                    return None;
                };
                Some(ScannedRange {
                    prefix: &coll.index(a.index)?.prefix,
                    low,
                    high,
                    is_index: true,
                })
            }
            _ => None,
        }
    }

    /// The state that it reads.
    pub(crate) fn view(&self) -> &storage::View {
        self.rows.view()
    }

    /// What of it lies between two bounds of the range that it scans.
    pub(crate) fn part(&self, (low, high): (&[u8], &[u8])) -> FindPart {
        let (low, high) = (low.to_vec(), high.to_vec());
        let access = match &self.rows.plan.access {
            Access::Index(a) => Access::Index(Arc::new(IndexAccess {
                bounds: Bounds::Ranges(vec![(low, high)]),
                ..IndexAccess::clone(a)
            })),
            _ => Access::Records {
                low,
                high,
                reverse: false,
            },
        };
        FindPart {
            view: self.rows.view().clone(),
            coll: self.rows.coll.clone(),
            plan: Arc::new(Plan {
                access,
                sort: None,
                ..Plan::clone(&self.rows.plan)
            }),
            filter: self.filter.clone(),
            projection: self.shape.projection.clone(),
        }
    }

    /// Plans and opens; `None` when there is no such collection.
    pub fn open(ctx: &mut OpCtx, ns: &str, req: FindRequest) -> Result<Option<FindCursor>> {
        // A lookup of one record needs no snapshot.
        let (view, coll) = match planner::id_lookup(&req.filter) {
            Some(_)
                if req.hint.is_none()
                    && req.min.is_none()
                    && req.max.is_none()
                    && ctx.snapshot.is_none() =>
            {
                let latest = ctx.latest();
                ctx.tell_of_view(ns);
                (latest, ctx.engine.catalog.get(ns))
            }
            _ => ctx.view(ns),
        };
        let Some(coll) = coll else {
            return text::bound(&req.filter, None).map(|_| None);
        };
        if coll.is_view() {
            bail!(
                CommandNotSupportedOnView,
                "Namespace {ns} is a view, not a collection"
            );
        }
        ctx.check_snapshot(&coll)?;
        FindCursor::over(ctx, view, coll, req).map(Some)
    }

    pub fn over(
        ctx: &mut OpCtx,
        view: storage::View,
        coll: Arc<Collection>,
        mut req: FindRequest,
    ) -> Result<FindCursor> {
        if let Cow::Owned(filter) = text::bound(&req.filter, Some(&coll))? {
            req.filter = filter;
        }
        let wants_vars = req.filter.wants_vars();
        let mut interrupt = None;
        let computes = wants_vars || req.projection.as_ref().is_some_and(|p| !p.is_simple());
        // In a pipeline the variables have a watchdog already, which the pipeline keeps up to date.
        if computes && !req.vars.has_watchdog() {
            let (cell, vars) = Interrupt::bind(ctx.stopped_by(), &req.vars);
            (interrupt, req.vars) = (Some(cell), vars);
        }
        let read = ReadRequest {
            filter: &req.filter,
            sort: req.sort.as_ref(),
            projection: req.projection.as_ref(),
            limit: req.limit.map(|l| l.saturating_add(req.skip)),
            hint: req.hint.clone(),
            min: req.min,
            max: req.max,
            vars: wants_vars.then(|| req.vars.clone()),
            distinct: None,
        };
        let rows = match req.plan {
            None => RecordStream::open(ctx, view, coll, &read)?,
            Some(plan) => RecordStream::with_plan(ctx, view, coll, plan, read.limit, read.vars)?,
        };
        let mut shape = Shape::new(req.projection, req.vars, req.show_record_id, req.return_key);
        shape.by_id = req.sort.is_some() && rows.plan.sort.is_none();
        Ok(FindCursor {
            skip: req.skip,
            left: req.limit,
            interrupt,
            ..FindCursor::of(rows, req.filter, shape)
        })
    }

    pub fn collection(&self) -> &Arc<Collection> {
        &self.rows.coll
    }

    pub fn plan(&self) -> &Plan {
        &self.rows.plan
    }

    /// The projection; `None` returns whole documents.
    pub fn projection(&self) -> Option<&Projection> {
        self.shape.projection.as_ref()
    }

    pub fn examined(&self) -> Examined {
        self.rows.examined
    }

    /// The peak memory of a blocking sort (bytes), and the number of rows sorted.
    pub fn sorted(&self) -> (usize, u64) {
        (self.rows.sort_bytes, self.rows.sort_rows)
    }

    /// To the next result; `false` at the end.
    pub fn next(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        if std::mem::take(&mut self.pending) && self.rows.read_current()? {
            return Ok(true);
        }
        if self.left == Some(0) {
            return Ok(false);
        }
        if self.skip > 0 {
            self.rows.skip(ctx, &mut self.skip)?;
        }
        if !self.rows.next(ctx)? {
            return Ok(false);
        }
        if let Some(l) = &mut self.left {
            *l -= 1;
        }
        Ok(true)
    }

    /// What its plan reads from its beginning to its end, where that was counted or is estimated.
    pub(crate) fn expected_reads(&self, ctx: &mut OpCtx) -> Result<Reads> {
        self.rows.expected_reads(ctx)
    }

    /// See [`RecordStream::leave_out`].
    pub(crate) fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        self.rows.leave_out(low, high);
    }

    /// The current result in its shape.
    pub fn doc(&mut self) -> Result<Doc<'_>> {
        let rows = &self.rows;
        if self.shape.is_plain() {
            return Ok(rows.doc());
        }
        let (plan, key) = (Some(&*rows.plan), rows.record_key());
        self.shape
            .apply(&self.filter, rows.doc(), &rows.coll, plan, key)
    }

    /// From here on, cache misses are read from the disk: for a cursor that was opened on an event
    /// loop and continues on a worker.
    pub fn read_anywhere(&mut self) {
        if self.rows.is_cached_only() {
            self.release();
        }
    }

    /// Keeps the projection only when an index covers it: otherwise it would cost more than it
    /// saves.
    pub(crate) fn drop_projection_unless_covered(&mut self) {
        if !self.rows.plan.covered {
            self.shape.projection = None;
        }
    }

    /// From here on [`FindCursor::known`] tells the score of a text search.
    pub(crate) fn keep_score(&mut self) {
        self.wants_score = true;
    }

    /// From here on [`FindCursor::known`] tells the key in the index that found the result.
    pub(crate) fn keep_index_key(&mut self) {
        self.wants_index_key = true;
    }

    /// The metadata of the current result, as [`FindCursor::project`] left it.
    pub(crate) fn known(&self) -> &Metadata {
        &self.known
    }

    /// Computes the projection for [`FindCursor::projected`], after a step.
    pub(crate) fn project(&mut self) -> Result<()> {
        if self.wants_score {
            self.known = text::metadata(&self.rows.plan, self.rows.doc());
        }
        if self.wants_index_key {
            let (rows, by_id) = (&self.rows, self.shape.by_id);
            let key = index_key(rows.doc(), &rows.coll, Some(&rows.plan), by_id)?;
            self.known.index_key = (!key.as_doc().is_empty()).then(|| Box::new(key));
        }
        if self.shape.projection.is_some() {
            self.doc()?;
        }
        Ok(())
    }

    /// The current result as [`FindCursor::project`] left it.
    pub(crate) fn projected(&self) -> Doc<'_> {
        match self.shape.projection {
            None => self.rows.doc(),
            Some(_) => self.shape.shaped(),
        }
    }

    /// Appends results to the open array of `w`: at most `max_docs`, and as many as fit into
    /// `max_bytes` (but always one). `true`: the cursor is exhausted.
    pub fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        if let Some(i) = &self.interrupt {
            i.renew(ctx.stopped_by());
        }
        let mut n = 0;
        let start = w.len();
        while n < max_docs {
            self.seeking = true;
            let more = self.next(ctx)?;
            self.seeking = false;
            if !more {
                return Ok(true);
            }
            let doc = self.doc()?;
            query::pipeline::check_size(doc.len())?;
            let bytes = w.len() - start;
            if (n > 0 && bytes + doc.len() + 16 > max_bytes) || !ctx.may_grow(bytes, doc.len())? {
                self.pending = true;
                return Ok(false);
            }
            w.push(doc.as_val());
            n += 1;
            self.returned += 1;
        }
        // Only a limit shows, without a further step, that no result is left.
        Ok(self.left == Some(0) && !self.pending)
    }

    /// Whether a first [`FindCursor::fill`] that failed because it needed disk reads, or more time
    /// on an event loop, may be called again on any thread.
    pub fn can_go_on(&self) -> bool {
        self.returned == 0 && self.seeking && self.rows.can_go_on()
    }

    /// Between batches: keeps the snapshot and the position, and releases everything else. The next
    /// batch may read from the disk: a later batch cannot start over, so it must not move to a
    /// worker half-way.
    pub fn release(&mut self) {
        if let Some(i) = &self.interrupt {
            i.rest();
        }
        self.leave(self.pending);
    }

    /// As [`FindCursor::release`]; `wanted` says whether the current result will be requested again
    /// ([`FindCursor::resume`]).
    pub(crate) fn leave(&mut self, wanted: bool) {
        match wanted {
            true => self.rows.keep_current(),
            false => self.rows.forget_current(),
        }
        self.shape.scratch = Vec::new();
        self.rows.read_all(true);
    }

    /// Restores the current result as before [`FindCursor::leave`].
    pub(crate) fn resume(&mut self) -> Result<()> {
        match self.rows.read_current()? {
            true => self.project(),
            false => Err(Error::internal("a cursor stands on a record that is gone").into()),
        }
    }
}
