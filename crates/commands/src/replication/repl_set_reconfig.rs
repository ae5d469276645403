//! `replSetReconfig`: another configuration of the set.

use super::{check_supported, set_name, veto};
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, bail, err};
use replication::Config;
use replication::config::MemberConfig;
use std::time::Duration;

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
    if !status.is_primary() {
        bail!(
            NotWritablePrimary,
            "New config is rejected :: caused by :: replSetReconfig should only be run on a writable PRIMARY. Current state {};",
            crate::topology::member::state_name(&status)
        );
    }
    let given = cx.args.first.as_doc().unwrap_or(Doc::EMPTY);
    let mut config = Config::parse(given, old.settings.replica_set_id)?;
    config.term = i64::try_from(status.term).unwrap_or(i64::MAX);
    if force && config.version <= old.version {
        config.version = old.version + 1;
    }
    // A primary's configuration is of its own term, whoever was primary when it was made.
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
        veto::ask(&driver, &config, is_new)?;
    }
    driver.reconfigure(config, PATIENCE)?;
    Ok(Done::Reply)
}
