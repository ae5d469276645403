//! Online index builds. Writers maintain an index from the moment it is in the catalog; the build adds the
//! entries of older records ([`IndexFill`]). Indexes that one command makes are built together.

use crate::build_progress::BuildProgress;
use crate::engine::Engine;
use crate::op::OpCtx;
use crate::records;
use crate::write::index_fill::{IndexFill, aborted, is_checked};
use catalog::{Collection, Index, IndexState, NewIndex};
use errors::{Code, Result, Stop};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Creates indexes and waits until they are ready. On an error all of them are dropped.
pub fn create_indexes(ctx: &mut OpCtx, ns: &str, new: &[NewIndex]) -> Result<()> {
    ctx.need_worker()?;
    let engine = ctx.engine.clone();
    let empty = |c: &Collection| records::none(&engine.store.latest(), c);
    let ids = (engine.catalog)
        .add_indexes(ns, new, &|| ctx.check(), empty)
        .map_err(of_what_is_gone)?;
    let building: Vec<u32> = (ids.iter().filter(|(_, ready)| !ready))
        .map(|(id, _)| *id)
        .collect();
    if building.is_empty() {
        return Ok(());
    }
    run(ctx, ns, &building).inspect_err(|_| {
        let Some(c) = engine.catalog.get(ns) else {
            return;
        };
        for index in ids.iter().filter_map(|(id, _)| c.index(*id)) {
            let _ = engine
                .catalog
                .drop_index(ns, index.name(), &catalog::never_interrupted);
        }
    })
}

/// Waits while others build indexes of these names; whether there were any.
pub fn await_builds(ctx: &mut OpCtx, ns: &str, names: &[&str]) -> Result<bool> {
    let mut waited = false;
    let engine = ctx.engine.clone();
    let is_awaited = |i: &Arc<Index>| i.state == IndexState::Building && names.contains(&i.name());
    while engine
        .catalog
        .get(ns)
        .is_some_and(|c| c.indexes.iter().any(is_awaited))
    {
        waited = true;
        ctx.let_others()?;
    }
    Ok(waited)
}

/// Rebuilds an index and waits until it is ready. An index that cannot be rebuilt is dropped.
pub fn rebuild_index(ctx: &mut OpCtx, ns: &str, name: &str) -> Result<()> {
    ctx.need_worker()?;
    let engine = ctx.engine.clone();
    let id = engine.catalog.rebuild_index(ns, name, &|| ctx.check())?;
    run(ctx, ns, &[id]).inspect_err(|_| {
        let _ = engine
            .catalog
            .drop_index(ns, name, &catalog::never_interrupted);
    })
}

/// Resumes the builds that a stop interrupted, each on its own thread. An index whose build fails
/// is dropped, and `report` is called.
pub fn resume(
    engine: &Arc<Engine>,
    report: impl Fn(&str, &str, &Result<()>) + Send + Sync + 'static,
) {
    let report = Arc::new(report);
    for c in engine.catalog.snapshot().all() {
        for i in c.indexes.iter().filter(|i| i.state == IndexState::Building) {
            let (engine, ns, id, name) =
                (engine.clone(), c.ns.to_string(), i.id, i.name().to_string());
            let report = report.clone();
            std::thread::spawn(move || {
                let r = run(&mut OpCtx::worker(&engine), &ns, &[id]);
                if r.is_err() {
                    let _ = engine
                        .catalog
                        .drop_index(&ns, &name, &catalog::never_interrupted);
                }
                report(&ns, &name, &r);
            });
        }
    }
}

