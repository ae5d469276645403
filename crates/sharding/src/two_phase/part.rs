//! A shard's part in a transaction over several, as its session knows it: what the shard says when it
//! is asked what became of the transaction.

use std::cmp::Ordering;

/// Where the newest transaction of a session stands on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The number is that of a retryable write that was executed.
    Written,
    /// It has not committed, and nothing that is stored says that it will: in memory, or unheard of.
    Open,
    /// It waits for another shard's decision.
    Prepared,
    Committed,
    Aborted,
}

/// What the shard answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It has committed; where the decision is stored, others may not have been told.
    Committed,
    /// It will not commit, as is recorded before the answer.
    Ends,
    /// It has not committed, and never will.
    Aborted,
    /// The session has gone on: it commits no more, and if it has, all others have been told.
    Past,
    /// Another shard decides.
    Another,
}

/// What the shard that decides answers. `decided`: the decision to commit is stored; `number` is the
/// transaction, `newest` that of the session's newest one, which stands at `phase`.
///
/// Invariant: after an answer no other one is true.
pub fn outcome(decided: bool, number: i64, newest: i64, phase: Phase) -> Known {
    if decided {
        return Known::Committed;
    }
    match (number.cmp(&newest), phase) {
        (Ordering::Less, _) => Known::Past,
        (Ordering::Greater, _) => Known::Ends,
        (Ordering::Equal, Phase::Committed) => Known::Committed,
        (Ordering::Equal, Phase::Prepared) => Known::Another,
        (Ordering::Equal, Phase::Written) => Known::Aborted,
        (Ordering::Equal, Phase::Open | Phase::Aborted) => Known::Ends,
    }
}
