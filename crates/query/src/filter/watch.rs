//! What a test has done: whoever may end it is asked in proportion, as evaluations are (`expr/work.rs`).
//!
//! Tests answer yes or no and nothing else, so an end is noted here, and whatever is answered after it counts for nothing. Loops look at
//! it, so that they come to their own end soon.
//!
//! Invariant: what has ended answers with its error, whatever the test said: [`Watch::over_vars`] and [`Watch::unasked`] see to it.

use crate::expr::Vars;
use errors::{Error, Result};
use std::cell::Cell;

/// Going over so many bytes is a unit of work.
const BYTES_OF_UNIT: usize = 64;

pub(crate) struct Watch<'a> {
    vars: Option<&'a Vars>,
    ended: Cell<bool>,
    error: Cell<Option<Error>>,
}

impl<'a> Watch<'a> {
    /// Nobody is asked.
    pub fn none() -> Watch<'a> {
        Watch {
            vars: None,
            ended: Cell::new(false),
            error: Cell::new(None),
        }
    }

    /// What `test` answers, or the error that ended it.
    #[inline]
    pub fn over_vars<T>(vars: &'a Vars, test: impl FnOnce(&Watch<'a>) -> T) -> Result<T> {
        let watch = Watch {
            vars: Some(vars),
            ..Watch::none()
        };
        let answer = test(&watch);
        watch.finish(answer)
    }

    /// As [`Watch::over_vars`], where only an `$expr` can fail.
    #[inline]
    pub fn unasked<T>(test: impl FnOnce(&Watch<'a>) -> T) -> Result<T> {
        let watch = Watch::none();
        let answer = test(&watch);
        watch.finish(answer)
    }

    #[inline]
    fn finish<T>(self, answer: T) -> Result<T> {
        match self.error.into_inner() {
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

    #[inline]
    pub fn goes_on(&self) -> bool {
        !self.ended.get()
    }

    /// Counts units of work; true when it is over.
    #[inline]
    pub fn over(&self, units: usize) -> bool {
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
    pub fn over_bytes(&self, bytes: usize) -> bool {
        self.over(1 + bytes / BYTES_OF_UNIT)
    }

    /// An answer that may be an error instead.
    pub fn heed(&self, answer: Result<bool>) -> bool {
        match answer {
            Ok(yes) => yes,
            Err(e) => self.end(e),
        }
    }

    #[cold]
    fn end(&self, e: Error) -> bool {
        self.ended.set(true);
        self.error.set(Some(e));
        true
    }
}
