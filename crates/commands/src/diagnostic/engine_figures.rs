//! What serverStatus tells of the engine under names that were made for another: `wiredTiger`, `queues`,
//! `locks`, `flowControl`, `tcmalloc`.
//!
//! Dashboards fail, or draw nothing, where a field is missing, so those that they read are there
//! ([`CACHE_WITHOUT_MEANING`] and others are 0). What has a meaning here has the figure of what comes
//! nearest.

use crate::monitoring::metrics::OperationKind;
use crate::process;
use crate::request::CommandContext;
use bson::Writer;
use std::sync::atomic::Ordering::Relaxed;

/// Of a cache of pages that there is not.
const CACHE_WITHOUT_MEANING: [&str; 18] = [
    "application threads page read from disk to cache count",
    "application threads page read from disk to cache time (usecs)",
    "application threads page write from cache to disk count",
    "application threads page write from cache to disk time (usecs)",
    "eviction server evicting pages",
    "eviction worker thread evicting pages",
    "failed eviction of pages that exceeded the in-memory maximum",
    "in-memory page splits",
    "internal pages evicted",
    "maximum page size at eviction",
    "modified pages evicted",
    "pages currently held in the cache",
    "pages evicted because they exceeded the in-memory maximum",
    "pages evicted by application threads",
    "pages queued for eviction",
    "pages requested from the cache",
    "pages written from cache",
    "unmodified pages evicted",
];

/// A block as the kernel counts them.
const BLOCK_BYTES: i64 = 512;

const ALL_TICKETS: i64 = 128;

/// The operations that run now.
fn running(cx: &CommandContext<'_, '_>) -> i64 {
    let active = cx.app.control.metrics.active.load(Relaxed) as i64;
    active.clamp(0, ALL_TICKETS)
}

fn tickets(w: &mut Writer, out: i64) {
    w.int("out", out)
        .int("available", ALL_TICKETS - out)
        .int("totalTickets", ALL_TICKETS);
}

pub fn wired_tiger(cx: &mut CommandContext<'_, '_>) {
    cx.w.open_doc("wiredTiger").str("uri", "statistics:");
    cache(cx);
    let out = running(cx);
    let w = cx.w.open_doc("concurrentTransactions");
    for (kind, out) in [("read", out), ("write", 0)] {
        tickets(w.open_doc(kind), out);
        w.close();
    }
    w.close();
    connection(cx);
    let s = cx.app.store.stats();
    let w = cx.w.open_doc("log");
    w.i64("log bytes of payload data", s.log_bytes as i64)
        .i64("log bytes written", s.log_bytes as i64)
        .i64("log files", s.log_segments as i64);
    w.i64("log write operations", s.last_index as i64)
        .i64("log sync operations", 0)
        .i64("log flush operations", 0)
        .i64("log scan operations", 0)
        .close();
    let sessions = cx.app.control.metrics.connections.load(Relaxed) as i64;
    let cursors = cx.app.cursors.figures().open as i64;
    cx.w.open_doc("session")
        .i64("open session count", sessions)
        .i64("open cursor count", cursors)
        .close();
    transaction(cx);
    cx.w.close();
}

fn cache(cx: &mut CommandContext<'_, '_>) {
    let (s, usage) = (cx.app.store.stats(), process::usage());
    let read = cx.app.control.metrics.disk_reads.load(Relaxed) + s.batched_reads;
    let w = cx.w.open_doc("cache");
    w.i64("maximum bytes configured", s.cache_capacity_bytes as i64)
        .i64(
            "bytes currently in the cache",
            (s.cache_used_bytes + s.memtable_bytes) as i64,
        );
    w.i64("tracked dirty bytes in the cache", s.memtable_bytes as i64)
        .i64(
            "tracked bytes belonging to internal pages in the cache",
            s.cache_pinned_bytes as i64,
        );
    w.i64("bytes read into cache", usage.blocks_in * BLOCK_BYTES)
        .i64("bytes written from cache", usage.blocks_out * BLOCK_BYTES)
        .i64("pages read into cache", read as i64);
    for name in CACHE_WITHOUT_MEANING {
        w.i64(name, 0);
    }
    w.close();
}

fn connection(cx: &mut CommandContext<'_, '_>) {
    let usage = process::usage();
    let tables: usize = {
        let snapshot = cx.app.engine.catalog.snapshot();
        snapshot.all().map(|c| 1 + c.indexes.len()).sum()
    };
    cx.w.open_doc("connection")
        .i64("files currently open", process::open_files())
        .i64("total read I/Os", usage.blocks_in)
        .i64("total write I/Os", usage.blocks_out)
        .i64("total fsync I/Os", 0)
        .close();
    cx.w.open_doc("data-handle")
        .i64("connection data handles currently active", tables as i64)
        .close();
}

