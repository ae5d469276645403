//! `_pandoFence`: from here on routers wait with a collection, because a range of it is about to
//! have another owner.
//!
//! ```text
//! {_pandoFence: 1, ns, range: {low, high?}, by: <string>, turn?, firm?}      → {upTo: <long>}
//! {_pandoFence: 1, ns, by, lift: true, turn?}
//! ```
//! A later `turn` lifts what an earlier one has raised. The reply comes when all writes of before are
//! in the log, which ends at `upTo`, those of prepared transactions among them.

use super::ownerships::DRAIN;
use super::{range, store, text, turn};
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use sharding::{Fence, Ownership};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, by) = (text(cx, "ns")?, text(cx, "by")?);
    let lift = cx.args.field("lift").is_some_and(|v| v.truthy());
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    let Some(known) = ownerships.get(ns) else {
        bail!(NamespaceNotSharded, "{ns} is not sharded here");
    };
    let heard = (*known).clone().heed(turn(cx, known.turn))?;
    let followed = heard.turn > known.turn;
    if let Some(fence) = known.fence.as_ref().filter(|f| f.by != by && !followed) {
        if lift {
            return Ok(Done::Reply);
        }
        bail!(
            ConflictingOperationInProgress,
            "{ns} is fenced by {}",
            fence.by
        );
    }
    let fence = match lift {
        true => None,
        false => Some(Fence {
            by: by.into(),
            range: range(cx)?,
            firm: cx.args.field("firm").is_some_and(|v| v.truthy()),
        }),
    };
    let open = Ownership {
        fence: None,
        ..heard
    };
    let fenced = Ownership {
        fence,
        ..open.clone()
    };
    store(cx, &fenced)?;
    let prepared = &cx.app.engine.prepared;
    let ended = || prepared.wait(DRAIN, |_, t| t.collections.iter().any(|c| c == ns));
    let is_quiet = lift || ownerships.drain(ns) && ended();
    if !is_quiet {
        store(cx, &open)?;
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
