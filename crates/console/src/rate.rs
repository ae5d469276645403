//! How often one address may fail to log in.
//!
//! Invariant: the table is bounded; an address that is not in it has its whole allowance.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// So many failures at once, and one more for each interval.
const BURST: u32 = 10;
const EVERY: Duration = Duration::from_secs(3);
const MOST: usize = 1024;

#[derive(Default)]
pub struct Failures(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl Failures {
    pub fn may_try(&self, from: IpAddr) -> bool {
        self.failed_by(from, Instant::now()) < BURST
    }

    /// How many failures are held against an address now.
    fn failed_by(&self, from: IpAddr, now: Instant) -> u32 {
        let all = self.0.lock();
        let Some((count, since)) = all.get(&from) else {
            return 0;
        };
        let forgiven = now.duration_since(*since).as_secs() / EVERY.as_secs();
        count.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX))
    }

    pub fn note(&self, from: IpAddr) {
        let now = Instant::now();
        let count = self.failed_by(from, now) + 1;
        let mut all = self.0.lock();
        if all.len() >= MOST && !all.contains_key(&from) {
            let past = EVERY * BURST;
            all.retain(|_, (_, since)| now.duration_since(*since) < past);
            if all.len() >= MOST {
                all.clear();
            }
        }
        all.insert(from, (count, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_address_and_forgiven() {
        let failures = Failures::default();
        let [a, b] = [1, 2].map(|n| IpAddr::from([127, 0, 0, n]));
        for _ in 0..BURST {
            assert!(failures.may_try(a));
            failures.note(a);
        }
        assert!(!failures.may_try(a) && failures.may_try(b));
        let later = Instant::now() + EVERY * 2;
        assert_eq!(failures.failed_by(a, later), BURST - 2);
    }

    #[test]
    fn the_table_is_bounded() {
        let failures = Failures::default();
        for n in 0..3000u32 {
            failures.note(IpAddr::from(n.to_be_bytes()));
        }
        assert!(failures.0.lock().len() <= MOST);
    }
}
