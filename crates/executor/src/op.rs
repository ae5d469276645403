//! One running operation: what it may spend, where its writes go, when it must stop.
//!
//! An operation first runs *inline*, on an event loop: it may examine [`INLINE_BUDGET`] entries, reads only what is in the
//! cache and never waits. When that is not enough it fails with `Error::offload()` before it has had any effect, and is run
//! again on a worker. Inline, commits are deferred: the entries gather in the loop's [`WriteGroup`],
//! and latches and locks stay held until the group is written. On a worker a commit is made at once, in one group with whoever
//! else commits.
//!
//! Invariant: after an operation has staged anything it never offloads; what it still needs it waits for.

mod locking;
mod spent;

pub(crate) use self::locking::Latched;
pub use self::spent::Spent;
use crate::engine::Engine;
use crate::examined::Examined;
use crate::interrupt::{Interrupt, StoppedBy, interrupted};
use crate::snapshot_history::PinnedSnapshot;
use crate::transaction::Transaction;
use crate::write_group::WriteGroup;
use catalog::Collection;
use errors::{Error, Result, bail};
use planner::Plan;
use query::expr::Vars;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use storage::View;

/// Index entries and documents that an operation may examine on an event loop.
pub const INLINE_BUDGET: u32 = 2_500;

/// What each scan may take to remember what it has given, in bytes.
pub(crate) const REMEMBERED: usize = 8 << 20;

/// A reply's batch that grows past this asks for room.
pub const SMALL_REPLY_BYTES: usize = 64 << 10;

/// Where a batch that grows long gets memory from.
pub trait ReplyMemory {
    /// Takes what the longest batch needs, if there is as much.
    fn take(&self) -> bool;
    /// As `take`, and waits for a while; for threads that may.
    fn wait(&self) -> bool;
}

/// One operation.
pub struct OpCtx<'a> {
    pub engine: &'a Arc<Engine>,
    /// The loop's group; `None` on a worker.
    group: Option<&'a mut WriteGroup>,
    budget: u32,
    ticks: u32,
    pub deadline: Option<Instant>,
    /// Set by killOp, killCursors, a vanished client, shutdown.
    pub killed: Option<&'a Arc<AtomicBool>>,
    /// As `killed`: set when the client is gone.
    pub cancelled: Option<&'a Arc<AtomicBool>>,
    /// Writes are not tested by validators (`bypassDocumentValidation`).
    pub bypass_validation: bool,
    /// Blocking stages may go to temporary files (`allowDiskUse`).
    pub disk_use: bool,
    /// `None`: a batch may be as long as it likes.
    pub room: Option<&'a dyn ReplyMemory>,
    /// Without room for more, a batch may end early.
    pub may_cut: bool,
    /// Nothing was changed so far: rather than to wait for room half-way, the command fails with `wants_room` set, and is run
    /// again when there is.
    pub may_start_over: bool,
    pub wants_room: bool,
    /// How many bytes each scan may take to remember what it has given.
    pub(crate) remembered: usize,
    /// What it reads, when that is not the newest state.
    pub moment: Option<Arc<PinnedSnapshot>>,
    staged: bool,
    /// A commit on a worker has failed: what was noted of its statements may not have happened.
    pub commit_failed: bool,
    /// The multi-document transaction that the operation is a statement of.
    pub transaction: Option<Box<Transaction>>,
    /// Keys that a transaction had locked when they were wanted: waited for before the next latch.
    blocked: Vec<u64>,
    /// Told while it waits for writes to be let through ([`Gate`]).
    pub waiting: Option<&'a AtomicBool>,
    /// Log index of the last commit made on a worker; 0 when there was none.
    pub last_index: u64,
    /// The first plan that was run, and what all of them examined: for the profiler.
    pub plan: Option<Arc<Plan>>,
    pub examined: Examined,
    /// Collections that it has made because something was written to them.
    pub made: SmallVec<[String; 1]>,
    /// Counters of indexes that it added to while it may be run again elsewhere.
    used: SmallVec<[Arc<AtomicU64>; 2]>,
}

