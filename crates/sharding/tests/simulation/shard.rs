//! A shard: documents, its ownership, the outcomes of retryable writes, and prepared transactions; all
//! in a log that a majority has after a while.
//!
//! Its decisions are the crate's: [`standing`], [`database_standing`], the commands of [`Ownership`] and
//! [`DatabasePrimary`], [`part::outcome`]. What the executor and the sessions do around them is modelled: gates, key
//! locks, records of sessions.

use crate::documents::Turn;
use crate::history::{History, Planted};
use crate::names::{Ns, SHARDED, VIEWS, ns_of};
use crate::replicated::{Mark, Replicated, State};
use crate::runtime::{Process, Sim};
use crate::transactions::{Memory, Prepared, Txn};
use bson::doc;
use query::expr::ParseEnv;
use query::filter::Filter;
use sharding::two_phase::Shard as Name;
use sharding::{
    DatabasePrimary, DbVersion, Ownership, Place, PlaceRange, Received, ShardKey, Standing,
    UnderWay, Version, database_standing, standing,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
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

    /// Of a document of the collection that is sharded.
    pub fn of(&self, id: u32) -> &Place {
        &self.0[key_of(id) as usize]
    }

    /// Whether a document lies in a range of a collection. Others than the one that is sharded move
    /// whole.
    pub fn contains(&self, ns: Ns, range: &PlaceRange, id: u32) -> bool {
        ns_of(id) == ns && (ns != SHARDED || range.contains(self.of(id)))
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
    Own(Ns, Box<Ownership>),
    DatabasePrimary(Box<DatabasePrimary>),
    Create(Ns),
    /// A collection, and all that is in it.
    Drop(Ns),
    Session(u32, Record),
    Prepare(Txn, Prepared),
    Unprepare(Txn),
    Decided(Txn, Vec<Name>),
    Forget(Txn),
    /// States may have been pinned up to this time.
    Reserve(u64),
}

#[derive(Clone, Default)]
pub struct Stored {
    pub documents: BTreeMap<u32, Document>,
    /// Collections that are there.
    pub collections: BTreeSet<Ns>,
    pub ownership: BTreeMap<Ns, Rc<Ownership>>,
    pub database_primary: Option<Rc<DatabasePrimary>>,
    pub sessions: BTreeMap<u32, Record>,
    pub prepared: BTreeMap<Txn, Prepared>,
    pub decisions: BTreeMap<Txn, Vec<Name>>,
    pub reserved: u64,
}

impl State for Stored {
    type Entry = Vec<Change>;
    fn apply(&mut self, entry: &Vec<Change>, _: u64) {
        for change in entry.iter().cloned() {
            match change {
                Change::Put(d) => {
                    self.collections.insert(ns_of(d.id));
                    self.documents.insert(d.id, d);
                }
                Change::Remove(id) => drop(self.documents.remove(&id)),
                Change::Own(ns, known) => drop(self.ownership.insert(ns, Rc::new(*known))),
                Change::DatabasePrimary(known) => self.database_primary = Some(Rc::new(*known)),
                Change::Create(ns) => drop(self.collections.insert(ns)),
                Change::Drop(ns) => {
                    self.collections.remove(&ns);
                    self.documents.retain(|id, _| ns_of(*id) != ns);
                }
                Change::Session(id, record) => drop(self.sessions.insert(id, record)),
                Change::Prepare(txn, prepared) => drop(self.prepared.insert(txn, prepared)),
                Change::Unprepare(txn) => drop(self.prepared.remove(&txn)),
                Change::Decided(txn, others) => drop(self.decisions.insert(txn, others)),
                Change::Forget(txn) => drop(self.decisions.remove(&txn)),
                Change::Reserve(time) => self.reserved = self.reserved.max(time),
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
        of_database: bool,
    },
    /// It has changed nothing, and may be asked again.
    Again,
    /// It will not.
    Never(String),
}

pub type Reply<T> = Result<T, Refusal>;

/// What a retryable write does, or a command that changes a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Insert(u32),
    Add(u32),
    Delete(u32),
    /// A view is what it has become at last; done twice, it is done once.
    Define(u32, i64),
    Undefine(u32),
}

impl Op {
    pub fn id(self) -> u32 {
        match self {
            Op::Insert(id) | Op::Add(id) | Op::Delete(id) => id,
            Op::Define(id, _) | Op::Undefine(id) => id,
        }
    }
}

/// What a router believes: the version of a collection's part, and of the database where that says that
/// the collection is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    pub version: Version,
    pub database_primary: Option<DbVersion>,
}

impl From<Version> for Belief {
    fn from(version: Version) -> Belief {
        let database_primary = None;
        Belief {
            version,
            database_primary,
        }
    }
}

/// Behind a gate are the writes to a collection, or to what of the database is not sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Behind {
    Collection(Ns),
    Database,
}

