//! What an index build adds: the entries of the records that were there before the index was. One scan of the records fills
//! all indexes that are built together; where cores are idle several threads share it, each for a part of the records at a
//! time.
//!
//! Invariants: a batch latches its records and reads their newest version, so it neither restores an entry that a writer
//! removed nor misses one. Entries are not logged, because they can be derived again. The progress that is stored never
//! passes a record whose entries are not written, and is written with them or after them, so that a build that a crash
//! interrupts resumes at the right place.

use crate::build_progress::BuildProgress;
use crate::engine::Engine;
use crate::op::{Latched, OpCtx};
use crate::range_cuts;
use crate::records;
use crate::write::locked::LockedCollection;
use crate::write::record_write::RecordWrite;
use catalog::{Collection, Index, build_progress_key, keyspace};
use errors::{Error, Result, Stop, bail, err};
use own_process::COMMAND_STACK_BYTES;
use parking_lot::Mutex;
use query::expr::Vars;
use query::index_keys::KeySet;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use storage::{Direction, Effect};

/// The number of records in a batch. They are latched together, so it is small.
const BATCH: usize = 128;
/// The same where threads share a scan: their latches meet the less, the fewer each holds.
const SHARED_BATCH: usize = 64;
/// How often a build says in the log how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// A build over less is over before threads have begun.
const LEAST_RECORDS: u64 = 10_000;
const LEAST_BYTES: u64 = 1 << 20;
/// What a thread scans at a time, about. After a crash so much for each thread is scanned again.
const PART_BYTES: u64 = 32 << 20;
const PARTS_PER_THREAD: usize = 4;
const MOST_PARTS: usize = 256;

/// One build of one or several indexes of a collection.
pub(super) struct IndexFill<'f> {
    pub ns: &'f str,
    pub coll: &'f Arc<Collection>,
    pub ids: &'f [u32],
    /// Of each of them.
    pub progress: &'f [Arc<BuildProgress>],
}

/// The parts of the records that threads share.
struct Parts {
    /// First key and end of each, in order.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first one that no thread has taken.
    next: AtomicUsize,
    finished: Mutex<Finished>,
    /// Why the build ended early: the first reason of all threads.
    failure: Mutex<Option<Stop>>,
    ended: AtomicBool,
}

struct Finished {
    /// Of each part that is done: the last record in it.
    parts: Vec<Option<Option<Vec<u8>>>>,
    /// So many from the first on are done, and said so in the stored progress.
    stored: usize,
}

impl Parts {
    fn fail(&self, why: Stop) {
        self.failure.lock().get_or_insert(why);
        self.ended.store(true, Relaxed);
    }
}

pub(super) fn aborted(why: &str) -> Error {
    err!(IndexBuildAborted, "Index build failed: {why}")
}

