//! A router: what it believes, and requests that it sends until it and the shards agree.

use crate::config::{Config, UUID, entry};
use crate::history::History;
use crate::runtime::{Process, Sim, together};
use crate::shard::{Op, Places, Refusal, Shard};
use crate::transactions::Txn;
use bson::DocBuf;
use sharding::agreement::{Agreement, Learns, Next, learns};
use sharding::snapshot::Pinning;
use sharding::two_phase::{Answer, Coordinator, Shard as Name, Verdict};
use sharding::{Chunk, Ownership, RoutingTable};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub enum Failure {
    /// Nobody has answered: it may have been done.
    Lost,
    Refused(Refusal),
}

pub type Outcome<T> = Result<T, Failure>;
type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

pub struct Router {
    pub process: Process,
    pub sim: Rc<Sim>,
    pub history: Rc<History>,
    pub config: Rc<Config>,
    pub shards: Rc<Vec<Rc<Shard>>>,
    pub places: Rc<Places>,
    table: RefCell<Option<Rc<RoutingTable>>>,
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
            table: RefCell::default(),
            time: Cell::new(0),
        })
    }

    /// Its process has died.
    pub fn forget(&self) {
        *self.table.borrow_mut() = None;
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
    async fn on_again<R, F>(&self, name: &str, ask: impl Fn(Rc<Shard>) -> F + 'static) -> Outcome<R>
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
        let answered = self.sim.call_by(shard.process, make, again).await;
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

    /// The metadata's table: of one that is known, what has changed.
    pub async fn read_table(&self, known: Option<Rc<RoutingTable>>) -> Outcome<Rc<RoutingTable>> {
        let mut known = known;
        loop {
            let q = RoutingTable::unknown_chunks(known.as_deref(), &UUID);
            let chunks = self.read_config("chunks", q).await?;
            let chunks: Vec<Chunk> = chunks
                .iter()
                .map(|d| Chunk::parse(d.as_doc()).expect("a chunk"))
                .collect();
            match RoutingTable::followed(known.as_deref(), entry(), chunks) {
                Ok(table) => return Ok(Rc::new(table)),
                Err(_) if known.is_some() => known = None,
                Err(stop) => {
                    self.history.wrong(stop.into_error().to_string());
                    return Err(Failure::Lost);
                }
            }
        }
    }

    pub async fn refresh(&self) -> Outcome<Rc<RoutingTable>> {
        let known = self.table.borrow().clone();
        self.history.count(if known.is_some() {
            "refreshes"
        } else {
            "full refreshes"
        });
        let table = self.read_table(known).await?;
        self.take_over(table.clone());
        Ok(table)
    }

    pub fn take_over(&self, table: Rc<RoutingTable>) {
        *self.table.borrow_mut() = Some(table);
    }

    async fn known_table(&self) -> Outcome<Rc<RoutingTable>> {
        let known = self.table.borrow().clone();
        match known {
            Some(table) => Ok(table),
            None => self.refresh().await,
        }
    }

    /// Runs `attempt` with what is believed until router and shards agree.
    async fn agree<T>(
        self: &Rc<Router>,
        attempt: impl Fn(Rc<RoutingTable>) -> Boxed<Outcome<T>>,
    ) -> Outcome<T> {
        let (began, mut agreement) = (self.sim.clock(), Agreement::default());
        let mut table = self.known_table().await?;
        loop {
            let (shard, fenced) = match attempt(table.clone()).await {
                Err(Failure::Refused(Refusal::Stale { shard, fenced })) => (shard, fenced),
                other => return other,
            };
            let pause = match agreement.refused(self.sim.clock() - began, fenced) {
                Next::GiveUp => {
                    self.history.count("refused");
                    return Err(Failure::Refused(Refusal::Stale { shard, fenced }));
                }
                Next::Again(pause) => {
                    self.sim.sleep(pause.as_millis() as u64).await;
                    continue;
                }
                Next::Release(pause) => {
                    self.history.count("released fences");
                    let _ = self.release_fence().await;
                    pause
                }
                Next::Read(pause) => pause,
            };
            self.sim.sleep(pause.as_millis() as u64).await;
            let before = table.version_of(&shard);
            let known = self.table.borrow().clone();
            let others = known.filter(|t| t.version_of(&shard) != before);
            table = match others {
                Some(others) => others,
                None => self.refresh().await?,
            };
            if learns(&before, &table.version_of(&shard)) == Learns::Router {
                continue;
            }
            table = self.read_table(None).await?;
            self.take_over(table.clone());
            self.teach(&table, &shard, None).await?;
        }
    }

    pub async fn teach(&self, table: &RoutingTable, shard: &str, turn: Option<i64>) -> Outcome<()> {
        let told = Ownership::of(table, shard);
        let learned = self.on_again(shard, move |s| s.learn(told.clone(), turn));
        learned.await?.map_err(Failure::Refused)
    }

    /// A retryable write.
    pub async fn write(self: Rc<Router>, session: (u32, i64), op: Op) -> Outcome<u32> {
        let this = self.clone();
        self.agree(move |table| {
            let this = this.clone();
            Box::pin(async move {
                let shard = this.owner(&table, op.id());
                let (version, time) = (table.version_of(&shard), this.time());
                let done = this.on_again(&shard, move |s| s.write(version, time, session, op));
                done.await?.map_err(Failure::Refused)
            })
        })
        .await
    }

    fn owner(&self, table: &RoutingTable, id: u32) -> Name {
        let chunk = table.chunk_at(self.places.of(id));
        chunk.expect("a place has a chunk").shard.clone()
    }

    /// All documents.
    pub async fn find(self: Rc<Router>) -> Outcome<Vec<(u32, i64)>> {
        self.scatter(None).await
    }

    async fn scatter(self: &Rc<Router>, at: Option<u64>) -> Outcome<Vec<(u32, i64)>> {
        let this = self.clone();
        self.agree(move |table| {
            let this = this.clone();
            Box::pin(async move {
                let asks = table.shards().map(|name| {
                    let (this, name) = (this.clone(), name.clone());
                    let (version, time) = (table.version_of(&name), this.time());
                    let ask: Boxed<Outcome<Vec<(u32, i64)>>> = Box::pin(async move {
                        match at {
                            Some(at) => this.try_on(&name, move |s| s.find_at(version, at)).await,
                            None => this.try_on(&name, move |s| s.find(version, time)).await,
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
                return self.scatter(Some(at)).await;
            }
            let asks = asks.into_iter().map(|(name, ask)| {
                let this = self.clone();
                let one: Boxed<Outcome<_>> = Box::pin(async move {
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
            let done = self.agree(move |table| {
                let (this, names) = (this.clone(), names.clone());
                Box::pin(async move {
                    let shard = this.owner(&table, statement.0);
                    let (version, time) = (table.version_of(&shard), this.time());
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
            Answer::Yes => Ok(Verdict::Committed),
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
                let one: Boxed<Answer> = Box::pin(async move {
                    let time = this.time();
                    let ask =
                        move |s: Rc<Shard>| s.hear_ask(txn, time, recovery.clone(), ask.clone());
                    this.on_again(&name, ask).await.unwrap_or(Answer::Lost)
                });
                one
            });
            let answers = together(&self.sim, asks.collect()).await;
            if answers.contains(&Answer::Lost) {
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
