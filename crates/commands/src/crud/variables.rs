//! `let`, `hint` and what else several commands on data share.

use crate::Commands;
use crate::clock::now_millis;
use crate::request::CommandContext;
use crate::request::collation::{self, CollationArgument};
use bson::{Doc, Elem, Val, Value, Writer, tag};
use errors::{Result, bail};
use executor::{OpCtx, ReadRequest, RecordStream};
use planner::Hint;
use query::collation::Collation;
use query::expr::{EvalCtx, Expression, ParseEnv, Vars};
use query::filter::Filter;
use std::sync::Arc;

/// Functions of `system.js` past so many bytes are not known to scripts.
const STORED_BYTES: usize = 16 << 20;

/// The variables of a command: `$$NOW`, `$$CLUSTER_TIME` and those of its `let`, whose values are
/// computed once. Under the collation that is given, or else the collection's.
pub fn variables(
    cx: &CommandContext,
    ns: &str,
    given: &CollationArgument,
    let_: Option<Doc<'_>>,
) -> Result<(ParseEnv, Arc<Vars>)> {
    let mut vars = Vars::new(now_millis());
    if let Some(remote) = cx.app.remote_collections.get() {
        vars.set_cluster_time(remote.time());
    } else if cx.app.config.topology.set_name().is_some() {
        vars.set_cluster_time(cx.app.store.last_ts());
    }
    if let Some(stored) = stored_functions(cx)? {
        vars.set(query::script::STORED, stored);
    }
    let collation = collation::effective(cx, ns, given)?;
    let (env, vars) = with_let(collation, let_, vars, |vars| cx.op.interruptible(vars))?;
    Ok((env, Arc::new(vars)))
}

/// The same at a router, where no collection says what holds. `interruptible`: as of [`with_let`].
pub fn of_router(
    app: &Commands,
    given: CollationArgument,
    let_: Option<Doc<'_>>,
    interruptible: impl FnOnce(&Vars) -> Arc<Vars>,
) -> Result<(ParseEnv, Arc<Vars>)> {
    let mut vars = Vars::new(now_millis());
    if let Some(remote) = app.remote_collections.get() {
        vars.set_cluster_time(remote.time());
    }
    let (env, vars) = with_let(given.flatten(), let_, vars, interruptible)?;
    Ok((env, Arc::new(vars)))
}

/// For a query that a router only checks.
pub fn unread(
    app: &Commands,
    given: CollationArgument,
    let_: Option<Doc<'_>>,
) -> Result<(ParseEnv, Arc<Vars>)> {
    let (deadline, scripting) = (errors::operation::deadline(), app.config.scripting);
    let stoppable = |vars: &Vars| executor::stoppable(deadline, scripting, vars);
    of_router(app, given, let_, stoppable)
}

/// What a command's expressions are parsed and run with: `vars` and the variables of its `let`.
/// `interruptible`: the same variables, whose computations can be ended.
pub fn with_let(
    collation: Option<Collation>,
    let_: Option<Doc<'_>>,
    mut vars: Vars,
    interruptible: impl FnOnce(&Vars) -> Arc<Vars>,
) -> Result<(ParseEnv, Vars)> {
    let env = ParseEnv::new().collated(collation);
    let mut env = env.allow_where(true).allow_text(true);
    if let Some(d) = let_ {
        let base = Vars::clone(&interruptible(&vars));
        define(d, &mut env, &mut vars, base)?;
    }
    Ok((env, vars))
}

/// Makes the variables of a `let` known, in `env` and `vars`. `base`: a copy of `vars` whose
/// computations can be ended. One may name those before it.
fn define(d: Doc<'_>, env: &mut ParseEnv, vars: &mut Vars, mut base: Vars) -> Result<()> {
    for e in d {
        if let "NOW" | "CLUSTER_TIME" | "JS_SCOPE" | "IS_MR" | "USER_ROLES" = e.name {
            bail!(4738901, "Cannot override the system variable '{}'", e.name);
        }
        let expression = Expression::parse(e.val, env)?;
        if expression.needed_paths().is_none_or(|p| !p.is_empty()) {
            bail!(
                4890500,
                "Command let Expression tried to access a field, but this is not allowed because command let expressions run before the query examines any documents."
            );
        }
        if let Some(name) = expression.runtime_variable() {
            bail!(51144, "Builtin variable '$${name}' is not available");
        }
        let value = expression.evaluate(&EvalCtx::new(Doc::EMPTY, &base))?;
        let value = value.as_val().map(|v| v.to_value());
        base.define(e.name, value.clone());
        vars.define(e.name, value);
        env.define(e.name)?;
    }
    Ok(())
}

/// The documents of the database's `system.js`, an array, for a command that may run `$where` or
/// `mapReduce`.
fn stored_functions(cx: &CommandContext) -> Result<Option<Value>> {
    // Each command comes by here: a formatter would cost more than the look-up.
    let ns = [cx.args.db, ".system.js"].concat();
    if cx.app.engine.catalog.get(&ns).is_none() {
        return Ok(None);
    }
    let may_run = match cx.command.name {
        "mapReduce" | "update" | "delete" | "bulkWrite" => true,
        _ => memchr::memmem::find(cx.request.body.as_bytes(), b"$where").is_some(),
    };
    if !may_run {
        return Ok(None);
    }
    cx.op.need_worker()?;
    let mut op = OpCtx::worker(&cx.app.engine);
    let (view, Some(coll)) = op.view(&ns) else {
        return Ok(None);
    };
    let filter = Filter::all();
    let mut rows = RecordStream::open(&mut op, view, coll, &ReadRequest::new(&filter))?;
    let mut w = Writer::new_array();
    while rows.next(&mut op)? && w.len() < STORED_BYTES {
        w.push(rows.doc().as_val());
    }
    Ok(Some(w.finish_array()))
}

/// Reads the argument `hint`, where null is a hint left out.
pub fn read_hint(_within: &str, e: Elem<'_>) -> Result<Option<Hint>> {
    hint(e.val)
}

/// Reads the argument `hint` of a command for which null is a wrong type.
pub fn read_hint_not_null(_within: &str, e: Elem<'_>) -> Result<Option<Hint>> {
    if e.val.is_nullish() {
        bail!(FailedToParse, "Hint must be a string or an object");
    }
    hint(e.val)
}

/// A hint: an index by name or by key pattern, or the natural order; `None` for an empty one.
pub fn hint(v: Val<'_>) -> Result<Option<Hint>> {
    match v.tag {
        tag::STRING => Ok(Some(Hint::Name(v.as_str().unwrap_or("").to_string()))),
        tag::DOCUMENT => {
            let d = v.as_doc().unwrap_or(Doc::EMPTY);
            match d.first() {
                None => Ok(None),
                Some(Elem {
                    name: "$natural", ..
                }) if d.count() > 1 => bail!(
                    BadValue,
                    "Cannot include '$natural' in a hint of several fields: {}",
                    bson::shell::doc(d)
                ),
                Some(Elem {
                    name: "$natural",
                    val,
                }) => match val.to_f64() {
                    Some(1.0) => Ok(Some(Hint::Natural { reverse: false })),
                    Some(-1.0) => Ok(Some(Hint::Natural { reverse: true })),
                    _ => bail!(BadValue, "$natural hint must be 1 or -1"),
                },
                Some(_) => Ok(Some(Hint::Key(d.to_buf()))),
            }
        }
        tag::NULL | tag::UNDEFINED => Ok(None),
        _ => bail!(FailedToParse, "Hint must be a string or an object"),
    }
}
