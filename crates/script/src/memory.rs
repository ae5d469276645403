//! The memory of a realm: the system's, and on the way to it a look whether the script must end.
//!
//! The engine asks every few thousand steps, and one step may be a copy of megabytes. Such a step takes
//! memory, so a large allocation asks too; a script that must end gets no large block any more, so that
//! its next step fails instead of going on.

use crate::Shared;
use rquickjs::allocator::Allocator;
use std::ptr;
use std::rc::Rc;

/// Bytes that are taken between two looks, in small blocks.
const CHECK_EVERY_BYTES: usize = 4 << 20;
/// A block that a script must not have any more when it must end. Smaller ones carry its error.
const LARGE_BYTES: usize = 4 << 10;

pub struct Watched {
    shared: Rc<Shared>,
    taken: usize,
}

impl Watched {
    pub fn new(shared: &Rc<Shared>) -> Watched {
        Watched {
            shared: shared.clone(),
            taken: 0,
        }
    }

    fn refuses(&mut self, bytes: usize) -> bool {
        // Products of long integers take the square of their length.
        let steps = bytes.saturating_add(bytes.saturating_mul(bytes) / 1024);
        self.taken = self.taken.saturating_add(steps);
        if self.taken >= CHECK_EVERY_BYTES {
            self.taken = 0;
            self.shared.must_end();
        }
        bytes >= LARGE_BYTES && self.shared.ended.get()
    }
}

/// A block that has taken the place of one of `old` bytes; null is none. It counts for its thread.
///
/// # Safety
///
/// `made` is null or a block of the system's allocator.
unsafe fn counted(old: usize, made: *mut u8) -> *mut u8 {
    if !made.is_null() {
        // SAFETY: the caller's.
        alloc_meter::changed(old, unsafe { bytes_of(made.cast()) });
    }
    made
}

// SAFETY: all blocks are those of the system's allocator, whose alignment and sizes are the requested
// ones.
unsafe impl Allocator for Watched {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        match self.refuses(size) {
            true => ptr::null_mut(),
            // SAFETY (here and below): the calls of C's library, with what they gave.
            false => unsafe { counted(0, libc::malloc(size).cast()) },
        }
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match self.refuses(count.saturating_mul(size)) {
            true => ptr::null_mut(),
            false => unsafe { counted(0, libc::calloc(count, size).cast()) },
        }
    }

    unsafe fn dealloc(&mut self, ptr: *mut u8) {
        unsafe {
            alloc_meter::changed(bytes_of(ptr.cast()), 0);
            libc::free(ptr.cast())
        }
    }

    unsafe fn realloc(&mut self, ptr: *mut u8, new_size: usize) -> *mut u8 {
        match self.refuses(new_size) {
            true => ptr::null_mut(),
            false => unsafe {
                let old = bytes_of(ptr.cast());
                let made = libc::realloc(ptr.cast(), new_size).cast::<u8>();
                counted(if made.is_null() { 0 } else { old }, made)
            },
        }
    }

    unsafe fn usable_size(ptr: *mut u8) -> usize {
        unsafe { bytes_of(ptr.cast()) }
    }
}

#[cfg(not(target_os = "macos"))]
use libc::malloc_usable_size as bytes_of;

#[cfg(target_os = "macos")]
unsafe fn bytes_of(block: *mut libc::c_void) -> usize {
    // SAFETY: the caller's: it is a block of the system's allocator.
    unsafe { libc::malloc_size(block) }
}
