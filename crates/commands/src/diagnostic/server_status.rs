//! `serverStatus`: the sections that tools print. `wiredTiger.cache` is filled from our own cache and
//! memtables, since mongostat reads its columns there; figures without a counterpart in MongoDB stand in
//! `pandodb`.

use super::{command_metrics, election_metrics, engine_figures};
use crate::clock::now_millis;
use crate::monitoring::latency;
use crate::monitoring::metrics::KINDS;
use crate::process;
use crate::request::{CommandContext, Done};
use crate::topology::member;
use crate::version::{PANDO_VERSION, VERSION};
use bson::{Val, Writer};
use errors::Result;
use executor::Engine;
use service::moves::Moves;
use std::sync::atomic::Ordering::Relaxed;

/// Sections that come only when asked for.
const ON_REQUEST: [&str; 2] = ["mirroredReads", "latchAnalysis"];

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let wanted: Vec<(&str, Val<'_>)> = cx.args.fields.iter().map(|e| (e.name, e.val)).collect();
    let all = wanted
        .iter()
        .find(|(n, _)| *n == "all")
        .is_some_and(|(_, v)| v.truthy());
    let none = wanted
        .iter()
        .find(|(n, _)| *n == "none")
        .is_some_and(|(_, v)| v.truthy());
    let on = |name: &str| match wanted.iter().find(|(n, _)| *n == name) {
        Some((_, v)) => v.truthy(),
        None => !none && (all || !ON_REQUEST.contains(&name)),
    };
    let uptime = cx.app.control.started.elapsed();
    cx.w.str(
        "host",
        &format!("{}:{}", process::host_name(), cx.app.config.port),
    )
    .str("version", VERSION)
    .str("process", "mongod");
    cx.w.open_array("service").push_value("shard").close();
    cx.w.i64("pid", i64::from(std::process::id()))
        .f64("uptime", uptime.as_secs_f64().floor());
    cx.w.i64("uptimeMillis", uptime.as_millis() as i64)
        .i64("uptimeEstimate", uptime.as_secs() as i64)
        .date("localTime", now_millis());
    type Section = fn(&mut CommandContext<'_, '_>);
    let sections: [(&str, Section); 28] = [
        ("asserts", asserts),
        ("catalogStats", catalog_stats),
        ("connections", connections),
        ("electionMetrics", election_metrics::append),
        ("extra_info", extra_info),
        ("flowControl", engine_figures::flow_control),
        ("globalLock", global_lock),
        ("indexBuilds", index_builds),
        ("locks", engine_figures::locks),
        ("logicalSessionRecordCache", sessions),
        ("mem", mem),
        ("metrics", command_metrics::append),
        ("mirroredReads", |cx| empty(cx, "mirroredReads")),
        ("network", network),
        ("opLatencies", latencies),
        ("opcounters", |cx| op_counters(cx, "opcounters")),
        ("opcountersRepl", |cx| op_counters(cx, "opcountersRepl")),
        ("oplogTruncation", oplog_truncation),
        ("queues", engine_figures::queues),
        ("repl", repl),
        ("security", security),
        ("storageEngine", storage_engine),
        ("tcmalloc", engine_figures::allocator),
        ("transactions", transactions),
        ("transportSecurity", transport_security),
        ("twoPhaseCommitCoordinator", |cx| {
            empty(cx, "twoPhaseCommitCoordinator")
        }),
        ("wiredTiger", engine_figures::wired_tiger),
        ("pandodb", pandodb),
    ];
    for (name, write) in sections {
        if on(name) {
            write(cx);
        }
    }
    Ok(Done::Reply)
}

fn empty(cx: &mut CommandContext<'_, '_>, name: &str) {
    cx.w.open_doc(name).close();
}

fn asserts(cx: &mut CommandContext<'_, '_>) {
    let user = cx.app.counters.user_asserts() as i64;
    let w = cx.w.open_doc("asserts");
    w.i32("regular", 0)
        .i32("warning", 0)
        .i32("msg", 0)
        .int("user", user)
        .i32("tripwire", 0)
        .i32("rollovers", 0)
        .close();
}

