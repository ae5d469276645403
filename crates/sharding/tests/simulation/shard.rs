//! A shard: documents, what it knows of its part, the outcomes of retryable writes, and what is
//! prepared; all in a log that a majority has after a while.
//!
//! Its decisions are the crate's: [`standing`], [`Ownership`]'s commands, [`part::outcome`]. What the
//! executor and the sessions do around them is modelled: gates, key locks, records of sessions.

use crate::config::{NS, entry};
use crate::history::{History, Planted};
use crate::replicated::{Mark, Replicated, State};
use crate::runtime::{Process, Sim};
use crate::transactions::{Memory, Prepared, Txn};
use bson::doc;
use query::expr::ParseEnv;
use query::filter::Filter;
use sharding::two_phase::Shard as Name;
use sharding::{
    Fence, Ownership, Place, PlaceRange, Received, ShardKey, Standing, UnderWay, Version, standing,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Distinct values of the shard key.
pub const KEYS: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub id: u32,
    pub value: i64,
}

/// A document's shard key follows from its `_id`.
pub fn key_of(id: u32) -> u32 {
    id.wrapping_mul(37) % KEYS
}

/// The places of all keys.
pub struct Places(Vec<Place>);

impl Places {
    pub fn new(key: &ShardKey) -> Places {
        let place = |k: u32| {
            key.place_of(doc! {"k": k as i32}.as_doc())
                .expect("a place")
        };
        Places((0..KEYS).map(place).collect())
    }

    pub fn of(&self, id: u32) -> &Place {
        &self.0[key_of(id) as usize]
    }
}

/// What a session has done last.
#[derive(Clone, Debug)]
pub struct Record {
    pub number: i64,
    /// Of a retryable write; `None` of a transaction.
    pub outcome: Option<u32>,
    pub committed: bool,
}

#[derive(Clone, Debug)]
pub enum Change {
    Put(Document),
    Remove(u32),
    Own(Box<Ownership>),
    Session(u32, Record),
    Prepare(Txn, Prepared),
    Unprepare(Txn),
    Decided(Txn, Vec<Name>),
    Forget(Txn),
}

#[derive(Clone, Default)]
pub struct Stored {
    pub documents: BTreeMap<u32, Document>,
    pub ownership: Option<Rc<Ownership>>,
    pub sessions: BTreeMap<u32, Record>,
    pub prepared: BTreeMap<Txn, Prepared>,
    pub decisions: BTreeMap<Txn, Vec<Name>>,
}

impl State for Stored {
    type Entry = Vec<Change>;
    fn apply(&mut self, entry: &Vec<Change>, _: u64) {
        for change in entry.iter().cloned() {
            match change {
                Change::Put(d) => drop(self.documents.insert(d.id, d)),
                Change::Remove(id) => drop(self.documents.remove(&id)),
                Change::Own(known) => self.ownership = Some(Rc::new(*known)),
                Change::Session(id, record) => drop(self.sessions.insert(id, record)),
                Change::Prepare(txn, prepared) => drop(self.prepared.insert(txn, prepared)),
                Change::Unprepare(txn) => drop(self.prepared.remove(&txn)),
                Change::Decided(txn, others) => drop(self.decisions.insert(txn, others)),
                Change::Forget(txn) => drop(self.decisions.remove(&txn)),
            }
        }
    }
}

/// Why a shard does not do what it is asked.
#[derive(Clone, Debug)]
pub enum Refusal {
    Stale {
        shard: Name,
        fenced: bool,
    },
    /// It has changed nothing, and may be asked again.
    Again,
    /// It will not.
    Never(String),
}

pub type Reply<T> = Result<T, Refusal>;

/// What a retryable write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Insert(u32),
    Add(u32),
    Delete(u32),
}

impl Op {
    pub fn id(self) -> u32 {
        match self {
            Op::Insert(id) | Op::Add(id) | Op::Delete(id) => id,
        }
    }
}

/// Held by who writes until it is done.
pub struct Gate(Rc<Cell<u32>>);

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

pub struct MoverGate {
    movers: Rc<RefCell<UnderWay>>,
    number: u64,
}

impl Drop for MoverGate {
    fn drop(&mut self) {
        self.movers.borrow_mut().leave(self.number);
    }
}

pub struct Shard {
    pub name: Name,
    pub process: Process,
    pub sim: Rc<Sim>,
    pub history: Rc<History>,
    pub places: Rc<Places>,
    pub set: RefCell<Replicated<Stored>>,
    pub memory: RefCell<Memory>,
    shown: RefCell<(Vec<PlaceRange>, Option<Filter>)>,
}

