//! One allocator, mimalloc, for our code and, on Linux, the engine's.
//!
//! Its crate asks it for an alignment at each allocation, which is a slower path through it and for many sizes takes more memory than
//! was asked for. What it gives without being asked suffices for nearly all of them: as `malloc` anywhere, every block is aligned to
//! its size up to 16 bytes.
//!
//! Blocks are counted for their thread ([`alloc_meter`]).

use libmimalloc_sys::{mi_collect, mi_free, mi_malloc, mi_realloc, mi_zalloc};
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

pub struct Allocator;

/// Whether each block for this layout has the alignment of itself.
fn natural(layout: Layout) -> bool {
    layout.align() <= 16 && layout.align() <= layout.size()
}

// SAFETY: all blocks come from mimalloc and go back to it; `natural` ones are aligned as its `malloc` promises, the others go the way
// of its own crate.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        alloc_meter::changed(0, layout.size());
        if natural(layout) {
            unsafe { mi_malloc(layout.size()).cast() }
        } else {
            unsafe { MiMalloc.alloc(layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        alloc_meter::changed(0, layout.size());
        if natural(layout) {
            unsafe { mi_zalloc(layout.size()).cast() }
        } else {
            unsafe { MiMalloc.alloc_zeroed(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        alloc_meter::changed(layout.size(), 0);
        unsafe { mi_free(block.cast::<c_void>()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        alloc_meter::changed(layout.size(), size);
        if natural(layout) && layout.align() <= size {
            unsafe { mi_realloc(block.cast::<c_void>(), size).cast() }
        } else {
            unsafe { MiMalloc.realloc(block, layout, size) }
        }
    }
}

/// Returns all free memory to the system at once. By itself the allocator waits for a second, since
/// returned memory is expensive to get again.
pub fn give_back() {
    // SAFETY: may be called at any time, on any thread.
    unsafe { mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_keep_what_is_in_them() {
        for align in [1usize, 2, 4, 8, 16, 32, 64, 4096] {
            for size in (1..200).chain([1000, 1024, 1100, 4095, 4097, 70_000, 1 << 20]) {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the blocks are freed with their layouts, and only allocated bytes are touched.
                unsafe {
                    let block = Allocator.alloc(layout);
                    assert_eq!(block.addr() % align, 0, "{layout:?}");
                    block.write_bytes(7, size);
                    let longer = Layout::from_size_align(size * 3, align).unwrap();
                    let block = Allocator.realloc(block, layout, longer.size());
                    assert_eq!(block.addr() % align, 0, "{layout:?}");
                    assert!((0..size).all(|at| *block.add(at) == 7), "{layout:?}");
                    Allocator.dealloc(block, longer);

                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert_eq!(zeroed.addr() % align, 0, "{layout:?}");
                    assert!((0..size).all(|at| *zeroed.add(at) == 0), "{layout:?}");
                    Allocator.dealloc(zeroed, layout);
                }
            }
        }
    }
}