fn catalog_stats(cx: &mut CommandContext<'_, '_>) {
    let snapshot = cx.app.engine.catalog.snapshot();
    let (views, collections): (Vec<_>, Vec<_>) = snapshot.all().partition(|c| c.is_view());
    let capped = collections.iter().filter(|c| c.capped.is_some()).count();
    let clustered = collections
        .iter()
        .filter(|c| c.option("clusteredIndex").is_some())
        .count();
    let w = cx.w.open_doc("catalogStats");
    w.int("collections", collections.len() as i64)
        .int("capped", capped as i64)
        .int("clustered", clustered as i64)
        .i32("timeseries", 0);
    w.int("views", views.len() as i64)
        .i32("internalCollections", 0)
        .i32("internalViews", 0)
        .close();
}

fn connections(cx: &mut CommandContext<'_, '_>) {
    let m = &cx.app.control.metrics;
    let current = m.connections.load(Relaxed) as i64;
    let figures = &cx.app.topology.figures;
    let [awaiting, exhaust_hello, exhaust_is_master] = [
        &figures.awaiting,
        &figures.exhaust_hello,
        &figures.exhaust_is_master,
    ]
    .map(|n| n.load(Relaxed));
    let active = (m.active.load(Relaxed) as i64).max(1) + awaiting;
    let w = cx.w.open_doc("connections");
    w.int("current", current)
        .int("available", m.connections_available() as i64);
    w.int("totalCreated", m.connections_created.load(Relaxed) as i64)
        .int("rejected", m.connections_rejected.load(Relaxed) as i64);
    let queue = &cx.app.control.establishment;
    w.int("queuedForEstablishment", queue.queued.load(Relaxed) as i64)
        .open_doc("establishmentRateLimit")
        .int("rejected", queue.rejected.load(Relaxed) as i64)
        .int("exempted", queue.exempted.load(Relaxed) as i64)
        .close();
    w.int("active", active)
        .int("threaded", current)
        .int("exhaustIsMaster", exhaust_is_master)
        .int("exhaustHello", exhaust_hello);
    w.int("awaitingTopologyChanges", awaiting).close();
}

fn extra_info(cx: &mut CommandContext<'_, '_>) {
    let u = process::usage();
    let w = cx.w.open_doc("extra_info");
    w.str("note", "fields vary by platform")
        .i64("user_time_us", u.user_micros)
        .i64("system_time_us", u.system_micros);
    w.i64("maximum_resident_set_kb", u.max_resident_kb)
        .i64("input_blocks", u.blocks_in)
        .i64("output_blocks", u.blocks_out);
    w.i64("page_reclaims", u.page_reclaims)
        .i64("page_faults", u.page_faults);
    w.i64("voluntary_context_switches", u.voluntary_switches)
        .i64("involuntary_context_switches", u.involuntary_switches);
    w.i64(
        "threads",
        cx.app.control.metrics.workers.load(Relaxed) as i64,
    )
    .close();
}

fn global_lock(cx: &mut CommandContext<'_, '_>) {
    let active = cx.app.control.metrics.active.load(Relaxed) as i64;
    let micros = cx.app.control.started.elapsed().as_micros() as i64;
    let running = cx.app.operations.list();
    let waiting = running.iter().filter(|o| o.waiting.load(Relaxed)).count() as i64;
    let w = cx.w.open_doc("globalLock").i64("totalTime", micros);
    w.open_doc("currentQueue")
        .int("total", waiting)
        .i32("readers", 0)
        .int("writers", waiting)
        .close();
    w.open_doc("activeClients")
        .int("total", active)
        .int("readers", active)
        .i32("writers", 0)
        .close()
        .close();
}

fn index_builds(cx: &mut CommandContext<'_, '_>) {
    let running = cx.app.engine.builds.running().len() as i64;
    cx.w.open_doc("indexBuilds").int("total", running).close();
}

fn sessions(cx: &mut CommandContext<'_, '_>) {
    let active = cx.app.sessions.len() as i64;
    let w = cx.w.open_doc("logicalSessionRecordCache");
    w.int("activeSessionsCount", active)
        .i32("sessionsCollectionJobCount", 0)
        .i32("lastSessionsCollectionJobDurationMillis", 0);
    w.date("lastSessionsCollectionJobTimestamp", now_millis())
        .i32("lastSessionsCollectionJobEntriesRefreshed", 0);
    w.i32("lastSessionsCollectionJobEntriesEnded", 0)
        .i32("lastSessionsCollectionJobCursorsClosed", 0);
    w.i32("transactionReaperJobCount", 0)
        .date("lastTransactionReaperJobTimestamp", now_millis());
    w.i32("lastTransactionReaperJobEntriesCleanedUp", 0)
        .int("sessionCatalogSize", cx.app.session_table.active() as i64)
        .close();
}

