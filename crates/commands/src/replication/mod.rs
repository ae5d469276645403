//! Commands on the replica set, whose one member this server is.

pub mod apply_ops;
pub(crate) mod oplog;
pub mod repl_set_freeze;
pub mod repl_set_get_config;
pub mod repl_set_get_status;
pub mod repl_set_initiate;
pub mod repl_set_resize_oplog;
pub mod repl_set_step_down;

use crate::request::CommandContext;
use errors::{Result, err};

/// The set's name, or the error of a server that is in none.
fn set_name(cx: &CommandContext<'_, '_>) -> Result<String> {
    match cx.app.config.topology.set_name() {
        Some(n) => Ok(n.to_string()),
        None => Err(err!(NoReplicationEnabled, "not running with --replSet")),
    }
}
