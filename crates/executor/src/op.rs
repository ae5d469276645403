//! One running operation: what it may spend, where its writes go, when it must stop.
//!
//! An operation first runs *inline*, on an event loop: it may examine [`INLINE_BUDGET`] entries, reads only what is in the
//! cache and never waits. When that is not enough it fails with `Error::offload()` before it has had any effect, and is run
//! again on a worker. Inline, commits are deferred: the entries gather in the loop's [`WriteGroup`],
//! and latches and locks stay held until the group is written. On a worker a commit is made at once, in one group with whoever
//! else commits.
//!
//! Invariant: after an operation has staged anything it never offloads; what it still needs it waits for.

use crate::interrupt::Interrupt;
use crate::read::Examined;
use crate::snapshot_history::PinnedSnapshot;
use crate::write::record_write::Latched;
use catalog::{Catalog, Collection, Tail, WriteLock};
use errors::{Error, Result, bail};
use parking_lot::{Condvar, Mutex};
use planner::Plan;
use query::expr::Vars;
use query::pipeline::StageMemory;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::time::{Instant, SystemTime};
use storage::{Entry, LatchGuard, Store, View};

/// Index entries and documents that an operation may examine on an event loop.
pub const INLINE_BUDGET: u32 = 2_500;

/// What idle cursors hold at most, in bytes, besides what each may hold uncounted.
const CURSOR_MEMORY: usize = 64 << 20;

/// What every operation shares: the store and its catalog.
pub struct Engine {
    pub store: Arc<Store>,
    pub catalog: Catalog,
    /// Index builds that run: see [`crate::write::build`].
    pub builds: crate::write::build::Builds,
    pub gate: Gate,
    /// For what sorts and groups hold, and what scans remember.
    pub stage_memory: Arc<StageMemory>,
    /// For what cursors hold that nobody uses now.
    pub cursor_memory: Arc<StageMemory>,
    pub zones: crate::read::zones::ZoneMaps,
    /// Queries that would have to read a whole collection are refused (`notablescan`).
    pub no_table_scan: AtomicBool,
    /// The last timestamp that took the place of an empty one.
    stamped: AtomicU64,
}

/// Keeps writes out while the server is locked against them (`fsync` with `lock`). Locks nest.
#[derive(Default)]
pub struct Gate {
    closed: AtomicBool,
    locks: Mutex<i64>,
    opened: Condvar,
}

impl Gate {
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// One lock more; how many there are.
    pub fn close(&self) -> i64 {
        let mut locks = self.locks.lock();
        *locks += 1;
        self.closed.store(true, Ordering::SeqCst);
        *locks
    }

    /// One lock less; how many are left, `None` when there was none.
    pub fn open(&self) -> Option<i64> {
        let mut locks = self.locks.lock();
        if *locks == 0 {
            return None;
        }
        *locks -= 1;
        if *locks == 0 {
            self.closed.store(false, Ordering::SeqCst);
            self.opened.notify_all();
        }
        Some(*locks)
    }

    pub fn locks(&self) -> i64 {
        *self.locks.lock()
    }
}

impl Engine {
    pub fn open(store: Arc<Store>) -> Result<Arc<Engine>> {
        if store.last_index() == 0 {
            // A replica set's first entry: cluster time is never zero.
            store.propose(vec![Entry::noop(vec![])])?;
        }
        let catalog = Catalog::open(store.clone())?;
        crate::pipeline::temp_collections::drop_all(&catalog);
        Ok(Arc::new(Engine {
            store,
            catalog,
            builds: Default::default(),
            gate: Gate::default(),
            stage_memory: Arc::default(),
            cursor_memory: Arc::new(StageMemory::new(CURSOR_MEMORY)),
            zones: Default::default(),
            no_table_scan: AtomicBool::new(false),
            stamped: AtomicU64::new(0),
        }))
    }

    /// A timestamp for what is written at this time: not before the last entry of the log, which may be ahead of the clock, nor
    /// behind the clock, as the log is while nothing is written.
    pub fn stamp_at(&self, now_millis: i64) -> u64 {
        let seconds = u64::try_from(now_millis / 1000).unwrap_or(0);
        (seconds << 32 | 1).max(self.store.last_ts() + 1)
    }

    /// A timestamp in place of an empty one: each is greater than the one before.
    pub fn next_stamp(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_millis = since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
        let floor = self.stamp_at(now_millis);
        let next = |last: u64| floor.max(last + 1);
        let last = self
            .stamped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(next(last))
            });
        next(last.unwrap_or_else(|last| last))
    }
}

