//! A router: what it believes, and requests that it sends until it and the shards agree.

use crate::config::{Config, entry, entry_of};
use crate::history::{History, Planted};
use crate::names::{DB, Ns, SHARDED, name_of, ns_named, ns_of};
use crate::runtime::{Process, Sim, together};
use crate::shard::{Belief, Op, Places, Refusal, Shard};
use crate::transactions::Txn;
use bson::{DocBuf, Val, doc};
use sharding::agreement::{Agreement, Next, StaleSide, learns};
use sharding::snapshot::Pinning;
use sharding::two_phase::{CommitAnswer, Coordinator, Shard as Name, Verdict};
use sharding::{
    Chunk, CollectionEntry, DatabasePrimary, DbVersion, Ownership, RoutingTable, Version,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub enum Failure {
    /// No answer: it may have been done.
    Lost,
    Refused(Refusal),
}

pub type Outcome<T> = Result<T, Failure>;
type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Where a collection is.
#[derive(Clone)]
pub enum Placement {
    /// On the primary shard of its database, as of this version of it.
    DatabasePrimary(Name, DbVersion),
    /// Its chunks say it.
    Table(Rc<RoutingTable>),
}

impl Placement {
    pub fn belief(&self, shard: &str) -> Belief {
        match self {
            Placement::DatabasePrimary(_, version) => Belief {
                version: Version::UNSHARDED,
                database_primary: Some(*version),
            },
            Placement::Table(table) => table.version_of(shard).into(),
        }
    }

    fn table(self) -> Option<Rc<RoutingTable>> {
        match self {
            Placement::DatabasePrimary(..) => None,
            Placement::Table(table) => Some(table),
        }
    }

    fn shards(&self) -> Vec<Name> {
        match self {
            Placement::DatabasePrimary(shard, _) => vec![shard.clone()],
            Placement::Table(table) => table.shards().cloned().collect(),
        }
    }
}

pub struct Router {
    pub process: Process,
    pub sim: Rc<Sim>,
    pub history: Rc<History>,
    pub config: Rc<Config>,
    pub shards: Rc<Vec<Rc<Shard>>>,
    pub places: Rc<Places>,
    placements: RefCell<BTreeMap<Ns, Placement>>,
    time: Cell<u64>,
}

impl Router {
    pub fn new(
        (sim, process): (Rc<Sim>, Process),
        history: Rc<History>,
        config: Rc<Config>,
        shards: Rc<Vec<Rc<Shard>>>,
        places: Rc<Places>,
    ) -> Rc<Router> {
        Rc::new(Router {
            process,
            sim,
            history,
            config,
            shards,
            places,
            placements: RefCell::default(),
            time: Cell::new(0),
        })
    }

    /// Its process has died.
    pub fn forget(&self) {
        self.placements.borrow_mut().clear();
        self.time.set(0);
    }

    pub fn time(&self) -> u64 {
        self.time.get()
    }

    pub fn shard(&self, name: &str) -> Rc<Shard> {
        let found = self.shards.iter().find(|s| *s.name == *name);
        found.expect("a shard of that name").clone()
    }

    /// Asks a shard.
    pub async fn on<R, F>(&self, name: &str, ask: impl Fn(Rc<Shard>) -> F + 'static) -> Outcome<R>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        self.ask(name, ask, false).await
    }

    /// The same with what may come twice.
    pub async fn on_again<R, F>(
        &self,
        name: &str,
        ask: impl Fn(Rc<Shard>) -> F + 'static,
    ) -> Outcome<R>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        self.ask(name, ask, true).await
    }

    async fn ask<R, F>(
        &self,
        name: &str,
        ask: impl Fn(Rc<Shard>) -> F + 'static,
        again: bool,
    ) -> Outcome<R>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        let shard = self.shard(name);
        let make = {
            let shard = shard.clone();
            move || {
                let (shard, answer) = (shard.clone(), ask(shard.clone()));
                async move { (answer.await, shard.time()) }
            }
        };
        let answered = self.sim.call_shard(shard.process, make, again).await;
        let (answer, time) = answered.ok_or(Failure::Lost)?;
        self.time.set(self.time.get().max(time));
        Ok(answer)
    }

    pub async fn try_on<R, F>(
        &self,
        name: &str,
        ask: impl Fn(Rc<Shard>) -> F + 'static,
    ) -> Outcome<R>
    where
        R: 'static,
        F: Future<Output = Result<R, Refusal>> + 'static,
    {
        self.on(name, ask).await?.map_err(Failure::Refused)
    }

    pub async fn read_config(&self, collection: &'static str, q: DocBuf) -> Outcome<Vec<DocBuf>> {
        let config = self.config.clone();
        let process = config.process;
        let make = move || {
            let found = config.read(collection, &q);
            async move { found }
        };
        self.sim.call(process, make).await.ok_or(Failure::Lost)
    }

    /// The metadata's entry of a collection.
    async fn read_entry(&self, ns: Ns) -> Outcome<Option<CollectionEntry>> {
        if ns == SHARDED {
            return Ok(Some(entry()));
        }
        let q = doc! {"_id": name_of(ns)};
        let found = self.read_config("collections", q).await?;
        let life = |d: &DocBuf| {
            Some((
                d.get("epoch")?.as_oid()?,
                d.get("timestamp")?.as_timestamp()?,
            ))
        };
        let life = found.first().map(|d| life(d).expect("a life"));
        Ok(life.map(|(epoch, timestamp)| entry_of(ns, epoch, timestamp)))
    }

    /// Its table: of one that is known, what has changed. `None`: it is where its database is.
    pub async fn read_table(
        &self,
        ns: Ns,
        mut known: Option<Rc<RoutingTable>>,
    ) -> Outcome<Option<Rc<RoutingTable>>> {
        loop {
            let Some(entry) = self.read_entry(ns).await? else {
                return Ok(None);
            };
            known = known.filter(|table| table.entry == entry);
            let q = RoutingTable::unknown_chunks(known.as_deref(), &entry.uuid);
            let chunks = self.read_config("chunks", q).await?;
            let chunks: Vec<Chunk> = chunks
                .iter()
                .map(|d| Chunk::parse(d.as_doc()).expect("a chunk"))
                .collect();
            match RoutingTable::followed(known.as_deref(), entry, chunks) {
                Ok(table) => return Ok(Some(Rc::new(table))),
                Err(_) if known.is_some() => known = None,
                Err(stop) => {
                    self.history.wrong(stop.into_error().to_string());
                    return Err(Failure::Lost);
                }
            }
        }
    }

    /// The table of a collection that has one.
    pub async fn table_of(&self, ns: Ns) -> Outcome<Rc<RoutingTable>> {
        self.read_table(ns, None).await?.ok_or(Failure::Lost)
    }

    /// The primary shard of the database, and since which version.
    pub async fn read_database_primary(&self) -> Outcome<(Name, DbVersion)> {
        let found = self.read_config("databases", doc! {"_id": DB}).await?;
        let database = found.first().expect("the database");
        let primary = database.get("primary").and_then(Val::as_str);
        let version = database.get("version").and_then(Val::as_doc);
        let version = DbVersion::parse(version.expect("a version")).expect("a version");
        Ok((primary.expect("a primary").into(), version))
    }

    async fn read_placement(&self, ns: Ns, known: Option<Rc<RoutingTable>>) -> Outcome<Placement> {
        loop {
            if let Some(table) = self.read_table(ns, known.clone()).await? {
                return Ok(Placement::Table(table));
            }
            // The two reads are not one.
            let pause = if self.sim.one_in(15) { 8000 } else { 1 };
            self.sim.sleep(self.sim.below(pause)).await;
            let (shard, version) = self.read_database_primary().await?;
            // It may have got chunks meanwhile, and the database have moved after that.
            if self.history.has(Planted::DatabaseReadLast) || self.read_entry(ns).await?.is_none() {
                return Ok(Placement::DatabasePrimary(shard, version));
            }
        }
    }

    pub async fn refresh(&self, ns: Ns) -> Outcome<Placement> {
        let known = self.placements.borrow().get(&ns).cloned();
        let known = known.and_then(|placement| placement.table());
        self.history.count(if known.is_some() {
            "refreshes"
        } else {
            "full refreshes"
        });
        let placement = self.read_placement(ns, known).await?;
        self.take_over(ns, placement.clone());
        Ok(placement)
    }

    pub fn take_over(&self, ns: Ns, placement: Placement) {
        self.placements.borrow_mut().insert(ns, placement);
    }

    /// All that is known of the database.
    pub fn forget_database(&self) {
        self.placements.borrow_mut().retain(|ns, _| *ns == SHARDED);
    }

    async fn known_placement(&self, ns: Ns) -> Outcome<Placement> {
        let known = self.placements.borrow().get(&ns).cloned();
        match known {
            Some(placement) => Ok(placement),
            None => self.refresh(ns).await,
        }
    }

    /// Runs `attempt` with the cached metadata until router and shards agree.
    async fn agree<T>(
        self: &Rc<Router>,
        ns: Ns,
        attempt: impl Fn(Placement) -> Boxed<Outcome<T>>,
    ) -> Outcome<T> {
        let (began, mut agreement) = (self.sim.clock(), Agreement::default());
        let mut placement = self.known_placement(ns).await?;
        loop {
            let stale = match attempt(placement.clone()).await {
                Err(Failure::Refused(stale @ Refusal::Stale { .. })) => stale,
                other => return other,
            };
            let Refusal::Stale {
                shard,
                fenced,
                of_database,
            } = stale.clone()
            else {
                continue;
            };
            let pause = match agreement.refused(self.sim.clock() - began, fenced) {
                Next::GiveUp => {
                    self.history.count("refused");
                    return Err(Failure::Refused(stale));
                }
                Next::Again(pause) => {
                    self.sim.sleep(pause.as_millis() as u64).await;
                    continue;
                }
                Next::Release(pause) => {
                    self.history.count("released fences");
                    let name = if of_database { DB.into() } else { name_of(ns) };
                    let _ = self.release_fence(&name, &shard).await;
                    pause
                }
                Next::Read(pause) => pause,
            };
            self.sim.sleep(pause.as_millis() as u64).await;
            let before = placement.belief(&shard);
            let known = self.placements.borrow().get(&ns).cloned();
            let others = known.filter(|p| p.belief(&shard) != before);
            placement = match others {
                Some(others) => others,
                None => self.refresh(ns).await?,
            };
            if learns(&before, &placement.belief(&shard)) == StaleSide::Router || fenced {
                continue;
            }
            placement = self.read_placement(ns, None).await?;
            self.take_over(ns, placement.clone());
            match &placement {
                Placement::DatabasePrimary(primary, version) if of_database => {
                    self.teach_database_primary(primary, *version, &shard, None)
                        .await?;
                }
                Placement::DatabasePrimary(..) => {}
                Placement::Table(table) => self.teach(table, &shard, None).await?,
            }
        }
    }

    pub async fn teach(&self, table: &RoutingTable, shard: &str, turn: Option<i64>) -> Outcome<()> {
        let (ns, told) = (ns_named(&table.entry.ns), Ownership::of(table, shard));
        let learned = self.on_again(shard, move |s| s.learn(ns, told.clone(), turn));
        learned.await?.map_err(Failure::Refused)
    }

    pub async fn teach_database_primary(
        &self,
        primary: &str,
        version: DbVersion,
        shard: &str,
        turn: Option<i64>,
    ) -> Outcome<()> {
        let told = DatabasePrimary {
            db: DB.into(),
            version,
            primary: primary == shard,
            fence: None,
            turn: 0,
        };
        let learned = self.on_again(shard, move |s| s.learn_database_primary(told.clone(), turn));
        learned.await?.map_err(Failure::Refused)
    }

    /// A retryable write.
    pub async fn write(self: Rc<Router>, session: (u32, i64), op: Op) -> Outcome<u32> {
        let this = self.clone();
        self.agree(ns_of(op.id()), move |placement| {
            let this = this.clone();
            Box::pin(async move {
                let shard = this.owner(&placement, op.id());
                let (belief, time) = (placement.belief(&shard), this.time());
                let again = !matches!(op, Op::Define(..) | Op::Undefine(_));
                let ask = move |s: Rc<Shard>| s.write(belief, time, session, op);
                let done = this.ask(&shard, ask, again).await?;
                done.map_err(Failure::Refused)
            })
        })
        .await
    }

    pub fn owner(&self, placement: &Placement, id: u32) -> Name {
        let table = match placement {
            Placement::DatabasePrimary(shard, _) => return shard.clone(),
            Placement::Table(table) => table,
        };
        let chunk = match table.entry.unsplittable {
            true => table.chunks().next(),
            false => table.chunk_at(self.places.of(id)),
        };
        chunk.expect("a place has a chunk").shard.clone()
    }

    /// All documents of a collection.
    pub async fn find(self: Rc<Router>, ns: Ns) -> Outcome<Vec<(u32, i64)>> {
        self.scatter(ns, None).await
    }

    async fn scatter(self: &Rc<Router>, ns: Ns, at: Option<u64>) -> Outcome<Vec<(u32, i64)>> {
        let this = self.clone();
        self.agree(ns, move |placement| {
            let this = this.clone();
            Box::pin(async move {
                let asks = placement.shards().into_iter().map(|name| {
                    let this = this.clone();
                    let (belief, time) = (placement.belief(&name), this.time());
                    let version = belief.version;
                    let ask: Boxed<Outcome<Vec<(u32, i64)>>> = Box::pin(async move {
                        match at {
                            Some(at) => this.try_on(&name, move |s| s.find_at(version, at)).await,
                            None => this.try_on(&name, move |s| s.find(ns, belief, time)).await,
                        }
                    });
                    ask
                });
                let answers = together(&this.sim, asks.collect()).await;
                let mut all = Vec::new();
                for answer in answers {
                    all.extend(answer?);
                }
                Ok(all)
            })
        })
        .await
    }

    /// All documents in one state of all shards.
    pub async fn snapshot(self: Rc<Router>) -> Outcome<Vec<(u32, i64)>> {
        let names: Vec<Name> = self.shards.iter().map(|s| s.name.clone()).collect();
        let mut pinning: Pinning<Txn> = Pinning::new(names, self.time());
        loop {
            let (asks, at) = (pinning.asks(), pinning.at());
            if asks.is_empty() {
                return self.scatter(SHARDED, Some(at)).await;
            }
            let asks = asks.into_iter().map(|(name, ask)| {
                let this = self.clone();
                let one: Boxed<Outcome<_>> = Box::pin(async move {
                    // A shard without a primary is waited for while others keep theirs already.
                    if this.sim.one_in(4) {
                        this.sim.sleep(this.sim.below(300)).await;
                    }
                    let answer = this.on(&name, move |s| s.snapshot(at, ask.clone())).await?;
                    answer.ok_or(Failure::Lost)
                });
                one
            });
            let answers = together(&self.sim, asks.collect()).await;
            let answers: Outcome<Vec<_>> = answers.into_iter().collect();
            let heard = pinning.heard(answers?, self.time());
            heard.map_err(|_| Failure::Lost)?;
        }
    }

    /// A transaction that adds to documents.
    pub async fn transact(
        self: Rc<Router>,
        txn: Txn,
        statements: Vec<(u32, i64)>,
    ) -> Outcome<Verdict> {
        let joined: Rc<RefCell<Vec<Name>>> = Rc::default();
        for statement in statements {
            let (this, names) = (self.clone(), joined.clone());
            let done = self.agree(SHARDED, move |placement| {
                let (this, names) = (this.clone(), names.clone());
                Box::pin(async move {
                    let shard = this.owner(&placement, statement.0);
                    let (version, time) = (placement.belief(&shard).version, this.time());
                    let starts = !names.borrow().contains(&shard);
                    let ask =
                        move |s: Rc<Shard>| s.statement(version, time, (txn, starts), statement);
                    this.try_on(&shard, ask).await?;
                    if starts {
                        names.borrow_mut().push(shard);
                    }
                    Ok(())
                })
            });
            if let Err(failure) = done.await {
                let shards = joined.borrow().clone();
                for shard in shards {
                    let _ = self.on(&shard, move |s| async move { s.abort(txn) }).await;
                }
                return Err(failure);
            }
        }
        let mut others = joined.borrow().clone();
        let recovery = others.remove(0);
        if others.is_empty() {
            return self.commit_alone(txn, &recovery).await;
        }
        self.history.count("two-phase commits");
        let steps = Coordinator::commit(recovery.clone(), others, Vec::new());
        Ok(self.end(txn, recovery, steps).await)
    }

    async fn commit_alone(&self, txn: Txn, shard: &Name) -> Outcome<Verdict> {
        let ask = move |s: Rc<Shard>| async move {
            let (answer, mark) = s.decide(txn, None);
            if let Some(mark) = mark {
                s.majority(mark).await;
            }
            answer
        };
        match self.on(shard, ask).await? {
            CommitAnswer::Yes => Ok(Verdict::Committed),
            _ => Ok(Verdict::Aborted),
        }
    }

    /// Takes a transaction over several shards to its end.
    pub async fn end(
        self: &Rc<Router>,
        txn: Txn,
        recovery: Name,
        mut steps: Coordinator,
    ) -> Verdict {
        loop {
            if let Some(verdict) = steps.verdict() {
                return verdict;
            }
            let asks = steps.asks().into_iter().map(|(name, ask)| {
                let (this, recovery) = (self.clone(), recovery.clone());
                let one: Boxed<CommitAnswer> = Box::pin(async move {
                    let time = this.time();
                    let ask =
                        move |s: Rc<Shard>| s.hear_ask(txn, time, recovery.clone(), ask.clone());
                    this.on_again(&name, ask)
                        .await
                        .unwrap_or(CommitAnswer::Lost)
                });
                one
            });
            let answers = together(&self.sim, asks.collect()).await;
            if answers.contains(&CommitAnswer::Lost) {
                self.sim.sleep(50).await;
            }
            steps.heard(&answers);
        }
    }

    /// Ends some of the transactions that wait on shards, as the resolver does.
    pub async fn resolve(self: Rc<Router>, all: bool) {
        for shard in self.shards.iter() {
            let Ok(left) = self.on(&shard.name, |s| s.left()).await else {
                continue;
            };
            for (txn, recovery, others) in left {
                if all || self.sim.one_in(2) {
                    self.history.count("resolved");
                    let steps = Coordinator::recover(recovery.clone(), others);
                    self.end(txn, recovery, steps).await;
                }
            }
        }
    }
}
