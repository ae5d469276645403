//! Snapshot history: past states for `readConcern: {level: "snapshot"}`.
//!
//! The first read of a session pins a snapshot and returns its cluster time; later reads name that
//! time and must see the same state. So a snapshot is kept for a while, with the records and the
//! catalog of its time. Invariant: the state of a cluster time never changes while it can be read.
//! A collection or index that was dropped since is refused, because the engine may have removed its
//! data.
//!
//! On a shard routers choose the times, and several of them the same one
//! ([`sharding::snapshot_history`]). What the shard's log has up to such a time stays as it is, also
//! when another member leads: the log says up to which time states may have been pinned, and a primary
//! writes nothing at or before what it found there when it began. So a time that an earlier primary had
//! pinned is past for a later one, and a reader of that state hears that it is gone.

use errors::{Result, bail};
use executor::{Engine, PinnedSnapshot};
use parking_lot::Mutex;
use sharding::snapshot_history::{self as shared, Exclusive, Kept, State};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use storage::{Epoch, WriteSet};

/// A snapshot holds up the engine's cleaning behind it; with more of them than this the oldest goes
/// early.
const MOST: usize = 4096;
/// How far past a pinned time the log reserves times for pinning, in seconds; that is how often it does
/// so.
const RESERVED_SECONDS: u64 = 2;

/// A state that is kept for routers.
#[derive(Clone)]
struct Pinned(Arc<PinnedSnapshot>);

impl State for Pinned {
    /// The key that it is stored under.
    type Id = Vec<u8>;
    type Parts = WriteSet;

    fn is_whole(&self) -> Result<bool> {
        self.0.is_whole()
    }

    fn parts(&self, keys: &[Vec<u8>]) -> Result<WriteSet> {
        self.0.parts(keys)
    }

    fn showing(&self, parts: WriteSet) -> Result<Pinned> {
        Ok(Pinned(Arc::new(self.0.showing(parts))))
    }
}

#[derive(Default)]
struct Locked(Mutex<Kept<Pinned>>);

impl Exclusive<Kept<Pinned>> for Locked {
    async fn with<R>(&self, work: impl FnOnce(&mut Kept<Pinned>) -> R) -> R {
        work(&mut self.0.lock())
    }
}

/// What a future gives that waits for nothing: a mutex is waited for by the thread.
fn at_once<R>(work: impl Future<Output = R>) -> R {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a thread waits for a mutex, and its future does not"),
    }
}

/// The snapshots that can be read, by cluster time.
pub struct SnapshotHistory {
    /// At times that routers have chosen.
    pinned: shared::SnapshotHistory<Locked>,
    /// The newest at some time each.
    newest: Mutex<BTreeMap<u64, (Instant, Arc<PinnedSnapshot>)>>,
    /// Of a shard of a cluster. Its newest state is not used for a time that was pinned by an earlier
    /// primary: that state may show prepared transactions.
    of_shard: bool,
    began: Instant,
    /// Up to which time the log says that states may be pinned. What it has said it says, as long as
    /// this process lives.
    reserved: Mutex<u64>,
}

impl SnapshotHistory {
    /// `of_shard`: of a shard of a cluster, whose states routers choose.
    pub fn new(of_shard: bool) -> SnapshotHistory {
        SnapshotHistory {
            pinned: shared::SnapshotHistory(Locked::default()),
            newest: Mutex::default(),
            of_shard,
            began: Instant::now(),
            reserved: Mutex::default(),
        }
    }

    /// The newest state.
    pub fn newest(&self, engine: &Engine) -> Arc<PinnedSnapshot> {
        let mut newest = self.newest.lock();
        let now = Instant::now();
        if let Some((taken, snapshot)) = newest.get_mut(&engine.store.last_ts()) {
            *taken = now;
            return snapshot.clone();
        }
        let snapshot = Arc::new(PinnedSnapshot::newest(engine));
        newest.insert(snapshot.ts, (now, snapshot.clone()));
        while newest.len() > MOST {
            newest.pop_first();
        }
        snapshot
    }

