//! `replSetGetStatus`.

use super::set_name;
use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use crate::topology::member::{host, majority_ts};
use bson::Writer;
use errors::{Result, bail};
use replication::Config;
use replication::config::MemberConfig;
use replication::driver::{Release, Status};
use replication::initial_sync::ProgressReport;
use replication::member::OpTime;
use replication::member::raft_id;
use std::sync::Arc;

const ONLY_TERM: i64 = 1;

fn op_time(w: &mut Writer, name: &str, ts: u64) {
    w.open_doc(name)
        .timestamp("ts", ts)
        .i64("t", ONLY_TERM)
        .close();
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let name = set_name(cx)?;
    if let Some(driver) = cx.app.replica.clone() {
        return of_set(cx, &name, &driver.status());
    }
    let host = host(cx);
    let ts = cx.app.store.last_ts();
    let uptime = cx.app.control.started.elapsed().as_secs() as i64;
    let started = now_millis() - uptime * 1000;
    let w = &mut cx.w;
    w.str("set", &name)
        .date("date", now_millis())
        .i32("myState", 1)
        .i64("term", ONLY_TERM);
    w.str("syncSourceHost", "")
        .i32("syncSourceId", -1)
        .i64("heartbeatIntervalMillis", 2000);
    w.i32("majorityVoteCount", 1)
        .i32("writeMajorityCount", 1)
        .i32("votingMembersCount", 1)
        .i32("writableVotingMembersCount", 1);
    append_lone_optimes(w, ts);
    w.timestamp("lastStableRecoveryTimestamp", ts);
    w.open_doc("electionCandidateMetrics")
        .str("lastElectionReason", "electionTimeout")
        .date("lastElectionDate", started);
    w.i64("electionTerm", ONLY_TERM).i32("numVotesNeeded", 1);
    w.f64("priorityAtElection", 1.0)
        .i64("electionTimeoutMillis", 10_000)
        .date("newTermStartDate", started)
        .date("wMajorityWriteAvailabilityDate", started)
        .close();
    w.open_array("members").open_doc("");
    append_lone_member(w, &host, ts, (started, uptime));
    w.close().close();
    Ok(Done::Reply)
}

/// How far a set of one server is: all is committed.
fn append_lone_optimes(w: &mut Writer, ts: u64) {
    let wall = (ts >> 32) as i64 * 1000;
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
}

/// The one server of a set, which has been its primary since it was started.
fn append_lone_member(w: &mut Writer, host: &str, ts: u64, (started, uptime): (i64, i64)) {
    let wall = (ts >> 32) as i64 * 1000;
    w.i32("_id", 0)
        .str("name", host)
        .f64("health", 1.0)
        .i32("state", 1)
        .str("stateStr", "PRIMARY")
        .int("uptime", uptime);
    for name in ["optime", "optimeDurable", "optimeWritten"] {
        op_time(w, name, ts);
    }
    for name in [
        "optimeDate",
        "optimeDurableDate",
        "optimeWrittenDate",
        "lastAppliedWallTime",
        "lastDurableWallTime",
        "lastWrittenWallTime",
    ] {
        w.date(name, wall);
    }
    w.str("syncSourceHost", "")
        .i32("syncSourceId", -1)
        .str("infoMessage", "");
    w.timestamp("electionTime", ((started / 1000) as u64) << 32 | 1)
        .date("electionDate", started);
    w.i32("configVersion", 1)
        .i64("configTerm", ONLY_TERM)
        .str("pandodb", &Release::own().to_string())
        .bool("self", true)
        .str("lastHeartbeatMessage", "");
}

fn damaged(what: &str) -> String {
    format!("its data files are damaged, and it is no candidate: {what}")
}

