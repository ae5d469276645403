//! A member's published state, and how the driver's thread publishes it.
//!
//! Invariant: when a change is announced, the status has it already.

use super::elections::Elections;
use super::thread::Thread;
use super::{Changed, KnownMember, MemberReport, Release, StoreLog};
use crate::config::Config;
use crate::member::{Member, MemberLog, MemberRole, OpTime, raft_id};
use crate::state_file::SavedState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// MongoDB's number of a secondary's state.
const SECONDARY: i32 = 2;

/// A member's published state.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub role: MemberRole,
    pub term: u64,
    /// This member's number; 0 while it belongs to no set.
    pub id: u64,
    /// The primary's number; 0 where none is known.
    pub primary: u64,
    pub config: Option<Arc<Config>>,
    /// Those that vote now: a member that was added votes once it has caught up.
    pub voters: Vec<u64>,
    /// Those that have entries, and no vote.
    pub learners: Vec<u64>,
    /// This member copies the files of another.
    pub is_copying: bool,
    pub commit_index: u64,
    /// The last entry that readers of the log here may know of: of a delayed member, applied.
    pub shown_index: u64,
    /// On the primary: number, last index on disk, heard of lately.
    pub progress: Vec<(u64, u64, bool)>,
    /// When this member became primary.
    pub elected_at: Option<SystemTime>,
    /// Why it stood for election then, as MongoDB says it.
    pub elected_because: &'static str,
    /// Of the commit point.
    pub committed: OpTime,
    /// Of the last entry on this member's disk, as of the last look.
    pub durable: OpTime,
    /// Of each member, as of the last look: what the primary knows. On a secondary, what it has told.
    pub known: Arc<Vec<KnownMember>>,
    /// It is in maintenance.
    pub in_maintenance: bool,
    /// Its data files are damaged.
    pub is_damaged: bool,
    /// It is no member of the newest configuration any more.
    pub is_removed: bool,
    /// As of the last look: number, and when a message of that member came last.
    pub heard: Vec<(u64, SystemTime)>,
    /// How many rollbacks there were here.
    pub rollbacks: u64,
    pub elections: Elections,
}

impl Status {
    /// What a member knows of itself before it has begun.
    pub(super) fn of_start(state: &SavedState) -> Status {
        Status {
            id: state.id,
            term: state.hard.term,
            config: state.config.clone().map(Arc::new),
            voters: state.voters.voters.clone(),
            learners: state.voters.learners.clone(),
            rollbacks: state.rollbacks,
            ..Status::default()
        }
    }

    /// The configured member with this number.
    pub fn member(&self, id: u64) -> Option<&crate::config::MemberConfig> {
        self.config
            .as_ref()?
            .members
            .iter()
            .find(|m| raft_id(m.id) == id)
    }

    pub fn is_primary(&self) -> bool {
        self.role == MemberRole::Primary
    }

    /// MongoDB's number of the member's state.
    pub fn state(&self) -> i32 {
        match self.role {
            _ if self.id == 0 => 0,
            MemberRole::Primary => 1,
            _ if self.is_removed => 10,
            _ if self.in_maintenance || self.is_damaged => 3,
            // Before a member knows its configuration it has not begun to work.
            _ if self.config.is_none() || self.is_copying || self.commit_index == 0 => 5,
            _ => 2,
        }
    }

    pub fn state_name(&self) -> &'static str {
        match self.state() {
            0 => "STARTUP",
            1 => "PRIMARY",
            3 => "RECOVERING",
            5 => "STARTUP2",
            10 => "REMOVED",
            _ => "SECONDARY",
        }
    }

    /// The known state of another member.
    pub fn known(&self, id: u64) -> Option<&KnownMember> {
        self.known.iter().find(|k| k.id == id)
    }

    /// Whether a member has not said of itself that it is anything but a secondary.
    pub fn may_take_over(&self, id: u64) -> bool {
        self.known(id)
            .is_none_or(|k| matches!(k.report.state, 0 | SECONDARY))
    }

    /// `host:port` of the primary.
    pub fn primary_host(&self) -> Option<String> {
        Some(self.member(self.primary)?.host.to_string())
    }
}

