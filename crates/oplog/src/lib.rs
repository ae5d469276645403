//! The durable operation log: checksummed entries in segment files, group append, group sync,
//! recovery.
//!
//! An entry is opaque bytes with an index (dense, from 1), a BSON Timestamp (seconds << 32 |
//! increment), the term of the primary that made it, and a wall clock. The life of a group of
//! entries:
//!
//! ```text
//! Log::group ── add, add, … ── write ───────────► written: survives a kill of the process, is acknowledged for w: 1
//!   (append lock: index, timestamp)  one write(2)     │
//!                                      sync (asked for, or each interval when dirty: one fdatasync for all so far)
//!                                                     ▼
//!                                                  durable: survives a loss of power, is acknowledged for majority and j: true
//! ```
//!
//! Invariants:
//! - Indexes are dense, timestamps strictly grow and terms do not fall, across restarts and when
//!   the clock goes backwards.
//! - A group is written whole or not at all: a failed write is cut off again, and when that fails
//!   too the log is poisoned.
//! - A failed fsync poisons the log for good: nothing more is acknowledged, since the kernel may
//!   have dropped what it could not write and would answer the next fsync with success.
//! - Recovery drops a tail only when nothing proves that it was durable; otherwise a damaged entry
//!   is an error that names the segment and the offset. The proof: each entry says which index was
//!   durable when it was written. A tail without such a proof is cut off.
//! - The unit of atomicity is one entry, in one frame. Of a group that a loss of power tears, a
//!   prefix of whole entries may stay.
//! - A truncation ([`Log::truncate_after`]) is durable before anything is appended behind it.
//! - A segment is rolled without waiting for a disk; the durable index passes a segment's first
//!   entry only after the directory and all earlier segments were synced.

mod cut;
mod error;
mod examine;
mod file;
mod frame;
mod group;
mod lease;
mod marks;
mod reader;
mod recovery;
mod segment;
mod sync;

pub use error::{Error, Result};
pub use examine::{LogExamination, examine, examine_from, segment_before};
pub use file::{Disk, FileSystem, LogFile, UnsyncedDisk};
pub use group::{Group, Stamp};
pub use lease::MOST_WINDOWS;
pub use reader::{LogMark, LogReader, Record};
pub use recovery::Recovered;
pub use sync::DurableIndex;

pub use frame::MAX_PAYLOAD_BYTES;

use cut::Cuts;
use encryption::DataKey;
use frame::{Header, VERSION};
use marks::RecentMarks;
use own_process::fail_stop::FailStop;
use parking_lot::Mutex;
use segment::{Segment, Segments};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use sync::Syncer;

/// How a log is opened.
#[derive(Clone)]
pub struct LogOptions {
    pub dir: PathBuf,
    /// A segment is closed when the next group would make it larger than this.
    pub segment_bytes: u64,
    /// The longest time that a written entry stays unsynced when no client asked for a sync; zero
    /// syncs after every group.
    pub sync_interval: Duration,
    /// How much of its past is kept at first; [`Log::set_window`] changes it.
    pub window: Window,
    pub file_system: Arc<dyn FileSystem>,
    /// Entries are sealed under it; a log has all of its segments sealed, or none.
    pub key: Option<DataKey>,
    /// The clock behind timestamps: milliseconds since 1970.
    pub clock: fn() -> u64,
}

impl LogOptions {
    pub fn new(dir: impl Into<PathBuf>) -> LogOptions {
        LogOptions {
            dir: dir.into(),
            segment_bytes: 64 << 20,
            sync_interval: Duration::from_millis(100),
            window: Window::default(),
            file_system: Arc::new(Disk),
            key: None,
            clock: wall_clock,
        }
    }
}

/// How much of its past a log keeps: a segment goes when the log is larger than `max_bytes` and all in it is older than `min_age`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub max_bytes: u64,
    pub min_age: Duration,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            max_bytes: 1 << 30,
            min_age: Duration::ZERO,
        }
    }
}

/// The segments that were removed since the log was opened, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    pub segments: u64,
    pub took: Duration,
}

fn wall_clock() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(0))
}

/// The state of the appender, under the append lock.
pub(crate) struct Tail {
    segment: Arc<Segment>,
    /// Where the next group goes.
    offset: u64,
    /// How far disk space is reserved; at `offset` or before it where none is.
    reserved: u64,
    next_index: u64,
    last_ts: u64,
    last_term: u64,
    /// The term of new entries; at least that of the last one.
    term: u64,
    buf: Vec<u8>,
    recent: RecentMarks,
}

