//! Group commit: the first proposer leads while no group is being written. The leader takes every
//! proposer that queued meanwhile into its group.
//!
//! ```text
//! propose ── no leader ──► lead: admit ─ append ─ decide ─ apply ─ tell the followers ─ hand over
//!        └── a leader ──► queue, sleep ─► done, or lead the next group
//!
//! admit    may the group begin?                     waits or refuses; nothing has happened
//! append   stamp and write: one write of the log    all of the group is in the log, or nothing
//! decide   may it be applied?                       one node decides at once; here a replica set waits or counts votes
//! apply    one batch of the engine, then observers  all of the group is visible, or nothing
//! ```
//!
//! This file knows neither log nor engine: [`CommitEnv`] stands for them, and for a test's.
//!
//! Invariants:
//! - Groups pass through append, decide and apply one after another, in the order of their indexes.
//!   So the applied state is always a prefix of the log.
//! - A proposal is in one group as a whole, and its entries are in their order.
//! - A mark ([`Entry::mark`]) is the last entry of its group, also on a member that takes it from
//!   the primary: the state that its observers see is that of the mark.
//! - A group that the engine refuses after it was appended is kept, and applied before any other group
//!   is appended: nothing overtakes it. Until then its error is the answer to all. A write that was
//!   decided before that without having seen it is refused ([`Epoch`]). Only a cut of the log that takes
//!   it out ends that.
//! - After a panic between append and the end of apply the engine's state is unknown: nothing is
//!   appended until a restart, which replays the log.
//! - Every proposer gets an outcome, whatever happens to the leader. Leadership is handed over,
//!   whatever happens to the group.
//!
//! These are asserted between the steps, and a panic of a leader ends the process ([`FailStop`]): before
//! any proposer of its group hears of it, and before another group is appended.
//!
//! Rejected: applying a group while later ones are written. It gains nothing while the engine
//! applies a batch faster than the log writes one, and the applied state would have holes.

use crate::replicator::Epoch;
use crate::{Committed, Entry, write_conflict};
use errors::{Error, Fallible, err};
use own_process::fail_stop::FailStop;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// A leader takes followers up to about this size: all members of a group wait for its last one.
const GROUP_BYTES: usize = 4 << 20;

/// How long a truncation of the log waits for the group in flight.
const CUT_WAIT: Duration = Duration::from_millis(100);

const WAITING: u8 = 0;
const LEAD: u8 = 1;
const DONE: u8 = 2;

/// The environment of a commit. One thread at a time calls it.
pub(crate) trait CommitEnv: Send {
    /// Waits while writers have to be slowed; fails when no write can be taken.
    fn admit(&mut self) -> Fallible<()>;

    /// Stamps the group's entries, writes them to the log as one, and pushes the place of each onto
    /// `places`. Fails where one was decided in another term than the log is in. After an error nothing of the group is in the log.
    fn append(&mut self, group: &Group<'_>, places: &mut Vec<Committed>) -> Fallible<()>;

    /// Returns when the group may be applied. After an error nothing of it is in the log any more.
    fn decide(&mut self, last: Committed) -> Fallible<()>;

    /// Applies an appended group; returns the last entry that is applied then. After an error nothing of it
    /// is visible, and it is handed over again.
    fn apply(&mut self, group: &Group<'_>, places: &[Committed]) -> Fallible<Committed>;
}

/// The entries of a group: the leader's own proposal, and its followers'.
pub(crate) struct Group<'a> {
    own: &'a [Entry],
    epoch: Epoch,
    followers: &'a [Arc<Waiter>],
}

impl Group<'_> {
    /// One or more entries for each proposer.
    pub fn proposals(&self) -> impl Iterator<Item = &[Entry]> + Clone {
        let followers = self.followers.iter().map(|f| f.entries.as_slice());
        std::iter::once(self.own).chain(followers)
    }

    /// When each was decided.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> + Clone {
        let followers = self.followers.iter().map(|f| f.epoch);
        std::iter::once(self.epoch).chain(followers)
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.proposals().flatten()
    }
}

pub(crate) struct Waiter {
    thread: Thread,
    state: AtomicU8,
    entries: Vec<Entry>,
    epoch: Epoch,
    bytes: usize,
    outcome: Mutex<Option<Fallible<Committed>>>,
}

