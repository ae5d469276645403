//! `getMore`. Runs on a worker: a batch cannot be started over, and an awaitData cursor waits for
//! what comes. A cursor over the log that has nothing to give waits without one.

use super::cursor::BATCH_BYTES;
use super::snapshot;
use crate::request::{CommandContext, Done};
use crate::security::authorize;
use crate::settings::fail_point::FailPoints;
use bson::{Elem, Val};
use catalog::Tail;
use errors::{Code, Error, Result, bail, err};
use front::{Args, idl};
use session::{Cursor, Results};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long an awaitData cursor waits when the client does not say.
const AWAIT: Duration = Duration::from_secs(1);
/// How often a waiting cursor checks whether it was killed or its client is gone: neither wakes it.
const LOOK: Duration = Duration::from_millis(250);

idl::arguments! {
    struct Arguments<'a> {
        "collection" => collection: Option<&'a str> = idl::string,
        "batchSize" => batch: Option<u64> = idl::unsigned,
    }
    checked: "term" => check_term;
    ignored: "lastKnownCommittedOpTime" | "includeQueryStatsMetrics";
}

fn check_term(within: &str, e: Elem<'_>) -> Result<()> {
    match e.val.as_i64().is_some() || e.val.is_nullish() {
        true => Ok(()),
        false => Err(idl::mismatch(within, e.name, e.val, &["long"])),
    }
}

fn cursor_id(first: Val<'_>) -> Result<i64> {
    match first.as_i64() {
        Some(id) => Ok(id),
        None if first.is_nullish() => Err(idl::missing("getMore", "getMore")),
        None => Err(idl::mismatch("getMore", "getMore", first, &["long"])),
    }
}

