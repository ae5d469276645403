//! Work of an index that idle cores may have a part of.

use errors::Result;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, scope};

/// The threads that work beside the one that asks for them.
#[derive(Clone, Copy)]
pub struct Helpers<'h> {
    pub threads: usize,
    /// What each of them does first.
    pub begin: &'h (dyn Fn() + Sync),
}

impl Default for Helpers<'_> {
    /// None.
    fn default() -> Self {
        Helpers {
            threads: 0,
            begin: &|| {},
        }
    }
}

impl Helpers<'_> {
    /// What `of` makes of each number below `count`, in their order. No thread outlives it.
    pub(crate) fn each<T: Send>(
        self,
        count: usize,
        of: impl Fn(usize) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, T)>> {
            let mut made = Vec::new();
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= count {
                    return Ok(made);
                }
                made.push((n, of(n)?));
            }
        };
        let mut all = scope(|scope| {
            let help = || {
                (self.begin)();
                work()
            };
            let threads = self.threads.min(count.saturating_sub(1));
            // Where the system gives no thread the others do its part.
            let threads = (0..threads).filter_map(|_| {
                let thread = Builder::new().name("search-helper".into());
                thread.spawn_scoped(scope, help).ok()
            });
            let threads: Vec<_> = threads.collect();
            let mut all = work()?;
            for thread in threads {
                let made = thread.join();
                all.extend(made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok::<_, errors::Stop>(all)
        })?;
        all.sort_unstable_by_key(|(n, _)| *n);
        Ok(all.into_iter().map(|(_, made)| made).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_with_any_number_of_threads() {
        let begun = AtomicUsize::new(0);
        let begin = || {
            begun.fetch_add(1, Relaxed);
        };
        for threads in 0..4 {
            let helpers = Helpers {
                threads,
                begin: &begin,
            };
            let made = helpers.each(100, |n| Ok(n * n)).unwrap();
            assert!(made.iter().enumerate().all(|(n, square)| n * n == *square));
            assert!(helpers.each(0, Ok).unwrap().is_empty());
            let failed = helpers.each(100, |n| match n {
                50 => Err(crate::problem::wrong("no")),
                n => Ok(n),
            });
            assert!(failed.is_err());
        }
        assert!(begun.into_inner() > 0);
    }
}
