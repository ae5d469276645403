//! Reads from the disk that a loop has the kernel do while it goes on (`io_uring`), and the requests that wait for them.
//!
//! A request that lacks reads holds no worker and no thread: its reads are handed over with those of all others at the end of
//! the turn, and when the last of them has come it is run again with what they brought. It may then lack others, a few times.
//! Where the kernel lets us have no ring, workers read instead, and wait. No more is under way than keeps a disk busy; who comes when
//! it is as much waits for his turn.
//!
//! Invariant: a buffer is the kernel's from the moment its read is pushed until its completion is taken; none is freed in between,
//! whatever becomes of the connection, the request or the loop.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use service::{DiskRead, Kept, Resumed, Service};
use slab::Slab;
use smallvec::SmallVec;

use super::replies::is_silent;
use super::{EventLoop, Fate, Ran};
use crate::connection::{Connection, Phase};

pub(crate) const RING: Token = Token(usize::MAX - 1);

/// Reads under way at most. Fewer, and ten documents each of some connections would be handed over one by one, as places come free.
const READS: usize = 256;
/// What is read at once at most, in bytes; a read alone may be longer.
const BYTES: usize = 16 << 20;
/// Requests that wait for their turn at most.
const QUEUE: usize = 1024;
/// What one request may lack at once, in bytes, and how often.
const REQUEST_BYTES: usize = 2 << 20;
const ROUNDS: u8 = 8;
/// How often one that goes on each time where it was left; what it may examine ends it before.
const KEPT_ROUNDS: u8 = 64;
/// Buffers begin where a read past the page cache may begin.
const PAGE: usize = 4096;
/// Buffers up to so many pages are kept, and so many of them.
const SPARE_PAGES: usize = 16;
const SPARES: usize = 64;
/// The low bits of a read's number are its place among those of its request.
const PLACE_BITS: u32 = 8;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// A request that waits for reads.
pub(super) struct Waiting {
    key: usize,
    id: i64,
    message: Vec<u8>,
    respond_to: Option<i32>,
    since: Instant,
    rounds: u8,
    kept: Option<Kept>,
    /// Those that are not handed over yet.
    lacking: Vec<DiskRead>,
    reads: Vec<Read>,
    left: usize,
    failed: bool,
}

struct Read {
    read: DiskRead,
    buffer: Vec<Page>,
    came: usize,
}

impl Read {
    fn bytes(&self) -> &[u8] {
        // SAFETY: pages are bytes, and the kernel wrote the first `came` of the buffer's.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.came) }
    }
}

pub(super) struct Disk {
    ring: IoUring,
    waiting: Slab<Waiting>,
    /// Whose turn is next.
    queue: VecDeque<usize>,
    /// Pushed but not handed over.
    queued: usize,
    /// Pushed and not come back.
    under_way: usize,
    bytes: usize,
    /// Somebody who is alone waits for what is queued: so does the loop.
    wait: bool,
    spares: Vec<Vec<Page>>,
}

impl Disk {
    /// To be called on the loop's own thread; none where the kernel has no such thing or forbids it.
    pub fn open(registry: &Registry) -> Option<Disk> {
        // What has come is told when this thread enters the kernel anyhow: it is not interrupted. Older kernels cannot do that.
        // (That it is told only when asked for would be cheaper yet, but then the poll does not always learn of it.)
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(READS as u32)
            .or_else(|_| IoUring::new(READS as u32))
            .ok()?;
        let fd: RawFd = ring.as_raw_fd();
        registry
            .register(&mut SourceFd(&fd), RING, Interest::READABLE)
            .ok()?;
        Some(Disk {
            ring,
            waiting: Slab::new(),
            queue: VecDeque::new(),
            queued: 0,
            under_way: 0,
            bytes: 0,
            wait: false,
            spares: Vec::new(),
        })
    }

    /// Whether these reads can be taken now.
    fn has_room(&self, reads: &[DiskRead]) -> bool {
        let bytes: usize = reads.iter().map(|r| r.len).sum();
        !reads.is_empty()
            && reads.len() < 1 << PLACE_BITS
            && bytes <= REQUEST_BYTES
            && self.queue.len() < QUEUE
    }

    /// Takes a request for whose reads there is room.
    fn take(&mut self, request: Waiting) {
        self.queue.push_back(self.waiting.insert(request));
        self.start_some();
    }

    /// Pushes the reads of those whose turn it is.
    fn start_some(&mut self) {
        while let Some(&key) = self.queue.front() {
            let Some(request) = self.waiting.get_mut(key) else {
                self.queue.pop_front();
                continue;
            };
            let Some(read) = request.lacking.pop() else {
                self.queue.pop_front();
                continue;
            };
            if self.under_way > 0 && (self.under_way >= READS || self.bytes + read.len > BYTES) {
                request.lacking.push(read);
                return;
            }
            let pages = read.len.div_ceil(PAGE);
            let mut buffer = match self.spares.pop() {
                Some(spare) if spare.capacity() >= pages => spare,
                _ => Vec::with_capacity(pages.max(8)),
            };
            let number = ((key as u64) << PLACE_BITS) | request.reads.len() as u64;
            let length = u32::try_from(read.len).unwrap_or(u32::MAX);
            let submission =
                opcode::Read::new(types::Fd(read.fd), buffer.as_mut_ptr().cast(), length)
                    .offset(read.offset)
                    .build()
                    .user_data(number);
            self.bytes += read.len;
            request.reads.push(Read {
                read,
                buffer,
                came: 0,
            });
            // SAFETY: the buffer's heap memory stays where it is until the completion is taken (see the invariant), and the file
            // stays open with the read.
            while unsafe { self.ring.submission().push(&submission) }.is_err() {
                // As many are under way as the queue has room for, so it is never full after it was handed over.
                let _ = self.ring.submit();
            }
            self.queued += 1;
            self.under_way += 1;
        }
    }

