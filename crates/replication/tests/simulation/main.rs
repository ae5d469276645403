//! Whole replica sets in one thread: a seeded clock, a network that loses, delays, doubles and parts,
//! disks that lose unsynced bytes, members that die at any moment.
//!
//! Checked after every step: no two members ever have different entries at an index that either knows as
//! committed; no write acknowledged for majority is ever lost; a member applies nothing that it has to
//! roll back; rolled-back documents are in files, those and no more. At the end, on a network that
//! works, all members have one log, and each write that was decided by what it saw follows on that. A
//! seed replays a run, to the byte.
//!
//! Odd seeds are harsher: syncs fail and say so (the member leaves, and comes back without its unsynced
//! entries), a member is cut off in either direction alone, in every second of them one is delayed, each
//! member saves its state every few entries, and after a crash a log is what the real log's recovery
//! finds on a disk that kept some sectors of the unsynced bytes.
//!
//!     PANDO_SEEDS=10000 PANDO_SEED=1 cargo test -p replication --test simulation --release

mod disk;
#[allow(dead_code)]
#[path = "../../../oplog/tests/log/faulty_disk.rs"]
mod faulty_disk;
mod forced_reconfig;
mod lost_disks;
mod own_entries;
mod torn;

use bson::ObjectId;
use disk::{Planted, SimLog, decision, payload};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use replication::config::MemberConfig as Configured;
use replication::member::{Member, MemberRole, News, raft_id};
use replication::{Config, Host, message};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use storage::{Appended, Entry, Op};

struct Node {
    disk: SimLog,
    member: Option<Member<SimLog>>,
    asleep_until: u64,
    /// A write that is being decided: in which term, and what it saw.
    deciding: Option<(u64, u64)>,
    /// How far its clock is from the others'.
    skew: u64,
    /// It has nothing, and was not let in again yet.
    lost: bool,
}

struct Sim {
    rng: StdRng,
    now: u64,
    nodes: Vec<Node>,
    /// By the time of arrival and a running number: the recipient, and the bytes.
    network: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
    /// Pairs (from, to) that hear nothing.
    parted: HashSet<(usize, usize)>,
    faulty: bool,
    harsh: bool,
    /// The payload at each committed index, as the first that knew it said.
    committed: BTreeMap<u64, Vec<u8>>,
    acknowledged: Vec<(u64, Vec<u8>)>,
    pending: Vec<(usize, u64, u64, Vec<u8>)>,
    written: u64,
    planted: Planted,
    restarts: u64,
    /// No client writes until then.
    quiet_until: u64,
    /// Of all that was sent, and when.
    trace: DefaultHasher,
    /// Where disks are lost.
    losses: Option<lost_disks::Losses>,
}

/// After so many entries a member of a harsh seed saves its state.
const SAVED_EVERY: u64 = 20;

/// A member that is delayed is the last.
fn config_of(n: usize, delayed: bool) -> Config {
    let host = |i: usize| Host::parse(&format!("sim{i}:1")).unwrap();
    let mut config = Config::of_one("sim", host(0), ObjectId([7; 12]));
    for i in 1..n {
        config.members.push(Configured::new(i as i32, host(i)));
    }
    if let Some(last) = config.members.last_mut().filter(|_| delayed) {
        (last.delay_secs, last.priority, last.hidden) = (2, 0.0, true);
    }
    config
}

