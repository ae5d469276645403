//! Explain of pipelines: the query that answers the leading stages, and the counters of every
//! stage.
//!
//! Invariant: the run is the one that `aggregate` would make (the same plan, projection and
//! operators), but that nothing is written.

use crate::examined::Examined;
use crate::interrupt::Interrupt;
use crate::op::OpCtx;
use crate::pipeline::aggregate::{AggregateHost, AggregateRequest, Start, begin, turned_round};
use crate::pipeline::geo_near;
use crate::read::find::FindCursor;
use bson::{Doc, DocBuf};
use catalog::Collection;
use errors::Result;
use planner::{Access, Plan};
use query::pipeline::{self, Pipeline, PipelineHost, Source, StageCounters, StageProfiler};
use query::projection::Projection;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// What explain tells about a pipeline over a collection.
pub struct ExplainedPipeline {
    /// As it runs.
    pub pipeline: Pipeline,
    pub coll: Option<Arc<Collection>>,
    /// The query's plan; `None` when nothing is read.
    pub plan: Option<Plan>,
    /// The projection of a covered query.
    pub projection: Option<Projection>,
    /// The pipeline asks only for the stored record count.
    pub fast_count: bool,
    /// What the index tells of the search that the pipeline begins with.
    pub search: Option<DocBuf>,
    /// The counters of a run: the query's, then those of the stages after it.
    pub ran: Option<(StageProfiler, Vec<usize>)>,
}

/// Plans a pipeline (not over a view, and not one that makes its own input) and, with `run`, runs
/// it to its end.
pub fn explain_pipeline(
    ctx: &mut OpCtx,
    mut request: AggregateRequest,
    run: bool,
) -> Result<ExplainedPipeline> {
    ctx.need_worker()?;
    ctx.disk_use = request.allow_disk_use;
    ctx.only_plans = !run;
    let (_interrupt, vars) = Interrupt::bind(ctx.stopped_by(), &request.vars);
    request.vars = vars;
    let vars = &request.vars;
    if let Some(spec) = request.pipeline.merge() {
        crate::pipeline::merge_into::check_key(ctx, spec)?;
    }
    let alone = request.pipeline.makes_input();
    let ns = request.ns.to_string();
    let resolved = geo_near::resolved(ctx, &ns, &request.pipeline, vars)?;
    let mut pipeline = resolved.into_owned();
    let mut explained = ExplainedPipeline {
        pipeline: Pipeline::default(),
        coll: None,
        plan: None,
        projection: None,
        fast_count: false,
        search: None,
        ran: None,
    };
    if let Some(stage) = pipeline.search() {
        explained.search = Some(crate::search::explain(ctx, stage, run)?);
    }
    let mut watch = StageProfiler::new(Instant::now);
    let mut numbers = vec![watch.add()];
    let (leaf, from) = if alone {
        (pipeline::over_docs(Vec::new()), 0)
    } else {
        let hint = request.hint.clone();
        let mut begun = begin(ctx, &ns, &pipeline, vars, hint.clone())?;
        if let Some(better) = turned_round(ctx, &begun, &pipeline, vars, hint.as_ref())? {
            pipeline = better;
            begun = begin(ctx, &ns, &pipeline, vars, hint)?;
        }
        explained.coll = begun.coll;
        let leaf = match begun.start {
            Start::Rows(cursor) => {
                explained.plan = Some(cursor.plan().clone());
                explained.projection = cursor.projection().cloned();
                pipeline::watched(watched_rows(*cursor, &mut watch), 0)
            }
            Start::Docs(docs) => {
                let docs = pipeline::over_docs(docs);
                explained.fast_count = begun.from > pipeline.pushdown().consumed;
                if explained.fast_count {
                    // The documents are those of `$count`, which is done already.
                    numbers.push(watch.add());
                }
                pipeline::watched(docs, numbers.len() - 1)
            }
        };
        (leaf, begun.from)
    };
    explained.pipeline = pipeline;
    let pipeline = &explained.pipeline;
    if !run {
        return Ok(explained);
    }
    let (mut source, rest) = pipeline.attach_watched(from, leaf, vars, &mut watch);
    numbers.extend(rest);
    while source.advance(&mut AggregateHost {
        ctx,
        request: &request,
        watch: Some(&mut watch),
        under_way: 0,
    })? {}
    explained.ran = Some((watch, numbers));
    Ok(explained)
}

/// The rows of a collection, counted for a stage.
struct WatchedLeaf {
    cursor: FindCursor,
    stage: usize,
    seen: Examined,
}

impl pipeline::DocumentSource for WatchedLeaf {
    fn doc(&self) -> Doc<'_> {
        self.cursor.projected()
    }

    fn meta(&self) -> &query::metadata::Metadata {
        self.cursor.known()
    }

    fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        self.cursor.leave_out(low, high);
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The rows of a query, counted for the stage that runs.
pub(crate) fn watched_rows(cursor: FindCursor, watch: &mut StageProfiler) -> Box<dyn Source> {
    let stage = watch.current();
    if let Some(f) = watch.figures_mut(stage) {
        used(&cursor.plan().access, cursor.collection(), f);
    }
    pipeline::over_rows(Box::new(WatchedLeaf {
        cursor,
        stage,
        seen: Examined::default(),
    }))
}

/// [`PipelineHost::advance_rows`] for rows that are counted.
pub(crate) fn advance(
    host: &mut AggregateHost<'_, '_>,
    rows: &mut dyn pipeline::DocumentSource,
) -> Result<bool> {
    let Some(leaf) = rows.as_any().downcast_mut::<WatchedLeaf>() else {
        return Err(errors::Error::internal("rows of another kind").into());
    };
    let hidden = storage::hidden_keys::on_this_thread();
    let more = leaf.cursor.next(host.ctx)?;
    let hidden = storage::hidden_keys::on_this_thread().wrapping_sub(hidden);
    if more {
        leaf.cursor.project()?;
    }
    let now = leaf.cursor.examined();
    let before = std::mem::replace(&mut leaf.seen, now);
    if let Some(f) = host.watch().and_then(|w| w.figures_mut(leaf.stage)) {
        f.keys += now.keys - before.keys;
        f.docs += now.docs - before.docs;
        f.seeks += now.seeks - before.seeks;
        f.hidden += hidden;
        let (bytes, rows) = leaf.cursor.sorted();
        (f.sort_bytes, f.sort_rows) = (bytes as u64, rows);
    }
    Ok(more)
}

/// Which indexes an access reads, or that it reads the whole collection.
fn used(access: &Access, coll: &Collection, f: &mut StageCounters) {
    let mut index = |name: &str| f.indexes_used.insert(name.to_string());
    let mut named = |id| coll.index(id).is_some_and(|i| index(i.name()));
    match access {
        Access::Eof => {}
        Access::Records { .. } if access.is_scan() => f.collection_scans += 1,
        Access::Ids(_) | Access::Records { .. } => {
            index("_id_");
        }
        Access::Index(a) => {
            named(a.index);
        }
        Access::Near(a) => {
            named(a.index);
        }
        Access::Merge(scans, _) => scans.iter().for_each(|b| {
            named(b.access.index);
        }),
        Access::Or(branches) => branches.iter().for_each(|b| used(&b.access, coll, f)),
    }
}

/// Replaces the writing stage when a pipeline is explained: reads all input and writes nothing.
pub(crate) fn exhaust(host: &mut AggregateHost<'_, '_>, input: &mut dyn Source) -> Result<()> {
    while input.advance(host)? {}
    Ok(())
}
