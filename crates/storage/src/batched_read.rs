//! Many reads from the disk at once, for a thread that may wait for them.
//!
//! A get that goes to the disk waits until it has come back, and the next one begins after that. So keys in no order are first looked for
//! in memory, all of them, with what they lack [noted](crate::nonblocking_read); that is handed to the kernel with one call (`io_uring`),
//! and when the last read has come they are looked for again with what was brought. Where the kernel lets the thread have no ring,
//! and for what is still missing after a few rounds, the engine reads one by one.
//!
//! Invariant: a buffer is the kernel's until its completion was taken; none is freed or used before.

use crate::nonblocking_read::{Block, Missing, ROOM};
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often what is still missing is read: a file's index may have to come before it says where its block is.
pub(crate) const ROUNDS: usize = 4;
/// What is read at once at most, in bytes; a read alone may be longer.
const BYTES: usize = 2 << 20;
/// A read past the page cache comes to such an address.
const PAGE: usize = 4096;
/// Buffers up to so many pages are kept, and so many of them for all threads.
const SPARE_PAGES: usize = 8;
const SPARES: usize = 4 * ROOM;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// How many reads were handed over, by all threads.
static HANDED_OVER: AtomicU64 = AtomicU64::new(0);
static BUFFERS: Mutex<Vec<Vec<Page>>> = Mutex::new(Vec::new());

enum Ring {
    Unknown,
    None,
    Has(Box<IoUring>),
}

thread_local! {
    static RING: RefCell<Ring> = const { RefCell::new(Ring::Unknown) };
}

fn open() -> Ring {
    // Completions are told when this thread waits for them, which is all that it does meanwhile. Older kernels do not know that.
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ROOM as u32)
        .or_else(|_| IoUring::new(ROOM as u32));
    ring.map_or(Ring::None, |ring| Ring::Has(Box::new(ring)))
}

/// Whether this thread can read so.
pub(crate) fn possible() -> bool {
    RING.with_borrow_mut(|ring| {
        if matches!(ring, Ring::Unknown) {
            *ring = open();
        }
        matches!(ring, Ring::Has(_))
    })
}

/// How many reads were handed over since the process began.
pub(crate) fn handed_over() -> u64 {
    HANDED_OVER.load(Ordering::Relaxed)
}

struct Read {
    missing: Missing,
    buffer: Vec<Page>,
    length: usize,
    came: usize,
}

/// Reads that have come.
#[derive(Default)]
pub(crate) struct Brought {
    reads: Vec<Read>,
}

impl Brought {
    pub fn blocks(&self) -> Vec<Block<'_>> {
        let bytes = |read: &Read| {
            // SAFETY: pages are bytes, the kernel wrote the first `came` of the buffer's, and the borrow of `self` keeps them.
            unsafe { std::slice::from_raw_parts(read.buffer.as_ptr().cast(), read.came) }
        };
        (self.reads.iter())
            .map(|read| read.missing.brought(bytes(read)))
            .collect()
    }

    /// Reads what is missing, or the first of it; false when nothing was read. What was brought before is let go.
    pub fn read(&mut self, missing: Vec<Missing>) -> bool {
        self.give_back();
        let mut bytes = 0;
        let mut spares = BUFFERS.lock();
        for missing in missing {
            let (_, length) = missing.place();
            if bytes > 0 && bytes + length > BYTES {
                break;
            }
            bytes += length;
            let pages = length.div_ceil(PAGE);
            let buffer = match spares.pop() {
                Some(spare) if spare.capacity() >= pages => spare,
                _ => Vec::with_capacity(pages.max(SPARE_PAGES)),
            };
            self.reads.push(Read {
                missing,
                buffer,
                length,
                came: 0,
            });
        }
        drop(spares);
        RING.with_borrow_mut(|ring| match ring {
            Ring::Has(own) => match read_all(own, &mut self.reads) {
                Done::All => {}
                Done::Failed => self.reads.clear(),
                Done::Lost => {
                    // Better lost than written to after they were freed.
                    std::mem::forget(std::mem::take(&mut self.reads));
                    std::mem::forget(std::mem::replace(ring, Ring::None));
                }
            },
            _ => self.reads.clear(),
        });
        !self.reads.is_empty()
    }

    fn give_back(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut spares = BUFFERS.lock();
        for read in self.reads.drain(..) {
            if spares.len() < SPARES && read.buffer.capacity() <= SPARE_PAGES {
                spares.push(read.buffer);
            }
        }
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        self.give_back();
    }
}

enum Done {
    All,
    /// One was not read, or not all of it; nothing is under way.
    Failed,
    /// Some may be under way.
    Lost,
}

fn read_all(ring: &mut IoUring, reads: &mut [Read]) -> Done {
    for (at, read) in reads.iter_mut().enumerate() {
        let (offset, _) = read.missing.place();
        let Ok(length) = u32::try_from(read.length) else {
            return Done::Lost;
        };
        let buffer = read.buffer.as_mut_ptr().cast();
        let submission = opcode::Read::new(types::Fd(read.missing.fd()), buffer, length)
            .offset(offset)
            .build()
            .user_data(at as u64);
        // SAFETY: the buffer's heap memory stays where it is until the completion is taken (see the invariant), and the file
        // stays open with `missing`.
        if unsafe { ring.submission().push(&submission) }.is_err() {
            return Done::Lost;
        }
    }
    HANDED_OVER.fetch_add(reads.len() as u64, Ordering::Relaxed);
    let (mut left, mut failed) = (reads.len(), false);
    while left > 0 {
        match ring.submit_and_wait(left) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => return Done::Lost,
        }
        for completion in ring.completion() {
            left -= 1;
            let read = reads.get_mut(completion.user_data() as usize);
            match (read, usize::try_from(completion.result())) {
                (Some(read), Ok(came)) if came <= read.length => read.came = came,
                _ => failed = true,
            }
        }
    }
    match failed {
        false => Done::All,
        true => Done::Failed,
    }
}
