//! The threads that operations may have beside their own: as many as the machine has idle cores.
//!
//! Invariant: an operation takes threads that are there and never waits for them; it gives back all that it took.

use own_process::system;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The threads that operations may have beside their own.
pub struct QueryThreads {
    most: AtomicUsize,
    /// No more are taken than the machine has idle cores.
    where_idle: AtomicBool,
    taken: AtomicUsize,
    /// How many pipelines were divided.
    pub(crate) divided: AtomicU64,
}

/// `serverStatus().pandodb.queryThreads`.
pub struct QueryThreadFigures {
    /// The threads that one operation may have, its own included.
    pub limit: usize,
    /// Those that are taken beside operations' own.
    pub taken: usize,
    /// How many pipelines were divided.
    pub divided: u64,
}

impl Default for QueryThreads {
    /// With its own thread an operation has one for each core.
    fn default() -> QueryThreads {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        QueryThreads {
            most: AtomicUsize::new(cores - 1),
            where_idle: AtomicBool::new(true),
            taken: AtomicUsize::new(0),
            divided: AtomicU64::new(0),
        }
    }
}

impl QueryThreads {
    /// One operation may have so many threads, its own included, whatever else the machine does (`--queryThreads`).
    pub fn limit(&self, threads: usize) {
        self.most.store(threads.saturating_sub(1), Relaxed);
        self.where_idle.store(false, Relaxed);
    }

    pub fn figures(&self) -> QueryThreadFigures {
        QueryThreadFigures {
            limit: self.most.load(Relaxed) + 1,
            taken: self.taken.load(Relaxed),
            divided: self.divided.load(Relaxed),
        }
    }

    /// Takes all that are idle, and none where there are none.
    pub(crate) fn take(&self) -> Taken<'_> {
        let most = self.most.load(Relaxed);
        let idle = match most > 0 && self.where_idle.load(Relaxed) {
            true => system::idle_cores().unwrap_or(most),
            false => most,
        };
        let mut threads = 0;
        let all = |taken: usize| {
            threads = most.saturating_sub(taken).min(idle);
            Some(taken + threads)
        };
        // It always gives a value.
        let _ = self.taken.fetch_update(Relaxed, Relaxed, all);
        Taken { of: self, threads }
    }
}

/// Threads that an operation has beside its own, until it is dropped.
pub(crate) struct Taken<'t> {
    of: &'t QueryThreads,
    pub threads: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.threads, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_taken_where_they_are_idle() {
        let threads = QueryThreads::default();
        threads.limit(4);
        let first = threads.take();
        assert_eq!((first.threads, threads.take().threads), (3, 0));
        assert_eq!((threads.figures().limit, threads.figures().taken), (4, 3));
        drop(first);
        threads.limit(1);
        assert_eq!((threads.take().threads, threads.figures().taken), (0, 0));
        threads.limit(3);
        assert_eq!(threads.take().threads, 2);
    }
}
