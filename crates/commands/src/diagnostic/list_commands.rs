//! `listCommands`.

use crate::request::table::{NAMES, flag, lookup};
use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut names = NAMES.to_vec();
    names.sort_unstable();
    cx.w.open_doc("commands");
    for name in names {
        let Some(c) = lookup(name) else { continue };
        cx.w.open_doc(name)
            .str("help", c.help)
            .bool("requiresAuth", !c.is(flag::HANDSHAKE));
        cx.w.bool("secondaryOk", true)
            .bool("adminOnly", c.is(flag::ADMIN));
        cx.w.open_array("apiVersions");
        if c.is(flag::API) {
            cx.w.push_value("1");
        }
        cx.w.close()
            .open_array("deprecatedApiVersions")
            .close()
            .close();
    }
    cx.w.close();
    Ok(Done::Reply)
}
