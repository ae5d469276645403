//! `replSetReconfig`: another configuration of the set.

use super::{check_supported, join_check, set_name};
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, bail, err};
use replication::config::MemberConfig;
use replication::driver::Status;
use replication::{Config, Driver};
use std::time::Duration;

/// How much greater the version of a configuration is that no primary was asked for.
const FORCED: i64 = 10_000;
/// How long a majority may take to have it.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let Some(driver) = cx.app.replica.clone() else {
        bail!(
            NewReplicaSetConfigurationIncompatible,
            "this server was started without --replSet, and its set of one cannot grow: start it again on the same data with --replSet {}, \
             run rs.initiate(), and add members then",
            cx.app.config.topology.set_name().unwrap_or("rs0")
        );
    };
    let status = driver.status();
    let Some(old) = &status.config else {
        bail!(NotYetInitialized, "no replset config has been received");
    };
    let force = cx.args.field("force").is_some_and(|v| v.truthy());
    if force && !status.is_primary() {
        return force_reconfig(cx, &driver, &status, old);
    }
    if !status.is_primary() {
        bail!(
            NotWritablePrimary,
            "New config is rejected :: caused by :: replSetReconfig should only be run on a writable PRIMARY. Current state {};",
            status.state_name()
        );
    }
    let given = cx.args.first.as_doc().unwrap_or(Doc::EMPTY);
    let mut config = Config::parse(given, old.settings.replica_set_id)?;
    config.term = i64::try_from(status.term).unwrap_or(i64::MAX);
    if force && config.version <= old.version {
        config.version = old.version + 1;
    }
    // A primary's configuration is of its own term, even if another primary made it.
    let old = Config {
        term: config.term,
        ..(**old).clone()
    };
    config.check_reconfig(&old, force)?;
    if !force {
        let own = i32::try_from(status.id).unwrap_or(i32::MAX) - 1;
        config.check_stays_electable(own)?;
    }
    check_supported(&config)
        .map_err(|e| err!(NewReplicaSetConfigurationIncompatible, "{}", e.message))?;
    if !force {
        let is_new = |m: &MemberConfig| old.members.iter().all(|o| o.host != m.host);
        join_check::ask(&driver, &config, is_new)?;
    }
    driver.reconfigure(config, PATIENCE)?;
    Ok(Done::Reply)
}

/// By force, on a member that hears of no primary: a majority of the set is gone for good.
fn force_reconfig(
    cx: &CommandContext<'_, '_>,
    driver: &Driver,
    status: &Status,
    old: &Config,
) -> Result<Done> {
    let given = cx.args.first.as_doc().unwrap_or(Doc::EMPTY);
    let mut config = Config::parse(given, old.settings.replica_set_id)?;
    config.term = old.term;
    // As MongoDB: far beyond what another part of the set may have come to.
    config.version = old.version.max(config.version).saturating_add(FORCED);
    config.version = config.version.min(i64::from(i32::MAX));
    config.check_reconfig(old, true)?;
    let own = i32::try_from(status.id).unwrap_or(i32::MAX) - 1;
    config.check_stays_electable(own)?;
    check_supported(&config)
        .map_err(|e| err!(NewReplicaSetConfigurationIncompatible, "{}", e.message))?;
    driver.force_reconfig(config, PATIENCE)?;
    Ok(Done::Reply)
}
