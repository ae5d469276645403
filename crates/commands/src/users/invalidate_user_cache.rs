//! `invalidateUserCache`: each logged-in user is read anew before its next command.

use crate::request::{CommandContext, Done};
use errors::Result;
use std::sync::atomic::Ordering;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    cx.app.security.generation.fetch_add(1, Ordering::AcqRel);
    Ok(Done::Reply)
}