    /// Pins the state at a time that other shards pin too; `None` where the log is later already. It is
    /// theirs when the log is durable as it is then.
    pub fn pin(
        &self,
        engine: &Engine,
        epoch: Epoch,
        ts: u64,
    ) -> Result<Option<Arc<PinnedSnapshot>>> {
        let make = || Ok(PinnedSnapshot::at(engine, ts)?.map(|made| Pinned(Arc::new(made))));
        let pinned = at_once(self.pinned.pin(ts, self.began.elapsed(), make))?;
        if pinned.is_some() {
            self.reserve(engine, epoch, ts)?;
        }
        Ok(pinned.map(|Pinned(snapshot)| snapshot))
    }

    /// Has no later primary write at this time or before.
    fn reserve(&self, engine: &Engine, epoch: Epoch, ts: u64) -> Result<()> {
        let mut reserved = self.reserved.lock();
        if *reserved < ts {
            *reserved = executor::reserved_time(&engine.store.view())?;
        }
        if *reserved < ts {
            let until = ((ts >> 32) + RESERVED_SECONDS) << 32;
            executor::reserve_time(engine, epoch, until)?;
            *reserved = until;
        }
        Ok(())
    }

    /// Shows parts that are prepared in a pinned state, because their transactions had committed by
    /// then; others that are prepared in it had not. `keys`: where they are stored.
    pub fn include(&self, ts: u64, keys: Vec<Vec<u8>>) -> Result<()> {
        let settled = at_once(self.pinned.settle::<Pinned>(ts, keys))?;
        settled.ok_or_else(|| too_old(ts).into())
    }

    /// A pinned state; which prepared transactions it shows may not be known yet.
    pub fn pinned_at(&self, ts: u64) -> Result<Arc<PinnedSnapshot>> {
        let found = at_once(self.pinned.pinned_at::<Pinned>(ts));
        found.map(|Pinned(m)| m).ok_or_else(|| too_old(ts).into())
    }

    /// The state at a cluster time that an earlier reply returned.
    pub fn at(&self, engine: &Engine, ts: u64) -> Result<Arc<PinnedSnapshot>> {
        if let Some(Pinned(snapshot)) = at_once(self.pinned.at::<Pinned>(ts)) {
            return Ok(snapshot);
        }
        if let Some((_, snapshot)) = self.newest.lock().get(&ts) {
            return Ok(snapshot.clone());
        }
        let newest = engine.store.last_ts();
        // A shard's new primary may be behind what the one before has pinned.
        if ts > newest && !self.of_shard {
            bail!(
                InvalidOptions,
                "readConcern atClusterTime value must not be greater than the current clusterTime. Requested clusterTime: {}; current clusterTime: {}",
                shown(ts),
                shown(newest)
            );
        }
        if ts == newest && !self.of_shard {
            let snapshot = self.newest(engine);
            if snapshot.ts == ts {
                return Ok(snapshot);
            }
        }
        Err(too_old(ts).into())
    }

    /// Lets go of those that were taken longer ago than `window`: MongoDB's `minSnapshotHistoryWindowInSeconds`.
    pub fn forget_old(&self, window: Duration) {
        let mut newest = self.newest.lock();
        newest.retain(|_, (taken, _)| taken.elapsed() < window);
        drop(newest);
        let before = self.began.elapsed().saturating_sub(window);
        at_once(self.pinned.forget::<Pinned>(before));
    }
}

fn shown(ts: u64) -> String {
    format!("Timestamp({}, {})", ts >> 32, ts & u64::from(u32::MAX))
}

fn too_old(ts: u64) -> errors::Error {
    errors::err!(
        SnapshotTooOld,
        "Read timestamp {} is older than the oldest available timestamp.",
        shown(ts)
    )
}

#[cfg(test)]
mod tests;
