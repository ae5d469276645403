//! `pando route` and `mongos`: the wiring of a router, and of the balancer in the process of a
//! configuration set.
//!
//! Invariant: a router's directory is scratch, and goes with the process.

use crate::peers;
use cluster_view::Cluster;
use commands::Commands;
use mover::{Moving, balancer, resolver};
use replication::Driver;
use router::{Router, ShardJoins};
use service::ServerConfig;
use service::config::ClusterRole;
use service::moves::Moves;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of a router that was given none.
pub fn scratch_dir() -> PathBuf {
    let name = format!("pando-route-{}-{:08x}", std::process::id(), seed());
    std::env::temp_dir().join(name)
}

fn seed() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.subsec_nanos())
}

/// A router in front of the cluster that the configuration names.
pub fn router(config: &ServerConfig, commands: Commands) -> Arc<Router> {
    let address = config.config_db.clone().unwrap_or_default();
    let moves = commands.control.metrics.moves.clone();
    let cluster =
        Cluster::new(&address, peers::access(config), Box::<Moving>::default()).counting(moves);
    let cluster = Arc::new(cluster);
    let router = Router::new(cluster, commands);
    router.announce(&format!("localhost:{}", config.port));
    router
}

/// Has a shard join what other shards have. `workers`: how many of its threads may wait.
pub fn join_as_shard(config: &ServerConfig, commands: &Commands, workers: usize) {
    if config.role != ClusterRole::Shard {
        return;
    }
    let joins = ShardJoins::new(peers::access(config), workers, commands);
    commands.join_as_shard(Arc::new(joins));
}

/// Begins to balance the cluster whose configuration this set has, and to end what routers have left,
/// where this member leads it.
pub fn balance(config: &ServerConfig, driver: &Driver, moves: Arc<Moves>) -> Result<(), String> {
    let host = match config.bind.first().map(String::as_str) {
        None | Some("localhost" | "0.0.0.0" | "::") => "127.0.0.1",
        Some(host) => host,
    };
    let address = format!("{}/{host}:{}", driver.set_name(), config.port);
    let cluster =
        Cluster::new(&address, peers::access(config), Box::<Moving>::default()).counting(moves);
    let cluster = Arc::new(cluster);
    let driver = driver.clone();
    let leads = move || driver.status().is_primary() && driver.is_open();
    balancer::run(cluster.clone(), leads.clone())
        .map_err(|e| format!("the balancer does not start: {e}"))?;
    resolver::run(cluster, leads).map_err(|e| format!("the resolver does not start: {e}"))
}

/// Removes what a router kept while it ran.
pub fn clear(dir: &Path) {
    if let Err(e) = std::fs::remove_dir_all(dir) {
        tracing::warn!(target: "CONTROL", dir = %dir.display(), error = %e, "The router's directory stays");
    }
}