/// Which cursor goes on, its collection, and the size of the batch.
fn arguments(args: &Args<'_>) -> Result<(i64, String, Option<u64>)> {
    let id = cursor_id(args.first)?;
    let a = Arguments::parse("getMore", args.fields.iter().copied())?;
    let collection = idl::required("getMore", "collection", a.collection)?;
    Ok((id, args.namespace_of(collection)?, a.batch))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    // Read before anything else is: what comes from now on is news.
    let seen = cx.app.control.stirred();
    let (id, ns, batch) = arguments(&cx.args)?;
    if let Some(owner) = cx.app.cursors.owner(id) {
        authorize::check_owner(cx, owner.as_deref(), id)?;
    }
    let number = cx.transaction.as_ref().map(|s| s.number);
    let taken = (cx.app.cursors).take(id, &ns, cx.args.generic.lsid, number);
    // It was there when this getMore came, and began to wait.
    let killed = |e: Error| match cx.request.again && e.code == Code::CursorNotFound {
        true => cursor_killed(),
        false => e,
    };
    let mut cursor = taken.map_err(|stop| stop.map_error(killed))?;
    cx.originating = Some(cursor.command.clone());
    if let Err(e) = authorize::check_still(cx, cursor.command.as_doc(), id) {
        cx.app.cursors.give_back(cursor);
        return Err(e);
    }
    check_cursor(cx, &cursor, id, &ns)?;
    let started = Instant::now();
    let asked = (cx.request.body.get("maxTimeMS"))
        .filter(|v| !v.is_nullish())
        .map(|_| Duration::from_millis(cx.args.generic.max_time_ms));
    let until = match cursor.await_until.take().filter(|_| cx.request.again) {
        Some(until) => until,
        None => started + asked.unwrap_or(AWAIT),
    };
    let follows_log = cursor.results.is_quiet().is_some();
    if follows_log && let Some(waker) = cx.client.waker.get().cloned() {
        // Before it is asked for news.
        cursor.results.on_news(Box::new(move || waker.wake()));
    }
    let quiet = cursor.results.is_quiet();
    if quiet == Some(true) && may_wait(cx, &cursor, until) {
        cursor.await_until = Some(until);
        cx.client.state.awaited.store(id, Relaxed);
        cx.app.cursors.give_back(cursor);
        return Ok(Done::Await { until, seen });
    }
    if let Err(e) = cx.op.need_worker() {
        cursor.await_until = follows_log.then_some(until);
        cx.app.cursors.give_back(cursor);
        return Err(e);
    }
    let waits = cursor.awaits.is_some() || follows_log;
    if !waits && asked.is_some() {
        cx.app.cursors.give_back(cursor);
        bail!(
            BadValue,
            "cannot set maxTimeMS on getMore command for a non-awaitData cursor"
        );
    }
    // Of a cursor that waits, the time is how long to wait, not how long to work.
    let time_left = cursor.time_left.filter(|_| !waits);
    cx.op.deadline = time_left.and_then(|t| cx.app.fail_points.deadline(started, t));
    errors::operation::until(cx.op.deadline);
    cx.op.snapshot = cursor.snapshot.clone();
    let batch = batch.filter(|n| *n > 0).unwrap_or(u64::MAX);
    cx.op.may_cut = true;
    if cx.op.own_places.is_some() {
        // What it writes is acknowledged as the command asked for.
        cx.heed_write_concern(cursor.command.get("writeConcern"))?;
    }
    cx.w.open_doc("cursor").open_array("nextBatch");
    let start = cx.w.len();
    let done = fill(cx, &mut cursor, batch, until)?;
    let empty = cx.w.len() == start;
    if follows_log && empty && !done && may_wait(cx, &cursor, until) {
        cursor.await_until = Some(until);
        cx.client.state.awaited.store(id, Relaxed);
        keep(cx, cursor, started)?;
        return Ok(Done::Await { until, seen });
    }
    cx.work.returned += cx.w.items() as u64;
    cx.w.close();
    if let Some(token) = cursor.results.resume_token() {
        cx.w.doc("postBatchResumeToken", token.as_doc());
    }
    cx.w.i64("id", if done { 0 } else { id }).str("ns", &ns);
    snapshot::append(&cx.op, &mut cx.w);
    cx.w.close();
    match done {
        true => cx.app.cursors.remove(id),
        false => keep(cx, cursor, started)?,
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

/// What a getMore is told whose cursor was killed under its hands.
fn cursor_killed() -> Error {
    err!(CursorKilled, "operation was interrupted")
}

/// Ends a cursor whose collection is not the one that it was opened on, or that a fail point ends.
fn check_cursor(cx: &CommandContext<'_, '_>, cursor: &Cursor, id: i64, ns: &str) -> Result<()> {
    if let Some(e) = failed(&cx.app.fail_points) {
        cx.app.cursors.remove(id);
        return Err(resumable(e, &*cursor.results).into());
    }
    let Some(uuid) = cursor.uuid else {
        return Ok(());
    };
    let catalog = cx.app.engine.catalog.snapshot();
    if catalog.get(ns).is_some_and(|c| c.uuid == uuid) {
        return Ok(());
    }
    cx.app.cursors.remove(id);
    bail!(
        QueryPlanKilled,
        "collection dropped. UUID {}",
        bson::shell::val(bson::Value::binary(4, &uuid).as_val())
    )
}

/// Writes the next batch; whether it is the last. An awaitData cursor waits for one until `until`.
/// An error ends the cursor.
fn fill(
    cx: &mut CommandContext<'_, '_>,
    cursor: &mut Cursor,
    batch: u64,
    until: Instant,
) -> Result<bool> {
    let filled = match cursor.awaits.clone() {
        None => cx.op.check().and_then(|()| {
            let results = &mut cursor.results;
            results.fill(&mut cx.op, &mut cx.w, batch, BATCH_BYTES)
        }),
        Some(tail) => await_data(cx, cursor, &tail, batch, until),
    };
    let filled = match filled {
        Ok(_) if cursor.killed.load(Relaxed) => Err(cursor_killed().into()),
        Ok(done) => Ok(done),
        Err(e) => Err(e.map_error(|e| resumable(e, &*cursor.results))),
    };
    filled.inspect_err(|_| cx.app.cursors.remove(cursor.id))
}

/// Keeps a cursor for its next batch.
fn keep(cx: &mut CommandContext<'_, '_>, mut cursor: Box<Cursor>, started: Instant) -> Result<()> {
    let released = cursor.results.release(&mut cx.op);
    released.inspect_err(|_| cx.app.cursors.remove(cursor.id))?;
    cursor.time_left = cursor.time_left.map(|t| {
        t.checked_sub(started.elapsed())
            .unwrap_or(Duration::from_millis(1))
    });
    cx.app.cursors.give_back(cursor);
    Ok(())
}

/// What a fail point has a getMore fail with.
pub(crate) fn failed(points: &FailPoints) -> Option<Error> {
    let message = "Hit the failGetMoreAfterCursorCheckout fail point";
    Some(Error::coded(points.get_more()?, message))
}

fn resumable(e: Error, results: &dyn Results) -> Error {
    match results.resume_token() {
        Some(_) => with_resumable_label(e),
        None => e,
    }
}

/// An error of a change stream with the label by which drivers resume it, where they shall.
pub fn with_resumable_label(e: Error) -> Error {
    const LABEL: &str = "ResumableChangeStreamError";
    const RESUMABLE: [i32; 18] = [
        6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436,
        43,
    ];
    match RESUMABLE.contains(&e.code.0) && !e.labels.contains(&LABEL) {
        true => e.with_label(LABEL),
        false => e,
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
