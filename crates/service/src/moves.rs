//! What this process moves between shards, for `serverStatus`: as a router that was asked to, or as the
//! balancer.
//!
//! Invariant: the remaining work of a move goes with it, however it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub struct Moves {
    pub under_way: AtomicU64,
    pub done: AtomicU64,
    pub failed: AtomicU64,
    /// Documents put at recipients.
    pub documents: AtomicU64,
    pub bytes: AtomicU64,
    left_documents: AtomicU64,
    left_bytes: AtomicU64,
    backlog_documents: AtomicU64,
}

/// What a move has still to do, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemainingWork {
    pub documents: u64,
    pub bytes: u64,
    /// Documents that were touched since they were copied.
    pub backlog: u64,
}

/// A move in progress, until it is dropped.
#[derive(Debug)]
pub struct MoveUnderWay {
    moves: Arc<Moves>,
    left: RemainingWork,
}

impl Moves {
    pub fn begin(self: &Arc<Self>) -> MoveUnderWay {
        self.under_way.fetch_add(1, Relaxed);
        MoveUnderWay {
            moves: self.clone(),
            left: RemainingWork::default(),
        }
    }

    pub fn ended(&self, well: bool) {
        let count = if well { &self.done } else { &self.failed };
        count.fetch_add(1, Relaxed);
    }

    /// Of all in progress.
    pub fn left(&self) -> RemainingWork {
        RemainingWork {
            documents: self.left_documents.load(Relaxed),
            bytes: self.left_bytes.load(Relaxed),
            backlog: self.backlog_documents.load(Relaxed),
        }
    }
}

impl MoveUnderWay {
    /// So much is left of this one now.
    pub fn tell(&mut self, now: RemainingWork) {
        let before = std::mem::replace(&mut self.left, now);
        let m = &self.moves;
        for (sum, before, now) in [
            (&m.left_documents, before.documents, now.documents),
            (&m.left_bytes, before.bytes, now.bytes),
            (&m.backlog_documents, before.backlog, now.backlog),
        ] {
            // Sums wrap back: what one move adds it takes away again.
            sum.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }
}

impl Drop for MoveUnderWay {
    fn drop(&mut self) {
        self.tell(RemainingWork::default());
        self.moves.under_way.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_with_its_move() {
        let moves = Arc::new(Moves::default());
        let left = |documents, bytes, backlog| RemainingWork {
            documents,
            bytes,
            backlog,
        };
        let (mut one, mut other) = (moves.begin(), moves.begin());
        one.tell(left(100, 1000, 0));
        other.tell(left(5, 50, 7));
        one.tell(left(40, 400, 3));
        assert_eq!(moves.left(), left(45, 450, 10));
        drop(one);
        assert_eq!(moves.left(), left(5, 50, 7));
        moves.ended(true);
        drop(other);
        assert_eq!(moves.left(), RemainingWork::default());
        let counts = [&moves.under_way, &moves.done, &moves.failed].map(|n| n.load(Relaxed));
        assert_eq!(counts, [0, 1, 0]);
    }
}
