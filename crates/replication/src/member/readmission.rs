//! A member that has lost its disk: it has forgotten which entries it has acknowledged, and its votes.
//! If it simply went on, it could help to elect a primary that lacks entries which this member had
//! acknowledged, or vote twice in a term.
//!
//! ```text
//! member   has nothing: takes no part, asks the primary whether it may begin
//! primary  in its log: remove the member; then it learns, without a vote ─► it may
//! member   begins, as one that was never there; gets the log or files; votes when its commit point has
//!          come to that of the primary that let it begin
//! ```
//!
//! Why that is enough: the change by which it is removed was committed after the loss, and not by its
//! word, so by a majority of the others. A later primary needs the vote of one of those, and so has the
//! change and all before it. A member that stood for election when it had the lost vote lacks the
//! change, and cannot get a majority any more.
//!
//! Invariants:
//! - A member that has no state neither votes nor answers what continues a log, before the primary has
//!   let it begin.
//! - Before it has all that was committed when it was let in, it votes for no candidate and stands for
//!   no election, even if its part of the log names it as a voter: in older configurations it is one,
//!   and by its vote one that is behind could be elected there without the entries that it had
//!   acknowledged.
//! - The primary lets a member begin once for each time that it was brought in, and only where it has
//!   not heard of any entry on the member's disk since.

use super::{ELECTION_TICKS, Member, MemberLog, MemberRole};
use crate::log_view::VoterChange;
use errors::{Error, Fallible, err};
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeSet;

/// On the primary, in its term.
#[derive(Debug, Default)]
pub(super) struct Readmissions {
    /// They have asked, and are to be removed.
    asking: BTreeSet<u64>,
    /// They were brought in by the log, and have not begun since.
    admitted: BTreeSet<u64>,
}

impl<L: MemberLog + Clone> Member<L> {
    /// On the primary: the commit point that a member which has nothing has to come to, where it may begin.
    /// `None`: it asks again.
    pub fn readmit(&mut self, id: u64) -> Option<u64> {
        if self.role != MemberRole::Primary || id == self.state.id {
            return None;
        }
        let progress = self.node.raft.prs().get(id);
        let is_fresh = progress.is_some_and(|p| p.matched == 0);
        if self.readmissions.admitted.remove(&id) && is_fresh {
            return Some(self.commit_index());
        }
        self.readmissions.asking.insert(id);
        None
    }

    /// Whether it lacks entries that were committed when it was let in again.
    pub(super) fn is_rejoining(&self) -> bool {
        self.commit_index() < self.state.rejoins_until
    }

    /// The next member that is to be removed, because it has lost what it had.
    pub(super) fn next_lost(&self) -> Option<VoterChange> {
        let mut asking = self.readmissions.asking.iter();
        let lost = asking.find(|id| self.node.raft.prs().get(**id).is_some())?;
        Some(VoterChange::Remove(*lost))
    }

    /// Before a change of voters of this term is taken.
    pub(super) fn note_admission(&mut self, change: VoterChange, term: u64) {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader || raft.term != term {
            return;
        }
        match change {
            VoterChange::Learner(id) if raft.prs().get(id).is_none() => {
                self.readmissions.asking.remove(&id);
                self.readmissions.admitted.insert(id);
            }
            VoterChange::Remove(id) => {
                self.readmissions.admitted.remove(&id);
            }
            _ => {}
        }
    }

    /// Requests of an earlier term are made again.
    pub(super) fn forget_readmissions(&mut self) {
        self.readmissions = Readmissions::default();
    }

    /// Whether a message can be taken. Fails where a primary knows of entries here that are not here: an
    /// old copy of the disk was put in place, or the disk did not keep what it said that it has. What comes
    /// right after the start may have been sent to the process before, of whose disk it was true.
    pub(super) fn can_take(&self, message: &Message) -> Fallible<bool> {
        let asks_for_a_vote = matches!(
            message.get_msg_type(),
            MessageType::MsgRequestVote
                | MessageType::MsgRequestPreVote
                | MessageType::MsgTimeoutNow
        );
        if asks_for_a_vote && self.is_rejoining() {
            return Ok(false);
        }
        let last = self.node.raft.raft_log.last_index();
        let tells = message.get_msg_type() == MessageType::MsgHeartbeat;
        if !tells || message.term < self.term() || message.commit <= last {
            return Ok(true);
        }
        match self.ticks < ELECTION_TICKS as u64 {
            true => Ok(false),
            false => Err(forgotten(message.commit, last)),
        }
    }
}

fn forgotten(known: u64, last: u64) -> Error {
    err!(
        UnrecoverableRollbackError,
        "the primary was told that entry {known} is on this disk, and the log here ends with {last}: the disk has lost what it \
         had, or an old copy of it was put in place. Empty the data directory, and start again: the data is copied from the set"
    )
}
