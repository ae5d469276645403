//! `local.oplog.rs` for the commands that read collections: it is a view of the log, so the catalog
//! has no such collection.

use crate::crud::cursor::{self, Keep};
use crate::crud::find::Find;
use crate::oplog_view::documents;
use crate::request::{CommandContext, Done};
use bson::{Doc, Writer};
use errors::{Result, bail};
use executor::{FindRequest, OplogCursor};
use planner::Hint;
use query::filter::Filter;
use session::Results;

pub fn find(cx: &mut CommandContext<'_, '_>, mut find: Find<'_>) -> Result<Done> {
    cx.op.need_worker()?;
    let natural = |d: Doc<'_>| {
        let by = d.get("$natural").or_else(|| d.get("ts"))?;
        (d.count() == 1).then(|| by.to_f64().is_some_and(|n| n < 0.0))
    };
    let sort = cx.args.field("sort").and_then(|v| v.as_doc());
    let mut backward = matches!(&find.request.hint, Some(Hint::Natural { reverse: true }));
    if let Some(sort) = sort.filter(|d| d.count() > 0) {
        match natural(sort) {
            Some(down) => backward = down,
            None => bail!(
                BadValue,
                "the oplog is sorted by $natural or ts only, not by {sort}"
            ),
        }
    }
    find.request.sort = None;
    let given = cx.args.field("filter").and_then(|v| v.as_doc());
    let cursor = OplogCursor::open(
        &cx.app.engine.log_tail,
        given.unwrap_or(Doc::EMPTY),
        find.request,
        backward,
        find.tailable,
        find.tailable && find.await_data,
    )?;
    let keep = Keep {
        single_batch: find.single_batch,
        no_timeout: find.no_timeout,
        ..Keep::default()
    };
    cursor::first_batch(cx, &find.ns, Box::new(cursor), find.batch, keep)?;
    Ok(Done::Reply)
}

/// How many documents there are; without a filter that takes no look at them.
pub fn count(cx: &mut CommandContext<'_, '_>, filter: Option<Doc<'_>>) -> Result<u64> {
    let Some(given) = filter.filter(|d| !d.is_empty()) else {
        return Ok(documents(&cx.app.store));
    };
    cx.op.need_worker()?;
    let request = FindRequest::new(Filter::parse(given, &Default::default())?);
    let tail = &cx.app.engine.log_tail;
    let mut cursor = OplogCursor::open(tail, given, request, false, false, false)?;
    let mut n = 0;
    loop {
        let mut w = Writer::new_array();
        let done = Results::fill(&mut cursor, &mut cx.op, &mut w, u64::MAX, 1 << 20)?;
        n += w.items() as u64;
        if done {
            return Ok(n);
        }
    }
}
