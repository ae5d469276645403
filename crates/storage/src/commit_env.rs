//! The commit environment of a real store: the log that a group is appended to, and the engine that
//! applies it.
//!
//! Invariants:
//! - State derived from entries (record counts, watchers, observers, the record cache) changes only
//!   here, from the entries alone. So a group that is applied again after a refusal gives the same
//!   state.
//! - Watchers learn of a key before it can be read. Observers learn of an entry after it can be
//!   read, and before its proposer returns.

use crate::batch::Batch;
use crate::commit::{CommitEnv, Group, last_place};
use crate::counts::{Counts, Touched};
use crate::engine::Engine;
use crate::entry::MAX_ENTRY_BYTES;
use crate::insert_order::{Arrival, Highest};
use crate::planted_fault::{Breach, CommitFault};
use crate::record_cache::Writing;
use crate::replicator::{Appended, Replicator, not_primary};
use crate::watch::{Observer, Watches};
use crate::write_throttle::Pace;
use crate::{Committed, Effect, Entry, Op};
use errors::{Fallible, err};
use oplog::Log;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A larger batch buffer is freed after its group.
const KEEP_BATCH_BYTES: usize = 4 << 20;
/// After so many groups the applied index is written by itself: the trimming of the log reads it.
const GROUPS_PER_MARK: u32 = 64;

/// An engine that needs longer for one group counts as stalled for a while, if it holds writers
/// back.
const STALL: Duration = Duration::from_millis(5);
const STALL_BELIEVED: Duration = Duration::from_millis(100);

/// Whether the engine was recently seen to stall its writers.
pub(crate) struct EngineStall {
    started: Instant,
    /// Milliseconds since `started`; 0 for never.
    believed_until: AtomicU64,
}

impl Default for EngineStall {
    fn default() -> EngineStall {
        EngineStall {
            started: Instant::now(),
            believed_until: AtomicU64::new(0),
        }
    }
}

impl EngineStall {
    pub fn is_on(&self) -> bool {
        let until = self.believed_until.load(Ordering::Relaxed);
        until != 0 && (self.started.elapsed().as_millis() as u64) < until
    }

    fn note(&self, begun: Instant, engine: &Engine) {
        // A slow write alone may mean a busy machine.
        if begun.elapsed() > STALL && engine.is_holding_back() {
            let until = self.started.elapsed() + STALL_BELIEVED;
            self.believed_until
                .store(until.as_millis() as u64, Ordering::Relaxed);
        }
    }
}

/// State that other threads read while groups are committed.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    pub counts: Arc<Counts>,
    pub throttle: Arc<Pace>,
    pub arrival: Arc<Arrival>,
    pub stall: Arc<EngineStall>,
    /// Where the log is one of several members'.
    pub replicator: Arc<OnceLock<Arc<dyn Replicator>>>,
}

pub(crate) struct StoreCommitEnv {
    log: Arc<Log>,
    engine: Arc<Engine>,
    shared: Shared,
    pub watches: Watches,
    pub observers: Vec<Arc<dyn Observer>>,
    pub fault: CommitFault,
    batch: Batch,
    touched: Touched,
    writing: Writing,
    highest: Highest,
    groups: u32,
}

impl StoreCommitEnv {
    pub fn new(log: Arc<Log>, engine: Arc<Engine>, shared: Shared) -> StoreCommitEnv {
        StoreCommitEnv {
            batch: Batch::new(&engine),
            log,
            engine,
            shared,
            watches: Watches::default(),
            observers: Vec::new(),
            fault: CommitFault::default(),
            touched: Touched::default(),
            writing: Writing::default(),
            highest: Highest::default(),
            groups: 0,
        }
    }

    /// Fills the batch with the group's changes. Returns the effects on existing records, which the
    /// record cache may hold.
    fn stage<'e>(&mut self, group: &'e Group<'_>, last: Committed) -> SmallVec<[&'e Effect; 8]> {
        self.batch.clear(KEEP_BATCH_BYTES);
        self.touched.clear();
        self.highest.begin(&self.shared.arrival);
        let mut may_be_cached = SmallVec::new();
        for entry in group.entries().flat_map(Entry::plain) {
            if let Some(delta) = &entry.count {
                self.shared.counts.touch(&mut self.touched, delta);
            }
            self.batch.push_all(&entry.effects);
            self.highest.note(&entry.effects);
            // A record that an insert puts is new. One that it deletes, as in a capped collection,
            // is not.
            let puts_new = entry.op == Op::Insert;
            let old = |effect: &&Effect| !(puts_new && matches!(effect, Effect::Put(..)));
            may_be_cached.extend(entry.effects.iter().filter(old));
        }
        self.highest.tell(&self.shared.arrival);
        // A changed count also carries the applied index.
        self.groups = self.groups.wrapping_add(1);
        let counted = self.touched.stage(&mut self.batch, last);
        if !counted || self.groups.is_multiple_of(GROUPS_PER_MARK) {
            self.batch.set_applied(last);
        }
        may_be_cached
    }
}

