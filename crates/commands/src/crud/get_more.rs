//! `getMore`. Runs on a worker always: a batch cannot be started over.

use super::cursor::BATCH_BYTES;
use crate::cx::{Cx, Done};
use crate::idl;
use errors::{Result, bail, err};
use std::time::{Duration, Instant};

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let Some(id) = cx.args.first.as_i64() else {
        if cx.args.first.is_nullish() {
            return Err(idl::missing("getMore", "getMore"));
        }
        return Err(idl::mismatch(
            "getMore",
            "getMore",
            cx.args.first,
            &["long"],
        ));
    };
    let (mut collection, mut batch) = (None, 0);
    for e in &cx.args.fields {
        match e.name {
            "collection" => collection = idl::string("getMore", *e)?,
            "batchSize" => batch = idl::int_from("getMore", *e, 0)?.unwrap_or(0),
            "term" => {
                if e.val.as_i64().is_none() && !e.val.is_nullish() {
                    return Err(idl::mismatch("getMore", "term", e.val, &["long"]));
                }
            }
            "lastKnownCommittedOpTime" | "includeQueryStatsMetrics" => {}
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    let collection = idl::required("getMore", "collection", collection)?;
    let ns = cx.args.namespace_of(collection)?;
    let mut cursor = cx.app.cursors.take(id, &ns, cx.args.generic.lsid)?;
    let given_up = || err!(CursorNotFound, "cursor id {id} not found");
    if let Some(uuid) = cursor.uuid
        && cx
            .app
            .engine
            .catalog
            .snapshot()
            .get(&ns)
            .is_none_or(|c| c.uuid != uuid)
    {
        cx.app.cursors.remove(id);
        bail!(
            QueryPlanKilled,
            "collection dropped. UUID {}",
            bson::shell::val(bson::Value::binary(4, &uuid).as_val())
        );
    }
    let started = Instant::now();
    if cx.op.deadline.is_none() {
        cx.op.deadline = cursor.time_left.map(|t| started + t);
    }
    let batch = if batch == 0 {
        u64::MAX
    } else {
        batch.unsigned_abs()
    };
    cx.w.open_doc("cursor").open_array("nextBatch");
    let filled = cursor
        .results
        .fill(&mut cx.op, &mut cx.w, batch, BATCH_BYTES);
    let done = match filled {
        Ok(done) => done,
        Err(e) => {
            cx.app.cursors.remove(id);
            return Err(e);
        }
    };
    if cursor.killed.load(std::sync::atomic::Ordering::Relaxed) {
        cx.app.cursors.remove(id);
        return Err(given_up());
    }
    cx.w.close()
        .i64("id", if done { 0 } else { id })
        .str("ns", &ns)
        .close();
    if done {
        cx.app.cursors.remove(id);
    } else {
        cursor.results.release();
        cursor.time_left = cursor.time_left.map(|t| {
            t.checked_sub(started.elapsed())
                .unwrap_or(Duration::from_millis(1))
        });
        cx.app.cursors.give_back(cursor);
    }
    // An exhaust cursor goes on by itself.
    Ok(if !done && cx.request.exhaust_allowed {
        Done::ReplyMore
    } else {
        Done::Reply
    })
}
