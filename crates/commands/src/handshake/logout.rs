//! `logout`: nobody was logged in.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    Ok(Done::Reply)
}
