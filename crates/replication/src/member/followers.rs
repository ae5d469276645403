//! What a primary knows of the other members, what it tells them besides entries, and which of them
//! are to vote.
//!
//! Invariant: a member gets a vote only when it has nearly all entries, and one change of voters is in
//! progress at a time.

use super::{CAUGHT_UP_ENTRIES, ELECTION_TICKS, Member, MemberLog, MemberRole, News, raft_id};
use crate::log_view::VoterChange;
use errors::Fallible;
use raft::StateRole;
use raft::eraftpb::{ConfState, Message, MessageType};

impl<L: MemberLog + Clone> Member<L> {
    /// On the primary: up to where each member has the log on disk, and whether it was heard of lately.
    pub fn progress(&self) -> Vec<(u64, u64, bool)> {
        let all = self.node.raft.prs().iter();
        all.map(|(id, p)| (*id, p.matched, self.is_heard(*id)))
            .collect()
    }

    /// On the primary: whether a member has answered within an election timeout.
    fn is_heard(&self, id: u64) -> bool {
        let within = |at: &u64| self.ticks - at <= ELECTION_TICKS as u64;
        id == self.state.id || self.answered.get(&id).is_some_and(within)
    }

    pub(super) fn note_answer(&mut self, message: &Message) {
        let answers = [
            MessageType::MsgAppendResponse,
            MessageType::MsgHeartbeatResponse,
        ];
        if answers.contains(&message.get_msg_type()) && message.term == self.term() {
            self.answered.insert(message.from, self.ticks);
        }
    }

    /// How many entries a member lacks, as far as the primary knows.
    pub fn lag(&self, id: u64) -> u64 {
        let last = self.node.raft.raft_log.last_index();
        match self.node.raft.prs().get(id) {
            Some(p) if self.is_heard(id) && p.matched > 0 => last.saturating_sub(p.matched),
            _ => u64::MAX,
        }
    }

    /// Whether this is the primary, and another member has not been told of the commit point.
    pub fn owes_commit(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.unaware().next().is_some()
    }

    /// Whether a majority has all entries: none is in flight that would take the commit point along.
    pub fn is_all_committed(&self) -> bool {
        self.node.raft.raft_log.last_index() <= self.commit_index()
    }

    /// Members that have not been told of the commit point.
    fn unaware(&self) -> impl Iterator<Item = u64> {
        let (own, commit) = (self.state.id, self.commit_index());
        let others = self.node.raft.prs().iter().map(|(id, _)| *id);
        others.filter(move |id| {
            *id != own
                && self
                    .commit_sent
                    .get(id)
                    .is_none_or(|commit_sent| *commit_sent < commit)
        })
    }

    /// Tells the commit point to members that were sent none since it moved. One that is not reached
    /// learns of it by a heartbeat.
    pub fn tell_commit(&mut self) -> Fallible<News> {
        self.remind();
        self.process()
    }

    pub(super) fn remind(&mut self) {
        if self.node.raft.state != StateRole::Leader {
            return;
        }
        let commit = self.commit_index();
        for id in self.unaware().collect::<Vec<_>>() {
            self.node.raft.send_append(id);
            self.commit_sent.insert(id, commit);
        }
    }

    /// Entries tell of the commit point too.
    pub(super) fn note_told(&mut self, messages: &[Message]) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgAppend {
                self.commit_sent.insert(message.to, message.commit);
            }
        }
    }

    /// On the primary: the next change of voters that brings them nearer to the configuration.
    pub fn next_change(&self) -> Option<VoterChange> {
        if self.role != MemberRole::Primary || self.node.raft.has_pending_conf() {
            return None;
        }
        if let Some(id) = self.state.force_removed.first() {
            return Some(VoterChange::Remove(*id));
        }
        if let Some(lost) = self.next_lost() {
            return Some(lost);
        }
        let config = self.state.config.as_ref()?;
        let ConfState {
            voters, learners, ..
        } = &self.state.voters;
        for member in &config.members {
            let id = raft_id(member.id);
            let votes = voters.contains(&id);
            if !votes && !learners.contains(&id) {
                return Some(VoterChange::Learner(id));
            }
            if votes && !member.votes && id != self.state.id {
                return Some(VoterChange::Learner(id));
            }
            if !votes && member.votes && self.lag(id) < CAUGHT_UP_ENTRIES {
                return Some(VoterChange::Voter(id));
            }
        }
        let gone = |id: &&u64| {
            let member = i32::try_from(**id).unwrap_or(i32::MAX) - 1;
            **id != self.state.id && config.member(member).is_none()
        };
        let gone = voters.iter().chain(learners).find(gone)?;
        Some(VoterChange::Remove(*gone))
    }

    /// The primary has no entries that this member could append, from `message.index` on it has. A
    /// member that has copied files since tells it where its log begins.
    pub(super) fn invited(&self, message: &Message) -> News {
        let mut news = News::default();
        if message.term != self.term() || message.from != self.leader() {
            return news;
        }
        let known = self.commit_index().min(self.log().durable_index());
        if known + 1 < message.index {
            news.invited_by = Some(message.from);
            return news;
        }
        let mut answer = self.message_to(message.from, MessageType::MsgAppendResponse);
        answer.index = known;
        answer.commit = known;
        news.messages.push(answer);
        news
    }
}
