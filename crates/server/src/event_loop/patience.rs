//! Whether a loop waits for a read itself or has a worker do it.
//!
//! The way to a worker and back is two changes of threads and a second run of the command: dear, if what lies outside the cache
//! comes from the system's page cache or a fast disk. But while the loop waits, its other connections do. So it waits where
//! nobody else is there, and where such reads have lately slept no longer than the way to a worker takes; now and then it tries
//! one, to know. Time in which others had the processor does not count: a read that did not sleep found everything in memory.
//!
//! Invariant: reads that take long on the average are tried less and less often.

use std::time::{Duration, Instant};

/// Requests of one client in a row after which it has the loop to itself, as far as can be known.
const LONE: u32 = 32;
/// What the way to a worker costs the loop and its connections, about.
const HAND_OVER: u32 = 50_000;
/// After how many reads that went to workers one is tried: the fewest, and the most.
const TRIES: (u32, u32) = (32, 4096);

pub(super) struct Patience {
    /// Whose requests came last, and how many in a row.
    client: i64,
    requests: u32,
    /// Nanoseconds for which commands with such reads sleep on the loop, on the average of the last few.
    average: u32,
    handed_over: u32,
    try_after: u32,
}

/// When a command began, and how often the thread had gone to sleep by then.
pub(super) struct Begun {
    at: Instant,
    sleeps: libc::c_long,
}

/// How often this thread has given up the processor of its own accord.
fn sleeps() -> libc::c_long {
    // SAFETY: the call fills the structure that it is given, of which all zeros is a valid value.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw
    }
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            client: 0,
            requests: 0,
            average: 2 * HAND_OVER,
            handed_over: 0,
            try_after: TRIES.0,
        }
    }
}

impl Patience {
    /// A request of a client is about to be run.
    pub fn note(&mut self, client: i64) {
        if self.client != client {
            (self.client, self.requests) = (client, 0);
        }
        self.requests = self.requests.saturating_add(1);
    }

    /// Whether the client of the request noted last has the loop to itself.
    pub fn is_alone(&self) -> bool {
        self.requests > LONE
    }

    /// The request noted last needs the disk: whether to run it here all the same.
    pub fn waits(&mut self) -> bool {
        if self.is_alone() || self.average <= HAND_OVER {
            return true;
        }
        self.handed_over += 1;
        if self.handed_over < self.try_after {
            return false;
        }
        self.handed_over = 0;
        true
    }

    /// A command with such reads is about to be run.
    pub fn begin() -> Begun {
        Begun {
            at: Instant::now(),
            sleeps: sleeps(),
        }
    }

    /// It has been run.
    pub fn end(&mut self, begun: &Begun) {
        let slept = sleeps() != begun.sleeps;
        self.slept(if slept {
            begun.at.elapsed()
        } else {
            Duration::ZERO
        });
    }

    fn slept(&mut self, time: Duration) {
        let nanos = u32::try_from(time.as_nanos()).unwrap_or(u32::MAX);
        self.average = (self.average - self.average / 8).saturating_add(nanos / 8);
        self.try_after = if nanos <= HAND_OVER {
            TRIES.0
        } else {
            self.try_after.saturating_mul(2).min(TRIES.1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_reads_stay_and_slow_ones_go() {
        let mut p = Patience::default();
        let mut client = 0;
        // Two clients take turns: how many of the next `n` reads, each of `micros`, the loop does itself.
        let mut stay = |p: &mut Patience, n: u32, micros| {
            let mut waited = 0;
            for _ in 0..n {
                client = 1 - client;
                p.note(client);
                if p.waits() {
                    waited += 1;
                    p.slept(Duration::from_micros(micros));
                }
            }
            waited
        };
        assert_eq!(stay(&mut p, 31, 10), 0);
        // A few tries, then all of them.
        assert!(stay(&mut p, 2000, 10) > 1500);
        assert_eq!(stay(&mut p, 100, 10), 100);
        // One that is slow is borne, several in a row are not; and tries become rare.
        assert_eq!(stay(&mut p, 1, 200), 1);
        assert_eq!(stay(&mut p, 100, 10), 100);
        assert!(stay(&mut p, 100, 5_000) <= 3);
        assert!(stay(&mut p, 100_000, 5_000) < 40);
        // And back, should the disk become fast again.
        stay(&mut p, 100_000, 10);
        assert_eq!(stay(&mut p, 100, 10), 100);
    }

    #[test]
    fn who_is_alone_is_waited_for() {
        let mut p = Patience::default();
        let mut alone = || {
            p.note(7);
            let waits = p.waits();
            p.slept(Duration::from_millis(9));
            waits
        };
        let waited: Vec<bool> = (0..40).map(|_| alone()).collect();
        assert!(
            waited[32..].iter().all(|w| *w) && !waited[..31].iter().any(|w| *w),
            "{waited:?}"
        );
        p.note(8);
        assert!(!p.waits());
    }
}
