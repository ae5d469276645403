//! `readConcern: {level: "snapshot"}` of find, aggregate and distinct: which snapshot they read, and how
//! the reply names it.

use crate::request::CommandContext;
use bson::Writer;
use errors::Result;
use executor::OpCtx;

/// Takes the snapshot that the command asks for; without `atClusterTime` the newest.
pub fn enter(cx: &mut CommandContext<'_, '_>) -> Result<()> {
    if cx.op.transaction.is_some() {
        // It reads the transaction's snapshot.
        return Ok(());
    }
    let Some(concern) = cx.args.generic.read_concern.and_then(|v| v.as_doc()) else {
        return Ok(());
    };
    if concern.get("level").and_then(|v| v.as_str()) != Some("snapshot") {
        return Ok(());
    }
    let at = concern.get("atClusterTime").and_then(|v| v.as_timestamp());
    let (snapshots, engine) = (&cx.app.snapshots, &cx.app.engine);
    let snapshot = match at {
        Some(ts) => snapshots.at(engine, ts)?,
        None => snapshots.newest(engine),
    };
    let (command, request) = (cx.command, cx.request);
    cx.app
        .check_ranges_are_older(command, request, snapshot.taken)?;
    cx.op.snapshot = Some(snapshot);
    Ok(())
}

/// `atClusterTime`, by which later reads ask for the same state.
pub fn append(op: &OpCtx<'_>, w: &mut Writer) {
    if let Some(m) = op.snapshot.as_ref().filter(|_| op.transaction.is_none()) {
        w.timestamp("atClusterTime", m.ts);
    }
}
