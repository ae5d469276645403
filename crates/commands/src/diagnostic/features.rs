//! `features`.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.w.oid("oidMachine", cx.app.process_id);
    Ok(Done::Reply)
}
