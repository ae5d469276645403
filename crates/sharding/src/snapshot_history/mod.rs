//! The states that a shard keeps for snapshots of all shards, by the time that they are of.
//!
//! ```text
//! pinned ─► prepared transactions in it that had committed are shown (settled) ─► read
//! ```
//!
//! Several routers choose the same time, and one router does for several clients. Invariants: the first
//! state pinned at a time stays, however often it is pinned again; it is read only when it is settled,
//! so a read at that time never changes. All routers that settle it show the same, because the
//! coordinating shards have kept one state of that time too; that is asserted.
//!
//! What waits for a lock may find another world when it has it. So the lock is a type of the caller: a
//! mutex in a server, which never lets a future wait, and a task that sleeps in the simulator.

use errors::Result;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

/// A state holds up the engine's cleaning behind it; with more of them than this the oldest goes early.
const MOST: usize = 4096;

/// A state of a shard that does not change; clones of it are the same state.
pub trait State: Clone {
    /// Names a prepared transaction.
    type Id: Clone + Ord + Debug;
    /// What prepared transactions have written.
    type Parts;

    /// Whether nothing is prepared in it.
    fn is_whole(&self) -> Result<bool>;

    /// What these have prepared in it.
    fn parts(&self, ids: &[Self::Id]) -> Result<Self::Parts>;

    /// The state with the prepared writes that it shows.
    fn showing(&self, parts: Self::Parts) -> Result<Self>;
}

/// Exclusive access.
pub trait Exclusive<T> {
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> impl Future<Output = R>;
}

struct Pinned<S: State> {
    /// When it was last pinned, by the caller's clock.
    since: Duration,
    state: S,
    /// The prepared transactions that it shows; `None` until it is settled.
    shown: Option<Vec<S::Id>>,
}

/// The pinned states, by time.
pub struct Kept<S: State>(BTreeMap<u64, Pinned<S>>);

impl<S: State> Default for Kept<S> {
    fn default() -> Kept<S> {
        Kept(BTreeMap::new())
    }
}

impl<S: State> Kept<S> {
    fn pinned_again(&mut self, ts: u64, now: Duration) -> Option<S> {
        let pinned = self.0.get_mut(&ts)?;
        pinned.since = now;
        Some(pinned.state.clone())
    }

    /// Keeps the first.
    fn keep(&mut self, ts: u64, made: Pinned<S>) -> S {
        let now = made.since;
        if let Some(first) = self.pinned_again(ts, now) {
            return first;
        }
        let state = made.state.clone();
        self.0.insert(ts, made);
        while self.0.len() > MOST {
            self.0.pop_first();
        }
        state
    }

    fn settle(&mut self, ts: u64, ids: Vec<S::Id>, parts: S::Parts) -> Result<Option<()>> {
        let Some(pinned) = self.0.get_mut(&ts) else {
            return Ok(None);
        };
        match &pinned.shown {
            Some(shown) => {
                assert!(
                    *shown == ids,
                    "the snapshot at {ts} shows {shown:?}, and was to show {ids:?}"
                );
            }
            None => {
                pinned.state = pinned.state.showing(parts)?;
                pinned.shown = Some(ids);
            }
        }
        Ok(Some(()))
    }
}

/// The states that are kept.
pub struct SnapshotHistory<L>(pub L);

impl<L> SnapshotHistory<L> {
    /// Keeps the state at a time: the one that is kept already, or what `make` gives, which is `None`
    /// where the log is later.
    pub async fn pin<S: State>(
        &self,
        ts: u64,
        now: Duration,
        make: impl FnOnce() -> Result<Option<S>>,
    ) -> Result<Option<S>>
    where
        L: Exclusive<Kept<S>>,
    {
        if let Some(first) = self.0.with(|kept| kept.pinned_again(ts, now)).await {
            return Ok(Some(first));
        }
        let made = match make()? {
            Some(state) => Pinned {
                since: now,
                shown: state.is_whole()?.then(Vec::new),
                state,
            },
            // Another may have pinned it meanwhile, before the log went on.
            None => return Ok(self.0.with(|kept| kept.pinned_again(ts, now)).await),
        };
        Ok(Some(self.0.with(|kept| kept.keep(ts, made)).await))
    }

    /// Shows what these have prepared in the state, and nothing else that is prepared in it. `None`
    /// where it is not kept.
    pub async fn settle<S: State>(&self, ts: u64, mut ids: Vec<S::Id>) -> Result<Option<()>>
    where
        L: Exclusive<Kept<S>>,
    {
        ids.sort_unstable();
        let Some(state) = self.pinned_at(ts).await else {
            return Ok(None);
        };
        let parts = state.parts(&ids)?;
        self.0.with(|kept| kept.settle(ts, ids, parts)).await
    }

    /// The state at a time, as readers see it.
    pub async fn at<S: State>(&self, ts: u64) -> Option<S>
    where
        L: Exclusive<Kept<S>>,
    {
        let settled = |kept: &mut Kept<S>| {
            let found = kept.0.get(&ts).filter(|pinned| pinned.shown.is_some());
            found.map(|pinned| pinned.state.clone())
        };
        self.0.with(settled).await
    }

    /// The state at a time, whatever is not yet known of it: for what it says of decisions.
    pub async fn pinned_at<S: State>(&self, ts: u64) -> Option<S>
    where
        L: Exclusive<Kept<S>>,
    {
        let any = |kept: &mut Kept<S>| kept.0.get(&ts).map(|pinned| pinned.state.clone());
        self.0.with(any).await
    }

    /// Drops those that were not pinned since then.
    pub async fn forget<S: State>(&self, before: Duration)
    where
        L: Exclusive<Kept<S>>,
    {
        let lets_go = |kept: &mut Kept<S>| kept.0.retain(|_, pinned| pinned.since >= before);
        self.0.with(lets_go).await
    }
}

#[cfg(test)]
mod tests;