    /// Hands over what was pushed since the last time.
    pub fn submit(&mut self) {
        if self.queued == 0 {
            return;
        }
        let wait = usize::from(std::mem::take(&mut self.wait));
        if self.ring.submit_and_wait(wait).is_ok() {
            self.queued = 0;
        }
    }

    /// Whether there is something to do for it in the next turn.
    pub fn is_busy(&mut self) -> bool {
        self.queued > 0 || (self.under_way > 0 && !self.ring.completion().is_empty())
    }

    /// Takes what has come; the requests of which nothing is under way any more.
    fn come(&mut self) -> Vec<Waiting> {
        if self.under_way == 0 {
            return Vec::new();
        }
        let mut whole = Vec::new();
        for completion in self.ring.completion() {
            let number = completion.user_data();
            let (key, place) = (number >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1));
            let key = key as usize;
            let Some(request) = self.waiting.get_mut(key) else {
                continue;
            };
            self.under_way -= 1;
            request.left -= 1;
            if let Some(read) = request.reads.get_mut(place as usize) {
                self.bytes -= read.read.len;
                match usize::try_from(completion.result()) {
                    Ok(came) if came <= read.read.len => read.came = came,
                    _ => request.failed = true,
                }
            }
            if request.left == 0 {
                whole.push(key);
            }
        }
        self.start_some();
        whole.into_iter().map(|k| self.waiting.remove(k)).collect()
    }

    fn spare(&mut self, reads: Vec<Read>) {
        for read in reads {
            if self.spares.len() < SPARES && read.buffer.capacity() <= SPARE_PAGES {
                self.spares.push(read.buffer);
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.queue.clear();
        while self.under_way > 0 {
            if self.ring.submit_and_wait(1).is_err() {
                // Better lost than written to after they were freed.
                std::mem::forget(std::mem::take(&mut self.waiting));
                return;
            }
            drop(self.come());
        }
    }
}

impl<S: Service> EventLoop<S> {
    /// Whether the reads that a request lacks, after so many rounds of them, can be done while the loop goes on.
    pub(super) fn can_have_read(&self, reads: &[DiskRead], rounds: u8, kept: bool) -> bool {
        let most = if kept { KEPT_ROUNDS } else { ROUNDS };
        rounds < most && self.disk.as_ref().is_some_and(|d| d.has_room(reads))
    }

    /// Has the reads done that a request lacks; false when it must go to a worker.
    pub(super) fn read_for(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        lack: Lack,
        message: &[u8],
        respond_to: Option<i32>,
    ) -> bool {
        let alone = self.lone_client.is_there() && self.staged.is_empty();
        if !self.can_have_read(&lack.reads, lack.rounds, lack.kept.is_some()) {
            c.left = lack.kept.map(|kept| (kept, lack.since));
            return false;
        }
        let Some(disk) = &mut self.disk else {
            return false;
        };
        disk.wait = alone;
        let metrics = &self.shared.control.metrics;
        metrics
            .disk_reads
            .fetch_add(lack.reads.len() as u64, Relaxed);
        c.phase = Phase::Reading;
        c.silent = is_silent(message);
        let output = std::mem::take(&mut c.output);
        let waiting = Waiting {
            key,
            id: c.client.id,
            message: message.to_vec(),
            respond_to,
            since: lack.since,
            rounds: lack.rounds + 1,
            kept: lack.kept,
            reads: Vec::with_capacity(lack.reads.len()),
            left: lack.reads.len(),
            lacking: lack.reads,
            failed: false,
        };
        disk.take(waiting);
        self.spare(output);
        true
    }

    /// Runs the requests whose reads have come.
    pub(super) fn take_reads(&mut self) {
        let Some(disk) = &mut self.disk else {
            return;
        };
        for waiting in disk.come() {
            let (key, id) = (waiting.key, waiting.id);
            self.with_id(key, id, |this, key, c| this.on_read(key, c, waiting));
            self.send_some();
        }
    }

    fn on_read(&mut self, key: usize, c: &mut Connection<S>, waiting: Waiting) -> Fate {
        c.phase = Phase::Idle;
        if c.stream.is_none() {
            return Fate::Close;
        }
        let Waiting {
            message,
            respond_to,
            since,
            rounds,
            kept,
            mut reads,
            failed,
            ..
        } = waiting;
        let ran = if failed {
            // The worker meets the error where it can be told.
            Ran::ToWorker
        } else {
            let brought: SmallVec<[(&DiskRead, &[u8]); 4]> =
                reads.iter().map(|r| (&r.read, r.bytes())).collect();
            let kept = RefCell::new(kept);
            let resumed = Resumed {
                kept: &kept,
                reads: &brought,
                since,
            };
            self.run_resumed(key, c, &message, respond_to, Some((resumed, rounds)))
        };
        if let Some(disk) = &mut self.disk {
            disk.spare(std::mem::take(&mut reads));
        }
        match ran {
            Ran::Handled => {}
            Ran::ToWorker => self.hand_over(key, c, message, respond_to),
            Ran::Close => return Fate::Close,
        }
        self.go_on(key, c);
        Fate::Keep
    }
}

/// What a request lacks.
pub(super) struct Lack {
    pub reads: Vec<DiskRead>,
    /// What it wants back when it is run again.
    pub kept: Option<Kept>,
    /// When it was run first, and how often it has lacked something before.
    pub since: Instant,
    pub rounds: u8,
}
