//! `replSetInitiate`: the set of one member exists from the start; scripts that start `mongod` and
//! then initiate it succeed once, and hear AlreadyInitialized from then on, as from MongoDB.

use super::set_name;
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, bail};
use service::config::Topology;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = set_name(cx)?;
    let config = cx.args.first.as_doc().unwrap_or(Doc::EMPTY);
    if let Some(id) = config.get("_id").and_then(|v| v.as_str())
        && id != name
    {
        bail!(
            InvalidReplicaSetConfig,
            "Attempting to initiate a replica set with name {id}, but command line reports {name}; rejecting"
        );
    }
    let members: Vec<Doc<'_>> = config
        .get("members")
        .and_then(|v| v.as_array())
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|v| v.as_doc())
        .collect();
    if members.len() > 1 {
        bail!(
            InvalidReplicaSetConfig,
            "PandoDB does not support replica sets of more than one member yet"
        );
    }
    let mut initiated = cx.app.initiated.lock();
    let named = matches!(
        cx.app.config.topology,
        Topology::ReplicaSet { named: true, .. }
    );
    if *initiated || !named {
        bail!(AlreadyInitialized, "already initialized");
    }
    if let Some(host) = members
        .first()
        .and_then(|m| m.get("host"))
        .and_then(|v| v.as_str())
    {
        *cx.app.initiated_host.lock() = Some(host.to_string());
        cx.app.topology.changed(&cx.app.control);
    }
    *initiated = true;
    Ok(Done::Reply)
}
