//! `lockInfo`: holders of locks and waiters. Record latches last microseconds and are not listed; the
//! lock of `fsync` against writes is.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let locks = cx.app.engine.fsync_lock.locks();
    cx.w.open_array("lockInfo");
    if locks > 0 {
        cx.w.open_doc("").str("resourceId", "{1: Global, 1}");
        cx.w.open_array("granted").open_doc("");
        cx.w.str("mode", "S")
            .i32("convertMode", 0)
            .bool("enqueueAtFront", false)
            .bool("compatibleFirst", true)
            .str("debugInfo", "fsyncLock")
            .i64("lockCount", locks);
        cx.w.close().close();
        cx.w.open_array("pending").close().close();
    }
    cx.w.close();
    Ok(Done::Reply)
}
