//! `_pandoSettings`: takes the settings of the whole cluster over, which the configuration set keeps.
//!
//! ```text
//! {_pandoSettings: 1, at: <timestamp>, settings: [{_id: <string>, …}, …]}
//!                                                       → {taken: <bool>, refused?: <string>}
//! {_pandoSettings: 1, at: <timestamp>, settings: […], check: true}     would they be taken? an error
//! ```
//! `at` is a time of the configuration set at which these were its settings. `refused` says why a lower
//! feature compatibility version was not taken; the other settings were.
//!
//! Invariant: an earlier setting is never applied after a later one.

use super::set_feature_compatibility_version as version;
use crate::request::{CommandContext, Done};
use crate::settings::stored;
use crate::version::FEATURE_VERSIONS;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Code, Result, Stop, bail};
use front::cluster_settings::is_of_cluster;
use front::idl;
use service::config::ClusterRole;

/// The document of `config.settings` that says which settings were taken last.
const TAKEN: &str = "clusterSettings";

/// The settings that a document list has, without their `_id`.
fn each<'a>(list: Val<'a>) -> impl Iterator<Item = (&'a str, DocBuf)> {
    let list = list.as_array();
    let docs = list
        .into_iter()
        .flat_map(|l| l.values())
        .filter_map(Val::as_doc);
    docs.filter_map(|d| {
        let id = d.get("_id")?.as_str().filter(|id| is_of_cluster(id))?;
        Some((id, stored::without_id(d)))
    })
}

fn feature_version(setting: Doc<'_>) -> Option<&str> {
    let version = setting.get("version")?.as_str()?;
    FEATURE_VERSIONS.contains(&version).then_some(version)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "_pandoSettings";
    if !matches!(cx.app.config.role, ClusterRole::Shard | ClusterRole::Router) {
        bail!(
            ShardingStateNotInitialized,
            "Cannot accept sharding commands if not started with --shardsvr"
        );
    }
    let (mut at, mut settings, mut check) = (None, None, false);
    for e in cx.args.fields.clone() {
        match e.name {
            "at" => at = e.val.as_timestamp(),
            "settings" => settings = Some(e.val),
            "check" => check = e.val.truthy(),
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let at = idl::required(AT, "at", at)?;
    let settings = idl::required(AT, "settings", settings)?;
    let _one = cx.app.format_change.lock();
    if check {
        for (id, setting) in each(settings) {
            if let (version::SETTING, Some(wanted)) = (id, feature_version(setting.as_doc())) {
                version::check(cx, wanted)?;
            }
        }
        return Ok(Done::Reply);
    }
    let before = stored::load(&cx.app.engine, TAKEN)?;
    let before = before.and_then(|d| d.get("at")?.as_timestamp());
    let newer = before.is_none_or(|before| before < at);
    if newer {
        let refused = take(cx, settings)?;
        let mut w = Writer::new();
        w.timestamp("at", at);
        stored::save(&mut cx.op, TAKEN, w.finish().as_doc())?;
        if let Some(why) = refused {
            cx.w.str("refused", &why);
        }
    }
    cx.w.bool("taken", newer);
    Ok(Done::Reply)
}

/// Why the feature compatibility version was not taken, if it was not.
fn take(cx: &mut CommandContext<'_, '_>, settings: Val<'_>) -> Result<Option<String>> {
    let mut refused = None;
    for (id, setting) in each(settings) {
        let known = stored::load(&cx.app.engine, id)?.unwrap_or_default();
        if id != version::SETTING {
            if known.as_bytes() != setting.as_bytes() {
                stored::save(&mut cx.op, id, setting.as_doc())?;
            }
            continue;
        }
        let Some(wanted) = feature_version(setting.as_doc()) else {
            refused = Some("a feature compatibility version is not known here".to_string());
            continue;
        };
        if feature_version(known.as_doc()) == Some(wanted) {
            continue;
        }
        match version::put(cx, wanted) {
            Err(Stop::Failed(e)) if e.code == Code::CannotDowngrade => {
                refused = Some(e.message.to_string());
            }
            other => other?,
        }
    }
    Ok(refused)
}
