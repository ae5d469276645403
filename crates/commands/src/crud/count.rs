//! `count`.

use super::{variables, view_rewrite};
use crate::Commands;
use crate::crud::oplog;
use crate::crud::stored_config;
use crate::oplog_view;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, Elem};
use errors::{Result, bail};
use executor::ReadRequest;
use front::{Args, idl};
use planner::Hint;
use query::filter::Filter;

idl::arguments! {
    struct Arguments<'a> {
        "query" => query: Option<Doc<'a>> = idl::doc,
        "skip" => skip: Option<u64> = idl::unsigned,
        "limit" => limit: i64 = read_limit,
        "hint" => hint: Option<Hint> = variables::read_hint_not_null,
        "collation" => collation: CollationArgument = collation::read,
    }
    checked: "encryptionInformation" => idl::no_encryption;
    ignored: "fields" | "collectionUUID" | "includeQueryStatsMetrics";
}

fn read_limit(_within: &str, e: Elem<'_>) -> Result<i64> {
    if !e.val.is_number() {
        bail!(BadValue, "Expected a number in: limit: {}", e.val);
    }
    match e.val.to_i64_exact() {
        Some(n) => Ok(n),
        None => bail!(
            FailedToParse,
            "Expected an integer, but found a non-integral or too large limit: {}",
            e.val
        ),
    }
}

fn arguments<'a>(args: &Args<'a>) -> Result<(String, Arguments<'a>)> {
    let ns = args.namespace()?;
    let a = Arguments::parse("count", args.fields.iter().copied())?;
    if a.limit == i64::MIN {
        bail!(BadValue, "Limit value for count cannot be -2^63");
    }
    Ok((ns, a))
}

/// How many documents a count passes over, and how many it counts at the most (0: all), of arguments that
/// are checked thereby.
pub fn bounds(args: &Args<'_>) -> Result<(u64, u64)> {
    let (_, a) = arguments(args)?;
    Ok((a.skip.unwrap_or(0), a.limit.unsigned_abs()))
}

/// Fails where a count fails over a collection that is not there.
pub fn check_over_nothing(app: &Commands, args: &Args<'_>) -> Result<()> {
    let (_, a) = arguments(args)?;
    let (env, _) = variables::unread(app, a.collation, None)?;
    let filter = Filter::parse(a.query.unwrap_or(Doc::EMPTY), &env)?;
    executor::bind_text(&filter, None).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, a) = arguments(&cx.args)?;
    if stored_config::stage(cx, &ns).is_some() {
        return view_rewrite::count(cx);
    }
    if oplog_view::is_it(cx, &ns) {
        let n = oplog::count(cx, a.query)?.saturating_sub(a.skip.unwrap_or(0));
        let limit = match a.limit.unsigned_abs() {
            0 => u64::MAX,
            limit => limit,
        };
        cx.w.int("n", n.min(limit) as i64);
        return Ok(Done::Reply);
    }
    let (env, vars) = variables::variables(cx, &ns, &a.collation, None)?;
    let filter = Filter::parse(a.query.unwrap_or(Doc::EMPTY), &env)?;
    let vars = filter.wants_vars().then(|| cx.op.interruptible(&vars));
    let req = ReadRequest {
        hint: a.hint,
        vars,
        ..ReadRequest::new(&filter)
    };
    let n = executor::count(
        &mut cx.op,
        &ns,
        &req,
        a.skip.unwrap_or(0),
        a.limit.unsigned_abs(),
    );
    let n = match n {
        Err(e) if view_rewrite::wanted(&e) => return view_rewrite::count(cx),
        n => n?,
    };
    cx.w.int("n", i64::try_from(n).unwrap_or(i64::MAX));
    Ok(Done::Reply)
}
