//! One state of all shards, at a time that is chosen for it.
//!
//! ```text
//! all shards keep their state at T, and say what is prepared in it     (a log that is later: another T)
//! who decides that says whether it had committed at T ─► shown where it is prepared, or not; then read
//! ```
//!
//! Invariant: a transaction over several shards is seen at T on all of them or on none. Its decision
//! is in the deciding shard's state at T, or it comes later. Where it has taken effect by T elsewhere,
//! it was decided before: what a shard writes for a router is later than what the router has seen.

use crate::two_phase::Shard;
use errors::{Result, err};

/// How often a time is chosen anew, because a shard's log was past it.
const TRIES: u32 = 12;
/// How far ahead of the last seen time the first try is, in increments; each later one is twice as far.
const AHEAD: u64 = 64;

/// What a shard is asked, of its state at that time. `Id` names a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask<Id> {
    /// To keep it.
    Pin,
    /// Whether these had committed in it, by decision of the shard.
    Committed(Vec<Id>),
    /// To show in it what these have prepared, and nothing else that is prepared in it.
    Include(Vec<Id>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<Id> {
    /// Kept, with the transactions prepared in it and the shard that coordinates each.
    Pinned(Vec<(Shard, Id)>),
    /// The log is at this time already.
    Late(u64),
    Committed(Vec<bool>),
    Included,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Pinning,
    Asking,
    Including,
    Done,
}

/// A transaction prepared on a shard, and its coordinator.
#[derive(Clone, Debug)]
struct Prepared<Id> {
    on: Shard,
    recovery: Shard,
    id: Id,
    /// Whether that had committed at that time, once it is known.
    committed: bool,
}

/// One snapshot on its way.
#[derive(Clone, Debug)]
pub struct Pinning<Id> {
    shards: Vec<Shard>,
    at: u64,
    tries: u32,
    phase: Phase,
    prepared: Vec<Prepared<Id>>,
}

impl<Id: Clone + PartialEq> Pinning<Id> {
    /// `seen`: the latest time that was heard of.
    pub fn new(shards: Vec<Shard>, seen: u64) -> Pinning<Id> {
        Pinning {
            shards,
            at: seen + AHEAD,
            tries: 1,
            phase: Phase::Pinning,
            prepared: Vec::new(),
        }
    }

    /// The time of the state.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next requests, at most one for each shard; none at the end.
    pub fn asks(&self) -> Vec<(Shard, Ask<Id>)> {
        match self.phase {
            Phase::Pinning => self.shards.iter().map(|s| (s.clone(), Ask::Pin)).collect(),
            Phase::Asking => self.grouped(|p| &p.recovery, |_| true, Ask::Committed),
            Phase::Including => self.grouped(|p| &p.on, |p| p.committed, Ask::Include),
            Phase::Done => Vec::new(),
        }
    }

    fn grouped(
        &self,
        by: impl Fn(&Prepared<Id>) -> &Shard,
        which: impl Fn(&Prepared<Id>) -> bool,
        ask: impl Fn(Vec<Id>) -> Ask<Id>,
    ) -> Vec<(Shard, Ask<Id>)> {
        let mut groups: Vec<(Shard, Vec<Id>)> = Vec::new();
        for one in &self.prepared {
            let at = groups.iter().position(|(shard, _)| shard == by(one));
            let at = at.unwrap_or_else(|| {
                groups.push((by(one).clone(), Vec::new()));
                groups.len() - 1
            });
            // Asked of one shard, for several that have prepared it.
            let ids = &mut groups[at].1;
            if which(one) && !ids.contains(&one.id) {
                ids.push(one.id.clone());
            }
        }
        groups
            .into_iter()
            .map(|(shard, ids)| (shard, ask(ids)))
            .collect()
    }

    /// Takes the answers to all of [`Pinning::asks`], in the same order. `seen`: the latest time that
    /// was heard of.
    pub fn heard(&mut self, answers: Vec<Answer<Id>>, seen: u64) -> Result<()> {
        let asked = self.asks();
        match self.phase {
            Phase::Pinning => return self.pinned(answers, seen),
            Phase::Asking => {
                let mut committed: Vec<(Shard, Id)> = Vec::new();
                for ((shard, ask), answer) in asked.into_iter().zip(answers) {
                    if let (Ask::Committed(ids), Answer::Committed(known)) = (ask, answer) {
                        let had = ids.into_iter().zip(known).filter(|(_, had)| *had);
                        committed.extend(had.map(|(id, _)| (shard.clone(), id)));
                    }
                }
                for p in &mut self.prepared {
                    let had = |(shard, id): &(Shard, Id)| *shard == p.recovery && *id == p.id;
                    p.committed = committed.iter().any(had);
                }
                self.phase = Phase::Including;
            }
            Phase::Including | Phase::Done => self.phase = Phase::Done,
        }
        self.skip();
        Ok(())
    }

    fn pinned(&mut self, answers: Vec<Answer<Id>>, seen: u64) -> Result<()> {
        let late = answers.iter().filter_map(|a| match a {
            Answer::Late(time) => Some(*time),
            _ => None,
        });
        if let Some(latest) = late.max() {
            if self.tries >= TRIES {
                let e = err!(
                    SnapshotUnavailable,
                    "no time was found at which all shards could keep their state"
                );
                return Err(e.with_label("TransientTransactionError").into());
            }
            self.at = latest.max(seen) + (AHEAD << self.tries);
            self.tries += 1;
            return Ok(());
        }
        for (on, answer) in self.shards.iter().zip(answers) {
            if let Answer::Pinned(list) = answer {
                let of = |(recovery, id)| Prepared {
                    on: on.clone(),
                    recovery,
                    id,
                    committed: false,
                };
                self.prepared.extend(list.into_iter().map(of));
            }
        }
        self.phase = Phase::Asking;
        self.skip();
        Ok(())
    }

    /// A step without requests is done.
    fn skip(&mut self) {
        if self.prepared.is_empty() {
            self.phase = Phase::Done;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards() -> Vec<Shard> {
        ["a", "b", "c", "d"].map(Shard::from).to_vec()
    }

    #[test]
    fn what_had_committed_is_shown_where_it_is_prepared() {
        let mut pinning = Pinning::new(shards(), 100);
        assert_eq!((pinning.at(), pinning.asks().len()), (164, 4));
        let late = vec![
            Answer::Late(500),
            Answer::Pinned(Vec::new()),
            Answer::Pinned(Vec::new()),
            Answer::Pinned(Vec::new()),
        ];
        pinning.heard(late, 300).unwrap();
        assert_eq!(pinning.at(), 628);
        let on = |list: &[u32]| Answer::Pinned(list.iter().map(|n| ("a".into(), *n)).collect());
        pinning
            .heard(vec![on(&[]), on(&[1, 2]), on(&[2]), on(&[1])], 300)
            .unwrap();
        let asks = pinning.asks();
        assert_eq!(asks, [("a".into(), Ask::Committed(vec![1, 2]))]);
        pinning
            .heard(vec![Answer::Committed(vec![false, true])], 300)
            .unwrap();
        // Also where nothing is to be shown: the state is read only then.
        let include = |shard: &str, ids: &[u32]| (Shard::from(shard), Ask::Include(ids.to_vec()));
        let asks = [include("b", &[2]), include("c", &[2]), include("d", &[])];
        assert_eq!(pinning.asks(), asks);
        pinning
            .heard(vec![Answer::Included; asks.len()], 300)
            .unwrap();
        assert!(pinning.asks().is_empty());
    }

    #[test]
    fn it_is_not_tried_for_ever() {
        let mut pinning: Pinning<u32> = Pinning::new(vec!["a".into()], 0);
        let mut tries = 1;
        while pinning.heard(vec![Answer::Late(pinning.at())], 0).is_ok() {
            tries += 1;
        }
        assert_eq!(tries, TRIES);
    }
}
