//! How much of the heap each thread holds: the program's allocator counts, and who shares memory out reads.
//!
//! Invariant: a block counts from its allocation to its end, with the thread that does either. A
//! thread that ends others' blocks may so come to less than nothing; only differences within one
//! operation mean something.

use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// For the allocator: a block of `old` bytes has become one of `new`; 0 is none.
#[inline]
pub fn changed(old: usize, new: usize) {
    HELD.set(HELD.get() + new as isize - old as isize);
}

/// Bytes that this thread has allocated and not ended.
#[inline]
pub fn held() -> isize {
    HELD.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_its_thread_does() {
        let before = held();
        changed(0, 10);
        changed(0, 100_000);
        changed(100_000, 300_000);
        assert_eq!(held() - before, 300_010);
        std::thread::spawn(|| changed(70_000, 0)).join().unwrap();
        assert_eq!(
            held() - before,
            300_010,
            "others' threads count for themselves"
        );
        changed(300_000, 7);
        changed(10, 0);
        assert_eq!(held() - before, 7);
    }
}