impl Tail {
    /// Cuts off what is reserved and was not used.
    fn give_back(&mut self) {
        // Where this fails zeros stay, which no reader takes for entries.
        if self.reserved > self.offset && self.segment.file.truncate(self.offset).is_ok() {
            self.reserved = self.offset;
        }
    }

    /// The header of a segment that begins here.
    fn header(&self, flags: u32) -> Header {
        Header {
            version: VERSION,
            flags,
            first_index: self.next_index,
            term_before: self.last_term,
            ts_before: self.last_ts,
        }
    }
}

pub(crate) struct Shared {
    opts: LogOptions,
    segments: Mutex<Segments>,
    window: Mutex<Window>,
    trimmed: Mutex<Trimmed>,
    /// Entries from here on stay, whatever the window says.
    held_from: AtomicU64,
    leases: lease::Leases,
    /// The last index whose write returned.
    written: AtomicU64,
    last_ts: AtomicU64,
    /// No entry that is made here has a lower timestamp.
    floor_ts: AtomicU64,
    /// Bytes appended since it was opened.
    bytes: AtomicU64,
    syncer: Syncer,
    cuts: Cuts,
}

/// The log. One process, one log; shared by reference among threads.
pub struct Log {
    shared: Arc<Shared>,
    tail: Mutex<Tail>,
    sync_thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Opens or creates the log, passes every entry from index `from` on to `replay`, and cuts off
    /// a torn tail.
    ///
    /// `from` is the first entry that the caller's state lacks; `floor_ts` is the timestamp of that
    /// state. The state may be ahead of the log: it was flushed before a loss of power, and the
    /// log's tail was not. Then the log continues at `from`.
    pub fn open<E: From<Error>>(
        opts: LogOptions,
        from: u64,
        floor_ts: u64,
        replay: impl FnMut(Record<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(Log, Recovered), E> {
        recovery::open(opts, from, floor_ts, replay)
    }

    /// Takes the append lock and starts a group.
    pub fn group(&self) -> Group<'_> {
        Group::new(&self.shared, self.tail.lock())
    }

    /// Appends one entry as a group of its own.
    pub fn append(&self, payload: &[u8]) -> Result<Stamp> {
        let mut group = self.group();
        let stamp = group.add(|buf| buf.extend_from_slice(payload));
        group.write()?;
        Ok(stamp)
    }

    /// Appends entries that another member made, as one group: all of them or none. See
    /// [`Group::add_record`].
    pub fn append_records<'r>(
        &self,
        records: impl IntoIterator<Item = Record<'r>>,
    ) -> Result<Stamp> {
        let _fail_stop = FailStop::begin();
        let mut group = self.group();
        for record in records {
            group.add_record(&record)?;
        }
        group.write()
    }

    /// The term of the last entry.
    pub fn last_term(&self) -> u64 {
        self.tail.lock().last_term
    }

    /// Sets the term of entries that this member makes from now on. The log holds the term once it
    /// holds the first of them, and not before.
    pub fn set_term(&self, term: u64) -> Result<()> {
        let mut tail = self.tail.lock();
        if term < tail.term {
            return Err(Error::OutOfOrder {
                index: tail.next_index,
                why: format!("term {term} is before term {}", tail.term),
            });
        }
        tail.term = term;
        Ok(())
    }