#[derive(Default)]
struct Queue {
    led: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

/// Whether nothing may follow a proposal in its group: it ends with a mark.
fn ends_group(proposal: &[Entry]) -> bool {
    proposal.last().is_some_and(Entry::is_mark)
}

/// The place of a group's last entry. A group has at least one.
pub(crate) fn last_place(places: &[Committed]) -> Committed {
    *places.last().expect("a place for each entry of a group")
}

/// The progress of the current group.
#[derive(Default)]
enum Progress {
    #[default]
    Idle,
    /// In the log, and being applied. A thread that finds this after taking the lock knows that a
    /// leader panicked.
    UnderWay,
    /// In the log, and refused by the engine.
    Refused(Vec<Entry>, Vec<Committed>),
}

struct Pipeline<E> {
    env: E,
    progress: Progress,
    /// The place of each entry of the current group.
    places: Vec<Committed>,
}

pub(crate) struct Committer<E> {
    queue: Mutex<Queue>,
    /// Whether the last group failed.
    failing: AtomicBool,
    /// Why the disk or the engine refused the last group; `None` after one that was taken.
    refusal: Mutex<Option<Error>>,
    pipeline: Mutex<Pipeline<E>>,
    applied_late: AtomicU64,
    applied_index: AtomicU64,
    applied_ts: AtomicU64,
}

/// Leadership. On drop it passes to the next in the queue, also when the leader panics.
struct Lead<'a>(&'a Mutex<Queue>);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        match queue.waiting.pop_front() {
            Some(next) => {
                next.state.store(LEAD, Ordering::Release);
                next.thread.unpark();
            }
            None => queue.led = false,
        }
    }
}

/// The waiters whose entries are in the leader's group. On drop they are woken, whatever happened
/// to the group.
struct Followers(Vec<Arc<Waiter>>);

impl Followers {
    /// Takes followers from the front of the queue, as many as fit into a group with the leader's
    /// `bytes`.
    fn take(queue: &Mutex<Queue>, mut bytes: usize) -> Followers {
        let mut followers = Followers(Vec::new());
        let mut queue = queue.lock();
        while let Some(next) = queue.waiting.front() {
            bytes += next.bytes;
            if bytes > GROUP_BYTES {
                break;
            }
            let state = next.state.load(Ordering::Acquire);
            assert_eq!(state, WAITING, "a queued proposal is in no group yet");
            let is_last = ends_group(&next.entries);
            followers.0.extend(queue.waiting.pop_front());
            if is_last {
                break;
            }
        }
        followers
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        for waiter in &self.0 {
            waiter.state.store(DONE, Ordering::Release);
            waiter.thread.unpark();
        }
    }
}

impl<E: CommitEnv> Committer<E> {
    pub fn new(env: E, applied: Committed) -> Committer<E> {
        Committer {
            queue: Mutex::default(),
            failing: AtomicBool::new(false),
            refusal: Mutex::default(),
            pipeline: Mutex::new(Pipeline {
                env,
                progress: Progress::Idle,
                places: Vec::new(),
            }),
            applied_late: AtomicU64::new(0),
            applied_index: AtomicU64::new(applied.index),
            applied_ts: AtomicU64::new(applied.ts),
        }
    }

    /// The last entry that is applied.
    pub fn applied(&self) -> Committed {
        // The timestamp is read first, so it is never newer than the state that a later snapshot
        // shows.
        let ts = self.applied_ts.load(Ordering::Acquire);
        Committed {
            index: self.applied_index.load(Ordering::Acquire),
            ts,
        }
    }

    /// Why the disk or the engine refused the last group that was proposed.
    pub fn refusal(&self) -> Option<Error> {
        self.refusal.lock().clone()
    }

    /// How many groups were applied after their proposers had their errors.
    pub fn applied_late(&self) -> u64 {
        self.applied_late.load(Ordering::Acquire)
    }

    /// Runs `f` while no group is in flight. Fails when one is in the log and not applied.
    pub fn between_groups<R>(&self, f: impl FnOnce(&mut E) -> R) -> Fallible<R> {
        let mut pipeline = self.pipeline.lock();
        match pipeline.progress {
            Progress::Idle => Ok(f(&mut pipeline.env)),
            _ => Err(err!(InternalError, "the engine takes no writes")),
        }
    }

    /// Has `cut` take the entries behind `index` out of the log, and forgets those of them that the
    /// engine refused: they must not be applied any more. False, and nothing is done, where one of
    /// them is applied or being applied.
    pub fn cut(&self, index: u64, cut: impl FnOnce() -> Fallible<()>) -> Fallible<bool> {
        let Some(mut pipeline) = self.pipeline.try_lock_for(CUT_WAIT) else {
            return Ok(false);
        };
        let _fail_stop = FailStop::begin();
        if self.applied().index > index || matches!(pipeline.progress, Progress::UnderWay) {
            return Ok(false);
        }
        // The rest of them is in the log, and is applied when a majority has it.
        if let Progress::Refused(_, places) = &pipeline.progress
            && last_place(places).index > index
        {
            pipeline.progress = Progress::Idle;
        }
        cut()?;
        assert!(
            self.applied().index <= index,
            "nothing that is applied is cut from the log"
        );
        Ok(true)
    }

