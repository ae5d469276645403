//! The elections of this member since its process began: how often it stood and why, its last vote, how
//! often it was deposed.
//!
//! Invariant: an elected member has stood.

use super::thread::{BY_PRIORITY, BY_REQUEST, BY_STEP_UP, BY_TIMEOUT, Thread};
use crate::member::MemberRole;
use std::time::SystemTime;

/// How often a member stood for election, and how often it was elected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionCounts {
    pub called: u64,
    pub successful: u64,
}

/// A member's vote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    pub term: u64,
    /// The candidate's number; 0 for none.
    pub candidate: u64,
    /// `None` where that was before the process began.
    pub at: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elections {
    /// It heard of no primary.
    pub timeout: ElectionCounts,
    /// The primary asked it to, because of its priority.
    pub priority: ElectionCounts,
    /// A command asked for it: `replSetStepUp` here, or `replSetStepDown` on the primary.
    pub step_up: ElectionCounts,
    /// As primary it was deposed by a higher term, unasked.
    pub deposed: u64,
    pub vote: Vote,
}

impl Elections {
    /// Those for the reason of that name.
    fn of(&mut self, because: &str) -> &mut ElectionCounts {
        match because {
            BY_PRIORITY => &mut self.priority,
            BY_STEP_UP | BY_REQUEST => &mut self.step_up,
            _ => &mut self.timeout,
        }
    }
}

fn stands(role: MemberRole) -> bool {
    role != MemberRole::Secondary
}

impl Thread {
    /// Why this member stands for election, as MongoDB says it.
    fn stands_because(&self, role: MemberRole, term: u64) -> &'static str {
        // Before it knows that a majority would vote for it, its term is the one before.
        let asked = match role {
            MemberRole::Candidate => self.asked_in == term || self.asked_in + 1 == term,
            _ => self.asked_in + 1 == term,
        };
        match asked && self.asked_in != 0 {
            true => self.asked_because,
            false => BY_TIMEOUT,
        }
    }

    /// Notes what has changed since the status was `before`: role and term.
    pub(super) fn note_election(&mut self, before: (MemberRole, u64)) {
        let Some(member) = &self.member else { return };
        let (role, term) = (member.role(), member.term());
        let (vote, of) = member.vote();
        let because = self.stands_because(role, term);
        let elections = &mut self.elections;
        if (elections.vote.term, elections.vote.candidate) != (of, vote) {
            elections.vote = Vote {
                term: of,
                candidate: vote,
                at: Some(SystemTime::now()),
            };
        }
        if stands(role) && !stands(before.0) {
            elections.of(because).called += 1;
        }
        if before.0 == MemberRole::Primary && role != before.0 {
            let asked = std::mem::take(&mut self.yields);
            elections.deposed += u64::from(term > before.1 && !asked);
        }
        if role != MemberRole::Primary {
            self.elected_at = None;
        } else if self.elected_at.is_none() {
            self.elected_at = Some(SystemTime::now());
            self.elected_because = because;
            elections.of(because).successful += 1;
        }
    }
}
