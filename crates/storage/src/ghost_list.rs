//! Ghost list: hashes of recently evicted entries. It tells how often a larger cache would have
//! saved a read.
//!
//! The record cache and the block cache have one each. An evicted entry leaves a mark. When the
//! same entry is read again before more than the window's bytes were evicted, a cache larger by the
//! window would still have held it: one read [saved](Ghost::take_spared). [`crate::cache_balance`]
//! acts on it.
//!
//! A mark is a slot of a table with 32 bits of the hash and the time. A later mark may replace it,
//! and of large caches only a sample of the hashes is tracked. The result is an estimate, in
//! constant memory.

use rocksdb::AsRawPtr;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// There is one slot for so many bytes of the window, within limits.
const WINDOW_BYTES_PER_SLOT: usize = 256;
const FEWEST_SLOTS: usize = 1 << 10;
const MOST_SLOTS: usize = 1 << 17;
/// Ticks of the clock in a window. The clock has 32 bits, so after 2^20 windows an old mark may
/// look new: that is rare enough.
const WINDOW_TICKS: u64 = 1 << 12;

pub(crate) struct Ghost {
    /// `fingerprint u32 | tick u32`; 0: empty.
    slots: Box<[AtomicU64]>,
    /// Hashes with one of these bits set are not tracked.
    skipped: u64,
    window_bytes: u64,
    left_bytes: AtomicU64,
    spared: AtomicU64,
}

impl Ghost {
    /// `typical_bytes`: the typical size of a cached entry; for smaller entries the table would be
    /// too small.
    pub fn new(window_bytes: usize, typical_bytes: usize) -> Ghost {
        let slots = (window_bytes / WINDOW_BYTES_PER_SLOT)
            .next_power_of_two()
            .clamp(FEWEST_SLOTS, MOST_SLOTS);
        let things = window_bytes / typical_bytes;
        let one_in = things.div_ceil(slots / 4).next_power_of_two() as u64;
        Ghost {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            skipped: one_in - 1,
            window_bytes: window_bytes.max(1) as u64,
            left_bytes: AtomicU64::new(0),
            spared: AtomicU64::new(0),
        }
    }

    /// The slot of a hash, if it is tracked, and the hash bits that stand above the tick.
    fn slot(&self, hash: u64) -> Option<(&AtomicU64, u64)> {
        if hash & self.skipped != 0 {
            return None;
        }
        let at = (hash >> 20) as usize & (self.slots.len() - 1);
        Some((self.slots.get(at)?, hash >> 32 << 32))
    }

    fn tick(&self, left_bytes: u64) -> u32 {
        let windows = left_bytes / self.window_bytes;
        let rest = left_bytes % self.window_bytes;
        (windows.wrapping_mul(WINDOW_TICKS) as u32)
            .wrapping_add((rest * WINDOW_TICKS / self.window_bytes) as u32)
    }

    /// Notes that an entry was evicted.
    pub fn left(&self, hash: u64, bytes: usize) {
        let before = self.left_bytes.fetch_add(bytes as u64, Relaxed);
        if let Some((slot, fingerprint)) = self.slot(hash) {
            slot.store(fingerprint | u64::from(self.tick(before)), Relaxed);
        }
    }

    /// Notes that an entry is read, from the disk or the page cache.
    pub fn comes(&self, hash: u64) {
        let Some((slot, fingerprint)) = self.slot(hash) else {
            return;
        };
        let mark = slot.load(Relaxed);
        if mark == 0 || mark >> 32 << 32 != fingerprint {
            return;
        }
        // Counted once, however often it is requested before it is cached.
        slot.store(0, Relaxed);
        let age = self
            .tick(self.left_bytes.load(Relaxed))
            .wrapping_sub(mark as u32);
        if u64::from(age) <= WINDOW_TICKS {
            self.spared.fetch_add(1, Relaxed);
        }
    }

