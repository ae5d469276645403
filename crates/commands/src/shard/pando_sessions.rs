//! `_pandoSessions`: the outcomes of retryable writes, for the shard that a range moves to.
//!
//! ```text
//! {_pandoSessions: 1, after?: <bytes>}      → {records: [{k, v}…], next?: <bytes>}
//! {_pandoSessions: 1, put: [{k, v}…]}
//! ```

use crate::request::{CommandContext, Done};
use bson::Writer;
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if let Some(records) = cx.args.field("put").and_then(|v| v.as_array()) {
        cx.app
            .session_table
            .take_over(&cx.op, &cx.app.store, records)?;
        cx.after_commit = true;
        return Ok(Done::Reply);
    }
    // The other shard would report a write that is rolled back here as done.
    cx.after_commit = true;
    let after = cx.args.field("after").and_then(|v| v.as_binary());
    let mut records = Writer::new_array();
    let after = after.map(|(_, bytes)| bytes);
    let next = (cx.app.session_table).hand_over(&cx.app.store, after, &mut records)?;
    cx.w.val("records", records.finish_array().as_val());
    if let Some(next) = next {
        cx.w.binary("next", 0, &next);
    }
    Ok(Done::Reply)
}
