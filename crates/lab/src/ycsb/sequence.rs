//! The numbers of records being inserted, shared by all lanes: which is next, and up to which all are acknowledged.
//!
//! Invariant: every number below `acknowledged` was inserted, so that a read of one finds it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub struct KeySequence {
    next: AtomicU64,
    acknowledged: AtomicU64,
    /// Numbers acknowledged out of order, all above `acknowledged`.
    ahead: Mutex<BTreeSet<u64>>,
}

impl KeySequence {
    pub fn new(start: u64) -> KeySequence {
        KeySequence {
            next: AtomicU64::new(start),
            acknowledged: AtomicU64::new(start),
            ahead: Mutex::new(BTreeSet::new()),
        }
    }

    /// Takes `n` numbers; gives the first.
    pub fn take(&self, n: u64) -> u64 {
        self.next.fetch_add(n, Ordering::Relaxed)
    }

    /// Takes up to `n` numbers below `end`; gives the first and how many.
    pub fn take_below(&self, n: u64, end: u64) -> Option<(u64, u64)> {
        let first = self.take(n);
        (first < end).then(|| (first, n.min(end - first)))
    }

    pub fn acknowledge(&self, first: u64, n: u64) {
        let Ok(mut ahead) = self.ahead.lock() else {
            return;
        };
        let mut limit = self.acknowledged.load(Ordering::Relaxed);
        if first == limit && ahead.is_empty() {
            limit += n;
        } else {
            ahead.extend(first..first + n);
            while ahead.remove(&limit) {
                limit += 1;
            }
        }
        self.acknowledged.store(limit, Ordering::Release);
    }

    /// All numbers below are acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_hold_the_limit_back() {
        let s = KeySequence::new(10);
        assert_eq!((s.take(1), s.take(3), s.take(1)), (10, 11, 14));
        s.acknowledge(14, 1);
        s.acknowledge(11, 3);
        assert_eq!(s.acknowledged(), 10);
        s.acknowledge(10, 1);
        assert_eq!(s.acknowledged(), 15);
        assert_eq!(s.take_below(10, 17), Some((15, 2)));
        assert_eq!(s.take_below(10, 17), None);
    }
}