    /// The last index that is in the log file.
    pub fn last_index(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Entries that are made here from now on have at least this timestamp.
    pub fn advance_clock(&self, ts: u64) {
        self.shared.floor_ts.fetch_max(ts, Ordering::AcqRel);
    }

    /// The timestamp of the last entry.
    pub fn last_ts(&self) -> u64 {
        self.shared.last_ts.load(Ordering::Acquire)
    }

    /// Bytes appended since the log was opened.
    pub fn written_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// The last index that survives a loss of power.
    pub fn durable_index(&self) -> u64 {
        self.shared.syncer.durable()
    }

    /// [`Log::durable_index`] without holding the log.
    pub fn follow_durable_index(&self) -> DurableIndex {
        self.shared.syncer.durable_index()
    }

    /// Runs the callbacks of [`Log::on_durable`], as after a sync.
    pub fn call_back(&self) {
        self.shared.syncer.call_back();
    }

    /// Asks the sync thread for an fdatasync now; [`Log::on_durable`] callbacks tell when it is
    /// done.
    pub fn request_sync(&self) {
        self.shared.syncer.request();
    }

    /// As [`Log::request_sync`], but not right after another sync: requests of a few milliseconds are
    /// served by one. For readers that follow the log, and would have a sync after each group.
    pub fn request_sync_soon(&self) {
        self.shared.syncer.request_soon();
    }

    /// Waits until `index` is durable. The calling thread does the sync itself when none is
    /// running.
    pub fn wait_durable(&self, index: u64) -> Result<()> {
        self.shared.wait_durable(index)
    }

    /// Calls `callback` with the durable index after each sync, also after a failed one. A waiter
    /// whose entry it did not reach asks [`Log::healthy`].
    pub fn on_durable(&self, callback: Box<dyn Fn(u64) + Send + Sync>) {
        self.shared.syncer.add_callback(callback);
    }

    /// An error when the log is poisoned and takes no more entries.
    pub fn healthy(&self) -> Result<()> {
        self.shared.syncer.healthy()
    }

    /// Entries from `from` on. At the end of the log the reader gives `None`, and may be asked
    /// again later.
    pub fn read(&self, from: u64) -> Result<LogReader> {
        LogReader::new(self.shared.clone(), from)
    }

    /// A reader that continues where another one stopped.
    pub fn read_at(&self, mark: LogMark) -> Result<LogReader> {
        LogReader::at(self.shared.clone(), mark)
    }

    /// A place at or before the entry `index`: near it if the entry was written a short time ago.
    pub fn mark_before(&self, index: u64) -> LogMark {
        self.tail.lock().recent.before(index)
    }

    /// A reader placed before the first kept entry whose timestamp is at least `ts`. To find it,
    /// the entries of one segment are read.
    pub fn seek(&self, ts: u64) -> Result<LogReader> {
        loop {
            match self.seek_once(ts) {
                // The segment went meanwhile.
                Err(Error::Missing { wanted, .. }) if wanted < self.first_index() => {}
                found => return found,
            }
        }
    }

    fn seek_once(&self, ts: u64) -> Result<LogReader> {
        let all: Vec<_> = self.shared.segments.lock().all.iter().cloned().collect();
        // The last one may be empty, and then has no first timestamp.
        let later = all.partition_point(|s| (1..ts).contains(&s.first_ts()));
        let from = later.checked_sub(1).and_then(|at| all.get(at));
        let from = from.map_or(0, |s| s.first_index).max(self.first_index());
        let mut reader = LogReader::new(self.shared.clone(), from)?;
        loop {
            let mark = reader.mark();
            match reader.next()? {
                Some(record) if record.ts < ts => {}
                _ => return LogReader::at(self.shared.clone(), mark),
            }
        }
    }

    /// The first index that is still kept.
    pub fn first_index(&self) -> u64 {
        self.shared.segments.lock().first_index()
    }

    /// Bytes in all segments, and how many segments there are.
    pub fn size(&self) -> (u64, u64) {
        let open_bytes = self.tail.lock().offset;
        let segments = self.shared.segments.lock();
        (
            segments.closed_bytes() + open_bytes,
            segments.all.len() as u64,
        )
    }

    /// How much of its past it keeps.
    pub fn window(&self) -> Window {
        *self.shared.window.lock()
    }

    /// The next [`Log::trim`] goes by this.
    pub fn set_window(&self, window: Window) {
        *self.shared.window.lock() = window;
    }

    pub fn trimmed(&self) -> Trimmed {
        *self.shared.trimmed.lock()
    }

    /// Entries from `index` on stay, whatever the window says; `u64::MAX` lets go of them.
    pub fn hold(&self, index: u64) {
        self.shared.held_from.store(index, Ordering::Release);
    }

    /// Entries from `index` on stay for `lifetime` longer, unless they are more than the bound of all
    /// leases ([`lease::MOST_WINDOWS`]) lets be kept. Renewed by the same name.
    pub fn lease(&self, name: &str, index: u64, lifetime: Duration) {
        let now = std::time::Instant::now();
        self.shared.leases.take(name, index, now, lifetime);
    }

    pub fn end_lease(&self, name: &str) {
        self.shared.leases.end(name);
    }

    /// How many leases there are.
    pub fn leases(&self) -> usize {
        self.shared.leases.count(std::time::Instant::now())
    }

    /// Removes the oldest segments that are outside the retention window and hold nothing at or
    /// after `needed_from`.
    pub fn trim(&self, needed_from: u64) -> Result<usize> {
        let open_bytes = self.tail.lock().offset;
        let held = self.shared.held_from.load(Ordering::Acquire);
        self.shared.trim(needed_from.min(held), open_bytes)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.syncer.stop();
        if let Some(thread) = self.sync_thread.take() {
            // A callback may hold the last reference to the log: the sync thread cannot wait for
            // itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        self.tail.get_mut().give_back();
    }
}
