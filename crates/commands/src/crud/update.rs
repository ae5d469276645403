//! `update`.

use super::batch::{self, Common, Statements};
use super::variables;
use crate::clock::now_millis;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Value, Writer};
use errors::{Error, Result, Stop, bail};
use executor::{OpCtx, Retry, StmtResult, UpdateRequest, Updated};
use front::idl;
use planner::Hint;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::pipeline;
use query::sort::SortPattern;
use query::update::Update;
use std::sync::Arc;

/// One statement of an update command, parsed.
pub struct UpdateStatement {
    pub filter: Filter,
    pub update: Update,
    pub multi: bool,
    pub upsert: bool,
    pub sort: Option<SortPattern>,
    pub hint: Option<Hint>,
    pub vars: Arc<Vars>,
}

/// A statement as it was written, its arguments checked. An error in one is the whole command's;
/// what filter and update say is the statement's own.
pub(super) struct Written<'a> {
    pub q: Doc<'a>,
    pub u: Val<'a>,
    pub array_filters: Vec<Doc<'a>>,
    pub constants: Option<Doc<'a>>,
    pub sort: Option<Doc<'a>>,
    pub multi: bool,
    pub upsert: bool,
    pub hint: Option<Hint>,
    pub collation: CollationArgument,
}

idl::arguments! {
    struct Arguments<'a> {
        "q" => q: Option<Doc<'a>> = idl::doc,
        "u" => u: Option<Val<'a>> = idl::value,
        "c" => constants: Option<Doc<'a>> = idl::doc,
        "multi" => multi: bool = idl::flag,
        "upsert" => upsert: bool = idl::flag,
        "arrayFilters" => array_filters: Option<Doc<'a>> = idl::array,
        "hint" => hint: Option<Hint> = variables::read_hint,
        "sort" => sort: Option<Doc<'a>> = idl::non_empty_doc,
        "collation" => collation: CollationArgument = collation::read,
    }
    ignored: "upsertSupplied" | "sampleId" | "allowShardKeyUpdatesWithoutFullShardKeyInQuery"
        | "includeQueryStatsMetricsForOpIndex";
}

/// A longer update reserves memory for what becomes of it, in times of its length: the document of before and after, the entry, keys,
/// the engine's batch.
const LONG_UPDATE: usize = 256 << 10;
const ENTRY_OF_UPDATE: usize = 8;

pub(super) fn reserve_for(op: &mut OpCtx<'_>, update: Val<'_>) -> Result<()> {
    match update.bytes.len() {
        ..LONG_UPDATE => Ok(()),
        long => op.reserve(ENTRY_OF_UPDATE * long),
    }
}

fn read(d: Doc<'_>) -> Result<Written<'_>> {
    const AT: &str = "update.updates";
    let a = Arguments::parse_document(AT, d)?;
    let q = idl::required(AT, "q", a.q)?;
    let u = idl::required(AT, "u", a.u)?;
    if !matches!(u.tag, bson::tag::DOCUMENT | bson::tag::ARRAY) {
        bail!(
            FailedToParse,
            "Update argument must be either an object or an array"
        );
    }
    Ok(Written {
        q,
        u,
        array_filters: array_filters(AT, a.array_filters)?,
        constants: a.constants,
        sort: a.sort,
        multi: a.multi,
        upsert: a.upsert,
        hint: a.hint,
        collation: a.collation,
    })
}

/// The documents of `arrayFilters`.
pub(super) fn array_filters<'a>(within: &str, filters: Option<Doc<'a>>) -> Result<Vec<Doc<'a>>> {
    let mut docs = Vec::new();
    for (i, v) in filters.into_iter().flat_map(|f| f.values()).enumerate() {
        let Some(d) = v.as_doc() else {
            bail!(
                TypeMismatch,
                "BSON field '{within}.arrayFilters.{i}' is the wrong type '{}', expected type 'object'",
                v.type_name()
            );
        };
        docs.push(d);
    }
    Ok(docs)
}

fn parse(s: &Written<'_>, env: &ParseEnv, vars: &Arc<Vars>) -> Result<UpdateStatement> {
    let &Written {
        q,
        u,
        constants,
        sort,
        multi,
        upsert,
        ..
    } = s;
    let (env, vars) = match constants {
        None => (env.clone(), vars.clone()),
        Some(c) => {
            if !matches!(u.tag, bson::tag::ARRAY) {
                bail!(
                    51198,
                    "Constant values may only be specified for pipeline updates"
                );
            }
            let (mut env, mut vars) = (env.clone(), Vars::clone(vars));
            for e in c {
                env.define(e.name)?;
                vars.set(e.name, e.val.to_value());
            }
            (env, Arc::new(vars))
        }
    };
    let update = Update::parse(u, &s.array_filters, &env)?;
    if multi && update.is_replacement() {
        bail!(
            FailedToParse,
            "multi update is not supported for replacement-style update"
        );
    }
    if multi && sort.is_some() {
        bail!(FailedToParse, "Cannot specify sort with multi=true");
    }
    let sort = match sort {
        Some(s) => Some(SortPattern::parse(s)?.collated(env.collation())),
        None => None,
    };
    Ok(UpdateStatement {
        filter: Filter::parse(q, &env)?,
        update,
        multi,
        upsert,
        sort,
        hint: s.hint.clone(),
        vars,
    })
}

