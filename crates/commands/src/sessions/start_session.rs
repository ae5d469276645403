//! `startSession`: a session id made by the server. Clients make their own.

use crate::cx::{Cx, Done};
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let mut id: [u8; 16] = rand::random();
    id[6] = id[6] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    cx.app.sessions.touch(&id)?;
    cx.w.open_doc("id").binary("id", 4, &id).close().i32("timeoutMinutes", 30);
    Ok(Done::Reply)
}
