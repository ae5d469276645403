//! The ring of a system without `io_uring`: there is none.
//!
//! Invariant: no value of it exists, so the caller reads in another way.

use crate::{Buffer, ReadCompletion, ReadPlace};
use std::convert::Infallible;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};

pub struct Ring<T> {
    never: Infallible,
    _owners: PhantomData<T>,
}

impl<T> Ring<T> {
    pub fn polled(_entries: u32) -> Option<Ring<T>> {
        None
    }

    pub fn waited(_entries: u32) -> Option<Ring<T>> {
        None
    }

    pub fn under_way(&self) -> usize {
        match self.never {}
    }

    pub fn has_room(&self) -> bool {
        match self.never {}
    }

    pub fn has_queued(&mut self) -> bool {
        match self.never {}
    }

    pub fn has_completed(&mut self) -> bool {
        match self.never {}
    }

    pub fn push(&mut self, _: ReadPlace, _owner: T, _: Buffer) -> Result<(), (T, Buffer)> {
        match self.never {}
    }

    pub fn submit(&mut self, _wanted: usize) -> io::Result<()> {
        match self.never {}
    }

    pub fn take(&mut self) -> Option<ReadCompletion<T>> {
        match self.never {}
    }
}

impl<T> AsRawFd for Ring<T> {
    fn as_raw_fd(&self) -> RawFd {
        match self.never {}
    }
}
