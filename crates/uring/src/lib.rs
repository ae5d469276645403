//! Reads from files through the kernel's `io_uring`: set-up, submission, completion, buffers. Safe
//! to use: whatever the caller does with a [`Ring`], the kernel writes to no memory that was freed.
//!
//! Invariant: the ring owns a buffer, and what keeps the file open, from [`Ring::push`] until the
//! completion is taken. A ring that is dropped first waits for its reads; where that fails it leaks
//! their buffers.
//!
//! Systems without `io_uring` give no ring (`no_ring`), as a kernel does that forbids it: threads read instead.

#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "nothing but a ring fills buffers")
)]
mod buffer;
#[cfg(target_os = "linux")]
mod kernel_ring;
#[cfg(not(target_os = "linux"))]
mod no_ring;

pub use buffer::{Buffer, Buffers, PAGE};
#[cfg(target_os = "linux")]
pub use kernel_ring::Ring;
#[cfg(not(target_os = "linux"))]
pub use no_ring::Ring;

use std::io;
use std::os::fd::RawFd;

/// What to read from an open regular file.
#[derive(Clone, Copy, Debug)]
pub struct ReadPlace {
    pub fd: RawFd,
    /// In bytes; a file that is opened with `O_DIRECT` is read in whole sectors.
    pub offset: u64,
    pub len: usize,
}

/// A read that has ended.
#[derive(Debug)]
pub struct ReadCompletion<T> {
    pub owner: T,
    /// The bytes read: as many as requested, or fewer at the end of the file; none after an error.
    pub buffer: Buffer,
    pub result: io::Result<()>,
}
