//! Settings of the whole cluster: feature compatibility version, default concerns, the user write
//! block, cluster parameters, query settings.
//!
//! The configuration set keeps them. A change goes there, then to every shard, then the router takes
//! it over itself. Other routers ask each `clusterServerParameterRefreshIntervalSecs`. A shard that
//! was not reached hears of it from the process that leads the configuration set ([`Teller`]).
//!
//! Invariant: what a shard has of them was the configuration set's at one moment, and a later moment
//! than what it had before.

use crate::metadata::{Cluster, run};
use crate::request::Command;
use crate::scratch::sound;
use crate::service_impl::Router;
use crate::upstream::message;
use crate::write_concern::majority;
use crate::{Outcome, cursors};
use bson::{Doc, DocBuf, Val, Writer, doc};
use commands::{FEATURE_VERSIONS, is_of_cluster};
use errors::err;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How soon a router asks again that has not read them yet.
const AGAIN: Duration = Duration::from_secs(1);

/// The settings, and when they were these.
struct Settings {
    at: u64,
    list: Vec<DocBuf>,
}

impl Settings {
    fn read(cluster: &Cluster) -> Outcome<Settings> {
        let find = doc! {
            "find": "settings", "batchSize": 10_000, "singleBatch": true, "$db": "config",
            "readConcern": doc! {"level": "snapshot"},
        };
        let reply = sound(cluster.config.call(&message(find.as_doc(), &[]))?)?;
        let cursor = reply.get("cursor").and_then(Val::as_doc);
        let at = cursor.and_then(|c| c.get("atClusterTime")?.as_timestamp());
        let at = at.ok_or_else(|| err!(InternalError, "a snapshot has no time"))?;
        let list = cursors::batch_of(&reply).filter(|d| is_setting(*d));
        let list = list.map(Doc::to_buf).collect();
        Ok(Settings { at, list })
    }

    /// The command that tells of them.
    fn told(&self) -> DocBuf {
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
pub(super) fn tell(cluster: &Cluster, set: &crate::ReplicaSet) -> Outcome<()> {
    run(set, "admin", Settings::read(cluster)?.told().as_doc()).map(drop)
}

/// Runs a command on the configuration set.
fn on_config(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let generic = ["lsid", "$readPreference", "readConcern"];
    let asked = command.without(&generic).finish();
    sound(router.cluster.config.call(&message(asked.as_doc(), &[]))?)
}

/// Changes a setting there, and has all shards and this router take it over.
fn change(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let reply = on_config(router, command)?;
    spread(router)?;
    Ok(reply)
}

/// Has all shards and this router take over what the configuration set has. Gives the shards' replies.
fn spread(router: &Router) -> Outcome<Vec<DocBuf>> {
    let told = Settings::read(&router.cluster)?.told();
    router.local.take_settings(told.as_doc())?;
    on_all_shards(router, &told)
}

fn on_all_shards(router: &Router, command: &DocBuf) -> Outcome<Vec<DocBuf>> {
    let shards = router.cluster.shard_names()?;
    let commands: Vec<(Arc<str>, DocBuf)> = shards
        .into_iter()
        .map(|shard| (shard.into(), command.clone()))
        .collect();
    let replies = router.cluster.together(&commands).into_iter();
    replies.map(|reply| reply.and_then(sound)).collect()
}

/// A lower version is one that every shard can go back to.
fn version(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let wanted = command.body.first().and_then(|e| e.val.as_str());
    let known = wanted.filter(|v| FEATURE_VERSIONS.contains(v));
    if let Some(version) = known.filter(|_| command.is("confirm")) {
        let setting = doc! {"_id": "featureCompatibilityVersion", "version": version};
        let check = doc! {
            "_pandoSettings": 1, "at": bson::Value::timestamp(1), "check": true,
            "settings": bson::array![setting], "$db": "admin",
        };
        on_all_shards(router, &check)?;
    }
    let reply = on_config(router, command)?;
    for told in spread(router)? {
        if let Some(why) = told.get("refused").and_then(Val::as_str) {
            return Err(err!(CannotDowngrade, "{why}").into());
        }
    }
    Ok(reply)
}

pub(super) fn handler(name: &str) -> Option<super::Handler> {
    Some(match name {
        "setFeatureCompatibilityVersion" => version,
        "setDefaultRWConcern"
        | "setUserWriteBlockMode"
        | "setClusterParameter"
        | "setQuerySettings"
        | "removeQuerySettings" => change,
        "getDefaultRWConcern" | "getClusterParameter" => on_config,
        _ => return None,
    })
}

/// Takes over what others have changed, as long as there is the router. The first time is now.
pub(crate) fn follow(router: &Arc<Router>) -> std::io::Result<()> {
    let mut taken = take(router);
    let router = Arc::downgrade(router);
    let run = move || {
        while let Some(interval) = Weak::upgrade(&router).map(|r| r.local.settings_interval()) {
            std::thread::sleep(if taken { interval } else { AGAIN });
            if let Some(router) = router.upgrade() {
                taken |= take(&router);
            }
        }
    };
    let thread = std::thread::Builder::new().name("settings".into());
    thread.spawn(run).map(drop)
}

/// Whether they could be read.
fn take(router: &Router) -> bool {
    let taken = Settings::read(&router.cluster).and_then(|settings| {
        let told = settings.told();
        Ok(router.local.take_settings(told.as_doc())?)
    });
    if let Err(e) = &taken {
        tracing::debug!(target: "SHARDING", error = %e, "The cluster's settings could not be read");
    }
    taken.is_ok()
}

/// Fails where users' writes are blocked now: of what no shard can refuse any more when it is asked.
pub(crate) fn check_write_block(router: &Router, command: &Command<'_>) -> Outcome<()> {
    take(router);
    let user = command.user.as_deref();
    router.local.passes_write_block(user, command.request)?;
    Ok(())
}

/// Tells shards of settings that they have not been told of: the router that changed them is gone, or
/// did not reach them.
#[derive(Default)]
pub(crate) struct Teller {
    /// What each shard was told last.
    told: HashMap<String, Vec<DocBuf>>,
}

impl Teller {
    pub(crate) fn look(&mut self, cluster: &Cluster, shards: &[String]) -> Outcome<()> {
        self.told.retain(|shard, _| shards.contains(shard));
        // A snapshot is kept for a while, so it is taken only where there is something to tell.
        let mut list = cluster.read_config("settings", Doc::EMPTY, Doc::EMPTY)?;
        list.retain(|d| is_setting(d.as_doc()));
        let knows = |shard: &String| self.told.get(shard) == Some(&list);
        if list.is_empty() || shards.iter().all(knows) {
            return Ok(());
        }
        let settings = Settings::read(cluster)?;
        for shard in shards {
            if self.told.get(shard) == Some(&settings.list) {
                continue;
            }
            let told = cluster.on_shard(shard, "admin", settings.told().as_doc());
            let Ok(reply) = told else { continue };
            if let Some(why) = reply.get("refused").and_then(Val::as_str) {
                tracing::warn!(target: "SHARDING", shard, why, "A shard does not take the cluster's settings");
            }
            self.told.insert(shard.clone(), settings.list.clone());
        }
        Ok(())
    }
}