    /// The reads that a larger cache would have saved since the last call: the number of tracked
    /// ones, and how many reads each stands for.
    pub fn take_spared(&self) -> (u64, u64) {
        (self.spared.swap(0, Relaxed), self.skipped + 1)
    }

    /// Connects the block cache that these options share, so that it reports evicted and inserted
    /// blocks. To be called once, before the cache is used.
    pub fn watch_blocks(self: &Arc<Ghost>, options: &[&rocksdb::Options]) {
        // SAFETY (and below): options that live, with table factories of blocks; `done` gives the
        // reference back.
        let raw = |o: &&rocksdb::Options| unsafe { o.as_raw_ptr().cast() };
        let raw: Vec<*mut c_void> = options.iter().map(raw).collect();
        let events = Events {
            state: Arc::into_raw(self.clone()).cast_mut().cast(),
            left: block_left,
            comes: block_comes,
            done,
        };
        unsafe { pando_cache_watch(raw.as_ptr(), raw.len(), &events) }
    }
}

thread_local! {
    static BLOCKS_THAT_CAME: Cell<u64> = const { Cell::new(0) };
}

/// The number of blocks that this thread has inserted into the block cache. A read that changes it
/// was not answered from memory.
#[inline]
pub(crate) fn blocks_that_came() -> u64 {
    BLOCKS_THAT_CAME.get()
}

// The layout is that of cpp/cache.cc.
#[repr(C)]
struct Events {
    state: *mut c_void,
    left: extern "C" fn(*mut c_void, u64, usize),
    comes: extern "C" fn(*mut c_void, u64),
    done: extern "C" fn(*mut c_void),
}

unsafe extern "C" {
    fn pando_cache_watch(options: *const *mut c_void, count: usize, events: *const Events);
}

extern "C" fn block_left(state: *mut c_void, block: u64, charge: usize) {
    // SAFETY (and below): the reference that `watch_blocks` gave away, until `done`.
    unsafe { &*state.cast::<Ghost>() }.left(block, charge);
}

extern "C" fn block_comes(state: *mut c_void, block: u64) {
    unsafe { &*state.cast::<Ghost>() }.comes(block);
    BLOCKS_THAT_CAME.set(BLOCKS_THAT_CAME.get() + 1);
}

extern "C" fn done(state: *mut c_void) {
    drop(unsafe { Arc::from_raw(state.cast::<Ghost>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (n ^ n >> 32)
            .wrapping_mul(0xe703_7ed1_a0b4_28db)
            .rotate_left(32)
    }

    #[test]
    fn what_left_within_the_window_is_spared_once() {
        let ghost = Ghost::new(1 << 20, 4096);
        assert_eq!(ghost.take_spared(), (0, 1));
        // The window holds the last 256 of these.
        for n in 0..1000 {
            ghost.left(hash(n), 4096);
        }
        for n in 0..1000 {
            ghost.comes(hash(n));
            ghost.comes(hash(n));
        }
        let (spared, one_in) = ghost.take_spared();
        assert_eq!(one_in, 1);
        // Slots are shared sometimes.
        assert!((200..=257).contains(&spared), "{spared}");
        assert_eq!(ghost.take_spared().0, 0);
        ghost.comes(hash(5000));
        assert_eq!(ghost.take_spared().0, 0, "it never left");
    }

    #[test]
    fn of_many_some_are_followed() {
        // A million entries in a window, and as many in the window before.
        let ghost = Ghost::new(256 << 20, 256);
        for n in 0..2 << 20 {
            ghost.left(hash(n), 256);
        }
        for n in 0..2 << 20 {
            ghost.comes(hash(n));
        }
        let (spared, one_in) = ghost.take_spared();
        assert!(one_in > 1 && ghost.slots.len() == MOST_SLOTS);
        let all = spared * one_in;
        assert!((800_000..1_100_000).contains(&all), "{all}");
    }
}
