//! `metrics` of serverStatus: what commands, cursors, plans and replication did since the process began.

use crate::monitoring::command_counts;
use crate::monitoring::metrics::KINDS;
use crate::request::CommandContext;
use front::specification;
use std::sync::atomic::Ordering::Relaxed;

pub fn append(cx: &mut CommandContext<'_, '_>) {
    let f = cx.app.cursors.figures();
    let (_, work) = cx.app.counters.totals();
    cx.app.operators.write(cx.w.open_doc("metrics"));
    let w = &mut cx.w;
    w.open_doc("commands");
    let mut known: Vec<_> = specification::of_servers().collect();
    known.sort_unstable_by_key(|c| c.name);
    for command in known {
        let count = command_counts::of(command);
        let (total, failed) = (count.total.load(Relaxed), count.failed.load(Relaxed));
        w.open_doc(command.name)
            .i64("failed", failed as i64)
            .i64("total", total as i64)
            .close();
    }
    w.close();
    w.open_doc("cursor")
        .i64("timedOut", f.timed_out as i64)
        .i64("totalOpened", f.opened as i64);
    w.open_doc("open")
        .i64("noTimeout", f.no_timeout as i64)
        .i64("pinned", f.pinned as i64)
        .i64("total", f.open as i64)
        .close()
        .close();
    w.open_doc("document")
        .i64("deleted", work.deleted as i64)
        .i64("inserted", work.inserted as i64)
        .i64("returned", work.returned as i64)
        .i64("updated", work.updated as i64)
        .close();
    let waits = &cx.app.counters.acknowledgements;
    w.open_doc("getLastError").open_doc("wtime");
    w.i64("num", waits.num.load(Relaxed) as i64)
        .i64("totalMillis", (waits.micros.load(Relaxed) / 1000) as i64)
        .close();
    w.i64("wtimeouts", waits.timed_out.load(Relaxed) as i64)
        .close();
    w.open_doc("operation")
        .i64("scanAndOrder", work.sorts as i64)
        .i64("writeConflicts", 0)
        .close();
    w.open_doc("queryExecutor")
        .i64("scanned", work.keys_examined as i64)
        .i64("scannedObjects", work.docs_examined as i64)
        .i64("hiddenKeysSkipped", work.hidden_keys as i64);
    w.open_doc("collectionScans")
        .i64("nonTailable", work.scans as i64)
        .i64("total", work.scans as i64)
        .close()
        .close();
    // Records lie where their keys say: none ever moves.
    w.open_doc("record").i64("moves", 0).close();
    query(cx);
    if cx.app.config.topology.set_name().is_some() {
        repl(cx);
    }
    let w = &mut cx.w;
    let ttl = &cx.app.expired;
    w.open_doc("ttl")
        .i64("deletedDocuments", ttl.deleted.load(Relaxed) as i64)
        .i64("passes", ttl.passes.load(Relaxed) as i64)
        .i64("subPasses", ttl.sub_passes.load(Relaxed) as i64)
        .close();
    w.close();
}

/// The plans that are remembered, of all collections.
fn query(cx: &mut CommandContext<'_, '_>) {
    let snapshot = cx.app.engine.catalog.snapshot();
    let (mut hits, mut misses, mut shapes) = (0, 0, 0);
    for figures in snapshot.all().map(|c| c.plan_cache.figures()) {
        hits += figures.hits as i64;
        misses += figures.misses as i64;
        shapes += figures.shapes as i64;
    }
    let replanned = cx.app.engine.replanned.load(Relaxed) as i64;
    let w = cx.w.open_doc("query");
    w.i64("planCacheTotalQueryShapes", shapes)
        .open_doc("planCache")
        .i64("totalQueryShapes", shapes)
        .open_doc("classic")
        .i64("hits", hits)
        .i64("misses", misses)
        .i64("replanned", replanned)
        .close();
    w.open_doc("sbe")
        .i64("hits", 0)
        .i64("misses", 0)
        .i64("replanned", 0)
        .close()
        .close()
        .close();
}

/// What this member has applied of the set's writes. Entries come one group after the other and are
/// applied as they come, so nothing lies in a buffer.
fn repl(cx: &mut CommandContext<'_, '_>) {
    let replicated = cx.app.replicated.as_ref();
    let count = |kind: &str| replicated.map_or(0, |r| r.get(kind));
    let ops = KINDS.iter().map(|(kind, _)| count(kind)).sum::<u64>() as i64;
    let (batches, bytes) = replicated.map_or((0, 0), |r| r.batches());
    let (batches, bytes) = (batches as i64, bytes as i64);
    let w = cx.w.open_doc("repl");
    w.open_doc("apply").i64("ops", ops).open_doc("batches");
    w.i64("num", batches).i64("totalMillis", 0).close().close();
    w.open_doc("buffer")
        .i64("count", 0)
        .i64("maxSizeBytes", 0)
        .i64("sizeBytes", 0)
        .close();
    w.open_doc("initialSync")
        .i64("completed", 0)
        .i64("failedAttempts", 0)
        .i64("failures", 0)
        .close();
    w.open_doc("network")
        .i64("bytes", bytes)
        .open_doc("getmores")
        .i64("num", batches)
        .i64("totalMillis", 0)
        .close();
    w.i64("notPrimaryLegacyUnacknowledgedWrites", 0)
        .i64("notPrimaryUnacknowledgedWrites", 0)
        .i64("ops", ops)
        .i64("readersCreated", 0)
        .close()
        .close();
}
