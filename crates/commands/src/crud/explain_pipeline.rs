//! Explain of pipelines: the query at the beginning with the plans that there were for it, and the stages
//! after it.

use super::aggregate::parse;
use super::candidates::Candidates;
use super::explain::Verbosity;
use super::{aggregate, execution_stats, explain, shape};
use crate::crud::query_settings;
use crate::request::{CommandContext, Done, collation};
use crate::settings::parameters;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail};
use executor::{AggregateRequest, ExplainedPipeline, FindRequest};
use front::Args;
use planner::explain::{Explain, PlanStage, stages};
use query::collation::Collation;
use query::filter::Filter;
use query::pipeline::{Pipeline, Pushdown, StageProfiler, write_common};

/// Stages that the hash of the planner's part tells apart.
const PLANNED: [&str; 9] = [
    "$bucket",
    "$count",
    "$densify",
    "$group",
    "$lookup",
    "$project",
    "$replaceRoot",
    "$replaceWith",
    "$setWindowFields",
];

/// `{explain: {aggregate: …}}`.
pub(super) fn run(
    cx: &mut CommandContext<'_, '_>,
    inner: Doc<'_>,
    verbosity: Verbosity,
) -> Result<Done> {
    // The inner command lives as long as the request.
    let Some(inner_now) = cx.args.first.as_doc() else {
        return Ok(Done::Reply);
    };
    let args = Args::parse("aggregate", inner_now, Some(cx.args.db))?;
    let outer = std::mem::replace(&mut cx.args, args);
    let done = write_explain(cx, inner, verbosity);
    cx.args = outer;
    done
}

pub(super) fn write_explain(
    cx: &mut CommandContext<'_, '_>,
    command: Doc<'_>,
    verbosity: Verbosity,
) -> Result<Done> {
    if cx.args.generic.write_concern.is_some() {
        bail!(
            FailedToParse,
            "Aggregation explain does not support the 'writeConcern' option"
        );
    }
    cx.op.need_worker()?;
    let a = parse(cx)?;
    write_explain_of(cx, command, a.request, verbosity)
}

/// Explains a pipeline, with those of the views below it.
pub(super) fn write_explain_of(
    cx: &mut CommandContext<'_, '_>,
    command: Doc<'_>,
    mut pipeline: AggregateRequest,
    verbosity: Verbosity,
) -> Result<Done> {
    let executed = verbosity != Verbosity::QueryPlanner;
    let mut ns = pipeline.ns.to_string();
    let stages_given = command.get("pipeline").unwrap_or(Val::NULL);
    let given = cx.args.field("collation").and_then(|v| v.as_doc());
    let collation = collation::given(given)?.flatten();
    let shape_hash =
        shape::query_shape_hash(shape::of_pipeline(&ns, stages_given, collation.as_ref()).as_doc());
    let setting = query_settings::find(cx, || shape_hash.clone());
    if let Some(hints) = setting.as_ref().and_then(|s| s.hints(&ns)) {
        pipeline.hint = Some(hints);
    }
    if let Some(r) = cx.app.engine.catalog.snapshot().resolve(&ns)? {
        ns = r.on.to_string();
        pipeline.ns = r.on.clone();
        pipeline.pipeline = r.pipeline.then(&pipeline.pipeline);
    }
    // It is shown as it runs.
    pipeline.pipeline = pipeline.pipeline.optimized();
    let explained = executor::explain_pipeline(&mut cx.op, pipeline.clone(), executed)?;
    pipeline.pipeline = explained.pipeline.clone();
    let push = pipeline.pipeline.pushdown();
    let mut request = FindRequest::new(push.filter.clone());
    request.sort = push.sort.as_deref().cloned();
    let coll = explained.coll.as_ref();
    let (rejected, trials) = candidates_of(cx, &explained, &pipeline, &push, verbosity)?;
    let tree = query_stages(&explained, &pipeline, &push);
    let stages = pipeline.pipeline.stages();
    let rest = stages.get(push.consumed..).unwrap_or(&[]);
    let hash = plan_hash(&pipeline.pipeline, &push, collation.as_ref());
    let classic = cx
        .app
        .parameters
        .is(parameters::FRAMEWORK, "forceClassicEngine");
    let grouped = !classic && is_grouped_by_query(&explained, &tree, rest);
    cx.w.str("explainVersion", if grouped { "2" } else { "1" })
        .str("queryShapeHash", &shape_hash);
    ExplainedQuery {
        ns: &ns,
        filter: &push.filter,
        index_filter_set: coll.is_some_and(|c| explain::index_filter_set(c, &request)),
        settings: setting.as_ref().map(|s| s.settings.as_doc()),
        hash: &hash,
        tree: if grouped { tree.grouped() } else { tree },
        grouped,
        rejected,
        trials,
        verbosity,
        search: explained.search.as_ref().map(|d| d.as_doc()),
        ran: explained.ran.as_ref(),
    }
    .write(&mut cx.w, rest, &pipeline.pipeline);
    explain::finish(cx, command);
    Ok(Done::Reply)
}

