//! `delete`.

use super::batch::{self, Common, Statements};
use super::variables;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, Stop, bail};
use executor::{DeleteRequest, Deleted, Retry};
use front::idl;
use planner::Hint;
use query::filter::Filter;

/// A statement as it was written, its arguments checked. An error in one is the whole command's;
/// what the filter says is the statement's own.
pub(super) struct Written<'a> {
    pub q: Doc<'a>,
    pub multi: bool,
    pub hint: Option<Hint>,
    pub collation: CollationArgument,
}

idl::arguments! {
    struct Arguments<'a> {
        "q" => q: Option<Doc<'a>> = idl::doc,
        "limit" => limit: Option<i64> = idl::int,
        "hint" => hint: Option<Hint> = variables::read_hint,
        "collation" => collation: CollationArgument = collation::read,
    }
    ignored: "sampleId";
}

fn parse(d: Doc<'_>) -> Result<Written<'_>> {
    const AT: &str = "delete.deletes";
    let a = Arguments::parse_document(AT, d)?;
    let q = idl::required(AT, "q", a.q)?;
    let multi = match idl::required(AT, "limit", a.limit)? {
        0 => true,
        1 => false,
        n => bail!(
            FailedToParse,
            "The limit field in delete objects must be 0 or 1. Got {n}"
        ),
    };
    Ok(Written {
        q,
        multi,
        hint: a.hint,
        collation: a.collation,
    })
}

/// Runs the statement at that position.
pub(super) fn execute(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    s: &Written<'_>,
    shared: &mut Statements,
    at: usize,
) -> Result<Deleted> {
    let filter = Filter::parse(s.q, &*shared.env_of(cx, ns, &s.collation)?)?;
    if s.multi && shared.hold.is_some() {
        bail!(InvalidOptions, "Cannot use retryable writes with limit=0");
    }
    let req = DeleteRequest {
        filter: &filter,
        multi: s.multi,
        sort: None,
        hint: s.hint.clone(),
        vars: filter
            .wants_vars()
            .then(|| cx.op.interruptible(&shared.vars)),
        images: false,
    };
    match &mut shared.hold {
        None => executor::delete(&mut cx.op, ns, &req, at, None),
        Some(h) => {
            let mut statements = h.statements(&shared.ids);
            let retry: &mut dyn Retry = &mut statements;
            executor::delete(&mut cx.op, ns, &req, at, Some(retry))
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let docs = batch::documents(cx.request, &cx.args, "delete", "deletes")?;
    cx.statements = docs.len() as u64;
    let mut common = Common::default();
    for e in &cx.args.fields {
        if e.name != "deletes" && !common.read("delete", *e)? {
            return Err(cx.args.unknown(*e));
        }
    }
    if docs.len() > 1 {
        cx.op.need_worker()?;
    }
    let (env, vars) = variables::variables(cx, &ns, &None, common.let_)?;
    let statements = docs.into_iter().map(parse).collect::<Result<Vec<_>>>()?;
    let mut shared = Statements {
        env,
        vars,
        hold: batch::retryable(cx)?,
        ids: common.ids(statements.len()),
    };
    let mut n = 0;
    let mut errors = Vec::new();
    let mut again = Vec::new();
    for (at, s) in statements.iter().enumerate() {
        if let Some(done) = shared.executed(at) {
            n += done.n;
            again.push(shared.id(at));
            cx.after_commit = true;
            continue;
        }
        match execute(cx, &ns, s, &mut shared, at) {
            Ok(d) => {
                n += d.n;
                cx.work.deleted += d.n;
            }
            Err(Stop::Failed(e)) if !batch::is_fatal(&e) => {
                errors.push((at, e));
                if common.is_ordered() {
                    break;
                }
            }
            Err(stop) => return Err(stop),
        }
    }
    cx.w.i32("n", n as i32);
    batch::write_errors(&mut cx.w, &errors);
    batch::retried(&mut cx.w, &again);
    Ok(Done::Reply)
}
