//! Pipelines over collections: a query answers the leading stages, and the pipeline's own operators
//! do the rest. This file gives the operators their environment ([`PipelineHost`]).

use crate::interrupt::Interrupt;
use crate::op::OpCtx;
use crate::pipeline::divided;
use crate::pipeline::explain;
use crate::pipeline::geo_near;
use crate::pipeline::idle::Idle;
use crate::pipeline::merge_into::{self, MergeInto};
use crate::pipeline::own_places::OwnPlaces;
use crate::pipeline::remote_collections::{self, ReadRemotely, RemoteRows};
use crate::pipeline::semi_join;
use crate::pipeline::series_out;
use crate::read::find::{FindCursor, FindRequest};
use crate::read::request::ReadRequest;
use crate::read::text;
use bson::{Doc, DocBuf, Writer, doc};
use catalog::numbers::ID_INDEX;
use catalog::{Collection, NewIndex};
use errors::{Result, bail};
use planner::{Access, DistinctRequest, Hint, Plan};
use query::expr::{SearchMeta, Vars};
use query::metadata::Metadata;
use query::path::FieldPath;
use query::pipeline::{
    self, GroupPushdown, JoinedCollection, MergePartStep, MergeSpec, Namespace, OutSpec, Part,
    Parted, Pipeline, PipelineHost, RowsKind, RowsStage, SearchStage, Share, Source, StageProfiler,
};
use query::projection::Projection;
use query::sort::SortPattern;
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use storage::View;

/// Gives the rows of stages that report on the server (`$currentOp`, …).
pub type ServerRows = Arc<dyn Fn(&RowsStage) -> Result<Vec<DocBuf>> + Send + Sync>;

/// How a pipeline is run.
#[derive(Clone)]
pub struct AggregateRequest {
    pub ns: Namespace,
    pub pipeline: Pipeline,
    pub vars: Arc<Vars>,
    pub hint: Option<Hint>,
    pub allow_disk_use: bool,
    pub server_rows: Option<ServerRows>,
    /// Reads the other collections, where they are not in this engine.
    pub remote: Option<ReadRemotely>,
    /// Searches show what the client has seen before (`afterClusterTime`).
    pub causal: bool,
    /// Its `$merge` writes what belongs to this shard, batch by batch, and the cursor gives the rest.
    pub merges_apart: Option<MergesApart>,
}

/// What holds for each batch of a `$merge` in parts.
#[derive(Clone, Copy)]
pub struct MergesApart {
    pub bypass_validation: bool,
    /// As [`OpCtx::merges_by_checked_key`].
    pub key_checked: bool,
}

/// A running pipeline. Send and owned: it lives in the cursor registry between batches.
pub struct PipelineCursor {
    source: Box<dyn Source>,
    request: AggregateRequest,
    /// The uuid of the collection it reads, when there is one.
    pub uuid: Option<[u8; 16]>,
    pending: bool,
    done: bool,
    interrupt: Arc<Interrupt>,
    idle: Option<Idle>,
}

/// The rows of a collection, as a pipeline's leaf.
pub(crate) struct Leaf(pub FindCursor);

impl pipeline::DocumentSource for Leaf {
    fn doc(&self) -> Doc<'_> {
        self.0.projected()
    }

    fn meta(&self) -> &Metadata {
        self.0.known()
    }

    fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        self.0.leave_out(low, high);
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

pub(crate) struct AggregateHost<'a, 'c> {
    pub ctx: &'a mut OpCtx<'c>,
    pub request: &'a AggregateRequest,
    /// Set when the pipeline is explained: nothing is written.
    pub watch: Option<&'a mut StageProfiler>,
    pub under_way: usize,
}

