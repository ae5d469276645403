//! Clients: what they do, how often they try it, and what they hold routers to.

use crate::Cluster;
use crate::history::{ACCOUNTS, EACH, Planted};
use crate::names::SHARDED;
use crate::number;
use crate::router::{Failure, Outcome, Router};
use crate::runtime::{Sim, together};
use crate::shard::{Document, Op, Refusal};
use crate::transactions::Txn;
use sharding::two_phase::Verdict;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

const WRITERS: u32 = 3;
const PAYERS: u32 = 2;
/// How many add up all accounts; `PANDO_ADDERS` changes it.
const ADDERS: u64 = 2;
const REARRANGERS: u32 = 2;
/// How often a write without an answer is sent.
const TRIES: u32 = 8;

/// The document that counts what a payer has done.
fn tally(payer: u32) -> u32 {
    ACCOUNTS + payer
}

pub fn first_documents() -> Vec<Document> {
    let account = |id| Document { id, value: EACH };
    let tallies = (0..PAYERS).map(|p| Document {
        id: tally(p),
        value: 0,
    });
    (0..ACCOUNTS).map(account).chain(tallies).collect()
}

pub struct Clients {
    cluster: Rc<Cluster>,
    until: u64,
    running: Rc<Cell<u32>>,
}

impl Clients {
    pub fn new(cluster: Rc<Cluster>, until: u64) -> Rc<Clients> {
        Rc::new(Clients {
            cluster,
            until,
            running: Rc::default(),
        })
    }

    pub fn are_done(&self) -> bool {
        self.running.get() == 0
    }

    pub fn start(self: &Rc<Clients>) {
        for n in 0..WRITERS {
            self.spawn(self.clone().insert_and_add(n));
        }
        for n in 0..PAYERS {
            self.cluster.history.inserted(tally(n));
            self.spawn(self.clone().pay(n));
        }
        self.spawn(self.clone().read());
        // Two of these have to ask for the same time, on a shard that has failed over since.
        let adders = match self.cluster.history.has(Planted::SnapshotPinnedAnew) {
            true => 10 * ADDERS,
            false => ADDERS,
        };
        for _ in 0..number("PANDO_ADDERS", adders) {
            self.spawn(self.clone().add_up());
        }
        for _ in 0..REARRANGERS {
            self.spawn(self.clone().rearrange());
        }
        self.start_on_primary();
    }

    pub fn cluster(&self) -> &Rc<Cluster> {
        &self.cluster
    }

    pub fn sim(&self) -> &Rc<Sim> {
        &self.cluster.sim
    }

    pub fn spawn(self: &Rc<Clients>, client: impl Future<Output = ()> + 'static) {
        self.running.set(self.running.get() + 1);
        let running = self.running.clone();
        self.cluster.sim.spawn(0, async move {
            client.await;
            running.set(running.get() - 1);
        });
    }

    pub fn goes_on(&self) -> bool {
        self.cluster.sim.now() < self.until
    }

    pub async fn pause(&self, millis: u64) {
        let millis = self.cluster.sim.below(millis);
        self.cluster.sim.sleep(millis).await;
    }

