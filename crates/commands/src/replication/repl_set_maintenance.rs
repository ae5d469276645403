//! `replSetMaintenance`: takes a secondary out of reading and of elections, and back. Each that begins
//! is ended by one of its own.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let driver = match &cx.app.replica {
        Some(driver) if !driver.status().is_primary() => driver,
        _ => bail!(NotSecondary, "primaries can't modify maintenance mode"),
    };
    if !driver.maintain(cx.args.first.truthy()) {
        bail!(OperationFailed, "already out of maintenance mode");
    }
    Ok(Done::Reply)
}
