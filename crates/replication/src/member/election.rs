//! Elections: when a member stands, how a primary hands over or steps down, and what follows for the log
//! of an elected or deposed member.
//!
//! Invariant: a member that may not be primary stands only if no other member can be elected
//! ([`super::caretaker`]).

use super::{ELECTION_TICKS, Member, MemberLog, MemberRole, News, broken};
use errors::Fallible;
use raft::eraftpb::{Message, MessageType};
use raft::{StateRole, Storage as _};
use std::hash::{DefaultHasher, Hash, Hasher};

impl<L: MemberLog + Clone> Member<L> {
    /// Sets the election timeout in place of raft-rs's, which comes from a generator of its own. A
    /// new one for each term, and for each time that no election came of the last.
    pub(super) fn draw_timeout(&mut self) {
        let mut hasher = DefaultHasher::new();
        let round = self.ticks / (2 * ELECTION_TICKS as u64);
        (self.chance, self.state.id, self.term(), round).hash(&mut hasher);
        let beyond = hasher.finish() as usize % ELECTION_TICKS;
        self.node
            .raft
            .set_randomized_election_timeout(ELECTION_TICKS + beyond);
    }

    /// Whether it may be elected, as far as it goes by itself.
    pub fn may_stand(&self) -> bool {
        let free = self.ticks >= self.frozen_until && !self.withheld;
        free && !self.is_rejoining() && self.is_electable()
    }

    /// Whether it knows of no primary, and has not listened for long enough to say that there is none.
    pub fn has_just_begun(&self) -> bool {
        self.leader() == 0 && self.ticks < ELECTION_TICKS as u64
    }

    pub(super) fn is_electable(&self) -> bool {
        let Some(config) = &self.state.config else {
            return true;
        };
        let id = i32::try_from(self.state.id).unwrap_or(i32::MAX) - 1;
        config.member(id).is_none_or(|m| m.is_electable())
    }

    /// Stands for election at once: so the founder begins its set.
    pub fn campaign(&mut self) -> Fallible<News> {
        let _ = self.node.campaign();
        self.process()
    }

    /// Has another member elected in its place.
    pub fn hand_over(&mut self, to: u64) -> Fallible<News> {
        self.node.transfer_leader(to);
        self.process()
    }

    /// Another member is being elected in its place.
    pub fn is_handing_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Gives the primary's part up without a successor.
    pub fn give_up(&mut self) -> Fallible<News> {
        let term = self.node.raft.term;
        self.node.raft.become_follower(term, 0);
        self.process()
    }

    /// It does not stand for election for so many ticks; 0 ends that.
    pub fn freeze(&mut self, ticks: u64) {
        self.frozen_until = self.ticks + ticks;
    }

    /// Whether it stands for no election until this is said otherwise.
    pub fn withhold(&mut self, on: bool) {
        self.withheld = on;
    }

    /// The message that asks the primary to have this member elected; `None` where none is known.
    pub fn ask_for_the_lead(&self) -> Option<Message> {
        let leader = self.leader();
        let known = leader != 0 && leader != self.state.id;
        known.then(|| self.message_to(leader, MessageType::MsgTransferLeader))
    }

    /// A primary that was deposed takes no more writes. Gives the reason why it has to start again.
    pub(super) fn close_deposed(&mut self) -> Fallible<Option<String>> {
        if self.role != MemberRole::Primary || self.node.raft.state == StateRole::Leader {
            return Ok(None);
        }
        self.log().close()?;
        let known = self.node.raft.raft_log.store.last_index().map_err(broken)?;
        let ahead = self.log().last_index() > known;
        Ok(ahead.then(|| "the primary was deposed with writes that nobody was sent".into()))
    }

    /// What raft-rs says that this member is.
    pub(super) fn follow_role(&mut self, news: &mut News) -> Fallible<()> {
        let role = match self.node.raft.state {
            StateRole::Follower => MemberRole::Secondary,
            StateRole::Candidate | StateRole::PreCandidate => MemberRole::Candidate,
            // Everything before this term is applied once its first entry is.
            StateRole::Leader => match &self.begin {
                Some(begin)
                    if begin.term == self.term()
                        && self.log().applied_index() >= begin.index
                        && self.is_electable() =>
                {
                    MemberRole::Primary
                }
                _ => MemberRole::Elected,
            },
        };
        if role == MemberRole::Elected && self.role != role {
            // Answers to this member in an earlier term do not count in this one.
            self.answered.clear();
            self.forget_readmissions();
        }
        if role == MemberRole::Primary && self.role != MemberRole::Primary {
            self.log().set_term(self.term())?;
        }
        news.changed |= role != self.role;
        self.role = role;
        Ok(())
    }
}
