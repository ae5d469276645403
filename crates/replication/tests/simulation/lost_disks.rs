//! Disks that are lost whole, or damaged: a member comes back with nothing, and is taken in again by the others. A
//! damaged log is one that the real log's recovery refuses: its server does not start, and gets an empty directory.
//!
//! At a time no more members lose their data than a set can bear: with more, acknowledged writes may be
//! gone, whatever is done.

use super::disk::{Planted, SimLog};
use super::{Sim, from_env, torn};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use replication::member::{Member, MemberRole, raft_id};

/// What became of the disks of a run.
#[derive(Default)]
pub struct Losses {
    /// Members whose data is not whole again.
    pub without: Vec<usize>,
    pub count: u64,
    pub healed: u64,
    /// Those of them whose log had another bit.
    pub damaged: u64,
}

impl Sim {
    fn newest_primary(&self) -> Option<&Member<SimLog>> {
        newest(self.nodes.iter().filter_map(|n| n.member.as_ref()))
    }

    /// Whether a majority of the voters has its data also without that member, whichever of the members that
    /// have theirs knows the voters. Of two voters none can be lost.
    fn bears_the_loss_of(&self, at: usize) -> bool {
        let without = self.losses.as_ref().map_or(&[][..], |l| &l.without);
        let is_whole = |id: &&u64| {
            let mut gone = without.iter().chain([&at]);
            gone.all(|at| raft_id(*at as i32) != **id)
        };
        let bears = |voters: &[u64]| {
            voters.len() > 2 && voters.iter().filter(is_whole).count() > voters.len() / 2
        };
        let nodes = self.nodes.iter().enumerate();
        let known = nodes.filter(|(n, _)| !without.contains(n));
        let mut members = known.filter_map(|(_, n)| n.member.as_ref());
        self.newest_primary().is_some() && members.all(|m| bears(&m.voters().voters))
    }

    /// Now and then a member's disk is replaced by an empty one.
    pub(super) fn lose_a_disk(&mut self) {
        let Some(losses) = &self.losses else { return };
        if !self.rng.random_bool(0.0004) {
            return;
        }
        let at = self.rng.random_range(0..self.nodes.len());
        if losses.without.contains(&at) || !self.bears_the_loss_of(at) {
            return;
        }
        self.crash(at);
        let damaged = self.rng.random_bool(0.5);
        if damaged {
            let mut rng = StdRng::seed_from_u64(self.rng.random());
            let log = &self.nodes[at].disk.0.borrow().log;
            // Damage that looks like a torn tail is not recognised: the log opens with a prefix of its
            // entries.
            if log.is_empty() || !torn::is_refused_with_damage(log, &mut rng) {
                return;
            }
        }
        let new = SimLog::default();
        {
            let old = self.nodes[at].disk.0.borrow();
            let mut d = new.0.borrow_mut();
            d.state.id = old.state.id;
            d.state.config = old.state.config.clone();
            d.state.voters.voters = vec![1];
            (d.planted, d.faulty, d.harsh) = (old.planted, old.faulty, old.harsh);
            (d.chances, d.made) = (old.chances, old.made);
        }
        self.nodes[at].disk = new;
        self.nodes[at].lost = self.planted != Planted::AsIfNothing;
        let losses = self.losses.get_or_insert_default();
        losses.without.push(at);
        losses.count += 1;
        losses.damaged += u64::from(damaged);
    }

    /// A member that has nothing asks the primary whether it may begin.
    pub(super) fn ask_to_begin(&mut self, at: usize) {
        // A question and its answer go both ways, and may be lost.
        if !self.now.is_multiple_of(50) || self.faulty && self.rng.random_bool(0.1) {
            return;
        }
        for other in (0..self.nodes.len()).filter(|o| *o != at) {
            if self.parted.contains(&(at, other)) || self.parted.contains(&(other, at)) {
                continue;
            }
            let member = self.nodes[other].member.as_mut();
            let admitted = member.and_then(|m| m.readmit(raft_id(at as i32)));
            // The answer may be lost.
            if let Some(until) = admitted
                && !(self.faulty && self.rng.random_bool(0.1))
            {
                let until = match self.planted {
                    Planted::VotesTooSoon => 0,
                    _ => until,
                };
                self.nodes[at].disk.0.borrow_mut().state.rejoins_until = until;
                self.nodes[at].lost = false;
                self.start(at);
                return;
            }
        }
    }

    /// A member that votes again, by the knowledge of a primary that can commit, has what the others
    /// had.
    pub(super) fn look_for_healed(&mut self) {
        let Some(losses) = &mut self.losses else {
            return;
        };
        let members = self.nodes.iter().filter_map(|n| n.member.as_ref());
        let Some(primary) = newest(members) else {
            return;
        };
        let nodes = &self.nodes;
        let before = losses.without.len();
        losses.without.retain(|at| {
            let id = raft_id(*at as i32);
            let member = nodes[*at].member.as_ref();
            let votes = |m: &Member<SimLog>| m.voters().voters.contains(&id);
            let taken_in = |m: &Member<SimLog>| m.commit_index() >= primary.commit_index();
            nodes[*at].lost || !votes(primary) || !member.is_some_and(|m| votes(m) && taken_in(m))
        });
        losses.healed += (before - losses.without.len()) as u64;
    }
}

/// Of all that take themselves for primary.
fn newest<'a>(members: impl Iterator<Item = &'a Member<SimLog>>) -> Option<&'a Member<SimLog>> {
    let primaries = members.filter(|m| m.role() == MemberRole::Primary);
    primaries.max_by_key(|m| m.term())
}

fn run(seed: u64, planted: Planted) -> Sim {
    let mut sim = Sim::new(seed, planted);
    sim.losses = Some(Losses::default());
    for _ in 0..60_000 {
        sim.step();
    }
    sim.settle();
    sim
}

#[test]
fn a_member_that_lost_its_disk_comes_back_and_takes_nothing_along() {
    let first = from_env("PANDO_SEED", 1);
    let (mut acknowledged, mut lost, mut healed, mut damaged) = (0, 0, 0, 0);
    for seed in first..first + from_env("PANDO_SEEDS", 10) {
        println!("PANDO_SEED={seed}");
        let sim = run(seed, Planted::Nothing);
        let losses = sim.losses.as_ref().unwrap();
        assert!(
            losses.without.is_empty(),
            "seed {seed}: {:?} did not come back",
            losses.without
        );
        acknowledged += sim.acknowledged.len();
        (lost, healed) = (lost + losses.count, healed + losses.healed);
        damaged += losses.damaged;
    }
    println!(
        "{acknowledged} acknowledged writes, {lost} disks were lost, {damaged} of them damaged"
    );
    assert_eq!(lost, healed);
    assert!(lost > 10 && damaged > 0, "{lost} {damaged}");
}

#[test]
#[ignore = "minutes: looks for planted bugs"]
fn a_member_that_votes_without_what_it_had_is_found() {
    for planted in [Planted::AsIfNothing, Planted::VotesTooSoon] {
        let found = (1..=from_env("PANDO_SEEDS", 2000))
            .find(|seed| std::panic::catch_unwind(|| run(*seed, planted)).is_err());
        println!("{planted:?}: found by seed {found:?}");
        assert!(found.is_some(), "{planted:?}");
    }
}
