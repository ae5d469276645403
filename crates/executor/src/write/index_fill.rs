//! What an index build adds: the entries of the records that were there before the index was. One scan of the records fills
//! all indexes that are built together.
//!
//! Invariant: a batch latches its records and reads their newest version, so it neither restores an entry that a writer
//! removed nor misses one. Entries are not logged, because they can be derived again. They are written in one engine batch
//! with the build's progress, so that a crash resumes at the right place.

use crate::build_progress::BuildProgress;
use crate::engine::Engine;
use crate::op::{Latched, OpCtx};
use crate::records;
use crate::write::locked::LockedCollection;
use crate::write::record_write::RecordWrite;
use catalog::{Collection, Index, build_progress_key, keyspace};
use errors::{Error, Result, bail, err};
use query::expr::Vars;
use query::index_keys::KeySet;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use storage::{Direction, Effect};

/// The number of records in a batch. They are latched together, so it is small.
const BATCH: usize = 128;
/// How often a build says in the log how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// One build of one or several indexes of a collection.
pub(super) struct IndexFill<'f> {
    pub ns: &'f str,
    pub coll: &'f Arc<Collection>,
    pub ids: &'f [u32],
    /// Of each of them.
    pub progress: &'f [Arc<BuildProgress>],
}

pub(super) fn aborted(why: &str) -> Error {
    err!(IndexBuildAborted, "Index build failed: {why}")
}

impl IndexFill<'_> {
    /// The first record key that an index may lack.
    fn begins_at(&self, engine: &Engine) -> Result<Vec<u8>> {
        let view = engine.store.latest();
        let mut least: Option<Vec<u8>> = None;
        for id in self.ids {
            let Some(done) = view.get(&build_progress_key(self.coll.tablet, *id))? else {
                return Ok(self.coll.record_prefix.to_vec());
            };
            let done = done.to_vec();
            least = Some(least.map_or(done.clone(), |l| l.min(done)));
        }
        Ok(match least {
            Some(done) => after(&keyspace::join(&self.coll.record_prefix, &done)),
            None => self.coll.record_prefix.to_vec(),
        })
    }

    /// What stores that the entries of all records up to `last` are there.
    fn reached(&self, last: &[u8]) -> Vec<Effect> {
        let done = records::own_part(last);
        let put = |id: &u32| {
            let key = build_progress_key(self.coll.tablet, *id);
            Effect::Put(key, done.to_vec())
        };
        self.ids.iter().map(put).collect()
    }

    /// Goes on from the stored progress to the last record.
    pub fn run(&self, ctx: &mut OpCtx) -> Result<()> {
        let engine = ctx.engine.clone();
        let mut low = self.begins_at(&engine)?;
        let high = keyspace::prefix_end(&self.coll.record_prefix);
        let mut said = Instant::now();
        // A new snapshot for each batch: later records are indexed by their writers.
        loop {
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                self.say();
            }
            ctx.check()?;
            if self.progress.iter().any(|p| p.abort.load(Relaxed)) {
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
            low = after(last);
            let progress = self.reached(last);
            self.batch(ctx, &keys, progress)?;
            for p in self.progress {
                p.done.fetch_add(keys.len() as u64, Relaxed);
            }
            // Between two batches it holds nothing that others wait for.
            std::thread::yield_now();
        }
    }

    fn say(&self) {
        for p in self.progress {
            let (done, total) = (p.done.load(Relaxed), p.total.load(Relaxed));
            let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0);
            tracing::info!(target: "INDEX", id = 51773, namespace = self.ns, index = p.name.as_str(), records = done,
                of = total, percent, "Index build: in progress");
        }
    }

    /// Adds the entries of these records, and `progress`. The collection's write lock is held: the indexes cannot be
    /// dropped meanwhile.
    fn batch(&self, ctx: &mut OpCtx, keys: &[Vec<u8>], progress: Vec<Effect>) -> Result<()> {
        for _ in 0..10_000 {
            let (coll, lock) = ctx
                .lock(self.ns)?
                .ok_or_else(|| aborted("the collection was dropped"))?;
            if coll.uuid != self.coll.uuid {
                return Err(aborted("the collection was replaced").into());
            }
            let place = |id: &u32| coll.indexes.iter().position(|i| i.id == *id);
            let places: Option<Vec<usize>> = self.ids.iter().map(place).collect();
            let places = places.ok_or_else(|| aborted("the index was dropped"))?;
            let target = LockedCollection { coll, lock };
            let mut write = RecordWrite::of_records(ctx, target, keys)?;
            if let Some(mut effects) = entries(ctx, &mut write, &places, keys)? {
                effects.extend(progress);
                // The engine finds the place of a key from that of the one before: near ones are found sooner.
                effects.sort_unstable_by(|a, b| a.key().cmp(b.key()));
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
}

/// The first key behind another one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Whether a build refuses duplicates: an index with `prepareUnique` may be built over existing ones.
pub(super) fn is_checked(index: &Arc<Index>) -> bool {
    index.spec.get("unique").is_some_and(|v| v.truthy())
}

/// One index whose entries are made.
struct Filled {
    place: usize,
    index: Arc<Index>,
    is_checked: bool,
    /// The keys of this batch, and whose they are, where duplicates are refused.
    unique: HashMap<Vec<u8>, Vec<u8>>,
}

/// The entries of latched records in the indexes at these positions. `None`: another operation has latched a key of a
/// unique index.
fn entries(
    ctx: &mut OpCtx,
    write: &mut RecordWrite,
    places: &[usize],
    keys: &[Vec<u8>],
) -> Result<Option<Vec<Effect>>> {
    let filled = |place: &usize| {
        let index = write.coll().indexes[*place].clone();
        Filled {
            place: *place,
            is_checked: is_checked(&index),
            index,
            unique: HashMap::new(),
        }
    };
    let mut filled: Vec<Filled> = places.iter().map(filled).collect();
    let view = ctx.latest();
    let refs: Vec<&[u8]> = keys.iter().map(|k| k.as_slice()).collect();
    let mut effects = Vec::with_capacity(keys.len() * places.len() + places.len());
    let mut set = KeySet::default();
    set.watched_by(ctx.interruptible(&Vars::default()), true);
    let mut conflict = false;
    view.get_each(&refs, |n, record| {
        let key = &keys[n];
        for f in &mut filled {
            let doc = records::stored(write.coll(), key, record)?;
            let bits = records::keys_of(&f.index, doc, &mut set)?;
            if bits & !write.coll().indexes[f.place].info.multikey != 0 {
                write.target.mark_multikey(ctx, f.place, bits)?;
            }
            for (k, t) in set.iter() {
                if f.is_checked {
                    if f.unique.get(k).is_some_and(|other| other != key) {
                        return Err(records::duplicate(write.coll(), &f.index, k, t).into());
                    }
                    let hash = records::unique_hash(&f.index, k);
                    if ctx.latch_keys(&mut write.latches, &[hash])? == Latched::Conflict {
                        conflict = true;
                        return Ok(false);
                    }
                    records::check_unique(&view, write.coll(), &f.index, k, t, Some(key))?;
                    f.unique.insert(k.to_vec(), key.clone());
                }
                effects.push(records::put_entry(&f.index, k, t, key));
            }
        }
        Ok(true)
    })?;
    Ok((!conflict).then_some(effects))
}
