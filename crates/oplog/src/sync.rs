//! Group sync: one fdatasync makes durable all entries written before it began.
//!
//! A request that comes while a sync runs is served by the next one, which covers all entries
//! written until it starts. The sync thread does the requested and the periodic syncs; a thread
//! that has to wait anyway does the sync itself.

use crate::Shared;
use crate::error::{Error, Result};
use crate::file::LogFile;
use crate::segment::Segment;
use own_process::fail_stop::FailStop;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Callback = Box<dyn Fn(u64) + Send + Sync>;

/// The page cache is told to drop the log in steps of this size.
const FORGET_BYTES: u64 = 1 << 20;

/// Between two syncs that were asked for by [`Syncer::request_soon`] there is at least this.
const PAUSE: Duration = Duration::from_millis(2);

/// The files that hold entries beyond the durable index.
struct Unsynced {
    /// Oldest first; the last is the open segment's and stays.
    files: Vec<Growing>,
    dir: bool,
}

#[derive(Clone)]
pub(crate) struct Growing {
    file: Arc<dyn LogFile>,
    /// See [`Segment::bytes`].
    bytes: Arc<AtomicU64>,
    /// The number of bytes from the file's start that were dropped from the page cache.
    forgotten: Arc<AtomicU64>,
}

impl Growing {
    pub fn new(segment: &Segment) -> Growing {
        Growing {
            file: segment.file.clone(),
            bytes: segment.bytes.clone(),
            forgotten: Arc::default(),
        }
    }

