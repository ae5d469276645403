//! Leases on the log's past: for readers from some entry on, which lose their position if it is trimmed.
//!
//! Invariant: a lease ends by itself, so a reader that dies does not hold up the log. What all of them
//! keep beyond the window is bounded: at most [`MOST_WINDOWS`] times the window's bytes are kept in all.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// With leases the log may be as large as so many windows.
pub const MOST_WINDOWS: u64 = 3;

#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_name: Mutex<BTreeMap<String, Lease>>,
}

#[derive(Debug)]
struct Lease {
    from: u64,
    until: Instant,
}

impl Leases {
    /// Takes a lease, or renews the one of that name.
    pub fn take(&self, name: &str, from: u64, now: Instant, lifetime: Duration) {
        let until = now + lifetime;
        let mut leases = self.by_name.lock();
        leases.insert(name.to_string(), Lease { from, until });
    }

    pub fn end(&self, name: &str) {
        self.by_name.lock().remove(name);
    }

    /// How many there are.
    pub fn count(&self, now: Instant) -> usize {
        let leases = self.by_name.lock();
        leases.values().filter(|lease| lease.until > now).count()
    }

    /// The first entry under a lease; `u64::MAX` without leases.
    pub fn oldest(&self, now: Instant) -> u64 {
        let mut leases = self.by_name.lock();
        leases.retain(|_, lease| lease.until > now);
        leases.values().map(|l| l.from).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_counts_until_it_ends() {
        let (leases, now) = (Leases::default(), Instant::now());
        let seconds = Duration::from_secs;
        assert_eq!(leases.oldest(now), u64::MAX);
        leases.take("a", 7, now, seconds(10));
        leases.take("b", 5, now, seconds(5));
        assert_eq!((leases.oldest(now), leases.count(now)), (5, 2));
        assert_eq!(leases.count(now + seconds(6)), 1);
        assert_eq!(leases.oldest(now + seconds(6)), 7, "b is over");
        leases.take("a", 9, now + seconds(6), seconds(10));
        assert_eq!(leases.oldest(now + seconds(11)), 9, "it was renewed");
        leases.end("a");
        assert_eq!(leases.oldest(now + seconds(11)), u64::MAX);
    }
}