impl<'a> OpCtx<'a> {
    pub fn inline(engine: &'a Arc<Engine>, group: &'a mut WriteGroup) -> OpCtx<'a> {
        OpCtx {
            group: Some(group),
            budget: INLINE_BUDGET,
            ..OpCtx::worker(engine)
        }
    }

    pub fn worker(engine: &'a Arc<Engine>) -> OpCtx<'a> {
        OpCtx {
            engine,
            group: None,
            budget: 0,
            ticks: 0,
            deadline: None,
            killed: None,
            cancelled: None,
            bypass_validation: false,
            disk_use: true,
            room: None,
            may_cut: false,
            may_start_over: false,
            wants_room: false,
            remembered: REMEMBERED,
            moment: None,
            staged: false,
            commit_failed: false,
            transaction: None,
            blocked: Vec::new(),
            waiting: None,
            last_index: 0,
            plan: None,
            examined: Examined::default(),
            made: SmallVec::new(),
            used: SmallVec::new(),
        }
    }

    /// Counts that a plan uses an index.
    pub(crate) fn uses(&mut self, accesses: &Arc<AtomicU64>) {
        accesses.fetch_add(1, Ordering::Relaxed);
        if self.may_offload() {
            self.used.push(accesses.clone());
        }
    }

    /// The operation failed only to be run again: what it counted will be counted then.
    pub fn run_again(&mut self) {
        for accesses in self.used.drain(..) {
            accesses.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What it was about and has examined, for when it goes on in another run.
    pub fn spent(&self) -> Spent {
        Spent {
            plan: self.plan.clone(),
            examined: self.examined,
            used: self.used.clone(),
        }
    }

    /// Takes over what an earlier run of the same operation did.
    pub fn go_on(&mut self, spent: Spent) {
        spent.used.iter().for_each(|accesses| self.uses(accesses));
        self.plan = spent.plan;
        self.examined = spent.examined;
    }

    /// The entries that it may still examine on an event loop.
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Counts what earlier runs of the same operation have examined.
    pub fn reduce_budget(&mut self, left: u32) {
        self.budget = self.budget.min(left);
    }

    /// Whether the operation may still be handed to a worker.
    pub fn may_offload(&self) -> bool {
        self.group.is_some() && !self.staged
    }

    /// Whether it has staged or committed a write.
    pub fn has_written(&self) -> bool {
        self.staged || self.last_index != 0
    }

    /// Hands the operation to a worker when it still may be: for what is known to be long.
    pub fn need_worker(&self) -> Result<()> {
        if self.may_offload() {
            Err(Error::offload())
        } else {
            Ok(())
        }
    }

    /// Lets a moment pass in which others may give back memory of [`Engine::stage_memory`].
    pub fn wait_for_memory(&mut self) -> Result<()> {
        self.need_worker()?;
        std::thread::sleep(Duration::from_millis(10));
        self.check()
    }

    /// Lets a moment pass in which others may end what is in the way.
    pub(crate) fn let_others(&mut self) -> Result<()> {
        self.need_worker()?;
        std::thread::sleep(Duration::from_millis(5));
        self.check()
    }

    /// Whether a batch of `so_far` bytes may take a document of `more`. A long one takes room first; when there is none it ends
    /// early, if it may and has something to give, else it waits.
    #[inline]
    pub fn may_grow(&mut self, so_far: usize, more: usize) -> Result<bool> {
        if self.room.is_none() || so_far + more <= SMALL_REPLY_BYTES {
            return Ok(true);
        }
        self.take_room(self.may_cut && so_far > 0)
    }

    /// Takes room for a long reply, once; false when there is none and `may_do_without`.
    pub fn take_room(&mut self, may_do_without: bool) -> Result<bool> {
        let Some(room) = self.room else {
            return Ok(true);
        };
        if !room.take() {
            if may_do_without {
                return Ok(false);
            }
            self.need_worker()?;
            if self.may_start_over {
                // Who waits should not hold the document that was too long.
                self.wants_room = true;
                return Err(Error::offload());
            }
            self.wait_for_room()?;
        }
        self.room = None;
        Ok(true)
    }

    /// On a worker: takes room for a long reply, however long that takes.
    pub fn wait_for_room(&mut self) -> Result<()> {
        self.wants_room = false;
        if let Some(room) = self.room {
            while !room.take() && !room.wait() {
                self.check()?;
            }
            self.room = None;
        }
        Ok(())
    }

    /// Accounts for `n` examined entries. Fails when the inline budget is spent, the time is up or somebody killed it.
    #[inline]
    pub fn tick(&mut self, n: u32) -> Result<()> {
        if self.group.is_some() {
            if self.budget < n && !self.staged {
                return Err(Error::offload());
            }
            self.budget = self.budget.saturating_sub(n);
        }
        self.ticks += n;
        if self.ticks >= 128 {
            self.ticks = 0;
            self.check()?;
        }
        Ok(())
    }

    /// Fails when the time is up or somebody killed the operation.
    pub fn check(&self) -> Result<()> {
        let flags = [self.killed, self.cancelled].map(|f| f.map(|f| &**f));
        interrupted(self.deadline, flags)
    }

    pub(crate) fn stopped_by(&self) -> StoppedBy<'_> {
        StoppedBy {
            deadline: self.deadline,
            killed: self.killed,
            cancelled: self.cancelled,
            inline: self.may_offload(),
            scripting: self.engine.scripting.load(Ordering::Relaxed),
        }
    }

    /// The variables of a command that is done in one go, so that its expressions stop when it must.
    pub fn interruptible(&self, vars: &Vars) -> Arc<Vars> {
        Interrupt::bind(self.stopped_by(), vars).1
    }

    /// Makes the operation a statement of a transaction.
    pub fn join(&mut self, transaction: Box<Transaction>) {
        self.moment = Some(transaction.snapshot().clone());
        self.transaction = Some(transaction);
    }

    /// A snapshot to read from, together with the collection as it was for that snapshot.
    pub fn view(&self, ns: &str) -> (View, Option<Arc<Collection>>) {
        let (view, coll) = match &self.moment {
            _ if let Some(t) = &self.transaction => (t.reading(), t.collection(ns)),
            None => self
                .engine
                .catalog
                .consistent(ns, || self.engine.store.view()),
            Some(m) => (m.view.clone(), m.catalog.get(ns).cloned()),
        };
        (self.as_it_may_read(view), coll)
    }

    /// The catalog that belongs to what it reads.
    pub fn catalog(&self) -> Arc<catalog::Snapshot> {
        match &self.moment {
            _ if let Some(t) = &self.transaction => t.catalog(),
            None => self.engine.catalog.snapshot(),
            Some(m) => m.catalog.clone(),
        }
    }

    /// What decides a write: the newest state, without a snapshot; in a transaction its snapshot with its own writes.
    pub fn latest(&self) -> View {
        match &self.transaction {
            None => self.newest(),
            Some(t) => self.as_it_may_read(t.writing(self.newest())),
        }
    }

    /// The newest state, without a snapshot, also in a transaction.
    pub fn newest(&self) -> View {
        self.as_it_may_read(self.engine.store.latest())
    }

    /// On an event loop only what is in memory is read.
    fn as_it_may_read(&self, view: View) -> View {
        match self.may_offload() {
            true => view.cached_only(),
            false => view,
        }
    }

    /// Refuses a collection of the operation's moment that is not wholly there any more.
    pub(crate) fn check_moment(&self, coll: &Collection) -> Result<()> {
        if self.moment.is_none() || coll.is_view() {
            return Ok(());
        }
        let created = |t: &Transaction| t.created(&coll.ns).is_some();
        if self.transaction.as_deref().is_some_and(created) {
            return Ok(());
        }
        let now = self.engine.catalog.get(&coll.ns);
        let whole = now.is_some_and(|c| {
            c.uuid == coll.uuid
                && c.tablet == coll.tablet
                && coll.usable.iter().all(|i| c.index(i.id).is_some())
        });
        if !whole {
            bail!(
                SnapshotUnavailable,
                "Unable to read from a snapshot due to pending collection catalog changes to collection '{}'; please retry the operation.",
                coll.ns
            );
        }
        Ok(())
    }
}