/// What is held until a staged write is applied: it keeps others away from what the write touches.
pub struct Held {
    pub latches: Option<LatchGuard>,
    pub lock: WriteLock,
    /// The capped collection that grows: whoever waits for that is told then.
    pub grown: Option<Arc<Tail>>,
}

impl Held {
    fn release(self) {
        drop((self.latches, self.lock));
        if let Some(tail) = self.grown {
            tail.tell();
        }
    }
}

/// The writes of one turn of an event loop, committed together.
#[derive(Default)]
pub struct WriteGroup {
    entries: Vec<Entry>,
    held: Vec<Held>,
    failed: Option<Error>,
}

impl WriteGroup {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.failed.is_none()
    }

    /// Writes and applies what was staged; then lets go of latches and locks.
    pub fn flush(&mut self, store: &Store) {
        if self.entries.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.entries);
        match store.propose(entries) {
            Ok(_) => {}
            Err(e) => self.failed = Some(e),
        }
        self.held.drain(..).for_each(Held::release);
    }

    /// Flushes and tells how all that was staged since the last call fared: a log index at or after its last entry. It is
    /// not before entries that others made, which the answer to a retried write stands for.
    pub fn commit(&mut self, store: &Store) -> Result<u64> {
        self.flush(store);
        match self.failed.take() {
            Some(e) => Err(e),
            None => Ok(store.last_index()),
        }
    }
}

pub(crate) fn interrupted(
    deadline: Option<Instant>,
    flags: [Option<&AtomicBool>; 2],
) -> Result<()> {
    if flags.iter().flatten().any(|f| f.load(Ordering::Relaxed)) {
        bail!(Interrupted, "operation was interrupted");
    }
    if deadline.is_some_and(|d| Instant::now() >= d) {
        bail!(MaxTimeMSExpired, "operation exceeded time limit");
    }
    Ok(())
}

/// How long somebody who waits does so before he looks whether he was told to stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// A reply's batch that grows past this asks for room.
pub const SMALL_REPLY_BYTES: usize = 64 << 10;

/// Where a batch that grows long gets memory from.
pub trait ReplyMemory {
    /// Takes what the longest batch needs, if there is as much.
    fn take(&self) -> bool;
    /// As `take`, and waits for a while; for threads that may.
    fn wait(&self) -> bool;
}

