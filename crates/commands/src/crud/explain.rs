//! `explain`: the plan of a command, and with a higher verbosity what running it examined. Writes
//! are not made.

use super::candidates::Candidates;
use super::execution_stats::{Counted, count_run, execute, execution_stages, write_stats};
use super::{explain_pipeline, find, shape, variables, view_rewrite};
use crate::crud::query_settings;
use crate::request::{CommandContext, Done};
use crate::version;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail, err};
use executor::{FindCursor, FindRequest};
use front::args::{self, Args};
use front::{Specification, idl, specification};
use planner::Hint;
use planner::explain::{Explain, PlanStage, stages};
use query::collation::Collation;
use query::filter::Filter;
use query::metadata::Available;
use query::path::FieldPath;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Verbosity {
    QueryPlanner,
    ExecutionStats,
    AllPlansExecution,
}

/// The explained query, and the stage that uses its results.
struct Subject<'a> {
    ns: String,
    request: FindRequest<'a>,
    /// UPDATE, DELETE, … on top of the query.
    top: Option<&'static str>,
    count: bool,
    /// The key of a distinct.
    distinct: Option<FieldPath>,
    collation: Option<Collation>,
    /// Whether a sort may go to temporary files.
    disk_use: bool,
}

/// The explained command, and how much to tell of it.
struct ExplainedCommand<'a> {
    inner: Doc<'a>,
    command: &'static str,
    verbosity: Verbosity,
}

impl<'a> ExplainedCommand<'a> {
    fn of(args: &Args<'a>) -> Result<ExplainedCommand<'a>> {
        let given = args.first;
        if given.is_nullish() {
            return Err(idl::missing("explain", "explain"));
        }
        let Some(inner) = given.as_doc() else {
            return Err(idl::mismatch("explain", "explain", given, &["object"]));
        };
        idl::unique(inner.first().map_or("explain", |e| e.name), inner)?;
        args::check_explained_db(inner, args.db)?;
        let verbosity = verbosity(args)?;
        if let Some(limit) = inner.get("maxTimeMS") {
            args::max_time_ms("maxTimeMS", limit)?;
        }
        let command = explained(inner.first().map_or("", |e| e.name))?;
        Ok(ExplainedCommand {
            inner,
            command,
            verbosity,
        })
    }
}

/// Checks the arguments as far as that needs no collection.
pub fn check(args: &Args<'_>) -> Result<()> {
    let explained = ExplainedCommand::of(args)?;
    Args::parse(explained.command, explained.inner, Some(args.db)).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ExplainedCommand {
        inner,
        command,
        verbosity,
    } = ExplainedCommand::of(&cx.args)?;
    cx.op.need_worker()?;
    heed_inner_limit(cx, inner)?;
    if command == "aggregate" {
        return explain_pipeline::run(cx, inner, verbosity);
    }
    if command == "mapReduce" {
        return super::map_reduce::explain(cx, verbosity);
    }
    let args = Args::parse(command, inner, Some(cx.args.db))?;
    let outer = std::mem::replace(&mut cx.args, args);
    let coll = match cx.args.namespace() {
        Ok(ns) => cx.app.engine.catalog.get(&ns),
        Err(_) => None,
    };
    if coll.is_some_and(|c| c.is_view()) {
        let done = match command {
            "find" | "count" | "distinct" => view_rewrite::explain(cx, command, inner, verbosity),
            _ => Err(err!(
                CommandNotSupportedOnView,
                "Namespace is a view, not a collection"
            )
            .into()),
        };
        cx.args = outer;
        return done;
    }
    let subject = subject(cx, command);
    cx.args = outer;
    let subject = subject?;
    write(cx, inner, subject, verbosity)?;
    Ok(Done::Reply)
}

fn verbosity(args: &Args<'_>) -> Result<Verbosity> {
    let mut verbosity = Verbosity::AllPlansExecution;
    for e in &args.fields {
        if e.name != "verbosity" {
            return Err(args.unknown(*e));
        }
        verbosity = match idl::string("explain", *e)? {
            Some("queryPlanner") => Verbosity::QueryPlanner,
            Some("executionStats") => Verbosity::ExecutionStats,
            Some("allPlansExecution") | None => Verbosity::AllPlansExecution,
            Some(v) => bail!(
                BadValue,
                "Enumeration value '{v}' for field 'explain.verbosity' is not a valid value."
            ),
        };
    }
    Ok(verbosity)
}

/// The command of that name, if it can be explained.
fn explained(name: &str) -> Result<&'static str> {
    Ok(match name {
        "find" => "find",
        "count" => "count",
        "distinct" => "distinct",
        "update" => "update",
        "delete" => "delete",
        "findAndModify" | "findandmodify" => "findAndModify",
        "aggregate" => "aggregate",
        "mapReduce" | "mapreduce" => "mapReduce",
        _ if specification::lookup(name).is_some_and(Specification::is_of_servers) => {
            bail!(IllegalOperation, "Cannot explain cmd: {name}")
        }
        _ => bail!(
            CommandNotFound,
            "Explain failed due to unknown command: {name}"
        ),
    })
}

