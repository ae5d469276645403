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
pub struct Refreshes(Mutex<HashMap<String, Arc<Flight>>>);

/// The refresh state of one namespace.
#[derive(Default)]
pub struct Flight {
    /// How many refreshes have ended.
    ended: AtomicU64,
    leading: Arc<Mutex<()>>,
}

/// Held by the thread that refreshes.
pub struct Leader<'m> {
    flight: &'m Flight,
    _leading: ArcMutexGuard<RawMutex, ()>,
}

impl Refreshes {
    pub fn of(&self, name: &str) -> Arc<Flight> {
        let mut all = self.0.lock();
        if let Some(flight) = all.get(name) {
            return flight.clone();
        }
        // Entries without users are dropped.
        all.retain(|_, flight| Arc::strong_count(flight) > 1);
        all.entry(name.into()).or_default().clone()
    }
}

impl Flight {
    /// To be asked before an attempt.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// After an attempt that was refused, which began when `ended` was known: `None` if another refresh
    /// has ended since.
    pub fn lead(&self, ended: u64, patience: Duration) -> Option<Leader<'_>> {
        let leading = Mutex::try_lock_arc_for(&self.leading, patience)?;
        match self.ended() == ended {
            true => Some(Leader {
                flight: self,
                _leading: leading,
            }),
            false => None,
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.flight.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Of many that are refused at once one asks.
    #[test]
    fn one_finds_out_for_all() {
        let refreshes = Refreshes::default();
        let (asked, ready) = (AtomicU64::new(0), Barrier::new(8));
        let refused = || {
            let flight = refreshes.of("d.c");
            let ended = flight.ended();
            ready.wait();
            if let Some(_leader) = flight.lead(ended, Duration::from_secs(10)) {
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
        let flight = refreshes.of("d.c");
        assert_eq!(flight.ended(), 1);
        assert!(flight.lead(flight.ended(), Duration::ZERO).is_some());
    }
}
