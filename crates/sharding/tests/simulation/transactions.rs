//! A shard's part in transactions: open ones in memory, prepared ones in the log, states that are kept
//! for snapshots. The states are kept by the shards' own [`SnapshotHistory`]: a task that waits for its
//! lock may find changes by others.

use crate::history::Planted;
use crate::names::{Ns, SHARDED, ns_of};
use crate::replicated::Mark;
use crate::runtime::Sim;
use crate::shard::{Behind, Change, Document, Door, Gate, Record, Refusal, Reply, Shard, Stored};
use sharding::snapshot_history::{Exclusive, Kept, SnapshotHistory, State as Pinned};
use sharding::two_phase::part::{self, Known, Phase};
use sharding::two_phase::{CommitAnswer, CommitRequest, Shard as Name};
use sharding::{UnderWay, Version, snapshot};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How far past a time that is pinned the log says that others may be.
const RESERVED: u64 = 200 << 8;

/// A session, and the number of a transaction in it.
pub type Txn = (u32, i64);

#[derive(Clone, Debug)]
pub struct Prepared {
    pub recovery: Name,
    pub writes: Vec<Document>,
}

struct Open {
    snapshot: BTreeMap<u32, Document>,
    taken: u64,
    writes: BTreeMap<u32, Document>,
    _gates: Vec<Gate>,
}

/// A state that is kept.
#[derive(Clone)]
pub struct Snapshot {
    taken: u64,
    stored: Rc<Stored>,
}

impl Pinned for Snapshot {
    type Id = Txn;
    type Parts = Vec<Document>;

    fn is_whole(&self) -> errors::Result<bool> {
        Ok(self.stored.prepared.is_empty())
    }

    fn parts(&self, ids: &[Txn]) -> errors::Result<Vec<Document>> {
        let writes = |txn| self.stored.prepared.get(txn).map(|p| p.writes.clone());
        Ok(ids.iter().filter_map(writes).flatten().collect())
    }

    fn showing(&self, parts: Vec<Document>) -> errors::Result<Snapshot> {
        let mut stored = Stored::clone(&self.stored);
        stored
            .documents
            .extend(parts.into_iter().map(|d| (d.id, d)));
        let (taken, stored) = (self.taken, Rc::new(stored));
        Ok(Snapshot { taken, stored })
    }
}

/// A lock that is waited for, so that others may be before.
pub struct Locked {
    sim: Rc<Sim>,
    kept: RefCell<Kept<Snapshot>>,
}

impl Exclusive<Kept<Snapshot>> for Locked {
    async fn with<R>(&self, work: impl FnOnce(&mut Kept<Snapshot>) -> R) -> R {
        if self.sim.one_in(3) {
            self.sim.sleep(self.sim.below(4)).await;
        }
        work(&mut self.kept.borrow_mut())
    }
}

type Moments = Rc<SnapshotHistory<Locked>>;

/// What goes with the process.
#[derive(Default)]
pub struct Memory {
    pub doors: BTreeMap<Behind, Door>,
    pub movers: BTreeMap<Ns, Rc<RefCell<UnderWay>>>,
    pub changing: bool,
    /// When the ranges of a collection became other ones.
    pub changed: BTreeMap<Ns, u64>,
    open: BTreeMap<Txn, Open>,
    snapshots: Option<Moments>,
}

fn no_such() -> Refusal {
    Refusal::Never("no such transaction".into())
}

fn conflict() -> Refusal {
    Refusal::Never("write conflict".into())
}

impl Shard {
    pub fn is_locked(&self, id: u32, by: Option<Txn>) -> bool {
        let memory = self.memory.borrow();
        let mut open = memory.open.iter();
        let prepared = &self.set.borrow().latest.prepared;
        let waits = |p: &Prepared| p.writes.iter().any(|d| d.id == id);
        open.any(|(txn, open)| Some(*txn) != by && open.writes.contains_key(&id))
            || prepared.values().any(waits) && !self.history.has(Planted::PreparedReleased)
    }

    fn newest(&self, session: u32) -> i64 {
        let set = self.set.borrow();
        set.latest.sessions.get(&session).map_or(0, |r| r.number)
    }

