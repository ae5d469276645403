//! Group commit: whoever comes first while nothing is being written leads, and takes everyone who queued meanwhile.
//!
//! ```text
//! propose ── nobody leads ──► lead: encode all ─ one log write ─ one engine batch ─ tell the followers ─ hand over
//!        └── somebody leads ─► queue, sleep ─► done, or lead the next group
//! ```
//!
//! Invariant: groups are written and applied one after another in the order of their indexes, so the applied state is always
//! a prefix of the log. When the engine refuses a group that is already in the log, that group is kept and applied before
//! anything else is accepted: nothing may overtake it.

use crate::batch::Batch;
use crate::counts::{Counts, Touched};
use crate::engine::Engine;
use crate::entry::MAX_ENTRY_BYTES;
use crate::insert_order::{Arrival, Highest};
use crate::record_cache::Writing;
use crate::watch::{Watcher, Watches};
use crate::write_throttle::Pace;
use crate::{Committed, Effect, Entry, Op};
use errors::{Result, err};
use oplog::Log;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A leader takes no more followers than make about this much: a group's members all wait for its last.
const GROUP_BYTES: usize = 4 << 20;
/// A batch buffer larger than this is given back.
const KEEP_BATCH_BYTES: usize = 4 << 20;

/// An engine that takes longer over one group holds its writers up, and is believed to do so for a while.
const STALL: Duration = Duration::from_millis(5);
const STALL_BELIEVED: Duration = Duration::from_millis(100);

const WAITING: u8 = 0;
const LEAD: u8 = 1;
const DONE: u8 = 2;

struct Waiter {
    thread: Thread,
    state: AtomicU8,
    entries: Vec<Entry>,
    bytes: usize,
    outcome: Mutex<Option<Result<Committed>>>,
}

#[derive(Default)]
struct Queue {
    led: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

struct Work {
    batch: Batch,
    touched: Touched,
    writing: Writing,
    highest: Highest,
    groups: u32,
    /// A group that is in the log and that the engine refused: it comes first.
    refused: Option<(Batch, Vec<Effect>, Committed)>,
}

pub(crate) struct Committer {
    queue: Mutex<Queue>,
    /// The last group failed.
    failing: AtomicBool,
    work: Mutex<Work>,
    applied_index: AtomicU64,
    applied_ts: AtomicU64,
    /// Milliseconds since `started` until which writers are taken to be held up by the engine.
    stalled_until: AtomicU64,
    started: Instant,
    counts: Counts,
    pace: Arc<Pace>,
    arrival: Arc<Arrival>,
    watches: Watches,
}

/// Leadership: handed to the next in the queue on drop, also when the leader panics.
struct Lead<'a>(&'a Committer);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        match queue.waiting.pop_front() {
            Some(next) => {
                next.state.store(LEAD, Ordering::Release);
                next.thread.unpark();
            }
            None => queue.led = false,
        }
    }
}

/// Waiters whose entries are in the leader's group: woken on drop, whatever became of the group.
struct Followers(Vec<Arc<Waiter>>);

impl Drop for Followers {
    fn drop(&mut self) {
        for waiter in &self.0 {
            waiter.state.store(DONE, Ordering::Release);
            waiter.thread.unpark();
        }
    }
}

impl Committer {
    pub fn new(
        engine: &Engine,
        applied: Committed,
        counts: Counts,
        pace: Arc<Pace>,
        arrival: Arc<Arrival>,
    ) -> Committer {
        Committer {
            queue: Mutex::default(),
            failing: AtomicBool::new(false),
            work: Mutex::new(Work {
                batch: Batch::new(engine),
                touched: Touched::default(),
                writing: Writing::default(),
                highest: Highest::default(),
                groups: 0,
                refused: None,
            }),
            applied_index: AtomicU64::new(applied.index),
            applied_ts: AtomicU64::new(applied.ts),
            stalled_until: AtomicU64::new(0),
            started: Instant::now(),
            counts,
            pace,
            arrival,
            watches: Watches::default(),
        }
    }

