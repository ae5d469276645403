//! Insert order: whether records arrive in the order of their keys.
//!
//! Records that arrive in order are flushed to files of which each begins where the previous one
//! ends. Compaction moves such a file down unchanged, if it is compressed as the next level is. So
//! compressing at the flush saves one rewrite of each record. Files that overlap are merged anyway,
//! and what the flush compressed would be decompressed again at once.
//!
//! A record is in order when its key is above all keys of about the same second, not just above the
//! last one: several clients may each write batches with growing ids, and their files overlap.

use crate::Effect;
use crate::record_cache::is_record;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The least bytes in a period that allow a decision.
const TELLING_BYTES: u64 = 1 << 20;

/// The bytes of records put since the maintenance thread last looked: all, and those in order.
#[derive(Default)]
pub(crate) struct Arrival {
    all: AtomicU64,
    in_order: AtomicU64,
}

impl Arrival {
    /// Whether nearly all records since the last look came in order; `None` if there were too few
    /// to say.
    pub fn look(&self) -> Option<bool> {
        let in_order = self.in_order.swap(0, Relaxed);
        let all = self.all.swap(0, Relaxed);
        (all >= TELLING_BYTES).then(|| in_order >= all / 16 * 15)
    }
}

/// The highest key since the maintenance thread last looked. The leader of a group owns it.
#[derive(Default)]
pub(crate) struct Highest {
    key: Vec<u8>,
    /// The bytes of the group's records: all, and those in order.
    all: u64,
    in_order: u64,
}

impl Highest {
    /// Called before a group.
    pub fn begin(&mut self, arrival: &Arrival) {
        (self.all, self.in_order) = (0, 0);
        if arrival.all.load(Relaxed) == 0 {
            self.key.clear();
        }
    }

    /// Notes the puts of an entry of the group.
    pub fn note(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Put(key, value) = effect
                && is_record(key)
            {
                self.all += value.len() as u64;
                if *key > self.key {
                    self.in_order += value.len() as u64;
                    self.key.clone_from(key);
                }
            }
        }
    }

    /// Adds the group's bytes to the totals.
    pub fn tell(&self, arrival: &Arrival) {
        if self.all > 0 {
            arrival.all.fetch_add(self.all, Relaxed);
            arrival.in_order.fetch_add(self.in_order, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(space: u8, n: u32) -> Effect {
        let key = [&[0, 0, 0, 0, 0, 0, 0, 9, space][..], &n.to_be_bytes()].concat();
        Effect::Put(key, vec![0; 1000])
    }

    #[test]
    fn one_client_is_in_order_and_two_are_not() {
        let (arrival, mut highest) = (Arrival::default(), Highest::default());
        let records = |from: u32| (from..from + 100).map(|n| put(1, n)).collect::<Vec<_>>();
        for from in (0..2000).step_by(100) {
            let mut group = records(from);
            // Index entries come in no order, and do not count.
            group.extend((0..100).map(|n| put(2, n * 7919 % 101)));
            highest.begin(&arrival);
            highest.note(&group);
            highest.tell(&arrival);
        }
        assert_eq!(arrival.look(), Some(true));
        assert_eq!(arrival.look(), None);
        // From now on another collection, below the first.
        for from in (0..2000).step_by(100) {
            let mut group = records(from);
            for effect in &mut group {
                if let Effect::Put(key, _) = effect {
                    key[7] = 8;
                }
            }
            highest.begin(&arrival);
            highest.note(&group);
            highest.tell(&arrival);
        }
        assert_eq!(arrival.look(), Some(true));
        for from in (0..2000).step_by(100) {
            for from in [from, 1_000_000 + from] {
                highest.begin(&arrival);
                highest.note(&records(from));
                highest.tell(&arrival);
            }
        }
        assert_eq!(arrival.look(), Some(false));
    }
}
