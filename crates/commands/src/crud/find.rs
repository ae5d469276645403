//! `find`.

use super::cursor::{self, Keep};
use super::{moment, on_view, shape, variables};
use crate::request::idl;
use crate::request::{CommandContext, Done};
use crate::settings::query_settings;
use bson::{Doc, DocBuf};
use errors::{Result, bail};
use executor::{FindCursor, FindRequest, TailCursor};
use query::collation::Collation;
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;

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

/// Reads the arguments of find.
pub fn parse<'a>(cx: &CommandContext<'_, 'a>) -> Result<Find<'a>> {
    let ns = cx.args.namespace()?;
    if catalog::collection_of(&ns).starts_with('$') {
        bail!(InvalidNamespace, "Invalid collection name specified '{ns}'");
    }
    let (mut filter, mut sort, mut projection, mut let_) = (None, None, None, None);
    let (mut hint, mut min, mut max) = (None, None, None);
    let (mut skip, mut limit, mut batch) = (0, 0, None);
    let (mut single_batch, mut no_timeout, mut return_key, mut show_record_id) =
        (false, false, false, false);
    let (mut tailable, mut await_data) = (false, false);
    let (mut collation, mut disk_use) = (None, None);
    for e in &cx.args.fields {
        match e.name {
            "filter" if e.val.is_nullish() => {
                return Err(idl::mismatch("find", e.name, e.val, &["object"]));
            }
            "filter" => filter = idl::doc("find", *e)?,
            "sort" => sort = idl::doc("find", *e)?,
            "projection" => projection = idl::doc("find", *e)?,
            "let" => let_ = idl::doc("find", *e)?,
            "hint" => hint = variables::hint(e.val)?,
            "min" => min = idl::doc("find", *e)?.filter(|d| !d.is_empty()),
            "max" => max = idl::doc("find", *e)?.filter(|d| !d.is_empty()),
            "skip" => skip = idl::int_from("find", *e, 0)?.unwrap_or(0),
            "limit" => limit = idl::int_from("find", *e, 0)?.unwrap_or(0),
            "batchSize" => batch = idl::int_from("find", *e, 0)?,
            "singleBatch" => single_batch = idl::safe_bool("find", *e)?.unwrap_or(false),
            "noCursorTimeout" => no_timeout = idl::safe_bool("find", *e)?.unwrap_or(false),
            "returnKey" => return_key = idl::safe_bool("find", *e)?.unwrap_or(false),
            "showRecordId" => show_record_id = idl::safe_bool("find", *e)?.unwrap_or(false),
            "tailable" => tailable = idl::safe_bool("find", *e)?.unwrap_or(false),
            "awaitData" => await_data = idl::safe_bool("find", *e)?.unwrap_or(false),
            "allowDiskUse" => disk_use = idl::safe_bool("find", *e)?,
            "allowPartialResults" | "oplogReplay" | "readOnce" | "includeQueryStatsMetrics" => {
                idl::safe_bool("find", *e)?;
            }
            "collation" => collation = crate::request::collation::given(idl::doc("find", *e)?)?,
            "encryptionInformation" => idl::no_encryption(*e)?,
            "term" | "requestResumeToken" | "resumeAfter" | "startAt" | "querySettings" => {}
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    if await_data && !tailable {
        bail!(
            FailedToParse,
            "Cannot set 'awaitData' without also setting 'tailable'"
        );
    }
    if tailable && single_batch {
        bail!(
            BadValue,
            "cannot use tailable option with the 'singleBatch' option"
        );
    }
    let forward = |d: Doc<'_>| {
        let natural = d.get("$natural").and_then(|v| v.to_f64());
        d.count() == 1 && natural.is_some_and(|n| n > 0.0)
    };
    if tailable && sort.is_some_and(|d: Doc<'_>| !d.is_empty() && !forward(d)) {
        bail!(
            BadValue,
            "cannot use tailable option with a sort other than {{$natural: 1}}"
        );
    }
    let (env, vars) = variables::variables(cx, &ns, &collation, let_)?;
    let filter = Filter::parse(filter.unwrap_or(Doc::EMPTY), &env)?;
    let (mut natural, mut pattern) = (None, None);
    if let Some(d) = sort.filter(|d| !d.is_empty()) {
        if let Some(v) = d.get("$natural") {
            if d.count() > 1 {
                bail!(
                    BadValue,
                    "Cannot include '$natural' in compound sort: {}",
                    bson::shell::doc(d)
                );
            }
            natural = variables::hint(bson::doc! { "$natural": v }.as_doc().as_val())?;
        } else {
            pattern = Some(SortPattern::parse(d)?.collated(env.collation()));
        }
    }
    let projection = match projection.filter(|d| !d.is_empty()) {
        Some(d) => Some(Projection::parse(d, Some(&filter), &env)?),
        None => None,
    };
    let sorts = pattern.is_some();
    let request = FindRequest {
        filter,
        sort: pattern,
        projection,
        skip: skip.unsigned_abs(),
        limit: (limit > 0).then_some(limit.unsigned_abs()),
        hint: hint.or(natural),
        min,
        max,
        vars,
        show_record_id,
        return_key,
        plan: None,
    };
    let batch = batch.map_or(cursor::FIRST_BATCH, |b| b.unsigned_abs());
    Ok(Find {
        ns,
        request,
        batch,
        single_batch,
        no_timeout,
        tailable,
        await_data,
        // Nothing but a sort asks.
        disk_use: disk_use.unwrap_or_else(|| !sorts || cx.app.parameters.bool(DISK_USE)),
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
    if let Some(begun) = cx.request.resumed.and_then(|r| r.take()) {
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
    if find.tailable {
        return tail(cx, find);
    }
    moment::enter(cx)?;
    cx.op.disk_use = find.disk_use;
    match FindCursor::open(&mut cx.op, &find.ns, find.request) {
        Err(e) if on_view::wanted(&e) => return on_view::find(cx),
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
        return on_view::find(cx);
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
