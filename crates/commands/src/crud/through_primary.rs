//! `$out` and `$merge` on a secondary: the primary runs the command, since it writes. What the client
//! may do was checked here; the primary is asked as by a member.
//!
//! Invariant: when the reply comes this member has the write, so that a causal session reads it here, or
//! a bounded time has passed.

use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Writer};
use errors::{Error, Result};
use std::time::{Duration, Instant};

/// How long this member may take to have the write.
const CATCH_UP: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// Fields that belong to the client's connection and session, or were applied here.
const OWN: [&str; 9] = [
    "$db",
    "$clusterTime",
    "$readPreference",
    "lsid",
    "txnNumber",
    "readConcern",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
];
/// What ends each reply of this server anyway.
const ENDS: [&str; 3] = ["ok", "operationTime", "$clusterTime"];

fn writes(pipeline: Option<Val<'_>>) -> bool {
    let stages = pipeline.and_then(|v| v.as_array());
    let last = stages.and_then(|stages| stages.values().last());
    let stage = last.and_then(|v| v.as_doc());
    let name = stage.and_then(|stage| stage.iter().next()).map(|e| e.name);
    matches!(name, Some("$out" | "$merge"))
}

/// Runs the command where the primary is; `None` where it is not one for the primary.
pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Option<Done>> {
    let Some(driver) = cx.app.replica.clone() else {
        return Ok(None);
    };
    if driver.is_leading() || !writes(cx.args.field("pipeline")) {
        return Ok(None);
    }
    cx.op.need_worker()?;
    let mut command = Writer::new();
    for e in cx.request.body.iter().filter(|e| !OWN.contains(&e.name)) {
        command.val(e.name, e.val);
    }
    let reply = driver.ask_primary(cx.args.db, command.finish().as_doc())?;
    let reply = reply.as_doc();
    if !reply.get("ok").is_some_and(|v| v.truthy()) {
        return Err(refused(reply).into());
    }
    for e in reply.iter().filter(|e| !ENDS.contains(&e.name)) {
        cx.w.val(e.name, e.val);
    }
    // The primary has waited for the client's write concern.
    (cx.write_concern.members, cx.write_concern.own_disk) = (None, false);
    cx.write_concern.unmet = None;
    let written = reply.get("operationTime").and_then(|v| v.as_timestamp());
    let until = Instant::now() + CATCH_UP;
    let store = &cx.app.store;
    while written.is_some_and(|ts| ts > store.last_ts()) && Instant::now() < until {
        cx.op.check()?;
        driver.wait(Instant::now() + LOOK, |_| {
            written.is_none_or(|ts| ts <= store.last_ts())
        });
    }
    Ok(Some(Done::Reply))
}

fn refused(reply: Doc<'_>) -> Error {
    let code = reply.get("code").and_then(|v| v.to_i64_exact());
    let code = code.and_then(|n| i32::try_from(n).ok()).unwrap_or(1);
    let why = reply.get("errmsg").and_then(|v| v.as_str());
    let labels = reply.get("errorLabels").and_then(|v| v.as_array());
    let mut labels = labels.iter().flat_map(|l| l.values());
    let error = Error::coded(code, why.unwrap_or("the primary refused without a reason"));
    match labels.any(|l| l.as_str() == Some("RetryableWriteError")) {
        true => error.with_label("RetryableWriteError"),
        false => error,
    }
}
