//! The work of a test: the operation is asked in proportion whether to end it, as evaluations do
//! (`expr/work.rs`).
//!
//! Tests answer yes or no and nothing else, so an end is noted here, and whatever is answered after
//! it counts for nothing. Loops look at it, so that they come to their own end soon.
//!
//! Invariant: what has ended answers with its error, whatever the test said: [`WorkMeter::over`]
//! sees to it.

use crate::expr::{Vars, byte_units};
use errors::{Result, Stop};
use std::cell::Cell;

pub(crate) struct WorkMeter<'a> {
    vars: Option<&'a Vars>,
    ended: Cell<bool>,
    error: Cell<Option<Stop>>,
}

impl<'a> WorkMeter<'a> {
    /// A meter that never asks.
    pub fn none() -> WorkMeter<'a> {
        WorkMeter {
            vars: None,
            ended: Cell::new(false),
            error: Cell::new(None),
        }
    }

    /// What `test` answers, or the error that ended it. Without variables it never asks, and only an
    /// `$expr` can fail.
    #[inline]
    pub fn over<T>(vars: Option<&'a Vars>, test: impl FnOnce(&WorkMeter<'a>) -> T) -> Result<T> {
        let watch = WorkMeter {
            vars,
            ..WorkMeter::none()
        };
        let answer = test(&watch);
        match watch.error.into_inner() {
            None => Ok(answer),
            Some(e) => Err(e),
        }
    }

    pub fn vars(&self) -> Option<&'a Vars> {
        self.vars
    }

    #[inline]
    pub fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether the test holds for all items, as far as it may go on.
    #[inline]
    pub fn all<I: IntoIterator>(&self, items: I, mut test: impl FnMut(I::Item) -> bool) -> bool {
        items.into_iter().all(|i| !self.ended() && test(i))
    }

    /// Whether it holds for one of them, likewise.
    #[inline]
    pub fn any<I: IntoIterator>(&self, items: I, mut test: impl FnMut(I::Item) -> bool) -> bool {
        items.into_iter().any(|i| self.ended() || test(i))
    }

    /// Counts units of work; true when it is over.
    #[inline]
    pub fn spent(&self, units: usize) -> bool {
        let Some(vars) = self.vars else {
            return false;
        };
        if self.ended.get() {
            return true;
        }
        match vars.work(units) {
            Ok(()) => false,
            Err(e) => self.end(e),
        }
    }

    /// Counts going over so many bytes.
    #[inline]
    pub fn spent_bytes(&self, bytes: usize) -> bool {
        self.spent(byte_units(bytes))
    }

    /// An answer that may be an error instead.
    pub fn heed(&self, answer: Result<bool>) -> bool {
        match answer {
            Ok(yes) => yes,
            Err(e) => self.end(e),
        }
    }

    #[cold]
    fn end(&self, e: Stop) -> bool {
        self.ended.set(true);
        self.error.set(Some(e));
        true
    }
}
