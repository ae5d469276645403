//! One request of a collection, or of a database, finds out how router and shards come to agree; the
//! others that were refused wait for what it finds.
//!
//! Invariant: no wait is without limit, and a waiter tries again before it asks anything.

use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
pub struct Agreeing(Mutex<HashMap<String, Arc<Matter>>>);

/// The refresh state of one namespace.
#[derive(Default)]
pub struct Matter {
    /// How many refreshes have ended.
    found: AtomicU64,
    one: Arc<Mutex<()>>,
}

/// Held by the thread that refreshes.
pub struct Lead<'m> {
    matter: &'m Matter,
    _one: ArcMutexGuard<RawMutex, ()>,
}

impl Agreeing {
    pub fn of(&self, name: &str) -> Arc<Matter> {
        let mut all = self.0.lock();
        if let Some(matter) = all.get(name) {
            return matter.clone();
        }
        // Entries without users are dropped.
        all.retain(|_, matter| Arc::strong_count(matter) > 1);
        all.entry(name.into()).or_default().clone()
    }
}

impl Matter {
    /// To be asked before an attempt.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::SeqCst)
    }

    /// After an attempt that was refused, which began when `found` was known: `None` if another refresh
    /// has ended since.
    pub fn lead(&self, found: u64, patience: Duration) -> Option<Lead<'_>> {
        let one = Mutex::try_lock_arc_for(&self.one, patience)?;
        match self.found() == found {
            true => Some(Lead {
                matter: self,
                _one: one,
            }),
            false => None,
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.matter.found.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Of many that are refused at once one asks.
    #[test]
    fn one_finds_out_for_all() {
        let agreeing = Agreeing::default();
        let (asked, ready) = (AtomicU64::new(0), Barrier::new(8));
        let refused = || {
            let matter = agreeing.of("d.c");
            let found = matter.found();
            ready.wait();
            if let Some(_lead) = matter.lead(found, Duration::from_secs(10)) {
                asked.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(refused);
            }
        });
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let matter = agreeing.of("d.c");
        assert_eq!(matter.found(), 1);
        assert!(matter.lead(matter.found(), Duration::ZERO).is_some());
    }
}
