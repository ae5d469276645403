//! The commit of a transaction that has written on several shards, and its recovery.
//!
//! ```text
//! readers end ─► others prepare ─► the recovery shard commits ─► others commit ─► it forgets      committed
//!      └───────────────┴─ no ─► all abort                                                         aborted
//!                                          └─ not known ─► what became of it? ─► others commit, or abort
//! recovery:                                                what became of it? ─► others commit, or abort
//! ```
//!
//! The recovery shard's commit is the decision; it is one with the record of it. To ask what became of
//! it ends what has not committed, for good. So any router may ask, at any time, as often as it likes,
//! with or without the coordinator: there is one outcome.
//!
//! Invariants: no client is told of a commit before a majority of the recovery shard has the decision.
//! No client is told of an abort once the recovery shard may have been asked to commit, unless that
//! shard has said that it never will.

pub mod part;

use std::sync::Arc;

/// A shard's name.
pub type Shard = Arc<str>;

/// What a shard is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitRequest {
    /// To commit what has only read.
    EndRead,
    /// To promise to commit.
    Prepare,
    /// The recovery shard: to commit, and to remember these others.
    Decide(Vec<Shard>),
    /// The recovery shard: what became of it.
    Outcome,
    Commit,
    Abort,
    /// The recovery shard: to forget the decision, of which all others have heard.
    Forget,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitAnswer {
    Yes,
    No,
    /// It is not known.
    Lost,
    /// To [`CommitRequest::Outcome`], with others that may not have been told.
    Committed(Vec<Shard>),
    /// To [`CommitRequest::Outcome`].
    Aborted,
}

/// The outcome, for the client that asked for the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Committed,
    Aborted,
    /// The recovery shard was not reached: it is to be asked again.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reading,
    Preparing,
    Deciding,
    Resolving,
    Committing,
    Forgetting,
    Aborting,
    Ended(Verdict),
}

/// How often the same is sent to a shard that does not answer.
const TRIES: u32 = 3;

/// One commit, or one recovery.
pub struct Coordinator {
    recovery: Shard,
    readers: Vec<Shard>,
    /// Those that are to hear the decision.
    others: Vec<Shard>,
    /// Those of them that have not yet.
    left: Vec<Shard>,
    tries: u32,
    phase: Phase,
    /// Whether the recovery shard still has to abort.
    recovery_open: bool,
}

impl Coordinator {
    /// Of a commit: the recovery shard and `others` have been written to, `readers` have not.
    pub fn commit(recovery: Shard, others: Vec<Shard>, readers: Vec<Shard>) -> Coordinator {
        let phase = match readers.is_empty() {
            true => Phase::Preparing,
            false => Phase::Reading,
        };
        Coordinator {
            left: others.clone(),
            recovery,
            readers,
            others,
            tries: 0,
            phase,
            recovery_open: true,
        }
    }

    /// Ends a transaction that its router has abandoned. `others` may have a part in it.
    pub fn recover(recovery: Shard, others: Vec<Shard>) -> Coordinator {
        Coordinator {
            phase: Phase::Resolving,
            recovery_open: false,
            ..Coordinator::commit(recovery, others, Vec::new())
        }
    }

    /// `None`: there is more to do.
    pub fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Ended(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The next requests, at most one for each shard; none at the end.
    pub fn asks(&self) -> Vec<(Shard, CommitRequest)> {
        let all = |shards: &[Shard], ask: CommitRequest| -> Vec<(Shard, CommitRequest)> {
            shards.iter().map(|s| (s.clone(), ask.clone())).collect()
        };
        let recovery = |ask| vec![(self.recovery.clone(), ask)];
        match self.phase {
            Phase::Reading => all(&self.readers, CommitRequest::EndRead),
            Phase::Preparing => all(&self.others, CommitRequest::Prepare),
            Phase::Deciding => recovery(CommitRequest::Decide(self.others.clone())),
            Phase::Resolving => recovery(CommitRequest::Outcome),
            Phase::Committing => all(&self.left, CommitRequest::Commit),
            Phase::Forgetting => recovery(CommitRequest::Forget),
            Phase::Aborting => {
                let mut asks = all(&self.left, CommitRequest::Abort);
                if self.recovery_open {
                    asks.extend(recovery(CommitRequest::Abort));
                    asks.extend(all(&self.readers, CommitRequest::Abort));
                }
                asks
            }
            Phase::Ended(_) => Vec::new(),
        }
    }

    /// Takes the answers to all of [`Coordinator::asks`], in the same order.
    pub fn heard(&mut self, answers: &[CommitAnswer]) {
        let asked = self.asks();
        assert_eq!(asked.len(), answers.len(), "an answer of each");
        let all = |wanted: CommitAnswer| answers.iter().all(|a| *a == wanted);
        let first = answers.first().cloned().unwrap_or(CommitAnswer::Lost);
        self.tries += 1;
        match self.phase {
            Phase::Reading if all(CommitAnswer::Yes) => self.go(Phase::Preparing),
            Phase::Preparing if all(CommitAnswer::Yes) => self.go(Phase::Deciding),
            Phase::Reading | Phase::Preparing => {
                assert!(
                    self.recovery_open,
                    "an abort is decided before the recovery shard may commit"
                );
                self.go(Phase::Aborting);
            }
            Phase::Deciding => {
                self.recovery_open = false;
                match first {
                    CommitAnswer::Yes => self.go(Phase::Committing),
                    // It may have committed all the same, or be about to.
                    _ => self.go(Phase::Resolving),
                }
            }
            Phase::Resolving => match first {
                CommitAnswer::Committed(participants) => {
                    let known = std::mem::take(&mut self.others);
                    self.others = participants;
                    self.others.extend(known);
                    self.others.sort();
                    self.others.dedup();
                    self.others.retain(|s| *s != self.recovery);
                    self.left = self.others.clone();
                    self.go(Phase::Committing);
                }
                CommitAnswer::Aborted => {
                    self.left.retain(|s| *s != self.recovery);
                    self.go(Phase::Aborting);
                }
                _ if self.tries >= TRIES => self.go(Phase::Ended(Verdict::Unknown)),
                _ => {}
            },
            Phase::Committing => {
                let told = asked.into_iter().zip(answers);
                let missed = told.filter(|(_, a)| **a != CommitAnswer::Yes);
                self.left = missed.map(|((shard, _), _)| shard).collect();
                match self.left.is_empty() {
                    true => self.go(Phase::Forgetting),
                    // The resolver will find it.
                    false if self.tries >= TRIES => self.go(Phase::Ended(Verdict::Committed)),
                    false => {}
                }
            }
            Phase::Forgetting => self.go(Phase::Ended(Verdict::Committed)),
            Phase::Aborting => self.go(Phase::Ended(Verdict::Aborted)),
            Phase::Ended(_) => {}
        }
        // A step without requests is done.
        if self.verdict().is_none() && self.asks().is_empty() {
            self.heard(&[]);
        }
    }

    fn go(&mut self, phase: Phase) {
        self.phase = phase;
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests;
