//! `replSetStepDown`: hands a primary's part to another member. In a set of one there is no other
//! member: without `force` that is the error, at once rather than after a wait for members that cannot
//! come; with it this member is elected again at once.

use super::set_name;
use crate::request::{CommandContext, Done};
use bson::Val;
use errors::{Result, bail};
use front::idl;
use replication::Driver;
use replication::driver::Status;
use std::time::{Duration, Instant};

/// How long MongoDB waits for secondaries where the client does not say, in seconds.
const CATCH_UP_SECS: i64 = 10;
/// How long the election of a successor may take.
const HAND_OVER: Duration = Duration::from_secs(3);
/// A successor may lack so many entries: it gets them before it is elected.
const CAUGHT_UP: u64 = 10_000;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    set_name(cx)?;
    let force = cx.args.field("force").is_some_and(|v| v.truthy());
    let step_down_secs = match cx.args.first.to_f64().map(|f| f as i64) {
        None | Some(0) => 60,
        Some(n) if n < 0 => bail!(BadValue, "stepdown period must be a positive integer"),
        Some(n) => n,
    };
    let catch_up_secs = match cx.args.field("secondaryCatchUpPeriodSecs") {
        None if force => 0,
        None => CATCH_UP_SECS,
        Some(v) => whole(v)?,
    };
    if catch_up_secs < 0 {
        bail!(
            BadValue,
            "secondaryCatchUpPeriodSecs period must be a positive or absent"
        );
    }
    if step_down_secs < catch_up_secs {
        bail!(
            BadValue,
            "stepdown period must be longer than secondaryCatchUpPeriodSecs"
        );
    }
    if let Some(driver) = cx.app.replica.clone() {
        step_down(&driver, force, step_down_secs, catch_up_secs)?;
        return Ok(Done::Reply);
    }
    if !force {
        bail!(
            ExceededTimeLimit,
            "No electable secondaries caught up. Please use the replSetStepDown command with the argument {{force: true}} to force node to step down."
        );
    }
    cx.app.topology.changed(&cx.app.control);
    Ok(Done::Reply)
}

/// Has a member elected that has caught up and may be primary; waits for one as long as it was told.
fn step_down(driver: &Driver, force: bool, secs: i64, catch_up_secs: i64) -> Result<()> {
    let status = driver.status();
    if !status.is_primary() {
        bail!(NotWritablePrimary, "not primary so can't step down");
    }
    let until = Instant::now() + Duration::from_secs(catch_up_secs.unsigned_abs());
    let rest = Duration::from_secs(secs.unsigned_abs());
    let found = driver.wait(until, |s| successor(s).is_some());
    if let (true, Some(to)) = (found, successor(&driver.status())) {
        driver.hand_over(to);
        let until = Instant::now() + HAND_OVER;
        if driver.wait(until, |s| !s.is_primary()) {
            driver.freeze(rest);
            return Ok(());
        }
    }
    if !force {
        bail!(
            ExceededTimeLimit,
            "No electable secondaries caught up as of now. Please use the replSetStepDown command with the argument {{force: true}} to force node to step down."
        );
    }
    driver.freeze(rest);
    driver.stand_down();
    driver.wait(Instant::now() + HAND_OVER, |s| !s.is_primary());
    Ok(())
}

/// The member that lacks least, of those that may be primary and were heard of.
fn successor(status: &Status) -> Option<u64> {
    let last = status.progress.iter().find(|p| p.0 == status.id)?.1;
    let fit = status.progress.iter().filter(|(id, matched, heard)| {
        let electable = status
            .member(*id)
            .is_some_and(|m| m.is_electable() && m.votes);
        let takes_over = *id != status.id && status.may_take_over(*id);
        takes_over && *heard && electable && matched + CAUGHT_UP >= last
    });
    Some(fit.max_by_key(|p| p.1)?.0)
}

fn whole(v: Val<'_>) -> Result<i64> {
    match v.to_i64_exact() {
        Some(n) => Ok(n),
        None => Err(idl::mismatch(
            "replSetStepDown",
            "secondaryCatchUpPeriodSecs",
            v,
            &["long"],
        )),
    }
}
