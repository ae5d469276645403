//! Change streams that wait for news: a few hold a thread each, and hear of it at once; however many
//! there are, the rest hold none.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Streams whose requests wait in threads at the same time. Others look for news from time to time,
/// and wait without one in between.
const MOST_IN_THREADS: usize = 64;
static IN_THREADS: AtomicUsize = AtomicUsize::new(0);
/// How long such a one waits, for each that looks at the same moment; and the bounds of that.
const PAUSE: Duration = Duration::from_millis(20);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A stream's request that runs, counted.
pub(crate) struct Waiting(usize);

impl Waiting {
    pub fn begin() -> Waiting {
        Waiting(IN_THREADS.fetch_add(1, Relaxed))
    }

    pub fn holds_a_thread(&self) -> bool {
        self.0 < MOST_IN_THREADS
    }

    /// The more there are, the longer each waits.
    pub fn pause(&self) -> Duration {
        let others = u32::try_from(self.0.saturating_sub(MOST_IN_THREADS)).unwrap_or(u32::MAX);
        PAUSE
            .saturating_mul(others)
            .clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        IN_THREADS.fetch_sub(1, Relaxed);
    }
}