/// The hash of what the planner looks at: the query at the beginning, and the stages that matter to it.
fn plan_hash(pipeline: &Pipeline, push: &Pushdown, collation: Option<&Collation>) -> String {
    let looked_at = pipeline.stages().iter().map(|s| s.name);
    let looked_at: Vec<&str> = looked_at.filter(|n| PLANNED.contains(n)).collect();
    let sort = push.sort.as_ref().map(|s| s.to_doc());
    let sort = sort.as_ref().map(|d| d.as_doc());
    shape::plan_cache_hash(&push.filter, sort, None, collation, &looked_at)
}

/// The hashes of the pipeline that has run: of what the planner looked at, and of its shape.
pub(super) fn hashes_of_command(cx: &CommandContext<'_, '_>) -> Result<(String, Option<String>)> {
    let shape = aggregate::query_shape(cx)?;
    let mut pipeline = parse(cx)?.request;
    if let Some(r) = cx
        .app
        .engine
        .catalog
        .snapshot()
        .resolve(&pipeline.ns.to_string())?
    {
        pipeline.pipeline = r.pipeline.then(&pipeline.pipeline);
    }
    let given = cx.args.field("collation").and_then(|v| v.as_doc());
    let collation = collation::given(given)?.flatten();
    let pipeline = pipeline.pipeline.optimized();
    let plan = plan_hash(&pipeline, &pipeline.pushdown(), collation.as_ref());
    Ok((plan, Some(shape::query_shape_hash(shape.as_doc()))))
}

/// The plans that there were for the query at the beginning of a pipeline: those that did not win, and what
/// each did in a trial.
fn candidates_of(
    cx: &mut CommandContext<'_, '_>,
    explained: &ExplainedPipeline,
    request: &AggregateRequest,
    push: &Pushdown,
    verbosity: Verbosity,
) -> Result<(Vec<DocBuf>, Vec<DocBuf>)> {
    let (Some(winner), Some(coll)) = (&explained.plan, &explained.coll) else {
        return Ok(Default::default());
    };
    if matches!(&winner.access, planner::Access::Index(a) if a.distinct.is_some()) {
        return Ok(Default::default());
    }
    let (view, _) = cx.op.view(&coll.ns);
    let read = executor::ReadRequest {
        sort: push.sort.as_deref(),
        projection: explained.projection.as_ref(),
        limit: push.limit.map(|l| l.saturating_add(push.skip)),
        hint: request.hint.clone(),
        vars: push.filter.wants_vars().then(|| request.vars.clone()),
        ..executor::ReadRequest::new(&push.filter)
    };
    let mut candidates = Candidates::of(&cx.op, &read, &view, coll, false)?;
    if verbosity == Verbosity::AllPlansExecution {
        candidates.run(&mut cx.op, &read, &view, coll)?;
    }
    let form = winner.form();
    let draw = |plan: &planner::Plan| stages_of(plan, explained, coll, push, false);
    Ok((
        candidates.rejected(&form, &draw),
        candidates.trial_plans(&form, &draw),
    ))
}

/// The stages of a plan of the query at the beginning of a pipeline.
fn stages_of(
    plan: &planner::Plan,
    explained: &ExplainedPipeline,
    coll: &catalog::Collection,
    push: &Pushdown,
    plain: bool,
) -> PlanStage {
    stages(&Explain {
        plan,
        filter: &push.filter,
        projection: explained.projection.as_ref(),
        indexes: &coll.usable,
        clustered: coll.option("clusteredIndex").is_some(),
        skip: push.skip,
        limit: push.limit.unwrap_or(0),
        count: false,
        plain,
    })
}

/// The stages of the query that answers the beginning of a pipeline.
fn query_stages(
    explained: &ExplainedPipeline,
    pipeline: &AggregateRequest,
    push: &Pushdown,
) -> PlanStage {
    match (&explained.plan, &explained.coll) {
        (Some(plan), Some(coll)) => {
            let mut plan = plan.clone();
            explain::show_hint_of_id(&mut plan, pipeline.hint.as_ref());
            stages_of(&plan, explained, coll, push, pipeline.hint.is_none())
        }
        _ if explained.fast_count => explain::stage("RECORD_STORE_FAST_COUNT"),
        _ => explain::stage("EOF"),
    }
}

