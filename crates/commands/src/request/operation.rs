//! A request among the running operations.

use crate::connection::Connection;
use crate::monitoring::operations::{Operation, shown_whole};
use front::{Args, Specification};
use service::{Client, Request};
use std::sync::Arc;
use std::time::Instant;

/// What currentOp shows of a request.
pub fn operation(
    command: &'static Specification,
    client: &Client<Connection>,
    request: &Request<'_>,
    args: &Args<'_>,
    started: Instant,
) -> Operation {
    Operation {
        id: 0,
        command: command.name,
        ns: match command.target(args.db, args.first) {
            Some((db, coll)) => format!("{db}.{coll}"),
            None => format!("{}.$cmd", args.db),
        },
        body: shown_whole(request),
        connection: client.id,
        client: client.peer.to_string(),
        app_name: client.state.app_name().to_string(),
        lsid: args.generic.lsid,
        user: client.state.login.user().map(|u| u.name.to_string()),
        started,
        killed: Arc::default(),
        waiting: Default::default(),
        plan: Default::default(),
    }
}
