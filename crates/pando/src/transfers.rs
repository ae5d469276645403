//! Objects of an archive that are moved beside each other, as many as its store is good for.
//!
//! Invariant: what goes wrong first is told; nothing new is begun after it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Has `each` called with every item, by so many threads, each of which has what `begin` makes.
pub fn beside_each_other<T: Sync, S>(
    threads: usize,
    items: &[T],
    begin: impl Fn() -> Result<S, String> + Sync,
    each: impl Fn(&mut S, &T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<String>> = Mutex::default();
    let work = || {
        let mut state = begin()?;
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if failure.lock().is_some() {
                break;
            }
            each(&mut state, item)?;
        }
        Ok(())
    };
    let run = || {
        if let Err(why) = work() {
            failure.lock().get_or_insert(why);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(run);
        }
        run();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_taken_once_by_threads_that_begin_once() {
        let (begun, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let items: Vec<usize> = (1..=100).collect();
        let begin = || {
            begun.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let each = |(): &mut (), n: &usize| {
            sum.fetch_add(*n, Ordering::Relaxed);
            Ok(())
        };
        beside_each_other(4, &items, begin, each).unwrap();
        assert_eq!(sum.into_inner(), 5050);
        assert_eq!(begun.into_inner(), 4);
        beside_each_other(4, &[], || Ok(()), |(), _: &u8| Err("never".into())).unwrap();
    }

    #[test]
    fn the_first_failure_ends_all() {
        let done = AtomicUsize::new(0);
        let each = |(): &mut (), n: &usize| {
            done.fetch_add(1, Ordering::Relaxed);
            if *n == 3 { Err("three".into()) } else { Ok(()) }
        };
        let items: Vec<usize> = (0..1000).collect();
        let why = beside_each_other(1, &items, || Ok(()), each).unwrap_err();
        assert_eq!((why.as_str(), done.into_inner()), ("three", 4));
        let why = beside_each_other(2, &items, || Err::<(), _>("no".into()), |(), _| Ok(()));
        assert_eq!(why.unwrap_err(), "no");
    }
}