impl Sim {
    fn new(seed: u64, planted: Planted) -> Sim {
        let mut rng = StdRng::seed_from_u64(seed);
        let size = if rng.random_bool(0.7) { 3 } else { 5 };
        let harsh = seed % 2 == 1;
        let mut nodes = Vec::new();
        for i in 0..size {
            let disk = SimLog::default();
            {
                let mut d = disk.0.borrow_mut();
                d.state.id = raft_id(i);
                d.state.config = Some(config_of(size as usize, seed % 4 == 1));
                d.planted = Some(planted);
                d.faulty = true;
                d.harsh = harsh;
                d.chances = rng.random_range(1..u64::MAX);
                // All begin where the founder did.
                d.state.voters.voters = vec![1];
            }
            nodes.push(Node {
                disk,
                member: None,
                asleep_until: 0,
                deciding: None,
                skew: rng.random_range(0..8000),
                lost: false,
            });
        }
        let mut sim = Sim {
            rng,
            now: 1_000_000,
            nodes,
            network: BTreeMap::new(),
            sent: 0,
            parted: HashSet::new(),
            faulty: true,
            harsh,
            committed: BTreeMap::new(),
            acknowledged: Vec::new(),
            pending: Vec::new(),
            written: 0,
            planted,
            restarts: 0,
            quiet_until: 0,
            trace: DefaultHasher::new(),
            losses: None,
        };
        for at in 0..sim.nodes.len() {
            sim.start(at);
        }
        sim.with(0, Member::campaign);
        sim
    }

    fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let state = {
            let mut d = node.disk.0.borrow_mut();
            // The log up to the commit point that was written down is applied again.
            let mut up_to = d.flushed.max(d.state.hard.commit.min(d.log.len() as u64));
            let delay = d.state.delay_millis();
            if delay > 0 {
                // What a delayed member may not show yet waits in the log.
                let waits = |e: &Appended| e.wall_millis > d.now as i64 - delay;
                let first = d
                    .log
                    .iter()
                    .find(|e| waits(e))
                    .map_or(up_to, |e| e.index - 1);
                up_to = d.flushed.max(up_to.min(first));
            }
            d.applied = up_to;
            d.engine = d.log[..up_to as usize]
                .iter()
                .map(|e| e.payload.clone())
                .collect();
            d.synced = d.log.len();
            d.really_synced = d.log.len();
            d.state.clone()
        };
        let chance = self.rng.random();
        let mut member = Member::new(node.disk.clone(), state, chance).unwrap();
        if self.harsh {
            member.save_every(SAVED_EVERY);
        }
        node.member = Some(member);
    }

    fn crash(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.member = None;
        node.deciding = None;
        let mut d = node.disk.0.borrow_mut();
        (d.open, d.broken, d.dying, d.fails) = (0, false, false, false);
        d.late.clear();
        d.taken_back.clear();
        let (log, synced) = (d.log.len(), d.really_synced);
        let keep = match self.harsh {
            false => self.rng.random_range(synced..=log),
            true => {
                let mut rng = StdRng::seed_from_u64(self.rng.random());
                let left = torn::survivors(&d.log, synced, &mut rng);
                assert_eq!(d.log.get(..left.len()), Some(&left[..]), "a prefix is left");
                assert!(left.len() >= synced, "what was synced is left");
                left.len()
            }
        };
        d.log.truncate(keep);
        assert!(
            self.planted == Planted::SkippedSync
                || d.flushed <= keep as u64
                || self.planted == Planted::EarlyFlush
        );
        d.flushed = d.flushed.min(keep as u64);
        node.asleep_until = self.now + self.rng.random_range(100..4000);
        self.pending.retain(|p| p.0 != at);
    }

    fn follow(&mut self, at: usize, news: News) {
        if let Some(why) = &news.restart {
            if std::env::var("PANDO_TRACE").is_ok() {
                println!("{} member {at} starts again: {why}", self.now);
            }
            self.restarts += 1;
            if let (Planted::SavedAhead, Some(m)) = (self.planted, &self.nodes[at].member) {
                self.nodes[at].disk.0.borrow_mut().state.hard.commit = m.commit_index();
            }
            {
                let node = &mut self.nodes[at];
                (node.member, node.deciding) = (None, None);
                let mut d = node.disk.0.borrow_mut();
                (d.open, d.broken, d.dying) = (0, false, false);
                d.late.clear();
            }
            self.pending.retain(|p| p.0 != at);
            self.start(at);
            return;
        }
        for m in news.messages {
            let to = m.to as usize - 1;
            let mut bytes = Vec::new();
            message::write(&m, &mut bytes);
            (self.now, at, &bytes).hash(&mut self.trace);
            let copies = match self.faulty {
                true if self.rng.random_bool(0.02) => 0,
                true if self.rng.random_bool(0.02) => 2,
                _ => 1,
            };
            if to >= self.nodes.len() || self.parted.contains(&(at, to)) {
                continue;
            }
            for _ in 0..copies {
                let delay = match self.faulty && self.rng.random_bool(0.05) {
                    true => self.rng.random_range(0..800),
                    false => self.rng.random_range(0..5),
                };
                self.sent += 1;
                self.network
                    .insert((self.now + delay, self.sent), (to, bytes.clone()));
            }
        }
    }

    fn with(&mut self, at: usize, f: impl FnOnce(&mut Member<SimLog>) -> errors::Fallible<News>) {
        let Some(member) = &mut self.nodes[at].member else {
            return;
        };
        let news = f(member);
        let role = member.role();
        let dying = self.nodes[at].disk.0.borrow().dying;
        let news = match news {
            Ok(news) if !dying => news,
            Err(e) if !dying => panic!("member {at}: {e}"),
            _ => return self.crash(at),
        };
        if news.changed && role != MemberRole::Primary {
            self.nodes[at].disk.0.borrow_mut().open = 0;
        }
        self.follow(at, news);
        let late = std::mem::take(&mut self.nodes[at].disk.0.borrow_mut().late);
        for entry in &late {
            let term = entry.term;
            self.pending
                .push((at, entry.index, term, entry.payload.clone()));
        }
        if !late.is_empty() {
            // A type of its own would have one of its own within.
            let f: Box<dyn FnOnce(&mut Member<SimLog>) -> errors::Fallible<News>> =
                Box::new(|m| m.appended(late));
            self.with(at, f);
        }
    }

    /// Whether this member takes writes: as the driver does, in its term.
    fn opens(&mut self, at: usize) -> bool {
        let node = &self.nodes[at];
        let Some(member) = &node.member else {
            return false;
        };
        let mut d = node.disk.0.borrow_mut();
        if member.role() == MemberRole::Primary && !member.is_handing_over() && d.open == 0 {
            d.open = member.term();
        }
        d.open != 0
    }

    /// A write that is decided by what it sees, and appended some time later, with its latch held.
    fn decide(&mut self, at: usize) {
        if !self.opens(at) {
            return;
        }
        let node = &mut self.nodes[at];
        let open = node.disk.0.borrow().open;
        match node.deciding {
            None => {
                let d = node.disk.0.borrow();
                let seen = d.engine.iter().rev().find_map(|p| decision(p));
                drop(d);
                node.deciding = Some((open, seen.map_or(0, |s| s.0)));
            }
            Some((term, seen)) if self.rng.random_bool(0.01) => {
                node.deciding = None;
                if term == open || self.planted == Planted::OldDecision {
                    self.written += 1;
                    let payload = payload(self.written, Some(seen));
                    self.hand_in(at, payload);
                }
            }
            Some(_) => {}
        }
    }

    fn hand_in(&mut self, at: usize, payload: Vec<u8>) {
        let appended = self.nodes[at].disk.0.borrow_mut().make(payload);
        self.pending
            .push((at, appended.index, appended.term, appended.payload.clone()));
        // The driver hears of it a little later.
        if self.faulty && self.rng.random_bool(0.01) {
            self.crash(at);
            return;
        }
        self.with(at, |m| m.appended(vec![appended]));
    }

    /// A client writes where it finds a primary.
    fn write(&mut self, at: usize) {
        if self.opens(at) {
            self.written += 1;
            let payload = payload(self.written, None);
            self.hand_in(at, payload);
        }
    }

    /// The configuration's next step, as the driver takes it.
    fn reconcile(&mut self, at: usize) {
        let Some(member) = &self.nodes[at].member else {
            return;
        };
        let Some(change) = member.next_change() else {
            return;
        };
        let config = member.config().unwrap().to_doc();
        let op = Op::Membership {
            config: config.as_bytes().to_vec(),
            change: change.to_bytes(),
        };
        let payload = Entry::new("".into(), [0; 16], op, vec![]).to_bytes();
        if self.opens(at) {
            let appended = self.nodes[at].disk.0.borrow_mut().make(payload);
            self.with(at, |m| m.appended(vec![appended]));
        }
    }

    fn sync(&mut self, at: usize) {
        if self.nodes[at].disk.0.borrow().fails {
            return self.crash(at);
        }
        {
            let mut d = self.nodes[at].disk.0.borrow_mut();
            d.wants_sync = false;
            if d.broken {
                return;
            }
            d.synced = d.log.len();
            if self.planted != Planted::SkippedSync {
                d.really_synced = d.log.len();
            }
        }
        self.with(at, Member::synced);
        let taken = self.nodes[at]
            .member
            .as_ref()
            .map_or(0, Member::taken_index);
        let mut d = self.nodes[at].disk.0.borrow_mut();
        if self.rng.random_bool(0.1) {
            let limit = match self.planted {
                Planted::EarlyFlush => d.applied,
                _ => d.applied.min(taken),
            };
            d.flushed = d.flushed.max(limit.min(d.really_synced as u64));
        }
    }

    fn step(&mut self) {
        self.now += 1;
        while let Some(entry) = self.network.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, bytes) = entry.remove();
            for m in message::read(&bytes).unwrap() {
                self.with(to, |member| member.receive(vec![m]));
            }
        }
        for at in 0..self.nodes.len() {
            self.nodes[at].disk.0.borrow_mut().now = self.now + self.nodes[at].skew;
            if self.nodes[at].member.is_none() && self.nodes[at].asleep_until <= self.now {
                match self.nodes[at].lost {
                    true => self.ask_to_begin(at),
                    false => self.start(at),
                }
            }
            if self.now % 100 == at as u64 * 7 {
                self.with(at, Member::tick);
                self.reconcile(at);
            }
            let wants = self.nodes[at].disk.0.borrow().wants_sync;
            if wants && self.rng.random_bool(0.5) || self.rng.random_bool(0.01) {
                self.sync(at);
            }
            let (writes, decides) = (self.rng.random_bool(0.05), self.rng.random_bool(0.05));
            if writes && self.quiet_until <= self.now {
                self.write(at);
            }
            if decides {
                self.decide(at);
            }
        }
        if self.faulty {
            self.do_harm();
            self.lose_a_disk();
        }
        self.look_for_healed();
        self.check();
    }

    fn do_harm(&mut self) {
        if self.rng.random_bool(0.0006) {
            let at = self.rng.random_range(0..self.nodes.len());
            if self.nodes[at].member.is_some() {
                self.crash(at);
            }
        }
        if self.rng.random_bool(0.0006) {
            self.parted.clear();
            let one = self.rng.random_range(0..self.nodes.len());
            let both = self.rng.random_bool(0.5);
            let inward = self.harsh && !both && self.rng.random_bool(0.5);
            for other in (0..self.nodes.len()).filter(|o| *o != one) {
                if !inward {
                    self.parted.insert((one, other));
                }
                if both || inward {
                    self.parted.insert((other, one));
                }
            }
        }
        if self.rng.random_bool(0.001) {
            self.parted.clear();
        }
        if self.rng.random_bool(0.0002) {
            let at = self.rng.random_range(0..self.nodes.len());
            let says_so = self.harsh && self.rng.random_bool(0.5);
            let mut d = self.nodes[at].disk.0.borrow_mut();
            (d.broken, d.fails) = (!says_so, says_so);
        }
        // A primary that has sent all that it made is deposed without a restart.
        if self.rng.random_bool(0.0005) {
            self.quiet_until = self.now + self.rng.random_range(0..5000);
        }
        if self.rng.random_bool(0.0005) {
            let to = self.rng.random_range(0..self.nodes.len());
            self.step_down(to);
        }
    }

    /// The primary hands its part over, as the driver does.
    fn step_down(&mut self, to: usize) {
        let is_primary =
            |n: &Node| (n.member.as_ref()).is_some_and(|m| m.role() == MemberRole::Primary);
        let Some(at) = self.nodes.iter().position(is_primary) else {
            return;
        };
        let config = self.nodes[at].disk.0.borrow().state.config.clone();
        let member = config.and_then(|c| c.member(to as i32).cloned());
        if member.is_some_and(|m| !m.is_electable()) {
            return;
        }
        if self.planted != Planted::LateWrite {
            self.nodes[at].disk.0.borrow_mut().open = 0;
        }
        self.with(at, |m| m.hand_over(raft_id(to as i32)));
    }

    fn check(&mut self) {
        for node in &self.nodes {
            let Some(member) = &node.member else { continue };
            let d = node.disk.0.borrow();
            let commit = member.commit_index().min(d.log.len() as u64);
            let known = self.committed.keys().next_back().copied().unwrap_or(0);
            for index in (known + 1)..=commit {
                self.committed
                    .insert(index, d.log[index as usize - 1].payload.clone());
            }
            for index in commit.saturating_sub(3)..=commit {
                if index > 0 {
                    let here = &d.log[index as usize - 1].payload;
                    assert_eq!(here, &self.committed[&index], "two entries at {index}");
                }
            }
        }
        let (nodes, planted) = (&self.nodes, self.planted);
        let acknowledged = &mut self.acknowledged;
        self.pending.retain(|(at, index, term, payload)| {
            let Some(member) = &nodes[*at].member else {
                return false;
            };
            if member.role() != MemberRole::Primary || member.term() != *term {
                return false;
            }
            let early = u64::from(planted == Planted::CountedEarly);
            let reached = member.commit_index() + early >= *index;
            if reached {
                acknowledged.push((*index, payload.clone()));
            }
            !reached
        });
    }

    /// No more faults from now on.
    fn calm(&mut self) {
        self.faulty = false;
        self.parted.clear();
        for at in 0..self.nodes.len() {
            self.nodes[at].disk.0.borrow_mut().faulty = false;
            let broken = self.nodes[at].disk.0.borrow().broken;
            match self.nodes[at].member.is_some() {
                true if broken => self.crash(at),
                _ => {
                    let mut d = self.nodes[at].disk.0.borrow_mut();
                    (d.broken, d.fails) = (false, false);
                }
            }
        }
    }

    /// On a network that works, all members come to one log that has all that was acknowledged.
    fn settle(&mut self) {
        self.calm();
        for _ in 0..30_000 {
            self.step();
        }
        for (index, payload) in &self.acknowledged {
            assert_eq!(
                self.committed.get(index),
                Some(payload),
                "{index} was acknowledged"
            );
        }
        let mut before = 0;
        for (number, seen) in self.committed.values().filter_map(|p| decision(p)) {
            assert_eq!(
                seen, before,
                "{number} was decided by what others had changed"
            );
            before = number;
        }
        for node in &self.nodes {
            let (d, m) = (node.disk.0.borrow(), node.member.as_ref());
            let m = m.map(|m| {
                (
                    m.role(),
                    m.term(),
                    m.leader(),
                    m.commit_index(),
                    m.voters().voters.clone(),
                    m.voters().learners.clone(),
                )
            });
            println!(
                "{:?} log {} synced {} applied {} flushed {}",
                m,
                d.log.len(),
                d.synced,
                d.applied,
                d.flushed
            );
        }
        let primaries = self.nodes.iter().filter(|n| {
            n.member
                .as_ref()
                .is_some_and(|m| m.role() == MemberRole::Primary)
        });
        assert_eq!(primaries.count(), 1, "one primary");
        let last = *self.committed.keys().next_back().unwrap();
        for (at, node) in self.nodes.iter().enumerate() {
            let d = node.disk.0.borrow();
            // Writes of the last seconds, by clocks that differ, wait on a delayed member.
            let behind = if d.state.delay_millis() > 0 {
                1000
            } else {
                200
            };
            assert!(
                d.applied + behind > last,
                "member {at} is at {} of {last}",
                d.applied
            );
            for (n, applied) in d.engine.iter().enumerate() {
                if let Some(committed) = self.committed.get(&(n as u64 + 1)) {
                    assert_eq!(
                        applied,
                        committed,
                        "member {at} has another entry {}",
                        n + 1
                    );
                }
            }
        }
    }
}

