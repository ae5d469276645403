//! `replSetStepUp`: has this member stand for election now. A primary that there is hands over to it,
//! with all that it has written.

use super::set_name;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use std::time::{Duration, Instant};

/// How long the election may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long until it is asked again: a message is lost, or no primary is known yet.
const AGAIN: Duration = Duration::from_millis(250);

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let Some(driver) = cx.app.replica.clone() else {
        return Ok(Done::Reply);
    };
    if driver.status().id == 0 {
        bail!(NotYetInitialized, "no replset config has been received");
    }
    if !driver.is_leading() {
        let until = Instant::now() + PATIENCE;
        driver.step_up();
        while !driver.wait(until.min(Instant::now() + AGAIN), |s| s.is_primary()) {
            if Instant::now() >= until {
                bail!(CommandFailed, "Election failed.");
            }
            driver.step_up();
        }
    }
    Ok(Done::Reply)
}
