//! The memory that one search holds, and asks for before it takes it.

use crate::problem::wrong;
use errors::Result;

/// The most bytes that the sets of one search take in any case.
const MOST_SET_BYTES: usize = 64 << 20;

/// What a search holds. The caller that runs it says whether there is so much.
pub struct Room<'a> {
    held: usize,
    sets: usize,
    ask: &'a mut dyn FnMut(usize) -> Result<()>,
}

impl<'a> Room<'a> {
    /// `ask` is told how many bytes the search would hold in all, and fails where there are not so many.
    pub fn new(ask: &'a mut dyn FnMut(usize) -> Result<()>) -> Room<'a> {
        Room {
            held: 0,
            sets: 0,
            ask,
        }
    }

    /// Takes so many bytes more.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<()> {
        self.held = self.held.saturating_add(bytes);
        (self.ask)(self.held)
    }

    /// The same for documents that were found beforehand.
    pub(crate) fn take_set(&mut self, bytes: usize) -> Result<()> {
        self.sets = self.sets.saturating_add(bytes);
        if self.sets > MOST_SET_BYTES {
            return Err(wrong("the search needs too much memory"));
        }
        self.take(bytes)
    }
}