    fn begin(&self, txn: Txn) -> Reply<()> {
        if self.memory.borrow().open.contains_key(&txn) {
            return Ok(());
        }
        let older = |t: &Txn| t.0 == txn.0 && t.1 < txn.1;
        // A session goes on when what it has prepared is decided.
        if self.set.borrow().latest.prepared.keys().any(older) {
            return Err(conflict());
        }
        if self.newest(txn.0) >= txn.1 {
            return Err(no_such());
        }
        self.memory.borrow_mut().open.retain(|t, _| t.0 != txn.0);
        let open = Open {
            snapshot: self.set.borrow().latest.documents.clone(),
            taken: self.sim.now(),
            writes: BTreeMap::new(),
            _gates: Vec::new(),
        };
        self.memory.borrow_mut().open.insert(txn, open);
        Ok(())
    }

    /// A statement of a transaction: adds to an account. One that fails ends it here.
    pub async fn statement(
        self: Rc<Shard>,
        version: Version,
        time: u64,
        (txn, starts): (Txn, bool),
        (id, n): (u32, i64),
    ) -> Reply<()> {
        self.hear(time);
        let gates = self.writer(SHARDED, version.into())?;
        self.pause(3).await;
        let done = self.add(gates, txn, starts, id, n);
        if done.is_err() {
            self.memory.borrow_mut().open.remove(&txn);
        }
        done
    }

    fn add(&self, gates: Vec<Gate>, txn: Txn, starts: bool, id: u32, n: i64) -> Reply<()> {
        match starts {
            true => self.begin(txn)?,
            false if !self.memory.borrow().open.contains_key(&txn) => return Err(no_such()),
            false => {}
        }
        if self.is_locked(id, Some(txn)) {
            return Err(conflict());
        }
        let shown = self.shows(id);
        let mut memory = self.memory.borrow_mut();
        let changed = memory.changed.get(&SHARDED).copied();
        let open = memory.open.get_mut(&txn).ok_or_else(no_such)?;
        if changed.is_some_and(|changed| changed >= open.taken) {
            return Err(Refusal::Never("migration conflict".into()));
        }
        let newest = self.set.borrow().latest.documents.get(&id).cloned();
        if newest != open.snapshot.get(&id).cloned() {
            return Err(conflict());
        }
        let old = open.writes.get(&id).cloned().or(newest.filter(|_| shown));
        let Some(old) = old else {
            self.history.wrong(format!("a transaction misses {id}"));
            return Err(conflict());
        };
        let value = old.value + n;
        open.writes.insert(id, Document { id, value });
        open._gates.extend(gates);
        Ok(())
    }

    pub fn abort(&self, txn: Txn) {
        self.memory.borrow_mut().open.remove(&txn);
    }

    fn committed(&self, (session, number): Txn) -> Change {
        let record = Record {
            number,
            outcome: None,
            committed: true,
        };
        Change::Session(session, record)
    }

    /// What a coordinator asks.
    pub async fn hear_ask(
        self: Rc<Shard>,
        txn: Txn,
        time: u64,
        recovery: Name,
        ask: CommitRequest,
    ) -> CommitAnswer {
        let decides = matches!(ask, CommitRequest::Decide(_));
        if !(decides && self.history.has(Planted::DecisionEarly)) {
            self.hear(time);
        }
        let (answer, mark) = match ask {
            CommitRequest::EndRead => (CommitAnswer::Yes, None),
            CommitRequest::Prepare => self.prepare(txn, recovery),
            CommitRequest::Decide(others) => self.decide(txn, Some(others)),
            CommitRequest::Outcome => self.outcome(txn),
            CommitRequest::Commit => self.end(txn, true),
            CommitRequest::Abort => self.end(txn, false),
            CommitRequest::Forget => {
                let mark = self.append(vec![Change::Forget(txn)]);
                (CommitAnswer::Yes, Some(mark))
            }
        };
        let last = self.set.borrow().last();
        if let Some(mark) = mark.or(last) {
            self.majority(mark).await;
        }
        answer
    }

    fn prepare(&self, txn: Txn, recovery: Name) -> (CommitAnswer, Option<Mark>) {
        if self.set.borrow().latest.prepared.contains_key(&txn) {
            return (CommitAnswer::Yes, None);
        }
        let Some(open) = self.memory.borrow_mut().open.remove(&txn) else {
            return (CommitAnswer::No, None);
        };
        let writes = open.writes.into_values().collect();
        let prepared = Prepared { recovery, writes };
        (
            CommitAnswer::Yes,
            Some(self.append(vec![Change::Prepare(txn, prepared)])),
        )
    }

