//! `shutdown`: a clean stop; the connection is closed instead of a reply, as MongoDB does.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    for e in cx.args.fields.clone() {
        match e.name {
            "force" => {
                idl::safe_bool("shutdown", e)?;
            }
            "timeoutSecs" => {
                idl::int("shutdown", e)?;
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    if cx.client.peer.ip().is_some_and(|ip| !ip.is_loopback()) {
        bail!(
            Unauthorized,
            "shutdown must run from localhost when running db without auth"
        );
    }
    cx.app.control.shutdown();
    Ok(Done::Close)
}
