//! Whole sharded clusters in one thread: a seeded clock, a network that loses, delays, doubles and
//! reorders, processes of every kind that die or stand still at any moment, elections that roll back
//! entries without a majority.
//!
//! Inside are the crate's own state machines, which routers, shards and movers run: versions and
//! ownership, agreement, the lock, moves and their end, documents that follow a log, a database's
//! primary and how it changes, the two-phase commit, snapshots. Clients write, read and transact through
//! stale routers while ranges move, are cut and joined, and shards are emptied; others make collections
//! and views of a database that is not sharded, while its primary and its collections move.
//!
//! Checked are: the chunks leave no place out at any time; a range on another shard has a version that
//! the collection did not have before; no two shards serve a place, or a database, at any time; no fence
//! stands without a pending move; an acknowledged document is there, once, with a value between the
//! acknowledged and the sent ones; a deleted one stays deleted; no read sees an orphan, or a part of a
//! transaction; the sum of the accounts is whole in every snapshot. In the end nothing is pending,
//! prepared or undecided, and each document is where it belongs. A seed replays a run.
//!
//! What a mover has sent when it ended its own move is refused by two rules: the end is in another turn of
//! the lock, and a shard takes documents of a range only while it expects that (`Ownership::incoming`).
//! Without late messages nothing is on its way for longer than its sender waits, so neither rule is
//! needed. With them the first is enough for documents and fences, so no planted bug can stand for the
//! second alone: [`Planted::SameTurnAtTheEnd`] takes both away.
//!
//!     PANDO_SEEDS=10000 PANDO_SEED=1 cargo test -p sharding --test simulation --release
//!     PANDO_ADDERS=60 PANDO_SEEDS=10000 cargo test …      # most of the time is spent in sums of snapshots
//!     cargo test -p sharding --test simulation -- --ignored --nocapture      # planted bugs

mod clients;
mod config;
mod documents;
mod history;
mod mover;
mod names;
mod primaries;
mod primary_clients;
mod replicated;
mod router;
mod runtime;
mod shard;
mod taught;
mod transactions;

use clients::Clients;
use config::Config;
use history::{Expected, History, Planted};
use names::{Ns, SHARDED, ns_of};
use router::{Outcome, Placement, Router};
use runtime::{Sim, Weather};
use shard::{Places, Shard};
use sharding::Ownership;
use std::collections::BTreeMap;
use std::rc::Rc;

const ROUTERS: usize = 2;
/// Clients, the configuration set, shards, routers.
const CONFIG: usize = 1;
const FIRST_SHARD: usize = 2;
/// Milliseconds under faults, and until all is at rest.
const FAULTS: u64 = 30_000;
const REST: u64 = 300_000;

type Seen = (Expected, Vec<(u32, i64)>, Placement);

pub struct Cluster {
    sim: Rc<Sim>,
    history: Rc<History>,
    config: Rc<Config>,
    shards: Rc<Vec<Rc<Shard>>>,
    routers: Vec<Rc<Router>>,
    /// The client in the process of the configuration set.
    resolver: Rc<Router>,
}

impl Cluster {
    fn new(seed: u64, planted: Planted) -> Rc<Cluster> {
        let many = 2 + (seed % 3) as usize;
        let sim = Sim::new(seed, FIRST_SHARD + many + ROUTERS);
        let history = Rc::new(History::new(planted));
        let places = Rc::new(Places::new(&config::entry().key));
        let config = Config::new(sim.clone(), CONFIG, history.clone());
        let shard = |n: usize| {
            let first = if n == 0 {
                clients::first_documents()
            } else {
                Vec::new()
            };
            let (sim, history, places) = (sim.clone(), history.clone(), places.clone());
            Shard::new(
                sim,
                FIRST_SHARD + n,
                &format!("s{n}"),
                history,
                places,
                first,
            )
        };
        let shards: Rc<Vec<Rc<Shard>>> = Rc::new((0..many).map(shard).collect());
        let router = |process: usize| {
            Router::new(
                (sim.clone(), process),
                history.clone(),
                config.clone(),
                shards.clone(),
                places.clone(),
            )
        };
        let first = FIRST_SHARD + many;
        Rc::new(Cluster {
            routers: (first..first + ROUTERS).map(router).collect(),
            resolver: router(CONFIG),
            sim,
            history,
            config,
            shards,
        })
    }

    /// A process dies, and is there again after a while; a shard's, or the configuration set's, as
    /// another member.
    async fn kill(self: Rc<Cluster>, process: usize, millis: u64) {
        self.sim.kill(process);
        let shard = self.shards.iter().find(|s| s.process == process);
        match shard {
            Some(shard) => shard.fail_over(),
            None if process == CONFIG => {
                self.config.set.borrow_mut().elect();
                self.resolver.forget();
            }
            None => self.routers.iter().for_each(|r| {
                if r.process == process {
                    r.forget();
                }
            }),
        }
        self.sim.sleep(millis).await;
        self.sim.start(process);
        if process == CONFIG {
            self.clone().start_resolver();
        }
    }

