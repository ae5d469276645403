//! Settings of the whole cluster: feature compatibility version, default concerns, the user write
//! block, cluster parameters, query settings.
//!
//! The configuration set keeps them. A change goes there, then to every shard, then the router takes
//! it over itself. Other routers ask each `clusterServerParameterRefreshIntervalSecs`. A shard that
//! was not reached hears of it from the process that leads the configuration set ([`mover::settings::Teller`]).
//!
//! Invariant: what a shard has of them was the configuration set's at one moment, and a later moment
//! than what it had before.

use crate::request::RoutedCommand;
use crate::state::Router;
use bson::{DocBuf, Val, doc};
use cluster_view::Outcome;
use cluster_view::reply::sound;
use cluster_view::upstream::message;
use commands::FEATURE_VERSIONS;
use errors::err;
use mover::settings::Settings;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How soon a router asks again that has not read them yet.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs a command on the configuration set.
fn on_config(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let generic = ["lsid", "$readPreference", "readConcern"];
    let asked = command.without(&generic).finish();
    sound(router.cluster.config.call(&message(asked.as_doc(), &[]))?)
}

/// Changes a setting there, and has all shards and this router take it over.
fn change(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let reply = on_config(router, command)?;
    spread(router)?;
    Ok(reply)
}

/// Has all shards and this router take over what the configuration set has. Gives the shards' replies.
fn spread(router: &Router) -> Outcome<Vec<DocBuf>> {
    let told = Settings::read(&router.cluster)?.to_command();
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
fn version(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
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
        let told = settings.to_command();
        Ok(router.local.take_settings(told.as_doc())?)
    });
    if let Err(e) = &taken {
        tracing::debug!(target: "SHARDING", error = %e, "The cluster's settings could not be read");
    }
    taken.is_ok()
}

/// Fails where users' writes are blocked now: of what no shard can refuse any more when it is asked.
pub(crate) fn check_write_block(router: &Router, command: &RoutedCommand<'_>) -> Outcome<()> {
    take(router);
    // What the router runs itself is a part of what it has checked.
    if let Some(from_client) = command.from_client {
        let user = command.user.as_deref();
        router.local.passes_write_block(user, from_client, None)?;
    }
    Ok(())
}
