//! `endSessions` and `refreshSessions`.

use super::ids;
use crate::request::{CommandContext, Done};
use errors::{Result, bail, operation};
use session::Lsid;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    end(cx)?;
    Ok(Done::Reply)
}

/// Ends the sessions that the command names, in this process; which they are.
pub fn end(cx: &CommandContext<'_, '_>) -> Result<Vec<Lsid>> {
    cx.args.no_fields()?;
    let ids = ids(cx, "endSessions", cx.args.first)?;
    if ids.len() > 10_000 {
        bail!(BadValue, "Too many sessions to end at once");
    }
    for id in &ids {
        operation::step()?;
        cx.app.forget_session(id);
    }
    Ok(ids)
}

pub fn refresh(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    for id in ids(cx, "refreshSessions", cx.args.first)? {
        operation::step()?;
        cx.app.sessions.touch(&id)?;
    }
    Ok(Done::Reply)
}
