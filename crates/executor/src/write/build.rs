//! Online index builds. Writers maintain an index from the moment it is in the catalog; the build
//! scans the records in key order and adds the entries of older ones.
//!
//! Invariant: the build latches the records of a batch and reads their newest version, so it
//! neither restores an entry that a writer removed nor misses one. Entries are not logged, because
//! they can be derived again. They are written in one engine batch with the build's progress, so
//! that a crash resumes at the right place.

use crate::build_progress::BuildProgress;
use crate::engine::Engine;
use crate::op::{Latched, OpCtx};
use crate::records;
use crate::write::locked::LockedCollection;
use crate::write::record_write::RecordWrite;
use catalog::keyspace;
use catalog::{Collection, Index, IndexState, NewIndex, build_progress_key};
use errors::{Code, Error, Result, Stop, bail, err};
use query::expr::Vars;
use query::index_keys::KeySet;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use storage::{Direction, Effect};

/// The number of records in a batch. They are latched together, so it is small.
const BATCH: usize = 128;
/// How often a build says in the log how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Creates indexes and waits until they are ready. On an error all of them are dropped.
pub fn create_indexes(ctx: &mut OpCtx, ns: &str, new: &[NewIndex]) -> Result<()> {
    ctx.need_worker()?;
    let engine = ctx.engine.clone();
    let empty = |c: &Collection| records::none(&engine.store.latest(), c);
    let ids = (engine.catalog)
        .add_indexes(ns, new, &|| ctx.check(), empty)
        .map_err(of_what_is_gone)?;
    for (id, ready) in &ids {
        if *ready {
            continue;
        }
        if let Err(e) = run(ctx, ns, *id) {
            let names: Vec<String> = match engine.catalog.get(ns) {
                Some(c) => ids
                    .iter()
                    .filter_map(|(id, _)| c.index(*id).map(|i| i.name().to_string()))
                    .collect(),
                None => vec![],
            };
            for name in names {
                let _ = engine
                    .catalog
                    .drop_index(ns, &name, &catalog::never_interrupted);
            }
            return Err(e);
        }
    }
    Ok(())
}

