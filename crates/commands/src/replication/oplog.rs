//! `local.oplog.rs` for the commands that read collections: it is a view of the log, so the catalog
//! has no such collection.

use crate::crud::cursor::{self, Keep};
use crate::crud::find::Find;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};
use executor::{FindRequest, OplogCursor};
use planner::Hint;
use query::filter::Filter;
use session::Results;
use storage::Store;

/// The namespace, where there is a replica set and so an oplog.
pub fn is_it(cx: &CommandContext<'_, '_>, ns: &str) -> bool {
    ns == executor::OPLOG && cx.app.config.topology.set_name().is_some()
}

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

fn documents(store: &Store) -> u64 {
    (store.durable_index() + 1).saturating_sub(store.first_log_index())
}

/// Of `collStats` and `$collStats`.
pub fn append_stats(w: &mut Writer, store: &Store, scale: i64) {
    let stats = store.stats();
    let scaled = |n: u64| (n / scale.unsigned_abs().max(1)) as i64;
    let count = documents(store);
    w.int("size", scaled(stats.log_bytes))
        .int("count", count as i64);
    if let Some(average) = stats.log_bytes.checked_div(count) {
        w.int("avgObjSize", average as i64);
    }
    w.i32("numOrphanDocs", 0)
        .int("storageSize", scaled(stats.log_bytes))
        .int("freeStorageSize", 0)
        .bool("capped", true)
        .int("max", 0)
        .int("maxSize", scaled(stats.log_window.max_bytes));
    w.i32("nindexes", 0).open_doc("indexDetails").close();
    w.open_array("indexBuilds").close().i32("totalIndexSize", 0);
    w.int("totalSize", scaled(stats.log_bytes))
        .open_doc("indexSizes")
        .close();
    w.int("scaleFactor", scale);
}

/// As listCollections shows it.
pub fn describe(store: &Store, name_only: bool) -> DocBuf {
    let mut w = Writer::new();
    w.str("name", "oplog.rs").str("type", "collection");
    if !name_only {
        w.open_doc("options").bool("capped", true);
        let bytes = store.stats().log_window.max_bytes;
        w.i64("size", i64::try_from(bytes).unwrap_or(i64::MAX));
        w.bool("autoIndexId", false).close();
        w.open_doc("info").bool("readOnly", false).close();
    }
    w.finish()
}
