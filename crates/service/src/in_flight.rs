//! Memory for long messages in flight, one budget for all: requests that are received or run, and
//! replies that are made or wait for their readers. Short messages ([`SMALL_BYTES`]) are not
//! counted.
//!
//! Invariant: a holder of memory never waits for memory. A request takes all that it needs or nothing
//! before its buffer grows; a reply takes the most that it may come to before it grows, unless its
//! request holds memory already: that one goes on and may pass the limit. So a holder can always finish,
//! and the first to ask always gets it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Messages up to this length do not count.
pub const SMALL_BYTES: usize = 64 << 10;
/// The budget where the configuration does not say.
pub const DEFAULT_BYTES: usize = 96 << 20;

type Waker = Box<dyn Fn() + Send + Sync>;

pub struct InFlight {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// Connections and threads that wait.
    waiting: AtomicUsize,
    /// Changes when bytes were given back while a request waited.
    given: AtomicUsize,
    waits: AtomicU64,
    given_up: AtomicU64,
    /// Called when the first request begins to wait, and when bytes come back while one waits.
    wakers: Mutex<Vec<Waker>>,
    turn: Mutex<()>,
    room: Condvar,
}

impl Default for InFlight {
    fn default() -> InFlight {
        InFlight::new(DEFAULT_BYTES)
    }
}

impl InFlight {
    pub fn new(limit: usize) -> InFlight {
        InFlight {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            given: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            wakers: Mutex::default(),
            turn: Mutex::default(),
            room: Condvar::new(),
        }
    }

    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, SeqCst);
    }

    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// More than half is used: time to be careful.
    pub fn is_short(&self) -> bool {
        self.used() > self.limit() / 2
    }

    pub fn try_take(&self, bytes: usize) -> bool {
        let limit = self.limit();
        self.used
            .fetch_update(SeqCst, SeqCst, |used| {
                let sum = used.saturating_add(bytes);
                (used == 0 || sum <= limit).then_some(sum)
            })
            .is_ok()
    }

    /// Takes bytes that are in memory already, whatever the limit.
    pub fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
    }

    /// For a thread: waits for `bytes`, up to `at_most`; false when there was no room for them.
    pub fn wait(&self, bytes: usize, at_most: Duration) -> bool {
        self.begin_wait();
        let mut turn = self.turn.lock();
        let taken = self.try_take(bytes) || {
            self.room.wait_for(&mut turn, at_most);
            self.try_take(bytes)
        };
        drop(turn);
        self.end_wait();
        taken
    }

    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
        if self.has_waiting() {
            self.given.fetch_add(1, SeqCst);
            // A thread that looked before the bytes were back is waiting once we have its lock.
            drop(self.turn.lock());
            self.room.notify_one();
            self.wake();
        }
    }

    pub fn begin_wait(&self) {
        self.waits.fetch_add(1, Relaxed);
        if self.waiting.fetch_add(1, SeqCst) == 0 {
            // Another connection may hold messages that have stalled.
            self.wake();
        }
    }

    pub fn end_wait(&self) {
        self.waiting.fetch_sub(1, SeqCst);
    }

    pub fn has_waiting(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// See `given`: while it is the same, there is no more room than before.
    pub fn given(&self) -> usize {
        self.given.load(SeqCst)
    }

    /// How many waits there were.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// A connection was closed because its message had stalled while others waited.
    pub fn gave_up(&self) {
        self.given_up.fetch_add(1, Relaxed);
    }

    pub fn given_up(&self) -> u64 {
        self.given_up.load(Relaxed)
    }

    /// Registers a call for when holders and waiters of memory should look again.
    pub fn on_change(&self, wake: Waker) {
        self.wakers.lock().push(wake);
    }

    fn wake(&self) {
        self.wakers.lock().iter().for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn all_or_nothing() {
        let b = InFlight::new(100);
        assert!(b.try_take(60) && !b.try_take(60) && b.try_take(40) && !b.try_take(1));
        b.give(60);
        assert!(!b.is_short());
        b.give(40);
        assert!(b.try_take(1000), "one message alone may pass the limit");
        assert!(!b.try_take(1));
        b.take(5);
        b.give(1000);
        assert_eq!(b.used(), 5);
    }

    #[test]
    fn who_waits_is_woken() {
        let b = Arc::new(InFlight::new(100));
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        b.on_change(Box::new(move || {
            counted.fetch_add(1, SeqCst);
        }));
        assert!(b.try_take(80));
        assert!(!b.wait(50, Duration::from_millis(5)));
        assert_eq!((b.waiting(), b.waits(), wakes.load(SeqCst)), (0, 1, 1));
        let other = Arc::clone(&b);
        let waiter = std::thread::spawn(move || other.wait(50, Duration::from_secs(60)));
        while !b.has_waiting() {
            std::thread::yield_now();
        }
        b.give(80);
        assert!(waiter.join().unwrap());
        assert_eq!((b.used(), wakes.load(SeqCst)), (50, 3));
    }
}
