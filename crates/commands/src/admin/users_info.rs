//! `usersInfo` and `rolesInfo`: there are none yet.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn users(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.w.open_array("users").close();
    Ok(Done::Reply)
}

pub fn roles(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.w.open_array("roles").close();
    Ok(Done::Reply)
}
