//! `_pandoTime`: what time it is in a shard's log, and that it be late enough.
//!
//! ```text
//! {_pandoTime: 1}                        → {time: <timestamp of the last entry>}
//! {_pandoTime: 1, atLeast: <timestamp>}  → {time}       an empty entry brings the log there
//! {_pandoTime: 1, ago: <microseconds>}   → {time, then} and the time that long ago
//! ```
//! A stream of changes over the cluster may give an event of one shard when no other can have an
//! earlier one any more.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use std::time::{Duration, Instant};
use storage::Entry;

/// How far a shard lets its clock be put forward, in seconds; as MongoDB's
/// `maxAcceptableLogicalClockDriftSecs`.
pub(super) const MOST_AHEAD_SECONDS: u64 = 365 * 24 * 3600;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let at_least = cx.args.field("atLeast").and_then(|v| v.as_timestamp());
    if let Some(time) = at_least.filter(|time| *time > cx.app.store.last_ts()) {
        cx.op.last_index = reach(cx, time)?;
    }
    let now = cx.app.store.last_ts();
    cx.w.timestamp("time", now);
    if let Some(ago) = cx.args.field("ago").and_then(|v| v.to_i64_exact()) {
        let ago = Duration::from_micros(ago.max(0).unsigned_abs());
        let then = Instant::now().checked_sub(ago);
        let then = then.and_then(|then| cx.app.log_times.at(then));
        cx.w.timestamp("then", then.unwrap_or(now));
    }
    Ok(Done::Reply)
}

/// Appends an empty entry at that time or later; its index.
pub(crate) fn reach(cx: &CommandContext<'_, '_>, time: u64) -> Result<u64> {
    let now = u64::try_from(cx.app.engine.now_millis() / 1000).unwrap_or(0);
    if time >> 32 > now + MOST_AHEAD_SECONDS {
        bail!(
            ClusterTimeFailsRateLimiter,
            "a time of more than a year from now is not taken over"
        );
    }
    cx.app.store.advance_clock(time);
    let made = (cx.app.store).propose_in(cx.op.epoch(), vec![Entry::noop(Vec::new())])?;
    Ok(made.index)
}
