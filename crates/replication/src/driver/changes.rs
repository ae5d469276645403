//! Changes of voters and of the primary: those that a command requests, and those that follow from the
//! configuration.
//!
//! Invariant: before a primary gives its part up it takes no more writes, and those that it took are
//! on their way to the others.

use super::thread::{BY_PRIORITY, BY_STEP_UP, Thread};
use super::{Answer, Changed, Input};
use crate::config::Config;
use crate::log_view::VoterChange;
use crate::member::{Member, MemberRole, raft_id};
use bson::DocBuf;
use errors::{Fallible, err};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use storage::{Entry, Op};

/// Runs what waits for a group of the store on a thread of its own: a group may wait for memory
/// tables to be flushed, and those for the commit point that the driver's thread moves.
/// False where there is no thread to be had.
fn beside(name: &str, f: impl FnOnce() + Send + 'static) -> bool {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(f);
    if let Err(e) = &spawned {
        tracing::error!(target: "REPL", error = %e, "Cannot start a thread");
    }
    spawned.is_ok()
}

/// A member that lacks fewer entries is elected where that is asked for: it gets them before.
pub(super) const CAUGHT_UP: u64 = 10_000;

/// When a primary next asks a member of higher priority to take over. Each try keeps writes out for a
/// moment, so one that fails is followed by a longer pause.
#[derive(Default)]
pub(super) struct Preference {
    next: Option<Instant>,
    tries: u32,
}

/// Between the first try and the second, and the longest between two.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));

impl Preference {
    fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    fn tried(&mut self) {
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(1 << self.tries.min(3)).min(longest);
        self.next = Some(Instant::now() + pause);
        self.tries += 1;
    }
}

impl Thread {
    /// Takes no more writes, and hands `then` of this term in behind those that were taken.
    pub(super) fn close_before(&mut self, then: impl FnOnce(u64) -> Input) {
        self.shared.close();
        self.yields = true;
        // Writes that are refused from now on shall find the reason in `hello`.
        self.tell(Changed::Topology);
        let then = then(self.member.as_ref().map_or(0, Member::term));
        let (store, inputs) = (self.log.store(), self.shared.inputs.clone());
        let begun = beside("closing", move || {
            if let Ok(store) = store {
                store.between_groups();
            }
            let _ = inputs.send(then);
        });
        // Without a thread it stays primary.
        self.closing += usize::from(begun);
    }

    /// Stands for election: asks the primary to hand over, where there is one.
    pub(super) fn step_up(&mut self) -> Fallible<()> {
        let Some(member) = &self.member else {
            return Ok(());
        };
        // A member that has just begun has not heard yet whether there is a primary. Members that hear
        // of one would refuse it their votes.
        if !member.may_stand() || member.role() != MemberRole::Secondary || member.has_just_begun()
        {
            return Ok(());
        }
        match member.ask_for_the_lead() {
            Some(message) => self.transport.send(vec![message]),
            None => {
                self.asked_in = member.term();
                self.asked_because = BY_STEP_UP;
                self.drive(Member::campaign)?;
            }
        }
        Ok(())
    }

    /// Another member asks to be elected in this one's place, and gets its entries first.
    pub(super) fn step_aside_for(&mut self, other: u64) {
        let Some(member) = &self.member else { return };
        let fit = member.role() == MemberRole::Primary
            && self.closing == 0
            && !member.is_handing_over()
            && member.voters().voters.contains(&other)
            && member.lag(other) < CAUGHT_UP;
        if fit {
            tracing::info!(target: "REPL", member = other - 1, "A member was asked to step up");
            self.hands_over_because = BY_STEP_UP;
            self.close_before(move |term| Input::HandOverNow(other, term));
        }
    }

    /// A request of an earlier term is not carried out in a later one.
    pub(super) fn is_of(&self, term: u64) -> bool {
        self.member.as_ref().is_some_and(|m| m.term() == term)
    }

    /// A primary whose successor was not elected takes writes again.
    pub(super) fn reopen(&mut self) {
        let Some(member) = &self.member else { return };
        if member.role() == MemberRole::Primary
            && self.closing == 0
            && !member.is_handing_over()
            && self.shared.status.read().is_primary()
            && !self.shared.is_open()
        {
            self.shared.open.store(member.term(), Ordering::Release);
            self.yields = false;
            self.tell(Changed::Topology);
        }
    }

    /// Writes an entry through the store, as any write, and hands its index to `then`.
    fn propose(
        &self,
        config: &Config,
        change: Option<VoterChange>,
        then: impl FnOnce(Fallible<u64>) + Send + 'static,
    ) -> bool {
        let op = Op::Membership {
            config: config.to_doc().as_bytes().to_vec(),
            change: change.map(VoterChange::to_bytes).unwrap_or_default(),
        };
        let entry = Entry::new("local.system.replset".into(), [0; 16], op, Vec::new());
        let store = self.log.store();
        beside("proposal", move || {
            then(store.and_then(|store| Ok(store.propose(vec![entry])?.index)));
        })
    }