fn mem(cx: &mut CommandContext<'_, '_>) {
    let (resident, total) = process::memory();
    let w = cx.w.open_doc("mem");
    w.i32("bits", usize::BITS as i32)
        .int("resident", (resident >> 20).max(1) as i64)
        .int("virtual", (total >> 20).max(1) as i64);
    w.bool("supported", true).close();
}

fn network(cx: &mut CommandContext<'_, '_>) {
    let m = &cx.app.control.metrics;
    let (sent, received) = (
        m.bytes_out.load(Relaxed) as i64,
        m.bytes_in.load(Relaxed) as i64,
    );
    let w = cx.w.open_doc("network");
    w.i64("bytesIn", received)
        .i64("bytesOut", sent)
        .i64("physicalBytesIn", received)
        .i64("physicalBytesOut", sent);
    w.i64("numSlowDNSOperations", 0)
        .i64("numSlowSSLOperations", 0)
        .i64("numRequests", m.requests.load(Relaxed) as i64);
    w.open_doc("tcpFastOpen")
        .bool("serverSupported", false)
        .bool("clientSupported", false)
        .i64("accepted", 0)
        .close();
    // Compressed bytes are not counted apart: the fields are there for programs that read them.
    w.open_doc("compression");
    for name in ["snappy", "zstd", "zlib"] {
        w.open_doc(name);
        for way in ["compressor", "decompressor"] {
            w.open_doc(way).i64("bytesIn", 0).i64("bytesOut", 0).close();
        }
        w.close();
    }
    w.close();
    w.open_doc("serviceExecutors").close();
    w.close();
}

fn latencies(cx: &mut CommandContext<'_, '_>) {
    let (latencies, _) = cx.app.counters.totals();
    let asked = cx
        .args
        .field("opLatencies")
        .and_then(|v| v.as_doc()?.get("histograms"));
    cx.w.open_doc("opLatencies");
    latency::write(&latencies, asked.is_some_and(|v| v.truthy()), &mut cx.w);
    cx.w.close();
}

fn op_counters(cx: &mut CommandContext<'_, '_>, name: &str) {
    cx.w.open_doc(name);
    for (field, kind) in KINDS {
        let n = match (name, &cx.app.replicated) {
            ("opcounters", _) => cx.app.counters.get(kind),
            (_, Some(replicated)) => replicated.get(field),
            _ => 0,
        };
        cx.w.i64(field, n as i64);
    }
    cx.w.close();
}

fn oplog_truncation(cx: &mut CommandContext<'_, '_>) {
    if cx.app.config.topology.set_name().is_none() {
        return;
    }
    let stats = cx.app.store.stats();
    let micros = i64::try_from(stats.log_trimmed.took.as_micros()).unwrap_or(i64::MAX);
    let hours = stats.log_window.min_age.as_secs_f64() / 3600.0;
    let w = cx.w.open_doc("oplogTruncation");
    // Segments are the units of truncation, and each knows its first timestamp: nothing is scanned or sampled.
    w.i64("totalTimeProcessingMicros", 0)
        .str("processingMethod", "scanning");
    if hours > 0.0 {
        w.f64("oplogMinRetentionHours", hours);
    }
    w.i64("totalTimeTruncatingMicros", micros)
        .i64("truncateCount", stats.log_trimmed.segments as i64)
        .close();
}

fn repl(cx: &mut CommandContext<'_, '_>) {
    if cx.app.config.topology.set_name().is_none() {
        return;
    }
    let is_primary = member::is_writable(cx);
    cx.w.open_doc("repl")
        .bool("ismaster", is_primary)
        .bool("isWritablePrimary", is_primary);
    member::append_hello(cx);
    let rbid = member::rollback_id(cx);
    cx.w.i32("rbid", rbid).close();
}