/// Some clients give the limit of time to the command that is explained.
fn heed_inner_limit(cx: &mut CommandContext<'_, '_>, inner: Doc<'_>) -> Result<()> {
    let allowed = match inner.get("maxTimeMS") {
        Some(v) => args::max_time_ms("maxTimeMS", v)?,
        None => 0,
    };
    if allowed > 0 && cx.op.deadline.is_none() {
        let allowed = Duration::from_millis(allowed);
        cx.op.deadline = cx.app.fail_points.deadline(Instant::now(), allowed);
        errors::operation::until(cx.op.deadline);
    }
    Ok(())
}

fn first_statement<'a>(cx: &CommandContext<'_, 'a>, field: &str) -> Result<Doc<'a>> {
    let list = cx.args.field(field).and_then(|v| v.as_array());
    let first = match list {
        Some(list) => list.values().next().and_then(|v| v.as_doc()),
        None => cx.request.sequence(field).and_then(|mut docs| docs.next()),
    };
    first.ok_or_else(|| err!(FailedToParse, "explained command has no {field}").into())
}

/// The query inside the command that `cx.args` holds.
fn subject<'a>(cx: &CommandContext<'_, 'a>, command: &str) -> Result<Subject<'a>> {
    if command == "find" {
        let f = find::parse(cx)?;
        return Ok(Subject {
            ns: f.ns,
            request: f.request,
            top: None,
            count: false,
            distinct: None,
            collation: f.collation,
            disk_use: f.disk_use,
        });
    }
    let ns = cx.args.namespace()?;
    let written = WrittenQuery::of(cx, command)?;
    let collation = crate::request::collation::given(written.collation)?;
    let lets = cx.args.field("let").and_then(|v| v.as_doc());
    let (env, vars) = variables::variables(cx, &ns, &collation, lets)?;
    let filter = Filter::parse(written.query.unwrap_or(Doc::EMPTY), &env)?;
    let mut request = FindRequest::new(filter);
    request.vars = vars;
    request.hint = match written.hint {
        Some(h) => variables::hint(h)?,
        None => None,
    };
    request.sort = match written.sort.filter(|s| !s.is_empty()) {
        Some(s) => {
            let pattern = SortPattern::parse_found(s)?.collated(env.collation());
            pattern.check_meta(Available::of_text(request.filter.text().is_some()))?;
            Some(pattern)
        }
        None => None,
    };
    if command == "findAndModify" && request.sort.is_some() {
        // The first in the order is what it changes.
        request.limit = Some(1);
    }
    let key = cx.args.field("key").and_then(|v| v.as_str());
    if command == "count" {
        let number = |name: &str| cx.args.field(name).and_then(|v| v.to_i64_truncated());
        request.skip = number("skip").unwrap_or(0).max(0).unsigned_abs();
        request.limit = number("limit").map(i64::unsigned_abs).filter(|n| *n > 0);
    }
    Ok(Subject {
        ns,
        request,
        top: written.top,
        count: command == "count",
        distinct: key.filter(|_| command == "distinct").map(FieldPath::new),
        collation: env.collation().cloned(),
        disk_use: true,
    })
}

