//! `find`.

use super::cursor::{self, Keep};
use super::{shape, snapshot, variables, view_rewrite};
use crate::Commands;
use crate::crud::oplog;
use crate::crud::query_settings;
use crate::crud::stored_config;
use crate::oplog_view;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem};
use errors::{Result, bail};
use executor::{FindCursor, FindRequest, TailCursor};
use front::{Args, idl};
use planner::Hint;
use query::collation::Collation;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;

/// A find as parsed.
pub struct Find<'a> {
    pub ns: String,
    pub request: FindRequest<'a>,
    pub batch: u64,
    pub single_batch: bool,
    pub no_timeout: bool,
    pub tailable: bool,
    pub await_data: bool,
    /// Whether a sort may go to temporary files.
    pub disk_use: bool,
    /// Of filter and sort.
    pub collation: Option<Collation>,
}

/// The parameter that says whether blocking stages may go to temporary files, where the command
/// does not.
pub const DISK_USE: &str = "allowDiskUseByDefault";

idl::arguments! {
    /// The arguments of find as they are written.
    struct Arguments<'a> {
        "filter" => filter: Option<Doc<'a>> = doc_not_null,
        "sort" => sort: Option<Doc<'a>> = idl::non_empty_doc,
        "projection" => projection: Option<Doc<'a>> = idl::non_empty_doc,
        "let" => let_: Option<Doc<'a>> = idl::doc,
        "hint" => hint: Option<Hint> = variables::read_hint,
        "min" => min: Option<Doc<'a>> = idl::non_empty_doc,
        "max" => max: Option<Doc<'a>> = idl::non_empty_doc,
        "skip" => skip: Option<u64> = idl::unsigned,
        "limit" => limit: Option<u64> = idl::unsigned,
        "batchSize" => batch: Option<u64> = idl::unsigned,
        "singleBatch" => single_batch: bool = idl::flag,
        "noCursorTimeout" => no_timeout: bool = idl::flag,
        "returnKey" => return_key: bool = idl::flag,
        "showRecordId" => show_record_id: bool = idl::flag,
        "tailable" => tailable: bool = idl::flag,
        "awaitData" => await_data: bool = idl::flag,
        "allowDiskUse" => disk_use: Option<bool> = idl::safe_bool,
        "collation" => collation: CollationArgument = collation::read,
    }
    checked:
        "allowPartialResults" | "oplogReplay" | "readOnce" | "includeQueryStatsMetrics"
            => idl::safe_bool,
        "encryptionInformation" => idl::no_encryption;
    ignored: "term" | "requestResumeToken" | "resumeAfter" | "startAt" | "querySettings";
}

/// A document, and null is none.
fn doc_not_null<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    match e.val.is_nullish() {
        true => Err(idl::mismatch(within, e.name, e.val, &["object"])),
        false => idl::doc(within, e),
    }
}

/// Checks what the options of a tailable cursor allow.
fn check_tailable(a: &Arguments<'_>) -> Result<()> {
    if a.await_data && !a.tailable {
        bail!(
            FailedToParse,
            "Cannot set 'awaitData' without also setting 'tailable'"
        );
    }
    if a.tailable && a.single_batch {
        bail!(
            BadValue,
            "cannot use tailable option with the 'singleBatch' option"
        );
    }
    let forward = |d: Doc<'_>| {
        let natural = d.get("$natural").and_then(|v| v.to_f64());
        d.count() == 1 && natural.is_some_and(|n| n > 0.0)
    };
    if a.tailable && a.sort.is_some_and(|d| !forward(d)) {
        bail!(
            BadValue,
            "cannot use tailable option with a sort other than {{$natural: 1}}"
        );
    }
    Ok(())
}

/// The order that a sort asks for: by fields, or the natural one, which is a hint.
fn parse_sort(
    sort: Option<Doc<'_>>,
    env: &ParseEnv,
) -> Result<(Option<SortPattern>, Option<Hint>)> {
    let Some(d) = sort else {
        return Ok((None, None));
    };
    let Some(v) = d.get("$natural") else {
        let pattern = SortPattern::parse_found(d)?.collated(env.collation());
        pattern.check_meta(env.available())?;
        return Ok((Some(pattern), None));
    };
    if d.count() > 1 {
        bail!(
            BadValue,
            "Cannot include '$natural' in compound sort: {}",
            bson::shell::doc(d)
        );
    }
    let hint = variables::hint(bson::doc! { "$natural": v }.as_doc().as_val())?;
    Ok((None, hint))
}

/// The namespace of a find, and its arguments as they are written.
fn arguments<'a>(args: &Args<'a>) -> Result<(String, Arguments<'a>)> {
    let ns = args.namespace()?;
    if catalog::collection_of(&ns).starts_with('$') {
        bail!(InvalidNamespace, "Invalid collection name specified '{ns}'");
    }
    let a = Arguments::parse("find", args.fields.iter().copied())?;
    check_tailable(&a)?;
    Ok((ns, a))
}

/// Which of the documents a find gives, and in what batches.
pub struct Paging {
    pub skip: u64,
    /// `None`: all.
    pub limit: Option<u64>,
    pub batch: Option<u64>,
    pub single_batch: bool,
}

/// The same of a find whose arguments are checked thereby.
pub fn paging(args: &Args<'_>) -> Result<Paging> {
    let (_, a) = arguments(args)?;
    Ok(Paging {
        skip: a.skip.unwrap_or(0),
        limit: a.limit.filter(|n| *n > 0),
        batch: a.batch,
        single_batch: a.single_batch,
    })
}

