//! Zone maps of indexes (see `catalog::Zones`): which one bounds a sort order, and how a map is
//! built.
//!
//! A map is built in the background, in two passes over the index. The first checks whether the
//! index is correlated with the order of the records. The second reads the bounds of each block,
//! while a watcher reports concurrent puts. It uses at most half of a core.

use crate::engine::Engine;
use crate::records;
use catalog::keyspace;
use catalog::{Collection, Index, IndexState, Samples};
use errors::Result;
use query::index_keys::FieldKind;
use query::sort::SortPattern;
use std::sync::{Arc, Weak};
use std::time::Instant;
use storage::{View, Watcher};

/// The number of entries read between two pauses.
const BATCH: usize = 2048;
/// The index whose zone map bounds this sort order, if there is one.
pub(crate) fn telling<'c>(coll: &'c Collection, pattern: &SortPattern) -> Option<&'c Arc<Index>> {
    let sorted = pattern.fields.first().filter(|f| f.meta.is_none())?;
    coll.secondary().find(|index| {
        let info = &index.info;
        let first = info.key.fields.first();
        index.state == IndexState::Ready
            // Every record has exactly one entry, with the value that the record is sorted by.
            && !info.sparse
            && info.partial.is_none()
            && info.multikey == 0
            && info.key.collation() == pattern.collation()
            && first.is_some_and(|f| f.kind == FieldKind::Ordered && f.path == sorted.path)
            && info.key.fields.iter().all(|f| f.kind == FieldKind::Ordered)
    })
}

/// Notes that a zone map might have saved a sort `many` reads, and builds one when that pays.
pub(crate) fn wasted(engine: &Arc<Engine>, coll: &Collection, pattern: &SortPattern, many: u64) {
    let Some(index) = telling(coll, pattern) else {
        return;
    };
    let entries = engine.store.counts(coll.tablet).0;
    if !index.zones.wasted(many, entries) {
        return;
    }
    if !engine.zones.begin() {
        index.zones.forget();
        return;
    }
    let (weak, index) = (Arc::downgrade(engine), index.clone());
    let zones = index.zones.clone();
    let work = move || {
        let made = make(&weak, &index);
        if made.is_err() {
            index.zones.forget();
        }
        if let Some(engine) = weak.upgrade() {
            let ready = index.zones.is_ready_for(u64::MAX);
            let map = ready.then(|| Arc::downgrade(&index.zones));
            engine.zones.end(map);
        }
    };
    let thread = std::thread::Builder::new().name("zones".into());
    if thread.spawn(work).is_err() {
        zones.forget();
        engine.zones.end(None);
    }
}

/// Builds the map of an index, unless it would be useless. An error, or the end of the server,
/// leaves no map.
fn make(engine: &Weak<Engine>, index: &Arc<Index>) -> Result<()> {
    let Some(view) = engine.upgrade().map(|e| e.store.view()) else {
        return Ok(());
    };
    let mut samples = Samples::default();
    let zones = &index.zones;
    let go_on = each(engine, &view, index, |entries| {
        for entry in entries {
            if let Some((_, record)) = zones.split(entry) {
                samples.add(record);
            }
        }
        true
    })?;
    let seen = samples.seen();
    if !go_on || !zones.begin(samples) {
        zones.give_up(seen);
        return Ok(());
    }
    drop(view);
    let watcher: Arc<dyn Watcher> = zones.clone();
    let Some(engine_now) = engine.upgrade() else {
        return Ok(());
    };
    let view = engine_now
        .store
        .watch(&index.prefix, Arc::downgrade(&watcher))?;
    drop(engine_now);
    if each(engine, &view, index, |entries| {
        zones.fill(entries.iter().map(Vec::as_slice))
    })? {
        zones.finish(view.sequence());
        tracing::info!(target: "INDEX", index = index.name(), entries = seen, "Made a zone map");
    }
    Ok(())
}

/// Calls `show` with all entries of an index, without its prefix, in batches until it returns
/// `false`; returns whether the end was reached.
fn each(
    engine: &Weak<Engine>,
    view: &View,
    index: &Index,
    mut show: impl FnMut(&[Vec<u8>]) -> bool,
) -> Result<bool> {
    let mut scan = view.scan_once(&index.prefix, &keyspace::prefix_end(&index.prefix));
    let mut batch: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
    loop {
        let begun = Instant::now();
        batch.clear();
        while batch.len() < BATCH && scan.next()? {
            batch.push(records::own_part(scan.key()).to_vec());
        }
        if batch.is_empty() {
            return Ok(true);
        }
        if !show(&batch) || engine.strong_count() == 0 {
            return Ok(false);
        }
        // Leaves half of the time to queries.
        std::thread::sleep(begun.elapsed());
    }
}