    /// Whether this member was removed: then it hears of no primary, and is not in its own configuration
    /// or, if it missed the change, in that of another member. A member that hears of a primary again is
    /// in the set again.
    pub(super) fn look_for_removal(&mut self) {
        let told = self.transport.without();
        let Some(member) = &self.member else { return };
        let removed = match self.removed {
            _ if member.hears_of_primary() => false,
            true => true,
            false => is_removed(member.id(), member.config(), &told),
        };
        if removed != self.removed {
            tracing::warn!(target: "REPL", removed, "Whether this member is in the newest configuration of its set has changed");
            self.removed = removed;
            self.withhold();
        }
    }

    /// The next change of voters that the configuration asks for.
    pub(super) fn reconcile(&mut self) -> Fallible<()> {
        let Some(member) = &self.member else {
            return Ok(());
        };
        let (Some(change), Some(config)) = (member.next_change(), member.config()) else {
            return Ok(());
        };
        if self.shared.is_open() && !self.reconciling.swap(true, Ordering::AcqRel) {
            let reconciling = self.reconciling.clone();
            // A write that is refused now is tried again with the next look.
            let begun = self.propose(config, Some(change), move |_| {
                reconciling.store(false, Ordering::Release);
            });
            if !begun {
                self.reconciling.store(false, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Hands the primary's part to a member of higher priority that has nearly caught up: it gets the
    /// rest when no more writes are taken.
    pub(super) fn prefer(&mut self) {
        let Some(member) = &self.member else { return };
        if member.role() != MemberRole::Primary {
            self.preference = Preference::default();
            return;
        }
        let Some(config) = member.config().filter(|_| self.preference.is_due()) else {
            return;
        };
        let own = (config.members.iter())
            .find(|m| raft_id(m.id) == member.id())
            .map_or(0.0, |m| m.priority);
        let status = self.shared.status.read().clone();
        let better = (config.members.iter())
            .filter(|m| m.priority > own && member.lag(raft_id(m.id)) < CAUGHT_UP)
            .filter(|m| status.may_take_over(raft_id(m.id)))
            .filter(|m| member.voters().voters.contains(&raft_id(m.id)))
            .max_by(|a, b| a.priority.total_cmp(&b.priority));
        if let Some(better) = better.map(|m| raft_id(m.id)) {
            tracing::info!(target: "REPL", member = better - 1, "A member of higher priority takes over");
            self.hands_over_because = BY_PRIORITY;
            self.preference.tried();
            self.close_before(move |term| Input::HandOverNow(better, term));
        }
    }

    /// Goes on as the only voter of this configuration, where no primary is heard of.
    pub(super) fn force_reconfig(&mut self, config: Config, answer: Answer) -> Fallible<()> {
        let fit = |m: &Member<_>| !m.hears_of_primary();
        if self.copying || !self.member.as_ref().is_some_and(fit) {
            let refused = err!(
                NotWritablePrimary,
                "a primary is heard of, or this member copies files: give the primary the configuration"
            );
            let _ = answer.send(Err(refused));
            return Ok(());
        }
        let Some(member) = self.member.take() else {
            return Ok(());
        };
        tracing::warn!(target: "REPL", version = config.version, "A configuration is forced: this member goes on without the majority of its set");
        let (term, chance) = (member.term(), RandomState::new().hash_one(member.id()));
        self.member = Some(member.force_reconfig(config, chance)?);
        self.left_behind = None;
        self.asked_in = term;
        self.asked_because = BY_STEP_UP;
        self.introduce();
        self.drive(Member::campaign)?;
        let _ = answer.send(Ok(0));
        Ok(())
    }

    pub(super) fn reconfigure(&mut self, config: Config, answer: Answer) {
        match &self.member {
            Some(member) if member.role() == MemberRole::Primary => {
                self.propose(&config, None, move |outcome| {
                    let _ = answer.send(outcome);
                });
            }
            _ => {
                let _ = answer.send(Err(err!(NotWritablePrimary, "not primary")));
            }
        }
    }
}

/// Whether the member of that number is in none of these: its own configuration, and newer ones that
/// others have `told` of. One that has its own removal from the log is told of none that is newer.
fn is_removed(id: u64, own: Option<&Config>, told: &[DocBuf]) -> bool {
    let Some(own) = own else { return false };
    let lacks = |config: &Config| config.members.iter().all(|m| raft_id(m.id) != id);
    let mut configs = (told.iter()).filter_map(|doc| Config::parse(doc.as_doc(), None).ok());
    lacks(own) || configs.any(|config| lacks(&config) && config.is_newer_than(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Host, MemberConfig};
    use bson::ObjectId;

    #[test]
    fn a_member_was_removed_if_its_own_or_a_newer_configuration_lacks_it() {
        let of = |version, ids: std::ops::Range<i32>| {
            let host = |port: i32| Host::parse(&format!("a:{port}")).unwrap();
            let mut config = Config::of_one("rs", host(1), ObjectId::generate());
            config.version = version;
            config.members = ids.map(|id| MemberConfig::new(id, host(id + 1))).collect();
            config
        };
        let told = |config: Config| vec![config.to_doc()];
        let (all, without) = (0..3, 0..2);
        let whole = of(2, all);
        assert!(!is_removed(3, None, &told(of(3, without.clone()))));
        assert!(!is_removed(3, Some(&whole), &[]));
        assert!(!is_removed(3, Some(&whole), &told(of(1, without.clone()))));
        assert!(is_removed(3, Some(&whole), &told(of(3, without.clone()))));
        assert!(is_removed(3, Some(&of(3, without)), &[]));
    }
}