/// Rebuilds an index and waits until it is ready. An index that cannot be rebuilt is dropped.
pub fn rebuild_index(ctx: &mut OpCtx, ns: &str, name: &str) -> Result<()> {
    ctx.need_worker()?;
    let engine = ctx.engine.clone();
    let id = engine.catalog.rebuild_index(ns, name, &|| ctx.check())?;
    run(ctx, ns, id).inspect_err(|_| {
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
                let r = run(&mut OpCtx::worker(&engine), &ns, id);
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

/// Continues the build of one index from its stored progress, and makes the index ready.
fn run(ctx: &mut OpCtx, ns: &str, id: u32) -> Result<()> {
    let engine = ctx.engine.clone();
    let coll = engine
        .catalog
        .get(ns)
        .ok_or_else(|| aborted("the collection was dropped"))?;
    let index = coll.index(id);
    let name = index
        .ok_or_else(|| aborted("the index was dropped"))?
        .name();
    let name = name.to_string();
    let progress = Arc::new(BuildProgress {
        ns: ns.to_string(),
        name,
        ..Default::default()
    });
    progress
        .total
        .store(engine.store.counts(coll.tablet).0, Ordering::Relaxed);
    engine.builds.begin(coll.uuid, id, progress.clone());
    let began = Instant::now();
    let total = progress.total.load(Ordering::Relaxed);
    tracing::info!(target: "INDEX", id = 20384, namespace = ns, index = progress.name.as_str(), records = total, "Index build: starting");
    let r = fill(ctx, ns, &coll, id, &progress);
    engine.builds.end(coll.uuid, id);
    let done = progress.done.load(Ordering::Relaxed);
    let took = began.elapsed().as_millis() as u64;
    match &r {
        Ok(()) => {
            tracing::info!(target: "INDEX", id = 20345, namespace = ns, index = progress.name.as_str(), records = done, durationMillis = took, "Index build: done building")
        }
        Err(stop) => {
            tracing::warn!(target: "INDEX", id = 20649, namespace = ns, index = progress.name.as_str(), records = done, of = total, error = ?stop, "Index build: ended before it was done")
        }
    }
    r?;
    // The log will say that the index is ready, and recovery replays only the log: the entries must
    // be on disk before.
    engine.store.flush()?;
    (engine.catalog)
        .finish_build(ns, id, &|| ctx.check())
        .map_err(of_what_is_gone)
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
    fill(
        &mut OpCtx::worker(engine),
        ns,
        &coll,
        id,
        &BuildProgress::default(),
    )?;
    engine.store.flush()?;
    Ok(())
}

fn aborted(why: &str) -> Error {
    err!(IndexBuildAborted, "Index build failed: {why}")
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

fn fill(
    ctx: &mut OpCtx,
    ns: &str,
    coll: &Arc<Collection>,
    id: u32,
    progress: &BuildProgress,
) -> Result<()> {
    let engine = ctx.engine.clone();
    let progress_key = build_progress_key(coll.tablet, id);
    // A new snapshot for each batch: later records are indexed by their writers.
    let mut low = coll.record_prefix.to_vec();
    if let Some(done) = engine.store.latest().get(&progress_key)? {
        low = keyspace::join(&coll.record_prefix, &done);
        low.push(0);
    }
    let high = keyspace::prefix_end(&coll.record_prefix);
    let mut said = Instant::now();
    loop {
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let done = progress.done.load(Ordering::Relaxed);
            let total = progress.total.load(Ordering::Relaxed);
            tracing::info!(target: "INDEX", id = 51773, namespace = ns, index = progress.name.as_str(), records = done, of = total,
                percent = done.saturating_mul(100).checked_div(total).unwrap_or(0), "Index build: in progress");
        }
        ctx.check()?;
        if progress.abort.load(Ordering::Relaxed) {
            return Err(aborted("it was asked to stop").into());
        }
        let mut keys: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
        {
            let view = engine.store.view();
            let mut scan = view.scan(&low, &high, Direction::Forward);
            while keys.len() < BATCH && scan.next()? {
                keys.push(scan.key().to_vec());
            }
        }
        let Some(last) = keys.last() else {
            return Ok(());
        };
        assert!(*last >= low, "a build goes forward");
        low = last.clone();
        low.push(0);
        let done = records::own_part(last).to_vec();
        batch(
            ctx,
            ns,
            coll,
            id,
            &keys,
            Effect::Put(progress_key.clone(), done),
        )?;
        progress
            .done
            .fetch_add(keys.len() as u64, Ordering::Relaxed);
    }
}

/// Adds the entries of these records. The collection's write lock is held: the index cannot be
/// dropped meanwhile.
fn batch(
    ctx: &mut OpCtx,
    ns: &str,
    started: &Arc<Collection>,
    id: u32,
    keys: &[Vec<u8>],
    progress: Effect,
) -> Result<()> {
    for _ in 0..10_000 {
        let (coll, lock) = ctx
            .lock(ns)?
            .ok_or_else(|| aborted("the collection was dropped"))?;
        if coll.uuid != started.uuid {
            return Err(aborted("the collection was replaced").into());
        }
        let at = (coll.indexes.iter().position(|i| i.id == id))
            .ok_or_else(|| aborted("the index was dropped"))?;
        let target = LockedCollection { coll, lock };
        let mut write = RecordWrite::of_records(ctx, target, keys)?;
        if let Some(mut effects) = entries(ctx, &mut write, at, keys)? {
            effects.push(progress);
            ctx.engine.store.write_unlogged(&effects)?;
            return Ok(());
        }
        write.let_go();
    }
    bail!(
        WriteConflict,
        "the index build conflicted with writers too often"
    )
}

/// The entries of latched records in the index at position `at`. `None`: another operation has
/// latched a key of a unique index.
fn entries(
    ctx: &mut OpCtx,
    write: &mut RecordWrite,
    at: usize,
    keys: &[Vec<u8>],
) -> Result<Option<Vec<Effect>>> {
    let index: Arc<Index> = write.coll().indexes[at].clone();
    // An index with `prepareUnique` may be built over existing duplicates.
    let checked = index.spec.get("unique").is_some_and(|v| v.truthy());
    let view = ctx.latest();
    let refs: Vec<&[u8]> = keys.iter().map(|k| k.as_slice()).collect();
    let mut effects = Vec::with_capacity(keys.len() + 1);
    let mut set = KeySet::default();
    set.watched_by(ctx.interruptible(&Vars::default()), true);
    let mut unique: HashMap<Vec<u8>, &Vec<u8>> = HashMap::new();
    let mut conflict = false;
    view.get_each(&refs, |n, record| {
        let key = &keys[n];
        let doc = records::stored(write.coll(), key, record)?;
        let bits = records::keys_of(&index, doc, &mut set)?;
        if bits & !write.coll().indexes[at].info.multikey != 0 {
            write.target.mark_multikey(ctx, at, bits)?;
        }
        for (k, t) in set.iter() {
            if checked {
                if unique.get(k).is_some_and(|other| *other != key) {
                    return Err(records::duplicate(write.coll(), &index, k, t).into());
                }
                let hash = records::unique_hash(&index, k);
                if ctx.latch_keys(&mut write.latches, &[hash])? == Latched::Conflict {
                    conflict = true;
                    return Ok(false);
                }
                records::check_unique(&view, write.coll(), &index, k, t, Some(key))?;
                unique.insert(k.to_vec(), key);
            }
            effects.push(records::put_entry(&index, k, t, key));
        }
        Ok(true)
    })?;
    Ok((!conflict).then_some(effects))
}

/// Whether an error means that the index build was stopped rather than failed.
pub fn is_abort(e: &Stop) -> bool {
    e.is(Code::IndexBuildAborted)
}
