//! The ranges that are known, by the index that they lie in: found, split, merged and forgotten.
//! What they mean is in `dead_ranges`; nothing here knows of writes and readers.
//!
//! Invariants: ranges of a kind do not overlap. Their number and the bytes of their bounds are
//! bounded once [`Known::make_room`] has run.

use foldhash::HashMap;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

/// A range lies in one index of one tablet: `tablet u64 | space u8 | index id u32`.
pub(super) const PREFIX: usize = 13;
/// The most ranges, and the most bytes of their bounds.
pub(super) const MOST_RANGES: usize = 4096;
pub(super) const MOST_BYTES: usize = 1 << 20;
/// A range that saves fewer markers than this is not kept.
pub(super) const LEAST_WEIGHT: u32 = 8;
/// So many adjacent dead ranges stay apart; the newest of them are not merged, because merging
/// would take the older ones from readers whose state is a little older.
pub(super) const MOST_ADJACENT: usize = 32;
pub(super) const NEWEST_APART: usize = 16;

pub(crate) type Bytes = Box<[u8]>;

pub(super) struct Range {
    pub high: Bytes,
    /// Quiet: since this write. Dead: as of this write.
    pub write: u64,
    /// About how many markers lie in it.
    pub weight: u32,
    /// When it was used last, in seconds of `DeadRanges::second`.
    pub used: AtomicU64,
}

/// Ranges by their lower bounds; they do not overlap.
pub(super) type Ranges = BTreeMap<Bytes, Range>;

#[derive(Default)]
pub(super) struct Index {
    pub quiet: Ranges,
    pub dead: Ranges,
}

#[derive(Default)]
pub(super) struct Known {
    pub indexes: HashMap<[u8; PREFIX], Index>,
    pub ranges: usize,
    pub bytes: usize,
}

/// The first 13 bytes of the keys of `[low, high)`, where all have the same.
pub(super) fn prefix_of(low: &[u8], high: &[u8]) -> Option<[u8; PREFIX]> {
    let prefix: [u8; PREFIX] = low.get(..PREFIX)?.try_into().ok()?;
    let within = high.starts_with(&prefix) || behind_all(&prefix).is_some_and(|end| *high <= *end);
    (within && low < high).then_some(prefix)
}

/// The upper bound of all keys with a prefix.
pub(crate) fn behind_all(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

/// The first key behind `key`.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into_boxed_slice()
}

/// The range that holds `key`.
pub(super) fn holder<'r>(ranges: &'r Ranges, key: &[u8]) -> Option<(&'r Bytes, &'r Range)> {
    let below = ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
    below.last().filter(|(_, range)| *range.high > *key)
}

/// The lower bounds of the ranges that overlap `[low, high)`.
pub(super) fn overlapping<'r>(
    ranges: &'r Ranges,
    low: &[u8],
    high: &[u8],
) -> impl Iterator<Item = (&'r Bytes, &'r Range)> {
    let first = holder(ranges, low).map_or(low, |(start, _)| start);
    ranges.range::<[u8], _>((Bound::Included(first), Bound::Excluded(high)))
}

/// The parts of `[low, high)` that no range covers.
pub(super) fn gaps(ranges: &Ranges, low: &[u8], high: &[u8]) -> Vec<(Bytes, Bytes)> {
    let (mut gaps, mut from) = (Vec::new(), low);
    for (start, range) in overlapping(ranges, low, high) {
        if from < &**start {
            gaps.push((from.into(), start.clone()));
        }
        from = &range.high;
    }
    if from < high {
        gaps.push((from.into(), high.into()));
    }
    gaps
}

impl Known {
    fn grown(&mut self, low: &[u8], high: &[u8]) {
        self.ranges += 1;
        self.bytes += low.len() + high.len();
    }

    fn shrunk(&mut self, low: &[u8], high: &[u8]) {
        self.ranges -= 1;
        self.bytes -= low.len() + high.len();
    }

    pub fn of(&mut self, prefix: &[u8; PREFIX], dead: bool) -> &mut Ranges {
        let index = self.indexes.entry(*prefix).or_default();
        match dead {
            true => &mut index.dead,
            false => &mut index.quiet,
        }
    }

    pub fn insert(&mut self, prefix: &[u8; PREFIX], dead: bool, low: Bytes, range: Range) {
        if *low >= *range.high || range.weight < LEAST_WEIGHT {
            return;
        }
        self.grown(&low, &range.high);
        let before = self.of(prefix, dead).insert(low, range);
        assert!(before.is_none(), "ranges do not overlap");
    }

    pub fn remove(
        &mut self,
        prefix: &[u8; PREFIX],
        dead: bool,
        low: &[u8],
    ) -> Option<(Bytes, Range)> {
        let (low, range) = self.of(prefix, dead).remove_entry(low)?;
        self.shrunk(&low, &range.high);
        Some((low, range))
    }

