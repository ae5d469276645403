//! The write gate: closed while the server is locked against writes.
//!
//! ```text
//! close … open                     a lock: its holder gives it back
//! hold(lifetime) … release(id)     a hold: ends by itself, so that nothing stays locked when its holder dies
//! ```
//!
//! Invariant: a hold that [`FsyncLock::holds`] finds has not ended since it was taken: ids are not given twice.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How often a waiting write checks whether it was interrupted.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// Keeps writes out while the server is locked against them (`fsync` with `lock`). Locks nest.
#[derive(Default)]
pub struct FsyncLock {
    closed: AtomicBool,
    locks: Mutex<Locks>,
    opened: Condvar,
}

#[derive(Default)]
struct Locks {
    lasting: i64,
    holds: Vec<Hold>,
    last_id: i64,
}

struct Hold {
    id: i64,
    ends: Instant,
}

impl Locks {
    fn count(&self) -> i64 {
        self.lasting + self.holds.len() as i64
    }

    /// An id that no other process of this server has given either.
    fn next_id(&mut self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(0));
        self.last_id = now.max(self.last_id + 1);
        self.last_id
    }
}

impl FsyncLock {
    /// Expired holds end here: only writers need to know.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) && self.is_still_closed()
    }

    #[cold]
    fn is_still_closed(&self) -> bool {
        let mut locks = self.locks.lock();
        self.settle(&mut locks);
        locks.count() > 0
    }

    /// Adds a lock; returns the number of locks.
    pub fn close(&self) -> i64 {
        let mut locks = self.locks.lock();
        locks.lasting += 1;
        self.settle(&mut locks);
        locks.count()
    }

    /// Removes a lock; returns how many are left, `None` when there was none. Where there are only
    /// holds, one of them ends.
    pub fn open(&self) -> Option<i64> {
        let mut locks = self.locks.lock();
        self.settle(&mut locks);
        match locks.lasting {
            0 => {
                locks.holds.pop()?;
            }
            _ => locks.lasting -= 1,
        }
        self.settle(&mut locks);
        Some(locks.count())
    }

    /// A lock that ends by itself; returns its id.
    pub fn hold(&self, lifetime: Duration) -> i64 {
        let mut locks = self.locks.lock();
        let id = locks.next_id();
        assert!(
            locks.holds.iter().all(|h| h.id < id),
            "ids of holds are not given twice"
        );
        let ends = Instant::now() + lifetime;
        locks.holds.push(Hold { id, ends });
        self.settle(&mut locks);
        id
    }

    /// Whether the hold has not ended since it was taken.
    pub fn holds(&self, id: i64) -> bool {
        let mut locks = self.locks.lock();
        self.settle(&mut locks);
        locks.holds.iter().any(|h| h.id == id)
    }

    /// Ends a hold; false where it has ended before.
    pub fn release(&self, id: i64) -> bool {
        let mut locks = self.locks.lock();
        self.settle(&mut locks);
        let before = locks.holds.len();
        locks.holds.retain(|h| h.id != id);
        let was_there = locks.holds.len() < before;
        self.settle(&mut locks);
        was_there
    }

    pub fn locks(&self) -> i64 {
        self.locks.lock().count()
    }

    /// Ends expired holds, and publishes the present state.
    fn settle(&self, locks: &mut Locks) {
        if !locks.holds.is_empty() {
            let now = Instant::now();
            locks.holds.retain(|h| h.ends > now);
        }
        let is_closed = locks.count() > 0;
        if self.closed.swap(is_closed, Ordering::SeqCst) && !is_closed {
            self.opened.notify_all();
        }
    }

    /// Waits until the gate is open; `check` fails when the waiting operation must stop.
    pub(crate) fn wait(&self, check: impl Fn() -> errors::Result<()>) -> errors::Result<()> {
        let mut locks = self.locks.lock();
        loop {
            self.settle(&mut locks);
            if locks.count() == 0 {
                return Ok(());
            }
            check()?;
            self.opened.wait_for(&mut locks, PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_hold_ends_by_itself_and_is_not_taken_for_another() {
        let fsync_lock = FsyncLock::default();
        let over = fsync_lock.hold(Duration::ZERO);
        assert!(!fsync_lock.holds(over) && !fsync_lock.is_closed() && fsync_lock.locks() == 0);
        let first = fsync_lock.hold(LONG);
        assert!(fsync_lock.is_closed() && fsync_lock.holds(first));
        assert!(fsync_lock.release(first) && !fsync_lock.release(first) && !fsync_lock.is_closed());
        let second = fsync_lock.hold(LONG);
        assert!(second > first && !fsync_lock.holds(first) && fsync_lock.holds(second));
    }

    #[test]
    fn locks_and_holds_nest() {
        let fsync_lock = FsyncLock::default();
        assert_eq!(fsync_lock.open(), None);
        assert_eq!(fsync_lock.close(), 1);
        let hold = fsync_lock.hold(LONG);
        assert_eq!(fsync_lock.close(), 3);
        assert_eq!((fsync_lock.open(), fsync_lock.open()), (Some(2), Some(1)));
        assert!(fsync_lock.is_closed() && fsync_lock.holds(hold));
        // An unlock by hand ends a hold too.
        assert_eq!(fsync_lock.open(), Some(0));
        assert!(!fsync_lock.is_closed() && !fsync_lock.holds(hold) && fsync_lock.open().is_none());
    }

    #[test]
    fn waiters_go_on_when_a_hold_is_over() {
        let fsync_lock = FsyncLock::default();
        fsync_lock.hold(Duration::from_millis(30));
        fsync_lock.wait(|| Ok(())).unwrap();
        assert!(!fsync_lock.is_closed());
    }
}