/// What an operation did in a run that it goes on from in another.
pub struct Spent {
    plan: Option<Arc<Plan>>,
    examined: Examined,
    used: SmallVec<[Arc<AtomicU64>; 2]>,
    budget: u32,
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
    /// Told while it waits for writes to be let through ([`Gate`]).
    pub waiting: Option<&'a AtomicBool>,
    /// Log index of the last commit made on a worker; 0 when there was none.
    pub last_index: u64,
    /// The first plan that was run, and what all of them examined: for the profiler.
    pub plan: Option<Arc<Plan>>,
    pub examined: Examined,
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
            remembered: crate::read::dedup::REMEMBERED,
            moment: None,
            staged: false,
            waiting: None,
            last_index: 0,
            plan: None,
            examined: Examined::default(),
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
            budget: self.budget,
        }
    }

    /// Takes over what an earlier run of the same operation did.
    pub fn go_on(&mut self, spent: Spent) {
        spent.used.iter().for_each(|accesses| self.uses(accesses));
        self.plan = spent.plan;
        self.examined = spent.examined;
        self.budget = self.budget.min(spent.budget);
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

    /// The variables of a command that is done in one go, so that its expressions stop when it must.
    pub fn interruptible(&self, vars: &Vars) -> Arc<Vars> {
        Interrupt::bind(self, vars).1
    }

    /// A snapshot to read from, together with the collection as it was for that snapshot.
    pub fn view(&self, ns: &str) -> (View, Option<Arc<Collection>>) {
        let (view, coll) = match &self.moment {
            None => self
                .engine
                .catalog
                .consistent(ns, || self.engine.store.view()),
            Some(m) => (m.view.clone(), m.catalog.get(ns).cloned()),
        };
        (
            if self.may_offload() {
                view.cached_only()
            } else {
                view
            },
            coll,
        )
    }

    /// The catalog that belongs to what it reads.
    pub fn catalog(&self) -> Arc<catalog::Snapshot> {
        match &self.moment {
            None => self.engine.catalog.snapshot(),
            Some(m) => m.catalog.clone(),
        }
    }

    /// The newest state, without a snapshot.
    pub fn latest(&self) -> View {
        let view = self.engine.store.latest();
        if self.may_offload() {
            view.cached_only()
        } else {
            view
        }
    }

    /// The collection with its write lock held, in its version of that moment.
    pub fn lock(&mut self, ns: &str) -> Result<Option<(Arc<Collection>, WriteLock)>> {
        loop {
            self.pass_gate()?;
            let Some(c) = self.engine.catalog.get(ns) else {
                return Ok(None);
            };
            let lock = match c.try_write_lock() {
                Some(l) => l,
                None => {
                    // DDL waits for what our own group holds, perhaps.
                    self.flush();
                    self.need_worker()?;
                    loop {
                        if let Some(lock) = c.write_lock_within(PATIENCE) {
                            break lock;
                        }
                        self.check()?;
                    }
                }
            };
            // Whoever closes the gate then waits for all who hold such locks: nobody may take one and go on.
            if self.engine.gate.is_closed() {
                continue;
            }
            // DDL may have changed or dropped it before we had the lock.
            match self.engine.catalog.get(ns) {
                Some(now) if now.uuid == c.uuid => return Ok(Some((now, lock))),
                Some(_) => continue,
                None => return Ok(None),
            }
        }
    }

    /// Waits until no write is under way on a collection whose DDL comes next, and which then waits for the few that began
    /// meanwhile: that cannot be interrupted, and a write may scan for minutes.
    pub fn wait_for_writers(&self, ns: &str) -> Result<()> {
        loop {
            match self.engine.catalog.get(ns) {
                Some(c) if !c.is_idle_within(PATIENCE) => self.check()?,
                _ => return Ok(()),
            }
        }
    }

    /// Waits until the server is not locked against writes.
    pub fn pass_gate(&mut self) -> Result<()> {
        if !self.engine.gate.is_closed() {
            return Ok(());
        }
        self.flush();
        self.need_worker()?;
        let tell = |waits| {
            if let Some(w) = self.waiting {
                w.store(waits, Ordering::Relaxed);
            }
        };
        tell(true);
        let passed = self.wait_at_gate();
        tell(false);
        passed
    }

    fn wait_at_gate(&self) -> Result<()> {
        let gate = &self.engine.gate;
        let mut locks = gate.locks.lock();
        while *locks > 0 {
            self.check()?;
            gate.opened.wait_for(&mut locks, PATIENCE);
        }
        Ok(())
    }

    /// Latches keys by their hashes ([`crate::records::latch_hash`], [`crate::records::unique_hash`]), besides what is held
    /// already. Every latch of every write of records is taken here.
    ///
    /// On an event loop an earlier command of the same turn may hold one of them, until the loop's group is committed. So a
    /// latch that is in the way commits the group, with the writes of all commands of the turn so far: none of their replies
    /// has been sent, and how the commit fared is kept for them ([`WriteGroup::commit`]). If that does not help the operation
    /// goes to a worker.
    ///
    /// Who holds no latch waits for those asked for, so he is never told of a conflict; who holds some does not wait.
    pub(crate) fn latch_keys(
        &mut self,
        held: &mut Option<LatchGuard>,
        hashes: &[u64],
    ) -> Result<Latched> {
        if held.is_none() && self.engine.store.is_stalled() {
            // The engine makes writers wait: let it be a worker that waits, not the readers of a loop.
            self.flush();
            self.need_worker()?;
        }
        if self.try_latch(held, hashes) {
            return Ok(Latched::Held);
        }
        if self.group.is_some() {
            self.flush();
            if self.try_latch(held, hashes) {
                return Ok(Latched::Held);
            }
            self.need_worker()?;
        }
        if held.is_some() {
            return Ok(Latched::Conflict);
        }
        *held = Some(self.engine.store.latches().acquire(hashes));
        Ok(Latched::Held)
    }

    fn try_latch(&self, held: &mut Option<LatchGuard>, hashes: &[u64]) -> bool {
        match held {
            Some(guard) => guard.try_extend(hashes),
            None => {
                *held = self.engine.store.latches().try_acquire(hashes);
                held.is_some()
            }
        }
    }

    /// Commits entries: at once on a worker, with the loop's group inline.
    pub fn commit(&mut self, entries: Vec<Entry>, held: Held) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        match &mut self.group {
            Some(g) => {
                g.entries.extend(entries);
                g.held.push(held);
                self.staged = true;
            }
            None => {
                let c = self.engine.store.propose(entries)?;
                self.last_index = c.index;
                held.release();
            }
        }
        Ok(())
    }

    /// Writes what the loop's group holds so far, so that this operation sees it.
    pub fn flush(&mut self) {
        if let Some(g) = &mut self.group {
            g.flush(&self.engine.store);
        }
    }

    /// Before a statement that must see the earlier ones of its own command.
    pub fn flush_own(&mut self) {
        if self.staged {
            self.flush();
        }
    }
}
