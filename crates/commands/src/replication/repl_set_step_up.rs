//! `replSetStepUp`: has this member stand for election now. A primary that there is hands over to it,
//! with all that it has written.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use std::time::{Duration, Instant};

/// How long the election may take.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let Some(driver) = cx.app.replica.clone() else {
        return Ok(Done::Reply);
    };
    if driver.status().id == 0 {
        bail!(NotYetInitialized, "no replset config has been received");
    }
    if !driver.is_leading() {
        driver.step_up();
        if !driver.wait(Instant::now() + PATIENCE, |s| s.is_primary()) {
            bail!(CommandFailed, "Election failed.");
        }
    }
    Ok(Done::Reply)
}
