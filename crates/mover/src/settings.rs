//! Settings of the whole cluster on their way to shards: feature compatibility version, default
//! concerns, the user write block, cluster parameters, query settings.

use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::metadata::{Cluster, run};
use cluster_view::reply::{batch_of, sound};
use cluster_view::upstream::message;
use cluster_view::write_concern::majority;
use cluster_view::{Outcome, ReplicaSet};
use errors::err;
use front::cluster_settings::is_of_cluster;
use std::collections::HashMap;

/// The settings, and when they were these.
pub struct Settings {
    pub at: u64,
    pub list: Vec<DocBuf>,
}

impl Settings {
    pub fn read(cluster: &Cluster) -> Outcome<Settings> {
        let find = doc! {
            "find": "settings", "batchSize": 10_000, "singleBatch": true, "$db": "config",
            "readConcern": doc! {"level": "snapshot"},
        };
        let reply = sound(cluster.config.call(&message(find.as_doc(), &[]))?)?;
        let cursor = reply.get("cursor").and_then(Val::as_doc);
        let at = cursor.and_then(|c| c.get("atClusterTime")?.as_timestamp());
        let at = at.ok_or_else(|| err!(InternalError, "a snapshot has no time"))?;
        let list = batch_of(&reply).filter(|d| is_setting(*d));
        let list = list.map(Doc::to_buf).collect();
        Ok(Settings { at, list })
    }

    /// The command that tells of them.
    pub fn to_command(&self) -> DocBuf {
        let mut w = Writer::new();
        w.i32("_pandoSettings", 1).timestamp("at", self.at);
        w.open_array("settings");
        for setting in &self.list {
            w.push(setting.as_doc().as_val());
        }
        w.close()
            .doc("writeConcern", majority().as_doc())
            .str("$db", "admin");
        w.finish()
    }
}

/// Whether a document of `config.settings` is one of the whole cluster's settings.
fn is_setting(d: Doc<'_>) -> bool {
    let id = d.get("_id").and_then(Val::as_str);
    id.is_some_and(is_of_cluster)
}

/// Tells a set that is about to be a shard.
pub fn tell(cluster: &Cluster, set: &ReplicaSet) -> Outcome<()> {
    run(set, "admin", Settings::read(cluster)?.to_command().as_doc()).map(drop)
}

/// Tells shards of settings that they have not been told of: the router that changed them is gone, or
/// did not reach them.
#[derive(Default)]
pub struct Teller {
    /// What each shard was told last.
    to_command: HashMap<String, Vec<DocBuf>>,
}

impl Teller {
    pub fn look(&mut self, cluster: &Cluster, shards: &[String]) -> Outcome<()> {
        self.to_command.retain(|shard, _| shards.contains(shard));
        // A snapshot is kept for a while, so it is taken only where there is something to tell.
        let mut list = cluster.read_config("settings", Doc::EMPTY, Doc::EMPTY)?;
        list.retain(|d| is_setting(d.as_doc()));
        let knows = |shard: &String| self.to_command.get(shard) == Some(&list);
        if list.is_empty() || shards.iter().all(knows) {
            return Ok(());
        }
        let settings = Settings::read(cluster)?;
        for shard in shards {
            if self.to_command.get(shard) == Some(&settings.list) {
                continue;
            }
            let to_command = cluster.on_shard(shard, "admin", settings.to_command().as_doc());
            let Ok(reply) = to_command else { continue };
            if let Some(why) = reply.get("refused").and_then(Val::as_str) {
                tracing::warn!(target: "SHARDING", shard, why, "A shard does not take the cluster's settings");
            }
            self.to_command.insert(shard.clone(), settings.list.clone());
        }
        Ok(())
    }
}
