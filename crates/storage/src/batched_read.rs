//! Batched reads: a thread that may wait has many records read from the disk at once.
//!
//! A get that goes to the disk waits for its block before the next get begins. So keys in no order are
//! first looked up in memory, all of them, and the reads that they miss are
//! [recorded](crate::nonblocking_read). The kernel gets these reads with one call ([`uring`]). When the
//! last has come the keys are looked up again, with the blocks at hand. If the thread can have no ring,
//! and for reads still missing after [`ROUNDS`] rounds, the engine reads one by one.

use crate::nonblocking_read::{Block, Missing, ROOM};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use uring::{Buffer, Buffers, ReadPlace, Ring};

/// How many rounds of missing reads there are: a file's index block may have to come before it says
/// where a data block is.
pub(crate) const ROUNDS: usize = 4;
/// The most that is read at once, in bytes; a read alone may be longer.
const BYTES: usize = 2 << 20;
/// The spare buffers of all threads: how many, and the length of each in pages.
const SPARES: usize = 4 * ROOM;
const SPARE_PAGES: usize = 8;

/// How many reads were submitted, by all threads.
static SUBMITTED: AtomicU64 = AtomicU64::new(0);
static BUFFERS: Mutex<Buffers> = Mutex::new(Buffers::new(SPARES, SPARE_PAGES, SPARE_PAGES));

/// The ring of this thread.
enum Own {
    Unknown,
    None,
    Has(Box<Ring<Missing>>),
}

thread_local! {
    static RING: RefCell<Own> = const { RefCell::new(Own::Unknown) };
}

/// Whether this thread can have reads batched.
pub(crate) fn possible() -> bool {
    RING.with_borrow_mut(|own| {
        if matches!(own, Own::Unknown) {
            *own = Ring::waited(ROOM as u32).map_or(Own::None, |ring| Own::Has(Box::new(ring)));
        }
        matches!(own, Own::Has(_))
    })
}

/// How many reads were submitted since the process began.
pub(crate) fn submitted() -> u64 {
    SUBMITTED.load(Ordering::Relaxed)
}

/// Reads that have come.
#[derive(Default)]
pub(crate) struct FinishedReads {
    reads: Vec<(Missing, Buffer)>,
}

impl FinishedReads {
    pub fn blocks(&self) -> Vec<Block<'_>> {
        (self.reads.iter())
            .map(|(missing, buffer)| missing.brought(buffer.bytes()))
            .collect()
    }

    /// Reads the missing blocks, or the first of them; false when nothing was read. Drops the blocks of
    /// the last round.
    pub fn read(&mut self, missing: Vec<Missing>) -> bool {
        self.give_back();
        RING.with_borrow_mut(|own| {
            let Own::Has(ring) = own else {
                return;
            };
            match read_all(ring, missing) {
                Some(reads) => self.reads = reads,
                None if ring.under_way() > 0 => *own = Own::None,
                None => {}
            }
        });
        !self.reads.is_empty()
    }

    fn give_back(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut spares = BUFFERS.lock();
        self.reads
            .drain(..)
            .for_each(|(_, buffer)| spares.give(buffer));
    }
}

impl Drop for FinishedReads {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Submits the missing reads, up to [`BYTES`], and waits for all of them; `None` when one failed.
fn read_all(ring: &mut Ring<Missing>, missing: Vec<Missing>) -> Option<Vec<(Missing, Buffer)>> {
    let mut bytes = 0;
    let mut spares = BUFFERS.lock();
    for missing in missing {
        let (offset, len) = missing.place();
        if bytes > 0 && bytes + len > BYTES {
            break;
        }
        bytes += len;
        let fd = missing.fd();
        let buffer = spares.take(len);
        if ring
            .push(ReadPlace { fd, offset, len }, missing, buffer)
            .is_err()
        {
            break;
        }
    }
    drop(spares);
    let count = ring.under_way();
    SUBMITTED.fetch_add(count as u64, Ordering::Relaxed);
    let mut reads = Vec::with_capacity(count);
    let mut failed = false;
    while ring.under_way() > 0 {
        ring.submit(ring.under_way()).ok()?;
        while let Some(done) = ring.take() {
            failed |= done.result.is_err();
            reads.push((done.owner, done.buffer));
        }
    }
    (!failed).then_some(reads)
}
