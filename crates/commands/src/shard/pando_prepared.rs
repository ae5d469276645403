//! `_pandoPrepared`: what waits on this shard for others: transactions that are prepared, and
//! decisions that others may not have heard of.
//!
//! ```text
//! {_pandoPrepared: 1} → {prepared: [{session, number, recoveryShard}…],
//!                        decisions: [{session, number, participants}…]}
//! ```

use crate::request::session_of::append_session;
use crate::request::{CommandContext, Done};
use errors::Result;
use session::two_phase::list_decisions;

/// The most that one reply tells of.
const MOST: usize = 1000;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.w.open_array("prepared");
    for t in cx.app.engine.prepared.list().iter().take(MOST) {
        cx.w.open_doc("");
        append_session(&mut cx.w, "session", &t.lsid);
        cx.w.i64("number", t.number)
            .str("recoveryShard", &t.recovery_shard)
            .close();
    }
    cx.w.close().open_array("decisions");
    for decision in list_decisions(&cx.op)?.iter().take(MOST) {
        cx.w.open_doc("");
        append_session(&mut cx.w, "session", &decision.lsid);
        cx.w.i64("number", decision.number)
            .open_array("participants");
        for shard in &decision.participants {
            cx.w.str("", shard);
        }
        cx.w.close().close();
    }
    cx.w.close();
    Ok(Done::Reply)
}
