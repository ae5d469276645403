//! Every way in which a commit can go: each message may be lost before or after its effect, shards may
//! lose their memory, the coordinator may end at any step, and a resolver may come at any step.

use super::*;
use std::collections::BTreeMap;

/// A shard's part in the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardState {
    /// In memory.
    Open,
    Prepared,
    Committed,
    Aborted,
}

#[derive(Clone)]
struct Shards {
    parts: BTreeMap<Shard, ShardState>,
    /// On the recovery shard: the shards to tell of the commit.
    decision: Option<Vec<Shard>>,
}

fn shard(name: &str) -> Shard {
    Shard::from(name)
}

const RECOVERY: &str = "a";
const ALL: [&str; 3] = ["a", "b", "c"];

impl Shards {
    fn new() -> Shards {
        Shards {
            parts: ALL.iter().map(|s| (shard(s), ShardState::Open)).collect(),
            decision: None,
        }
    }

    fn get(&self, name: &str) -> ShardState {
        self.parts[name]
    }

    fn ask(&mut self, to: &Shard, ask: &CommitRequest) -> CommitAnswer {
        let part = self.parts.get_mut(to).unwrap();
        match (ask, *part) {
            (CommitRequest::Prepare, ShardState::Open | ShardState::Prepared) => {
                *part = ShardState::Prepared
            }
            (CommitRequest::Prepare, _) => return CommitAnswer::No,
            (CommitRequest::Decide(others), ShardState::Open) => {
                *part = ShardState::Committed;
                self.decision = Some(others.clone());
            }
            (CommitRequest::Decide(_), ShardState::Committed) => {}
            (CommitRequest::Decide(_), _) => return CommitAnswer::No,
            (CommitRequest::Outcome, ShardState::Committed) => {
                return CommitAnswer::Committed(self.decision.clone().unwrap_or_default());
            }
            (CommitRequest::Outcome, _) => {
                *part = ShardState::Aborted;
                return CommitAnswer::Aborted;
            }
            (CommitRequest::Commit, ShardState::Prepared) => *part = ShardState::Committed,
            (CommitRequest::Commit, ShardState::Committed) => {}
            (CommitRequest::Commit, _) => panic!("{to} is told to commit what it has not promised"),
            (CommitRequest::Abort, ShardState::Open | ShardState::Prepared) => {
                *part = ShardState::Aborted
            }
            (CommitRequest::Abort, ShardState::Aborted) => {}
            (CommitRequest::Abort, ShardState::Committed) => {
                panic!("{to} has committed and is told to abort")
            }
            (CommitRequest::Forget, _) => self.decision = None,
            (CommitRequest::EndRead, _) => {}
        }
        CommitAnswer::Yes
    }

    /// A new primary: the memory is lost.
    fn restart(&mut self, name: &str) {
        let part = self.parts.get_mut(name).unwrap();
        if *part == ShardState::Open {
            *part = ShardState::Aborted;
        }
    }

    /// What the sweep does, with shards that all answer.
    fn resolve(&mut self) {
        let prepared = |p: &ShardState| *p == ShardState::Prepared;
        let left: Vec<Shard> = match &self.decision {
            Some(others) => others.clone(),
            None => (self.parts.iter().filter(|(_, p)| prepared(p)))
                .map(|(s, _)| s.clone())
                .collect(),
        };
        if left.is_empty() {
            return;
        }
        let mut recovery = Coordinator::recover(shard(RECOVERY), left);
        while recovery.verdict().is_none() {
            let asks = recovery.asks();
            let answers: Vec<CommitAnswer> = asks.iter().map(|(s, a)| self.ask(s, a)).collect();
            recovery.heard(&answers);
        }
    }
}

/// All ways from here on, with so many more faults at the most; how many there were.
fn explore(shards: Shards, coordinator: &State, faults: u32) -> usize {
    let mut ways = 1;
    if faults > 0 {
        // The coordinator ends here.
        check(shards.clone(), None);
        for name in ALL {
            let mut shards = shards.clone();
            shards.restart(name);
            ways += explore_step(shards, coordinator, faults - 1);
        }
        let mut resolved = shards.clone();
        resolved.resolve();
        ways += explore_step(resolved, coordinator, faults - 1);
    }
    ways + explore_step(shards, coordinator, faults)
}