    fn start_resolver(self: Rc<Cluster>) {
        let (sim, resolver) = (self.sim.clone(), self.resolver.clone());
        self.sim.spawn(CONFIG, async move {
            loop {
                sim.sleep(300 + sim.below(1500)).await;
                resolver.clone().resolve(false).await;
            }
        });
    }

    async fn harm(self: Rc<Cluster>, until: u64) {
        while self.sim.now() < until {
            let pause = 50 + self.sim.below(2500);
            self.sim.sleep(pause).await;
            let process = CONFIG
                + self
                    .sim
                    .below((FIRST_SHARD + self.shards.len() + ROUTERS - CONFIG) as u64)
                    as usize;
            let is_router = process >= FIRST_SHARD + self.shards.len();
            let spared = is_router && self.sim.stalls.get() < 400;
            if self.sim.is_dead(process) || spared && !self.sim.one_in(8) {
                continue;
            }
            match self.sim.below(3) {
                0 => {
                    // The longest outlive a lock: its holder wakes up when another has it.
                    let millis = match self.sim.below(6) {
                        0 => 10_500 + self.sim.below(3500),
                        1 | 2 => self.sim.below(4000),
                        _ => self.sim.below(400),
                    };
                    self.history.count("stopped");
                    self.sim.stop(process, millis);
                }
                1 => {
                    // Of a router's death movers and commits die, and nothing wakes up too late.
                    if self.sim.stalls.get() < 400 && !self.sim.one_in(8) {
                        continue;
                    }
                    let router =
                        FIRST_SHARD + self.shards.len() + self.sim.below(ROUTERS as u64) as usize;
                    if !self.sim.is_dead(router) {
                        self.history.count("killed");
                        self.clone().kill(router, self.sim.below(1000)).await;
                    }
                }
                _ => {
                    self.history.count("killed");
                    self.clone().kill(process, self.sim.below(1500)).await;
                }
            }
        }
    }

    /// No two shards serve the same place, nor the same database.
    fn check_owners(&self) {
        let mut served: BTreeMap<Ns, Vec<(&str, Rc<Ownership>)>> = BTreeMap::new();
        let mut primaries = Vec::new();
        for shard in self.shards.iter() {
            let latest = &shard.set.borrow().latest;
            for (ns, known) in latest.ownership.iter().filter(|(_, k)| k.fence.is_none()) {
                let part = (&*shard.name, known.clone());
                served.entry(*ns).or_default().push(part);
            }
            let known = latest.database_primary.as_ref();
            if known.is_some_and(|known| known.primary && known.fence.is_none()) {
                primaries.push(&shard.name);
            }
        }
        if primaries.len() > 1 {
            self.history
                .wrong(format!("{primaries:?} serve the same database"));
        }
        for (ns, served) in &served {
            for (i, (a, known)) in served.iter().enumerate() {
                for (b, other) in &served[i + 1..] {
                    if !sharding::intersect(&known.owned, &other.owned).is_empty() {
                        self.history
                            .wrong(format!("{a} and {b} serve the same place of {ns}"));
                    }
                }
            }
        }
    }

    /// A fence stands only while a move is pending: otherwise it would stay.
    fn check_fences(&self) {
        let mut standing = Vec::new();
        for shard in self.shards.iter() {
            let latest = &shard.set.borrow().latest;
            let known = latest.ownership.values();
            let of_parts = known.filter_map(|known| Some(known.fence.as_ref()?.by.clone()));
            let of_database = latest
                .database_primary
                .as_ref()
                .and_then(|known| known.fence.clone());
            standing.extend(of_parts.chain(of_database));
        }
        if standing.is_empty() {
            return;
        }
        let under_way = self.config.fences();
        for fence in standing.iter().filter(|f| !under_way.contains(f)) {
            self.history.wrong(format!(
                "the fence {fence} stands, and nothing is under way"
            ));
        }
    }

    /// For each collection the expected documents, the found ones, and their places.
    async fn read_all(&self, router: &Rc<Router>) -> Outcome<BTreeMap<Ns, Seen>> {
        let mut all = BTreeMap::new();
        for ns in self.history.collections() {
            let expected = self.history.expected(ns);
            let found = router.clone().find(ns).await?;
            all.insert(ns, (expected, found, router.refresh(ns).await?));
        }
        Ok(all)
    }

