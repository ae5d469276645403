//! Latches: short exclusive locks on keys, by hash, from the preparation of a write until it is
//! applied.
//!
//! A latch is one of a fixed number of stripes. An acquisition takes all its stripes or none, and a
//! waiting thread holds none. So no order among keys is needed, and there is no deadlock. A guard
//! may move to another thread and be released there.
//!
//! A stripe is a word: 0 when free, else the number of the guard that holds it. The top bit is set
//! when a thread waits.

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// With this number two unrelated statements of ten keys collide once in 160 times.
const STRIPES: usize = 16384;
const BEDS: usize = 64;
const WAITED_FOR: u32 = 1 << 31;

struct Table {
    stripes: Box<[AtomicU32]>,
    /// Where waiters sleep; stripes share them.
    beds: Box<[(Mutex<()>, Condvar)]>,
    next_guard: AtomicU32,
}

/// The table of latches; clones share it.
#[derive(Clone)]
pub struct Latches(Arc<Table>);

/// Latches held; released on drop.
pub struct LatchGuard {
    table: Arc<Table>,
    number: u32,
    held: SmallVec<[u16; 8]>,
}

impl Default for Latches {
    fn default() -> Latches {
        Latches::new()
    }
}

impl Latches {
    pub fn new() -> Latches {
        Latches(Arc::new(Table {
            stripes: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            beds: (0..BEDS).map(|_| Default::default()).collect(),
            next_guard: AtomicU32::new(1),
        }))
    }

    fn guard(&self) -> LatchGuard {
        // Two live guards with the same number would not exclude each other. That takes 2^31
        // acquisitions during one statement.
        let n = self.0.next_guard.fetch_add(1, Ordering::Relaxed) & !WAITED_FOR;
        LatchGuard {
            table: self.0.clone(),
            number: n.max(1),
            held: SmallVec::new(),
        }
    }

    /// Takes all latches or none, without waiting. Duplicates in `hashes` are allowed.
    pub fn try_acquire(&self, hashes: &[u64]) -> Option<LatchGuard> {
        let mut guard = self.guard();
        guard.try_extend(hashes).then_some(guard)
    }

    /// Takes all latches. Waits while another guard has any of them, and holds none meanwhile.
    pub fn acquire(&self, hashes: &[u64]) -> LatchGuard {
        let mut guard = self.guard();
        while let Err(stripe) = guard.extend(hashes) {
            self.0.wait(stripe);
        }
        guard
    }
}

fn stripe_of(hash: u64) -> u16 {
    // The high half is folded in: poor hashes often differ in one half only.
    ((hash ^ (hash >> 32) ^ (hash >> 14)) as usize % STRIPES) as u16
}

impl LatchGuard {
    /// Adds latches to those held: all of `hashes` or none, without waiting. Latches already held
    /// are no conflict.
    pub fn try_extend(&mut self, hashes: &[u64]) -> bool {
        self.extend(hashes).is_ok()
    }

    /// On a conflict releases what this call took, and returns the stripe in conflict.
    fn extend(&mut self, hashes: &[u64]) -> Result<(), u16> {
        let before = self.held.len();
        for &hash in hashes {
            let stripe = stripe_of(hash);
            let Some(word) = self.table.stripes.get(usize::from(stripe)) else {
                continue;
            };
            match word.compare_exchange(0, self.number, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => self.held.push(stripe),
                Err(holder) if holder & !WAITED_FOR == self.number => {}
                Err(_) => {
                    for stripe in self.held.drain(before..) {
                        self.table.release(stripe);
                    }
                    return Err(stripe);
                }
            }
        }
        Ok(())
    }

    /// The number of stripes held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

impl Drop for LatchGuard {
    fn drop(&mut self) {
        for &stripe in &self.held {
            self.table.release(stripe);
        }
    }
}

impl Table {
    fn bed(&self, stripe: u16) -> Option<&(Mutex<()>, Condvar)> {
        self.beds.get(usize::from(stripe) % BEDS)
    }

    fn release(&self, stripe: u16) {
        let Some(word) = self.stripes.get(usize::from(stripe)) else {
            return;
        };
        if word.swap(0, Ordering::Release) & WAITED_FOR != 0
            && let Some((lock, wake)) = self.bed(stripe)
        {
            let _awake = lock.lock();
            wake.notify_all();
        }
    }

    /// Waits until the stripe is free, or was free for a moment.
    fn wait(&self, stripe: u16) {
        let (Some(word), Some((lock, wake))) =
            (self.stripes.get(usize::from(stripe)), self.bed(stripe))
        else {
            return;
        };
        let mut asleep = lock.lock();
        loop {
            let holder = word.load(Ordering::Relaxed);
            if holder == 0 {
                return;
            }
            // The mark is set under the bed's lock. The releaser takes that lock before it wakes,
            // so the wake-up cannot be missed.
            let marked = holder | WAITED_FOR;
            if holder == marked
                || word
                    .compare_exchange(holder, marked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                wake.wait(&mut asleep);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[test]
    fn all_or_none() {
        let latches = Latches::new();
        let mut a = latches.try_acquire(&[1, 2, 1, 2]).unwrap();
        assert_eq!(a.len(), 2);
        assert!(latches.try_acquire(&[3, 2]).is_none());
        let b = latches.try_acquire(&[3]).unwrap();
        assert!(!a.try_extend(&[4, 3]));
        assert!(
            latches.try_acquire(&[4]).is_some(),
            "a failed extension holds nothing new"
        );
        assert!(a.try_extend(&[1, 4]));
        drop(b);
        assert!(a.try_extend(&[3]));
        drop(a);
        assert!(latches.try_acquire(&[1, 2, 3, 4]).is_some());
    }

    #[test]
    fn waits_for_a_guard_released_by_another_thread() {
        let latches = Latches::new();
        let guard = latches.acquire(&[7]);
        let waiter = std::thread::spawn({
            let latches = latches.clone();
            move || drop(latches.acquire(&[8, 7]))
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
        std::thread::spawn(move || drop(guard)).join().unwrap();
        waiter.join().unwrap();
    }

    struct Counters([UnsafeCell<u64>; 8]);
    // SAFETY: each cell is touched only under its latch, which is what the test is about.
    unsafe impl Sync for Counters {}

    #[test]
    fn holders_exclude_each_other() {
        let latches = Latches::new();
        let counters = Counters(Default::default());
        let rounds = 20_000u64;
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (latches, counters) = (&latches, &counters);
                scope.spawn(move || {
                    for i in 0..rounds {
                        let (a, b) = ((i * 7 + thread) % 8, (i * 3 + thread * 5) % 8);
                        let _guard = latches.acquire(&[a, b]);
                        for n in [a, b] {
                            // SAFETY: latched.
                            unsafe { *counters.0[n as usize].get() += 1 };
                        }
                    }
                });
            }
        });
        let total: u64 = counters.0.into_iter().map(UnsafeCell::into_inner).sum();
        assert_eq!(total, 4 * 2 * rounds);
    }
}