/// Reads and parses the arguments of find.
pub fn parse<'a>(cx: &CommandContext<'_, 'a>) -> Result<Find<'a>> {
    let (ns, a) = arguments(&cx.args)?;
    let (env, vars) = variables::variables(cx, &ns, &a.collation, a.let_)?;
    parse_under(cx.app, ns, a, env, vars)
}

/// Fails where a find fails over a collection that is not there.
pub fn check_over_nothing(app: &Commands, args: &Args<'_>) -> Result<()> {
    let (ns, mut a) = arguments(args)?;
    let (env, vars) = variables::unread(app, std::mem::take(&mut a.collation), a.let_)?;
    let find = parse_under(app, ns, a, env, vars)?;
    match find.tailable {
        true => Ok(()),
        false => executor::bind_text(&find.request.filter, None).map(drop),
    }
}

fn parse_under<'a>(
    app: &Commands,
    ns: String,
    a: Arguments<'a>,
    env: ParseEnv,
    vars: Arc<Vars>,
) -> Result<Find<'a>> {
    let filter = Filter::parse(a.filter.unwrap_or(Doc::EMPTY), &env)?;
    let scored = filter.text().is_some();
    if scored && a.tailable {
        bail!(BadValue, "text expressions not allowed in tailable cursors");
    }
    let env = env.with_text_score(scored);
    let (sort, natural) = parse_sort(a.sort, &env)?;
    let projection = match a.projection {
        Some(d) => Some(Projection::parse(d, Some(&filter), &env)?),
        None => None,
    };
    let sorts = sort.is_some();
    let request = FindRequest {
        filter,
        sort,
        projection,
        skip: a.skip.unwrap_or(0),
        limit: a.limit.filter(|n| *n > 0),
        hint: a.hint.or(natural),
        min: a.min,
        max: a.max,
        vars,
        show_record_id: a.show_record_id,
        return_key: a.return_key,
        plan: None,
    };
    Ok(Find {
        ns,
        request,
        batch: a.batch.unwrap_or(cursor::FIRST_BATCH),
        single_batch: a.single_batch,
        no_timeout: a.no_timeout,
        tailable: a.tailable,
        await_data: a.await_data,
        // Nothing but a sort asks.
        disk_use: a
            .disk_use
            .unwrap_or_else(|| !sorts || app.parameters.bool(DISK_USE)),
        collation: env.collation().cloned(),
    })
}

impl Find<'_> {
    pub fn shape(&self) -> DocBuf {
        let r = &self.request;
        let sort = r.sort.as_ref().map(|s| s.to_doc());
        let projection = r.projection.as_ref().map(|p| p.to_doc());
        shape::of_query(&shape::Query {
            ns: &self.ns,
            command: "find",
            key: None,
            filter: &r.filter,
            sort: sort.as_ref().map(|d| d.as_doc()),
            projection: projection.as_ref().map(|d| d.as_doc()),
            collation: self.collation.as_ref(),
            skip: r.skip,
            limit: r.limit,
        })
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if let Some(begun) = cx.begun.take().and_then(|b| b.downcast().ok()) {
        cursor::go_on(cx, *begun)?;
        return Ok(Done::Reply);
    }
    let mut find = parse(cx)?;
    if !cx.app.query_settings.is_empty() {
        let shape = find.shape();
        let limits = find.request.min.is_some() || find.request.max.is_some();
        let mut hint = find.request.hint.clone();
        query_settings::heed(cx, &find.ns, &shape, &mut hint)?;
        if !limits {
            find.request.hint = hint;
        }
    }
    if stored_config::stage(cx, &find.ns).is_some() {
        return view_rewrite::find(cx);
    }
    if oplog_view::is_it(cx, &find.ns) {
        return oplog::find(cx, find);
    }
    if find.tailable {
        return tail(cx, find);
    }
    snapshot::enter(cx)?;
    cx.op.disk_use = find.disk_use;
    match FindCursor::open(&mut cx.op, &find.ns, find.request) {
        Err(e) if view_rewrite::wanted(&e) => return view_rewrite::find(cx),
        Err(e) => return Err(e),
        Ok(None) => cursor::empty(cx, &find.ns),
        Ok(Some(c)) => {
            let keep = Keep {
                single_batch: find.single_batch,
                no_timeout: find.no_timeout,
                uuid: Some(c.collection().uuid),
                awaits: None,
            };
            cursor::first_batch(cx, &find.ns, Box::new(c), find.batch, keep)?;
        }
    }
    Ok(Done::Reply)
}

/// A cursor that stays open at the end of a capped collection. Of hints only the natural order is
/// heeded.
fn tail(cx: &mut CommandContext<'_, '_>, find: Find<'_>) -> Result<Done> {
    let (view, coll) = cx.op.view(&find.ns);
    let Some(coll) = coll else {
        cursor::empty(cx, &find.ns);
        return Ok(Done::Reply);
    };
    if coll.is_view() {
        return view_rewrite::find(cx);
    }
    match TailCursor::open(&view, &coll, find.request)? {
        // There is nothing to go on from: the cursor is dead from the start.
        None => cursor::empty(cx, &find.ns),
        Some(c) => {
            let keep = Keep {
                single_batch: false,
                no_timeout: find.no_timeout,
                uuid: Some(coll.uuid),
                awaits: find.await_data.then(|| c.tail().clone()),
            };
            cursor::first_batch(cx, &find.ns, Box::new(c), find.batch, keep)?;
        }
    }
    Ok(Done::Reply)
}
