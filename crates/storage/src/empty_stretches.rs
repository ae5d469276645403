//! Empty stretches of one snapshot: where its own scans have stepped over many markers and have
//! found nothing.
//!
//! A view that is older than a dead range may not use it (see `dead_ranges`). But what one of its
//! scans has seen stays true for the snapshot, whatever is written. So a transaction, or a read at
//! one time, steps over the same markers once.
//!
//! Invariants: stretches do not overlap and do not touch. They are few, and go with the view.

use crate::dead_ranges::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most stretches, and the longest bounds of one, in bytes.
const MOST: usize = 64;
const LONGEST: usize = 4096;

struct Stretch {
    low: Bytes,
    high: Bytes,
    /// About how many markers lie in it.
    weight: u32,
}

pub(crate) struct EmptyStretches {
    /// Whether anything is noted (see `dead_ranges::Mode`).
    is_on: bool,
    any: AtomicBool,
    /// In the order of their keys.
    known: Mutex<Vec<Stretch>>,
}

impl EmptyStretches {
    pub fn new(is_on: bool) -> EmptyStretches {
        EmptyStretches {
            is_on,
            any: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Nothing lives in `[low, high)`.
    pub fn note(&self, low: &[u8], high: &[u8], weight: u32) {
        if !self.is_on || low >= high || low.len() + high.len() > LONGEST {
            return;
        }
        let mut new = Stretch {
            low: low.into(),
            high: high.into(),
            weight,
        };
        let mut known = self.known.lock();
        let begin = known.partition_point(|s| *s.high < *low);
        let end = known.partition_point(|s| *s.low <= *high);
        for old in known.drain(begin..end) {
            new.low = new.low.min(old.low);
            new.high = new.high.max(old.high);
            new.weight = new.weight.saturating_add(old.weight);
        }
        assert!(
            known.get(begin).is_none_or(|next| new.high < next.low)
                && begin
                    .checked_sub(1)
                    .and_then(|before| known.get(before))
                    .is_none_or(|before| before.high < new.low),
            "stretches do not overlap and do not touch"
        );
        known.insert(begin, new);
        if known.len() > MOST {
            let lightest = (0..known.len()).min_by_key(|i| known.get(*i).map(|s| s.weight));
            lightest.map(|i| known.remove(i));
        }
        assert!(known.len() <= MOST, "stretches are few");
        self.any.store(true, Ordering::Relaxed);
    }

    /// The first stretch that overlaps `[low, high)`, or the last.
    pub fn first(&self, low: &[u8], high: &[u8], backward: bool) -> Option<(Bytes, Bytes)> {
        if !self.any() {
            return None;
        }
        let known = self.known.lock();
        let at = match backward {
            false => known.partition_point(|s| *s.high <= *low),
            true => known.partition_point(|s| *s.low < *high).checked_sub(1)?,
        };
        let found = known.get(at)?;
        let overlaps = *found.low < *high && *low < *found.high;
        overlaps.then(|| (found.low.clone(), found.high.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(of: &EmptyStretches, low: u8, high: u8, backward: bool) -> Option<(u8, u8)> {
        let (low, high) = of.first(&[low], &[high], backward)?;
        Some((low[0], high[0]))
    }

    #[test]
    fn stretches_are_joined_and_found_from_both_sides() {
        let of = EmptyStretches::new(true);
        assert_eq!(found(&of, 0, 255, false), None);
        for (low, high) in [(10, 20), (40, 50), (30, 30), (60, 70)] {
            of.note(&[low], &[high], 16);
        }
        assert_eq!(found(&of, 0, 255, false), Some((10, 20)));
        assert_eq!(found(&of, 0, 255, true), Some((60, 70)));
        assert_eq!(found(&of, 20, 40, false), None);
        assert_eq!(found(&of, 20, 40, true), None);
        assert_eq!(found(&of, 19, 40, true), Some((10, 20)));
        assert_eq!(found(&of, 20, 41, false), Some((40, 50)));
        // What touches both sides joins them.
        of.note(&[20], &[45], 16);
        assert_eq!(found(&of, 0, 60, true), Some((10, 50)));
        of.note(&[0], &[200], 16);
        assert_eq!(found(&of, 5, 6, false), Some((0, 200)));
        assert_eq!(of.known.lock().len(), 1);
    }

    #[test]
    fn they_are_few() {
        let of = EmptyStretches::new(true);
        of.note(&[0], &[1], 1000);
        for n in 1..1000u16 {
            of.note(&(2 * n).to_be_bytes(), &(2 * n + 1).to_be_bytes(), 16);
        }
        assert_eq!(of.known.lock().len(), MOST);
        assert_eq!(found(&of, 0, 1, false), Some((0, 1)), "the heaviest stays");
        of.note(&[7; LONGEST], &[8; LONGEST], u32::MAX);
        assert_eq!(of.known.lock().len(), MOST);
    }
}