impl IndexFill<'_> {
    /// Goes on from the stored progress to the last record.
    pub fn run(&self, ctx: &mut OpCtx) -> Result<()> {
        let engine = ctx.engine.clone();
        let low = self.begins_at(&engine)?;
        let high = keyspace::prefix_end(&self.coll.record_prefix);
        let taken = match self.may_be_shared(&engine) {
            true => Some(engine.query_threads.take()),
            false => None,
        };
        let threads = taken.as_ref().map_or(0, |t| t.threads);
        let cuts = match threads {
            0 => Vec::new(),
            more => self.cuts(&engine, &low, more + 1)?,
        };
        if cuts.is_empty() {
            drop(taken);
            return self.range(ctx, (low, &high), None).map(drop);
        }
        let ends = cuts.iter().cloned().chain([high.clone()]);
        let begins = [low].into_iter().chain(cuts.iter().cloned());
        let ranges: Vec<_> = begins.zip(ends).collect();
        let parts = Parts {
            next: AtomicUsize::new(0),
            finished: Mutex::new(Finished {
                parts: vec![None; ranges.len()],
                stored: 0,
            }),
            failure: Mutex::new(None),
            ended: AtomicBool::new(false),
            ranges,
        };
        self.share(ctx, &parts, threads);
        match parts.failure.into_inner() {
            Some(why) => Err(why),
            None => {
                let finished = parts.finished.into_inner();
                assert_eq!(
                    finished.stored,
                    parts.ranges.len(),
                    "a build that did not fail has done all parts"
                );
                Ok(())
            }
        }
    }

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

    /// Whether threads gain anything. They make keys side by side, but the engine takes entries from one at a time, which
    /// is most of the work where keys are made fast. Those that build a unique index would wait for each other's latches
    /// at each batch.
    fn may_be_shared(&self, engine: &Engine) -> bool {
        let any = |is: fn(&Arc<Index>) -> bool| {
            let mut indexes = self.ids.iter().filter_map(|id| self.coll.index(*id));
            indexes.any(is)
        };
        engine.store.counts(self.coll.tablet).0 >= LEAST_RECORDS
            && any(|index| index.info.key.is_laborious())
            && !any(is_checked)
    }

    /// The keys at which the records from `low` on are cut into parts for so many threads.
    fn cuts(&self, engine: &Engine, low: &[u8], threads: usize) -> Result<Vec<Vec<u8>>> {
        let prefix = &self.coll.record_prefix;
        let high = keyspace::prefix_end(prefix);
        let view = engine.store.latest();
        let end = |direction| -> Result<Option<Vec<u8>>> {
            let mut scan = view.scan(low, &high, direction);
            Ok(match scan.next()? {
                true => Some(records::own_part(scan.key()).to_vec()),
                false => None,
            })
        };
        let (Some(first), Some(last)) = (end(Direction::Forward)?, end(Direction::Backward)?)
        else {
            return Ok(Vec::new());
        };
        let bytes = engine.store.approximate_size(low, &high);
        let parts = usize::try_from(bytes / PART_BYTES).unwrap_or(MOST_PARTS);
        let parts = parts.clamp(threads * PARTS_PER_THREAD, MOST_PARTS);
        let cuts = range_cuts::of_range(engine, prefix, (&first, &last), parts, LEAST_BYTES);
        Ok(cuts.iter().map(|cut| keyspace::join(prefix, cut)).collect())
    }

    /// Fills all parts with so many threads beside the operation's own, which may be fewer: where the system has none
    /// the build goes on with those that it has.
    fn share(&self, ctx: &mut OpCtx, parts: &Parts, threads: usize) {
        let engine = ctx.engine.clone();
        engine.query_threads.builds.fetch_add(1, Relaxed);
        let (deadline, killed, cancelled) = (ctx.deadline, ctx.killed, ctx.cancelled);
        let help = || {
            engine.operation_memory.clone().within(|| {
                let mut ctx = OpCtx::worker(&engine);
                (ctx.deadline, ctx.killed, ctx.cancelled) = (deadline, killed, cancelled);
                self.take_parts(&mut ctx, parts);
            });
        };
        std::thread::scope(|scope| {
            let begin = |_| {
                let thread = std::thread::Builder::new()
                    .name("index build".into())
                    .stack_size(COMMAND_STACK_BYTES);
                thread.spawn_scoped(scope, help).ok()
            };
            let begun: Vec<ScopedJoinHandle<'_, ()>> = (0..threads).map_while(begin).collect();
            self.take_parts(ctx, parts);
            for thread in begun {
                if thread.join().is_err() {
                    parts.fail(Error::internal("a thread of an index build has panicked").into());
                }
            }
        });
    }

    /// Fills one part after the other, until there are no more or the build has ended.
    fn take_parts(&self, ctx: &mut OpCtx, parts: &Parts) {
        loop {
            let n = parts.next.fetch_add(1, Relaxed);
            let Some((low, high)) = parts.ranges.get(n) else {
                return;
            };
            let last = match self.range(ctx, (low.clone(), high), Some(&parts.ended)) {
                Ok(last) => last,
                Err(why) => return parts.fail(why),
            };
            if parts.ended.load(Relaxed) {
                return;
            }
            if let Err(why) = self.finish_part(ctx, parts, n, last) {
                return parts.fail(why);
            }
        }
    }

    /// Stores how far the build is, when all parts before are done too.
    fn finish_part(
        &self,
        ctx: &OpCtx,
        parts: &Parts,
        n: usize,
        last: Option<Vec<u8>>,
    ) -> Result<()> {
        let mut finished = parts.finished.lock();
        assert!(n >= finished.stored, "a part is done once");
        finished.parts[n] = Some(last);
        let mut newest = None;
        while let Some(Some(last)) = finished.parts.get(finished.stored) {
            newest = last.clone().or(newest);
            finished.stored += 1;
        }
        match newest {
            Some(last) => Ok(ctx.engine.store.write_unlogged(&self.reached(&last))?),
            None => Ok(()),
        }
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

    /// Adds the entries of the records of a range; the last one's key. `shared`: set when other threads have ended the
    /// build; they store the progress.
    fn range(
        &self,
        ctx: &mut OpCtx,
        (mut low, high): (Vec<u8>, &[u8]),
        shared: Option<&AtomicBool>,
    ) -> Result<Option<Vec<u8>>> {
        let engine = ctx.engine.clone();
        let most = match shared {
            Some(_) => SHARED_BATCH,
            None => BATCH,
        };
        let mut found = None;
        let mut said = Instant::now();
        // The scan sees a state of the past: records that are newer are indexed by their writers.
        loop {
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                self.say();
            }
            ctx.check()?;
            if self.progress.iter().any(|p| p.abort.load(Relaxed)) {
                return Err(aborted("it was asked to stop").into());
            }
            if shared.is_some_and(|ended| ended.load(Relaxed)) {
                return Ok(found);
            }
            let mut keys: Vec<Vec<u8>> = Vec::with_capacity(most);
            {
                let view = engine.store.view();
                let mut scan = view.scan(&low, high, Direction::Forward);
                while keys.len() < most && scan.next()? {
                    keys.push(scan.key().to_vec());
                }
            }
            let Some(last) = keys.last() else {
                return Ok(found);
            };
            assert!(*last >= low, "a build goes forward");
            low = after(last);
            let progress = match shared {
                Some(_) => Vec::new(),
                None => self.reached(last),
            };
            self.batch(ctx, &keys, progress)?;
            for p in self.progress {
                p.done.fetch_add(keys.len() as u64, Relaxed);
            }
            found = keys.pop();
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
