//! `logout`: ends the login of the connection.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let login = &cx.client.state.login;
    if login.user().is_some_and(|u| u.name.db == cx.args.db) {
        login.log_out();
    }
    Ok(Done::Reply)
}
