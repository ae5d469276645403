//! The write gate: closed while the server is locked against writes.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a waiting write checks whether it was interrupted.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// Keeps writes out while the server is locked against them (`fsync` with `lock`). Locks nest.
#[derive(Default)]
pub struct Gate {
    closed: AtomicBool,
    locks: Mutex<i64>,
    opened: Condvar,
}

impl Gate {
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Adds a lock; returns the number of locks.
    pub fn close(&self) -> i64 {
        let mut locks = self.locks.lock();
        *locks += 1;
        self.closed.store(true, Ordering::SeqCst);
        *locks
    }

    /// Removes a lock; returns how many are left, `None` when there was none.
    pub fn open(&self) -> Option<i64> {
        let mut locks = self.locks.lock();
        if *locks == 0 {
            return None;
        }
        *locks -= 1;
        if *locks == 0 {
            self.closed.store(false, Ordering::SeqCst);
            self.opened.notify_all();
        }
        Some(*locks)
    }

    pub fn locks(&self) -> i64 {
        *self.locks.lock()
    }

    /// Waits until the gate is open; `check` fails when the waiting operation must stop.
    pub(crate) fn wait(&self, check: impl Fn() -> errors::Result<()>) -> errors::Result<()> {
        let mut locks = self.locks.lock();
        while *locks > 0 {
            check()?;
            self.opened.wait_for(&mut locks, PATIENCE);
        }
        Ok(())
    }
}
