//! A member that goes on where a majority of its set is gone for good: by force it becomes the only voter
//! of a new configuration, and brings the others that are left in by the log.
//!
//! ```text
//! voters {1, 2, 3, 4, 5}, of which 3, 4, 5 are gone; the new configuration has 1 and 2
//! member 1   voters {1}, elected by itself; in its log: remove 3, 4, 5; then 2 learns, and votes
//! member 2   takes the same changes from the log: {1, 2, 3, 4, 5} to {1, 2}
//! ```
//!
//! Invariants:
//! - It is asked for by an operator: what only the members that are gone had is lost.
//! - Remaining members come to the same voters as this one: the others are removed by the log.
//! - A change of voters that was under way, and that no majority may have had, is not taken.

use super::{ELECTION_TICKS, Member, MemberLog};
use crate::config::Config;
use errors::Fallible;
use raft::StateRole;
use raft::eraftpb::ConfState;

impl<L: MemberLog + Clone> Member<L> {
    /// Whether it is primary, or has heard of one within an election timeout.
    pub fn hears_of_primary(&self) -> bool {
        let raft = &self.node.raft;
        raft.state == StateRole::Leader
            || raft.leader_id != 0 && raft.election_elapsed < ELECTION_TICKS
    }

    /// The same member as the only voter of this configuration. It is on disk when this returns. The
    /// member stands for election next.
    pub fn force_reconfig(self, config: Config, chance: u64) -> Fallible<Member<L>> {
        let (log, mut state) = (self.log().clone(), self.state);
        let ConfState {
            voters, learners, ..
        } = &state.voters;
        let is_gone = |id: &&u64| {
            let member = i32::try_from(**id).unwrap_or(i32::MAX) - 1;
            config.member(member).is_none()
        };
        let gone = voters.iter().chain(learners).filter(is_gone);
        state.force_removed = gone.copied().collect();
        state.forced_at = log.last_index().max(1);
        state.voters = ConfState {
            voters: vec![state.id],
            ..ConfState::default()
        };
        // The commit point may be that of entries which are not in the log yet.
        state.hard.commit = self.saved_commit;
        state.config = Some(config);
        state.rejoins_until = 0;
        log.save(&state)?;
        Member::new(log, state, chance)
    }
}
