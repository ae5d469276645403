//! The cluster's time, as moves need it: what a recipient writes is later than what the donor has
//! written.

use bson::{Val, Writer, doc};
use cluster_view::metadata::{Cluster, run};
use cluster_view::write_concern::majority;
use cluster_view::{Outcome, ReplicaSet};
use errors::err;
use std::time::Duration;

/// The timestamp of the last entry of a shard's log.
pub fn time_of(cluster: &Cluster, shard: &str) -> Outcome<u64> {
    let reply = cluster.on_shard(shard, "admin", doc! {"_pandoTime": 1}.as_doc())?;
    let time = reply.get("time").and_then(Val::as_timestamp);
    Ok(time.ok_or_else(|| err!(InternalError, "{shard} does not say what time it is"))?)
}

/// The time of a shard's log that long ago.
pub fn time_before(cluster: &Cluster, shard: &str, ago: Duration) -> Outcome<u64> {
    let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
    let ask = doc! {"_pandoTime": 1, "ago": ago};
    let reply = cluster.on_shard(shard, "admin", ask.as_doc())?;
    let then = reply.get("then").and_then(Val::as_timestamp);
    Ok(then.ok_or_else(|| err!(InternalError, "{shard} does not say what time it was"))?)
}

/// Returns when the log of a shard has come to a time: all that it writes then is later.
pub fn reach_time(cluster: &Cluster, shard: &str, time: u64) -> Outcome<()> {
    set_time(&*cluster.shard(shard)?, time)
}

pub fn set_time(set: &ReplicaSet, time: u64) -> Outcome<()> {
    let mut w = Writer::new();
    w.i32("_pandoTime", 1).timestamp("atLeast", time);
    w.doc("writeConcern", majority().as_doc());
    run(set, "admin", w.finish().as_doc())?;
    Ok(())
}

/// Brings a shard that is new to the time of the others.
pub fn join_time(cluster: &Cluster, shard: &str) -> Outcome<()> {
    let mut latest = 0;
    for name in cluster.shard_names()? {
        latest = latest.max(time_of(cluster, &name)?);
    }
    reach_time(cluster, shard, latest)
}
