//! How much of the heap each thread holds: the program's allocator counts, and who shares memory out reads. So does what is told of the
//! whole process: what it holds, and how much memory there is for it.
//!
//! Invariant: a block counts from its allocation to its end, with the thread that does either. A
//! thread that ends others' blocks may so come to less than nothing; only differences within one
//! operation mean something.

use std::cell::Cell;
use std::sync::OnceLock;

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

static GIVING_BACK: OnceLock<fn()> = OnceLock::new();

/// The allocator's own: returns what this thread has freed, and what no thread has, to the system.
pub fn gives_back_by(give_back: fn()) {
    let _ = GIVING_BACK.set(give_back);
}

/// Memory that a thread has freed stays with the thread until it allocates again: one that has held much, and is going to wait or
/// to sleep, gives it back.
pub fn give_back() {
    if let Some(give_back) = GIVING_BACK.get() {
        give_back();
    }
}

/// What the process holds of the machine's memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeldMemory {
    pub held: usize,
    /// What one large operation may bring it to while others hold much.
    pub most: usize,
    /// What none may bring it to: the machine, or the control group that the process is in, has no more.
    pub limit: usize,
}

static AVAILABLE: OnceLock<usize> = OnceLock::new();

/// How much memory there is for the process, in bytes. To be said once, before [`available`] is asked.
pub fn set_available(bytes: usize) {
    let _ = AVAILABLE.set(bytes);
}

/// What was said of it; `usize::MAX` where nothing was.
pub fn available() -> usize {
    AVAILABLE.get().copied().unwrap_or(usize::MAX)
}

type Watcher = Box<dyn Fn() -> Option<HeldMemory> + Send + Sync>;

static PROCESS: OnceLock<Watcher> = OnceLock::new();

/// Who watches what the process holds tells of it.
pub fn process_by(told: impl Fn() -> Option<HeldMemory> + Send + Sync + 'static) {
    let _ = PROCESS.set(Box::new(told));
}

/// What is told of the process; `None` where it is not watched.
pub fn process() -> Option<HeldMemory> {
    PROCESS.get()?()
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