    /// Asks any router.
    pub async fn ask<T, F>(&self, ask: impl Fn(Rc<Router>) -> F + 'static) -> Outcome<T>
    where
        T: 'static,
        F: Future<Output = Outcome<T>> + 'static,
    {
        let n = self.cluster.sim.below(self.cluster.routers.len() as u64);
        let router = self.cluster.routers[n as usize].clone();
        let process = router.process;
        let answer = self.cluster.sim.call(process, move || ask(router.clone()));
        answer.await.unwrap_or(Err(Failure::Lost))
    }

    /// A retryable write, sent until it is answered: what it has done.
    async fn write(&self, session: (u32, i64), op: Op) -> Option<u32> {
        for _ in 0..TRIES {
            match self.ask(move |r| r.write(session, op)).await {
                Ok(done) => {
                    self.cluster.history.count("writes");
                    return Some(done);
                }
                Err(Failure::Refused(Refusal::Never(why))) => {
                    self.cluster.history.wrong(format!("{op:?}: {why}"));
                    return None;
                }
                Err(_) => self.pause(200).await,
            }
        }
        None
    }

    async fn insert_and_add(self: Rc<Clients>, client: u32) {
        let (mut number, mut own) = (0, Vec::new());
        while self.goes_on() {
            number += 1;
            let kind = if own.is_empty() {
                0
            } else {
                self.cluster.sim.below(8)
            };
            let at = self.cluster.sim.below(own.len() as u64) as usize;
            let op = match kind {
                0 | 1 => Op::Insert(100 + client + WRITERS * number as u32),
                2 => Op::Delete(own.swap_remove(at)),
                _ => Op::Add(own[at]),
            };
            if let (Op::Insert(id), true) = (op, self.write_one((1 + client, number), op).await) {
                own.push(id);
            }
            self.pause(60).await;
        }
    }

    /// A write that finds what it is for; whether it was acknowledged.
    pub async fn write_one(&self, session: (u32, i64), op: Op) -> bool {
        let (history, id) = (&self.cluster.history, op.id());
        match op {
            Op::Insert(_) => history.inserting(id),
            Op::Add(_) => history.adding(id),
            _ => history.deleting(id),
        }
        let done = self.write(session, op).await;
        if done == Some(0) {
            history.wrong(format!("{op:?} has found nothing"));
        }
        match op {
            _ if done.is_none() => {}
            Op::Insert(_) => history.inserted(id),
            Op::Add(_) => history.added(id),
            _ => history.deleted(id),
        }
        done.is_some()
    }

    /// Moves from one account to another, and counts that.
    async fn pay(self: Rc<Clients>, payer: u32) {
        let history = self.cluster.history.clone();
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            let any = || self.cluster.sim.below(u64::from(ACCOUNTS)) as u32;
            let (from, to) = (any(), any());
            let n = 1 + self.cluster.sim.below(9) as i64;
            if from == to {
                continue;
            }
            let txn: Txn = (50 + payer, number);
            let statements = vec![(from, -n), (to, n), (tally(payer), 1)];
            history.adding(tally(payer));
            let ask = move |r: Rc<Router>| r.transact(txn, statements.clone());
            match self.ask(ask).await {
                Ok(Verdict::Committed) => {
                    history.count("payments");
                    history.added(tally(payer));
                }
                Ok(Verdict::Aborted) | Err(Failure::Refused(_)) => {
                    history.not_added(tally(payer));
                }
                Ok(Verdict::Unknown) | Err(Failure::Lost) => history.count("unknown payments"),
            }
            self.pause(60).await;
        }
    }

    async fn read(self: Rc<Clients>) {
        let history = self.cluster.history.clone();
        while self.goes_on() {
            let expected = history.expected(SHARDED);
            if let Ok(found) = self.ask(|r| r.find(SHARDED)).await {
                history.count("reads");
                history.check("a read", &expected, &found);
            }
            self.pause(150).await;
        }
    }

    async fn add_up(self: Rc<Clients>) {
        let history = self.cluster.history.clone();
        while self.goes_on() {
            // Routers choose the same time for several clients at once.
            let many = 1 + self.cluster.sim.below(3);
            let one = |_| -> Pin<Box<dyn Future<Output = _>>> {
                let this = self.clone();
                Box::pin(async move { this.ask(|r| r.snapshot()).await })
            };
            for found in together(self.sim(), (0..many).map(one).collect())
                .await
                .into_iter()
                .flatten()
            {
                history.count("sums");
                history.check_sum("a snapshot", &found);
            }
            self.pause(80).await;
        }
    }

    /// Moves, cuts and joins; sometimes a shard is emptied.
    async fn rearrange(self: Rc<Clients>) {
        let sim = self.cluster.sim.clone();
        let many = self.cluster.shards.len() as u64;
        let mut avoids = None;
        while self.goes_on() {
            if sim.one_in(12) {
                avoids = sim.one_in(2).then(|| sim.below(many));
            }
            let mut to = sim.below(many);
            if avoids == Some(to) {
                to = (to + 1) % many;
            }
            let moves = sim.below(4) > 0;
            let to = moves.then(|| self.cluster.shards[to as usize].name.clone());
            let ask = move |r: Rc<Router>| {
                let key = r.any_key();
                r.rearrange(key, to.clone())
            };
            let _ = self.ask(ask).await;
            self.pause(100).await;
        }
    }
}
