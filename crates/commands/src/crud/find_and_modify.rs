//! `findAndModify`.

use super::batch::{self, Common};
use super::variables;
use crate::clock::now_millis;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf};
use errors::{Result, bail};
use executor::{DeleteRequest, FindAndModify, FoundAndModified, Retry, UpdateRequest};
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use query::update::Update;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "findAndModify";
    let ns = cx.args.namespace()?;
    let mut common = Common::default();
    let (mut query, mut sort, mut fields, mut update, mut filters) =
        (Doc::EMPTY, None, None, None, Doc::EMPTY);
    let (mut remove, mut new, mut upsert, mut hint) = (false, false, false, None);
    let mut collation = None;
    for e in &cx.args.fields {
        let e = *e;
        match e.name {
            "query" => query = idl::doc(AT, e)?.unwrap_or(Doc::EMPTY),
            "sort" => sort = idl::doc(AT, e)?.filter(|d| !d.is_empty()),
            "fields" | "projection" => fields = idl::doc(AT, e)?.filter(|d| !d.is_empty()),
            "update" => update = Some(e.val),
            "arrayFilters" => filters = idl::array(AT, e)?.unwrap_or(Doc::EMPTY),
            "remove" => remove = idl::safe_bool(AT, e)?.unwrap_or(false),
            "new" => new = idl::safe_bool(AT, e)?.unwrap_or(false),
            "upsert" => upsert = idl::safe_bool(AT, e)?.unwrap_or(false),
            "hint" => hint = variables::hint_given(e.val)?,
            "collation" => collation = crate::request::collation::given(idl::doc(AT, e)?)?,
            _ if common.read(AT, e)? => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    match (&update, remove) {
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
    if remove && upsert {
        bail!(
            FailedToParse,
            "Cannot specify both upsert=true and remove=true "
        );
    }
    if remove && new {
        bail!(
            FailedToParse,
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
        );
    }
    let (env, vars) = variables::variables(cx, &ns, &collation, common.let_)?;
    let filter = Filter::parse(query, &env)?;
    let sort = match sort {
        Some(d) => Some(SortPattern::parse(d)?.collated(env.collation())),
        None => None,
    };
    let projection = match fields {
        Some(d) => Some(Projection::parse(d, Some(&filter), &env)?),
        None => None,
    };
    let parsed = match update {
        Some(u) => {
            let array_filters: Vec<Doc> = filters.values().filter_map(|v| v.as_doc()).collect();
            Some(Update::parse(u, &array_filters, &env)?)
        }
        None => None,
    };
    let computes = filter.wants_vars() || parsed.as_ref().is_some_and(Update::wants_vars);
    let vars = if computes {
        cx.op.interruptible(&vars)
    } else {
        vars
    };
    cx.op.bypass_validation = common.bypass_validation;
    let what = match &parsed {
        Some(update) => FindAndModify::Update {
            request: UpdateRequest {
                filter: &filter,
                update,
                multi: false,
                upsert,
                sort: sort.as_ref(),
                hint,
                vars: &vars,
                now_millis: now_millis(),
                images: true,
            },
            return_new: new,
        },
        None => FindAndModify::Remove(DeleteRequest {
            filter: &filter,
            multi: false,
            sort: sort.as_ref(),
            hint,
            vars: filter.wants_vars().then(|| vars.clone()),
            images: true,
        }),
    };
    let mut hold = batch::retryable(cx)?;
    let ids = common.ids(1);
    let before = hold
        .as_ref()
        .and_then(|h| h.executed(ids.first().copied().unwrap_or(0)))
        .cloned();
    let again = before.is_some();
    let found = match (before, &mut hold) {
        (Some(done), _) => {
            cx.after_commit = true;
            let image = |name: &str| {
                done.image
                    .as_ref()
                    .and_then(|d| d.get(name))
                    .and_then(|v| v.as_doc())
                    .map(|d| d.to_buf())
            };
            let value = if remove {
                done.image.clone()
            } else {
                image(if new { "after" } else { "before" })
            };
            FoundAndModified {
                value,
                n: done.n,
                updated_existing: !remove && done.upserted.is_none() && done.n > 0,
                upserted: done.upserted,
            }
        }
        (None, None) => executor::find_and_modify(&mut cx.op, &ns, &what, None)?,
        (None, Some(h)) => {
            let mut statements = h.statements(&ids);
            executor::find_and_modify(
                &mut cx.op,
                &ns,
                &what,
                Some(&mut statements as &mut dyn Retry),
            )?
        }
    };
    if !again && remove {
        cx.work.deleted = found.n;
    } else if !again {
        cx.work.updated = u64::from(found.updated_existing);
        cx.work.inserted = u64::from(found.upserted.is_some());
    }
    cx.w.open_doc("lastErrorObject").i32("n", found.n as i32);
    if !remove {
        cx.w.bool("updatedExisting", found.updated_existing);
    }
    if let Some(id) = &found.upserted {
        cx.w.val("upserted", id.as_val());
    }
    cx.w.close();
    match found.value {
        None => cx.w.null("value"),
        Some(d) => {
            let projected = match &projection {
                None => d,
                Some(p) => {
                    let matched = if p.needs_match_index() {
                        filter.first_matched_index(d.as_doc(), &vars)?.flatten()
                    } else {
                        None
                    };
                    let mut out = Vec::new();
                    p.apply(d.as_doc(), matched, &vars, &mut out)?;
                    DocBuf::from_vec(out).unwrap_or_default()
                }
            };
            cx.w.doc("value", projected.as_doc())
        }
    };
    Ok(Done::Reply)
}
