//! Commands on the replica set that this server is a member of.

pub mod append_oplog_note;
pub mod apply_ops;
pub mod diagnostic_data;
mod join_check;
pub mod pando_copy_files;
pub mod pando_replicate;
pub mod repl_set_abort_primary_catch_up;
pub mod repl_set_freeze;
pub mod repl_set_get_config;
pub mod repl_set_get_rbid;
pub mod repl_set_get_status;
pub mod repl_set_initiate;
pub mod repl_set_maintenance;
pub mod repl_set_reconfig;
pub mod repl_set_resize_oplog;
pub mod repl_set_step_down;
pub mod repl_set_step_up;
pub mod repl_set_sync_from;

use crate::Commands;
use crate::request::CommandContext;
use errors::{Fallible, Result, err};
use replication::{Config, Host};

/// The set's name, or the error of a server that is in none.
fn set_name(cx: &CommandContext<'_, '_>) -> Result<String> {
    match cx.app.config.topology.set_name() {
        Some(n) => Ok(n.to_string()),
        None => Err(err!(NoReplicationEnabled, "not running with --replSet").into()),
    }
}

/// Refuses members that cannot do here what they would be there for.
pub(crate) fn check_supported(config: &Config) -> Fallible<()> {
    for member in &config.members {
        if member.arbiter_only {
            errors::bail!(
                InvalidReplicaSetConfig,
                "member {} is an arbiter: give the set another member with data, a small cache and priority 0",
                member.host
            );
        }
    }
    Ok(())
}

/// Whether a host of a configuration is this server.
pub(crate) fn is_me(app: &Commands, host: &Host) -> bool {
    if host.port != app.config.port {
        return false;
    }
    host.is_localhost()
        || app.config.bind.contains(&host.name)
        || app.config.advertise.as_deref() == Some(&host.to_string())
        || crate::process::host_name() == host.name
}
