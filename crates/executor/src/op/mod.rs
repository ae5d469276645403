//! One running operation: its budget, its write group, its interruption.
//!
//! An operation first runs *inline*, on an event loop: it may examine [`INLINE_BUDGET`] entries, reads
//! only cached data and never waits. When that is not enough it is suspended before it has had any
//! effect, and is run again on a worker. Inline, commits are deferred: the entries gather in the loop's
//! [`WriteGroup`], and latches and locks stay held until the group is written. On a worker a commit is
//! made at once, in one group with others that commit at the same time.
//!
//! Invariant: after an operation has staged anything it never offloads; what it still needs it
//! waits for.

mod locking;
mod spent;

pub(crate) use self::locking::Latched;
pub use self::spent::Spent;
use crate::engine::Engine;
use crate::examined::Examined;
use crate::interrupt::{Interrupt, StoppedBy, interrupted};
use crate::operation_memory;
use crate::pinned_snapshot::PinnedSnapshot;
use crate::pipeline::OwnPlaces;
use crate::transaction::Transaction;
use crate::write_group::WriteGroup;
use catalog::Collection;
use errors::{Fallible, Result, Stop, Suspension, bail};
use parking_lot::Mutex;
use planner::Plan;
use query::expr::Vars;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use storage::{Epoch, View};

/// Index entries and documents that an operation may examine on an event loop.
pub const INLINE_BUDGET: u32 = 2_500;

/// After so many entries it is checked whether the operation is to end.
const CHECKED: u32 = 128;
/// The least turn, in entries: a step of a scan, with a seek.
const LEAST_TURN: u32 = 16;

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

/// Is told when an operation has taken the view from which it reads a collection.
pub trait ViewTaken {
    fn view_taken(&self, ns: &str);
}

/// The turn of a plan that runs against others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    None,
    /// Its first step may be of any length.
    Fresh,
    Begun,
    /// What ran was suspended.
    Over,
}

