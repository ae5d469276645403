//! `replSetFreeze`: keeps a secondary from standing for election.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use std::time::Duration;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let driver = match &cx.app.replica {
        Some(driver) if !driver.status().is_primary() => driver,
        _ => bail!(
            NotSecondary,
            "cannot freeze node when primary or running for election. state: Primary"
        ),
    };
    let seconds = cx.args.first.to_f64().unwrap_or(0.0).clamp(0.0, 1e9);
    driver.freeze(Duration::from_secs_f64(seconds));
    if seconds == 0.0 {
        cx.w.str("info", "unfreezing");
    }
    Ok(Done::Reply)
}
