//! Write throttle: slows writers to the rate of compaction, before the engine has to stop them.
//!
//! Compaction debt is the number of files on level 0 beyond those that wait to be merged together.
//! Each makes every read dearer, and at some number the engine slows writers to a crawl and then
//! stops them. So the delay for each byte grows with the debt, from [`FREE`] on, with its square.
//! The write rate settles where compaction keeps up, and changes little from one second to the
//! next.
//!
//! ```text
//! price of a kilobyte = full price × ((debt − FREE) / (FULL − FREE))²          debt in files, sampled by the keeper
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Debt up to this number of files causes no delay.
const FREE: u64 = 8;
/// From this debt on the delay is the full price; the engine's own limits are higher.
pub(crate) const FULL: u64 = 32;
/// The full price: the delay that allows 4 MB a second.
const FULL_NANOS_PER_KB: u64 = 1_000_000_000 / (4 << 10);
/// Shorter pauses are accumulated: a thread cannot sleep more precisely.
const LEAST_PAUSE_NANOS: u64 = 200_000;
const LONGEST_PAUSE_NANOS: u64 = 100_000_000;

#[derive(Default)]
pub(crate) struct Pace {
    nanos_per_kb: AtomicU64,
    /// The delay that is owed for bytes already written. Only the leader of a group touches it.
    owed_nanos: AtomicU64,
}

impl Pace {
    /// Sets the price by the compaction debt, in files.
    pub fn observe(&self, debt: u64) {
        let over = debt.clamp(FREE, FULL) - FREE;
        let span = FULL - FREE;
        let price = FULL_NANOS_PER_KB * over * over / (span * span);
        self.nanos_per_kb.store(price, Ordering::Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.nanos_per_kb.load(Ordering::Relaxed) > 0
    }

    /// The delay for a megabyte, in milliseconds.
    pub fn millis_per_mb(&self) -> u64 {
        self.nanos_per_kb.load(Ordering::Relaxed) * 1024 / 1_000_000
    }

    /// Adds the delay for a group that was written.
    pub fn charge(&self, bytes: usize) {
        let price = self.nanos_per_kb.load(Ordering::Relaxed);
        if price > 0 {
            let due = price * (bytes as u64 / 1024 + 1);
            self.owed_nanos.fetch_add(due, Ordering::Relaxed);
        }
    }

    /// The delay before the next group, if any.
    pub fn pause(&self) -> Option<Duration> {
        let owed = self.owed_nanos.load(Ordering::Relaxed);
        if owed < LEAST_PAUSE_NANOS {
            return None;
        }
        self.owed_nanos.store(0, Ordering::Relaxed);
        Some(Duration::from_nanos(owed.min(LONGEST_PAUSE_NANOS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_grows_with_what_waits() {
        let pace = Pace::default();
        let price = |files| {
            pace.observe(files);
            pace.millis_per_mb()
        };
        assert_eq!((price(0), price(FREE)), (0, 0));
        let prices = [FREE + 2, 16, 24, FULL].map(price);
        assert!(prices.is_sorted() && prices[0] > 0, "{prices:?}");
        assert_eq!(price(FULL), price(1000), "and ends somewhere");
        assert_eq!(prices[3], 249);
    }

    #[test]
    fn small_debts_are_saved_up() {
        let pace = Pace::default();
        pace.charge(1 << 20);
        assert_eq!(pace.pause(), None);
        pace.observe(FREE + 2);
        pace.charge(1024);
        assert_eq!(pace.pause(), None);
        pace.charge(1 << 20);
        let pause = pace.pause().expect("a pause");
        assert!(
            pause > Duration::from_micros(500) && pause < Duration::from_millis(10),
            "{pause:?}"
        );
        assert_eq!(pace.pause(), None);
    }
}
