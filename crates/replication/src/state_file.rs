//! What a member must not forget besides its log: its number, term and vote, the voters, the
//! configuration. One BSON document in a file of the data directory.
//!
//! Invariant: after [`save`] has returned the file is on disk, whole, whatever happens then; a crash
//! in the middle leaves the one before.

use crate::config::Config;
use bson::{Doc, DocBuf, Writer};
use errors::{Fallible, err};
use raft::eraftpb::{ConfState, HardState};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The file's name in the data directory.
pub const NAME: &str = "replica-set.bson";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedState {
    /// The member's number in messages: `_id` + 1; 0 while it belongs to no set.
    pub id: u64,
    /// The voter that the set began with.
    pub founder: u64,
    pub hard: HardState,
    pub voters: ConfState,
    /// Index and term of the entry that a copy of files ended with: the log has it not.
    pub base: Option<(u64, u64)>,
    /// How many rollbacks there were.
    pub rollbacks: u64,
    /// Where this member was made the only voter by force: the members of before that are none any
    /// more, until the log says so ([`crate::member`]).
    pub force_removed: Vec<u64>,
    /// Then, the end of the log: changes of voters up to there are not taken.
    pub forced_at: u64,
    /// It began with nothing: before its commit point has come to here, it neither votes nor stands for
    /// election ([`crate::member`]).
    pub rejoins_until: u64,
    /// The newest configuration that is applied.
    pub config: Option<Config>,
}

impl SavedState {
    fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.i64("id", self.id as i64)
            .i64("founder", self.founder as i64)
            .i64("term", self.hard.term as i64)
            .i64("vote", self.hard.vote as i64)
            .i64("commit", self.hard.commit as i64)
            .i64("rollbacks", self.rollbacks as i64);
        if let Some((index, term)) = self.base {
            w.i64("baseIndex", index as i64)
                .i64("baseTerm", term as i64);
        }
        for (name, ids) in [
            ("voters", &self.voters.voters),
            ("learners", &self.voters.learners),
        ] {
            w.open_array(name);
            for id in ids {
                w.push_value(*id as i64);
            }
            w.close();
        }
        if self.forced_at > 0 {
            w.i64("outlivedAt", self.forced_at as i64);
            w.open_array("outlived");
            for id in &self.force_removed {
                w.push_value(*id as i64);
            }
            w.close();
        }
        if self.rejoins_until > 0 {
            w.i64("rejoinsUntil", self.rejoins_until as i64);
        }
        if let Some(config) = &self.config {
            w.doc("config", config.to_doc().as_doc());
        }
        w.finish()
    }

    fn from_doc(d: Doc<'_>) -> Option<SavedState> {
        let number = |name: &str| Some(d.get(name)?.to_i64_exact()? as u64);
        let ids = |name: &str| {
            let array = d.get(name)?.as_array()?;
            let ids = array.values().map(|v| Some(v.to_i64_exact()? as u64));
            ids.collect::<Option<Vec<u64>>>()
        };
        let mut state = SavedState {
            id: number("id")?,
            founder: number("founder")?,
            ..SavedState::default()
        };
        state.hard.term = number("term")?;
        state.hard.vote = number("vote")?;
        state.hard.commit = number("commit")?;
        state.rollbacks = number("rollbacks").unwrap_or(0);
        state.base = number("baseIndex").zip(number("baseTerm"));
        state.voters.voters = ids("voters")?;
        state.voters.learners = ids("learners")?;
        state.forced_at = number("outlivedAt").unwrap_or(0);
        if state.forced_at > 0 {
            state.force_removed = ids("outlived")?;
        }
        state.rejoins_until = number("rejoinsUntil").unwrap_or(0);
        if let Some(config) = d.get("config") {
            state.config = Some(Config::parse(config.as_doc()?, None).ok()?);
        }
        Some(state)
    }
}

/// The state in the directory; `None` where there is none.
pub fn load(dir: &Path) -> Fallible<Option<SavedState>> {
    let path = dir.join(NAME);
    let damaged = || {
        err!(
            UnsupportedFormat,
            "{} does not hold a member's state",
            path.display()
        )
    };
    match std::fs::read(&path) {
        Ok(bytes) => {
            let doc = bson::validate(&bytes).map_err(|_| damaged())?;
            SavedState::from_doc(doc).map(Some).ok_or_else(damaged)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unwritable(&path, &e)),
    }
}

/// What a file that cannot be written or read means.
pub(crate) fn unwritable(path: &Path, e: &std::io::Error) -> errors::Error {
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            err!(OutOfDiskSpace, "no space left for {}: {e}", path.display())
        }
        _ => err!(FileStreamFailed, "{}: {e}", path.display()),
    }
}

/// Writes the state, in place of the one before.
pub fn save(dir: &Path, state: &SavedState) -> Fallible<()> {
    let path = dir.join(NAME);
    let beside = dir.join(format!("{NAME}.new"));
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(state.to_doc().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| unwritable(&path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        let mut state = SavedState {
            id: 3,
            ..SavedState::default()
        };
        (state.hard.term, state.hard.vote, state.hard.commit) = (7, 2, 99);
        state.base = Some((90, 6));
        state.rollbacks = 4;
        state.rejoins_until = 98;
        state.voters.voters = vec![1, 2, 3];
        (state.force_removed, state.forced_at) = (vec![5, 6], 98);
        state.config = Some(Config::of_one(
            "rs",
            crate::Host::parse("a:1").unwrap(),
            bson::ObjectId([1; 12]),
        ));
        save(dir.path(), &state).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(state));
        std::fs::write(dir.path().join(NAME), b"junk").unwrap();
        assert!(load(dir.path()).is_err());
    }
}
