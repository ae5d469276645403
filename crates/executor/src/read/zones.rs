//! Zone maps of indexes (see `catalog::Zones`): which one tells how records would sort, and how it is made.
//!
//! A map is made in the background, in two passes over the index: one that looks whether it follows the order of the records, and one
//! that reads what lies in each block while what is put meanwhile is told. It takes half of a core at most.

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

/// Entries that are read between two looks around.
const BATCH: usize = 2048;
/// The index whose zone map tells how records would sort, if it has one.
pub(crate) fn telling<'c>(coll: &'c Collection, pattern: &SortPattern) -> Option<&'c Arc<Index>> {
    let sorted = pattern.fields.first().filter(|f| f.meta.is_none())?;
    coll.secondary().find(|index| {
        let info = &index.info;
        let first = info.key.fields.first();
        index.state == IndexState::Ready
            // Every record has one entry, and that says what the record is sorted by.
            && !info.sparse
            && info.partial.is_none()
            && info.multikey == 0
            && info.key.collation() == pattern.collation()
            && first.is_some_and(|f| f.kind == FieldKind::Ordered && f.path == sorted.path)
            && info.key.fields.iter().all(|f| f.kind == FieldKind::Ordered)
    })
}

/// Notes that a sort read `many` records that a zone map might have spared, and has one made when that was worth it.
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

/// Makes the map of an index, or finds that it would tell nothing. An error, or the end of the server, leaves none.
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

/// Shows all entries of an index, without its prefix, some at a time until it says `false`; whether it came to the end.
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
        // Queries come first.
        std::thread::sleep(begun.elapsed());
    }
}