    /// The commit of the shard that decides, or of the only one that was written to.
    pub fn decide(&self, txn: Txn, others: Option<Vec<Name>>) -> (CommitAnswer, Option<Mark>) {
        let Some(open) = self.memory.borrow_mut().open.remove(&txn) else {
            let set = self.set.borrow();
            let own = set.latest.sessions.get(&txn.0);
            return match own.is_some_and(|r| r.number == txn.1 && r.committed) {
                true => (CommitAnswer::Yes, None),
                false => (CommitAnswer::Lost, None),
            };
        };
        let mut entry: Vec<Change> = open.writes.into_values().map(Change::Put).collect();
        entry.push(self.committed(txn));
        if let Some(others) = others
            && !self.history.has(Planted::DecisionForgotten)
        {
            entry.push(Change::Decided(txn, others));
        }
        (CommitAnswer::Yes, Some(self.append(entry)))
    }

    fn end(&self, txn: Txn, commits: bool) -> (CommitAnswer, Option<Mark>) {
        let prepared = self.set.borrow().latest.prepared.get(&txn).cloned();
        let Some(prepared) = prepared else {
            if !commits {
                self.abort(txn);
            }
            return (CommitAnswer::Yes, None);
        };
        let mut entry = vec![Change::Unprepare(txn)];
        if commits {
            entry.extend(prepared.writes.into_iter().map(Change::Put));
            if self.newest(txn.0) <= txn.1 {
                entry.push(self.committed(txn));
            }
        }
        (CommitAnswer::Yes, Some(self.append(entry)))
    }

    /// What became of a transaction that this shard decides.
    fn outcome(&self, txn: Txn) -> (CommitAnswer, Option<Mark>) {
        let (decision, record, prepared) = {
            let latest = &self.set.borrow().latest;
            let record = latest.sessions.get(&txn.0).cloned();
            let decision = latest.decisions.get(&txn).cloned();
            (decision, record, latest.prepared.contains_key(&txn))
        };
        let newest_open = self
            .memory
            .borrow()
            .open
            .keys()
            .filter(|t| t.0 == txn.0)
            .map(|t| t.1)
            .max();
        let newest = record
            .as_ref()
            .map_or(0, |r| r.number)
            .max(newest_open.unwrap_or(0));
        let phase = match &record {
            _ if prepared => Phase::Prepared,
            Some(r) if r.number == txn.1 && r.committed => Phase::Committed,
            Some(r) if r.number == txn.1 && r.outcome.is_some() => Phase::Written,
            Some(r) if r.number == txn.1 => Phase::Aborted,
            _ => Phase::Open,
        };
        match part::outcome(decision.is_some(), txn.1, newest, phase) {
            Known::Committed => (CommitAnswer::Committed(decision.unwrap_or_default()), None),
            Known::Aborted | Known::Past => (CommitAnswer::Aborted, None),
            Known::Another => (CommitAnswer::Lost, None),
            Known::Ends => {
                self.abort(txn);
                let record = Record {
                    number: txn.1,
                    outcome: None,
                    committed: false,
                };
                let mark = self.append(vec![Change::Session(txn.0, record)]);
                (CommitAnswer::Aborted, Some(mark))
            }
        }
    }

    /// `_pandoPrepared`: transactions in doubt here, each with its coordinator and the shards to tell.
    pub async fn left(self: Rc<Shard>) -> Vec<(Txn, Name, Vec<Name>)> {
        let latest = &self.set.borrow().latest;
        let prepared = latest.prepared.iter();
        let prepared = prepared.map(|(t, p)| (*t, p.recovery.clone(), vec![self.name.clone()]));
        let decisions = latest.decisions.iter();
        let decisions = decisions.map(|(t, others)| (*t, self.name.clone(), others.clone()));
        prepared.chain(decisions).collect()
    }

    /// The states that this process keeps.
    fn snapshots(&self) -> Moments {
        let new = || {
            let (sim, kept) = (self.sim.clone(), RefCell::default());
            Rc::new(SnapshotHistory(Locked { sim, kept }))
        };
        self.memory
            .borrow_mut()
            .snapshots
            .get_or_insert_with(new)
            .clone()
    }