    /// Appends and applies the entries, in one group with other proposals; returns the place of the
    /// last of them. They were decided in `epoch`.
    pub fn propose(&self, epoch: Epoch, entries: Vec<Entry>) -> Fallible<Committed> {
        if entries.is_empty() {
            return Ok(self.applied());
        }
        let mut queue = self.queue.lock();
        if queue.led {
            let waiter = Arc::new(Waiter {
                thread: std::thread::current(),
                state: AtomicU8::new(WAITING),
                bytes: entries.iter().map(Entry::size_bound).sum(),
                entries,
                epoch,
                outcome: Mutex::new(None),
            });
            queue.waiting.push_back(waiter.clone());
            drop(queue);
            return self.follow(&waiter);
        }
        queue.led = true;
        drop(queue);
        let _lead = Lead(&self.queue);
        self.commit(&entries, epoch, &[])
    }

    /// Applies entries that are in the log, at the places given: what a secondary does with those that
    /// it was sent. They have to follow on the last applied entry. Those that are applied already are
    /// left out: a primary may hear that a majority has an entry while it applies that itself, and
    /// counts would be changed twice.
    pub fn apply_appended(&self, entries: &[Entry], places: &[Committed]) -> Fallible<()> {
        let mut pipeline = self.pipeline.lock();
        let _fail_stop = FailStop::begin();
        assert_eq!(entries.len(), places.len(), "a place for each entry");
        if !matches!(pipeline.progress, Progress::Idle) {
            self.finish_refused(&mut pipeline)?;
        }
        let applied = self.applied().index;
        let new = places.partition_point(|p| p.index <= applied);
        let (Some(entries), Some(places)) = (entries.get(new..), places.get(new..)) else {
            return Ok(());
        };
        for (next, place) in (applied + 1..).zip(places) {
            if place.index != next {
                return Err(hole(next));
            }
        }
        let (mut entries, mut places) = (entries, places);
        while !places.is_empty() {
            // A mark ends its group.
            let many = entries.iter().position(Entry::is_mark);
            let many = many.map_or(places.len(), |at| at + 1).min(places.len());
            let (group, rest) = entries.split_at(many.min(entries.len()));
            let (at, behind) = places.split_at(many);
            self.apply_group(&mut pipeline, group, at)?;
            (entries, places) = (rest, behind);
        }
        Ok(())
    }

    /// Applies entries that are in the log, as one.
    fn apply_group(
        &self,
        pipeline: &mut Pipeline<E>,
        entries: &[Entry],
        places: &[Committed],
    ) -> Fallible<()> {
        pipeline.progress = Progress::UnderWay;
        let group = Group {
            own: entries,
            epoch: Epoch::default(),
            followers: &[],
        };
        self.check_places(&group, places);
        match pipeline.env.apply(&group, places) {
            Ok(applied) => self.set_applied(applied, places),
            Err(e) => {
                pipeline.progress = Progress::Refused(entries.to_vec(), places.to_vec());
                return Err(e);
            }
        }
        pipeline.progress = Progress::Idle;
        Ok(())
    }