/// The query of a command other than find, as it is written.
struct WrittenQuery<'a> {
    query: Option<Doc<'a>>,
    hint: Option<Val<'a>>,
    sort: Option<Doc<'a>>,
    collation: Option<Doc<'a>>,
    /// UPDATE, DELETE, … on top of the query.
    top: Option<&'static str>,
}

impl<'a> WrittenQuery<'a> {
    fn of(cx: &CommandContext<'_, 'a>, command: &str) -> Result<WrittenQuery<'a>> {
        let doc = |name: &str| cx.args.field(name).and_then(|v: Val<'a>| v.as_doc());
        let (sort, top) = match command {
            "update" => {
                return Ok(Self::of_statement(
                    first_statement(cx, "updates")?,
                    "UPDATE",
                ));
            }
            "delete" => {
                return Ok(Self::of_statement(
                    first_statement(cx, "deletes")?,
                    "DELETE",
                ));
            }
            "count" | "distinct" => (None, None),
            _ if cx.args.field("remove").is_some_and(|v| v.truthy()) => {
                (doc("sort"), Some("DELETE"))
            }
            _ => (doc("sort"), Some("UPDATE")),
        };
        Ok(WrittenQuery {
            query: doc("query"),
            hint: cx.args.field("hint"),
            sort,
            collation: doc("collation"),
            top,
        })
    }

    /// A statement of update or delete.
    fn of_statement(s: Doc<'a>, top: &'static str) -> WrittenQuery<'a> {
        WrittenQuery {
            query: s.get("q").and_then(|v| v.as_doc()),
            hint: s.get("hint"),
            sort: None,
            collation: s.get("collation").and_then(|v| v.as_doc()),
            top: Some(top),
        }
    }
}

/// The hashes of a query: of what the planner looks at, and of its shape. Each takes long for a long
/// query.
fn hashes(s: &Subject<'_>, command: Doc<'_>) -> Result<(String, String)> {
    let r = &s.request;
    let sort = r.sort.as_ref().map(|s| s.to_doc());
    let projection = r.projection.as_ref().map(|p| p.to_doc());
    let sort = sort.as_ref().map(|d| d.as_doc());
    let projection = projection.as_ref().map(|d| d.as_doc());
    let collation = s.collation.as_ref();
    errors::operation::ask()?;
    let plan = shape::plan_cache_hash(&r.filter, sort, projection, collation, &[]);
    errors::operation::ask()?;
    let name = command.first().map_or("", |e| e.name);
    let asked = shape::of_query(&shape::Query {
        ns: &s.ns,
        command: name,
        key: match name {
            "distinct" => command.get("key").and_then(|v| v.as_str()),
            _ => None,
        },
        filter: &r.filter,
        sort,
        projection,
        collation,
        skip: r.skip,
        limit: r.limit,
    });
    errors::operation::ask()?;
    Ok((plan, shape::query_shape_hash(asked.as_doc())))
}

/// The most bytes of a command whose shape is told in the log of slow commands.
const LONGEST_TOLD: usize = 64 << 10;

