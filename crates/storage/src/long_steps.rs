//! Long steps: a scan that steps over very many hidden keys asks now and then whether it may go on.
//!
//! Who runs an operation says what is to be asked ([`asking`]), and when the operation's time is
//! over. On an event loop, where a view shows only what is in memory, an operation may step over
//! [`ON_LOOP`] hidden keys in all; then it is suspended as for a read from the disk, and a worker
//! steps over the rest.
//!
//! Invariant: a step passes at most [`STEPS`] hidden keys between two questions.

use errors::Result;
use std::cell::Cell;
use std::ptr::NonNull;
use std::time::Instant;

/// The most hidden keys between two questions.
pub(crate) const STEPS: u64 = 8192;
/// The most hidden keys that an operation on an event loop may step over.
pub const ON_LOOP: u64 = 2 * STEPS;

type Question<'a> = &'a dyn Fn(Option<Instant>) -> Result<()>;

#[derive(Clone, Copy)]
struct Asked {
    question: Option<NonNull<dyn Fn(Option<Instant>) -> Result<()>>>,
    deadline: Option<Instant>,
    left: u64,
}

const NOBODY: Asked = Asked {
    question: None,
    deadline: None,
    left: u64::MAX,
};

thread_local! {
    static ASKED: Cell<Asked> = const { Cell::new(NOBODY) };
}

/// Runs `work`, an operation of this thread. `question` is given the deadline, and fails when the
/// operation has to end.
pub fn asking<T>(deadline: Option<Instant>, question: Question, work: impl FnOnce() -> T) -> T {
    struct Before(Asked);
    impl Drop for Before {
        fn drop(&mut self) {
            ASKED.set(self.0);
        }
    }
    // SAFETY: only the lifetime is changed. The pointer is forgotten when `before` is dropped,
    // which is before this function returns.
    let question: Question<'static> = unsafe { std::mem::transmute(question) };
    let before = Before(ASKED.get());
    ASKED.set(Asked {
        question: Some(NonNull::from(question)),
        deadline,
        left: ON_LOOP,
    });
    let done = work();
    drop(before);
    done
}

/// The operation of this thread has another deadline.
pub fn until(deadline: Option<Instant>) {
    ASKED.set(Asked {
        deadline,
        ..ASKED.get()
    });
}

/// An operation on an event loop has stepped over so many; false when it has to go to a worker.
pub(crate) fn may_stay_on_loop(hidden: u64) -> bool {
    let asked = ASKED.get();
    if asked.question.is_none() {
        return true;
    }
    let left = asked.left.saturating_sub(hidden);
    ASKED.set(Asked { left, ..asked });
    left > 0
}

/// Fails when the operation of this thread has to end.
pub(crate) fn ask() -> Result<()> {
    let asked = ASKED.get();
    match asked.question {
        // SAFETY: it lives for as long as it stands there; see `asking`.
        Some(question) => unsafe { question.as_ref()(asked.deadline) },
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_nested_and_end_with_their_work() {
        assert!(may_stay_on_loop(u64::MAX) && ask().is_ok(), "nobody asks");
        let soon = Instant::now();
        let refuse = |until: Option<Instant>| match until {
            Some(_) => Err(errors::err!(Interrupted, "ended").into()),
            None => Ok(()),
        };
        asking(None, &refuse, || {
            assert!(ask().is_ok());
            asking(Some(soon), &refuse, || assert!(ask().is_err()));
            assert!(ask().is_ok());
            until(Some(soon));
            assert!(ask().is_err());
            assert!(may_stay_on_loop(ON_LOOP - 1));
            assert!(!may_stay_on_loop(1) && !may_stay_on_loop(0));
        });
        assert!(may_stay_on_loop(u64::MAX) && ask().is_ok());
    }
}