    /// Whether writers are made to wait, by their pace or by the engine, because flushing or merging falls behind.
    pub fn is_stalled(&self) -> bool {
        if self.pace.is_on() {
            return true;
        }
        let until = self.stalled_until.load(Ordering::Relaxed);
        until != 0 && (self.started.elapsed().as_millis() as u64) < until
    }

    /// See [`crate::Store::watch`].
    pub fn watch(&self, prefix: &[u8], watcher: Weak<dyn Watcher>) -> Result<()> {
        let work = self.work.lock();
        if work.refused.is_some() {
            // It was told of before, and is still to be applied.
            return Err(err!(InternalError, "the engine takes no writes"));
        }
        self.watches.add(prefix, watcher);
        Ok(())
    }

    fn note_time(&self, begun: Instant, engine: &Engine) {
        // A slow write alone may be a busy machine's.
        if begun.elapsed() > STALL && engine.is_holding_back() {
            let until = self.started.elapsed() + STALL_BELIEVED;
            self.stalled_until
                .store(until.as_millis() as u64, Ordering::Relaxed);
        }
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn applied(&self) -> Committed {
        // The timestamp first: it is then never newer than the state that a later snapshot shows.
        let ts = self.applied_ts.load(Ordering::Acquire);
        Committed {
            index: self.applied_index.load(Ordering::Acquire),
            ts,
        }
    }

    pub fn propose(&self, log: &Log, engine: &Engine, entries: Vec<Entry>) -> Result<Committed> {
        if entries.is_empty() {
            return Ok(self.applied());
        }
        // Only a transaction can be as large; refused here it does no harm to others of its group.
        let transaction = |e: &&Entry| matches!(e.op, Op::Transaction(_));
        let mut transactions = entries.iter().filter(transaction);
        if transactions.any(|e| e.size_bound() > MAX_ENTRY_BYTES) {
            return Err(err!(
                TransactionTooLarge,
                "the transaction takes more than the {MAX_ENTRY_BYTES} bytes that an entry of the log may have"
            ));
        }
        let mut queue = self.queue.lock();
        if queue.led {
            let waiter = Arc::new(Waiter {
                thread: std::thread::current(),
                state: AtomicU8::new(WAITING),
                bytes: entries.iter().map(size_hint).sum(),
                entries,
                outcome: Mutex::new(None),
            });
            queue.waiting.push_back(waiter.clone());
            drop(queue);
            return self.follow(log, engine, &waiter);
        }
        queue.led = true;
        drop(queue);
        let _lead = Lead(self);
        self.commit(log, engine, &entries, &[])
    }

    fn follow(&self, log: &Log, engine: &Engine, waiter: &Arc<Waiter>) -> Result<Committed> {
        loop {
            match waiter.state.load(Ordering::Acquire) {
                WAITING => std::thread::park(),
                LEAD => {
                    let _lead = Lead(self);
                    let mut followers = Followers(Vec::new());
                    {
                        let mut queue = self.queue.lock();
                        let mut bytes = waiter.bytes;
                        while let Some(next) = queue.waiting.front() {
                            bytes += next.bytes;
                            if bytes > GROUP_BYTES {
                                break;
                            }
                            followers.0.extend(queue.waiting.pop_front());
                        }
                    }
                    let outcome = self.commit(log, engine, &waiter.entries, &followers.0);
                    if let Err(e) = &outcome {
                        for follower in &followers.0 {
                            *follower.outcome.lock() = Some(Err(e.clone()));
                        }
                    }
                    return outcome;
                }
                _ => {
                    return waiter.outcome.lock().take().unwrap_or_else(|| {
                        Err(err!(
                            InternalError,
                            "the leader of the write group was lost"
                        ))
                    });
                }
            }
        }
    }

    /// Writes and applies one group; tells the followers their outcome and returns that of `own`. And the operator, when
    /// writes begin to fail, and when they succeed again.
    fn commit(
        &self,
        log: &Log,
        engine: &Engine,
        own: &[Entry],
        followers: &[Arc<Waiter>],
    ) -> Result<Committed> {
        let outcome = self.commit_group(log, engine, own, followers);
        match &outcome {
            Ok(_) => {
                if self.failing.load(Ordering::Relaxed)
                    && self.failing.swap(false, Ordering::Relaxed)
                {
                    tracing::info!(target: "STORAGE", "Writes succeed again");
                }
            }
            Err(e) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(target: "STORAGE", error = e.message.as_str(), "Writes fail");
                }
            }
        }
        outcome
    }

    fn commit_group(
        &self,
        log: &Log,
        engine: &Engine,
        own: &[Entry],
        followers: &[Arc<Waiter>],
    ) -> Result<Committed> {
        if let Some(pause) = self.pace.pause() {
            std::thread::sleep(pause);
        }
        let mut work = self.work.lock();
        let work = &mut *work;
        if let Some((batch, refused_effects, at)) = &work.refused {
            // The error of a refused group is the answer to all until the engine takes it.
            engine.apply(batch, refused_effects.iter(), &mut work.writing)?;
            self.set_applied(*at);
            work.refused = None;
        }
        engine.takes_writes()?;
        let batch = &mut work.batch;
        batch.clear(KEEP_BATCH_BYTES);
        let touched = &mut work.touched;
        touched.clear();
        let mut group = log.group();
        let mut add = |entries: &[Entry], batch: &mut Batch| {
            let mut at = Committed::default();
            for entry in entries {
                let stamp = group.add(|buf| entry.encode(buf));
                for plain in entry.plain() {
                    if let Some(delta) = &plain.count {
                        self.counts.touch(touched, delta);
                    }
                    batch.push_all(&plain.effects);
                }
                at = Committed {
                    index: stamp.index,
                    ts: stamp.ts,
                };
            }
            at
        };
        let own_at = add(own, batch);
        let followers_at: Vec<Committed> =
            followers.iter().map(|f| add(&f.entries, batch)).collect();
        let last = group.write().map_err(errors::Error::from)?;
        let last = Committed {
            index: last.index,
            ts: last.ts,
        };
        self.counts.publish(touched);
        // Where the log is applied up to is in the counts, if any; now and then also where trimming the log looks for it.
        work.groups = work.groups.wrapping_add(1);
        if !touched.stage(batch, last) || work.groups.is_multiple_of(64) {
            batch.set_applied(last);
        }
        let entries = own.iter().chain(followers.iter().flat_map(|f| &f.entries));
        let plain = entries.clone().flat_map(Entry::plain);
        let all = plain.clone().flat_map(|e| &e.effects);
        work.highest.note(all, &self.arrival);
        self.watches.tell(entries.clone());
        let effects = plain.flat_map(|e| {
            // What an insert puts is new. What it deletes, as in a capped collection, is not.
            let puts_new = e.op == Op::Insert;
            let tell = move |effect: &&Effect| !(puts_new && matches!(effect, Effect::Put(..)));
            e.effects.iter().filter(tell)
        });
        let begun = Instant::now();
        let outcome = engine.apply(batch, effects.clone(), &mut work.writing);
        self.note_time(begun, engine);
        if let Err(e) = outcome {
            let effects = effects.cloned().collect();
            work.refused = Some((batch.take(), effects, last));
            return Err(e);
        }
        self.set_applied(last);
        self.pace.charge(batch.len());
        for (follower, at) in followers.iter().zip(followers_at) {
            *follower.outcome.lock() = Some(Ok(at));
        }
        Ok(own_at)
    }

    fn set_applied(&self, at: Committed) {
        self.applied_index.store(at.index, Ordering::Release);
        self.applied_ts.store(at.ts, Ordering::Release);
    }
}

fn size_hint(entry: &Entry) -> usize {
    let effects = entry.plain().flat_map(|e| &e.effects);
    effects.map(|e| e.size()).sum::<usize>() + 64
}
