//! Multi-range scan: one engine scan covers all ranges of an index scan. It seeks from each range
//! to the next, unless it is already there. Creating a scan costs more than moving one.
//!
//! Invariant: exactly the entries inside a range are admitted, with at most one seek for each
//! range.

use std::collections::VecDeque;

/// `[low, high)` in the keyspace.
pub(crate) type KeyRange = (Vec<u8>, Vec<u8>);

/// The place of an entry relative to the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Inside,
    /// Inside, and the first that was seen of its range.
    Entered,
    Outside,
    /// Behind all ranges.
    Behind,
}

pub(crate) struct RangesScan {
    /// The remaining ranges, in the scan's direction; the scan is in the first one, or moves to it.
    ranges: VecDeque<KeyRange>,
    reverse: bool,
    /// The next move is a seek to where the first range begins.
    seek: bool,
    /// The last move was that seek.
    sought: bool,
    entered: bool,
}

impl RangesScan {
    /// Takes ascending `ranges` if there are several; returns the range around all of them.
    pub(crate) fn of(
        ranges: &mut VecDeque<KeyRange>,
        reverse: bool,
    ) -> Option<(RangesScan, KeyRange)> {
        let around = match (ranges.front(), ranges.back()) {
            (Some((low, _)), Some((_, high))) if ranges.len() > 1 => (low.clone(), high.clone()),
            _ => return None,
        };
        let mut ranges = std::mem::take(ranges);
        if reverse {
            ranges.make_contiguous().reverse();
        }
        let several = RangesScan {
            ranges,
            reverse,
            seek: true,
            sought: false,
            entered: false,
        };
        Some((several, around))
    }

    /// Where the next move seeks to, if it is a seek.
    pub(crate) fn target(&mut self) -> Option<&[u8]> {
        self.sought = std::mem::take(&mut self.seek);
        let (low, high) = self.ranges.front().filter(|_| self.sought)?;
        let at = if self.reverse { high } else { low };
        (!at.is_empty()).then_some(at)
    }

    /// The place of the current entry; afterwards the scan is in or before the first range.
    pub(crate) fn place(&mut self, key: &[u8]) -> Place {
        loop {
            let Some((low, high)) = self.ranges.front() else {
                return Place::Behind;
            };
            let below = key < low.as_slice();
            let above = !high.is_empty() && key >= high.as_slice();
            let (before, behind) = if self.reverse {
                (above, below)
            } else {
                (below, above)
            };
            if behind {
                self.ranges.pop_front();
                self.entered = false;
                continue;
            }
            if before {
                // A backward seek may find the range's end itself, which is outside: then one step
                // is enough.
                self.seek = !self.sought && key != high.as_slice();
                return Place::Outside;
            }
            return match std::mem::replace(&mut self.entered, true) {
                true => Place::Inside,
                false => Place::Entered,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes over `keys` as an engine's scan would; gives the admitted keys and the number of seeks.
    fn scan(keys: &[u8], ranges: &[(u8, u8)], reverse: bool) -> (Vec<u8>, usize) {
        let key = |k: u8| vec![k];
        let mut all: VecDeque<KeyRange> = ranges.iter().map(|(l, h)| (key(*l), key(*h))).collect();
        let (mut several, (low, high)) = RangesScan::of(&mut all, reverse).unwrap();
        assert!(all.is_empty());
        let around = |k: &&u8| low <= key(**k) && key(**k) < high;
        let mut keys: Vec<u8> = keys.iter().filter(around).copied().collect();
        if reverse {
            keys.reverse();
        }
        let (mut at, mut found, mut seeks) = (None::<usize>, Vec::new(), 0);
        loop {
            let next = match several.target().map(|t| t[0]) {
                Some(t) => {
                    seeks += 1;
                    let there = |k: &u8| if reverse { *k <= t } else { *k >= t };
                    keys.iter().position(there).unwrap_or(keys.len())
                }
                None => at.map_or(0, |at| at + 1),
            };
            assert!(
                at.is_none_or(|at| next > at),
                "a seek that does not move on"
            );
            at = Some(next);
            let Some(k) = keys.get(next) else { break };
            match several.place(&[*k]) {
                Place::Inside | Place::Entered => found.push(*k),
                Place::Outside => {}
                Place::Behind => break,
            }
        }
        (found, seeks)
    }

    #[test]
    fn lets_in_what_is_inside() {
        let ranges = [(2, 3), (4, 6), (10, 11), (11, 12), (30, 40), (50, 51)];
        for keys in [
            (0..60).collect::<Vec<u8>>(),
            (0..60).step_by(3).collect(),
            vec![],
            vec![2, 5, 6, 12, 40, 50, 51],
            vec![3, 11, 41],
        ] {
            let inside = |k: &u8| ranges.iter().any(|(l, h)| l <= k && k < h);
            let mut want: Vec<u8> = keys.iter().copied().filter(inside).collect();
            for reverse in [false, true] {
                let (found, seeks) = scan(&keys, &ranges, reverse);
                assert_eq!(found, want, "{keys:?}, reverse {reverse}");
                assert!(
                    seeks <= ranges.len(),
                    "{seeks} seeks for {keys:?}, reverse {reverse}"
                );
                want.reverse();
            }
        }
    }

    #[test]
    fn neighbours_need_no_seek() {
        let ranges: Vec<(u8, u8)> = (10..20).map(|k| (k, k + 1)).collect();
        let keys: Vec<u8> = (10..20).collect();
        assert_eq!(scan(&keys, &ranges, false), (keys, 1));
    }
}
