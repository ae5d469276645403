//! Hidden keys: what scans step over and do not give, because it was deleted or overwritten, or is
//! newer than what they read. The engine counts them for each thread.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

// As in cpp/perf.cc.
#[derive(Clone, Copy)]
#[repr(C)]
struct Counters {
    /// Each entry that is passed; a scan forward leaves out markers of deleted keys.
    passed: *const u64,
    deleted: *const u64,
    newer: *const u64,
}

unsafe extern "C" {
    fn pando_scan_counters(counters: *mut Counters);
}

thread_local! {
    static COUNTERS: Cell<Counters> = const { Cell::new(Counters {
        passed: ptr::null(),
        deleted: ptr::null(),
        newer: ptr::null(),
    }) };
    static STEPPED_OVER: Cell<u64> = const { Cell::new(0) };
}

static ALL: AtomicU64 = AtomicU64::new(0);

/// What the engine's iterators have passed on this thread so far.
#[derive(Clone, Copy)]
pub(crate) struct SkippedEntries {
    entries: u64,
    deleted: u64,
    newer: u64,
}

impl SkippedEntries {
    #[inline]
    pub fn now() -> SkippedEntries {
        let mut counters = COUNTERS.get();
        if counters.passed.is_null() {
            // SAFETY: writes three pointers to counters that live as long as the thread.
            unsafe { pando_scan_counters(&mut counters) };
            COUNTERS.set(counters);
        }
        // SAFETY: only this thread writes what they point to, and not now.
        unsafe {
            SkippedEntries {
                entries: counters.passed.read_volatile(),
                deleted: counters.deleted.read_volatile(),
                newer: counters.newer.read_volatile(),
            }
        }
    }

    /// Since `before`: hidden entries, and how many of them were markers of deleted keys. `own`:
    /// entries that were passed and are not hidden.
    #[inline]
    pub fn since(self, before: SkippedEntries, backward: bool, own: u64) -> (u64, u64) {
        let deleted = self.deleted.wrapping_sub(before.deleted);
        let entries = self
            .entries
            .wrapping_sub(before.entries)
            .saturating_sub(own);
        let newer = self.newer.wrapping_sub(before.newer);
        let markers = if backward { 0 } else { deleted };
        (entries + markers + newer, deleted)
    }
}

/// A scan has stepped over so many on this thread.
pub(crate) fn count(hidden: u64) {
    STEPPED_OVER.set(STEPPED_OVER.get().wrapping_add(hidden));
}

/// A scan that ends has stepped over so many.
pub(crate) fn count_of_all(hidden: u64) {
    ALL.fetch_add(hidden, Ordering::Relaxed);
}

/// How many hidden keys the scans of this thread have stepped over. Differences within one
/// operation mean something.
pub fn on_this_thread() -> u64 {
    STEPPED_OVER.get()
}

/// How many hidden keys all scans of the process that have ended stepped over.
pub fn of_all() -> u64 {
    ALL.load(Ordering::Relaxed)
}