/// The hashes of the command that has run, for the log and the profiler: of what the planner looked at, and
/// of the query's shape (only of those that have one in MongoDB). `None`: it is no query, has several
/// statements, or is too long.
pub(crate) fn hashes_of_command(cx: &CommandContext<'_, '_>) -> Option<(String, Option<String>)> {
    let name = cx.command.name;
    if cx.request.body.len() > LONGEST_TOLD {
        return None;
    }
    match name {
        "aggregate" => explain_pipeline::hashes_of_command(cx).ok(),
        "find" | "count" | "distinct" | "findAndModify" | "update" | "delete" => {
            if cx.statements > 1 && matches!(name, "update" | "delete") {
                return None;
            }
            let (plan, shape) = hashes(&subject(cx, name).ok()?, cx.request.body).ok()?;
            Some((
                plan,
                Some(shape).filter(|_| matches!(name, "find" | "distinct")),
            ))
        }
        _ => None,
    }
}

/// What the planner makes of a query.
struct Planned {
    tree: PlanStage,
    /// Of a run, where one was asked for.
    counted: Option<Counted>,
    index_filter_set: bool,
    rejected: Vec<DocBuf>,
    /// What each of the plans did that there were to choose from, for `allPlansExecution`.
    trials: Vec<DocBuf>,
}

/// What of a subject is looked at while its request runs.
struct Query<'a> {
    ns: &'a str,
    filter: &'a Filter,
    projection: Option<Projection>,
    skip: u64,
    limit: u64,
    count: bool,
    distinct: Option<&'a FieldPath>,
    collation: Option<&'a Collation>,
    /// The plan goes below a stage of the command's own.
    below: bool,
}

/// Plans a query, and runs it if it is to be.
fn plan(
    cx: &mut CommandContext,
    query: &Query<'_>,
    mut request: FindRequest<'_>,
    verbosity: Verbosity,
) -> Result<Planned> {
    let filter = query.filter;
    let runs = verbosity != Verbosity::QueryPlanner;
    cx.op.only_plans = !runs;
    let (view, coll) = cx.op.view(query.ns);
    let Some(coll) = coll else {
        return Ok(Planned {
            tree: stage("EOF"),
            counted: runs.then(Counted::default),
            index_filter_set: false,
            rejected: Vec::new(),
            trials: Vec::new(),
        });
    };
    let index_filter_set = index_filter_set(&coll, &request);
    let plain = !query.below
        && query.distinct.is_none()
        && request.hint.is_none()
        && request.min.is_none()
        && request.max.is_none();
    let mut projection = query.projection.clone();
    let view_of_plan = view.clone();
    if let Some(path) = query.distinct {
        let read = executor::ReadRequest {
            hint: request.hint.clone(),
            vars: filter.wants_vars().then(|| request.vars.clone()),
            ..executor::ReadRequest::new(filter)
        };
        let (plan, needed) =
            executor::distinct_plan(&cx.op, &view, &coll, path, &read, query.collation)?;
        request.plan = Some(Arc::new(plan));
        request.projection = needed.clone();
        projection = needed;
    }
    let hint = request.hint.clone();
    let tries = verbosity == Verbosity::AllPlansExecution;
    let candidates = candidates(cx, query, &request, (&view, &coll), tries)?;
    let mut cursor = FindCursor::over(&mut cx.op, view, coll.clone(), request)?;
    let mut plan = cursor.plan().clone();
    if query.count {
        let req = executor::ReadRequest {
            hint: hint.clone(),
            ..executor::ReadRequest::new(filter)
        };
        plan = req.plan(&cx.app.engine, &view_of_plan, &coll, true)?;
    }
    show_hint_of_id(&mut plan, hint.as_ref());
    let tree = stages(&Explain {
        plan: &plan,
        filter,
        projection: projection.as_ref(),
        indexes: &coll.usable,
        clustered: coll.option("clusteredIndex").is_some(),
        skip: query.skip,
        limit: query.limit,
        count: query.count,
        plain,
    });
    let winner = plan.form();
    let draw = |plan: &planner::Plan| drawn(query, plan, projection.as_ref(), &coll);
    let rejected = candidates.rejected(&winner, &draw);
    let trials = candidates.trial_plans(&winner, &draw);
    let counted = match (runs, query.count) {
        (false, _) => None,
        (true, true) => Some(count_run(&mut cx.op, query.ns, filter, &tree)?.with_returned(0)),
        (true, false) => Some(execute(&mut cx.op, &mut cursor)?),
    };
    Ok(Planned {
        tree,
        counted,
        index_filter_set,
        rejected,
        trials,
    })
}

