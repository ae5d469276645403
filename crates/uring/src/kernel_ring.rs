//! The ring of Linux.
//!
//! Invariant: as the crate's: buffer and owner of a read are the ring's until its completion is taken.

use crate::{Buffer, ReadCompletion, ReadPlace};
use io_uring::{IoUring, opcode, types};
use slab::Slab;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

struct Read<T> {
    owner: T,
    buffer: Buffer,
    len: usize,
}

/// A submission queue and its completions. `T` belongs to one read, says what it is for, and keeps
/// its file open.
pub struct Ring<T> {
    ring: IoUring,
    reads: Slab<Read<T>>,
    /// How many reads it takes at a time.
    entries: usize,
}

impl<T> Ring<T> {
    /// A ring whose file descriptor is polled for completions. `None` where the kernel has no
    /// `io_uring` or forbids it, as some containers do. To be called by the thread that uses it.
    pub fn polled(entries: u32) -> Option<Ring<T>> {
        // Completions are posted when the thread enters the kernel for something else, without an
        // interrupt of their own (Linux 6.0). DEFER_TASKRUN would be cheaper yet, but the poll does
        // not learn of all completions then.
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_coop_taskrun();
        Ring::of(builder.build(entries), entries)
    }

    /// As [`Ring::polled`], for a thread that waits in [`Ring::submit`] and does nothing else
    /// meanwhile.
    pub fn waited(entries: u32) -> Option<Ring<T>> {
        // Completions are posted when the thread waits for them (Linux 6.1).
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        Ring::of(builder.build(entries), entries)
    }

    fn of(ring: io::Result<IoUring>, entries: u32) -> Option<Ring<T>> {
        // Older kernels refuse the options.
        let ring = ring.or_else(|_| IoUring::new(entries)).ok()?;
        Some(Ring {
            ring,
            reads: Slab::new(),
            entries: entries as usize,
        })
    }

    /// Reads that were pushed and whose completion was not taken.
    pub fn under_way(&self) -> usize {
        self.reads.len()
    }

    pub fn has_room(&self) -> bool {
        self.reads.len() < self.entries
    }

    /// Whether there are reads that [`Ring::submit`] has not handed to the kernel.
    pub fn has_queued(&mut self) -> bool {
        !self.reads.is_empty() && !self.ring.submission().is_empty()
    }

    /// Whether [`Ring::take`] has something to give.
    pub fn has_completed(&mut self) -> bool {
        !self.reads.is_empty() && !self.ring.completion().is_empty()
    }

    /// Queues a read into `buffer`; gives both back when there is no room, or the read is longer
    /// than 4 GB.
    pub fn push(&mut self, place: ReadPlace, owner: T, buffer: Buffer) -> Result<(), (T, Buffer)> {
        let length = match u32::try_from(place.len) {
            Ok(length) if self.has_room() && place.len <= buffer.capacity() => length,
            _ => return Err((owner, buffer)),
        };
        let entry = self.reads.vacant_entry();
        let number = entry.key();
        let read = entry.insert(Read {
            owner,
            buffer,
            len: place.len,
        });
        let submission = opcode::Read::new(types::Fd(place.fd), read.buffer.start(), length)
            .offset(place.offset)
            .build()
            .user_data(number as u64);
        // SAFETY: `length` bytes fit the buffer. Its heap memory stays where it is, and is owned by
        // `reads` until the completion is taken (see the invariant).
        if unsafe { self.ring.submission().push(&submission) }.is_err() {
            let read = self.reads.remove(number);
            return Err((read.owner, read.buffer));
        }
        Ok(())
    }

    /// Hands the queued reads to the kernel, and waits until `wanted` completions can be taken. A
    /// signal may end the wait before.
    pub fn submit(&mut self, wanted: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wanted) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// A read that has ended, if there is one.
    pub fn take(&mut self) -> Option<ReadCompletion<T>> {
        loop {
            let completion = self.ring.completion().next()?;
            let number = usize::try_from(completion.user_data()).ok();
            let Some(mut read) = number.and_then(|n| self.reads.try_remove(n)) else {
                debug_assert!(false, "a completion of nothing");
                continue;
            };
            let result = match usize::try_from(completion.result()) {
                Ok(came) if came <= read.len => {
                    // SAFETY: the kernel has written so many bytes, and is done with the buffer.
                    unsafe { read.buffer.set_len(came) };
                    Ok(())
                }
                Ok(_) => Err(io::Error::other("a read that brought too much")),
                Err(_) => Err(io::Error::from_raw_os_error(-completion.result())),
            };
            return Some(ReadCompletion {
                owner: read.owner,
                buffer: read.buffer,
                result,
            });
        }
    }
}

