//! `_pandoServed`: how much a shard does for routers, so that movers can slow down.
//!
//! ```text
//! {_pandoServed: 1}      → {served: <long>, pauseMillis: <int>, copiers: <int>}
//! ```
//! `served`: commands of routers since the process began, where a message of many documents is as many
//! as it has pieces of 2 KB; 0 where movers need not rest. `pauseMillis`: the least pause of a mover.
//! `copiers`: messages that are put here at once, when a range comes here.

use crate::request::{CommandContext, Done};
use crate::settings::parameters::{COPY_PAUSE, MIGRATION_CONCURRENCY};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.w.i64("served", cx.app.served() as i64);
    cx.w.i64("pauseMillis", cx.app.parameters.int(COPY_PAUSE));
    let copiers = cx.app.parameters.int(MIGRATION_CONCURRENCY);
    cx.w.i64("copiers", copiers);
    Ok(Done::Reply)
}