/// Whether the first stage after the query is shown as its top, as MongoDB 8 does where its query engine groups. A short way to
/// one document and a scan of distinct keys are answered by another engine there.
fn is_grouped_by_query(
    explained: &ExplainedPipeline,
    tree: &PlanStage,
    rest: &[query::pipeline::Stage],
) -> bool {
    let mut other_engine = explained.plan.is_none();
    tree.walk(&mut |s| {
        other_engine |= matches!(s.name, "EOF" | "DISTINCT_SCAN") || s.name.starts_with("EXPRESS");
    });
    !other_engine && rest.first().is_some_and(|s| s.is_group_of_query())
}

/// What explain tells of a pipeline: the query at its beginning, and the stages after it.
struct ExplainedQuery<'a> {
    ns: &'a str,
    filter: &'a Filter,
    index_filter_set: bool,
    settings: Option<Doc<'a>>,
    hash: &'a str,
    tree: PlanStage,
    /// The top of the tree is the first stage after the query.
    grouped: bool,
    /// The plans that there were to choose from: those that did not win, and what each did in a trial.
    rejected: Vec<DocBuf>,
    trials: Vec<DocBuf>,
    verbosity: Verbosity,
    /// What the index tells of the search that the pipeline begins with.
    search: Option<Doc<'a>>,
    ran: Option<&'a (StageProfiler, Vec<usize>)>,
}

impl ExplainedQuery<'_> {
    /// What the run counted of the query (0) or a stage after it (from 1 on).
    fn counted(&self, stage: usize) -> Option<(&StageProfiler, usize)> {
        self.ran
            .and_then(|(w, numbers)| Some((w, *numbers.get(stage)?)))
    }

    fn write(mut self, w: &mut Writer, rest: &[query::pipeline::Stage], pipeline: &Pipeline) {
        let makes_input = pipeline.makes_input();
        let shown = usize::from(self.grouped);
        let (_, after) = rest.split_at(shown.min(rest.len()));
        if self.grouped {
            self.tree.number();
        }
        if after.is_empty() {
            if !makes_input {
                self.write_query(w);
            }
            return;
        }
        w.open_array("stages");
        if !makes_input {
            w.open_doc("").open_doc("$cursor");
            self.write_query(w);
            w.close();
            if let Some(f) = self.counted(shown).and_then(|(p, n)| p.figures(n)) {
                write_common(f, w);
            }
            w.close();
        }
        for (i, s) in after.iter().enumerate() {
            let before = i.checked_sub(1).and_then(|b| after.get(b));
            if before.is_some_and(|b| s.is_part_of(b)) {
                continue;
            }
            let counted = self.counted(i + 1 + shown);
            if i == 0
                && let (Some(stage), Some(told)) = (pipeline.search(), self.search)
            {
                for stage in stage.explain(told, counted) {
                    w.push(stage.as_doc().as_val());
                }
                continue;
            }
            w.push(s.explain(counted).as_doc().as_val());
        }
        w.close();
    }

    fn write_query(&self, w: &mut Writer) {
        self.write_planner(w);
        let Some(f) = self.counted(0).and_then(|(p, n)| p.figures(n)) else {
            return;
        };
        let mut c = execution_stats::Counted::from(f);
        let groups = self.counted(1).filter(|_| self.grouped);
        let groups = groups.and_then(|(p, n)| p.figures(n)).map(|f| f.returned);
        let stages = execution_stats::execution_stages(&self.tree, &c, groups);
        if let Some(groups) = groups {
            c = c.with_returned(groups);
        }
        execution_stats::write_stats(w, &stages, &c, self.verbosity, &self.trials);
    }

    fn write_planner(&self, w: &mut Writer) {
        w.open_doc("queryPlanner").str("namespace", self.ns);
        explain::write_if_room(w, "parsedQuery", &self.filter.to_doc(), explain::QUERY_ROOM);
        w.bool("indexFilterSet", self.index_filter_set);
        if let Some(settings) = self.settings {
            w.doc("querySettings", settings);
        }
        explain::write_hashes(w, self.hash);
        w.bool("maxIndexedOrSolutionsReached", false);
        let tree = self.tree.to_doc(&|_, _| {});
        if self.grouped {
            w.open_doc("winningPlan")
                .bool("isCached", false)
                .doc("queryPlan", tree.as_doc())
                .close();
        } else {
            w.doc("winningPlan", tree.as_doc());
        }
        w.open_array("rejectedPlans");
        for r in &self.rejected {
            if w.len() + r.as_bytes().len() <= explain::QUERY_ROOM {
                w.push(r.as_doc().as_val());
            }
        }
        w.close().close();
    }
}
