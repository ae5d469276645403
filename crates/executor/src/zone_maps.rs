//! The registry of zone maps (`catalog::Zones`): how many exist, and whether one is being built.

use parking_lot::Mutex;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most zone maps.
const MOST: usize = 64;

/// The existing zone maps, and whether one is being built.
#[derive(Default)]
pub struct ZoneMaps {
    made: Mutex<Made>,
    spared: AtomicU64,
}

#[derive(Default)]
struct Made {
    busy: bool,
    maps: Vec<Weak<catalog::Zones>>,
}

impl ZoneMaps {
    /// The number of zone maps.
    pub fn count(&self) -> usize {
        let made = self.made.lock();
        let ready =
            |z: &&Weak<catalog::Zones>| z.upgrade().is_some_and(|z| z.is_ready_for(u64::MAX));
        made.maps.iter().filter(ready).count()
    }

    /// The number of records that sorts did not have to read, by zone maps or index keys.
    pub fn spared(&self) -> u64 {
        self.spared.load(Relaxed)
    }

    pub(crate) fn spare(&self, many: usize) {
        self.spared.fetch_add(many as u64, Relaxed);
    }

    /// Whether another map may be built; if so, its build counts as begun.
    pub(crate) fn begin(&self) -> bool {
        let mut made = self.made.lock();
        let ready =
            |z: &Weak<catalog::Zones>| z.upgrade().is_some_and(|z| z.is_ready_for(u64::MAX));
        made.maps.retain(ready);
        let may = !made.busy && made.maps.len() < MOST;
        made.busy |= may;
        may
    }

    pub(crate) fn end(&self, map: Option<Weak<catalog::Zones>>) {
        let mut made = self.made.lock();
        made.busy = false;
        made.maps.extend(map);
    }
}
