//! `_pandoFence`: from here on routers wait with a collection, because a range of it is about to
//! have another owner.
//!
//! ```text
//! {_pandoFence: 1, ns, range: {low, high?}, by: <string>, turn?, firm?, drain?: <milliseconds>}
//!                                                                             → {upTo: <long>}
//! {_pandoFence: 1, ns, by, lift: true, turn?}
//! {_pandoFence: 1, ns, wait: <milliseconds>}       → {waited: <bool>}   when none stands any more
//! ```
//! A later `turn` lifts what an earlier one has raised. The reply comes when all writes of before are
//! in the log, which ends at `upTo`, those of prepared transactions among them. They are waited for as
//! long as `drain` says; where that is too short, the fence is gone again when the reply comes.

use super::{drain_time, range, store, text, turn};
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use sharding::Fence;
use std::time::{Duration, Instant};

/// The longest wait.
const LONGEST_WAIT_MILLIS: i64 = 2000;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let wait = cx.args.field("wait").and_then(|v| v.to_i64_exact());
    if let Some(millis) = wait {
        let millis = millis.clamp(0, LONGEST_WAIT_MILLIS).unsigned_abs();
        let until = Instant::now() + Duration::from_millis(millis);
        let ns = &*cx.app.ownership_key(text(cx, "ns")?).name;
        let waited = cx.app.ownerships.wait_while_fenced(ns, until);
        cx.w.bool("waited", waited);
        return Ok(Done::Reply);
    }
    let (ns, by) = (text(cx, "ns")?, text(cx, "by")?);
    let lift = cx.args.field("lift").is_some_and(|v| v.truthy());
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    let Some(known) = ownerships.get(ns) else {
        bail!(NamespaceNotSharded, "{ns} is not sharded here");
    };
    let turn = turn(cx, known.turn);
    let known = match lift {
        true => known.lifted(by, turn)?,
        false => {
            let fence = Fence {
                by: by.into(),
                range: range(cx)?,
                firm: cx.args.field("firm").is_some_and(|v| v.truthy()),
            };
            Some(known.with_fence(fence, turn)?)
        }
    };
    let Some(known) = known else {
        return Ok(Done::Reply);
    };
    store(cx, &known)?;
    let prepared = &cx.app.engine.prepared;
    let patience = drain_time(cx);
    let ended = || prepared.wait(patience, |_, t| t.collections.iter().any(|c| c == ns));
    let is_quiet = lift || ownerships.drain(ns, patience) && ended();
    if !is_quiet {
        store(cx, &known.without_fence())?;
        bail!(
            LockTimeout,
            "writes to {ns} have been open for too long for a range of it to be moved"
        );
    }
    // A decision is told before its entry counts as the log's last.
    cx.app.store.between_groups();
    cx.w.i64("upTo", cx.app.store.last_index() as i64);
    Ok(Done::Reply)
}