    /// No move stays pending, and each document is where it belongs.
    async fn rest(self: Rc<Cluster>) {
        let router = self.routers[0].clone();
        let found = loop {
            self.sim.sleep(500).await;
            let settled = router.clone().settle().await.is_ok();
            self.resolver.clone().resolve(true).await;
            let waits = |s: &Rc<Shard>| {
                let latest = &s.set.borrow().latest;
                !latest.prepared.is_empty() || !latest.decisions.is_empty()
            };
            if !settled || self.shards.iter().any(waits) {
                continue;
            }
            // A mover that no client waits for any more may begin meanwhile.
            let turns = self.config.turns();
            let found = self.read_all(&router).await;
            let quiet = turns.is_some() && turns == self.config.turns();
            if let (Ok(found), true) = (found, quiet) {
                break found;
            }
        };
        for (ns, (expected, found, placement)) in &found {
            self.history.check("end", expected, found);
            if *ns == SHARDED {
                self.history.check_sum("end", found);
            }
            for shard in self.shards.iter() {
                let latest = &shard.set.borrow().latest;
                for id in latest.documents.keys().filter(|id| ns_of(**id) == *ns) {
                    let owner = router.owner(placement, *id);
                    if owner != shard.name {
                        self.history
                            .wrong(format!("{id} lies on {}, and is {owner}'s", shard.name));
                    }
                }
            }
        }
        self.history.count("at rest");
    }
}

/// What was wrong, and the counts of operations.
struct Run {
    wrong: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

fn run(seed: u64, planted: Planted) -> Run {
    let cluster = Cluster::new(seed, planted);
    let (sim, history) = (cluster.sim.clone(), cluster.history.clone());
    let weather = [
        Weather::default(),
        Weather {
            lost: 5,
            doubled: 5,
            slow: 10,
            late: 2,
        },
        Weather {
            lost: 10,
            doubled: 30,
            slow: 50,
            late: 5,
        },
        Weather {
            lost: 0,
            doubled: 100,
            slow: 100,
            late: 0,
        },
    ];
    sim.weather.set(weather[(seed / 3 % 4) as usize]);
    // In a part of all runs movers wake up late, and are not killed before.
    if seed % 5 == 4 {
        sim.stalls.set(40);
    }
    let until = sim.now() + FAULTS;
    let clients = Clients::new(cluster.clone(), until);
    clients.start();
    cluster.clone().start_resolver();
    sim.spawn(0, cluster.clone().harm(until));
    let watched = {
        let (cluster, sim) = (cluster.clone(), sim.clone());
        async move {
            loop {
                cluster.check_owners();
                if sim.now() % 64 == 0 {
                    cluster.check_fences();
                }
                sim.sleep(1).await;
            }
        }
    };
    sim.spawn(0, watched);
    sim.run(until + 40_000, || {
        history.is_wrong() || clients.are_done() && sim.now() > until
    });
    if !history.is_wrong() && !clients.are_done() {
        history.wrong("a client hangs".into());
    }
    sim.weather.set(Weather::default());
    let at_rest = || history.is_wrong() || history.counted("at rest") > 0;
    if !history.is_wrong() {
        sim.spawn(0, cluster.clone().rest());
        sim.run(sim.now() + REST, at_rest);
    }
    if !at_rest() {
        history.wrong("it does not come to rest".into());
    }
    Run {
        wrong: history.what_is_wrong(),
        counts: history.counts(),
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn nothing_is_lost_doubled_or_seen_in_part() {
    let (first, many) = (number("PANDO_SEED", 1), number("PANDO_SEEDS", 100));
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in first..first + many {
        let run = run(seed, Planted::Nothing);
        assert!(run.wrong.is_empty(), "seed {seed}: {:#?}", run.wrong);
        for (what, n) in run.counts {
            *all.entry(what).or_default() += n;
        }
        if seed % 500 == 0 {
            println!("seed {seed}: {all:?}");
        }
    }
    println!("{many} seeds: {all:?}");
    for what in [
        "writes",
        "moves",
        "failed moves",
        "moves of collections",
        "moves of the primary",
        "two-phase commits",
        "sums",
        "killed",
    ] {
        let n = all.get(what).copied().unwrap_or(0);
        assert!(n >= many / 2, "{what} happened {n} times only");
    }
    // For these there have to be four shards, and ranges on two of them.
    let n = all.get("two moves at once").copied().unwrap_or(0);
    assert!(n >= many / 10, "two moves at once happened {n} times only");
}

/// A run is replayed by its seed.
#[test]
fn a_seed_replays_a_run() {
    for seed in [3, 4] {
        let (a, b) = (run(seed, Planted::Nothing), run(seed, Planted::Nothing));
        assert_eq!(a.counts, b.counts);
    }
}

/// A bug that is not found is a bug of the simulator.
#[test]
#[ignore = "it takes a minute"]
fn planted_bugs_are_found() {
    let most = number("PANDO_PLANTED_SEEDS", 1000);
    let only = std::env::var("PANDO_PLANTED").ok();
    let asked = |p: &Planted| only.as_ref().is_none_or(|only| *only == format!("{p:?}"));
    for planted in Planted::ALL.into_iter().filter(asked) {
        let found = (1..=most).find_map(|seed| {
            let run = run(seed, planted);
            run.wrong.first().map(|wrong| (seed, wrong.clone()))
        });
        match found {
            Some((seed, wrong)) => println!("{planted:?}: seed {seed}: {wrong}"),
            None => panic!("{planted:?} is not found by {most} seeds"),
        }
    }
}
