//! Where the last groups begin: so a reader that is told of an entry finds it without reading those
//! before it.

use crate::reader::LogMark;
use std::collections::VecDeque;

/// The number of groups that are remembered.
const GROUPS: usize = 1024;

/// Marks in the order of the log.
#[derive(Default)]
pub(crate) struct RecentMarks(VecDeque<LogMark>);

impl RecentMarks {
    pub fn push(&mut self, mark: LogMark) {
        assert!(
            self.0.back().is_none_or(|last| last.index < mark.index),
            "marks are in the order of the log"
        );
        if self.0.len() == GROUPS {
            self.0.pop_front();
        }
        self.0.push_back(mark);
    }

    /// The beginning of the group that holds the entry `index`. Where that is not remembered, a mark
    /// that says no more than the index: its reader looks through the segment.
    pub fn before(&self, index: u64) -> LogMark {
        let later = self.0.partition_point(|mark| mark.index <= index);
        let found = later.checked_sub(1).and_then(|at| self.0.get(at));
        found.copied().unwrap_or(LogMark {
            index,
            segment: 0,
            offset: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_an_entry_is_found() {
        let mut marks = RecentMarks::default();
        assert_eq!(marks.before(7).index, 7);
        let at = |index| LogMark {
            index,
            segment: 1,
            offset: index * 10,
        };
        for i in 0..GROUPS as u64 + 5 {
            marks.push(at(i * 3));
        }
        // Those before were forgotten.
        assert_eq!((marks.before(14).index, marks.before(14).segment), (14, 0));
        assert_eq!(marks.before(15), at(15));
        assert_eq!(marks.before(17), at(15));
        assert_eq!(marks.before(u64::MAX), at((GROUPS as u64 + 4) * 3));
    }
}
