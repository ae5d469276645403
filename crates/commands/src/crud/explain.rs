//! `explain`: the plan of a command, and with a higher verbosity what running it examined. Writes
//! are not made.

use super::{find, on_view, shape, variables};
use crate::request::args::{self, Args};
use crate::request::idl;
use crate::request::{CommandContext, Done};
use crate::settings::query_settings;
use crate::version;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, Stop, bail, err};
use executor::{FindCursor, FindRequest, OpCtx};
use planner::Hint;
use planner::explain::{Explain, PlanStage, stages};
use query::collation::Collation;
use query::filter::Filter;
use query::metadata::Available;
use query::path::FieldPath;
use query::pipeline::StageCounters;
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

/// What is explained: a query, and the stage that uses its results.
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

/// What is to be explained, and how much is to be told of it.
struct Asked<'a> {
    inner: Doc<'a>,
    command: &'static str,
    verbosity: Verbosity,
}

impl<'a> Asked<'a> {
    fn of(args: &Args<'a>) -> Result<Asked<'a>> {
        let given = args.first;
        if given.is_nullish() {
            return Err(idl::missing("explain", "explain"));
        }
        let Some(inner) = given.as_doc() else {
            return Err(idl::mismatch("explain", "explain", given, &["object"]));
        };
        idl::unique(inner.first().map_or("explain", |e| e.name), inner)?;
        let verbosity = verbosity(args)?;
        if let Some(limit) = inner.get("maxTimeMS") {
            args::max_time_ms("maxTimeMS", limit)?;
        }
        let command = explained(inner.first().map_or("", |e| e.name))?;
        Ok(Asked {
            inner,
            command,
            verbosity,
        })
    }
}

/// Checks the arguments as far as that needs no collection.
pub fn check(args: &Args<'_>) -> Result<()> {
    let asked = Asked::of(args)?;
    Args::parse(asked.command, asked.inner, Some(args.db)).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Asked {
        inner,
        command,
        verbosity,
    } = Asked::of(&cx.args)?;
    cx.op.need_worker()?;
    heed_inner_limit(cx, inner)?;
    if command == "aggregate" {
        return super::aggregate::explain(cx, inner, verbosity);
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
            "find" | "count" | "distinct" => on_view::explain(cx, command, inner, verbosity),
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
        _ if crate::request::table::lookup(name).is_some() => {
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
    let first = list
        .and_then(|a| a.values().next())
        .and_then(|v| v.as_doc());
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

/// What a run of the query counted.
#[derive(Default)]
pub(super) struct Counted {
    returned: u64,
    keys: u64,
    docs: u64,
    seeks: u64,
    hidden: u64,
    /// What came out of the scans of indexes.
    entries: u64,
    sort_bytes: u64,
    sort_rows: u64,
    millis: i64,
    error: Option<errors::Error>,
}

impl From<&StageCounters> for Counted {
    fn from(f: &StageCounters) -> Counted {
        Counted {
            returned: f.returned,
            keys: f.keys,
            docs: f.docs,
            seeks: f.seeks,
            hidden: f.hidden,
            entries: entries(f.docs, f.returned),
            sort_bytes: f.sort_bytes,
            sort_rows: f.sort_rows,
            millis: f.time.as_millis() as i64,
            error: None,
        }
    }
}

/// What index scans gave: all of it is fetched, if anything is.
fn entries(docs: u64, returned: u64) -> u64 {
    if docs > 0 { docs } else { returned }
}

fn execute(op: &mut OpCtx, cursor: &mut FindCursor) -> Result<Counted> {
    let started = Instant::now();
    let hidden = op.examined().hidden;
    let mut c = Counted::default();
    loop {
        match cursor.next(op) {
            Ok(true) => {
                cursor.doc()?;
                c.returned += 1;
            }
            Ok(false) => break,
            Err(Stop::Failed(e)) if !e.is_interruption() => {
                c.error = Some(e);
                break;
            }
            Err(stop) => return Err(stop),
        }
    }
    let x = cursor.examined();
    (c.keys, c.docs, c.seeks) = (x.keys, x.docs, x.seeks);
    c.hidden = op.examined().hidden.saturating_sub(hidden);
    c.entries = entries(c.docs, c.returned);
    let (bytes, rows) = cursor.sorted();
    (c.sort_bytes, c.sort_rows) = (bytes as u64, rows);
    c.millis = started.elapsed().as_millis() as i64;
    Ok(c)
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

/// What the planner makes of a query.
struct Planned {
    tree: PlanStage,
    /// Of a run, where one was asked for.
    counted: Option<Counted>,
    /// There was more than one plan to choose from.
    choice: bool,
    index_filter_set: bool,
    rejected: Vec<DocBuf>,
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
            choice: false,
            index_filter_set: false,
            rejected: Vec::new(),
        });
    };
    let choice = has_choice(&coll, filter);
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
    let others = considered(cx, query, &request, &view, &coll)?;
    let mut cursor = FindCursor::over(&mut cx.op, view, coll.clone(), request)?;
    let mut plan = cursor.plan().clone();
    if query.count {
        let req = executor::ReadRequest {
            hint: hint.clone(),
            ..executor::ReadRequest::new(filter)
        };
        plan = req.plan(&cx.app.engine, &view_of_plan, &coll, true)?;
    }
    // Records that lie in the order of `_id` are what its index would give: that was asked for.
    let by_id = hint.as_ref().is_some_and(Hint::names_id);
    if by_id && plan.access.is_scan() && plan.id_bounds.is_empty() {
        plan.id_bounds = vec![planner::Interval::all()];
    }
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
    let others = others.iter().filter(|e| e.plan.form() != winner);
    let rejected = others.map(|e| rejected_plan(query, e, projection.as_ref(), &coll));
    let rejected = rejected.collect();
    let counted = match (runs, query.count) {
        (false, _) => None,
        (true, true) => Some(Counted {
            returned: 0,
            ..count_run(cx, query.ns, filter, &tree)?
        }),
        (true, false) => Some(execute(&mut cx.op, &mut cursor)?),
    };
    Ok(Planned {
        tree,
        counted,
        choice,
        index_filter_set,
        rejected,
    })
}

/// The plans that there are for a query, with what is thought of each; none where nothing is to be
/// chosen.
fn considered(
    cx: &CommandContext<'_, '_>,
    query: &Query<'_>,
    request: &FindRequest<'_>,
    view: &storage::View,
    coll: &Arc<catalog::Collection>,
) -> Result<Vec<planner::Estimated>> {
    if query.distinct.is_some() {
        return Ok(Vec::new());
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
    let choice = read.choose(&cx.app.engine, view, coll, query.count)?;
    let mut all = choice.others;
    if let Some((reads, cost)) = choice.estimated {
        let plan = choice.plan;
        let rival = false;
        all.insert(
            0,
            planner::Estimated {
                plan,
                reads,
                cost,
                rival,
            },
        );
    }
    Ok(all)
}

/// A plan that did not win, and what it was thought to read.
fn rejected_plan(
    query: &Query<'_>,
    e: &planner::Estimated,
    projection: Option<&Projection>,
    coll: &catalog::Collection,
) -> DocBuf {
    let tree = stages(&Explain {
        plan: &e.plan,
        filter: query.filter,
        projection,
        indexes: &coll.usable,
        clustered: coll.option("clusteredIndex").is_some(),
        skip: query.skip,
        limit: query.limit,
        count: query.count,
        plain: false,
    });
    let mut w = Writer::new();
    w.bool("isCached", false)
        .extend(tree.to_doc(&|_, _| {}).as_doc());
    w.f64("keysEstimate", e.reads.keys.round())
        .f64("docsEstimate", e.reads.given.round())
        .bool("counted", e.reads.exact)
        .f64("costEstimate", e.cost.likely.round());
    w.finish()
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
        choice,
        index_filter_set,
        rejected,
    } = plan(cx, &query, request, verbosity)?;
    if let Some(c) = &mut counted {
        tree.walk(&mut |s| {
            if s.name == "SKIP" && s.inputs.iter().any(|i| i.name == "IXSCAN") {
                c.entries = c.entries.saturating_add(query.skip).min(c.keys);
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
        write_stats(w, &execution_stages(&tree, c, None), c, verbosity, choice);
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

/// `executionStats`.
pub(super) fn write_stats(
    w: &mut Writer,
    tree: &DocBuf,
    c: &Counted,
    verbosity: Verbosity,
    choice: bool,
) {
    w.open_doc("executionStats")
        .bool("executionSuccess", c.error.is_none());
    if let Some(e) = &c.error {
        w.str("errorMessage", &e.message).i32("errorCode", e.code.0);
    }
    w.int("nReturned", c.returned as i64)
        .int("executionTimeMillis", c.millis);
    w.int("totalKeysExamined", c.keys as i64)
        .int("totalDocsExamined", c.docs as i64);
    if c.hidden > 0 {
        w.int("totalHiddenKeysSkipped", c.hidden as i64);
    }
    w.doc("executionStages", tree.as_doc());
    if verbosity == Verbosity::AllPlansExecution {
        w.open_array("allPlansExecution");
        if choice {
            // Plans are chosen by what they would cost: the one that won is the only one that ran.
            w.open_doc("")
                .int("nReturned", c.returned as i64)
                .int("executionTimeMillisEstimate", c.millis)
                .int("totalKeysExamined", c.keys as i64)
                .int("totalDocsExamined", c.docs as i64)
                .doc("executionStages", tree.as_doc())
                .close();
        }
        w.close();
    }
    w.close();
}

impl Counted {
    /// The same run, which gave another number of documents in the end.
    pub(super) fn with_returned(mut self, returned: u64) -> Counted {
        self.returned = returned;
        self
    }
}

/// Whether more than one index bears on a filter.
pub(super) fn has_choice(coll: &catalog::Collection, filter: &Filter) -> bool {
    let Some(paths) = query::pipeline::filter_paths(filter.root()) else {
        return false;
    };
    let bears = |i: &&planner::IndexInfo| {
        let first = i.key.fields.first();
        i.ready && !i.hidden && first.is_some_and(|f| paths.contains(f.path.as_str()))
    };
    coll.usable.iter().filter(bears).count() > 1
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

/// A count is run as count runs it, so that the figures are those of the command.
fn count_run(
    cx: &mut CommandContext,
    ns: &str,
    filter: &Filter,
    tree: &PlanStage,
) -> Result<Counted> {
    let started = Instant::now();
    let mut c = Counted::default();
    let below = tree.inputs.first().map_or(tree.name, |s| s.name);
    if matches!(below, "IXSCAN" | "COUNT_SCAN" | "RECORD_STORE_FAST_COUNT") {
        let before = cx.op.examined();
        c.entries = executor::count(&mut cx.op, ns, &executor::ReadRequest::new(filter), 0, 0)?;
        c.hidden = cx.op.examined().hidden.saturating_sub(before.hidden);
        match below {
            "COUNT_SCAN" => c.keys = c.entries + 1,
            "IXSCAN" => {
                c.keys = cx.op.examined.keys - before.keys;
                c.seeks = cx.op.examined.seeks - before.seeks;
            }
            _ => {}
        }
    } else if let Some(mut cursor) =
        FindCursor::open(&mut cx.op, ns, FindRequest::new(filter.clone()))?
    {
        c = execute(&mut cx.op, &mut cursor)?;
    }
    c.millis = started.elapsed().as_millis() as i64;
    Ok(c)
}

/// What a run counted at each stage; a `GROUP` at the top gave `groups`.
pub(super) fn execution_stages(tree: &PlanStage, c: &Counted, groups: Option<u64>) -> DocBuf {
    tree.to_doc(&|s, w| {
        let returned = match s.name {
            "GROUP" => groups.unwrap_or(c.returned),
            "IXSCAN" | "DISTINCT_SCAN" | "COUNT_SCAN" => c.entries,
            "FETCH" if !s.fields.as_doc().contains("filter") => c.docs.max(c.returned),
            _ => c.returned,
        };
        w.int("nReturned", returned as i64)
            .i32("executionTimeMillisEstimate", 0);
        w.int("works", (c.keys.max(c.docs) + 1) as i64)
            .int("advanced", returned as i64);
        w.i32("needTime", 0)
            .i32("needYield", 0)
            .i32("saveState", 0)
            .i32("restoreState", 0)
            .i32("isEOF", 1);
        match s.name {
            "IXSCAN" | "DISTINCT_SCAN" | "COUNT_SCAN" | "EXPRESS_IXSCAN" => {
                w.int("keysExamined", c.keys as i64);
                if matches!(s.name, "IXSCAN" | "EXPRESS_IXSCAN") {
                    w.int("seeks", c.seeks.max(1) as i64)
                        .i32("dupsTested", 0)
                        .i32("dupsDropped", 0);
                }
                if s.name == "EXPRESS_IXSCAN" {
                    w.int("docsExamined", c.docs as i64);
                }
            }
            "COLLSCAN" | "FETCH" => {
                w.int("docsExamined", c.docs as i64);
                if s.name == "FETCH" {
                    w.i32("alreadyHasObj", 0);
                }
            }
            "SORT" => {
                w.int("totalDataSizeSorted", c.sort_bytes as i64)
                    .bool("usedDisk", false);
                w.int("spills", 0).int("rowsSorted", c.sort_rows as i64);
            }
            "UPDATE" => {
                w.int("nMatched", c.returned as i64)
                    .int("nWouldModify", c.returned as i64);
                w.int("nWouldUpsert", 0);
            }
            "DELETE" => {
                w.int("nWouldDelete", c.returned as i64);
            }
            _ => {}
        }
    })
}