    /// Syncs the file and tells the kernel to drop the synced pages: the log is rarely read, and
    /// where memory is short its pages would evict those of the data.
    fn sync(&self) -> std::io::Result<()> {
        // Pages written during the sync may stay dirty; the next sync covers them.
        let len = self.bytes.load(Ordering::Acquire);
        self.file.sync_data()?;
        if len.saturating_sub(self.forgotten.load(Ordering::Relaxed)) >= FORGET_BYTES {
            self.file.forget(len);
            self.forgotten.store(len, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The last index that survives a loss of power, as it is whenever it is asked for. A callback may bring an older one than a callback
/// before it did, since each runs on the thread that has synced.
#[derive(Clone, Debug)]
pub struct DurableIndex(Arc<AtomicU64>);

impl DurableIndex {
    /// For tests of its followers.
    #[doc(hidden)]
    pub fn of(index: Arc<AtomicU64>) -> DurableIndex {
        DurableIndex(index)
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

pub(crate) struct Syncer {
    durable: DurableIndex,
    dirty: AtomicBool,
    requested: AtomicBool,
    /// As `requested`, but a pause after the last sync is kept.
    soon: AtomicBool,
    stopped: AtomicBool,
    poisoned: AtomicBool,
    why: Mutex<String>,
    unsynced: Mutex<Unsynced>,
    /// Held while a sync runs.
    running: Mutex<()>,
    /// Set while the thread sleeps until it is woken. Otherwise it looks at `dirty` within an interval by itself.
    resting: AtomicBool,
    control: Mutex<()>,
    wake: Condvar,
    callbacks: RwLock<Vec<Callback>>,
}

impl Syncer {
    pub fn new(durable: u64, open: Growing, dir: bool) -> Syncer {
        Syncer {
            durable: DurableIndex(Arc::new(AtomicU64::new(durable))),
            dirty: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            soon: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            why: Mutex::new(String::new()),
            unsynced: Mutex::new(Unsynced {
                files: vec![open],
                dir,
            }),
            running: Mutex::new(()),
            resting: AtomicBool::new(false),
            control: Mutex::new(()),
            wake: Condvar::new(),
            callbacks: RwLock::new(Vec::new()),
        }
    }

    pub fn durable(&self) -> u64 {
        self.durable.get()
    }

    pub fn durable_index(&self) -> DurableIndex {
        self.durable.clone()
    }

    pub fn healthy(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned {
                why: self.why.lock().clone(),
            });
        }
        Ok(())
    }

    pub fn poison(&self, why: String) {
        {
            let mut slot = self.why.lock();
            if slot.is_empty() {
                *slot = why;
            }
        }
        self.poisoned.store(true, Ordering::Release);
    }

    /// Waits for a running sync, and blocks new ones.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.running.lock()
    }

    /// Records a durable cut: the log now ends at `durable`, in the open file. The caller holds
    /// `running`.
    pub fn cut(&self, durable: u64, open: Growing) {
        self.durable.0.fetch_min(durable, Ordering::AcqRel);
        *self.unsynced.lock() = Unsynced {
            files: vec![open],
            dir: false,
        };
    }

    pub fn add_callback(&self, callback: Callback) {
        self.callbacks.write().push(callback);
    }

    pub fn call_back(&self) {
        let durable = self.durable();
        for callback in self.callbacks.read().iter() {
            callback(durable);
        }
    }

    pub fn add_file(&self, file: Growing) {
        let mut unsynced = self.unsynced.lock();
        unsynced.files.push(file);
        unsynced.dir = true;
    }

    fn notify(&self, flag: &AtomicBool) {
        if !flag.swap(true, Ordering::AcqRel) {
            // Under the lock: otherwise the thread could miss the notification between reading the
            // flag and going to sleep.
            let _control = self.control.lock();
            self.wake.notify_one();
        }
    }

    /// After a write: the periodic sync has work to do. Most writes are followed by a request, so
    /// only a thread that rests is woken.
    pub fn mark_dirty(&self) {
        // Sets `dirty`, then reads `resting`; the thread does it the other way round, so that one
        // of the two sees what the other has set.
        if !self.dirty.swap(true, Ordering::SeqCst) && self.resting.load(Ordering::SeqCst) {
            let _control = self.control.lock();
            self.wake.notify_one();
        }
    }

    pub fn request(&self) {
        self.notify(&self.requested);
    }

    pub fn request_soon(&self) {
        self.notify(&self.soon);
    }

    pub fn stop(&self) {
        self.notify(&self.stopped);
    }

    /// Waits until a sync is due: at once where one was requested, after the pause where one is
    /// wanted soon, and after the interval where something was written.
    fn wait_for_work(&self, interval: Duration, pause_ends: Instant) {
        let asked = || {
            [&self.requested, &self.soon, &self.stopped]
                .into_iter()
                .any(Syncer::set)
        };
        let mut control = self.control.lock();
        let awake_until = Instant::now() + interval;
        while !asked() && !self.wake.wait_until(&mut control, awake_until).timed_out() {}
        if !asked() {
            if Syncer::set(&self.dirty) {
                return;
            }
            self.resting.store(true, Ordering::SeqCst);
            while !asked() && !self.dirty.load(Ordering::SeqCst) {
                self.wake.wait(&mut control);
            }
            self.resting.store(false, Ordering::SeqCst);
        }
        let deadline = Instant::now() + interval;
        while ![&self.requested, &self.stopped]
            .into_iter()
            .any(Syncer::set)
        {
            let until = match Syncer::set(&self.soon) {
                true => deadline.min(pause_ends),
                false => deadline,
            };
            if Instant::now() >= until || self.wake.wait_until(&mut control, until).timed_out() {
                break;
            }
        }
    }

    fn set(flag: &AtomicBool) -> bool {
        flag.load(Ordering::Acquire)
    }
}

impl Shared {
    pub(crate) fn wait_durable(&self, index: u64) -> Result<()> {
        let cuts = self.cuts.count();
        // An index that was never written cannot be waited for.
        let index = index.min(self.written.load(Ordering::Acquire));
        loop {
            if self.cuts.count() != cuts
                && let (Some(last), _) = self.cuts.since(cuts)
                && last < index
            {
                return Err(Error::Cut {
                    wanted: index,
                    last,
                });
            }
            if self.syncer.durable() >= index {
                return Ok(());
            }
            // Waiting for this lock means waiting for the running sync. The first thread that gets
            // it does the next sync for all others.
            let running = self.syncer.running.lock();
            if self.syncer.durable() >= index || self.cuts.count() != cuts {
                continue;
            }
            let done = self.sync();
            drop(running);
            self.syncer.call_back();
            done?;
        }
    }

    /// Syncs all that was written until now. The caller holds `running`, and runs the callbacks
    /// after releasing it.
    pub(crate) fn sync(&self) -> Result<()> {
        let _fail_stop = FailStop::begin();
        // Swaps, not stores: `written` must not be read before the flags are cleared. Otherwise an
        // appender that finds them set would rely on this sync.
        self.syncer.requested.swap(false, Ordering::SeqCst);
        self.syncer.soon.swap(false, Ordering::SeqCst);
        self.syncer.dirty.swap(false, Ordering::SeqCst);
        self.syncer.healthy()?;
        // Read before the list of files: every entry up to it is in one of them.
        let target = self.written.load(Ordering::SeqCst);
        if target <= self.syncer.durable() {
            return Ok(());
        }
        let (files, dir) = {
            let mut unsynced = self.syncer.unsynced.lock();
            let files = unsynced.files.clone();
            let closed = unsynced.files.len().saturating_sub(1);
            unsynced.files.drain(..closed);
            (files, std::mem::take(&mut unsynced.dir))
        };
        let mut outcome = Ok(());
        for file in &files {
            outcome = outcome.and_then(|()| file.sync());
        }
        if dir {
            outcome = outcome.and_then(|()| self.opts.file_system.sync_dir(&self.opts.dir));
        }
        if let Err(e) = outcome {
            self.syncer.poison(format!("fdatasync failed: {e}"));
            return self.syncer.healthy();
        }
        // A cut waits for the sync that runs.
        assert!(
            self.written.load(Ordering::SeqCst) >= target,
            "what was synced is in the log"
        );
        self.syncer.durable.0.fetch_max(target, Ordering::AcqRel);
        Ok(())
    }

    /// The body of the sync thread.
    pub(crate) fn run_sync_thread(&self) {
        // Without this thread no write would be acknowledged as durable any more.
        let _fail_stop = FailStop::begin();
        let syncer = &self.syncer;
        let mut pause_ends = Instant::now();
        loop {
            syncer.wait_for_work(self.opts.sync_interval, pause_ends);
            let running = syncer.running.lock();
            // The error is kept: `healthy` gives it to callbacks, and every further request fails
            // with it.
            let _ = self.sync();
            drop(running);
            pause_ends = Instant::now() + PAUSE;
            syncer.call_back();
            if Syncer::set(&syncer.stopped) {
                return;
            }
        }
    }
}
