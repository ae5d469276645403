//! A moment of the past that reads are made of: `readConcern: {level: "snapshot"}` outside of transactions.
//!
//! The first read of a session takes a moment and tells its cluster time; later ones name that time and must find the same
//! state. A moment is therefore kept for a while after it was taken, with the records and the catalog of its time.
//! Invariant: what one cluster time shows never changes for as long as it can be read. What the engine may have let go of
//! since (a collection or an index that was dropped) is refused, not read.

use crate::engine::Engine;
use catalog::Snapshot;
use errors::{Result, bail};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::View;

/// How long a moment can be read: MongoDB's `minSnapshotHistoryWindowInSeconds`.
const WINDOW: Duration = Duration::from_secs(300);
/// A moment holds up the engine's cleaning behind it; with more of them than this the oldest goes early.
const MOST: usize = 4096;

/// A state of everything, and the cluster time that stands for it.
pub struct PinnedSnapshot {
    pub ts: u64,
    pub view: View,
    pub catalog: Arc<Snapshot>,
}

impl PinnedSnapshot {
    /// The newest state. Its time is not after what the view shows.
    pub(crate) fn now(engine: &Engine) -> Arc<PinnedSnapshot> {
        PinnedSnapshot::of(engine, engine.store.last_ts())
    }

    fn of(engine: &Engine, ts: u64) -> Arc<PinnedSnapshot> {
        loop {
            let before = engine.catalog.snapshot();
            let view = engine.store.view();
            let catalog = engine.catalog.snapshot();
            if Arc::ptr_eq(&before, &catalog) {
                return Arc::new(PinnedSnapshot { ts, view, catalog });
            }
        }
    }
}

/// The moments that can be read, by their cluster time.
#[derive(Default)]
pub struct SnapshotHistory(Mutex<BTreeMap<u64, (Instant, Arc<PinnedSnapshot>)>>);

impl SnapshotHistory {
    /// The newest state.
    pub fn newest(&self, engine: &Engine) -> Arc<PinnedSnapshot> {
        // The time before the view: it shows all that was acknowledged by then.
        let ts = engine.store.last_ts();
        let mut kept = self.0.lock();
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

    /// The state at a cluster time that a reply told before.
    pub fn at(&self, engine: &Engine, ts: u64) -> Result<Arc<PinnedSnapshot>> {
        if let Some((_, moment)) = self.0.lock().get(&ts) {
            return Ok(moment.clone());
        }
        let newest = engine.store.last_ts();
        let shown = |ts: u64| format!("Timestamp({}, {})", ts >> 32, ts & u64::from(u32::MAX));
        if ts > newest {
            bail!(
                InvalidOptions,
                "readConcern atClusterTime value must not be greater than the current clusterTime. Requested clusterTime: {}; current clusterTime: {}",
                shown(ts),
                shown(newest)
            );
        }
        if ts == newest {
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

    /// Lets go of those that were taken too long ago.
    pub fn forget_old(&self) {
        self.0
            .lock()
            .retain(|_, (taken, _)| taken.elapsed() < WINDOW);
    }
}
