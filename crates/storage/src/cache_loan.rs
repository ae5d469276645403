//! A part of the cache's memory that something else holds for a time.

use crate::engine::Engine;
use std::sync::{Arc, Weak};

/// Memory is lent in steps of this: each changes the caches.
const STEP: usize = 4 << 20;

/// Comes back when it is dropped.
pub struct CacheLoan {
    /// The loan does not keep the files open.
    engine: Weak<Engine>,
    bytes: usize,
}

impl CacheLoan {
    pub(crate) fn new(engine: &Arc<Engine>) -> CacheLoan {
        CacheLoan {
            engine: Arc::downgrade(engine),
            bytes: 0,
        }
    }

    /// Whether the holder may have `bytes` in all. What it does not need any more comes back only with the loan.
    pub fn fits(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let wanted = bytes.next_multiple_of(STEP);
        let engine = self.engine.upgrade();
        let lends = engine.is_some_and(|engine| engine.lend(self.bytes, wanted));
        if lends {
            self.bytes = wanted;
        }
        lends
    }
}

impl Drop for CacheLoan {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.lend(self.bytes, 0);
        }
    }
}