/// Records that lie in the order of `_id` are what its index would give: where that was asked for, it is
/// shown.
pub(super) fn show_hint_of_id(plan: &mut planner::Plan, hint: Option<&Hint>) {
    let by_id = hint.is_some_and(Hint::names_id);
    if by_id && plan.access.is_scan() && plan.id_bounds.is_empty() {
        plan.id_bounds = vec![planner::Interval::all()];
    }
}

/// The plans that there are for a query; with `tries` each runs against the others. None where nothing is
/// to be chosen.
fn candidates(
    cx: &mut CommandContext<'_, '_>,
    query: &Query<'_>,
    request: &FindRequest<'_>,
    (view, coll): (&storage::View, &Arc<catalog::Collection>),
    tries: bool,
) -> Result<Candidates> {
    if query.distinct.is_some() {
        return Ok(Candidates::default());
    }
    let limit = request.limit.map(|l| l.saturating_add(request.skip));
    let read = executor::ReadRequest {
        sort: request.sort.as_ref(),
        projection: request.projection.as_ref(),
        limit: limit.filter(|_| !query.count),
        hint: request.hint.clone(),
        min: request.min,
        max: request.max,
        vars: query.filter.wants_vars().then(|| request.vars.clone()),
        ..executor::ReadRequest::new(query.filter)
    };
    let mut candidates = Candidates::of(&cx.op, &read, view, coll, query.count)?;
    if tries {
        candidates.run(&mut cx.op, &read, view, coll)?;
    }
    Ok(candidates)
}

/// The stages of a plan that is not the one that answers.
fn drawn(
    query: &Query<'_>,
    plan: &planner::Plan,
    projection: Option<&Projection>,
    coll: &catalog::Collection,
) -> PlanStage {
    stages(&Explain {
        plan,
        filter: query.filter,
        projection,
        indexes: &coll.usable,
        clustered: coll.option("clusteredIndex").is_some(),
        skip: query.skip,
        limit: query.limit,
        count: query.count,
        plain: false,
    })
}

fn write(
    cx: &mut CommandContext,
    command: Doc<'_>,
    subject: Subject<'_>,
    verbosity: Verbosity,
) -> Result<()> {
    cx.op.disk_use = subject.disk_use;
    let (hash, shape_hash) = hashes(&subject, command)?;
    let setting = query_settings::find(cx, || shape_hash.clone());
    let filter = subject.request.filter.clone();
    let query = Query {
        ns: &subject.ns,
        filter: &filter,
        projection: subject.request.projection.clone(),
        skip: subject.request.skip,
        limit: subject.request.limit.unwrap_or(0),
        count: subject.count,
        distinct: subject.distinct.as_ref(),
        collation: subject.collation.as_ref(),
        below: subject.top.is_some(),
    };
    let mut request = subject.request;
    if let Some(hints) = setting.as_ref().and_then(|s| s.hints(&subject.ns))
        && request.min.is_none()
        && request.max.is_none()
    {
        request.hint = Some(hints);
    }
    let Planned {
        mut tree,
        mut counted,
        index_filter_set,
        rejected,
        trials,
    } = plan(cx, &query, request, verbosity)?;
    if let Some(c) = &mut counted {
        tree.walk(&mut |s| {
            if s.name == "SKIP" && s.inputs.iter().any(|i| i.name == "IXSCAN") {
                c.skipped_entries(query.skip);
            }
        });
    }
    if let Some(name) = subject.top {
        let below = std::mem::replace(&mut tree, stage(name));
        tree.inputs.push(below);
    }
    let w = &mut cx.w;
    w.str("explainVersion", "1")
        .str("queryShapeHash", &shape_hash);
    w.open_doc("queryPlanner").str("namespace", &subject.ns);
    write_if_room(w, "parsedQuery", &filter.to_doc(), QUERY_ROOM);
    w.bool("indexFilterSet", index_filter_set);
    if let Some(s) = &setting {
        w.doc("querySettings", s.settings.as_doc());
    }
    write_hashes(w, &hash);
    w.i32("optimizationTimeMillis", 0);
    w.bool("maxIndexedOrSolutionsReached", false)
        .bool("maxIndexedAndSolutionsReached", false);
    w.bool("maxScansToExplodeReached", false)
        .bool("prunedSimilarIndexes", false);
    w.doc("winningPlan", with_cached(tree.to_doc(&|_, _| {})).as_doc());
    w.open_array("rejectedPlans");
    for r in &rejected {
        if w.len() + r.as_bytes().len() <= QUERY_ROOM {
            w.push(r.as_doc().as_val());
        }
    }
    w.close().close();
    if let Some(c) = &counted {
        write_stats(w, &execution_stages(&tree, c, None), c, verbosity, &trials);
    }
    finish(cx, command);
    Ok(())
}

