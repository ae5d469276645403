//! `connPoolStats`: this server opens no connections of its own.

use crate::request::{CommandContext, Done};
use errors::Result;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let w = &mut cx.w;
    w.i32("numClientConnections", 0)
        .i32("numAScopedConnections", 0);
    for f in [
        "totalInUse",
        "totalAvailable",
        "totalLeased",
        "totalCreated",
        "totalRefreshing",
        "totalRefreshed",
    ] {
        w.i32(f, 0);
    }
    w.open_doc("pools")
        .close()
        .open_doc("hosts")
        .close()
        .open_doc("replicaSets")
        .close();
    Ok(Done::Reply)
}
