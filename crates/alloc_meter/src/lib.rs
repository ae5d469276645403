//! How much each thread holds in large blocks of the heap: the program's allocator counts, and code that
//! runs users' expressions reads.
//!
//! Invariant: a block counts from its allocation to its end, with the thread that does either. A
//! thread that ends others' blocks may so come to less than nothing; only differences within one
//! operation mean something.

use std::cell::Cell;

/// Smaller blocks are not counted: they are most of all, and come to no more than a part of what a
/// request itself has. It takes some bytes of a request to make one block, so with a larger limit
/// many blocks just below it would fill a machine.
pub const LARGE_BYTES: usize = 1 << 10;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// For the allocator: a block of `old` bytes has become one of `new`; 0 is none.
#[inline]
pub fn changed(old: usize, new: usize) {
    if old >= LARGE_BYTES || new >= LARGE_BYTES {
        let counted = |bytes: usize| {
            if bytes >= LARGE_BYTES {
                bytes as isize
            } else {
                0
            }
        };
        HELD.set(HELD.get() + counted(new) - counted(old));
    }
}

/// Bytes in large blocks that this thread has allocated and not ended.
#[inline]
pub fn held() -> isize {
    HELD.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_large_blocks_only() {
        let before = held();
        changed(0, LARGE_BYTES - 1);
        assert_eq!(held(), before);
        changed(LARGE_BYTES - 1, 100_000);
        assert_eq!(held() - before, 100_000);
        changed(100_000, 300_000);
        changed(0, 70_000);
        assert_eq!(held() - before, 370_000);
        std::thread::spawn(|| changed(70_000, 0)).join().unwrap();
        assert_eq!(
            held() - before,
            370_000,
            "others' threads count for themselves"
        );
        changed(300_000, 10); // no longer large
        assert_eq!(held() - before, 70_000);
    }
}
