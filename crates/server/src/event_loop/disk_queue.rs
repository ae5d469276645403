//! Disk queue: reads for suspended requests, which the kernel does while the loop continues, in the
//! order of the requests.
//!
//! Only as many reads are in flight as keep a disk busy; other requests wait for their turn. Without a
//! [`Ring`] from the kernel there is no queue, and workers read instead.
//!
//! Invariant: each request that was taken is returned once by [`DiskQueue::take_ready`], when none of
//! its reads is in flight.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use service::DiskRead;
use slab::Slab;
use uring::{Buffer, Buffers, ReadPlace, Ring};

pub(crate) const RING: Token = Token(usize::MAX - 1);

/// Reads in flight at most. With fewer, ten documents each of some connections would be submitted one by
/// one, as places come free.
const READS: usize = 256;
/// The most bytes in flight; a read alone may be longer.
const BYTES: usize = 16 << 20;
/// The most requests that wait for their turn.
const REQUESTS: usize = 1024;
/// The most reads of one request at once.
const REQUEST_READS: usize = 255;
const REQUEST_BYTES: usize = 2 << 20;
/// Spare buffers, and the shortest and the longest of them in pages.
const SPARES: usize = 64;
const SHORTEST_PAGES: usize = 8;
const LONGEST_PAGES: usize = 16;

/// A request of the queue, with its reads.
struct Entry<R> {
    request: R,
    /// The reads that are not pushed yet.
    lacking: Vec<DiskRead>,
    done: Vec<(DiskRead, Buffer)>,
    under_way: usize,
    failed: bool,
}

/// A request whose reads have ended.
pub(super) struct Ready<R> {
    pub request: R,
    /// The completed reads, in any order; `None` when one failed.
    pub reads: Option<Vec<(DiskRead, Buffer)>>,
}

pub(super) struct DiskQueue<R> {
    /// Each read with the request that it belongs to.
    ring: Ring<(usize, DiskRead)>,
    requests: Slab<Entry<R>>,
    /// Those with reads that are not pushed, the next one first.
    turns: VecDeque<usize>,
    /// The reads in flight, in bytes.
    bytes: usize,
    buffers: Buffers,
}

impl<R> DiskQueue<R> {
    /// To be called on the loop's own thread.
    pub fn open(registry: &Registry) -> Option<DiskQueue<R>> {
        let ring = Ring::polled(READS as u32)?;
        let fd: RawFd = ring.as_raw_fd();
        registry
            .register(&mut SourceFd(&fd), RING, Interest::READABLE)
            .ok()?;
        Some(DiskQueue {
            ring,
            requests: Slab::new(),
            turns: VecDeque::new(),
            bytes: 0,
            buffers: Buffers::new(SPARES, SHORTEST_PAGES, LONGEST_PAGES),
        })
    }

    /// Whether a request with these reads can be taken.
    pub fn has_room(&self, reads: &[DiskRead]) -> bool {
        let bytes: usize = reads.iter().map(|r| r.len).sum();
        !reads.is_empty()
            && reads.len() <= REQUEST_READS
            && bytes <= REQUEST_BYTES
            && self.turns.len() < REQUESTS
    }

    /// Takes a request for whose reads there is room.
    pub fn take(&mut self, request: R, reads: Vec<DiskRead>) {
        self.turns.push_back(self.requests.insert(Entry {
            request,
            done: Vec::with_capacity(reads.len()),
            lacking: reads,
            under_way: 0,
            failed: false,
        }));
        self.push_some();
    }

    /// Pushes the reads of the requests whose turn it is.
    fn push_some(&mut self) {
        while let Some(&key) = self.turns.front() {
            let Some(entry) = self.requests.get_mut(key) else {
                self.turns.pop_front();
                continue;
            };
            let Some(read) = entry.lacking.pop() else {
                self.turns.pop_front();
                continue;
            };
            let len = read.len;
            let busy = self.ring.under_way() > 0 && self.bytes + len > BYTES;
            if busy || !self.ring.has_room() {
                entry.lacking.push(read);
                return;
            }
            let (fd, offset) = (read.fd, read.offset);
            let buffer = self.buffers.take(len);
            match self
                .ring
                .push(ReadPlace { fd, offset, len }, (key, read), buffer)
            {
                Ok(()) => {
                    entry.under_way += 1;
                    self.bytes += len;
                }
                Err(((_, read), buffer)) => {
                    entry.lacking.push(read);
                    self.buffers.give(buffer);
                    return;
                }
            }
        }
    }

    /// Hands the kernel the reads pushed since the last time.
    pub fn submit(&mut self) {
        if self.ring.has_queued() {
            // What could not be submitted stays queued for the next turn.
            let _ = self.ring.submit(0);
        }
    }

    /// Whether the queue needs the next turn soon.
    pub fn is_busy(&mut self) -> bool {
        self.ring.has_queued() || self.ring.has_completed()
    }

    /// The requests of which no read is in flight any more.
    pub fn take_ready(&mut self) -> Vec<Ready<R>> {
        let mut ready = Vec::new();
        while let Some(done) = self.ring.take() {
            let (key, read) = done.owner;
            assert!(self.bytes >= read.len, "reads in flight are counted");
            self.bytes -= read.len;
            let Some(entry) = self.requests.get_mut(key) else {
                panic!("a read in flight belongs to a request that waits");
            };
            assert!(entry.under_way > 0, "each read ends once");
            entry.under_way -= 1;
            entry.failed |= done.result.is_err();
            entry.done.push((read, done.buffer));
            if entry.under_way == 0 && entry.lacking.is_empty() {
                ready.push(key);
            }
        }
        self.push_some();
        let requests = &mut self.requests;
        let take = |key| {
            let entry = requests.remove(key);
            Ready {
                request: entry.request,
                reads: (!entry.failed).then_some(entry.done),
            }
        };
        ready.into_iter().map(take).collect()
    }

    /// Takes back the buffers of reads that were used.
    pub fn give_back(&mut self, reads: Vec<(DiskRead, Buffer)>) {
        for (_, buffer) in reads {
            self.buffers.give(buffer);
        }
    }
}