/// A coordinator by what it has heard: it is made again for each way.
#[derive(Clone, Default)]
struct State(Vec<Vec<CommitAnswer>>);

impl State {
    fn coordinator(&self) -> Coordinator {
        let others = vec![shard("b"), shard("c")];
        let mut coordinator = Coordinator::commit(shard(RECOVERY), others, Vec::new());
        self.0.iter().for_each(|answers| coordinator.heard(answers));
        coordinator
    }
}

fn explore_step(shards: Shards, state: &State, faults: u32) -> usize {
    let coordinator = state.coordinator();
    if let Some(verdict) = coordinator.verdict() {
        check(shards, Some(verdict));
        return 1;
    }
    // Each message: heard, or lost before it came, or its answer lost.
    let asks = coordinator.asks();
    let mut ways = 0;
    let combinations = 3usize.pow(asks.len() as u32);
    for n in 0..combinations {
        let fates: Vec<usize> = (0..asks.len())
            .map(|i| n / 3usize.pow(i as u32) % 3)
            .collect();
        let lost = fates.iter().filter(|f| **f > 0).count() as u32;
        if lost > faults {
            continue;
        }
        let mut shards = shards.clone();
        let mut answers = Vec::new();
        for ((to, ask), fate) in asks.iter().zip(&fates) {
            answers.push(match fate {
                0 => shards.ask(to, ask),
                1 => CommitAnswer::Lost,
                _ => {
                    shards.ask(to, ask);
                    CommitAnswer::Lost
                }
            });
        }
        let mut next = state.clone();
        next.0.push(answers);
        ways += explore(shards, &next, faults - lost);
    }
    ways
}

/// After the resolver: all or nothing, and as the client was told.
fn check(mut shards: Shards, told: Option<Verdict>) {
    match told {
        Some(Verdict::Committed) => assert_eq!(shards.get(RECOVERY), ShardState::Committed),
        Some(Verdict::Aborted) => assert_ne!(shards.get(RECOVERY), ShardState::Committed),
        Some(Verdict::Unknown) | None => {}
    }
    shards.resolve();
    // Open parts end with their lifetime.
    ALL.iter().for_each(|s| shards.restart(s));
    let parts: Vec<ShardState> = ALL.iter().map(|s| shards.get(s)).collect();
    let whole = parts.iter().all(|p| *p == ShardState::Committed);
    let nothing = parts.iter().all(|p| *p == ShardState::Aborted);
    assert!(whole || nothing, "{parts:?}");
    assert!(!nothing || told != Some(Verdict::Committed));
    assert!(!whole || told != Some(Verdict::Aborted));
}

#[test]
fn it_is_all_or_nothing_whatever_is_lost() {
    let ways = explore(Shards::new(), &State::default(), 4);
    assert!(ways > 10_000, "{ways}");
}

#[test]
fn without_faults_it_commits_in_five_steps() {
    let mut shards = Shards::new();
    let others = vec![shard("b")];
    let mut coordinator = Coordinator::commit(shard("a"), others, vec![shard("c")]);
    let mut steps = 0;
    while coordinator.verdict().is_none() {
        let asks = coordinator.asks();
        let answers: Vec<CommitAnswer> = asks.iter().map(|(s, a)| shards.ask(s, a)).collect();
        coordinator.heard(&answers);
        steps += 1;
    }
    assert_eq!(
        (steps, coordinator.verdict()),
        (5, Some(Verdict::Committed))
    );
    assert_eq!(shards.decision, None);
    assert_eq!(shards.get("b"), ShardState::Committed);
}

#[test]
fn a_shard_that_does_not_promise_ends_it() {
    let mut shards = Shards::new();
    shards.restart("c");
    let mut coordinator = State::default().coordinator();
    while coordinator.verdict().is_none() {
        let asks = coordinator.asks();
        let answers: Vec<CommitAnswer> = asks.iter().map(|(s, a)| shards.ask(s, a)).collect();
        coordinator.heard(&answers);
    }
    assert_eq!(coordinator.verdict(), Some(Verdict::Aborted));
    assert!(ALL.iter().all(|s| shards.get(s) == ShardState::Aborted));
}
