//! `_pandoDecide`: a shard hears what became of a transaction that it may have prepared.
//!
//! ```text
//! {_pandoDecide: 1, session: {id, uid?}, number: <long>, commit: <bool>}      → {prepared: <bool>}
//! ```
//! The same may be said again. What it commits is later than `$clusterTime`, so later than the
//! decision.

use super::{named_transaction, required};
use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (lsid, number) = named_transaction(cx)?;
    let commits = required(cx, "commit", |v| v.as_bool())?;
    cx.app.hear_time(cx.request.body);
    // Not by the gate: a fence that drains it waits for the locks of prepared transactions.
    let session_table = cx.app.session_table.clone();
    let was_prepared = session_table.decide(&mut cx.op, lsid, number, commits, now_millis())?;
    // An earlier decision may not be on disk yet.
    cx.after_commit = true;
    cx.w.bool("prepared", was_prepared);
    Ok(Done::Reply)
}
