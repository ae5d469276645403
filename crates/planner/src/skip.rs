//! Bounds of fields behind those that the ranges of an index scan bound.
//!
//! A range of `{a, b}` that bounds `a` by more than one value holds entries with any `b`. The bounds of
//! `b` are tested on the entry's bytes, and tell where the next entry inside can be:
//!
//! ```text
//! bounds  a in [2, 9], b in {5}
//! at      (3, 1)   below    go to (3, 5)
//!         (3, 7)   above    go behind all of (3, …)
//! ```
//! Invariant: no entry between the one that was refused and the target that was named is inside.

use crate::interval::{Interval, bounded};
use bson::key;
use query::index_keys::KeyField;

/// The values of one field between two ends, as bytes of keys.
#[derive(Clone, Debug)]
struct Stretch {
    low: Vec<u8>,
    /// `low` is the key of a value, which belongs to the stretch: the next field's bytes may
    /// follow.
    starts_with_value: bool,
    /// Behind all values; empty: the end.
    high: Vec<u8>,
    /// The key of the greatest value, when it belongs to the stretch.
    last: Option<Vec<u8>>,
}

impl Stretch {
    fn of(i: &Interval, descending: bool) -> Stretch {
        let (low, high) = i.range(&[], descending);
        let (first, last) = if descending {
            ((&i.high, i.high_inclusive), (&i.low, i.low_inclusive))
        } else {
            ((&i.low, i.low_inclusive), (&i.high, i.high_inclusive))
        };
        let last = last.1.then(|| {
            let mut k = Vec::new();
            key::encode(last.0.as_val(), descending, &mut k, None);
            k
        });
        Stretch {
            low,
            starts_with_value: first.1,
            high,
            last,
        }
    }
}

/// What the later fields of an index's entries must lie in; a scan that meets an entry outside
/// seeks to the next that can be inside.
#[derive(Clone, Debug, Default)]
pub struct SkipBounds {
    /// For each field of the index its stretches, ascending as the keys are; none: any value.
    fields: Vec<Vec<Stretch>>,
}

impl SkipBounds {
    /// The bounds of the fields from `used` on.
    pub(crate) fn of(fields: &[KeyField], intervals: &[Vec<Interval>], used: usize) -> SkipBounds {
        if !intervals.iter().skip(used).any(|l| bounded(l)) {
            return SkipBounds::default();
        }
        let each = fields.iter().zip(intervals).enumerate();
        let each = each.map(|(i, (f, list))| {
            if i < used || !bounded(list) {
                return Vec::new();
            }
            let mut stretches: Vec<Stretch> =
                list.iter().map(|i| Stretch::of(i, f.descending)).collect();
            if f.descending {
                stretches.reverse();
            }
            stretches
        });
        SkipBounds {
            fields: each.collect(),
        }
    }

    /// Whether nothing is bounded.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Whether an entry is inside; `key` without the index's prefix, its fields ending at `ends`.
    /// When it is not, `target` is where the next one can be in the scan's direction: at or behind
    /// it, in reverse before it.
    pub fn admit(&self, key: &[u8], ends: &[usize], reverse: bool, target: &mut Vec<u8>) -> bool {
        let mut start = 0;
        for (i, (stretches, &end)) in self.fields.iter().zip(ends).enumerate() {
            let before = key.get(..start).unwrap_or(&[]);
            let own = key.get(start..end).unwrap_or(&[]);
            start = end;
            if stretches.is_empty() {
                continue;
            }
            // The first that does not end before the value.
            let at = stretches.partition_point(|s| !s.high.is_empty() && s.high.as_slice() <= own);
            let here = stretches.get(at);
            if here.is_some_and(|s| s.low.as_slice() <= own) {
                continue;
            }
            target.clear();
            target.extend_from_slice(before);
            let nearest = if reverse {
                at.checked_sub(1).and_then(|at| stretches.get(at))
            } else {
                here
            };
            match nearest {
                Some(s) if reverse => self.append_end(s, i, target),
                Some(s) => self.append_start(s, i, target),
                // In reverse, the place before all entries with these values of the earlier fields.
                None if reverse => {}
                None => match key::successor(target) {
                    Some(behind) => *target = behind,
                    // Behind every key.
                    None => target.push(0xFF),
                },
            }
            return false;
        }
        true
    }

    /// Appends the least bytes of an entry whose field `i` lies in `s`.
    fn append_start(&self, s: &Stretch, i: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&s.low);
        if s.starts_with_value {
            self.append_starts(i + 1, out);
        }
    }

    /// Behind a value of field `i - 1`: the least bytes of the fields from `i` on.
    pub(crate) fn append_starts(&self, i: usize, out: &mut Vec<u8>) {
        if let Some(s) = self.fields.get(i).and_then(|f| f.first()) {
            self.append_start(s, i, out);
        }
    }

    /// Appends bytes behind every entry whose field `i` lies in `s`, and as near as may be.
    fn append_end(&self, s: &Stretch, i: usize, out: &mut Vec<u8>) {
        match &s.last {
            Some(last) if self.bounds_end(i + 1) => {
                out.extend_from_slice(last);
                self.append_ends(i + 1, out);
            }
            _ => out.extend_from_slice(&s.high),
        }
    }

    /// Behind a value of field `i - 1`, where [`SkipBounds::bounds_end`] holds: bytes behind all
    /// entries.
    pub(crate) fn append_ends(&self, i: usize, out: &mut Vec<u8>) {
        if let Some(s) = self.fields.get(i).and_then(|f| f.last()) {
            self.append_end(s, i, out);
        }
    }

    /// Whether field `i` has an end that bytes can name.
    pub(crate) fn bounds_end(&self, i: usize) -> bool {
        let last = self.fields.get(i).and_then(|f| f.last());
        last.is_some_and(|s| !s.high.is_empty())
    }
}
