//! `replSetAbortPrimaryCatchUp`: has a new primary take writes before it has what other members
//! have. Here a member has all that is committed before it is elected, so there is nothing to abort.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    bail!(IllegalOperation, "The node is not in catch-up mode.")
}