/// The hash of what the planner looked at, under the names it has had.
pub(super) fn write_hashes(w: &mut Writer, hash: &str) {
    w.str("queryHash", hash)
        .str("planCacheShapeHash", hash)
        .str("planCacheKey", hash);
}

/// Whether an index filter holds for a query.
pub(super) fn index_filter_set(coll: &catalog::Collection, request: &FindRequest<'_>) -> bool {
    let read = executor::ReadRequest {
        sort: request.sort.as_ref(),
        projection: request.projection.as_ref(),
        ..executor::ReadRequest::new(&request.filter)
    };
    read.index_filter(coll).is_some()
}

/// How long a reply may be with the query that it explains, and with the command: a list of a million
/// values is in both, and what follows has to fit into the reply too.
pub(super) const QUERY_ROOM: usize = 6 << 20;
const COMMAND_ROOM: usize = 15 << 20;

/// A field, or the warning that there is no room for it.
pub(super) fn write_if_room(w: &mut Writer, name: &str, value: &DocBuf, room: usize) {
    if w.len() + value.as_bytes().len() <= room {
        w.doc(name, value.as_doc());
    } else {
        let why = format!("'{name}' has been omitted due to BSON size limit");
        w.str("warning", &why);
    }
}

/// The parts that every explain ends with.
pub(super) fn finish(cx: &mut CommandContext, command: Doc<'_>) {
    let config = &cx.app.config;
    let host = config
        .advertise
        .clone()
        .unwrap_or_else(|| "localhost".to_string());
    let w = &mut cx.w;
    let mut whole = Writer::new();
    whole.extend(command).str("$db", cx.args.db);
    write_if_room(w, "command", &whole.finish(), COMMAND_ROOM);
    w.open_doc("serverInfo")
        .str("host", &host)
        .i32("port", i32::from(config.port));
    w.str("version", version::VERSION)
        .str("gitVersion", "")
        .close();
    w.open_doc("serverParameters")
        .i32("internalQueryMaxBlockingSortMemoryUsageBytes", 104_857_600);
    w.i32("internalDocumentSourceGroupMaxMemoryBytes", 104_857_600)
        .close();
}

pub(super) fn stage(name: &'static str) -> PlanStage {
    PlanStage {
        name,
        fields: DocBuf::new(),
        inputs: Vec::new(),
        index: None,
    }
}

/// `isCached` stands first in the winning plan since MongoDB 7.
fn with_cached(d: DocBuf) -> DocBuf {
    let mut w = Writer::new();
    w.bool("isCached", false).extend(d.as_doc());
    w.finish()
}
