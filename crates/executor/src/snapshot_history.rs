//! Snapshot history: past states for `readConcern: {level: "snapshot"}` outside transactions.
//!
//! The first read of a session pins a snapshot and returns its cluster time; later reads name that
//! time and must see the same state. So a snapshot is kept for a while, with the records and the
//! catalog of its time. Invariant: the state of a cluster time never changes while it can be read.
//! A collection or index that was dropped since is refused, because the engine may have removed its
//! data.

use crate::engine::Engine;
use crate::prepared::{damaged, entry_of};
use catalog::Snapshot;
use errors::{Result, bail};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{View, WriteSet};

/// A moment holds up the engine's cleaning behind it; with more of them than this the oldest goes early.
const MOST: usize = 4096;

/// A pinned state of records and catalog, and its cluster time.
pub struct PinnedSnapshot {
    pub ts: u64,
    pub view: View,
    pub catalog: Arc<Snapshot>,
    /// What the view shows over the engine's state: parts of transactions over several shards that
    /// had committed, and of which this shard had not heard.
    pub base: WriteSet,
    pub taken: Instant,
}

impl PinnedSnapshot {
    /// Pins the newest state. Its cluster time is not later than what the view shows.
    pub(crate) fn now(engine: &Engine) -> Arc<PinnedSnapshot> {
        PinnedSnapshot::of(engine, engine.store.last_ts())
    }

    fn of(engine: &Engine, ts: u64) -> Arc<PinnedSnapshot> {
        loop {
            let before = engine.catalog.snapshot();
            let view = engine.store.view();
            let catalog = engine.catalog.snapshot();
            if Arc::ptr_eq(&before, &catalog) {
                return Arc::new(PinnedSnapshot {
                    ts,
                    view,
                    catalog,
                    base: WriteSet::default(),
                    taken: Instant::now(),
                });
            }
        }
    }
}

/// The snapshots that can be read, by cluster time.
pub struct SnapshotHistory {
    kept: Mutex<BTreeMap<u64, (Instant, Arc<PinnedSnapshot>)>>,
    /// The newest state is not taken for the one that was pinned at its time: that may show what was
    /// prepared in it, and was pinned by a primary before this one.
    pinned_only: bool,
}

impl SnapshotHistory {
    /// `of_shard`: of a shard of a cluster, whose states routers choose.
    pub fn new(of_shard: bool) -> SnapshotHistory {
        SnapshotHistory {
            kept: Mutex::default(),
            pinned_only: of_shard,
        }
    }

    /// The newest state.
    pub fn newest(&self, engine: &Engine) -> Arc<PinnedSnapshot> {
        // The time is taken before the view, so the view shows all that was acknowledged by then.
        let ts = engine.store.last_ts();
        let mut kept = self.kept.lock();
        let now = Instant::now();
        if let Some((taken, moment)) = kept.get_mut(&ts) {
            *taken = now;
            return moment.clone();
        }
        let moment = PinnedSnapshot::of(engine, ts);
        kept.insert(ts, (now, moment.clone()));
        while kept.len() > MOST {
            kept.pop_first();
        }
        moment
    }

    /// Pins the state at a time that other shards pin too; `None` where the log is later already.
    pub fn pin(&self, engine: &Engine, ts: u64) -> Result<Option<Arc<PinnedSnapshot>>> {
        let pinned = (engine.store).view_at(ts, || engine.catalog.snapshot())?;
        Ok(pinned.map(|(view, catalog)| {
            let moment = Arc::new(PinnedSnapshot {
                ts,
                view,
                catalog,
                base: WriteSet::default(),
                taken: Instant::now(),
            });
            self.keep(moment.clone());
            moment
        }))
    }

    /// Shows parts that are prepared in a pinned state, because their transactions had committed by
    /// then. `keys`: where they are stored.
    pub fn include(&self, engine: &Engine, ts: u64, keys: &[Vec<u8>]) -> Result<()> {
        let pinned = self.at(engine, ts)?;
        let mut base = pinned.base.clone();
        for key in keys {
            let stored = pinned.view.get(key)?;
            let entry = stored.and_then(|stored| entry_of(&stored));
            for part in entry.ok_or_else(damaged)?.plain() {
                for effect in &part.effects {
                    base.add(effect)?;
                }
            }
        }
        self.keep(Arc::new(PinnedSnapshot {
            ts,
            view: pinned.view.with_writes(base.clone()),
            catalog: pinned.catalog.clone(),
            base,
            taken: pinned.taken,
        }));
        Ok(())
    }

    fn keep(&self, moment: Arc<PinnedSnapshot>) {
        let mut kept = self.kept.lock();
        kept.insert(moment.ts, (Instant::now(), moment));
        while kept.len() > MOST {
            kept.pop_first();
        }
    }

    /// The state at a cluster time that an earlier reply returned.
    pub fn at(&self, engine: &Engine, ts: u64) -> Result<Arc<PinnedSnapshot>> {
        if let Some((_, moment)) = self.kept.lock().get(&ts) {
            return Ok(moment.clone());
        }
        let newest = engine.store.last_ts();
        let shown = |ts: u64| format!("Timestamp({}, {})", ts >> 32, ts & u64::from(u32::MAX));
        // A shard's new primary may be behind what the one before has pinned.
        if ts > newest && !self.pinned_only {
            bail!(
                InvalidOptions,
                "readConcern atClusterTime value must not be greater than the current clusterTime. Requested clusterTime: {}; current clusterTime: {}",
                shown(ts),
                shown(newest)
            );
        }
        if ts == newest && !self.pinned_only {
            let moment = self.newest(engine);
            if moment.ts == ts {
                return Ok(moment);
            }
        }
        bail!(
            SnapshotTooOld,
            "Read timestamp {} is older than the oldest available timestamp.",
            shown(ts)
        );
    }

    /// Lets go of those that were taken longer ago than `window`: MongoDB's `minSnapshotHistoryWindowInSeconds`.
    pub fn forget_old(&self, window: Duration) {
        self.kept
            .lock()
            .retain(|_, (taken, _)| taken.elapsed() < window);
    }
}
