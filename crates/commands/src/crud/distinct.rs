//! `distinct`.

use super::{shape, snapshot, variables, view_rewrite};
use crate::Commands;
use crate::crud::query_settings;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf};
use errors::{Result, bail};
use executor::ReadRequest;
use front::{Args, idl};
use planner::Hint;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::path::FieldPath;
use std::sync::Arc;

/// A distinct as parsed.
struct Distinct<'a> {
    ns: String,
    key: &'a str,
    filter: Filter,
    hint: Option<Hint>,
    env: ParseEnv,
    vars: Arc<Vars>,
}

idl::arguments! {
    struct Arguments<'a> {
        "key" => key: Option<&'a str> = idl::string,
        "query" => query: Option<Doc<'a>> = idl::doc,
        "hint" => hint: Option<Hint> = variables::read_hint_not_null,
        "collation" => collation: CollationArgument = collation::read,
    }
    ignored: "collectionUUID" | "includeQueryStatsMetrics";
}

/// The namespace, the key, and the arguments as they are written.
fn arguments<'a>(args: &Args<'a>) -> Result<(String, &'a str, Arguments<'a>)> {
    const AT: &str = "distinct";
    let ns = args.namespace()?;
    let a = Arguments::parse(AT, args.fields.iter().copied())?;
    let key = idl::required(AT, "key", a.key)?;
    if key.contains('\0') {
        bail!(31032, "Keys cannot contain null bytes.");
    }
    Ok((ns, key, a))
}

/// Checks the arguments as far as that needs no collection.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

/// Fails where a distinct fails over a collection that is not there.
pub fn check_over_nothing(app: &Commands, args: &Args<'_>) -> Result<()> {
    let (_, _, a) = arguments(args)?;
    let (env, _) = variables::unread(app, a.collation, None)?;
    let filter = Filter::parse(a.query.unwrap_or(Doc::EMPTY), &env)?;
    executor::bind_text(&filter, None).map(drop)
}

fn parse<'a>(cx: &CommandContext<'_, 'a>) -> Result<Distinct<'a>> {
    let (ns, key, a) = arguments(&cx.args)?;
    let (env, vars) = variables::variables(cx, &ns, &a.collation, None)?;
    Ok(Distinct {
        ns,
        key,
        filter: Filter::parse(a.query.unwrap_or(Doc::EMPTY), &env)?,
        hint: a.hint,
        env,
        vars,
    })
}

impl Distinct<'_> {
    fn shape(&self) -> DocBuf {
        shape::of_query(&shape::Query {
            ns: &self.ns,
            command: "distinct",
            key: Some(self.key),
            filter: &self.filter,
            sort: None,
            projection: None,
            collation: self.env.collation(),
            skip: 0,
            limit: None,
        })
    }
}

/// The shape of the distinct that `cx.args` holds, which is checked.
pub fn query_shape(cx: &CommandContext<'_, '_>) -> Result<DocBuf> {
    Ok(parse(cx)?.shape())
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut d = parse(cx)?;
    if !cx.app.query_settings.is_empty() {
        let shape = d.shape();
        query_settings::heed(cx, &d.ns, &shape, &mut d.hint)?;
    }
    let vars = d.filter.wants_vars().then(|| cx.op.interruptible(&d.vars));
    let req = ReadRequest {
        hint: d.hint,
        vars,
        ..ReadRequest::new(&d.filter)
    };
    let path = FieldPath::new(d.key);
    snapshot::enter(cx)?;
    let values = match executor::distinct(&mut cx.op, &d.ns, &path, &req, d.env.collation()) {
        Err(e) if view_rewrite::wanted(&e) => return view_rewrite::distinct(cx, d.key),
        values => values?,
    };
    cx.w.open_array("values");
    for v in &values {
        cx.w.push(v.as_val());
    }
    cx.w.close();
    snapshot::append(&cx.op, &mut cx.w);
    Ok(Done::Reply)
}
