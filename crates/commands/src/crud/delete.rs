//! `delete`.

use super::batch::{self, Common};
use super::variables;
use crate::request::collation::Given;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, bail};
use executor::{DeleteRequest, Deleted, Retry};
use planner::Hint;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use session::Retryable;
use std::sync::Arc;

/// A statement as it was written, its arguments checked. An error in one is the whole command's;
/// what the filter says is the statement's own.
pub(super) struct Written<'a> {
    pub q: Doc<'a>,
    pub multi: bool,
    pub hint: Option<Hint>,
    pub collation: Given,
}

fn parse(d: Doc<'_>) -> Result<Written<'_>> {
    const AT: &str = "delete.deletes";
    let (mut q, mut limit, mut hint) = (None, None, None);
    let mut collation = None;
    for e in d {
        match e.name {
            "q" => q = idl::doc(AT, e)?,
            "limit" => limit = idl::int(AT, e)?,
            "hint" => hint = variables::hint(e.val)?,
            "collation" => collation = crate::request::collation::given(idl::doc(AT, e)?)?,
            "sampleId" => {}
            _ => return Err(idl::unknown(AT, e.name)),
        }
    }
    let q = idl::required(AT, "q", q)?;
    let multi = match idl::required(AT, "limit", limit)? {
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
        hint,
        collation,
    })
}

/// Runs one statement: the one at that position, whose id is `ids[at]`.
#[allow(clippy::too_many_arguments)]
pub(super) fn execute(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    s: &Written<'_>,
    env: &ParseEnv,
    vars: &Arc<Vars>,
    hold: &mut Option<Retryable>,
    ids: &[i32],
    at: usize,
) -> Result<Deleted> {
    let filter = match &s.collation {
        None => Filter::parse(s.q, env)?,
        given => Filter::parse(s.q, &batch::collated(cx, ns, given, env)?)?,
    };
    if s.multi && hold.is_some() {
        bail!(InvalidOptions, "Cannot use retryable writes with limit=0");
    }
    let req = DeleteRequest {
        filter: &filter,
        multi: s.multi,
        sort: None,
        hint: s.hint.clone(),
        vars: filter.wants_vars().then(|| cx.op.interruptible(vars)),
        images: false,
    };
    match hold {
        None => executor::delete(&mut cx.op, ns, &req, at, None),
        Some(h) => {
            let mut statements = h.statements(ids);
            let retry: &mut dyn Retry = &mut statements;
            executor::delete(&mut cx.op, ns, &req, at, Some(retry))
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let docs = batch::documents(cx, "delete", "deletes")?;
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
    let mut hold = batch::retryable(cx)?;
    let ids = common.ids(statements.len());
    let mut n = 0;
    let mut errors = Vec::new();
    let mut again = Vec::new();
    for (at, s) in statements.iter().enumerate() {
        let id = ids.get(at).copied().unwrap_or(0);
        if let Some(done) = hold.as_ref().and_then(|h| h.executed(id)) {
            n += done.n;
            again.push(id);
            cx.after_commit = true;
            continue;
        }
        let result = execute(cx, &ns, s, &env, &vars, &mut hold, &ids, at);
        match result {
            Ok(d) => {
                n += d.n;
                cx.work.deleted += d.n;
            }
            Err(e) if batch::is_fatal(&e) => return Err(e),
            Err(e) => {
                errors.push((at, e));
                if common.is_ordered() {
                    break;
                }
            }
        }
    }
    cx.w.i32("n", n as i32);
    batch::write_errors(&mut cx.w, &errors);
    batch::retried(&mut cx.w, &again);
    Ok(Done::Reply)
}
