//! Members that cannot write: a primary whose disk or engine refuses writes has another member elected,
//! and a member that has left because its disk was full comes back when there is room.
//!
//! ```text
//! primary    a write is refused ─► a member that may take over ─► handed over, and not stood for again
//!                                ─► none: it stays primary, and refuses writes until there is room
//! secondary  entries find no room ─► it leaves its set ─► there is room ─► the process begins anew
//! ```
//!
//! Invariant: a member that has no room does not stand for election, and begins anew only when it has.

use super::thread::{BY_REQUEST, Thread};
use super::{Input, Status};
use crate::member::{Member, raft_id};
use errors::{Code, Error, Fallible, err};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two looks at a disk that has no room, and between two attempts to hand over.
const PAUSE: Duration = Duration::from_secs(2);
/// A disk that takes a file of so many bytes has room.
const ROOM_BYTES: usize = 8 << 20;
const FILE: &str = "room.new";

/// The state of this member's disk.
#[derive(Default)]
pub(super) struct DiskRoom {
    /// Writes were refused, and another member was asked to take over because of that.
    lacks: bool,
    next: Option<Instant>,
}

impl DiskRoom {
    /// The member does not stand for election.
    pub fn lacks(&self) -> bool {
        self.lacks
    }

    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.next.is_none_or(|next| now >= next);
        if due {
            self.next = Some(now + PAUSE);
        }
        due
    }
}

/// Whether the disk takes a file of [`ROOM_BYTES`]; free blocks alone say nothing of quotas.
fn has_room(dir: &Path) -> bool {
    let path = dir.join(FILE);
    let part = [0x5a; 1 << 16];
    let write = || {
        let mut file = File::create(&path)?;
        for _ in 0..ROOM_BYTES / part.len() {
            file.write_all(&part)?;
        }
        file.sync_all()
    };
    let has = write().is_ok();
    let _ = std::fs::remove_file(&path);
    has
}

/// Waits until the disk has room, where that was why the member has left; false: it was not.
pub(super) fn wait_for_room(dir: &Path, why: &Error) -> bool {
    if why.code != Code::OutOfDiskSpace {
        return false;
    }
    loop {
        std::thread::sleep(PAUSE);
        if has_room(dir) {
            return true;
        }
    }
}

/// The successor: the voter with the least lag, of those that were heard of and may be elected.
fn successor(status: &Status, lag: impl Fn(u64) -> u64) -> Option<u64> {
    let config = status.config.as_ref()?;
    let ids = config
        .members
        .iter()
        .filter(|m| m.is_electable() && m.votes);
    let others = ids
        .map(|m| raft_id(m.id))
        .filter(|id| *id != status.id && status.may_take_over(*id) && status.voters.contains(id));
    others
        .map(|id| (lag(id), id))
        .filter(|(lag, _)| *lag < super::changes::CAUGHT_UP)
        .min()
        .map(|(_, id)| id)
}

impl Thread {
    /// Looks whether the store refuses writes, and whether it could take them again.
    pub(super) fn look_for_room(&mut self) -> Fallible<()> {
        if self.member.is_none() {
            return Ok(());
        }
        let store = self.log.store()?;
        let refusal = store.refusal();
        let leads = self.shared.status.read().is_primary();
        match refusal {
            Some(why) if leads => {
                if let Some(to) = self.due_successor() {
                    tracing::error!(target: "REPL", member = to - 1, error = %why, "Writes are refused here: another member is asked to take over");
                    self.set_lacks_room(true);
                    self.hands_over_because = BY_REQUEST;
                    self.close_before(move |term| Input::HandOverNow(to, term));
                }
            }
            None if leads && self.room.lacks => self.set_lacks_room(false),
            _ if !leads && self.room.lacks && self.room.is_due() && has_room(&self.log.dir) => {
                tracing::info!(target: "REPL", "The disk has room again: the member may be elected");
                self.set_lacks_room(false);
            }
            _ => {}
        }
        Ok(())
    }

    /// The member that takes over from this primary; asked for now and then.
    pub(super) fn due_successor(&mut self) -> Option<u64> {
        if !self.room.is_due() {
            return None;
        }
        let member = self.member.as_ref()?;
        let status = self.shared.status.read().clone();
        successor(&status, |id| member.lag(id))
    }

    fn set_lacks_room(&mut self, lacks: bool) {
        self.room.lacks = lacks;
        self.withhold();
    }

    /// Fails where the process cannot begin anew now, because a start needs room on the disk.
    pub(super) fn may_restart(&self) -> Fallible<()> {
        match self.room.lacks && !has_room(&self.log.dir) {
            true => Err(err!(
                OutOfDiskSpace,
                "no space left to take back what no majority had"
            )),
            false => Ok(()),
        }
    }

    /// Whether the member stands for election, as far as this process goes.
    pub(super) fn withhold(&mut self) {
        let withheld = self.is_withheld();
        if let Some(member) = &mut self.member {
            Member::withhold(member, withheld);
        }
    }

    pub(super) fn is_withheld(&self) -> bool {
        let asked = self.shared.maintenance.load(Ordering::Acquire) > 0;
        asked || self.removed || self.damaged || self.room.lacks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_room_is_told_and_nothing_is_left_there() {
        let dir = tempfile::tempdir().unwrap();
        assert!(has_room(dir.path()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!has_room(&dir.path().join("absent")));
        let other = err!(LogWriteFailed, "fdatasync failed");
        assert!(!wait_for_room(dir.path(), &other));
    }
}