fn security(cx: &mut CommandContext<'_, '_>) {
    let own = cx.app.control.certificates.get().map(|c| (c.own)());
    let w = cx.w.open_doc("security");
    if let Some(own) = own {
        w.str("SSLServerSubjectName", &own.subject)
            .bool("SSLServerHasCertificateAuthority", own.has_authority)
            .date("SSLServerCertificateExpirationDate", own.expires_millis);
    }
    w.open_doc("authentication")
        .str("saslSupportedMechs", "")
        .open_doc("mechanisms")
        .close()
        .close()
        .close();
}

fn storage_engine(cx: &mut CommandContext<'_, '_>) {
    let w = cx.w.open_doc("storageEngine");
    // mongostat shows the cache only of an engine of this name; what it really is stands in our own
    // section.
    w.str("name", "wiredTiger")
        .bool("supportsCommittedReads", true)
        .bool("oldestRequiredTimestampForCrashRecovery", true);
    w.bool("supportsPendingDrops", true)
        .i64("dropPendingIdents", 0)
        .bool("supportsSnapshotReadConcern", true);
    w.bool("readOnly", false)
        .bool("persistent", true)
        .bool("backupCursorOpen", false)
        .close();
}

fn transactions(cx: &mut CommandContext<'_, '_>) {
    let all = &cx.app.engine.transactions;
    let open = all.open();
    let active = open.iter().filter(|t| t.active.load(Relaxed)).count() as i64;
    let w = cx.w.open_doc("transactions");
    for f in [
        "retriedCommandsCount",
        "retriedStatementsCount",
        "transactionsCollectionWriteCount",
    ] {
        w.i64(f, 0);
    }
    w.i64("currentActive", active)
        .i64("currentInactive", open.len() as i64 - active)
        .i64("currentOpen", open.len() as i64);
    w.i64("totalAborted", all.aborted.load(Relaxed) as i64)
        .i64("totalCommitted", all.committed.load(Relaxed) as i64)
        .i64("totalStarted", all.started.load(Relaxed) as i64);
    w.i64("totalPrepared", all.prepared.load(Relaxed) as i64);
    w.i64("currentPrepared", cx.app.engine.prepared.len() as i64)
        .close();
}

fn transport_security(cx: &mut CommandContext<'_, '_>) {
    let certificates = cx.app.control.certificates.get();
    let [older, newer] = certificates.map_or([0; 2], |c| (c.sessions)());
    let w = cx.w.open_doc("transportSecurity");
    // Keys with a dot, as MongoDB has them.
    for (v, n) in [("1.0", 0), ("1.1", 0), ("1.2", older), ("1.3", newer)] {
        w.i64(v, n as i64);
    }
    w.i64("unknown", 0);
    w.close();
}

