//! `_pandoSnapshot`: a shard keeps its state at a time that all shards keep theirs at.
//!
//! ```text
//! {_pandoSnapshot: 1, at: <timestamp>}
//!     → {pinned: true, prepared: [{session, number, recoveryShard}…]}    what was prepared in that state
//!     → {pinned: false, time: <timestamp>}                               the log is later already
//! {_pandoSnapshot: 1, at, committed: [{session, number}…]}    → {committed: [<bool>…]}    in that state
//! {_pandoSnapshot: 1, at, include: [{session, number}…]}      that state shows what these have prepared
//! ```
//! The last tells all that the state is to show, also where that is nothing; until then the state is not
//! read, unless nothing is prepared in it. Another primary has no state of that time, and keeps none any
//! more. A transaction whose decision is in the state of the shard that decides is to be seen on all shards.
//! One that is not decided there commits later than that time, because nothing is written any more
//! before it.

use super::{required, transaction_of};
use crate::request::session_of::append_session;
use crate::request::{CommandContext, Done};
use bson::{Doc, Val};
use errors::{Result, bail};
use session::Lsid;
use session::two_phase::{has_decision, prepared_key};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let at = required(cx, "at", Val::as_timestamp)?;
    let (snapshots, engine) = (&cx.app.snapshots, &cx.app.engine);
    // A shown state must not be rolled back.
    cx.after_commit = true;
    if let Some(asked) = listed(cx, "committed")? {
        let view = &snapshots.pinned_at(at)?.view;
        cx.w.open_array("committed");
        for (lsid, number) in asked {
            cx.w.bool("", has_decision(view, &lsid, number)?);
        }
        cx.w.close();
        return Ok(Done::Reply);
    }
    if let Some(included) = listed(cx, "include")? {
        let keys = included.iter().map(|(lsid, n)| prepared_key(lsid, *n));
        snapshots.include(at, keys.collect())?;
        return Ok(Done::Reply);
    }
    let now = u64::try_from(engine.now_millis() / 1000).unwrap_or(0);
    if at >> 32 > now + super::pando_time::MOST_AHEAD_SECONDS {
        bail!(
            ClusterTimeFailsRateLimiter,
            "a time of more than a year from now is not taken over"
        );
    }
    let Some(pinned) = snapshots.pin(engine, cx.op.epoch(), at)? else {
        cx.w.bool("pinned", false)
            .timestamp("time", cx.app.store.last_ts());
        return Ok(Done::Reply);
    };
    cx.w.bool("pinned", true).open_array("prepared");
    for t in executor::prepared::stored_in(&pinned.view)? {
        cx.w.open_doc("");
        append_session(&mut cx.w, "session", &t.lsid);
        cx.w.i64("number", t.number)
            .str("recoveryShard", &t.recovery_shard)
            .close();
    }
    cx.w.close();
    Ok(Done::Reply)
}

/// The transactions of a field, where it is there.
fn listed(cx: &CommandContext<'_, '_>, name: &str) -> Result<Option<Vec<(Lsid, i64)>>> {
    let Some(list) = cx.args.field(name).and_then(Val::as_array) else {
        return Ok(None);
    };
    let each = list.values().map(|v| {
        let d = v.as_doc().unwrap_or(Doc::EMPTY);
        transaction_of(cx, d.get("session"), d.get("number"))
    });
    each.collect::<Result<Vec<_>>>().map(Some)
}
