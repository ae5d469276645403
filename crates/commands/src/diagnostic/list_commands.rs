//! `listCommands`.

use crate::request::{CommandContext, Done};
use errors::Result;
use front::{flag, specification};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut known: Vec<_> = specification::of_servers().collect();
    known.sort_unstable_by_key(|c| c.name);
    cx.w.open_doc("commands");
    for c in known {
        cx.w.open_doc(c.name)
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
