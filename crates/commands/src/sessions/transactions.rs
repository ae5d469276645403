//! `commitTransaction` and `abortTransaction`: there is never one to end.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = cx.command.name;
    if cx.app.config.topology.set_name().is_none() {
        bail!(
            IllegalOperation,
            "Transaction numbers are only allowed on a replica set member or mongos"
        );
    }
    if cx.args.generic.txn_number.is_none() {
        bail!(InvalidOptions, "{name} must be run within a transaction");
    }
    bail!(
        NoSuchTransaction,
        "Given transaction number {} does not match any in-progress transactions.",
        cx.args.generic.txn_number.unwrap_or(0)
    )
}
