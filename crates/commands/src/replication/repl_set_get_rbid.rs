//! `replSetGetRBID`: a number that changes when a member takes writes back. A reader of a member's log
//! compares it before and after.

use super::set_name;
use crate::request::{CommandContext, Done};
use crate::topology::member::rollback_id;
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let id = rollback_id(cx);
    cx.w.i32("rbid", id);
    Ok(Done::Reply)
}
