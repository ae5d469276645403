//! Which shard this server is: what the router that added it has left here, as MongoDB does
//! (`shardIdentity` in `admin.system.version`), and the commands that tell of it.
//!
//! Of the other shards a shard knows nothing by itself: routers know them. What it joins it asks the
//! configuration set for (`joins`).

use crate::request::{CommandContext, Done};
use crate::settings::documents;
use bson::{DocBuf, Val};
use errors::{Result, bail};
use service::config::ClusterRole;

const VERSIONS: &str = "admin.system.version";
const IDENTITY: &str = "shardIdentity";

/// `None`: this server was added to no cluster, or is no shard.
pub(super) fn identity(cx: &CommandContext<'_, '_>) -> Result<Option<DocBuf>> {
    match cx.app.config.role {
        ClusterRole::Shard => documents::get(&cx.app.engine, VERSIONS, IDENTITY),
        _ => Ok(None),
    }
}

/// `shardingState`.
pub fn state(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let known = identity(cx)?;
    cx.w.bool("enabled", known.is_some());
    if let Some(known) = known {
        for (told, kept) in [
            ("configServer", "configsvrConnectionString"),
            ("shardName", "shardName"),
            ("clusterId", "clusterId"),
        ] {
            cx.w.val(told, known.get(kept).unwrap_or(Val::NULL));
        }
    }
    Ok(Done::Reply)
}

/// `getShardMap`.
pub fn map(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(known) = identity(cx)? else {
        bail!(
            ShardingStateNotInitialized,
            "Sharding is not enabled: this server was not added to a cluster"
        );
    };
    let text = |name: &str| known.get(name).and_then(Val::as_str).unwrap_or_default();
    let all = [
        ("config", text("configsvrConnectionString")),
        (text("shardName"), text("host")),
    ];
    cx.w.open_doc("map");
    for (id, address) in all {
        cx.w.str(id, address);
    }
    cx.w.close().open_doc("hosts");
    for (id, address) in all {
        let hosts = address.split_once('/').map_or(address, |(_, h)| h);
        for host in hosts.split(',') {
            cx.w.str(host, id);
        }
    }
    cx.w.close().open_doc("connStrings");
    for (id, address) in all {
        cx.w.str(address, id);
    }
    cx.w.close();
    Ok(Done::Reply)
}
