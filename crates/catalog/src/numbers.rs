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
//! are there at once. Another primary has counted on meanwhile: a later epoch looks again where the
//! numbers stand.

use errors::Result;
use parking_lot::Mutex;
use storage::Epoch;

/// The number of `_id_` among the indexes of a collection whose records lie under numbers.
pub const ID_INDEX: u32 = planner::ID_INDEX;

/// The bytes of a number in keys and values.
pub const NUMBER: usize = 8;

/// Where the numbers of a collection stand; shared by all its versions.
#[derive(Default)]
pub struct Numbers {
    at: Mutex<At>,
}

#[derive(Default)]
struct At {
    /// The epoch in which the last number was looked up.
    epoch: Epoch,
    /// The next one; 0 until then.
    next: u64,
}

impl Numbers {
    /// Takes so many numbers that follow each other, and gives the first. `last` looks for the highest
    /// one that a record has: it is asked before the first number of an epoch is given, when no record
    /// can have been added in it. `epoch`: when the insertion began; one of an earlier epoch than others
    /// have numbers of is not going to be appended.
    pub fn take(
        &self,
        many: u64,
        epoch: Epoch,
        last: impl FnOnce() -> Result<Option<u64>>,
    ) -> Result<u64> {
        let mut at = self.at.lock();
        if at.next == 0 || at.epoch < epoch {
            let first = last()?.map_or(1, |n| n.saturating_add(1));
            // What this process has given before stays given: a cursor may have read up to it.
            at.next = at.next.max(first);
            at.epoch = epoch;
        }
        let first = at.next;
        at.next = first.saturating_add(many);
        assert!(
            first > 0 && at.next - first == many,
            "a number is given to one record only"
        );
        Ok(first)
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
        assert_eq!(n.take(3, Epoch::default(), || Ok(Some(7))).unwrap(), 8);
        assert_eq!(
            n.take(1, Epoch::default(), || panic!("asked twice"))
                .unwrap(),
            11
        );
        assert_eq!(
            Numbers::default()
                .take(1, Epoch::default(), || Ok(None))
                .unwrap(),
            1
        );
    }

    #[test]
    fn another_primary_has_counted_on() {
        let n = Numbers::default();
        let terms = [2, 4].map(Epoch::of_term);
        assert_eq!(n.take(3, terms[0], || Ok(Some(7))).unwrap(), 8);
        assert_eq!(n.take(1, terms[1], || Ok(Some(50))).unwrap(), 51);
        assert_eq!(n.take(1, terms[1], || panic!("asked twice")).unwrap(), 52);
        // An insertion that is refused later takes nothing that is given already.
        assert_eq!(n.take(1, terms[0], || panic!("asked twice")).unwrap(), 53);
    }

    #[test]
    fn no_number_is_given_twice() {
        let n = Numbers::default();
        let mut all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..500)
                            .map(|_| n.take(2, Epoch::default(), || Ok(None)).unwrap())
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