/// Documents that are removed before a rest.
const CLEANED_AT_ONCE: usize = 3;
/// How long what movers have sent is waited for.
const MOVERS_DRAIN: u64 = 5000;
/// How long writes that are under way are waited for.
const DRAIN: u64 = 500;

impl Shard {
    pub fn new(
        sim: Rc<Sim>,
        process: Process,
        name: &str,
        history: Rc<History>,
        places: Rc<Places>,
        documents: Vec<Document>,
    ) -> Rc<Shard> {
        let stored = Stored {
            documents: documents.into_iter().map(|d| (d.id, d)).collect(),
            ..Stored::default()
        };
        Rc::new(Shard {
            name: name.into(),
            process,
            set: RefCell::new(Replicated::new(sim.clone(), stored)),
            sim,
            history,
            places,
            memory: RefCell::default(),
            shown: RefCell::default(),
        })
    }

    pub fn known(&self) -> Option<Rc<Ownership>> {
        self.set.borrow().latest.ownership.clone()
    }

    pub fn append(&self, entry: Vec<Change>) -> Mark {
        let before = self.known();
        let mark = self.set.borrow_mut().append(entry);
        if let Some(now) = self.known()
            && !self.reads_the_past(before.as_deref(), &now)
        {
            self.memory.borrow_mut().changed = Some(self.sim.now());
        }
        mark
    }

    fn reads_the_past(&self, before: Option<&Ownership>, now: &Ownership) -> bool {
        match self.history.has(Planted::HiddenShownLater) {
            true => before.is_some_and(|b| b.version.major() == now.version.major()),
            false => Ownership::reads_the_past(before, now),
        }
    }

    pub async fn majority(&self, mark: Mark) {
        self.wait_until(mark.durable_at()).await;
        assert!(self.set.borrow().has(mark), "who waits is dead by then");
    }

    pub async fn wait_until(&self, time: u64) {
        self.sim.sleep(time.saturating_sub(self.sim.now())).await;
    }

    pub async fn pause(&self, millis: u64) {
        let millis = self.sim.below(millis);
        self.sim.sleep(millis).await;
    }

    pub fn hear(&self, time: u64) {
        self.set.borrow_mut().hear(time);
    }

    pub fn time(&self) -> u64 {
        self.set.borrow().last_ts()
    }

    fn refusal(&self, fenced: bool) -> Refusal {
        Refusal::Stale {
            shard: self.name.clone(),
            fenced,
        }
    }

    /// The gate, while nobody waits for writes to end.
    pub fn enter(&self) -> Option<Gate> {
        let memory = self.memory.borrow();
        if memory.draining {
            return None;
        }
        memory.gates.set(memory.gates.get() + 1);
        Some(Gate(memory.gates.clone()))
    }

    /// For what movers send.
    pub fn enter_mover(&self, range: &PlaceRange) -> MoverGate {
        let movers = self.memory.borrow().movers.clone();
        let number = movers.borrow_mut().enter(Some(range.clone()));
        MoverGate { movers, number }
    }

    /// Waits until what they have sent of a range so far is done.
    async fn drain_movers(&self, range: PlaceRange) -> Reply<()> {
        let movers = self.memory.borrow().movers.clone();
        let until = self.sim.now() + MOVERS_DRAIN;
        let awaited = movers.borrow().meeting(&[range]);
        let passes = self.history.has(Planted::MoversPassed);
        while !passes && movers.borrow().has_any(&awaited) {
            if self.sim.now() >= until {
                return Err(Refusal::Never("what was sent is not done yet".into()));
            }
            self.sim.sleep(3).await;
        }
        Ok(())
    }

    /// Compares versions.
    pub fn admit(&self, version: Version) -> Reply<()> {
        let known = self.known();
        match standing(known.as_deref(), Received::Version(version)) {
            Standing::Serve { .. } => Ok(()),
            Standing::Stale if self.history.has(Planted::VersionUnchecked) => Ok(()),
            Standing::Stale => Err(self.refusal(false)),
            Standing::Fenced => Err(self.refusal(true)),
        }
    }

    pub fn writer(&self, version: Version) -> Reply<Gate> {
        let gate = self.enter().ok_or_else(|| self.refusal(true))?;
        self.admit(version)?;
        Ok(gate)
    }

    /// Whether routers see a document.
    pub fn shows(&self, id: u32) -> bool {
        self.shows_to(self.known().as_deref(), id)
    }

