//! `count`.

use super::{on_view, variables};
use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, bail};
use executor::ReadRequest;
use query::filter::Filter;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "count";
    let ns = cx.args.namespace()?;
    let (mut query, mut skip, mut limit, mut hint) = (Doc::EMPTY, 0, 0, None);
    let mut collation = None;
    for e in &cx.args.fields {
        match e.name {
            "query" => query = idl::doc(AT, *e)?.unwrap_or(Doc::EMPTY),
            "skip" => skip = idl::int_from(AT, *e, 0)?.unwrap_or(0),
            "limit" if !e.val.is_number() => {
                bail!(BadValue, "Expected a number in: limit: {}", e.val)
            }
            "limit" => match e.val.to_i64_exact() {
                Some(n) => limit = n,
                None => bail!(
                    FailedToParse,
                    "Expected an integer, but found a non-integral or too large limit: {}",
                    e.val
                ),
            },
            "hint" => hint = variables::hint_given(e.val)?,
            "collation" => collation = crate::request::collation::given(idl::doc(AT, *e)?)?,
            "fields" | "collectionUUID" | "includeQueryStatsMetrics" => {}
            "encryptionInformation" => idl::no_encryption(*e)?,
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    if limit == i64::MIN {
        bail!(BadValue, "Limit value for count cannot be -2^63");
    }
    let (env, vars) = variables::variables(cx, &ns, &collation, None)?;
    let filter = Filter::parse(query, &env)?;
    let vars = filter.wants_vars().then(|| cx.op.interruptible(&vars));
    let req = ReadRequest {
        hint,
        vars,
        ..ReadRequest::new(&filter)
    };
    let n = executor::count(
        &mut cx.op,
        &ns,
        &req,
        skip.unsigned_abs(),
        limit.unsigned_abs(),
    );
    let n = match n {
        Err(e) if on_view::wanted(&e) => return on_view::count(cx),
        n => n?,
    };
    cx.w.int("n", i64::try_from(n).unwrap_or(i64::MAX));
    Ok(Done::Reply)
}
