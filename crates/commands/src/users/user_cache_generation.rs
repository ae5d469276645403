//! `_getUserCacheGeneration`: another number after each change of users and roles, for routers,
//! which read them from here.

use crate::request::{CommandContext, Done};
use bson::ObjectId;
use errors::Result;
use std::sync::atomic::Ordering;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    // Of this process: another primary says another.
    let mut id = cx.app.process_id.0;
    let generation = cx.app.security.generation.load(Ordering::Acquire);
    for (byte, changes) in id.iter_mut().rev().zip(generation.to_le_bytes()) {
        *byte ^= changes;
    }
    cx.w.oid("cacheGeneration", ObjectId(id));
    Ok(Done::Reply)
}