impl Thread {
    /// The member's present state. What changes with each message is as it was `before`, unless it is
    /// time to look.
    fn status(&self, member: &Member<StoreLog>, before: &Status, looked: bool) -> Status {
        let role = member.role();
        let commit = member.commit_index();
        let config = match &before.config {
            Some(known) if Some(&**known) == member.config() => Some(known.clone()),
            _ => member.config().cloned().map(Arc::new),
        };
        let progress = match role {
            MemberRole::Primary => member.progress(),
            _ => Vec::new(),
        };
        let (durable, known, heard) = match looked {
            false => (before.durable, before.known.clone(), before.heard.clone()),
            true => {
                let durable = member.op_time(self.log.durable_index()).unwrap_or_default();
                let heard = self.heard.iter().map(|(id, at)| (*id, *at)).collect();
                (durable, self.known(member, &progress), heard)
            }
        };
        let committed = match before.commit_index == commit && before.committed.ts != 0 {
            true => before.committed,
            false => member.op_time(commit).unwrap_or(before.committed),
        };
        Status {
            role,
            term: member.term(),
            id: member.id(),
            primary: member.leader(),
            config,
            voters: member.voters().voters.clone(),
            learners: member.voters().learners.clone(),
            is_copying: self.left_behind == Some(member.appends()),
            commit_index: commit,
            shown_index: member.shown_index(),
            progress,
            elected_at: self.elected_at,
            elected_because: self.elected_because,
            committed,
            durable,
            known,
            is_damaged: self.damaged,
            in_maintenance: self.shared.maintenance.load(Ordering::Acquire) > 0,
            is_removed: self.removed,
            heard,
            rollbacks: member.rollbacks(),
            elections: self.elections,
        }
    }

    /// The known state of all members: on the primary its own knowledge, elsewhere what the primary has
    /// told.
    fn known(
        &self,
        member: &Member<StoreLog>,
        progress: &[(u64, u64, bool)],
    ) -> Arc<Vec<KnownMember>> {
        if member.role() != MemberRole::Primary {
            let (of, known) = &*self.shared.board.lock();
            return match *of != 0 && *of == member.leader() {
                true => known.clone(),
                false => Arc::default(),
            };
        }
        let own = MemberReport {
            release: Release::own(),
            ..MemberReport::default()
        };
        let report = |id| match id == member.id() {
            true => own,
            false => self.transport.report(id).unwrap_or_default(),
        };
        let of = |&(id, matched, is_heard): &(u64, u64, bool)| KnownMember {
            id,
            durable: member.op_time(matched).unwrap_or_default(),
            report: report(id),
            is_heard,
        };
        let known: Vec<_> = progress.iter().map(of).collect();
        self.transport.spread(&known);
        Arc::new(known)
    }

    /// Publishes the present state.
    pub(super) fn publish(&mut self) {
        let before = self.shared.status.read().clone();
        self.note_election((before.role, before.term));
        let looked = std::mem::take(&mut self.looked);
        let Some(member) = &self.member else { return };
        let status = self.status(member, &before, looked);
        let (commit, shown) = (status.commit_index, status.shown_index);
        let topology = (before.role, before.term, before.primary, before.id)
            != (status.role, status.term, status.primary, status.id)
            || before.config != status.config
            || before.voters != status.voters
            || before.learners != status.learners
            || before.is_copying != status.is_copying
            || before.in_maintenance != status.in_maintenance
            || before.is_damaged != status.is_damaged
            || before.elections != status.elections
            || before.is_removed != status.is_removed
            || (before.commit_index == 0) != (commit == 0);
        let moved = before.shown_index != shown
            || before.commit_index != commit
            || before.progress != status.progress;
        if !topology && !moved {
            if looked {
                *self.shared.status.write() = Arc::new(status);
            }
            return;
        }
        if before.role != status.role {
            tracing::info!(target: "REPL", id = 21358, newState = status.state_name(), oldState = before.state_name(),
                term = status.term, "Replica set state transition");
        }
        let opens = status.role == MemberRole::Primary
            && (before.role, before.term) != (MemberRole::Primary, status.term);
        let term = status.term;
        *self.shared.status.write() = Arc::new(status);
        self.shared.commit.store(commit, Ordering::Release);
        if let Ok(store) = self.log.store() {
            store.decided(shown.min(member.taken_index()));
        }
        self.shared.wake();
        if topology {
            self.tell(Changed::Topology);
        }
        if opens {
            self.shared.open.store(term, Ordering::Release);
            self.shared.wake();
            self.tell(Changed::Opened);
            // Tools wait for MongoDB's sentence.
            tracing::info!(target: "REPL", id = 21331, "Transition to primary complete; database writes are now permitted");
        }
        if moved {
            self.tell(Changed::CommitPoint);
        }
    }

    pub(super) fn tell(&self, what: Changed) {
        for listener in self.shared.listeners.read().iter() {
            listener(what);
        }
    }
}
