//! `findAndModify`.

use super::batch::{self, Common};
use super::update::reserve_for;
use super::variables;
use crate::clock::now_millis;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Error, Result, bail};
use executor::{DeleteRequest, FindAndModify, FoundAndModified, Retry, StmtResult, UpdateRequest};
use front::{Args, idl};
use planner::Hint;
use query::expr::Vars;
use query::filter::Filter;
use query::metadata::Available;
use query::projection::Projection;
use query::sort::SortPattern;
use query::update::Update;

const AT: &str = "findAndModify";

idl::arguments! {
    /// The arguments of findAndModify, beside those that all writing commands have.
    struct Arguments<'a> {
        "query" => query: Option<Doc<'a>> = idl::doc,
        "sort" => sort: Option<Doc<'a>> = idl::non_empty_doc,
        "fields" | "projection" => fields: Option<Doc<'a>> = idl::non_empty_doc,
        "update" => update: Option<Val<'a>> = idl::value,
        "arrayFilters" => array_filters: Option<Doc<'a>> = idl::array,
        "remove" => remove: bool = idl::flag,
        "new" => new: bool = idl::flag,
        "upsert" => upsert: bool = idl::flag,
        "hint" => hint: Option<Hint> = variables::read_hint_not_null,
        "collation" => collation: CollationArgument = collation::read,
    }
}

fn arguments<'r>(args: &Args<'r>) -> Result<(Arguments<'r>, Common<'r>)> {
    let (mut a, mut common) = (Arguments::default(), Common::default());
    for e in args.fields.iter().copied() {
        if !a.read(AT, e)? && !common.read(AT, e)? {
            return Err(args.unknown(e));
        }
    }
    check_together(&a)?;
    Ok((a, common))
}

/// Checks the arguments as far as that needs no collection.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

/// Checks of arguments against each other.
fn check_together(a: &Arguments<'_>) -> Result<()> {
    match (&a.update, a.remove) {
        (None, false) => bail!(
            FailedToParse,
            "Either an update or remove=true must be specified"
        ),
        (Some(_), true) => bail!(
            FailedToParse,
            "Cannot specify both an update and remove=true"
        ),
        _ => {}
    }
    if let Some(update) = a.update {
        Update::check_kind(update)?;
    }
    if a.remove && a.upsert {
        bail!(
            FailedToParse,
            "Cannot specify both upsert=true and remove=true "
        );
    }
    if a.remove && a.new {
        bail!(
            FailedToParse,
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
        );
    }
    Ok(())
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let (a, common) = arguments(&cx.args)?;
    let (env, vars) = variables::variables(cx, &ns, &a.collation, common.let_)?;
    let filter = Filter::parse(a.query.unwrap_or(Doc::EMPTY), &env)?;
    let sort = match a.sort {
        Some(d) => Some(found_sort(d, &filter, &env)?),
        None => None,
    };
    let projection = match a.fields {
        Some(d) => Some(Projection::parse(d, Some(&filter), &env)?),
        None => None,
    };
    let update = match a.update {
        Some(u) => {
            let filters = a.array_filters.into_iter().flat_map(|f| f.values());
            let filters: Vec<Doc> = filters.filter_map(|v| v.as_doc()).collect();
            let update = Update::parse(u, &filters, &env)?;
            reserve_for(&mut cx.op, u)?;
            Some(update)
        }
        None => None,
    };
    let computes = filter.wants_vars() || update.as_ref().is_some_and(Update::wants_vars);
    let vars = match computes {
        true => cx.op.interruptible(&vars),
        false => vars,
    };
    cx.op.bypass_validation = common.bypass_validation;
    let what = match &update {
        Some(update) => FindAndModify::Update {
            request: UpdateRequest {
                filter: &filter,
                update,
                multi: false,
                upsert: a.upsert,
                sort: sort.as_ref(),
                hint: a.hint,
                vars: &vars,
                now_millis: now_millis(),
                images: true,
            },
            return_new: a.new,
        },
        None => FindAndModify::Remove(DeleteRequest {
            filter: &filter,
            multi: false,
            sort: sort.as_ref(),
            hint: a.hint,
            vars: filter.wants_vars().then(|| vars.clone()),
            images: true,
        }),
    };
    let mut found = execute(cx, &ns, &what, &common)?;
    let value = match (found.value.take(), &projection) {
        (Some(d), Some(p)) => Some(project(p, &d, &filter, &vars)?),
        (value, _) => value,
    };
    write_reply(&mut cx.w, &found, value.as_ref(), a.remove);
    Ok(Done::Reply)
}

fn write_reply(w: &mut Writer, found: &FoundAndModified, value: Option<&DocBuf>, removed: bool) {
    w.open_doc("lastErrorObject").i32("n", found.n as i32);
    if !removed {
        w.bool("updatedExisting", found.updated_existing);
    }
    if let Some(id) = &found.upserted {
        w.val("upserted", id.as_val());
    }
    w.close();
    match value {
        None => w.null("value"),
        Some(d) => w.doc("value", d.as_doc()),
    };
}

/// Changes the document, unless it is a retry of an earlier execution.
fn execute(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    what: &FindAndModify<'_>,
    common: &Common<'_>,
) -> Result<FoundAndModified> {
    let mut hold = batch::retryable(cx)?;
    let ids = common.ids(1);
    let id = ids.first().copied().unwrap_or(0);
    if let Some(done) = hold.as_ref().and_then(|h| h.executed(id)) {
        cx.after_commit = true;
        return Ok(done_before(done, what));
    }
    let mut statements = hold.as_mut().map(|h| h.statements(&ids));
    let retry = statements.as_mut().map(|s| s as &mut dyn Retry);
    let found = executor::find_and_modify(&mut cx.op, ns, what, retry)?;
    match what {
        FindAndModify::Remove(_) => cx.work.deleted = found.n,
        FindAndModify::Update { .. } => {
            cx.work.updated = u64::from(found.updated_existing);
            cx.work.inserted = u64::from(found.upserted.is_some());
        }
    }
    Ok(found)
}

/// What a statement that ran before is answered with: the image of the document that it kept.
fn done_before(done: &StmtResult, what: &FindAndModify<'_>) -> FoundAndModified {
    let image = |name: &str| {
        let image = done.image.as_ref()?.get(name)?;
        image.as_doc().map(|d| d.to_buf())
    };
    let (value, removed) = match what {
        FindAndModify::Remove(_) => (done.image.clone(), true),
        FindAndModify::Update { return_new, .. } => {
            (image(if *return_new { "after" } else { "before" }), false)
        }
    };
    FoundAndModified {
        value,
        n: done.n,
        updated_existing: !removed && done.upserted.is_none() && done.n > 0,
        upserted: done.upserted.clone(),
    }
}

/// A sort, which may be by the score of the filter's `$text`.
fn found_sort(d: Doc<'_>, filter: &Filter, env: &query::expr::ParseEnv) -> Result<SortPattern> {
    let pattern = SortPattern::parse_found(d)?.collated(env.collation());
    pattern.check_meta(Available::of_text(filter.text().is_some()))?;
    Ok(pattern)
}

fn project(p: &Projection, d: &DocBuf, filter: &Filter, vars: &Vars) -> Result<DocBuf> {
    let matched = match p.needs_match_index() {
        true => filter.first_matched_index(d.as_doc(), vars)?.flatten(),
        false => None,
    };
    let mut out = Vec::new();
    p.apply(d.as_doc(), matched, vars, &mut out)?;
    DocBuf::from_vec(out)
        .ok_or_else(|| Error::internal("a projection made no whole document").into())
}
