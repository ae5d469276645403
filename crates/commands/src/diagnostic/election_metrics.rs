//! `electionMetrics` of serverStatus: the elections that this member stood in since its process began,
//! by their reasons.
//!
//! A new primary never has to catch up here, and freezing ends in no election: those counts are 0.

use crate::request::CommandContext;
use bson::Writer;
use replication::driver::ElectionCounts;

const NEVER: [&str; 8] = [
    "numCatchUps",
    "numCatchUpsSucceeded",
    "numCatchUpsAlreadyCaughtUp",
    "numCatchUpsSkipped",
    "numCatchUpsTimedOut",
    "numCatchUpsFailedWithError",
    "numCatchUpsFailedWithNewTerm",
    "numCatchUpsFailedWithReplSetAbortPrimaryCatchUpCmd",
];

pub fn append(cx: &mut CommandContext<'_, '_>) {
    let elections = match &cx.app.replica {
        Some(driver) => driver.status().elections,
        // In a set of this one server there are no elections.
        None if cx.app.config.topology.set_name().is_some() => Default::default(),
        None => return,
    };
    let none = ElectionCounts::default();
    let w = cx.w.open_doc("electionMetrics");
    for (name, stood) in [
        ("stepUpCmd", elections.step_up),
        ("priorityTakeover", elections.priority),
        ("catchUpTakeover", none),
        ("electionTimeout", elections.timeout),
        ("freezeTimeout", none),
    ] {
        append_stood(w, name, stood);
    }
    w.i64("numStepDownsCausedByHigherTerm", elections.deposed as i64);
    for name in NEVER {
        w.i64(name, 0);
    }
    w.f64("averageCatchUpOps", 0.0).close();
}

fn append_stood(w: &mut Writer, name: &str, stood: ElectionCounts) {
    w.open_doc(name)
        .i64("called", stood.called as i64)
        .i64("successful", stood.successful as i64)
        .close();
}