fn run(seed: u64, planted: Planted) -> Sim {
    let mut sim = Sim::new(seed, planted);
    for _ in 0..30_000 {
        sim.step();
    }
    sim.settle();
    sim
}

/// Seeds in which entries of two terms have one index on a member that was primary, in which a member
/// dies between two changes of voters, and in which only one that may not be primary has an entry.
const TELLING: [u64; 3] = [6272, 202_290, 500_305];

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

#[test]
fn nothing_that_was_acknowledged_is_lost() {
    let first = from_env("PANDO_SEED", 1);
    let (mut acknowledged, mut restarts, mut cuts) = (0, 0, 0);
    for seed in (first..first + from_env("PANDO_SEEDS", 10)).chain(TELLING) {
        println!("PANDO_SEED={seed}");
        let sim = run(seed, Planted::Nothing);
        acknowledged += sim.acknowledged.len();
        restarts += sim.restarts;
        cuts += sim.nodes.iter().map(|n| n.disk.0.borrow().cut).sum::<u64>();
        assert!(
            sim.acknowledged.len() > 100,
            "seed {seed}: only {} writes",
            sim.acknowledged.len()
        );
    }
    println!(
        "{acknowledged} acknowledged writes, {restarts} members started again to take writes back, \
         entries were cut {cuts} times"
    );
}