/// What a statement that ran before is answered with.
pub(super) fn done_before(done: &StmtResult) -> Updated {
    Updated {
        matched: if done.upserted.is_some() { 0 } else { done.n },
        modified: done.n_modified,
        upserted: done.upserted.clone(),
        ..Default::default()
    }
}

/// Runs the statement at that position.
pub(super) fn execute(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    s: &Written<'_>,
    shared: &mut Statements,
    at: usize,
) -> Result<Updated> {
    let written = s;
    let s = parse(s, &*shared.env_of(cx, ns, &s.collation)?, &shared.vars)?;
    reserve_for(&mut cx.op, written.u)?;
    if s.multi && shared.hold.is_some() {
        bail!(
            InvalidOptions,
            "Cannot use retryable writes with multi=true"
        );
    }
    let mut vars = s.vars;
    if s.filter.wants_vars() || s.update.wants_vars() {
        vars = cx.op.interruptible(&vars);
    }
    let req = UpdateRequest {
        filter: &s.filter,
        update: &s.update,
        multi: s.multi,
        upsert: s.upsert,
        sort: s.sort.as_ref(),
        hint: s.hint.clone(),
        vars: &vars,
        now_millis: now_millis(),
        images: false,
    };
    match &mut shared.hold {
        None => executor::update(&mut cx.op, ns, &req, at, None),
        Some(h) => {
            let mut statements = h.statements(&shared.ids);
            let retry: &mut dyn Retry = &mut statements;
            executor::update(&mut cx.op, ns, &req, at, Some(retry))
        }
    }
}

/// Refuses stages of names that MongoDB does not have; anything but a pipeline passes.
fn check_stage_names(u: Val<'_>) -> Result<()> {
    let stages = u.as_array().unwrap_or(Doc::EMPTY);
    for stage in stages.values().filter_map(|v| v.as_doc()?.first()) {
        if !pipeline::is_stage(stage.name) {
            bail!(40324, "Unrecognized pipeline stage name: '{}'", stage.name);
        }
    }
    Ok(())
}

/// What the statements of a command did.
#[derive(Default)]
struct Outcomes {
    n: u64,
    modified: u64,
    /// Position of the statement, and `_id`.
    upserted: Vec<(usize, Value)>,
    errors: Vec<(usize, Error)>,
    /// The ids of statements that ran before.
    again: Vec<i32>,
}

impl Outcomes {
    fn add(&mut self, at: usize, u: Updated) {
        self.n += u.matched + u64::from(u.upserted.is_some());
        self.modified += u.modified;
        self.upserted.extend(u.upserted.map(|id| (at, id)));
    }

    fn write(&self, w: &mut Writer) {
        w.i32("n", self.n as i32);
        if !self.upserted.is_empty() {
            w.open_array("upserted");
            for (at, id) in &self.upserted {
                w.open_doc("")
                    .i32("index", *at as i32)
                    .val("_id", id.as_val())
                    .close();
            }
            w.close();
        }
        w.i32("nModified", self.modified as i32);
        batch::write_errors(w, &self.errors);
        batch::retried(w, &self.again);
    }
}

/// The arguments that all writing commands have.
fn common<'r>(cx: &CommandContext<'_, 'r>) -> Result<Common<'r>> {
    let mut common = Common::default();
    for e in &cx.args.fields {
        if e.name != "updates" && !common.read("update", *e)? {
            return Err(cx.args.unknown(*e));
        }
    }
    Ok(common)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let docs = batch::documents(cx.request, &cx.args, "update", "updates")?;
    cx.statements = docs.len() as u64;
    let common = common(cx)?;
    if docs.len() > 1 {
        // A later statement must see the earlier ones, and could not be handed over after them.
        cx.op.need_worker()?;
    }
    cx.op.bypass_validation = common.bypass_validation;
    let (env, vars) = variables::variables(cx, &ns, &None, common.let_)?;
    let statements = docs.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    let mut shared = Statements {
        env,
        vars,
        hold: batch::retryable(cx)?,
        ids: common.ids(statements.len()),
    };
    let mut outcomes = Outcomes::default();
    for (at, s) in statements.iter().enumerate() {
        if let Some(done) = shared.executed(at) {
            outcomes.add(at, done_before(done));
            outcomes.again.push(shared.id(at));
            cx.after_commit = true;
            continue;
        }
        match execute(cx, &ns, s, &mut shared, at) {
            Ok(u) => {
                cx.work.wrote(&u);
                outcomes.add(at, u);
            }
            Err(Stop::Failed(e)) if !batch::is_fatal(&e) => {
                outcomes.errors.push((at, e));
                if common.is_ordered() {
                    break;
                }
            }
            Err(stop) => return Err(stop),
        }
    }
    // An unknown stage is the whole command's error; it is found when its stages are counted, after the
    // writes.
    for s in &statements {
        check_stage_names(s.u)?;
    }
    outcomes.write(&mut cx.w);
    Ok(Done::Reply)
}
