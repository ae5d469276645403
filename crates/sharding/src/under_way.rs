//! What movers have sent to a shard of a collection, and is not done yet.
//!
//! Invariant: a write that enters is judged by the state that is read after it entered. So a shard that
//! has stored that a range takes no more writes, and then waited for those in flight, has seen the last
//! of them.

use crate::PlaceRange;

#[derive(Clone, Debug, Default)]
pub struct UnderWay {
    last: u64,
    /// By number; without a range, of the whole collection.
    writes: Vec<(u64, Option<PlaceRange>)>,
}

impl UnderWay {
    /// A number for a write that begins.
    pub fn enter(&mut self, range: Option<PlaceRange>) -> u64 {
        self.last += 1;
        self.writes.push((self.last, range));
        self.last
    }

    pub fn leave(&mut self, number: u64) {
        let before = self.writes.len();
        self.writes.retain(|(n, _)| *n != number);
        assert!(
            self.writes.len() + 1 == before,
            "a write leaves that has entered"
        );
    }

    /// The writes that may concern one of these ranges.
    pub fn meeting(&self, ranges: &[PlaceRange]) -> Vec<u64> {
        let meets = |range: &Option<PlaceRange>| match range {
            None => true,
            Some(range) => ranges.iter().any(|r| r.overlaps(range)),
        };
        let meeting = self.writes.iter().filter(|(_, range)| meets(range));
        meeting.map(|(number, _)| *number).collect()
    }

    /// Whether one of these is not done.
    pub fn has_any(&self, numbers: &[u64]) -> bool {
        self.writes.iter().any(|(n, _)| numbers.contains(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(low: u8, high: u8) -> PlaceRange {
        PlaceRange {
            low: vec![low],
            high: Some(vec![high]),
        }
    }

    #[test]
    fn only_those_that_meet_are_waited_for() {
        let mut all = UnderWay::default();
        let first = all.enter(Some(range(1, 5)));
        let second = all.enter(Some(range(5, 9)));
        let whole = all.enter(None);
        assert_eq!(all.meeting(&[range(2, 3)]), [first, whole]);
        assert_eq!(all.meeting(&[range(4, 6)]), [first, second, whole]);
        let awaited = all.meeting(&[range(1, 2)]);
        all.leave(whole);
        assert!(all.has_any(&awaited));
        // What comes later is not waited for.
        all.enter(Some(range(1, 5)));
        all.leave(first);
        assert!(!all.has_any(&awaited) && all.has_any(&[second]));
    }
}