/// Milliseconds since 1970.
fn millis(at: std::time::SystemTime) -> i64 {
    let since = at.duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

/// The status of a set of several members.
fn of_set(cx: &mut CommandContext<'_, '_>, name: &str, status: &Status) -> Result<Done> {
    let config = configuration(cx, status)?;
    let ts = cx.app.store.last_ts();
    let term = status.term as i64;
    let uptime = cx.app.control.started.elapsed().as_secs() as i64;
    let driver = cx.app.replica.as_ref();
    let syncing = driver.and_then(|d| d.initial_sync());
    let copies = |member: u64| driver.is_some_and(|d| d.copies().serves(member));
    let w = &mut cx.w;
    w.str("set", name)
        .date("date", now_millis())
        .i32("myState", status.state())
        .i64("term", term);
    let source = match status.is_primary() {
        true => String::new(),
        false => status.primary_host().unwrap_or_default(),
    };
    w.str("syncSourceHost", &source)
        .i32(
            "syncSourceId",
            status.member(status.primary).map_or(-1, |m| m.id),
        )
        .i64(
            "heartbeatIntervalMillis",
            config.settings.heartbeat_interval_ms,
        );
    w.int("majorityVoteCount", config.majority_vote_count() as i64)
        .int("writeMajorityCount", config.write_majority_count() as i64)
        .int("votingMembersCount", status.voters.len() as i64)
        .int(
            "writableVotingMembersCount",
            config.writable_voters() as i64,
        );
    append_op_times(w, status, ts);
    append_election(w, status, &config);
    append_vote(w, status);
    if let Some(report) = syncing {
        append_initial_sync(w, &report);
    }
    w.open_array("members");
    for member in &config.members {
        let id = raft_id(member.id);
        append_member(w, status, &config, member, (ts, uptime), copies(id));
        let trouble = match id == status.id {
            true => driver.and_then(|d| d.damage()).map(damaged),
            false => driver.and_then(|d| d.trouble(id)),
        };
        let trouble = trouble.unwrap_or_default();
        w.str("lastHeartbeatMessage", &trouble).close();
    }
    w.close();
    Ok(Done::Reply)
}

/// How this member was elected, if it is the primary.
fn append_election(w: &mut Writer, status: &Status, config: &Config) {
    if let Some(at) = status.elected_at {
        w.open_doc("electionCandidateMetrics")
            .str("lastElectionReason", status.elected_because)
            .date("lastElectionDate", millis(at))
            .i64("electionTerm", status.term as i64)
            .int("numVotesNeeded", config.majority_vote_count() as i64)
            .f64(
                "priorityAtElection",
                status.member(status.id).map_or(0.0, |m| m.priority),
            )
            .i64("electionTimeoutMillis", config.settings.election_timeout_ms)
            // A new primary has all that a majority has, and takes writes at once.
            .date("newTermStartDate", millis(at))
            .date("wMajorityWriteAvailabilityDate", millis(at))
            .close();
    }
}

/// The set's configuration; an error where this member takes no part in it.
fn configuration(cx: &CommandContext<'_, '_>, status: &Status) -> Result<Arc<Config>> {
    if let Some(why) = cx.app.replica.as_ref().and_then(|d| d.left()) {
        bail!(
            InvalidReplicaSetConfig,
            "this member takes no part in its replica set until it is started again: {why}"
        );
    }
    let Some(config) = status.config.clone().filter(|_| status.id != 0) else {
        match cx.app.replica.as_ref().and_then(|d| d.joining()) {
            Some(why) => bail!(
                NotYetInitialized,
                "this member has no data of its set, and asks the primary to take it in: {why}"
            ),
            None => bail!(NotYetInitialized, "no replset config has been received"),
        }
    };
    if status.is_removed {
        bail!(
            InvalidReplicaSetConfig,
            "Our replica set config is invalid or we are not a member of it"
        );
    }
    Ok(config)
}

/// The candidate that this member has voted for, if that was another member.
fn append_vote(w: &mut Writer, status: &Status) {
    let vote = status.elections.vote;
    let Some(candidate) = status.member(vote.candidate) else {
        return;
    };
    if vote.candidate == status.id {
        return;
    }
    w.open_doc("electionParticipantMetrics")
        .bool("votedForCandidate", true)
        .i64("electionTerm", vote.term as i64);
    if let Some(at) = vote.at {
        w.date("lastVoteDate", millis(at));
    }
    w.i32("electionCandidateMemberId", candidate.id)
        .str("voteReason", "");
    if let Some(own) = status.member(status.id) {
        w.f64("priorityAtElection", own.priority);
    }
    w.close();
}

/// How far this member's own initial sync is.
fn append_initial_sync(w: &mut Writer, report: &ProgressReport) {
    let done = report.copied + report.kept;
    let elapsed = report.elapsed.as_millis() as u64;
    let rest = report.bytes.saturating_sub(done);
    w.open_doc("initialSyncStatus")
        .int("failedInitialSyncAttempts", report.failed as i64)
        .int("initialSyncAttempts", report.attempts as i64)
        .str("syncSource", &report.source)
        .i64("totalInitialSyncElapsedMillis", elapsed as i64)
        .i64("approxTotalDataSize", report.bytes as i64)
        .i64("approxTotalBytesCopied", done as i64)
        .i64("bytesKeptOfAttemptsBefore", report.kept as i64)
        .int("filesToCopy", report.files as i64)
        .int("filesCopied", report.files_done as i64);
    if let Some(millis) = (rest * elapsed).checked_div(done) {
        w.i64("remainingInitialSyncEstimatedMillis", millis as i64);
    }
    if let Some(failure) = &report.failure {
        w.str("lastFailure", failure);
    }
    w.close();
}

/// This member's own times. `ts`: of the newest entry that is applied.
fn append_op_times(w: &mut Writer, status: &Status, ts: u64) {
    let committed = majority_ts(status, ts);
    let durable = match status.durable.ts {
        0 => ts,
        durable => durable,
    };
    let term = status.committed.term.max(1) as i64;
    let times = [
        ("lastCommittedOpTime", "lastCommittedWallTime", committed),
        ("appliedOpTime", "lastAppliedWallTime", ts),
        ("durableOpTime", "lastDurableWallTime", durable),
        ("writtenOpTime", "lastWrittenWallTime", ts.max(durable)),
    ];
    w.open_doc("optimes");
    for (op_time, wall, ts) in times {
        w.open_doc(op_time)
            .timestamp("ts", ts)
            .i64("t", term)
            .close();
        w.date(wall, (ts >> 32) as i64 * 1000);
    }
    w.open_doc("readConcernMajorityOpTime")
        .timestamp("ts", committed)
        .i64("t", term)
        .close();
    w.close();
}

/// The newest entry that a member is known to have; nothing where this server does not hear of it.
fn known_of(status: &Status, id: u64, ts: u64) -> OpTime {
    match status.known(id) {
        _ if id == status.id => OpTime {
            ts,
            wall_millis: (ts >> 32) as i64 * 1000,
            ..status.committed
        },
        Some(known) => known.durable,
        // The primary has all committed entries.
        None if id == status.primary => status.committed,
        None => OpTime::default(),
    }
}

/// The newest entry that a member is known to have applied. `durable`: to have on its disk. A member that
/// is not delayed applies what it has at once, and has said so only a while ago.
fn applied_of(status: &Status, id: u64, durable: OpTime) -> OpTime {
    let reported = status.known(id).map(|k| k.report.applied);
    let delayed = status.member(id).is_some_and(|m| m.delay_secs > 0);
    match reported {
        Some(ts) if delayed && id != status.id && ts < durable.ts => OpTime {
            ts,
            wall_millis: (ts >> 32) as i64 * 1000,
            ..durable
        },
        _ => durable,
    }
}

/// The status of one member as this one knows it; the caller closes the document. `at`: the newest
/// timestamp, and for how many seconds this server has run. `copies`: it copies files from here now.
fn append_member(
    w: &mut Writer,
    status: &Status,
    config: &Config,
    member: &MemberConfig,
    at: (u64, i64),
    copies: bool,
) {
    let (ts, uptime) = at;
    let id = raft_id(member.id);
    let progress = status.progress.iter().find(|p| p.0 == id);
    let own = id == status.id;
    // A secondary hears of the others by the primary.
    let known = status.known(id);
    let heard = own
        || id == status.primary
        || match known {
            Some(known) => known.is_heard,
            None => !status.is_primary(),
        };
    let reported = known.map_or(0, |k| k.report.state);
    let is_empty = progress.is_some_and(|p| p.1 == 0);
    let (number, text) = match own {
        true => (status.state(), status.state_name()),
        false => state_of_other(
            id == status.primary,
            copies || heard && is_empty,
            heard,
            reported,
        ),
    };
    w.open_doc("");
    w.i32("_id", member.id)
        .str("name", &member.host.to_string())
        .f64("health", if heard { 1.0 } else { 0.0 })
        .i32("state", number)
        .str("stateStr", text)
        .int("uptime", if heard { uptime } else { 0 });
    if let Some((_, matched, _)) = progress {
        w.i64("lastIndexOnDisk", *matched as i64);
    }
    append_optimes(w, status, id, ts);
    let heard_at = status.heard.iter().find(|h| h.0 == id);
    if let (false, Some((_, at))) = (own, heard_at) {
        w.date("lastHeartbeat", millis(*at))
            .date("lastHeartbeatRecv", millis(*at));
    }
    append_sync_source(w, status, id);
    if let (true, Some(at)) = (own, status.elected_at) {
        let millis = millis(at);
        w.timestamp("electionTime", ((millis / 1000) as u64) << 32 | 1)
            .date("electionDate", millis);
    }
    w.int("configVersion", config.version)
        .i64("configTerm", config.term);
    let release = match own {
        true => Release::own(),
        false => known.map_or_else(Release::default, |k| k.report.release),
    };
    if release.is_known() {
        w.str("pandodb", &release.to_string());
    }
    if own {
        w.bool("self", true);
    }
}

/// MongoDB's number and name of another member's state.
fn state_of_other(
    is_primary: bool,
    copies: bool,
    heard: bool,
    reported: i32,
) -> (i32, &'static str) {
    match reported {
        _ if is_primary => (1, "PRIMARY"),
        _ if copies => (5, "STARTUP2"),
        _ if !heard => (8, "(not reachable/healthy)"),
        3 => (3, "RECOVERING"),
        5 => (5, "STARTUP2"),
        _ => (2, "SECONDARY"),
    }
}

/// All but the primary have their entries from it.
fn append_sync_source(w: &mut Writer, status: &Status, id: u64) {
    let source = status
        .member(status.primary)
        .filter(|_| id != status.primary);
    w.str(
        "syncSourceHost",
        &source.map_or(String::new(), |m| m.host.to_string()),
    )
    .i32("syncSourceId", source.map_or(-1, |m| m.id));
}

/// How far a member is, by its entries and by their times.
fn append_optimes(w: &mut Writer, status: &Status, id: u64, ts: u64) {
    let durable = known_of(status, id, ts);
    let applied = applied_of(status, id, durable);
    // Durable entries are written as well.
    for (field, known) in [
        ("optime", applied),
        ("optimeDurable", durable),
        ("optimeWritten", durable),
    ] {
        w.open_doc(field)
            .timestamp("ts", known.ts)
            .i64("t", if known.ts == 0 { -1 } else { known.term as i64 })
            .close();
    }
    // As MongoDB: of whole seconds, so that times of two members compare.
    w.date("optimeDate", (applied.ts >> 32) as i64 * 1000)
        .date("optimeDurableDate", (durable.ts >> 32) as i64 * 1000)
        .date("optimeWrittenDate", (durable.ts >> 32) as i64 * 1000)
        .date("lastAppliedWallTime", applied.wall_millis)
        .date("lastDurableWallTime", durable.wall_millis)
        .date("lastWrittenWallTime", durable.wall_millis);
}
