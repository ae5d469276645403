//! A member that may not be primary (`priority: 0`) and has entries that no other reachable voter has:
//! no member can be elected without its vote, and it cannot vote for one whose log is behind its own.
//!
//! It stands for election itself then, takes no writes, brings its entries to the others, and hands
//! over to one that may be primary.

use super::{CAUGHT_UP_ENTRIES, ELECTION_TICKS, Member, MemberLog, raft_id};
use raft::StateRole;

/// So many ticks without a primary are left to those that may be one.
const LEFT_TO_OTHERS: usize = 2 * ELECTION_TICKS;

impl<L: MemberLog + Clone> Member<L> {
    /// With each tick.
    pub(super) fn act_as_caretaker(&mut self) {
        if self.is_electable() {
            self.leaderless = 0;
        } else if self.node.raft.state == StateRole::Leader {
            self.leaderless = 0;
            self.pass_on();
        } else {
            self.stand_if_leaderless();
        }
    }

    fn stand_if_leaderless(&mut self) {
        let raft = &self.node.raft;
        let hears = raft.election_elapsed < ELECTION_TICKS;
        self.leaderless = if hears { 0 } else { self.leaderless + 1 };
        // Two of them do not stand at once.
        let patience = LEFT_TO_OTHERS + raft.randomized_election_timeout();
        let may = self.ticks >= self.frozen_until && !self.withheld && !self.is_rejoining();
        if may && self.leaderless >= patience {
            self.leaderless = 0;
            let _ = self.node.campaign();
        }
    }

    /// Has the voter elected that lacks least, of those that may be primary.
    fn pass_on(&mut self) {
        let Some(config) = self
            .state
            .config
            .as_ref()
            .filter(|_| !self.is_handing_over())
        else {
            return;
        };
        let ids = config.members.iter().filter(|m| m.is_electable());
        let voters = ids
            .map(|m| raft_id(m.id))
            .filter(|id| self.state.voters.voters.contains(id));
        let heir = voters.map(|id| (self.lag(id), id)).min();
        if let Some((_, heir)) = heir.filter(|(lag, _)| *lag < CAUGHT_UP_ENTRIES) {
            self.node.transfer_leader(heir);
        }
    }
}