impl AggregateHost<'_, '_> {
    /// Inserts all that `input` gives.
    pub(super) fn fill(&mut self, into: &str, input: &mut dyn Source) -> Result<()> {
        let mut batch: Vec<DocBuf> = Vec::new();
        let mut bytes = 0;
        loop {
            let more = input.advance(self)?;
            if more {
                let d = input.doc();
                bytes += d.len();
                batch.push(d.to_buf());
            }
            if batch.len() >= 500 || bytes > 4 << 20 || !more {
                let docs: Vec<Doc> = batch.iter().map(|d| d.as_doc()).collect();
                let done = crate::write::insert(self.ctx, into, &docs, true, None)?;
                if let Some((_, e)) = done.errors.into_iter().next() {
                    return Err(e.context("PlanExecutor error during aggregation").into());
                }
                batch.clear();
                bytes = 0;
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// The stack use of running a pipeline for each document of another, counted in stages.
const NESTING_STAGES: usize = 50;

impl PipelineCursor {
    /// Opens a pipeline. An inline run must not write (see [`Pipeline::writes`]), because it may
    /// have to start again.
    pub fn open(ctx: &mut OpCtx, request: AggregateRequest) -> Result<PipelineCursor> {
        if request.pipeline.writes() {
            ctx.need_worker()?;
        }
        PipelineCursor::opened(ctx, request, |ctx, request| {
            open(
                ctx,
                &request.ns,
                &request.pipeline,
                &request.vars,
                request.hint.clone(),
                PipelineCaller::First,
            )
        })
    }

    /// Opens a pipeline over what others have found: no collection of this engine is read. Its stages
    /// run as they are, since `rows` was asked for what they need.
    pub fn over(
        ctx: &mut OpCtx,
        request: AggregateRequest,
        rows: Box<dyn RemoteRows>,
    ) -> Result<PipelineCursor> {
        PipelineCursor::opened(ctx, request, |_, request| {
            let input = remote_collections::over(rows);
            Ok((request.pipeline.attach(0, input, &request.vars), None))
        })
    }

    fn opened(
        ctx: &mut OpCtx,
        mut request: AggregateRequest,
        open: impl FnOnce(&mut OpCtx, &AggregateRequest) -> Result<Opened>,
    ) -> Result<PipelineCursor> {
        ctx.disk_use = request.allow_disk_use;
        let (interrupt, vars) = Interrupt::bind(ctx.stopped_by(), &request.vars);
        request.vars = vars;
        let (source, uuid) = open(ctx, &request)?;
        Ok(PipelineCursor {
            source,
            request,
            uuid,
            pending: false,
            done: false,
            interrupt,
            idle: None,
        })
    }

    /// The document that the last `advance` reached.
    pub fn doc(&self) -> Doc<'_> {
        self.source.doc()
    }

    /// To the next result; `false` at the end.
    pub fn advance(&mut self, ctx: &mut OpCtx) -> Result<bool> {
        if std::mem::take(&mut self.pending) {
            return Ok(true);
        }
        if self.done {
            return Ok(false);
        }
        let more = self.source.advance(&mut AggregateHost {
            ctx,
            request: &self.request,
            watch: None,
            under_way: 0,
        })?;
        self.done = !more;
        Ok(more)
    }

    /// As [`FindCursor::fill`].
    pub fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        self.interrupt.renew(ctx.stopped_by());
        if let Some(merges) = &self.request.merges_apart {
            ctx.bypass_validation = merges.bypass_validation;
            ctx.merges_by_checked_key = merges.key_checked;
        }
        if let Some(idle) = self.idle.take() {
            idle.resume(&mut *self.source, self.pending)?;
        }
        let mut n = 0;
        let start = w.len();
        while n < max_docs {
            if !self.advance(ctx)? {
                return Ok(true);
            }
            if ctx.own_places.as_mut().is_some_and(OwnPlaces::take_pause) {
                return Ok(false);
            }
            let doc = self.source.doc();
            pipeline::check_size(doc.len())?;
            let bytes = w.len() - start;
            if (n > 0 && bytes + doc.len() + 16 > max_bytes) || !ctx.may_grow(bytes, doc.len())? {
                self.pending = true;
                return Ok(false);
            }
            w.push(doc.as_val());
            n += 1;
        }
        let apart = self.request.merges_apart.is_some();
        if max_docs == 0 && self.request.pipeline.writes() && !apart {
            // No documents are requested, but a writing pipeline writes now.
            return Ok(!self.advance(ctx)?);
        }
        Ok(false)
    }

    /// As [`FindCursor::release`]. Fails where a long document can be kept neither in memory nor in
    /// a file.
    pub fn release(&mut self, ctx: &mut OpCtx) -> Result<()> {
        self.interrupt.rest();
        self.idle = Some(Idle::leave(ctx, &mut *self.source, self.pending)?);
        Ok(())
    }
}

/// The source of a pipeline, and the uuid of the collection that it reads.
type Opened = (Box<dyn Source>, Option<[u8; 16]>);

/// The caller of a pipeline.
enum PipelineCaller<'w> {
    /// A command: once.
    First,
    /// A stage of another pipeline, it may be for each document. Explained: with where to count.
    Inside(Option<&'w mut StageProfiler>),
}

/// The source of a pipeline over a collection, a view, or nothing.
fn open(
    ctx: &mut OpCtx,
    ns: &Namespace,
    pipeline: &Pipeline,
    vars: &Arc<Vars>,
    hint: Option<Hint>,
    caller: PipelineCaller<'_>,
) -> Result<Opened> {
    if pipeline.makes_input() {
        return Ok((pipeline.run_alone(vars), None));
    }
    let full = ns.to_string();
    if let Some(r) = ctx.catalog().resolve(&full)? {
        let whole = r.pipeline.then(pipeline);
        let hint = series_out::hint_of_buckets(ctx, &full, hint);
        let opened = open(ctx, &r.on, &whole, vars, hint, caller)?;
        // The cursor belongs to the view: the collection below may be dropped.
        return Ok((opened.0, None));
    }
    // Each of these steps goes through the whole pipeline, which may have megabytes.
    let optimized = pipeline.optimized();
    ctx.check()?;
    let resolved = geo_near::resolved(ctx, &full, &optimized, vars)?;
    let mut pipeline = resolved;
    let mut begun = begin(ctx, &full, &pipeline, vars, hint.clone())?;
    ctx.check()?;
    if matches!(caller, PipelineCaller::First)
        && let Some(better) = turned_round(ctx, &begun, &pipeline, vars, hint.as_ref())?
    {
        begun = begin(ctx, &full, &better, vars, hint)?;
        pipeline = Cow::Owned(better);
    }
    let uuid = begun.coll.map(|c| c.uuid);
    let leaf = match begun.start {
        Start::Docs(docs) => pipeline::over_docs(docs),
        Start::Rows(cursor) => match caller {
            PipelineCaller::First
                if let Some(parted) = parted(ctx, &cursor, &pipeline, begun.from) =>
            {
                return Ok((parted.attach(Box::new(Leaf(*cursor)), vars), uuid));
            }
            PipelineCaller::Inside(Some(w)) => explain::watched_rows(*cursor, w),
            PipelineCaller::First | PipelineCaller::Inside(None) => {
                pipeline::over_rows(Box::new(Leaf(*cursor)))
            }
        },
    };
    Ok((pipeline.attach(begun.from, leaf, vars), uuid))
}

/// How threads may share a pipeline over the rows of `cursor`, should some be idle.
fn parted(ctx: &OpCtx, cursor: &FindCursor, pipeline: &Pipeline, from: usize) -> Option<Parted> {
    if ctx.engine.query_threads.figures().limit < 2 {
        return None;
    }
    // Most pipelines end here, before anything is copied.
    let sorts = cursor.plan().sort.is_some();
    cursor.scans_forward(sorts)?;
    match sorts {
        true => pipeline.parted_sort(from),
        false => pipeline.parted(from),
    }
}

/// The pipeline to run in the place of one that was begun, where another side of a join says which
/// of the documents are wanted: a plan that reads all of them is worth looking there.
pub(crate) fn turned_round(
    ctx: &mut OpCtx,
    begun: &Begun,
    pipeline: &Pipeline,
    vars: &Arc<Vars>,
    hint: Option<&Hint>,
) -> Result<Option<Pipeline>> {
    match (&begun.start, &begun.coll) {
        (Start::Rows(cursor), Some(coll)) if hint.is_none() && cursor.plan().access.is_scan() => {
            semi_join::turned_round(ctx, coll, pipeline, vars)
        }
        _ => Ok(None),
    }
}

/// The source that answers the leading stages of a pipeline.
pub(crate) enum Start {
    /// Known without reading: no result, or only a count was asked for.
    Docs(Vec<DocBuf>),
    Rows(Box<FindCursor>),
}

pub(crate) struct Begun {
    pub start: Start,
    /// The stage that comes next.
    pub from: usize,
    pub coll: Option<Arc<Collection>>,
}

/// Opens the query that stands for the beginning of a pipeline over a collection.
pub(crate) fn begin(
    ctx: &mut OpCtx,
    ns: &str,
    pipeline: &Pipeline,
    vars: &Arc<Vars>,
    hint: Option<Hint>,
) -> Result<Begun> {
    let push = pipeline.pushdown();
    ctx.check()?;
    let (view, coll) = ctx.view(ns);
    if pipeline.searches_text(push.consumed) {
        bail!(
            17313,
            "$match with $text is only allowed as the first pipeline stage"
        );
    }
    if coll.is_none() {
        text::bound(&push.filter, None)?;
    }
    let begun = |start, from, coll| Ok(Begun { start, from, coll });
    let coll = match coll {
        Some(coll) if push.limit != Some(0) => coll,
        nothing_wanted => {
            return begun(Start::Docs(Vec::new()), push.consumed, nothing_wanted);
        }
    };
    ctx.check_snapshot(&coll)?;
    let counted = push.count_only && ctx.snapshot.is_none();
    if counted && push.filter.is_trivial() && hint.is_none() {
        let n = ctx.engine.store.counts(coll.tablet).0;
        let n = n.saturating_sub(push.skip);
        let n = push.limit.map_or(n, |l| n.min(l));
        let next = pipeline.stages().get(push.consumed);
        if let Some(docs) = next.and_then(|stage| stage.counted(n)) {
            return begun(Start::Docs(docs), push.consumed + 1, Some(coll));
        }
    }
    let needed = match &push.needed {
        // Documents that are only counted are there by what the filter reads of them.
        Some(none) if none.is_empty() => pipeline::filter_paths(push.filter.root()),
        needed => needed.clone(),
    };
    let needed = needed.as_ref().and_then(covering);
    let mut find = FindRequest::new(push.filter);
    find.sort = push.sort.map(|s| (*s).clone());
    find.skip = push.skip;
    find.limit = push.limit;
    find.hint = hint;
    find.vars = vars.clone();
    if let Some(group) = &push.group
        && let Some(plan) = group_plan(ctx, &view, &coll, &find, group, needed.as_ref())?
    {
        find.projection = needed;
        find.plan = Some(Arc::new(plan));
        let mut cursor = FindCursor::over(ctx, view, coll.clone(), find)?;
        cursor.drop_projection_unless_covered();
        return begun(Start::Rows(Box::new(cursor)), push.consumed, Some(coll));
    }
    if push.backwards {
        find.plan = backwards(ctx, &view, &coll, &find)?;
    }
    // A projection to the needed fields may let an index cover the query; it is dropped when none
    // does.
    find.projection = needed;
    let mut cursor = FindCursor::over(ctx, view, coll.clone(), find)?;
    cursor.drop_projection_unless_covered();
    let asks = |name: &str| pipeline.asks_for(push.consumed, name);
    if cursor.plan().text.is_some() && (asks("textScore") || asks("score")) {
        cursor.keep_score();
    }
    if asks("indexKey") {
        cursor.keep_index_key();
    }
    begun(Start::Rows(Box::new(cursor)), push.consumed, Some(coll))
}

/// The plan by which a scan of the records goes through them in the order of `_id` backwards; `None` if
/// they do not lie so, or another plan serves the query.
fn backwards(
    ctx: &OpCtx,
    view: &View,
    coll: &Arc<Collection>,
    find: &FindRequest<'_>,
) -> Result<Option<Arc<Plan>>> {
    if coll.is_numbered() || coll.collation.is_some() || find.hint.is_some() {
        return Ok(None);
    }
    let order = SortPattern::parse(doc! {"_id": -1}.as_doc())?;
    let scans = |sort| {
        let read = ReadRequest {
            sort,
            vars: find.filter.wants_vars().then(|| find.vars.clone()),
            ..ReadRequest::new(&find.filter)
        };
        let plan = read.plan(ctx.engine, view, coll, false)?;
        let is_scan = matches!(plan.access, Access::Records { .. }) && plan.sort.is_none();
        Ok::<_, errors::Stop>(is_scan.then(|| Arc::new(plan)))
    };
    match scans(None)? {
        Some(_) => scans(Some(&order)),
        None => Ok(None),
    }
}

/// The plan by which an index gives one document for each group.
fn group_plan(
    ctx: &OpCtx,
    view: &View,
    coll: &Arc<Collection>,
    find: &FindRequest<'_>,
    group: &GroupPushdown,
    projection: Option<&Projection>,
) -> Result<Option<Plan>> {
    let has = |i: &planner::IndexInfo| i.key.fields.iter().any(|f| f.path == group.path);
    if !coll.usable.iter().any(has) {
        return Ok(None);
    }
    for order in &group.orders {
        let read = ReadRequest {
            sort: order.as_ref(),
            projection,
            hint: find.hint.clone(),
            vars: find.filter.wants_vars().then(|| find.vars.clone()),
            distinct: Some(DistinctRequest {
                path: &group.path,
                collation: group.collation.as_ref(),
                group: true,
            }),
            ..ReadRequest::new(&find.filter)
        };
        let plan = read.plan(ctx.engine, view, coll, false)?;
        if matches!(&plan.access, Access::Index(a) if a.distinct.is_some()) {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// An inclusion projection of these paths, where one can express them.
pub(crate) fn covering(paths: &std::collections::BTreeSet<String>) -> Option<Projection> {
    if paths.is_empty() || paths.iter().any(|p| p.is_empty() || p.contains('$')) {
        return None;
    }
    let mut w = Writer::new();
    if !paths.contains("_id") {
        w.i32("_id", 0);
    }
    for p in paths {
        let nested = paths.iter().any(|q| {
            q.len() < p.len()
                && p.starts_with(q.as_str())
                && p.as_bytes().get(q.len()) == Some(&b'.')
        });
        if !nested {
            w.i32(p, 1);
        }
    }
    Projection::parse(w.finish().as_doc(), None, &Default::default()).ok()
}

impl PipelineHost for AggregateHost<'_, '_> {
    fn check(&mut self) -> Result<()> {
        self.ctx.tick(1)
    }

    fn advance_rows(&mut self, rows: &mut dyn pipeline::DocumentSource) -> Result<bool> {
        match rows.as_any().downcast_mut::<Leaf>() {
            Some(leaf) => {
                if !self.ctx.may_offload() {
                    leaf.0.read_anywhere();
                }
                let more = leaf.0.next(self.ctx)?;
                if more {
                    leaf.0.project()?;
                }
                Ok(more)
            }
            None => explain::advance(self, rows),
        }
    }

    fn gather_in_parts(
        &mut self,
        parted: &Arc<Parted>,
        rows: &mut dyn pipeline::DocumentSource,
        vars: &Arc<Vars>,
    ) -> Result<Option<Part>> {
        match rows.as_any().downcast_ref::<Leaf>() {
            Some(leaf) => divided::gather(self, parted, leaf, vars),
            None => Ok(None),
        }
    }

    fn open(
        &mut self,
        ns: &Namespace,
        pipeline: &Pipeline,
        vars: &Arc<Vars>,
    ) -> Result<Box<dyn Source>> {
        if let Some(remote) = &self.request.remote {
            // It waits for other servers.
            self.ctx.need_worker()?;
            let source = remote.open(ns, pipeline, vars)?;
            return Ok(pipeline::nested(source, NESTING_STAGES));
        }
        let watch = self.watch.as_deref_mut();
        let (source, _) = open(
            self.ctx,
            ns,
            pipeline,
            vars,
            None,
            PipelineCaller::Inside(watch),
        )?;
        Ok(pipeline::nested(source, NESTING_STAGES))
    }

    fn search(
        &mut self,
        stage: &SearchStage,
        limit: Option<u64>,
        known: Option<&SearchMeta>,
    ) -> Result<Box<dyn Source>> {
        if let Some(remote) = &self.request.remote {
            return remote.search(stage, limit, known);
        }
        let (causal, vars) = (self.request.causal, self.request.vars.clone());
        let explained = self.watch.is_some();
        crate::search::found(self.ctx, stage, limit, causal, &vars, known, explained)
    }

    fn joined_collection(&mut self, ns: &Namespace, path: &FieldPath) -> Option<JoinedCollection> {
        if let Some(remote) = &self.request.remote {
            return remote.collections.size(ns, path);
        }
        let coll = self.ctx.catalog().get(&ns.to_string()).cloned()?;
        if coll.is_view() {
            return None;
        }
        let (documents, bytes) = self.ctx.engine.store.counts(coll.tablet);
        let first = |i: &planner::IndexInfo| i.key.fields.first().is_some_and(|f| f.path == *path);
        let serves = |i: &planner::IndexInfo| i.ready && !i.hidden && first(i);
        Some(JoinedCollection {
            documents,
            bytes,
            indexed: path.is_id() || coll.usable.iter().any(serves),
            remote: false,
        })
    }

    fn under_way(&mut self) -> &mut usize {
        &mut self.under_way
    }

    fn out(&mut self, spec: &OutSpec, input: &mut dyn Source) -> Result<()> {
        if self.watch.is_some() {
            return explain::exhaust(self, input);
        }
        self.ctx.need_worker()?;
        self.ctx.pass_gate()?;
        let target = spec.target.to_string();
        let engine = self.ctx.engine.clone();
        let before = engine.catalog.get(&target);
        let series = before.as_ref().is_some_and(|c| c.measurements().is_some());
        if spec.timeseries.is_some() || series {
            series_out::run(self, spec, before, input)?;
            self.ctx.made.push(target);
            return Ok(());
        }
        if before.as_ref().is_some_and(|c| c.is_view()) {
            bail!(
                CommandNotSupportedOnView,
                "Namespace {target} is a view, not a collection"
            );
        }
        if before.as_ref().is_some_and(|c| c.capped.is_some()) {
            bail!(
                17152,
                "namespace '{target}' is capped so it can't be used for $out"
            );
        }
        // A temporary collection is filled and then replaces the target: readers see the old
        // collection or the complete new one.
        let aside = crate::temp_collections::of_out(&spec.target.db);
        let options = before
            .as_ref()
            .map_or_else(DocBuf::new, |c| c.options.clone());
        engine.catalog.create(&aside, options)?;
        let filled = (|| {
            if let Some(c) = &before {
                let new: Vec<NewIndex> = c
                    .secondary()
                    .map(|i| NewIndex {
                        spec: i.spec.clone(),
                    })
                    .collect();
                if !new.is_empty() {
                    crate::write::build::create_indexes(self.ctx, &aside, &new)?;
                }
            }
            self.fill(&aside, input)
        })();
        let result = filled.and_then(|()| {
            let interrupt = || self.ctx.check();
            engine.catalog.rename(&aside, &target, true, &interrupt)
        });
        match result {
            Ok(()) => self.ctx.made.push(target),
            Err(_) => drop(
                engine
                    .catalog
                    .drop_collection(&aside, &catalog::never_interrupted),
            ),
        }
        self.ctx.last_index = engine.store.last_index();
        result
    }

    fn merge(&mut self, spec: &MergeSpec, input: &mut dyn Source, vars: &Arc<Vars>) -> Result<()> {
        let mut into = MergeInto::new(self.ctx, spec, vars)?;
        if self.watch.is_some() {
            return explain::exhaust(self, input);
        }
        self.ctx.need_worker()?;
        while input.advance(self)? {
            let new = input.doc().to_buf();
            into.put(self.ctx, new.as_doc())?;
        }
        into.finish()
    }

    fn merge_apart(
        &mut self,
        spec: &MergeSpec,
        input: &mut dyn Source,
        vars: &Arc<Vars>,
    ) -> Result<MergePartStep> {
        self.ctx.need_worker()?;
        // A document that no rule places here is written elsewhere.
        let target = spec.target.to_string();
        let places = self.ctx.own_places.take();
        let mut places = places.filter(|p| p.target == target);
        let mut into = match &places {
            Some(_) => Some(MergeInto::new(self.ctx, spec, vars)?),
            None => None,
        };
        let next = loop {
            if places.as_mut().is_some_and(OwnPlaces::pauses) {
                break MergePartStep::Pause;
            }
            if !input.advance(self)? {
                break MergePartStep::End;
            }
            let new = merge_into::identified(spec, input.doc());
            let is_own = places.as_mut().is_some_and(|p| p.has(new.as_doc()));
            match into.as_mut().filter(|_| is_own) {
                Some(into) => into.put(self.ctx, new.as_doc())?,
                None => break MergePartStep::Elsewhere(new),
            }
        };
        self.ctx.own_places = places;
        if let Some(into) = &mut into {
            into.finish()?;
        }
        Ok(next)
    }

    fn rows(&mut self, stage: &RowsStage) -> Result<Vec<DocBuf>> {
        if stage.kind == RowsKind::IndexStats {
            let mut coll = self.ctx.engine.catalog.get(&stage.ns.to_string());
            let shown = coll.clone();
            if let Some(options) = shown.as_ref().and_then(|c| c.measurements()) {
                let below = time_series::buckets_of(&stage.ns.to_string());
                coll = self.ctx.engine.catalog.get(&below);
                return Ok(coll
                    .map(|c| series_out::index_stats(options, &c))
                    .unwrap_or_default());
            }
            if coll.as_ref().is_some_and(|c| c.is_view()) {
                bail!(
                    CommandNotSupportedOnView,
                    "Namespace {} is a view, not a collection",
                    stage.ns
                );
            }
            return Ok(coll.map(|c| index_stats(&c)).unwrap_or_default());
        }
        if stage.kind == RowsKind::ListSearchIndexes {
            crate::search::read_synonyms(self.ctx, &stage.ns.to_string(), stage.spec.as_doc())?;
        }
        match &self.request.server_rows {
            Some(f) => f(stage),
            None => Ok(Vec::new()),
        }
    }

    fn allow_disk_use(&self) -> bool {
        self.request.allow_disk_use
    }

    fn share(&self) -> Share {
        self.ctx.engine.stage_memory.share()
    }

    fn wait_for_memory(&mut self) -> Result<()> {
        self.ctx.wait_for_memory()
    }

    fn spill(&mut self) -> Result<Box<dyn pipeline::SpillFile>> {
        self.ctx.need_worker()?;
        Ok(Box::new(self.ctx.engine.store.temporary_file()?))
    }

    fn watch(&mut self) -> Option<&mut StageProfiler> {
        self.watch.as_deref_mut()
    }
}

pub(super) fn index_stats(c: &Collection) -> Vec<DocBuf> {
    use std::sync::atomic::Ordering::Relaxed;
    let row = |name: &str, key: Doc<'_>, spec: Doc<'_>, ops: u64, since: i64| {
        let mut w = Writer::new();
        w.str("name", name).doc("key", key).str("host", "localhost");
        w.open_doc("accesses")
            .i64("ops", ops as i64)
            .date("since", since)
            .close();
        w.doc("spec", spec);
        w.finish()
    };
    let id_spec = doc! { "v": 2, "key": doc! { "_id": 1 }, "name": "_id_" };
    let mut rows = vec![row(
        "_id_",
        doc! { "_id": 1 }.as_doc(),
        id_spec.as_doc(),
        c.id_index_accesses.load(Relaxed)
            + c.index(ID_INDEX).map_or(0, |i| i.accesses.load(Relaxed)),
        c.since_millis,
    )];
    for i in c.secondary() {
        rows.push(row(
            i.name(),
            i.info.key.as_doc(),
            i.spec.as_doc(),
            i.accesses.load(Relaxed),
            i.since_millis,
        ));
    }
    rows
}