fn pandodb(cx: &mut CommandContext<'_, '_>) {
    let (s, m) = (cx.app.store.stats(), &cx.app.control.metrics);
    let w = cx.w.open_doc("pandodb");
    w.str("version", PANDO_VERSION);
    w.open_doc("engine")
        .str("name", "rocksdb")
        .i64("sstBytes", s.sst_bytes as i64)
        .i64("memtableBytes", s.memtable_bytes as i64);
    w.i64("rowBytes", s.row_bytes as i64)
        .i64("rowShareBytes", s.row_share_bytes as i64)
        .i64("lentBytes", s.lent_bytes as i64);
    w.i64("pendingCompactionBytes", s.pending_compaction_bytes as i64)
        .i64("runningFlushes", s.running_flushes as i64);
    w.i64("runningCompactions", s.running_compactions as i64)
        .i64("estimatedKeys", s.estimated_keys as i64);
    w.i64("levelZeroFiles", s.level_zero_files as i64)
        .i64("fullMemtables", s.full_memtables as i64);
    // How writers are held to what merging can take: by their pace first, by the engine itself when
    // that was not enough.
    w.i64("paceMillisPerMB", s.pace_millis_per_mb as i64)
        .i64("delayedBytesPerSecond", s.delayed_write_rate as i64)
        .bool("writesStopped", s.writes_stopped);
    w.i64("hiddenKeysSkipped", s.hidden_keys as i64)
        .i64("deadRanges", s.dead_ranges as i64);
    w.i64("batchedReads", s.batched_reads as i64)
        .i64("backgroundErrors", s.background_errors as i64);
    if let Some(e) = &s.background_error {
        w.str("lastBackgroundError", e);
    }
    w.i64("snapshots", s.snapshots as i64)
        .i64("oldestSnapshotSecs", s.oldest_snapshot_seconds as i64)
        .close();
    w.open_doc("log")
        .i64("bytes", s.log_bytes as i64)
        .i64("segments", s.log_segments as i64)
        .i64("leases", s.log_leases as i64);
    w.i64("lastIndex", s.last_index as i64)
        .i64("durableIndex", s.durable_index as i64)
        .close();
    if let Some(driver) = &cx.app.replica {
        w.open_doc("replication")
            .i64("rollbacks", driver.status().rollbacks as i64)
            .close();
    }
    // Writes of routers that waited because a mover of their range could not keep up.
    w.i64(
        "writesSlowedForMoves",
        cx.app.ownerships.waited_slowly() as i64,
    );
    w.i64("locksAgainstWrites", cx.app.engine.fsync_lock.locks());
    moves(w, &cx.app.control.metrics.moves);
    let f = &cx.app.control.in_flight;
    w.open_doc("inFlight")
        .i64("limitBytes", f.limit() as i64)
        .i64("bytes", f.used() as i64)
        .i64("waiting", f.waiting() as i64)
        .i64("waits", f.waits() as i64)
        .i64("givenUp", f.given_up() as i64)
        .close();
    let metrics = &cx.app.control.metrics;
    w.open_doc("eventLoops")
        .i64("held", metrics.loop_held.load(Relaxed) as i64)
        .i64(
            "longestHeldMs",
            metrics.loop_held_longest_ms.load(Relaxed) as i64,
        )
        .close();
    budgets(w, &cx.app.engine, s.temporary_files as i64);
    w.open_doc("loops")
        .i64("offloaded", m.offloaded.load(Relaxed) as i64)
        .i64("workers", m.workers.load(Relaxed) as i64);
    w.i64("groups", m.groups.load(Relaxed) as i64)
        .i64("grouped", m.grouped.load(Relaxed) as i64)
        .i64("diskReads", m.disk_reads.load(Relaxed) as i64)
        .close();
    w.close();
}

/// What operations, stages and cursors share of memory.
fn budgets(w: &mut Writer, engine: &Engine, temporary_files: i64) {
    let stages = &engine.stage_memory;
    w.open_doc("stages")
        .i64("limitBytes", stages.limit() as i64)
        .i64("bytes", stages.used() as i64)
        .i64("squeezed", stages.squeezed() as i64)
        .close();
    let operations = engine.operation_memory.figures();
    w.open_doc("operationMemory")
        .i64("limitBytes", operations.limit as i64)
        .i64("bytes", operations.bytes as i64)
        .i64("waiting", operations.waiting as i64)
        .i64("waits", operations.waits as i64)
        .i64("refused", operations.refused as i64)
        .close();
    let threads = engine.query_threads.figures();
    w.open_doc("queryThreads")
        .i64("limit", threads.limit as i64)
        .i64("taken", threads.taken as i64)
        .i64("dividedPipelines", threads.divided as i64)
        .close();
    let zones = &engine.zones;
    w.open_doc("zoneMaps")
        .i64("maps", zones.count() as i64)
        .i64("sparedReads", zones.spared() as i64)
        .close();
    let cursors = &engine.cursor_memory;
    w.open_doc("cursors")
        .i64("limitBytes", cursors.limit() as i64)
        .i64("bytes", cursors.used() as i64);
    let own = &engine.open_cursors;
    w.i64("ownLimitBytes", (own.limit() * 2) as i64)
        .i64("ownBytes", own.used() as i64)
        .i64("temporaryFiles", temporary_files)
        .close();
}

/// The moves of this process between shards, and what remains of them.
fn moves(w: &mut Writer, moves: &Moves) {
    let left = moves.left();
    w.open_doc("moves");
    for (name, n) in [
        ("underWay", moves.under_way.load(Relaxed)),
        ("done", moves.done.load(Relaxed)),
        ("failed", moves.failed.load(Relaxed)),
        ("copiedDocuments", moves.documents.load(Relaxed)),
        ("copiedBytes", moves.bytes.load(Relaxed)),
        ("leftDocuments", left.documents),
        ("leftBytes", left.bytes),
        ("backlogDocuments", left.backlog),
    ] {
        w.i64(name, n as i64);
    }
    w.close();
}
