//! `features`.

use crate::cx::{Cx, Done};
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.w.oid("oidMachine", cx.app.process_id);
    Ok(Done::Reply)
}