impl<T> AsRawFd for Ring<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while !self.reads.is_empty() {
            if self.submit(1).is_err() {
                // Better leaked than written to after they were freed.
                std::mem::forget(std::mem::take(&mut self.reads));
                return;
            }
            while self.take().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffers;
    use std::fs::File;
    use std::io::Write;
    use std::sync::Arc;

    fn file() -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..=255).collect::<Vec<u8>>().repeat(64))
            .unwrap();
        Arc::new(file)
    }

    fn place(file: &File, offset: u64, len: usize) -> ReadPlace {
        let fd = file.as_raw_fd();
        ReadPlace { fd, offset, len }
    }

    /// Both kinds, or none where the kernel gives none.
    fn rings<T>(entries: u32) -> Vec<Ring<T>> {
        let rings: Vec<_> = [Ring::polled(entries), Ring::waited(entries)]
            .into_iter()
            .flatten()
            .collect();
        let expected = if IoUring::new(entries).is_ok() { 2 } else { 0 };
        assert_eq!(rings.len(), expected);
        rings
    }

    /// Submits the queued reads and waits for all of them.
    fn take_all<T>(ring: &mut Ring<T>) -> Vec<ReadCompletion<T>> {
        let mut all = Vec::new();
        while ring.under_way() > 0 {
            ring.submit(1).unwrap();
            assert!(!ring.has_queued());
            while ring.has_completed() {
                all.push(ring.take().unwrap());
            }
        }
        assert!(ring.take().is_none());
        all
    }

    #[test]
    fn reads_come_with_their_owners() {
        let file = file();
        for mut ring in rings(8) {
            let mut buffers = Buffers::new(8, 1, 4);
            for i in 0..8 {
                let place = place(&file, i * 100, 10);
                assert!(
                    ring.push(place, (i, file.clone()), buffers.take(10))
                        .is_ok()
                );
            }
            assert!(!ring.has_room() && ring.has_queued());
            let refused = ring.push(place(&file, 0, 1), (99, file.clone()), buffers.take(1));
            assert_eq!(refused.unwrap_err().0.0, 99);
            let mut seen = Vec::new();
            for done in take_all(&mut ring) {
                let (i, _) = done.owner;
                done.result.unwrap();
                let wanted: Vec<u8> = (0..10).map(|n| (i * 100 + n) as u8).collect();
                assert_eq!(done.buffer.bytes(), wanted);
                seen.push(i);
                buffers.give(done.buffer);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_end_of_a_file_and_a_file_that_is_not_open() {
        let file = file();
        for mut ring in rings(8) {
            let mut buffers = Buffers::new(8, 1, 4);
            let short = place(&file, 64 * 256 - 3, 10);
            assert!(ring.push(short, "short", buffers.take(10)).is_ok());
            let bad = ReadPlace { fd: -1, ..short };
            assert!(ring.push(bad, "bad", buffers.take(10)).is_ok());
            // A buffer that is too short is not read into.
            assert!(
                ring.push(ReadPlace { len: 5000, ..short }, "long", buffers.take(1))
                    .is_err()
            );
            let mut done = take_all(&mut ring);
            done.sort_by_key(|d| d.owner);
            let [bad, short] = &done[..] else {
                panic!("{done:?}");
            };
            assert!(short.result.is_ok() && short.buffer.bytes() == [253, 254, 255]);
            assert!(bad.result.is_err() && bad.buffer.bytes().is_empty());
        }
    }

    #[test]
    fn a_ring_that_is_dropped_waits_for_its_reads() {
        let file = file();
        for submitted in [true, false] {
            for mut ring in rings(4) {
                let mut buffers = Buffers::new(8, 1, 4);
                for i in 0..4 {
                    let place = place(&file, i, 4096);
                    assert!(ring.push(place, file.clone(), buffers.take(4096)).is_ok());
                }
                if submitted {
                    ring.submit(0).unwrap();
                }
                drop(ring);
                assert_eq!(Arc::strong_count(&file), 1);
            }
        }
    }
}