#[derive(Default)]
pub struct Door {
    inside: Rc<Cell<u32>>,
    /// The gate waits for those inside.
    closed: bool,
}

/// Held by a writer until it is done.
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
    shown: RefCell<BTreeMap<Ns, (Vec<PlaceRange>, Filter)>>,
}

/// How long what movers have sent is waited for.
const MOVERS_DRAIN: u64 = 5000;

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
            collections: BTreeSet::from([SHARDED]),
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

    pub fn known(&self, ns: Ns) -> Option<Rc<Ownership>> {
        self.set.borrow().latest.ownership.get(&ns).cloned()
    }

    pub fn database_primary(&self) -> Option<Rc<DatabasePrimary>> {
        self.set.borrow().latest.database_primary.clone()
    }

    pub fn append(&self, entry: Vec<Change>) -> Mark {
        let learns = |c: &Change| match c {
            Change::Own(ns, _) => Some((*ns, self.known(*ns))),
            _ => None,
        };
        let before: Vec<_> = entry.iter().filter_map(learns).collect();
        let mark = self.set.borrow_mut().append(entry);
        for (ns, before) in before {
            let now = self.known(ns).expect("it was learned");
            if !self.reads_the_past(before.as_deref(), &now) {
                let now = self.sim.now();
                self.memory.borrow_mut().changed.insert(ns, now);
            }
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
            of_database: false,
        }
    }

    /// Enters the gate; `None` while it is being drained.
    pub fn enter(&self, behind: Behind) -> Option<Gate> {
        let mut memory = self.memory.borrow_mut();
        let door = memory.doors.entry(behind).or_default();
        if door.closed {
            return None;
        }
        door.inside.set(door.inside.get() + 1);
        Some(Gate(door.inside.clone()))
    }

    /// Waits at most `millis` for those behind a gate; whether all are done.
    pub async fn drain(&self, behind: Behind, millis: u64) -> bool {
        let close = |closed| {
            let mut memory = self.memory.borrow_mut();
            memory.doors.entry(behind).or_default().closed = closed;
        };
        let inside = || self.memory.borrow().doors[&behind].inside.get();
        close(true);
        let until = self.sim.now() + millis;
        while inside() > 0 && self.sim.now() < until {
            self.sim.sleep(3).await;
        }
        close(false);
        inside() == 0
    }

    fn movers(&self, ns: Ns) -> Rc<RefCell<UnderWay>> {
        let mut memory = self.memory.borrow_mut();
        memory.movers.entry(ns).or_default().clone()
    }

    /// For what movers send.
    pub fn enter_mover(&self, by: &Turn) -> MoverGate {
        let movers = self.movers(by.ns);
        let number = movers.borrow_mut().enter(Some(by.range.clone()));
        MoverGate { movers, number }
    }

    /// Waits until what they have sent of a range so far is done.
    pub async fn drain_movers(&self, ns: Ns, range: PlaceRange) -> Reply<()> {
        let movers = self.movers(ns);
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
    pub fn admit(&self, ns: Ns, belief: Belief) -> Reply<()> {
        if let Some(database_primary) = belief.database_primary {
            self.admit_database(database_primary)?;
        }
        let known = self.known(ns);
        match standing(known.as_deref(), Received::Version(belief.version)) {
            Standing::Serve { .. } => Ok(()),
            Standing::Stale if self.history.has(Planted::VersionUnchecked) => Ok(()),
            Standing::Stale => Err(self.refusal(false)),
            Standing::Fenced => Err(self.refusal(true)),
        }
    }

    fn admit_database(&self, database_primary: DbVersion) -> Reply<()> {
        let fenced = match database_standing(self.database_primary().as_deref(), database_primary) {
            Standing::Serve { .. } => return Ok(()),
            Standing::Stale if self.history.has(Planted::DatabaseUnchecked) => return Ok(()),
            Standing::Stale => false,
            Standing::Fenced => true,
        };
        Err(Refusal::Stale {
            shard: self.name.clone(),
            fenced,
            of_database: true,
        })
    }

    pub fn writer(&self, ns: Ns, belief: Belief) -> Reply<Vec<Gate>> {
        let mut behind = vec![Behind::Collection(ns)];
        behind.extend(belief.database_primary.map(|_| Behind::Database));
        let gates = behind.into_iter().map(|behind| self.enter(behind));
        let gates: Option<Vec<Gate>> = gates.collect();
        let gates = gates.ok_or_else(|| self.refusal(true))?;
        self.admit(ns, belief)?;
        Ok(gates)
    }

    /// Whether routers see a document.
    pub fn shows(&self, id: u32) -> bool {
        self.shows_to(self.known(ns_of(id)).as_deref(), id)
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
        let fresh = shown.get(&ns_of(id)).filter(|(of, _)| *of == known.orphans);
        if fresh.is_none() {
            let filter = Filter::parse(known.shown().as_doc(), &ParseEnv::new());
            let filter = filter.expect("a filter");
            shown.insert(ns_of(id), (known.orphans.clone(), filter));
        }
        let document = doc! {"_id": id as i32, "k": key_of(id) as i32};
        let matches = shown[&ns_of(id)].1.matches(document.as_doc());
        matches.expect("it matches or not")
    }

    /// A retryable write of a session.
    pub async fn write(
        self: Rc<Shard>,
        belief: Belief,
        time: u64,
        (session, number): (u32, i64),
        op: Op,
    ) -> Reply<u32> {
        self.hear(time);
        let gates = self.writer(ns_of(op.id()), belief)?;
        self.pause(if self.sim.one_in(30) { 300 } else { 4 }).await;
        let (done, mark) = self.execute(session, number, op)?;
        drop(gates);
        self.majority(mark).await;
        Ok(done)
    }

    fn execute(&self, session: u32, number: i64, op: Op) -> Reply<(u32, Mark)> {
        let id = op.id();
        if let Op::Define(..) | Op::Undefine(_) = op {
            let change = match op {
                Op::Define(_, value) => Change::Put(Document { id, value }),
                _ => Change::Remove(id),
            };
            return Ok((1, self.append(vec![change])));
        }
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
            (_, Some(_)) => Some(Change::Remove(id)),
            (_, None) => None,
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

    /// All of a collection that routers see, or all views. Between the comparison of versions and the
    /// view time may pass.
    pub async fn find(
        self: Rc<Shard>,
        ns: Ns,
        belief: Belief,
        time: u64,
    ) -> Reply<Vec<(u32, i64)>> {
        self.hear(time);
        self.admit(ns, belief)?;
        let admitted = self.known(ns);
        self.pause(if self.sim.one_in(20) { 300 } else { 4 }).await;
        let found = {
            let latest = &self.set.borrow().latest;
            let seen = latest.documents.values().filter(|d| ns_of(d.id) == ns);
            let seen = seen.filter(|d| self.shows_to(admitted.as_deref(), d.id));
            seen.map(|d| (d.id, d.value)).collect()
        };
        let now = self.known(ns);
        if let Some(database_primary) = belief.database_primary.filter(|_| ns == VIEWS)
            && !self.history.has(Planted::ViewUnchecked)
        {
            self.admit_database(database_primary)?;
        }
        match Ownership::still_serves(admitted.as_deref(), now.as_deref()) {
            false if !self.history.has(Planted::ViewUnchecked) => Err(self.refusal(true)),
            _ => Ok(found),
        }
    }
}

pub fn never(stop: errors::Stop) -> Refusal {
    Refusal::Never(stop.into_error().to_string())
}
