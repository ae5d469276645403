//! When a write is on the members that its write concern asks for.

use super::{Config, MemberConfig};
use errors::Code;

/// What `w` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many members with data.
    Members(usize),
    /// A majority of those that vote.
    Majority,
    /// The mode of that name.
    WriteConcernMode(String),
    /// Of each tag, so many different values.
    Tags(Vec<(String, i32)>),
}

/// Why no number of members that do their work can meet a write concern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsatisfiableConcern {
    TooFewMembers,
    UnknownMode(String),
}

impl UnsatisfiableConcern {
    pub fn code(&self) -> Code {
        match self {
            UnsatisfiableConcern::TooFewMembers => Code::UnsatisfiableWriteConcern,
            UnsatisfiableConcern::UnknownMode(_) => Code::UnknownReplWriteConcern,
        }
    }

    pub fn message(&self) -> String {
        match self {
            UnsatisfiableConcern::TooFewMembers => "Not enough data-bearing nodes".to_string(),
            UnsatisfiableConcern::UnknownMode(mode) => {
                format!("No write concern mode named '{mode}' found in replica set configuration")
            }
        }
    }
}

/// Which members have a write.
pub trait Reached {
    fn has(&self, member: i32) -> bool;
}

impl<F: Fn(i32) -> bool> Reached for F {
    fn has(&self, member: i32) -> bool {
        self(member)
    }
}

impl Config {
    /// Whether a write concern could be met if all members had the write.
    pub fn check_reachable(&self, wanted: &Wanted) -> Result<(), UnsatisfiableConcern> {
        if let Wanted::WriteConcernMode(name) = wanted
            && self.mode(name).is_none()
        {
            return Err(UnsatisfiableConcern::UnknownMode(name.clone()));
        }
        match self.is_reached(wanted, &|_| true) {
            true => Ok(()),
            false => Err(UnsatisfiableConcern::TooFewMembers),
        }
    }

    /// Whether the members that have the write are those that were asked for.
    pub fn is_reached(&self, wanted: &Wanted, by: &impl Reached) -> bool {
        let with_data = self.members.iter().filter(|m| m.holds_data());
        match wanted {
            Wanted::Members(n) => with_data.filter(|m| by.has(m.id)).count() >= *n,
            Wanted::Majority => {
                let voters = with_data.filter(|m| m.votes && by.has(m.id)).count();
                voters >= self.write_majority_count()
            }
            Wanted::WriteConcernMode(name) => self
                .mode(name)
                .is_some_and(|tags| self.are_tags_reached(tags, by)),
            Wanted::Tags(tags) => self.are_tags_reached(tags, by),
        }
    }

    fn mode(&self, name: &str) -> Option<&[(String, i32)]> {
        let mode = self.settings.modes.iter().find(|m| m.name == name)?;
        Some(&mode.tags)
    }

    fn are_tags_reached(&self, tags: &[(String, i32)], by: &impl Reached) -> bool {
        tags.iter().all(|(tag, count)| {
            let have = self.members.iter().filter(|m| by.has(m.id));
            let mut values: Vec<&str> = have.filter_map(|m| m.tag(tag)).collect();
            values.sort_unstable();
            values.dedup();
            usize::try_from(*count).is_ok_and(|count| values.len() >= count)
        })
    }
}

impl MemberConfig {
    /// The value of that tag.
    pub fn tag(&self, name: &str) -> Option<&str> {
        let (_, value) = self.tags.iter().find(|(tag, _)| tag == name)?;
        Some(value)
    }
}
