//! What was sent and acknowledged, and which reads are right because of that.

use crate::names::{Ns, id_in, ns_of};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A bug that is put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    /// The mover raises no fence.
    FenceSkipped,
    /// The fence does not wait for writes in flight.
    GateSkipped,
    /// The fence does not wait for prepared transactions.
    PreparedPassed,
    /// A shard serves whatever version a router believes in.
    VersionUnchecked,
    /// A donor's log tells of all touched documents but the last.
    CatchUpShort,
    /// A donor's log gives the first state of a document that was written more than once.
    OldestOfBatch,
    /// A donor's log that was cut behind a mover's position tells only its rest.
    LogCutUnseen,
    /// A shard shows documents that are not its own.
    OrphansShown,
    /// A read goes on with a version that was compared before its view was taken.
    ViewUnchecked,
    /// A pinned state shows documents that were hidden in it.
    HiddenShownLater,
    /// The outcomes of retryable writes do not go with a range.
    OutcomesLeft,
    /// The coordinating shard does not store the shards to tell.
    DecisionForgotten,
    /// A decision is earlier than its prepares.
    DecisionEarly,
    /// Prepared writes are in memory only.
    PromiseInMemory,
    /// Prepared writes hold no locks.
    PreparedReleased,
    /// A snapshot is read without the transactions prepared in it.
    SnapshotUnprepared,
    /// A state that is pinned again is put in the place of the first, without what that was told to show.
    SnapshotPinnedAnew,
    /// A shard takes documents from a mover whose lock another holds.
    LateMoverHeard,
    /// What removes a range goes on when the range has come back.
    CleanGoesOn,
    /// What removes a range does not wait for what movers have sent of it.
    MoversPassed,
    /// The mover of a primary raises no fence.
    DatabaseFenceSkipped,
    /// The fence of a database does not wait for writes in flight.
    DatabaseGateSkipped,
    /// A shard serves whatever version of a database a router believes in.
    DatabaseUnchecked,
    /// A shard takes the fence of a database from a mover whose lock another holds.
    LateDatabaseFence,
    /// The documents of a collection that has moved stay where they were.
    SourceLeft,
    /// The views of a database stay where its primary was, and those that are there stay as they are.
    OldViewsKept,
    /// A router asks whether a collection says where it is, and then where its database is.
    DatabaseReadLast,
    /// A move that its own mover rolls back is ended in the turn in which it began.
    SameTurnAtTheEnd,
    /// One of several moves at once changes the owner by the table that it began with.
    OldTableAtTheEnd,
    /// Several moves at once change their owners without waiting for each other.
    OwnersChangedAtOnce,
}

impl Planted {
    /// All bugs.
    pub const ALL: [Planted; 30] = [
        Planted::FenceSkipped,
        Planted::GateSkipped,
        Planted::PreparedPassed,
        Planted::VersionUnchecked,
        Planted::CatchUpShort,
        Planted::OldestOfBatch,
        Planted::LogCutUnseen,
        Planted::OrphansShown,
        Planted::ViewUnchecked,
        Planted::HiddenShownLater,
        Planted::OutcomesLeft,
        Planted::DecisionForgotten,
        Planted::DecisionEarly,
        Planted::PromiseInMemory,
        Planted::PreparedReleased,
        Planted::SnapshotUnprepared,
        Planted::SnapshotPinnedAnew,
        Planted::LateMoverHeard,
        Planted::CleanGoesOn,
        Planted::MoversPassed,
        Planted::DatabaseFenceSkipped,
        Planted::DatabaseGateSkipped,
        Planted::DatabaseUnchecked,
        Planted::LateDatabaseFence,
        Planted::SourceLeft,
        Planted::OldViewsKept,
        Planted::DatabaseReadLast,
        Planted::SameTurnAtTheEnd,
        Planted::OldTableAtTheEnd,
        Planted::OwnersChangedAtOnce,
    ];
}

/// The accounts, whose sum stays.
pub const ACCOUNTS: u32 = 12;
pub const EACH: i64 = 100;

/// A document that writers made.
#[derive(Clone, Debug, Default)]
struct Made {
    acknowledged: bool,
    deletes: u32,
    deleted: bool,
    sent: i64,
    sure: i64,
}

#[derive(Default)]
pub struct Inner {
    made: BTreeMap<u32, Made>,
    pub wrong: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
}

pub struct History {
    pub planted: Planted,
    inner: RefCell<Inner>,
}

/// What has to be seen by a read that begins now.
#[derive(Clone, Default)]
pub struct Expected {
    there: BTreeMap<u32, i64>,
    gone: Vec<u32>,
}