    /// The same for a command that was admitted when this was known.
    fn shows_to(&self, known: Option<&Ownership>, id: u32) -> bool {
        let Some(known) = known.filter(|k| !k.orphans.is_empty()) else {
            return true;
        };
        if self.history.has(Planted::OrphansShown) {
            return true;
        }
        let mut shown = self.shown.borrow_mut();
        if shown.0 != known.orphans || shown.1.is_none() {
            let filter = Filter::parse(known.shown().as_doc(), &ParseEnv::new());
            *shown = (known.orphans.clone(), filter.ok());
        }
        let document = doc! {"_id": id as i32, "k": key_of(id) as i32};
        let filter = shown.1.as_ref().expect("a filter");
        filter
            .matches(document.as_doc())
            .expect("it matches or not")
    }

    /// A retryable write of a session.
    pub async fn write(
        self: Rc<Shard>,
        version: Version,
        time: u64,
        (session, number): (u32, i64),
        op: Op,
    ) -> Reply<u32> {
        self.hear(time);
        let gate = self.writer(version)?;
        self.pause(4).await;
        let (done, mark) = self.execute(session, number, op)?;
        drop(gate);
        self.majority(mark).await;
        Ok(done)
    }

    fn execute(&self, session: u32, number: i64, op: Op) -> Reply<(u32, Mark)> {
        let id = op.id();
        let (record, old) = {
            let latest = &self.set.borrow().latest;
            let old = latest.documents.get(&id).cloned();
            (latest.sessions.get(&session).cloned(), old)
        };
        match record {
            Some(r) if r.number == number => {
                let last = self.set.borrow().last().expect("an entry");
                return Ok((r.outcome.unwrap_or(0), last));
            }
            Some(r) if r.number > number => return Err(Refusal::Never("too old".into())),
            _ => {}
        }
        if self.is_locked(id, None) {
            return Err(Refusal::Again);
        }
        let old = old.filter(|_| self.shows(id));
        let change = match (op, old) {
            (Op::Insert(id), None) => Some(Change::Put(Document { id, value: 0 })),
            (Op::Insert(id), Some(_)) => {
                return Err(Refusal::Never(format!("{id} is there already")));
            }
            (Op::Add(_), Some(old)) => Some(Change::Put(Document {
                value: old.value + 1,
                ..old
            })),
            (Op::Delete(id), Some(_)) => Some(Change::Remove(id)),
            (Op::Add(_) | Op::Delete(_), None) => None,
        };
        let done = u32::from(change.is_some());
        let record = Record {
            number,
            outcome: Some(done),
            committed: false,
        };
        let mut entry = vec![Change::Session(session, record)];
        entry.extend(change);
        Ok((done, self.append(entry)))
    }

    /// All that routers see. Between the comparison of versions and the view time may pass.
    pub async fn find(self: Rc<Shard>, version: Version, time: u64) -> Reply<Vec<(u32, i64)>> {
        self.hear(time);
        self.admit(version)?;
        let admitted = self.known();
        self.pause(if self.sim.one_in(20) { 300 } else { 4 }).await;
        let found = {
            let latest = &self.set.borrow().latest;
            let seen = latest.documents.values();
            let seen = seen.filter(|d| self.shows_to(admitted.as_deref(), d.id));
            seen.map(|d| (d.id, d.value)).collect()
        };
        let now = self.known();
        match Ownership::still_serves(admitted.as_deref(), now.as_deref()) {
            false if !self.history.has(Planted::ViewUnchecked) => Err(self.refusal(true)),
            _ => Ok(found),
        }
    }

    /// `_pandoOwnership`
    pub async fn learn(self: Rc<Shard>, told: Ownership, turn: Option<i64>) -> Reply<()> {
        self.changing().await;
        let known = self.known();
        let turn = turn.map(|t| t as u64);
        let learned = Ownership::told(known.as_deref(), &told, None, turn).map_err(never)?;
        let mark = match learned {
            Some(learned) => Some(self.append(vec![Change::Own(Box::new(learned))])),
            None => self.set.borrow().last(),
        };
        if let Some(mark) = mark {
            self.majority(mark).await;
        }
        Ok(())
    }

    /// One at a time changes what is known.
    async fn changing(&self) {
        while self.memory.borrow().draining || self.memory.borrow().changing {
            self.sim.sleep(3).await;
        }
    }

    /// Waits for the writes that are under way.
    async fn drain(&self) -> bool {
        self.memory.borrow_mut().draining = true;
        let until = self.sim.now() + DRAIN;
        let quiet = loop {
            if self.memory.borrow().gates.get() == 0 {
                break true;
            }
            if self.sim.now() >= until {
                break false;
            }
            self.sim.sleep(3).await;
        };
        self.memory.borrow_mut().draining = false;
        quiet
    }

