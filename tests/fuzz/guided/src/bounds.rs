//! Bounds on what one input may take: processor time and memory. Beyond them the process is aborted, which is a finding.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

/// The system's allocator, with its bytes in use counted.
pub struct Counted;

static USED: AtomicIsize = AtomicIsize::new(0);
static BOUND: AtomicIsize = AtomicIsize::new(isize::MAX);

fn took(bytes: usize) {
    let bytes = bytes as isize;
    if USED.fetch_add(bytes, Relaxed).wrapping_add(bytes) > BOUND.load(Relaxed) {
        BOUND.store(isize::MAX, Relaxed);
        eprintln!("FINDING: too much memory for one input");
        let trace = std::backtrace::Backtrace::force_capture();
        eprintln!("{trace}");
        std::process::abort();
    }
}

// SAFETY: everything is the system allocator's doing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size() as isize, Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        USED.fetch_sub(layout.size() as isize, Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

extern "C" fn too_long(_: libc::c_int) {
    const TEXT: &[u8] = b"FINDING: too much processor time for one input\n";
    // SAFETY: both may be called from a signal handler.
    unsafe {
        libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
        libc::abort();
    }
}

fn alarm(seconds: i64) {
    let none = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: none,
        it_value: libc::timeval {
            tv_sec: seconds,
            tv_usec: 0,
        },
    };
    // SAFETY: `timer` lives through the call, and nothing is wanted back.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) };
}

/// Runs `f` within these bounds.
pub fn watch(cpu_seconds: i64, memory_bytes: usize, f: impl FnOnce()) {
    // SAFETY: the handler does nothing that a handler may not do.
    unsafe { libc::signal(libc::SIGPROF, too_long as *const () as libc::sighandler_t) };
    BOUND.store(
        USED.load(Relaxed).saturating_add(memory_bytes as isize),
        Relaxed,
    );
    alarm(cpu_seconds);
    f();
    alarm(0);
    BOUND.store(isize::MAX, Relaxed);
}