impl History {
    pub fn new(planted: Planted) -> History {
        History {
            planted,
            inner: RefCell::default(),
        }
    }

    pub fn has(&self, planted: Planted) -> bool {
        self.planted == planted
    }

    pub fn count(&self, what: &'static str) {
        *self.inner.borrow_mut().counts.entry(what).or_default() += 1;
    }

    pub fn counted(&self, what: &str) -> u64 {
        let inner = self.inner.borrow();
        inner.counts.get(what).copied().unwrap_or(0)
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.borrow().counts.clone()
    }

    pub fn wrong(&self, what: String) {
        self.inner.borrow_mut().wrong.push(what);
    }

    pub fn is_wrong(&self) -> bool {
        !self.inner.borrow().wrong.is_empty()
    }

    pub fn what_is_wrong(&self) -> Vec<String> {
        self.inner.borrow().wrong.clone()
    }

    fn change(&self, id: u32, change: impl FnOnce(&mut Made)) {
        change(self.inner.borrow_mut().made.entry(id).or_default());
    }

    pub fn inserting(&self, id: u32) {
        self.change(id, |_| {});
    }

    pub fn inserted(&self, id: u32) {
        self.change(id, |m| m.acknowledged = true);
    }

    pub fn adding(&self, id: u32) {
        self.change(id, |m| m.sent += 1);
    }

    pub fn added(&self, id: u32) {
        self.change(id, |m| m.sure += 1);
    }

    /// It was told that nothing was added.
    pub fn not_added(&self, id: u32) {
        self.change(id, |m| m.sent -= 1);
    }

    pub fn deleting(&self, id: u32) {
        self.change(id, |m| m.deletes += 1);
    }

    pub fn deleted(&self, id: u32) {
        self.change(id, |m| m.deleted = true);
    }

    /// What a read that begins now has to see, unless a client begins to delete it.
    pub fn expected(&self, ns: Ns) -> Expected {
        let inner = self.inner.borrow();
        let made = || inner.made.range(id_in(ns, 0)..id_in(ns + 1, 0));
        let there = made().filter(|(_, m)| m.acknowledged);
        let gone = made().filter(|(_, m)| m.deleted);
        Expected {
            there: there.map(|(id, m)| (*id, m.sure)).collect(),
            gone: gone.map(|(id, _)| *id).collect(),
        }
    }

    /// The collections of which something was sent.
    pub fn collections(&self) -> BTreeSet<Ns> {
        let inner = self.inner.borrow();
        inner.made.keys().map(|id| ns_of(*id)).collect()
    }

    /// Compares what a read has found, which began with these expectations.
    pub fn check(&self, what: &str, expected: &Expected, found: &[(u32, i64)]) {
        let mut seen: BTreeMap<u32, i64> = BTreeMap::new();
        for (id, value) in found {
            if seen.insert(*id, *value).is_some() {
                self.wrong(format!("{what}: {id} is there twice"));
            }
        }
        let made = self.inner.borrow().made.clone();
        for (id, sure) in &expected.there {
            let m = &made[id];
            match seen.get(id) {
                None if m.deletes == 0 => self.wrong(format!("{what}: {id} is lost")),
                Some(value) if value < sure => {
                    self.wrong(format!("{what}: {id} has {value}, and {sure} acknowledged"));
                }
                _ => {}
            }
        }
        for (id, value) in seen.iter().filter(|(id, _)| **id >= ACCOUNTS) {
            match made.get(id) {
                None => self.wrong(format!("{what}: nobody made {id}")),
                Some(m) if *value > m.sent => {
                    self.wrong(format!(
                        "{what}: {id} has {value}, and {} were sent",
                        m.sent
                    ));
                }
                _ => {}
            }
        }
        for id in expected.gone.iter().filter(|id| seen.contains_key(id)) {
            self.wrong(format!("{what}: {id} was deleted"));
        }
    }

    /// The accounts in one state of all shards.
    pub fn check_sum(&self, what: &str, found: &[(u32, i64)]) {
        let accounts: Vec<_> = found.iter().filter(|(id, _)| *id < ACCOUNTS).collect();
        let sum: i64 = accounts.iter().map(|(_, v)| v).sum();
        let whole = (ACCOUNTS as usize, EACH * i64::from(ACCOUNTS));
        if (accounts.len(), sum) != whole {
            self.wrong(format!(
                "{what}: {} accounts have {sum} together: {accounts:?}",
                accounts.len()
            ));
        }
    }
}
