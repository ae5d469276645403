//! `startSession`: a session id made by the server. Clients make their own.

use crate::request::session_of::{append_session, own_uid};
use crate::request::{CommandContext, Done};
use errors::Result;
use session::Lsid;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let lsid = Lsid {
        id: catalog::new_uuid(),
        uid: own_uid(cx),
    };
    cx.app.sessions.touch(&lsid)?;
    append_session(&mut cx.w, "id", &lsid);
    cx.w.i32("timeoutMinutes", 30);
    Ok(Done::Reply)
}
