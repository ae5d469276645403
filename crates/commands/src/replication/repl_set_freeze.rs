//! `replSetFreeze`: keeps a secondary from standing for election. The only member of a set is its primary, and is refused.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    bail!(
        NotSecondary,
        "cannot freeze node when primary or running for election. state: Primary"
    )
}
