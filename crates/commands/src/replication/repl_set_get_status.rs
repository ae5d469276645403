//! `replSetGetStatus`.

use super::set_name;
use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use crate::topology::member::{TERM, host};
use bson::Writer;
use errors::Result;

fn op_time(w: &mut Writer, name: &str, ts: u64) {
    w.open_doc(name).timestamp("ts", ts).i64("t", TERM).close();
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = set_name(cx)?;
    let host = host(cx);
    let ts = cx.app.store.last_ts();
    let wall = (ts >> 32) as i64 * 1000;
    let uptime = cx.app.control.started.elapsed().as_secs() as i64;
    let started = now_millis() - uptime * 1000;
    let w = &mut cx.w;
    w.str("set", &name)
        .date("date", now_millis())
        .i32("myState", 1)
        .i64("term", TERM);
    w.str("syncSourceHost", "")
        .i32("syncSourceId", -1)
        .i64("heartbeatIntervalMillis", 2000);
    w.i32("majorityVoteCount", 1)
        .i32("writeMajorityCount", 1)
        .i32("votingMembersCount", 1)
        .i32("writableVotingMembersCount", 1);
    w.open_doc("optimes");
    op_time(w, "lastCommittedOpTime", ts);
    w.date("lastCommittedWallTime", wall);
    for f in [
        "readConcernMajorityOpTime",
        "appliedOpTime",
        "durableOpTime",
        "writtenOpTime",
    ] {
        op_time(w, f, ts);
    }
    for f in [
        "lastAppliedWallTime",
        "lastDurableWallTime",
        "lastWrittenWallTime",
    ] {
        w.date(f, wall);
    }
    w.close();
    w.timestamp("lastStableRecoveryTimestamp", ts);
    w.open_doc("electionCandidateMetrics")
        .str("lastElectionReason", "electionTimeout")
        .date("lastElectionDate", started);
    w.i64("electionTerm", TERM).i32("numVotesNeeded", 1).close();
    w.open_array("members").open_doc("");
    w.i32("_id", 0)
        .str("name", &host)
        .f64("health", 1.0)
        .i32("state", 1)
        .str("stateStr", "PRIMARY")
        .int("uptime", uptime);
    op_time(w, "optime", ts);
    w.date("optimeDate", wall)
        .date("lastAppliedWallTime", wall)
        .date("lastDurableWallTime", wall);
    w.str("syncSourceHost", "")
        .i32("syncSourceId", -1)
        .str("infoMessage", "");
    w.timestamp("electionTime", ((started / 1000) as u64) << 32 | 1)
        .date("electionDate", started);
    w.i32("configVersion", 1)
        .i64("configTerm", TERM)
        .bool("self", true)
        .str("lastHeartbeatMessage", "");
    w.close().close();
    Ok(Done::Reply)
}
