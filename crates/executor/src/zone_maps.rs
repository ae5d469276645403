//! The zone maps that there are (`catalog::Zones`): how many, and whether one is being made.

use parking_lot::Mutex;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maps that there may be.
const MOST: usize = 64;

/// The maps that there are, and whether one is being made.
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
    /// How many there are.
    pub fn count(&self) -> usize {
        let made = self.made.lock();
        let ready =
            |z: &&Weak<catalog::Zones>| z.upgrade().is_some_and(|z| z.is_ready_for(u64::MAX));
        made.maps.iter().filter(ready).count()
    }

    /// How many records sorts have not read that they would have read otherwise, whatever told of them.
    pub fn spared(&self) -> u64 {
        self.spared.load(Relaxed)
    }

    pub(crate) fn spare(&self, many: usize) {
        self.spared.fetch_add(many as u64, Relaxed);
    }

    /// Whether another may be made; then it is being made.
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