/// Flushes stand in the place of checkpoints.
fn transaction(cx: &mut CommandContext<'_, '_>) {
    let s = cx.app.store.stats();
    let all = &cx.app.engine.transactions;
    let number = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed) as i64;
    let w = cx.w.open_doc("transaction");
    w.i64("transaction begins", number(&all.started))
        .i64("transactions committed", number(&all.committed))
        .i64("transactions rolled back", number(&all.aborted));
    w.i64(
        "transaction checkpoint currently running",
        i64::from(s.running_flushes > 0),
    );
    for name in [
        "transaction checkpoints",
        "transaction checkpoint max time (msecs)",
        "transaction checkpoint min time (msecs)",
        "transaction checkpoint most recent time (msecs)",
        "transaction checkpoint total time (msecs)",
    ] {
        w.i64(name, 0);
    }
    w.close();
}

/// Tickets are not limited here: no operation waits for one.
pub fn queues(cx: &mut CommandContext<'_, '_>) {
    let out = running(cx);
    let w = cx.w.open_doc("queues").open_doc("execution");
    for (kind, out) in [("write", 0), ("read", out)] {
        tickets(w.open_doc(kind), out);
        w.int("queueLength", 0).open_doc("normalPriority");
        for name in [
            "addedToQueue",
            "removedFromQueue",
            "queueLength",
            "processing",
            "totalTimeQueuedMicros",
        ] {
            w.i64(name, 0);
        }
        w.close().close();
    }
    w.close();
    let queue = &cx.app.control.establishment;
    let queued = queue.queued.load(Relaxed) as i64;
    let rejected = queue.rejected.load(Relaxed) as i64;
    cx.w.open_doc("ingressSessionEstablishment")
        .i64("queued", queued)
        .i64("rejected", rejected)
        .close()
        .close();
}

/// Readers take no locks, and writers latch single records: an operation counts as one that has taken
/// the intent locks which it would take elsewhere.
pub fn locks(cx: &mut CommandContext<'_, '_>) {
    use OperationKind::{Command, Delete, GetMore, Insert, Query, Update};
    let count = |kinds: [OperationKind; 3]| -> i64 {
        kinds.map(|k| cx.app.counters.get(k) as i64).iter().sum()
    };
    let (read, wrote) = (
        count([Query, GetMore, Command]),
        count([Insert, Update, Delete]),
    );
    let w = cx.w.open_doc("locks");
    for level in ["Global", "Database", "Collection"] {
        w.open_doc(level);
        for (name, r, x) in [
            ("acquireCount", read, wrote),
            ("acquireWaitCount", 0, 0),
            ("timeAcquiringMicros", 0, 0),
        ] {
            w.open_doc(name)
                .i64("r", r)
                .i64("w", x)
                .i64("R", 0)
                .i64("W", 0)
                .close();
        }
        w.close();
    }
    w.open_doc("oplog").open_doc("acquireCount");
    w.i64("r", 0).i64("w", wrote).close().close().close();
}

/// Writers are held to what merging can take, which `pandodb.engine` tells; never to what secondaries
/// have applied.
pub fn flow_control(cx: &mut CommandContext<'_, '_>) {
    cx.w.open_doc("flowControl")
        .bool("enabled", false)
        .i64("targetRateLimit", 1_000_000_000)
        .i64("timeAcquiringMicros", 0)
        .f64("locksPerKiloOp", 0.0)
        .i64("sustainerRate", 0)
        .bool("isLagged", false)
        .i64("isLaggedCount", 0)
        .i64("isLaggedTimeMicros", 0)
        .close();
}

/// The allocator is another one, of which is known what the kernel has given to the process.
pub fn allocator(cx: &mut CommandContext<'_, '_>) {
    let (resident, _) = process::memory();
    let w = cx.w.open_doc("tcmalloc").open_doc("generic");
    w.i64("current_allocated_bytes", resident as i64)
        .i64("heap_size", resident as i64)
        .close();
    w.open_doc("tcmalloc");
    for name in [
        "pageheap_free_bytes",
        "pageheap_unmapped_bytes",
        "max_total_thread_cache_bytes",
        "current_total_thread_cache_bytes",
        "central_cache_free_bytes",
        "transfer_cache_free_bytes",
        "thread_cache_free_bytes",
        "aggressive_memory_decommit",
        "spinlock_total_delay_ns",
    ] {
        w.i64(name, 0);
    }
    w.close().close();
}
