//! Faults that are planted in the commit of a group on purpose, by a start with
//! `--engine-options "commit_fault=lost_place@100"`: tests show by them that a broken invariant ends the process
//! before anything is acknowledged.
//!
//! Invariant: a process that was not started with the option has none.

/// What is wrong with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// An entry that was appended has no place.
    LostPlace,
    /// The group does not follow on what is applied.
    Gap,
    /// The group is not written to the log.
    Unlogged,
    /// The engine is not where the group ends.
    Unapplied,
}

/// The fault of one group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitFault {
    breach: Option<Breach>,
    /// So many groups come before it.
    groups: u64,
}

impl CommitFault {
    /// Reads `lost_place@100`.
    pub fn of(given: &str) -> Option<CommitFault> {
        let (name, groups) = given.split_once('@')?;
        let breach = match name {
            "lost_place" => Breach::LostPlace,
            "gap" => Breach::Gap,
            "unlogged" => Breach::Unlogged,
            "unapplied" => Breach::Unapplied,
            _ => return None,
        };
        Some(CommitFault {
            breach: Some(breach),
            groups: groups.parse().ok()?,
        })
    }

    /// A group begins.
    pub fn count(&mut self) {
        self.groups = self.groups.saturating_sub(1);
    }

    /// Whether this is what is wrong with the current group.
    pub fn is(&self, breach: Breach) -> bool {
        self.groups == 0 && self.breach == Some(breach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_there_when_its_group_comes() {
        let mut fault = CommitFault::of("gap@2").unwrap();
        fault.count();
        assert!(!fault.is(Breach::Gap));
        fault.count();
        assert!(fault.is(Breach::Gap) && !fault.is(Breach::LostPlace));
        for bad in ["gap", "gap@", "gap@x", "hole@1", ""] {
            assert_eq!(CommitFault::of(bad), None, "{bad}");
        }
        assert!(!CommitFault::default().is(Breach::Gap));
    }
}
