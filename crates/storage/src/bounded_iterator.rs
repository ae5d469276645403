//! A part of a scan: one iterator of the engine within its bounds (see `engine_scan`).
//!
//! Invariant: an iterator points to its bounds and its options; it is destroyed before them.

use crate::engine::{read_failure, taken};
use crate::family::Family;
use crate::long_steps;
use crate::nonblocking_read;
use crate::view::{Direction, ReadOptions, ViewState};
use errors::Stop;
use rocksdb_sys as ffi;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

unsafe extern "C" {
    fn pando_scan_place(
        iterator: *mut ffi::rocksdb_iterator_t,
        into: *mut c_void,
        take: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    );
}

/// # Safety
/// `into` must be a `Vec<u8>` of the caller's, and `key` so many bytes.
unsafe extern "C" fn take_place(into: *mut c_void, key: *const u8, length: usize) {
    // SAFETY: as above.
    let (into, key) = unsafe {
        (
            &mut *into.cast::<Vec<u8>>(),
            std::slice::from_raw_parts(key, length),
        )
    };
    into.extend_from_slice(key);
}

/// What the engine says when it has passed [`long_steps::STEPS`] hidden keys in one step.
const PAUSED: &str = "Too many internal keys skipped";

/// Why an iterator is on no entry.
pub(crate) enum Stopped {
    AtEnd,
    /// It has passed many hidden keys, and can go on.
    Paused,
    Failed(Stop),
}

/// How a scan reads.
#[derive(Clone, Copy)]
pub(crate) struct ScanOptions {
    pub family: Family,
    pub direction: Direction,
    pub cached_only: bool,
    /// Whether blocks that are read enter the cache.
    pub fill: bool,
}

/// An iterator within its bounds.
pub(crate) struct BoundedIterator {
    iterator: *mut ffi::rocksdb_iterator_t,
    pub low: Arc<[u8]>,
    pub high: Arc<[u8]>,
    _options: ReadOptions,
}

impl Drop for BoundedIterator {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once, before what it points to.
        unsafe { ffi::rocksdb_iter_destroy(self.iterator) }
    }
}

impl BoundedIterator {
    /// Under the caller's `Noting`: opening an iterator may read.
    pub fn new(
        shown: &ViewState,
        scan: ScanOptions,
        low: Arc<[u8]>,
        high: Arc<[u8]>,
    ) -> BoundedIterator {
        let cached = scan.cached_only && !nonblocking_read::active();
        let options = ReadOptions::of(shown.snapshot(), cached);
        // SAFETY: the options keep pointers to the bounds, which this owns on the heap and
        // never changes; the iterator is destroyed before options and bounds (see `BoundedIterator::drop`),
        // and the scan drops its iterator before the engine.
        let iterator = unsafe {
            ffi::rocksdb_readoptions_set_max_skippable_internal_keys(
                options.raw(),
                long_steps::STEPS,
            );
            if !scan.fill {
                ffi::rocksdb_readoptions_set_fill_cache(options.raw(), 0);
            }
            if !high.is_empty() {
                ffi::rocksdb_readoptions_set_iterate_upper_bound(
                    options.raw(),
                    high.as_ptr().cast(),
                    high.len(),
                );
            }
            // A forward scan starts at its lower bound, so the engine need not check it.
            if scan.direction == Direction::Backward && !low.is_empty() {
                ffi::rocksdb_readoptions_set_iterate_lower_bound(
                    options.raw(),
                    low.as_ptr().cast(),
                    low.len(),
                );
            }
            let engine = shown.engine();
            ffi::rocksdb_create_iterator_cf(
                engine.raw(),
                options.raw(),
                engine.families().handle(scan.family),
            )
        };
        BoundedIterator {
            iterator,
            low,
            high,
            _options: options,
        }
    }

    pub fn go_to_first(&mut self, direction: Direction) {
        // SAFETY (and below): the iterator is valid; the engine copies the keys that it is given.
        unsafe {
            match direction {
                Direction::Forward => {
                    ffi::rocksdb_iter_seek(self.iterator, self.low.as_ptr().cast(), self.low.len())
                }
                Direction::Backward => ffi::rocksdb_iter_seek_to_last(self.iterator),
            }
        }
    }

    pub fn go_to_next(&mut self, direction: Direction) {
        unsafe {
            match direction {
                Direction::Forward => ffi::rocksdb_iter_next(self.iterator),
                Direction::Backward => ffi::rocksdb_iter_prev(self.iterator),
            }
        }
    }

    /// To the first entry at or after `key` in the direction.
    pub fn go_to(&mut self, key: &[u8], direction: Direction) {
        unsafe {
            match direction {
                Direction::Forward => {
                    // What lies before the part is dead, and would be stepped over.
                    let key = key.max(&self.low);
                    ffi::rocksdb_iter_seek(self.iterator, key.as_ptr().cast(), key.len());
                }
                Direction::Backward if !self.high.is_empty() && *key >= *self.high => {
                    ffi::rocksdb_iter_seek_to_last(self.iterator);
                }
                Direction::Backward => {
                    ffi::rocksdb_iter_seek_for_prev(self.iterator, key.as_ptr().cast(), key.len());
                }
            }
        }
    }

    pub fn is_on_entry(&self) -> bool {
        unsafe { ffi::rocksdb_iter_valid(self.iterator) != 0 }
    }

    /// Key and value of the entry that it is on; the bytes stay until it is moved.
    #[inline]
    pub fn entry(&self) -> (*const [u8], *const [u8]) {
        unsafe {
            let key = bytes(ffi::rocksdb_iter_key_slice(self.iterator));
            (key, bytes(ffi::rocksdb_iter_value_slice(self.iterator)))
        }
    }

    /// Of an iterator that is on no entry.
    pub fn stopped(&self) -> Stopped {
        let mut failure: *mut c_char = ptr::null_mut();
        unsafe { ffi::rocksdb_iter_get_error(self.iterator, &mut failure) };
        if failure.is_null() {
            return Stopped::AtEnd;
        }
        let message = taken(failure);
        match message.contains(PAUSED) {
            true => Stopped::Paused,
            false => Stopped::Failed(read_failure(&message)),
        }
    }

    /// The key at which it paused.
    pub fn place(&self) -> Vec<u8> {
        let mut place: Vec<u8> = Vec::new();
        unsafe { pando_scan_place(self.iterator, (&raw mut place).cast(), take_place) };
        place
    }
}

/// # Safety
/// The slice's bytes must live for `'a`.
unsafe fn bytes<'a>(slice: ffi::rocksdb_slice_t) -> &'a [u8] {
    if slice.size == 0 {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(slice.data.cast(), slice.size) }
}