    /// Takes `[low, high)` out of a range that holds it; the parts on both sides stay.
    pub fn take_out(
        &mut self,
        prefix: &[u8; PREFIX],
        dead: bool,
        at: &[u8],
        low: &[u8],
        high: &[u8],
    ) {
        let Some((start, range)) = self.remove(prefix, dead, at) else {
            return;
        };
        let part = |high: Bytes| Range {
            high,
            write: range.write,
            weight: range.weight / 2,
            used: AtomicU64::new(range.used.load(Ordering::Relaxed)),
        };
        let (before, behind) = (part(low.into()), part(range.high.clone()));
        self.insert(prefix, dead, start, before);
        self.insert(prefix, dead, high.into(), behind);
    }

    /// A key is about to be put.
    pub fn split(&mut self, key: &[u8]) {
        let Some(prefix) = key.get(..PREFIX).and_then(|p| p.try_into().ok()) else {
            return;
        };
        let Some(index) = self.indexes.get(&prefix) else {
            return;
        };
        let at = |ranges| holder(ranges, key).map(|(low, _)| low.clone());
        for (dead, at) in [(false, at(&index.quiet)), (true, at(&index.dead))] {
            if let Some(at) = at {
                self.take_out(&prefix, dead, &at, key, &successor(key));
            }
        }
    }

    pub fn holds(&self, key: &[u8]) -> bool {
        let index = key.get(..PREFIX).and_then(|p| self.indexes.get(p));
        index.is_some_and(|i| holder(&i.quiet, key).is_some() || holder(&i.dead, key).is_some())
    }

    /// Merges adjacent dead ranges around `key` when there are many.
    pub fn merge_around(&mut self, prefix: &[u8; PREFIX], key: &[u8]) {
        let dead = self.of(prefix, true);
        let Some((middle, _)) = holder(dead, key) else {
            return;
        };
        let mut run: Vec<Bytes> = vec![middle.clone()];
        let below = dead.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&**middle)));
        let mut next = middle;
        for (low, range) in below.rev() {
            if range.high != *next {
                break;
            }
            run.push(low.clone());
            next = low;
        }
        run.reverse();
        let mut end = dead.get(middle).map(|r| r.high.clone());
        while let Some(low) = end.take() {
            if let Some(range) = dead.get(&low) {
                end = Some(range.high.clone());
                run.push(low);
            }
        }
        if run.len() <= MOST_ADJACENT {
            return;
        }
        let mut writes: Vec<u64> = run
            .iter()
            .filter_map(|l| Some(dead.get(l)?.write))
            .collect();
        writes.sort_unstable_by(|a, b| b.cmp(a));
        let newest = writes.get(NEWEST_APART - 1).copied().unwrap_or(0);
        let mut open: Option<(Bytes, Range)> = None;
        for low in run {
            let Some((low, range)) = self.remove(prefix, true, &low) else {
                continue;
            };
            open = match open.take() {
                Some((first, mut old)) if old.write <= newest && range.write <= newest => {
                    old.high = range.high;
                    old.write = old.write.max(range.write);
                    old.weight = old.weight.saturating_add(range.weight);
                    old.used
                        .fetch_max(range.used.into_inner(), Ordering::Relaxed);
                    Some((first, old))
                }
                Some((first, old)) => {
                    self.insert(prefix, true, first, old);
                    Some((low, range))
                }
                None => Some((low, range)),
            };
        }
        if let Some((first, old)) = open {
            self.insert(prefix, true, first, old);
        }
    }

    /// Forgets the ranges for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(bool, &Range) -> bool) {
        let (mut ranges, mut bytes) = (0, 0);
        self.indexes.retain(|_, index| {
            for (dead, of) in [(false, &mut index.quiet), (true, &mut index.dead)] {
                of.retain(|low, range| {
                    let kept = keep(dead, range);
                    if kept {
                        ranges += 1;
                        bytes += low.len() + range.high.len();
                    }
                    kept
                });
            }
            !index.quiet.is_empty() || !index.dead.is_empty()
        });
        (self.ranges, self.bytes) = (ranges, bytes);
    }

    /// Forgets the half that was not used for longest, when there are too many.
    pub fn make_room(&mut self) {
        let few = self.ranges.max(self.indexes.len()) <= MOST_RANGES;
        if few && self.bytes <= MOST_BYTES {
            return;
        }
        let mut used = Vec::with_capacity(self.ranges);
        self.retain(|_, range| {
            used.push((range.used.load(Ordering::Relaxed), range.weight));
            true
        });
        if used.is_empty() {
            return;
        }
        let half = used.len() / 2;
        let (_, median, _) = used.select_nth_unstable(half);
        let median = *median;
        let mut spare = half;
        self.retain(|_, range| {
            let rank = (range.used.load(Ordering::Relaxed), range.weight);
            let kept = rank >= median && spare > 0;
            spare -= usize::from(kept);
            kept
        });
        assert!(self.ranges <= MOST_RANGES, "ranges are bounded");
        if self.bytes > MOST_BYTES {
            self.retain(|_, _| false);
        }
    }
}
