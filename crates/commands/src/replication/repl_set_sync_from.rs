//! `replSetSyncFrom`: the sync source of a secondary. That is always the primary: no other member can be
//! requested.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;
use replication::Host;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let name = "replSetSyncFrom";
    let Some(wanted) = cx.args.first.as_str() else {
        return Err(idl::mismatch(name, name, cx.args.first, &["string"]));
    };
    let status = cx.app.replica.as_ref().map(|driver| driver.status());
    let Some(status) = status.filter(|s| !s.is_primary()) else {
        bail!(NotSecondary, "primaries don't sync");
    };
    let Some(config) = &status.config else {
        bail!(
            NotYetInitialized,
            "Cannot sync from {wanted}: no replset config has been received"
        );
    };
    let host = Host::parse(wanted)?;
    let Some(member) = config.member_at(&host) else {
        bail!(
            NodeNotFound,
            "Could not find member \"{host}\" in replica set"
        );
    };
    let id = replication::member::raft_id(member.id);
    if id == status.id {
        bail!(InvalidOptions, "I cannot sync from myself");
    }
    if id != status.primary {
        bail!(
            InvalidSyncSource,
            "members have their entries from the primary, and {host} is not the primary"
        );
    }
    let host = host.to_string();
    cx.w.str("syncFromRequested", &host)
        .str("prevSyncTarget", &host);
    Ok(Done::Reply)
}
