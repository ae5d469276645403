//! The operation that this thread runs: what takes long asks here whether it is to end (`maxTimeMS`,
//! `killOp`, a client that has left), wherever it stands.
//!
//! The runner of an operation sets the question ([`asking`]). What goes over something that a user has
//! sent counts a [`step`] for each clause, field, element or word. So parsing and planning need not be
//! given the operation.
//!
//! Invariants: the operation is asked at least once in [`TURN`] steps; a short command never asks.

use crate::Fallible;
use std::cell::Cell;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Steps from one question to the next. A step is about what it takes to read a clause.
pub const TURN: usize = 1024;

type Question<'a> = &'a dyn Fn(Option<Instant>) -> Fallible<()>;

#[derive(Clone, Copy)]
struct InterruptCheck {
    question: Option<NonNull<dyn Fn(Option<Instant>) -> Fallible<()>>>,
    deadline: Option<Instant>,
}

const NO_CHECK: InterruptCheck = InterruptCheck {
    question: None,
    deadline: None,
};

thread_local! {
    static CHECK: Cell<InterruptCheck> = const { Cell::new(NO_CHECK) };
    /// Steps until the next question.
    static LEFT: Cell<usize> = const { Cell::new(TURN) };
}

/// Runs `work`, an operation of this thread. `question` is given the deadline, and fails when the
/// operation has to end.
pub fn asking<T>(deadline: Option<Instant>, question: Question, work: impl FnOnce() -> T) -> T {
    struct Before(InterruptCheck);
    impl Drop for Before {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    // SAFETY: only the lifetime is changed. The pointer is forgotten when `before` is dropped,
    // which is before this function returns.
    let question: Question<'static> = unsafe { std::mem::transmute(question) };
    let before = Before(CHECK.get());
    CHECK.set(InterruptCheck {
        question: Some(NonNull::from(question)),
        deadline,
    });
    LEFT.set(TURN);
    let done = work();
    drop(before);
    done
}

/// The operation of this thread has another deadline.
pub fn until(deadline: Option<Instant>) {
    CHECK.set(InterruptCheck {
        deadline,
        ..CHECK.get()
    });
}

/// When the operation of this thread has to end.
pub fn deadline() -> Option<Instant> {
    CHECK.get().deadline
}

/// Whether a question is set.
pub fn is_asked() -> bool {
    CHECK.get().question.is_some()
}

/// Fails when the operation of this thread has to end.
pub fn ask() -> Fallible<()> {
    let asked = CHECK.get();
    match asked.question {
        // SAFETY: it lives for as long as it stands there; see `asking`.
        Some(question) => unsafe { question.as_ref()(asked.deadline) },
        None => Ok(()),
    }
}

/// Before work of about that time that cannot be ended. Fails when the operation of this thread has to
/// end, or would have to before that is done.
pub fn ask_ahead(work: Duration) -> Fallible<()> {
    let asked = CHECK.get();
    let latest = asked.deadline.and_then(|d| d.checked_sub(work));
    match asked.question {
        // SAFETY: it lives for as long as it stands there; see `asking`.
        Some(question) => unsafe { question.as_ref()(latest.or(asked.deadline)) },
        None => Ok(()),
    }
}

/// Counts a step. Fails when the operation of this thread has to end.
#[inline]
pub fn step() -> Fallible<()> {
    steps(1)
}

/// Counts steps, done or about to be done.
#[inline]
pub fn steps(many: usize) -> Fallible<()> {
    let left = LEFT.get();
    if many < left {
        LEFT.set(left - many);
        return Ok(());
    }
    ask_at_turn()
}

#[cold]
fn ask_at_turn() -> Fallible<()> {
    LEFT.set(TURN);
    ask()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_nested_and_end_with_their_work() {
        assert!(ask().is_ok() && !is_asked(), "nobody asks");
        let soon = Instant::now();
        let refuse = |until: Option<Instant>| match until {
            Some(_) => Err(crate::err!(Interrupted, "ended")),
            None => Ok(()),
        };
        asking(None, &refuse, || {
            assert!(ask().is_ok() && is_asked());
            asking(Some(soon), &refuse, || assert!(ask().is_err()));
            assert!(ask().is_ok());
            until(Some(soon));
            assert!(ask().is_err());
        });
        assert!(ask().is_ok() && !is_asked());
    }

    #[test]
    fn steps_ask_in_turns() {
        let asked = Cell::new(0);
        let count = |_: Option<Instant>| {
            asked.set(asked.get() + 1);
            Ok(())
        };
        asking(None, &count, || {
            (1..TURN).for_each(|_| step().unwrap());
            assert_eq!(asked.get(), 0, "what is short asks nobody");
            step().unwrap();
            steps(TURN * 10).unwrap();
            assert_eq!(asked.get(), 2);
            steps(TURN - 1).unwrap();
            assert_eq!(asked.get(), 2);
        });
    }

    #[test]
    fn what_cannot_be_ended_in_time_is_not_begun() {
        let until = |deadline: Option<Instant>| match deadline {
            Some(d) if Instant::now() >= d => Err(crate::err!(MaxTimeMSExpired, "late")),
            _ => Ok(()),
        };
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(7200));
        asking(None, &until, || assert!(ask_ahead(long).is_ok()));
        asking(
            Some(Instant::now() + Duration::from_secs(3600)),
            &until,
            || {
                assert!(ask_ahead(short).is_ok() && ask_ahead(long).is_err() && ask().is_ok());
            },
        );
    }
}