/// Continues the build of these indexes from their stored progress, with one scan of the records, and makes them ready.
fn run(ctx: &mut OpCtx, ns: &str, ids: &[u32]) -> Result<()> {
    let engine = ctx.engine.clone();
    let coll = engine
        .catalog
        .get(ns)
        .ok_or_else(|| aborted("the collection was dropped"))?;
    let total = engine.store.counts(coll.tablet).0;
    let begun = |id: &u32| {
        let name = coll.index(*id)?.name().to_string();
        let progress = BuildProgress {
            ns: ns.to_string(),
            name,
            total: total.into(),
            ..Default::default()
        };
        Some(Arc::new(progress))
    };
    let progress: Option<Vec<_>> = ids.iter().map(begun).collect();
    let progress = progress.ok_or_else(|| aborted("the index was dropped"))?;
    let began = Instant::now();
    for (id, progress) in ids.iter().zip(&progress) {
        engine.builds.begin(coll.uuid, *id, progress.clone());
        tracing::info!(target: "INDEX", id = 20384, namespace = ns, index = progress.name.as_str(), records = total, "Index build: starting");
    }
    let fill = IndexFill {
        ns,
        coll: &coll,
        ids,
        progress: &progress,
    };
    let filled = fill.run(ctx);
    for (id, progress) in ids.iter().zip(&progress) {
        engine.builds.end(coll.uuid, *id);
        say_end(ns, progress, began, &filled);
    }
    filled?;
    // The log will say that the indexes are ready, and recovery replays only the log: the entries must
    // be on disk before.
    engine.store.flush()?;
    for id in ids {
        (engine.catalog)
            .finish_build(ns, *id, &|| ctx.check())
            .map_err(of_what_is_gone)?;
    }
    Ok(())
}

fn say_end(ns: &str, progress: &BuildProgress, began: Instant, filled: &Result<()>) {
    let done = progress.done.load(Ordering::Relaxed);
    let total = progress.total.load(Ordering::Relaxed);
    let took = began.elapsed().as_millis() as u64;
    match filled {
        Ok(()) => {
            tracing::info!(target: "INDEX", id = 20345, namespace = ns, index = progress.name.as_str(), records = done, durationMillis = took, "Index build: done building")
        }
        Err(stop) => {
            tracing::warn!(target: "INDEX", id = 20649, namespace = ns, index = progress.name.as_str(), records = done, of = total, error = ?stop, "Index build: ended before it was done")
        }
    }
}

/// Fills an index that the primary has finished, before its entry is applied here: its entries go
/// past the log, so that they do not come with it.
pub fn catch_up(engine: &Arc<Engine>, ns: &str, id: u32) -> Result<()> {
    let Some(coll) = engine.catalog.get(ns) else {
        return Ok(());
    };
    if coll
        .index(id)
        .is_none_or(|i| i.state != IndexState::Building)
    {
        return Ok(());
    }
    // Others that the primary builds will be filled with the same scan: their writers maintain them already. One
    // that is unique may have duplicates until the primary has finished it.
    let with_it = |i: &&Arc<Index>| i.id == id || i.state == IndexState::Building && !is_checked(i);
    let ids: Vec<u32> = coll.indexes.iter().filter(with_it).map(|i| i.id).collect();
    let fill = |ids: &[u32]| {
        let progress: Vec<_> = ids.iter().map(|_| Arc::default()).collect();
        let fill = IndexFill {
            ns,
            coll: &coll,
            ids,
            progress: &progress,
        };
        fill.run(&mut OpCtx::worker(engine))
    };
    if fill(&ids).is_err() {
        // A document may have no key in another one: then the primary's build of that fails too, and this one's
        // has not.
        fill(&[id])?;
    }
    engine.store.flush()?;
    Ok(())
}

/// The index, or its collection, was dropped during the build: the client that requested it is not at
/// fault.
fn of_what_is_gone(stop: Stop) -> Stop {
    match stop.failure().map(|e| e.code) {
        Some(Code::NamespaceNotFound) => aborted("the collection was dropped").into(),
        Some(Code::IndexNotFound) => aborted("the index was dropped").into(),
        _ => stop,
    }
}

/// Whether an error means that the index build was stopped rather than failed.
pub fn is_abort(e: &Stop) -> bool {
    e.is(Code::IndexBuildAborted)
}
