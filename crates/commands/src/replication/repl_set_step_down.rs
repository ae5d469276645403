//! `replSetStepDown`: hands a primary's part to another member. In a set of one nobody can take it: without `force` that is
//! the error, at once rather than after a wait for members that cannot come; with it this member is elected again at once.

use super::set_name;
use crate::request::{CommandContext, Done, idl};
use bson::Val;
use errors::{Result, bail};

/// How long MongoDB waits for secondaries where the client does not say, in seconds.
const CATCH_UP_SECS: i64 = 10;

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
    if !force {
        bail!(
            ExceededTimeLimit,
            "No electable secondaries caught up. Please use the replSetStepDown command with the argument {{force: true}} to force node to step down."
        );
    }
    cx.app.topology.changed(&cx.app.control);
    Ok(Done::Reply)
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