impl CommitEnv for StoreCommitEnv {
    fn admit(&mut self) -> Fallible<()> {
        if self.shared.replicator.get().is_some_and(|r| r.term() == 0) {
            return Err(not_primary());
        }
        if let Some(pause) = self.shared.throttle.pause() {
            std::thread::sleep(pause);
        }
        self.engine.takes_writes()
    }

    fn append(&mut self, group: &Group<'_>, places: &mut Vec<Committed>) -> Fallible<()> {
        self.fault.count();
        let mut appending = self.log.group();
        let replicator = self.shared.replicator.get();
        if let Some(replicator) = replicator {
            // From here on no other thread appends. A log that has entries of a later term is not ours.
            let term = replicator.term();
            let holds = term != 0 && term == appending.term();
            if !holds || group.epochs().any(|e| e.term != term) {
                return Err(not_primary());
            }
        }
        let mut sent = Vec::new();
        for entry in group.entries() {
            let mut payload = Vec::new();
            let stamp = appending.add_behind(entry.reserved(), |buf| {
                let start = buf.len();
                entry.encode(buf);
                if replicator.is_some() {
                    payload.extend_from_slice(buf.get(start..).unwrap_or_default());
                }
            });
            places.push(Committed {
                index: stamp.index,
                ts: stamp.ts,
            });
            if replicator.is_some() {
                sent.push(Appended {
                    index: stamp.index,
                    ts: stamp.ts,
                    term: stamp.term,
                    wall_millis: stamp.wall_millis,
                    payload,
                });
            }
        }
        if self.fault.is(Breach::Unlogged) {
            return Ok(());
        }
        let end = appending.write()?;
        assert_eq!(
            end.index,
            last_place(places).index,
            "the log ends with the group that was written"
        );
        if let Some(replicator) = replicator {
            assert_eq!(sent.len(), places.len(), "each entry is sent");
            replicator.appended(sent);
        }
        if self.fault.is(Breach::LostPlace) {
            places.pop();
        } else if self.fault.is(Breach::Gap) {
            places.iter_mut().for_each(|at| at.index += 1);
        }
        Ok(())
    }

    /// A single node decides alone.
    fn decide(&mut self, _last: Committed) -> Fallible<()> {
        Ok(())
    }

    fn apply(&mut self, group: &Group<'_>, places: &[Committed]) -> Fallible<Committed> {
        let last = last_place(places);
        assert!(
            self.log.last_index() >= last.index,
            "what the engine gets is in the log"
        );
        self.engine.gate().applying(last.index);
        let may_be_cached = self.stage(group, last);
        self.watches.tell(group.entries());
        let begun = Instant::now();
        let records = may_be_cached.iter().copied();
        let outcome = self.engine.apply(&self.batch, records, &mut self.writing);
        self.shared.stall.note(begun, &self.engine);
        outcome?;
        self.shared.counts.publish(&self.touched);
        self.shared.throttle.charge(self.batch.len());
        for observer in &self.observers {
            for (entry, at) in group.entries().zip(places) {
                observer.applied(*at, entry);
            }
        }
        let unapplied = u64::from(self.fault.is(Breach::Unapplied));
        Ok(Committed {
            index: last.index - unapplied,
            ..last
        })
    }
}

/// Refuses a transaction, and what prepares one, that is too large for a frame of the log, before it
/// harms the other members of its group. No other entry gets as large.
pub(crate) fn check_size(entries: &[Entry]) -> Fallible<()> {
    let may_be = |e: &Entry| matches!(e.op, Op::Transaction(_) | Op::Noop);
    let large = |e: &Entry| may_be(e) && e.size_bound() > MAX_ENTRY_BYTES;
    match entries.iter().any(large) {
        false => Ok(()),
        true => Err(err!(
            TransactionTooLarge,
            "the transaction takes more than the {MAX_ENTRY_BYTES} bytes that an entry of the log may have"
        )),
    }
}
