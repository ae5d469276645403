//! Sets whose majority is gone for good: one of those that are left goes on by force.

use super::disk::Planted;
use super::{Sim, from_env};
use rand::Rng;
use rand::seq::SliceRandom;
use replication::Config;
use replication::member::{Member, MemberRole, raft_id};

/// Faults, a calm time, and then most members are gone. Gives those that are left, the one with most
/// first.
fn lose_a_majority(sim: &mut Sim) -> Vec<usize> {
    for _ in 0..15_000 {
        sim.step();
    }
    sim.calm();
    for _ in 0..5_000 {
        sim.step();
    }
    let mut all: Vec<usize> = (0..sim.nodes.len()).collect();
    all.shuffle(&mut sim.rng);
    let mut left = all.split_off(all.len() / 2 + 1);
    for lost in all {
        sim.crash(lost);
        sim.nodes[lost].asleep_until = u64::MAX;
    }
    for _ in 0..5_000 {
        sim.step();
    }
    let commit = |at: &usize| {
        let member = sim.nodes[*at].member.as_ref();
        member.map_or(0, Member::commit_index)
    };
    left.sort_by_key(|at| std::cmp::Reverse(commit(at)));
    left
}

/// What only the lost members knew as committed is not asked for any more.
fn forget_what_is_lost(sim: &mut Sim, one: usize) {
    let log = sim.nodes[one].disk.0.borrow().log.clone();
    let is_there = |index: u64, payload: &[u8]| {
        log.get(index as usize - 1)
            .is_some_and(|e| e.payload == payload)
    };
    sim.committed
        .retain(|index, payload| is_there(*index, payload));
    sim.acknowledged
        .retain(|(index, payload)| is_there(*index, payload));
}

fn config_of_those_left(config: &Config, left: &[usize]) -> Config {
    let mut config = config.clone();
    config.version += 1;
    config.members.retain(|m| left.contains(&(m.id as usize)));
    for member in &mut config.members {
        (member.delay_secs, member.priority, member.hidden) = (0, 1.0, false);
    }
    config
}

#[test]
fn who_is_left_goes_on_and_comes_to_the_same_voters() {
    let first = from_env("PANDO_SEED", 1);
    for seed in first..first + from_env("PANDO_SEEDS", 10) {
        println!("PANDO_SEED={seed}");
        let mut sim = Sim::new(seed, Planted::Nothing);
        let left = lose_a_majority(&mut sim);
        forget_what_is_lost(&mut sim, left[0]);
        let member = sim.nodes[left[0]].member.take().unwrap();
        assert!(!member.hears_of_primary(), "seed {seed}");
        let config = config_of_those_left(member.config().unwrap(), &left);
        let chance = sim.rng.random();
        sim.nodes[left[0]].member = Some(member.force_reconfig(config, chance).unwrap());
        sim.with(left[0], Member::campaign);
        // A start in between goes on from the saved state.
        if sim.rng.random_bool(0.5) {
            sim.crash(left[0]);
        }
        let before = sim.acknowledged.len();
        for _ in 0..20_000 {
            sim.step();
        }
        let mut voters: Vec<u64> = left.iter().map(|at| raft_id(*at as i32)).collect();
        voters.sort();
        let mut primaries = 0;
        for at in &left {
            let member = sim.nodes[*at].member.as_ref().unwrap();
            let mut known = member.voters().voters.clone();
            known.sort();
            assert_eq!(known, voters, "seed {seed}: the voters of member {at}");
            primaries += usize::from(member.role() == MemberRole::Primary);
        }
        assert_eq!(primaries, 1, "seed {seed}");
        assert!(sim.acknowledged.len() > before + 100, "seed {seed}");
        for (index, payload) in &sim.acknowledged {
            assert_eq!(
                sim.committed.get(index),
                Some(payload),
                "seed {seed}: {index}"
            );
        }
    }
}