    fn follow(&self, waiter: &Arc<Waiter>) -> Fallible<Committed> {
        loop {
            match waiter.state.load(Ordering::Acquire) {
                WAITING => std::thread::park(),
                LEAD => {
                    let _lead = Lead(&self.queue);
                    let followers = match ends_group(&waiter.entries) {
                        true => Followers(Vec::new()),
                        false => Followers::take(&self.queue, waiter.bytes),
                    };
                    return self.commit(&waiter.entries, waiter.epoch, &followers.0);
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

    /// Commits one group, gives the followers their outcome, and returns that of `own`. Logs when
    /// writes begin to fail, and when they succeed again.
    fn commit(
        &self,
        own: &[Entry],
        epoch: Epoch,
        followers: &[Arc<Waiter>],
    ) -> Fallible<Committed> {
        let _fail_stop = FailStop::begin();
        let outcome = self.commit_group(own, epoch, followers);
        match &outcome {
            Ok(_) => {
                if self.failing.load(Ordering::Relaxed)
                    && self.failing.swap(false, Ordering::Relaxed)
                {
                    *self.refusal.lock() = None;
                    tracing::info!(target: "STORAGE", "Writes succeed again");
                }
            }
            Err(e) => {
                for follower in followers {
                    *follower.outcome.lock() = Some(Err(e.clone()));
                }
                // That others are to write is no failure of this server's.
                let refused = e.code == errors::Code::NotWritablePrimary;
                if !refused && !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(target: "STORAGE", error = e.message.as_str(), "Writes fail");
                }
                if is_of_the_disk(e) {
                    *self.refusal.lock() = Some(e.clone());
                }
            }
        }
        outcome
    }

    fn commit_group(
        &self,
        own: &[Entry],
        epoch: Epoch,
        followers: &[Arc<Waiter>],
    ) -> Fallible<Committed> {
        let mut pipeline = self.pipeline.lock();
        if !matches!(pipeline.progress, Progress::Idle) {
            self.finish_refused(&mut pipeline)?;
        }
        let Pipeline {
            env,
            progress,
            places,
        } = &mut *pipeline;
        let group = Group {
            own,
            epoch,
            followers,
        };
        let late = self.applied_late();
        if group.epochs().any(|e| e.applied_late != late) {
            // A group was applied that they could not see, and whose latches they may have taken.
            return Err(write_conflict());
        }
        env.admit()?;
        places.clear();
        env.append(&group, places)?;
        *progress = Progress::UnderWay;
        self.check_places(&group, places);
        if let Err(e) = env.decide(last_place(places)) {
            *progress = Progress::Idle;
            return Err(e);
        }
        let applied = match env.apply(&group, places) {
            Ok(applied) => applied,
            Err(e) => {
                *progress = Progress::Refused(group.entries().cloned().collect(), places.clone());
                return Err(e);
            }
        };
        self.set_applied(applied, places);
        *progress = Progress::Idle;
        let mut done = 0usize;
        let mut end = |entries: &[Entry]| {
            done += entries.len();
            places.get(done.wrapping_sub(1)).copied()
        };
        let own_end = end(own).expect("a place for each entry that was appended");
        for follower in followers {
            let place = end(&follower.entries).expect("a place for each entry of the group");
            let before = follower.outcome.lock().replace(Ok(place));
            assert!(before.is_none(), "a proposer gets one outcome");
        }
        assert_eq!(done, places.len(), "each entry has its proposer");
        Ok(own_end)
    }

    /// Applies the group that the engine refused before. Until that succeeds, every proposal fails
    /// with its error.
    fn finish_refused(&self, pipeline: &mut Pipeline<E>) -> Fallible<()> {
        let Progress::Refused(entries, places) = &pipeline.progress else {
            return Err(err!(
                InternalError,
                "a write was lost between log and data files: no writes are taken until a restart"
            ));
        };
        let group = Group {
            own: entries,
            epoch: Epoch::default(),
            followers: &[],
        };
        let applied = pipeline.env.apply(&group, places)?;
        self.set_applied(applied, places);
        self.applied_late.fetch_add(1, Ordering::AcqRel);
        pipeline.progress = Progress::Idle;
        Ok(())
    }

    /// A group that is in the log and is about to be applied has a place for each of its entries, follows on
    /// what is applied, and ends with its mark.
    fn check_places(&self, group: &Group<'_>, places: &[Committed]) {
        let entries = group.entries().count();
        assert_eq!(places.len(), entries, "a place for each entry of a group");
        let mut before = self.applied();
        for place in places {
            assert_eq!(
                place.index,
                before.index + 1,
                "a group follows on what is applied"
            );
            assert!(place.ts > before.ts, "the log's time goes forward");
            before = *place;
        }
        let mark = group.entries().position(Entry::is_mark);
        assert!(
            mark.is_none_or(|at| at + 1 == entries),
            "a mark ends its group"
        );
    }

    /// A group is applied, up to `at` as the engine says.
    fn set_applied(&self, at: Committed, places: &[Committed]) {
        assert_eq!(at, last_place(places), "the engine is where the group ends");
        let before = self.applied_index.load(Ordering::Acquire);
        assert!(at.index > before, "what is applied stays applied");
        self.applied_index.store(at.index, Ordering::Release);
        self.applied_ts.store(at.ts, Ordering::Release);
    }
}

/// A log in which an entry is missing that is to be applied: so its files are, whatever made them so.
#[cold]
fn hole(index: u64) -> Error {
    err!(
        UnrecoverableRollbackError,
        "the log has no entry {index}, which is to be applied next: the member has to get its data from others"
    )
}

/// Whether an error says that this machine cannot write, and not that the write is refused.
fn is_of_the_disk(e: &Error) -> bool {
    use errors::Code;
    let codes = [
        Code::OutOfDiskSpace,
        Code::InternalError,
        Code::UnrecoverableRollbackError,
    ];
    codes.contains(&e.code)
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
