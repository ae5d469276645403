//! `getMore`. Runs on a worker: a batch cannot be started over, and an awaitData cursor waits for
//! what comes. A cursor over the log that has nothing to give waits without one.

use super::cursor::BATCH_BYTES;
use super::moment;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use catalog::Tail;
use errors::{Error, Result, bail, err};
use session::{Cursor, Results};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long an awaitData cursor waits when the client does not say.
const AWAIT: Duration = Duration::from_secs(1);
/// Whoever waits looks this often whether he still should: nobody wakes him when his cursor is
/// killed or his client is gone.
const LOOK: Duration = Duration::from_millis(250);

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    // Read before anything else is: what comes from now on is news.
    let stirred = cx.app.control.stirred();
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
    let number = cx.transaction.as_ref().map(|s| s.number);
    let mut cursor = (cx.app.cursors).take(id, &ns, cx.args.generic.lsid, number)?;
    cx.originating = Some(cursor.command.clone());
    if let Some(code) = cx.app.fail_points.get_more() {
        cx.app.cursors.remove(id);
        let message = "Hit the failGetMoreAfterCursorCheckout fail point";
        return Err(resumable(Error::coded(code, message), &*cursor.results));
    }
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
    if cursor.results.is_quiet().is_none()
        && let Err(e) = cx.op.need_worker()
    {
        cx.app.cursors.give_back(cursor);
        return Err(e);
    }
    let given = cx.request.body.get("maxTimeMS");
    let asked = given
        .filter(|v| !v.is_nullish())
        .map(|_| Duration::from_millis(cx.args.generic.max_time_ms));
    let follows_log = cursor.results.is_quiet().is_some();
    let until = match cursor.await_until.take().filter(|_| cx.request.again) {
        Some(until) => until,
        None => started + asked.unwrap_or(AWAIT),
    };
    if let Some(quiet) = cursor.results.is_quiet() {
        if quiet && may_wait(cx, &cursor, until) {
            cursor.await_until = Some(until);
            cx.app.cursors.give_back(cursor);
            return Ok(Done::Await {
                until,
                seen: stirred,
            });
        }
        if let Err(e) = cx.op.need_worker() {
            cursor.await_until = Some(until);
            cx.app.cursors.give_back(cursor);
            return Err(e);
        }
    }
    if cursor.awaits.is_some() || follows_log {
        // The time is how long to wait, not how long to work.
        cx.op.deadline = None;
    } else if asked.is_some() {
        cx.app.cursors.give_back(cursor);
        bail!(
            BadValue,
            "cannot set maxTimeMS on getMore command for a non-awaitData cursor"
        );
    } else {
        cx.op.deadline = cursor
            .time_left
            .and_then(|t| cx.app.fail_points.deadline(started, t));
    }
    cx.op.moment = cursor.moment.clone();
    let batch = if batch == 0 {
        u64::MAX
    } else {
        batch.unsigned_abs()
    };
    let waits = cursor.awaits.is_some() || follows_log;
    cx.op.may_cut = true;
    cx.w.open_doc("cursor").open_array("nextBatch");
    let start = cx.w.len();
    let filled = match cursor.awaits.clone() {
        None => cx.op.check().and_then(|()| {
            cursor
                .results
                .fill(&mut cx.op, &mut cx.w, batch, BATCH_BYTES)
        }),
        Some(tail) => await_data(cx, &mut cursor, &tail, batch, until),
    };
    let done = match filled {
        Ok(done) => done,
        Err(e) => {
            cx.app.cursors.remove(id);
            return Err(resumable(e, &*cursor.results));
        }
    };
    if cursor.killed.load(Relaxed) {
        cx.app.cursors.remove(id);
        return Err(given_up());
    }
    let empty = cx.w.len() == start;
    if follows_log && empty && !done && may_wait(cx, &cursor, until) {
        cursor.await_until = Some(until);
        cursor.results.release(&mut cx.op)?;
        cx.app.cursors.give_back(cursor);
        return Ok(Done::Await {
            until,
            seen: stirred,
        });
    }
    cx.work.returned += cx.w.items() as u64;
    cx.w.close();
    if let Some(token) = cursor.results.resume_token() {
        cx.w.doc("postBatchResumeToken", token.as_doc());
    }
    cx.w.i64("id", if done { 0 } else { id }).str("ns", &ns);
    moment::append(&cx.op, &mut cx.w);
    cx.w.close();
    if done {
        cx.app.cursors.remove(id);
    } else {
        if let Err(e) = cursor.results.release(&mut cx.op) {
            cx.app.cursors.remove(id);
            return Err(e);
        }
        cursor.time_left = cursor.time_left.map(|t| {
            t.checked_sub(started.elapsed())
                .unwrap_or(Duration::from_millis(1))
        });
        cx.app.cursors.give_back(cursor);
    }
    // An exhaust cursor goes on by itself, but not to say again and again that there is nothing.
    Ok(
        if !done && (waits || !empty) && cx.request.exhaust_allowed {
            Done::ReplyMore
        } else {
            Done::Reply
        },
    )
}

/// An error with the label by which drivers resume a change stream, where they shall.
fn resumable(e: Error, results: &dyn Results) -> Error {
    const RESUMABLE: [i32; 18] = [
        6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436,
        43,
    ];
    match results.resume_token() {
        Some(_) if RESUMABLE.contains(&e.code.0) => e.with_label("ResumableChangeStreamError"),
        _ => e,
    }
}

/// Whether a getMore of a cursor over the log may still wait.
fn may_wait(cx: &CommandContext<'_, '_>, cursor: &Cursor, until: Instant) -> bool {
    Instant::now() < until && !cursor.killed.load(Relaxed) && !cx.app.control.is_stopping()
}

/// The next batch; waits for something to give until `deadline`.
fn await_data(
    cx: &mut CommandContext<'_, '_>,
    cursor: &mut Cursor,
    tail: &Tail,
    batch: u64,
    deadline: Instant,
) -> Result<bool> {
    let _waiting = cx.app.control.waits();
    let before = cx.w.len();
    loop {
        let seen = tail.additions();
        let done = cursor
            .results
            .fill(&mut cx.op, &mut cx.w, batch, BATCH_BYTES)?;
        let now = Instant::now();
        if done || cx.w.len() > before || now >= deadline {
            return Ok(done);
        }
        if cursor.killed.load(Relaxed) || cx.app.control.is_stopping() {
            return Ok(done);
        }
        cx.op.check()?;
        tail.wait(seen, deadline.min(now + LOOK));
        cx.waited += now.elapsed();
    }
}
