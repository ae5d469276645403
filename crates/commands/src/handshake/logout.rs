//! `logout`: ends the login of the connection.

use crate::request::{CommandContext, Done};
use bson::doc;
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let login = &cx.client.state.login;
    if login.user().is_some_and(|u| u.name.db == cx.args.db) {
        if let Some(audit) = &cx.app.security.audit {
            let param = doc! { "reason": "explicit logout" };
            audit.tell(cx.client, "logout", &param, 0);
        }
        login.log_out();
    }
    Ok(Done::Reply)
}
