//! The engine's column families, and which keys lie in which.
//!
//! Records have a family of their own. They are large, and where their keys grow, as generated ids
//! and sequence numbers do, each file begins about where the previous one ends; compaction of such
//! files touches no others. In a family shared with index entries, whose keys come at random, every
//! compaction would rewrite the records. Ids that map to sequence numbers have a family too. They
//! are found by the whole key, which filters serve; in a shared family each compaction would
//! rebuild filters for all entries. Everything else shares the default family: index entries,
//! catalog, counts, sessions.
//!
//! Invariant: all families are flushed together, in one step of the engine's manifest, so the state
//! on disk is one prefix of the log.

use crate::record_cache::{ID_SPACE, RECORD_SPACE, SPACE_AT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Others,
    Records,
    Ids,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Others, Family::Ids, Family::Records];

    pub fn name(self) -> &'static str {
        match self {
            Family::Records => "records",
            Family::Ids => "ids",
            Family::Others => "default",
        }
    }

    pub fn of(key: &[u8]) -> Family {
        match key.get(SPACE_AT) {
            Some(&RECORD_SPACE) => Family::Records,
            Some(&ID_SPACE) => Family::Ids,
            _ => Family::Others,
        }
    }

    /// The families in which `[low, high)` may have keys (an empty `high`: no bound): one, or all.
    pub fn of_range(low: &[u8], high: &[u8]) -> &'static [Family] {
        let (Some(&first), Some(&last)) = (low.get(SPACE_AT), high.get(SPACE_AT)) else {
            return &Family::ALL;
        };
        // A bound that ends with the space byte is the beginning of that space: no key of the space
        // is below it.
        let last = match high.len() == SPACE_AT + 1 {
            true => last.saturating_sub(1),
            false => last,
        };
        let special = |space: &u8| matches!(*space, RECORD_SPACE | ID_SPACE);
        if low.get(..SPACE_AT) != high.get(..SPACE_AT)
            || first != last && (first..=last).any(|space| special(&space))
        {
            return &Family::ALL;
        }
        match first {
            RECORD_SPACE => &[Family::Records],
            ID_SPACE => &[Family::Ids],
            _ => &[Family::Others],
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
        let ids: &[Family] = &[Family::Ids];
        let others: &[Family] = &[Family::Others];
        for (low, high, families) in [
            (key(7, &[1]), key(7, &[2]), records),
            (key(7, &[1, 0, 5]), key(7, &[1, 0, 9]), records),
            (key(7, &[2, 0, 5]), key(7, &[2, 0, 9]), others),
            (key(7, &[2]), key(7, &[3]), others),
            (key(7, &[2]), key(7, &[4]), others),
            (key(7, &[4]), key(7, &[5]), ids),
            (key(7, &[4, 0, 5]), key(7, &[4, 0, 9]), ids),
            (key(7, &[2]), key(7, &[4, 0]), &Family::ALL),
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
        assert_eq!(Family::of(&key(7, &[4])), Family::Ids);
        assert_eq!(Family::of(b"short"), Family::Others);
    }
}
