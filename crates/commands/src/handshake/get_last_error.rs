//! `getLastError`: how the connection's last write fared, for shells and drivers from before
//! acknowledged writes.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let last = cx.client.state.last_write.lock().clone();
    let w = &mut cx.w;
    w.int("connectionId", cx.client.id).int("n", last.n);
    match &last.error {
        Some(e) => w.str("err", e).i32("code", last.code),
        None => w.null("err"),
    };
    Ok(Done::Reply)
}