/// One operation.
pub struct OpCtx<'a> {
    pub engine: &'a Arc<Engine>,
    /// The loop's group; `None` on a worker.
    group: Option<&'a mut WriteGroup>,
    budget: u32,
    ticks: u32,
    turn: Turn,
    pub deadline: Option<Instant>,
    /// Set by killOp, killCursors, a client's disconnect, shutdown.
    pub killed: Option<&'a Arc<AtomicBool>>,
    /// As `killed`: set when the client has disconnected.
    pub cancelled: Option<&'a Arc<AtomicBool>>,
    /// Validators are bypassed (`bypassDocumentValidation`).
    pub bypass_validation: bool,
    /// The writes are a part of the move of a range between shards.
    pub from_migrate: bool,
    /// A router has seen to it that what `$merge` finds documents by is unique.
    pub merges_by_checked_key: bool,
    /// As a shard: which documents of a collection a pipeline writes here; `None`: none.
    pub own_places: Option<OwnPlaces>,
    /// Blocking stages may use temporary files (`allowDiskUse`).
    pub disk_use: bool,
    /// Threads that wait for its core have it at each check. Set where no others wait for what it holds.
    gives_way: bool,
    /// Only the plan is wanted: nothing is read to see whether it is as good as it was thought to be.
    pub only_plans: bool,
    /// The memory for long replies; `None`: no limit.
    pub room: Option<&'a dyn ReplyMemory>,
    /// A batch may end early when there is no room for more.
    pub may_cut: bool,
    /// The command may start over, because it has changed nothing: instead of waiting for room
    /// half-way, it is suspended, and runs again when there is room.
    pub may_start_over: bool,
    /// The bytes that each scan may use to remember given records.
    pub(crate) remembered: usize,
    /// Told of each view that is taken.
    pub on_view: Option<&'a dyn ViewTaken>,
    /// The pinned snapshot to read; `None`: the newest state.
    pub snapshot: Option<Arc<PinnedSnapshot>>,
    staged: bool,
    /// When it began: what it decides by what it has seen is refused once another member may have
    /// written.
    epoch: Epoch,
    /// A commit on a worker has failed: recorded results of its statements may not have happened.
    pub commit_failed: bool,
    /// The multi-document transaction that this operation belongs to.
    pub transaction: Option<Box<Transaction>>,
    /// Keys that a transaction holds: the operation waits for them before the next latch.
    blocked: Vec<u64>,
    /// Set while the operation waits at the [`FsyncLock`].
    pub waiting: Option<&'a AtomicBool>,
    /// The log index of the last commit on a worker; 0 when there was none.
    pub last_index: u64,
    /// For the profiler: the first plan that ran, and what all plans examined.
    pub plan: Option<Arc<Plan>>,
    /// Told of that plan when it begins to run.
    pub shown_plan: Option<&'a Mutex<Option<Arc<Plan>>>>,
    pub examined: Examined,
    /// The hidden keys of this thread when the operation began.
    hidden_before: u64,
    /// Collections that it has made because something was written to them, or put in the place of
    /// others.
    pub made: SmallVec<[String; 1]>,
    /// Index counters that were incremented; decremented when the operation runs again.
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
            turn: Turn::None,
            deadline: None,
            killed: None,
            cancelled: None,
            bypass_validation: false,
            from_migrate: false,
            merges_by_checked_key: false,
            own_places: None,
            disk_use: true,
            gives_way: false,
            only_plans: false,
            room: None,
            may_cut: false,
            may_start_over: false,
            remembered: REMEMBERED,
            on_view: None,
            snapshot: None,
            staged: false,
            epoch: engine.store.epoch(),
            commit_failed: false,
            transaction: None,
            blocked: Vec::new(),
            waiting: None,
            last_index: 0,
            plan: None,
            shown_plan: None,
            examined: Examined::default(),
            hidden_before: storage::hidden_keys::on_this_thread(),
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

    /// Undoes counts, because the operation failed only to run again.
    pub fn run_again(&mut self) {
        for accesses in self.used.drain(..) {
            accesses.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What all plans have examined, with the hidden keys that scans stepped over.
    pub fn examined(&self) -> Examined {
        let now = storage::hidden_keys::on_this_thread();
        let hidden = now.saturating_sub(self.hidden_before);
        Examined {
            hidden: self.examined.hidden + hidden,
            ..self.examined
        }
    }

    /// The plan answers the operation from here on. Of several the first is told.
    pub(crate) fn runs_plan(&mut self, plan: &Arc<Plan>) {
        if self.plan.is_some() {
            return;
        }
        self.plan = Some(plan.clone());
        if let Some(shown) = self.shown_plan {
            *shown.lock() = Some(plan.clone());
        }
    }

    /// What the operation has spent, for the run that continues it.
    pub fn spent(&self) -> Spent {
        Spent {
            plan: self.plan.clone(),
            examined: self.examined(),
            used: self.used.clone(),
        }
    }

    /// Continues an earlier run of the same operation.
    pub fn go_on(&mut self, spent: Spent) {
        spent.used.iter().for_each(|accesses| self.uses(accesses));
        self.plan = spent.plan;
        self.examined = spent.examined;
    }

    /// When what it has seen was true.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The entries that it may still examine on an event loop.
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Reduces the budget by what earlier runs of the same operation examined.
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

    /// Moves the operation to a worker if that is still possible: for work that is known to be
    /// long.
    pub fn need_worker(&self) -> Result<()> {
        if self.may_offload() {
            Err(Suspension::Worker.into())
        } else {
            Ok(())
        }
    }

    /// Pauses, so that others may release memory of [`Engine::stage_memory`].
    pub fn wait_for_memory(&mut self) -> Result<()> {
        self.need_worker()?;
        std::thread::sleep(Duration::from_millis(10));
        self.check()
    }

    /// Room for so many bytes that a write is going to take once it has latched its records: its entry, and what the engine makes of
    /// that. It counts until the operation ends or reserves other room. Waits, unless the operation is on an event loop, whose
    /// writes are short.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        match self.may_offload() {
            true => Ok(()),
            false => operation_memory::reserve(bytes, &|| self.check()),
        }
    }

    /// Pauses, so that a conflicting operation may end.
    pub(crate) fn let_others(&mut self) -> Result<()> {
        self.need_worker()?;
        std::thread::sleep(Duration::from_millis(5));
        self.check()
    }

    /// Whether a batch of `so_far` bytes may take a document of `more` bytes. A long batch takes
    /// room first. When there is no room it ends early, if it may and is not empty; otherwise it
    /// waits.
    #[inline]
    pub fn may_grow(&mut self, so_far: usize, more: usize) -> Result<bool> {
        if self.room.is_none() || so_far + more <= SMALL_REPLY_BYTES {
            return Ok(true);
        }
        self.take_room(self.may_cut && so_far > 0)
    }

    /// Takes room for a long reply, once; false when there is no room and `may_do_without` is set.
    pub fn take_room(&mut self, may_do_without: bool) -> Result<bool> {
        let Some(room) = self.room else {
            return Ok(true);
        };
        if !room.take() {
            if may_do_without {
                return Ok(false);
            }
            // A waiting operation should not hold the long document.
            if self.may_start_over || self.may_offload() {
                return Err(Suspension::Room.into());
            }
            self.wait_for_room()?;
        }
        self.room = None;
        Ok(true)
    }

    /// On a worker: waits for room for a long reply.
    pub fn wait_for_room(&mut self) -> Result<()> {
        if let Some(room) = self.room {
            while !room.take() && !room.wait() {
                self.check()?;
            }
            self.room = None;
        }
        Ok(())
    }

    /// On a worker: from here on its thread leaves the core at each check to those that wait for it.
    ///
    /// For what holds no latch while it reads. The scheduler would leave it the core for some
    /// milliseconds, and an event loop is to answer short commands meanwhile.
    pub(crate) fn give_way(&mut self) {
        self.gives_way = !self.may_offload();
    }

    /// Counts `n` examined entries. Fails when the inline budget is spent, the time limit is
    /// reached, or the operation was killed.
    #[inline]
    pub fn tick(&mut self, n: u32) -> Result<()> {
        if self.group.is_some() {
            if self.budget < n && !self.staged {
                return Err(Suspension::Worker.into());
            }
            self.budget = self.budget.saturating_sub(n);
        }
        self.ticks += n;
        if self.ticks >= CHECKED {
            self.ticks = 0;
            if self.gives_way {
                std::thread::yield_now();
            }
            self.check()?;
            self.check_turn()?;
        }
        Ok(())
    }

    /// Ends a turn that is under way, once it has got on: what runs is suspended.
    fn check_turn(&mut self) -> Result<()> {
        match self.turn {
            Turn::None | Turn::Over => Ok(()),
            Turn::Fresh => {
                self.turn = Turn::Begun;
                self.ticks = CHECKED - 1;
                Ok(())
            }
            Turn::Begun => {
                self.turn = Turn::Over;
                Err(Suspension::Worker.into())
            }
        }
    }

    /// From here on what runs is suspended after about so many entries, as on an event loop. It may
    /// always make its first step.
    pub(crate) fn begin_turn(&mut self, entries: u64) {
        let entries = u32::try_from(entries).map_or(CHECKED, |n| n.clamp(LEAST_TURN, CHECKED));
        self.ticks = CHECKED - entries;
        self.turn = Turn::Fresh;
    }

    /// Whether the turn was over before what ran came to an end.
    pub(crate) fn end_turn(&mut self) -> bool {
        std::mem::replace(&mut self.turn, Turn::None) == Turn::Over
    }

    /// Does something that cannot be suspended half-way.
    pub(crate) fn in_one_turn<T>(&mut self, what: impl FnOnce(&mut Self) -> T) -> T {
        let turn = std::mem::replace(&mut self.turn, Turn::None);
        let done = what(self);
        self.turn = turn;
        done
    }

    /// Fails when the time limit is reached or the operation was killed.
    pub fn check(&self) -> Result<()> {
        let flags = [self.killed, self.cancelled].map(|f| f.map(|f| &**f));
        Ok(interrupted(self.deadline, flags)?)
    }

    /// What long work asks, see [`errors::operation`].
    pub fn question(&self) -> impl Fn(Option<Instant>) -> Fallible<()> + use<'a> {
        let flags = [self.killed, self.cancelled];
        // A loop's operations are short, and few at a time.
        let weighs = !self.may_offload();
        move |deadline| {
            let check = || interrupted(deadline, flags.map(|f| f.map(|f| &**f)));
            check()?;
            match weighs {
                true => {
                    operation_memory::weigh(0, true, &|| Ok(check()?)).map_err(Stop::into_error)
                }
                false => Ok(()),
            }
        }
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

    /// Variables whose expressions stop when the operation must: for a command without a cursor.
    pub fn interruptible(&self, vars: &Vars) -> Arc<Vars> {
        Interrupt::bind(self.stopped_by(), vars).1
    }

    /// Makes the operation a statement of a transaction.
    pub fn join(&mut self, transaction: Box<Transaction>) {
        self.snapshot = Some(transaction.snapshot().clone());
        self.epoch = transaction.epoch();
        self.transaction = Some(transaction);
    }

    /// A snapshot to read from, together with the collection as it was for that snapshot.
    pub fn view(&self, ns: &str) -> (View, Option<Arc<Collection>>) {
        let (view, coll) = match &self.snapshot {
            _ if let Some(t) = &self.transaction => (t.reading(), t.collection(ns)),
            None => self
                .engine
                .catalog
                .consistent(ns, || self.engine.store.view()),
            Some(m) => (m.view.clone(), m.catalog.get(ns).cloned()),
        };
        self.tell_of_view(ns);
        (self.as_it_may_read(view), coll)
    }

    /// The catalog that belongs to what it reads.
    pub fn catalog(&self) -> Arc<catalog::Snapshot> {
        match &self.snapshot {
            _ if let Some(t) = &self.transaction => t.catalog(),
            None => self.engine.catalog.snapshot(),
            Some(m) => m.catalog.clone(),
        }
    }

    /// The view on which a write is decided: the newest state, without a snapshot; in a transaction
    /// its snapshot with its own writes.
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

    /// A collection is read from here on.
    pub(crate) fn tell_of_view(&self, ns: &str) {
        if let Some(on_view) = self.on_view {
            on_view.view_taken(ns);
        }
    }

    /// On an event loop only blocks in memory are read.
    fn as_it_may_read(&self, view: View) -> View {
        match self.may_offload() {
            true => view.cached_only(),
            false => view,
        }
    }

    /// Refuses a collection of the pinned snapshot that has lost data since.
    pub(crate) fn check_snapshot(&self, coll: &Collection) -> Result<()> {
        if self.snapshot.is_none() || coll.is_view() {
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
