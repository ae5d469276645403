//! `insert`.

use super::batch::{self, Common};
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::Result;
use executor::Retry;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let docs = batch::documents(cx.request, &cx.args, "insert", "documents")?;
    let mut common = Common::default();
    for e in &cx.args.fields {
        if e.name != "documents" && !common.read("insert", *e)? {
            return Err(cx.args.unknown(*e));
        }
    }
    cx.statements = docs.len() as u64;
    cx.op.bypass_validation = common.bypass_validation;
    // What an earlier message of the move has written may not have its majority yet.
    cx.after_commit = cx.op.from_migrate;
    let mut hold = batch::retryable(cx)?;
    let mut again = Vec::new();
    let (n, errors) = match &mut hold {
        None => {
            let r = executor::insert(&mut cx.op, &ns, &docs, common.is_ordered(), None)?;
            cx.work.inserted = r.n as u64;
            (r.n, r.errors)
        }
        Some(hold) => {
            // Only what did not run before; positions stay those of the command.
            let ids = common.ids(docs.len());
            let done = |at: &usize| {
                ids.get(*at)
                    .copied()
                    .filter(|id| hold.executed(*id).is_some())
            };
            let new: Vec<usize> = (0..docs.len()).filter(|at| done(at).is_none()).collect();
            again = (0..docs.len()).filter_map(|at| done(&at)).collect();
            let before = again.len();
            if before > 0 {
                cx.after_commit = true;
            }
            let todo: Vec<Doc> = new.iter().map(|at| docs[*at]).collect();
            let new_ids: Vec<i32> = new
                .iter()
                .map(|at| ids.get(*at).copied().unwrap_or(0))
                .collect();
            let mut statements = hold.statements(&new_ids);
            let retry: &mut dyn Retry = &mut statements;
            let r = executor::insert(&mut cx.op, &ns, &todo, common.is_ordered(), Some(retry))?;
            cx.work.inserted = r.n as u64;
            let errors = r.errors.into_iter().map(|(at, e)| (new[at], e)).collect();
            (before + r.n, errors)
        }
    };
    cx.w.i32("n", n as i32);
    batch::write_errors(&mut cx.w, &errors);
    batch::retried(&mut cx.w, &again);
    Ok(Done::Reply)
}