    async fn is_quiet(&self) -> bool {
        if self.history.has(Planted::GateSkipped) {
            return true;
        }
        if !self.drain().await {
            return false;
        }
        let until = self.sim.now() + DRAIN;
        while !self.set.borrow().latest.prepared.is_empty() {
            if self.history.has(Planted::PreparedPassed) {
                return true;
            }
            if self.sim.now() >= until {
                return false;
            }
            self.sim.sleep(3).await;
        }
        true
    }

    /// `_pandoFence`, raised.
    pub async fn raise(self: Rc<Shard>, fence: Fence, turn: i64) -> Reply<()> {
        self.changing().await;
        let known = self.known().ok_or_else(not_sharded)?;
        let known = known.with_fence(fence, turn as u64).map_err(never)?;
        self.memory.borrow_mut().changing = true;
        let mark = self.append(vec![Change::Own(Box::new(known.clone()))]);
        let quiet = self.is_quiet().await;
        self.memory.borrow_mut().changing = false;
        if !quiet {
            self.append(vec![Change::Own(Box::new(known.without_fence()))]);
            return Err(Refusal::Never("writes have been open for too long".into()));
        }
        self.majority(mark).await;
        Ok(())
    }

    /// `_pandoFence`, lifted.
    pub async fn lift(self: Rc<Shard>, by: String, turn: Option<i64>) -> Reply<()> {
        self.changing().await;
        let Some(known) = self.known() else {
            return Ok(());
        };
        let turn = turn.map_or(known.turn, |t| t as u64);
        if let Some(open) = known.lifted(&by, turn).map_err(never)? {
            let mark = self.append(vec![Change::Own(Box::new(open))]);
            self.majority(mark).await;
        }
        Ok(())
    }

    /// `_pandoReceive`
    pub async fn expect(
        self: Rc<Shard>,
        version: Version,
        incoming: PlaceRange,
        turn: i64,
    ) -> Reply<()> {
        self.changing().await;
        let nothing = Ownership::nothing(NS, entry().key, version);
        let known = self.known();
        let turn = Some(turn as u64);
        let range = incoming.clone();
        let expecting = Ownership::expecting(known.as_deref(), nothing, incoming, turn);
        let mark = self.append(vec![Change::Own(Box::new(expecting.map_err(never)?))]);
        self.drain_movers(range).await?;
        self.majority(mark).await;
        Ok(())
    }

    /// `_pandoClean`
    pub async fn clean(self: Rc<Shard>, gone: PlaceRange, turn: i64, keep: bool) -> Reply<()> {
        self.changing().await;
        let before = self.known().ok_or_else(not_sharded)?;
        let mut known = (*before).clone().heed(turn as u64).map_err(never)?;
        if !keep {
            known = known.closed(std::slice::from_ref(&gone));
        }
        if known != *before {
            self.append(vec![Change::Own(Box::new(known.clone()))]);
        }
        self.drain_movers(gone.clone()).await?;
        // A few at a time, with rests.
        loop {
            self.changing().await;
            let now = self.known().ok_or_else(not_sharded)?;
            if !self.history.has(Planted::CleanGoesOn) {
                if now.turn != known.turn || !now.version.is_same_life(&known.version) {
                    return Err(Refusal::Never("somebody else changes it since".into()));
                }
                now.check_cleans(&gone).map_err(never)?;
            }
            let inside: Vec<u32> = {
                let latest = &self.set.borrow().latest;
                let ids = latest.documents.keys().copied();
                let inside = ids.filter(|id| gone.contains(self.places.of(*id)));
                inside.take(CLEANED_AT_ONCE).collect()
            };
            let is_last = inside.len() < CLEANED_AT_ONCE;
            let mut entry: Vec<Change> = inside.into_iter().map(Change::Remove).collect();
            if is_last && !keep {
                entry.push(Change::Own(Box::new(
                    (*now).clone().cleaned(std::slice::from_ref(&gone)),
                )));
            }
            let mark = self.append(entry);
            if is_last {
                self.majority(mark).await;
                return Ok(());
            }
            self.pause(if self.sim.one_in(4) { 6000 } else { 30 }).await;
        }
    }
}

pub fn never(stop: errors::Stop) -> Refusal {
    Refusal::Never(stop.into_error().to_string())
}

fn not_sharded() -> Refusal {
    Refusal::Never("it is not sharded here".into())
}
