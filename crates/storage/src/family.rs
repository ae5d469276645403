//! The engine's column families, and which keys lie in which.
//!
//! Records have one of their own. They are what is large, and where `_id` grows, as generated ids do, each of its files begins
//! about where the one before ends: merging such files touches no others, where a family shared with index entries, whose keys
//! come at random, would write each record again at every merge. Everything else shares the default family: index entries,
//! catalog, counts, sessions.
//!
//! Invariant: both are flushed together, in one step of the engine's own bookkeeping, so what is on disk is one prefix of the log.

use crate::rows::{SPACE_AT, is_record};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Records,
    Others,
}

impl Family {
    pub const ALL: [Family; 2] = [Family::Others, Family::Records];

    pub fn name(self) -> &'static str {
        match self {
            Family::Records => "records",
            Family::Others => "default",
        }
    }

    pub fn of(key: &[u8]) -> Family {
        match is_record(key) {
            true => Family::Records,
            false => Family::Others,
        }
    }

    /// Those in which `[low, high)` may have keys (an empty `high`: no bound).
    pub fn of_range(low: &[u8], high: &[u8]) -> &'static [Family] {
        let (Some(&first), Some(&last)) = (low.get(SPACE_AT), high.get(SPACE_AT)) else {
            return &Family::ALL;
        };
        if low.get(..SPACE_AT) != high.get(..SPACE_AT) {
            return &Family::ALL;
        }
        // A bound that ends with its space is that space's beginning: nothing in it is below.
        let last = match high.len() == SPACE_AT + 1 {
            true => last.saturating_sub(1),
            false => last,
        };
        let record = crate::rows::RECORD_SPACE;
        match (first..=last).contains(&record) {
            true if first == last => &[Family::Records],
            true => &Family::ALL,
            false => &[Family::Others],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_their_families() {
        let key = |tablet: u8, rest: &[u8]| [&[0, 0, 0, 0, 0, 0, 0, tablet], rest].concat();
        let records: &[Family] = &[Family::Records];
        let others: &[Family] = &[Family::Others];
        for (low, high, families) in [
            (key(7, &[1]), key(7, &[2]), records),
            (key(7, &[1, 0, 5]), key(7, &[1, 0, 9]), records),
            (key(7, &[2, 0, 5]), key(7, &[2, 0, 9]), others),
            (key(7, &[2]), key(7, &[3]), others),
            (key(7, &[0]), key(7, &[1]), others),
            (key(7, &[0]), key(7, &[1, 0]), &Family::ALL),
            (key(7, &[1]), key(7, &[2, 0]), &Family::ALL),
            (key(7, &[]), key(8, &[]), &Family::ALL),
            (key(7, &[2]), key(8, &[2]), &Family::ALL),
            (key(7, &[2]), vec![], &Family::ALL),
            (vec![], vec![], &Family::ALL),
        ] {
            assert_eq!(Family::of_range(&low, &high), families, "{low:?} {high:?}");
        }
        assert_eq!(Family::of(&key(7, &[1])), Family::Records);
        assert_eq!(Family::of(&key(7, &[3, 1])), Family::Others);
        assert_eq!(Family::of(b"short"), Family::Others);
    }
}