    /// `_pandoSnapshot`
    pub async fn snapshot(
        self: Rc<Shard>,
        at: u64,
        ask: snapshot::Ask<Txn>,
    ) -> Option<snapshot::Answer<Txn>> {
        let snapshots = self.snapshots();
        let answer = match ask {
            snapshot::Ask::Pin => self.pin(&snapshots, at).await,
            snapshot::Ask::Committed(txns) => {
                let snapshot: Snapshot = snapshots.pinned_at(at).await?;
                let decisions = &snapshot.stored.decisions;
                let had = txns.iter().map(|t| decisions.contains_key(t)).collect();
                snapshot::Answer::Committed(had)
            }
            snapshot::Ask::Include(txns) => {
                let settled = snapshots.settle::<Snapshot>(at, txns).await;
                settled.expect("all of it is there")?;
                snapshot::Answer::Included
            }
        };
        // A shown state must not be rolled back.
        let last = self.set.borrow().last();
        if let Some(mark) = last {
            self.majority(mark).await;
        }
        Some(answer)
    }

    /// The state of now, where nothing is later than `at`; from then on nothing is written before.
    fn state_at(&self, at: u64) -> Option<Snapshot> {
        let mut set = self.set.borrow_mut();
        if set.last_ts() > at {
            return None;
        }
        set.hear(at);
        let (taken, stored) = (self.sim.now(), Rc::new(set.latest.clone()));
        Some(Snapshot { taken, stored })
    }

    async fn pin(&self, snapshots: &Moments, at: u64) -> snapshot::Answer<Txn> {
        if self.history.has(Planted::SnapshotPinnedAnew) && self.state_at(at).is_some() {
            snapshots.forget::<Snapshot>(Duration::MAX).await;
        }
        let pinned = snapshots.pin(at, self.sim.clock(), || Ok(self.state_at(at)));
        let Some(snapshot) = pinned.await.expect("all of it is there") else {
            return snapshot::Answer::Late(self.set.borrow().last_ts());
        };
        self.reserve(at);
        let prepared = snapshot.stored.prepared.iter();
        let prepared = prepared.map(|(t, p)| (p.recovery.clone(), *t)).collect();
        match self.history.has(Planted::SnapshotUnprepared) {
            true => snapshot::Answer::Pinned(Vec::new()),
            false => snapshot::Answer::Pinned(prepared),
        }
    }

    /// Has no later primary write at this time or before.
    fn reserve(&self, at: u64) {
        if self.set.borrow().latest.reserved < at {
            self.append(vec![Change::Reserve(at + RESERVED)]);
        }
    }

    /// All that routers see of a state that is kept. It fails where the ranges have changed since.
    pub async fn find_at(self: Rc<Shard>, version: Version, at: u64) -> Reply<Vec<(u32, i64)>> {
        let snapshots = self.snapshots();
        // Of a state that is pinned anew it is not known yet what it shows.
        let any = self.history.has(Planted::SnapshotPinnedAnew)
            || self.history.has(Planted::SnapshotUnprepared);
        let snapshot: Option<Snapshot> = match any {
            true => snapshots.pinned_at(at).await,
            false => snapshots.at(at).await,
        };
        self.admit(SHARDED, version.into())?;
        let snapshot = snapshot.ok_or_else(no_such)?;
        let memory = self.memory.borrow();
        let changed = memory.changed.get(&SHARDED);
        if changed.is_some_and(|changed| *changed >= snapshot.taken) {
            return Err(Refusal::Never("migration conflict".into()));
        }
        let seen = snapshot
            .stored
            .documents
            .values()
            .filter(|d| ns_of(d.id) == SHARDED && self.shows(d.id));
        Ok(seen.map(|d| (d.id, d.value)).collect())
    }

    /// Its process has died, and another member leads.
    pub fn fail_over(&self) {
        *self.memory.borrow_mut() = Memory::default();
        let mut set = self.set.borrow_mut();
        set.elect();
        let reserved = set.latest.reserved;
        set.hear(reserved);
        if self.history.has(Planted::PromiseInMemory) {
            set.latest.prepared.clear();
        }
    }
}
