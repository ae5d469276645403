//! `startSession`: a session id made by the server. Clients make their own.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let id = crate::request::connection::new_uuid();
    cx.app.sessions.touch(&id)?;
    cx.w.open_doc("id")
        .binary("id", 4, &id)
        .close()
        .i32("timeoutMinutes", 30);
    Ok(Done::Reply)
}
