//! Records under numbers: the layout of a collection whose `_id`s come in no order, and of a capped
//! one.
//!
//! ```text
//! record key = sequence number u64 BE, from 1
//! tablet | space 4 | 0 | key of `_id`    → the record's number u64 BE | types that the key forgot
//! ```
//! New records come behind all others, whatever their `_id`, and index entries end with eight
//! bytes. `_id_` is index number [`ID_INDEX`], unique as others are, but with one entry for a
//! value: it is found by its whole key.
//!
//! Invariant: a number is given to one record only while the process lives, and never to two that
//! are there at once.

use errors::Result;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of `_id_` among the indexes of a collection whose records lie under numbers.
pub const ID_INDEX: u32 = planner::ID_INDEX;

/// The bytes of a number in keys and values.
pub const NUMBER: usize = 8;

/// Where the numbers of a collection stand; shared by all its versions.
#[derive(Default)]
pub struct Numbers {
    /// The next one; 0 until somebody has looked what the last one is.
    next: AtomicU64,
}

impl Numbers {
    /// Takes so many numbers that follow each other, and gives the first. `last` looks for the
    /// highest one that a record has: it is asked before the first number of the process is given,
    /// when nobody can have put a record.
    pub fn take(&self, many: u64, last: impl FnOnce() -> Result<Option<u64>>) -> Result<u64> {
        if self.next.load(Ordering::Acquire) == 0 {
            let first = last()?.map_or(1, |n| n.saturating_add(1));
            // Whoever comes second counts on from what the first has found.
            let _ = (self.next).compare_exchange(0, first, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(self.next.fetch_add(many, Ordering::AcqRel))
    }
}

/// The record key, without prefix, of a sequence number.
pub fn sequence_key(sequence: u64) -> [u8; NUMBER] {
    sequence.to_be_bytes()
}

/// The sequence number of a record key without its prefix.
pub fn sequence_of(record_key: &[u8]) -> Option<u64> {
    record_key.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_behind_the_last() {
        let n = Numbers::default();
        assert_eq!(n.take(3, || Ok(Some(7))).unwrap(), 8);
        assert_eq!(n.take(1, || panic!("asked twice")).unwrap(), 11);
        assert_eq!(Numbers::default().take(1, || Ok(None)).unwrap(), 1);
    }

    #[test]
    fn no_number_is_given_twice() {
        let n = Numbers::default();
        let mut all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..500)
                            .map(|_| n.take(2, || Ok(None)).unwrap())
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect::<Vec<_>>()
        });
        all.sort();
        assert_eq!(all, (0..2000).map(|i| 1 + 2 * i).collect::<Vec<u64>>());
    }
}
