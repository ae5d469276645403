//! Long steps: a scan that steps over very many hidden keys asks now and then whether it may go on.
//!
//! The runner of an operation sets the question ([`asking`]). On an event loop, where a view shows only
//! blocks in memory, an operation may step over [`ON_LOOP`] hidden keys in all; then it is suspended as
//! for a read from the disk, and a worker steps over the rest.
//!
//! Invariant: a step passes at most [`STEPS`] hidden keys between two questions.

use errors::{Fallible, operation};
use std::cell::Cell;
use std::time::Instant;

/// The most hidden keys between two questions.
pub(crate) const STEPS: u64 = 8192;
/// The most hidden keys that an operation on an event loop may step over.
pub const ON_LOOP: u64 = 2 * STEPS;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Runs `work`, an operation of this thread, as [`operation::asking`] does.
pub fn asking<T>(
    deadline: Option<Instant>,
    question: &dyn Fn(Option<Instant>) -> Fallible<()>,
    work: impl FnOnce() -> T,
) -> T {
    struct Before(u64);
    impl Drop for Before {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _before = Before(LEFT.replace(ON_LOOP));
    operation::asking(deadline, question, work)
}

/// An operation on an event loop has stepped over so many; false when it has to go to a worker.
pub(crate) fn may_stay_on_loop(hidden: u64) -> bool {
    if !operation::is_asked() {
        return true;
    }
    let left = LEFT.get().saturating_sub(hidden);
    LEFT.set(left);
    left > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_stay_on_a_loop_is_counted_for_each_operation() {
        let go_on = |_: Option<Instant>| Ok(());
        assert!(may_stay_on_loop(u64::MAX), "nobody asks");
        asking(None, &go_on, || {
            asking(None, &go_on, || {
                assert!(may_stay_on_loop(ON_LOOP - 1));
                assert!(!may_stay_on_loop(1) && !may_stay_on_loop(0));
            });
            assert!(may_stay_on_loop(1));
        });
        assert!(may_stay_on_loop(u64::MAX));
    }
}