#[test]
fn a_seed_replays_a_run() {
    let trace = || run(3, Planted::Nothing).trace.finish();
    assert_eq!(trace(), trace());
}

/// Also right after a tick in which the quorum was checked: a driver may look at any moment.
#[test]
fn a_primary_that_is_answered_by_all_says_so_at_any_moment() {
    let mut sim = Sim::new(2, Planted::Nothing);
    sim.faulty = false;
    for node in &sim.nodes {
        node.disk.0.borrow_mut().faulty = false;
    }
    let mut looked = 0;
    for step in 0..20_000 {
        sim.step();
        let members = sim.nodes.iter().filter_map(|n| n.member.as_ref());
        for m in members.filter(|m| step > 10_000 && m.role() == MemberRole::Primary) {
            let unheard = m.progress().into_iter().find(|(_, _, heard)| !heard);
            assert_eq!(unheard, None, "at step {step}");
            looked += 1;
        }
    }
    assert!(looked > 9000, "{looked}");
}

#[test]
#[ignore = "minutes: looks for planted bugs"]
fn planted_bugs_are_found() {
    for planted in [
        Planted::SkippedSync,
        Planted::ForgottenVote,
        Planted::EarlyFlush,
        Planted::CountedEarly,
        Planted::OldDecision,
        Planted::LateWrite,
        Planted::SavedAhead,
        Planted::SavedShort,
    ] {
        let found = (1..=from_env("PANDO_SEEDS", 500))
            .find(|seed| std::panic::catch_unwind(|| run(*seed, planted)).is_err());
        println!("{planted:?}: found by seed {found:?}");
        assert!(found.is_some(), "{planted:?}");
    }
}
