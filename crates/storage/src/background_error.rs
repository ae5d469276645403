//! Errors of the engine's background work: flushes, compactions, its manifest.
//!
//! After such an error RocksDB refuses writes. When the disk was full it resumes by itself some
//! seconds after there is space again; after other errors only a restart helps. It reports the
//! error through a listener, but the C interface does not report the recovery. So the error is kept
//! here until a write has succeeded again.

use crate::replicator::FlushGate;
use errors::Error;
use parking_lot::Mutex;
use rocksdb::AsRawPtr;
use rocksdb_sys as ffi;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct BackgroundError {
    known: AtomicBool,
    last: Mutex<Option<String>>,
    /// Passed by each flush before it begins.
    pub gate: Arc<FlushGate>,
}

impl BackgroundError {
    /// Registers this as the listener of the database that `options` will open.
    pub fn listen(self: &Arc<Self>, options: &mut rocksdb::Options) {
        let state = Arc::into_raw(self.clone()).cast_mut().cast::<c_void>();
        // SAFETY: the listener belongs to the options and then to the database; it gives the
        // reference back with `destroy`. All callbacks must be present; those that are not needed
        // do nothing.
        unsafe {
            let listener = ffi::rocksdb_eventlistener_create(
                state,
                Some(destroy),
                Some(flush_begins),
                Some(ignore_flush),
                Some(ignore_compaction),
                Some(ignore_compaction),
                Some(ignore_subcompaction),
                Some(ignore_subcompaction),
                Some(ignore_ingestion),
                Some(failed),
                Some(ignore_stall),
                Some(ignore_memtable),
            );
            ffi::rocksdb_options_add_eventlistener(options.as_raw_ptr(), listener);
        }
    }

    /// Whether there was an error after which no write has succeeded yet.
    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    pub fn forget(&self) {
        self.known.store(false, Ordering::Release);
    }

    pub fn last(&self) -> Option<String> {
        self.last.lock().clone()
    }

    /// The error of a write, with the background error that caused it.
    pub fn explain(&self, refusal: &Error) -> Error {
        let mut e = refusal.clone();
        e.message = format!("no writes are taken for now: {}", refusal.message);
        e
    }
}

unsafe extern "C" fn destroy(state: *mut c_void) {
    // SAFETY: made by `listen` from an Arc, given back once.
    drop(unsafe { Arc::from_raw(state.cast::<BackgroundError>()) });
}

unsafe extern "C" fn failed(
    state: *mut c_void,
    _reason: u32,
    status: *mut ffi::rocksdb_status_ptr_t,
) {
    let mut text: *mut c_char = ptr::null_mut();
    // SAFETY: the state outlives the listener; the text is ours to free.
    let (trouble, text) = unsafe {
        ffi::rocksdb_status_ptr_get_error(status, &mut text);
        if text.is_null() {
            return;
        }
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::rocksdb_free(text.cast());
        (&*state.cast::<BackgroundError>(), owned)
    };
    *trouble.last.lock() = Some(text);
    trouble.known.store(true, Ordering::Release);
}

/// RocksDB calls this without its lock, after it has chosen up to which memory table it flushes.
unsafe extern "C" fn flush_begins(
    state: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_flushjobinfo_t,
) {
    // SAFETY: the state outlives the listener.
    unsafe { &*state.cast::<BackgroundError>() }.gate.pass();
}

unsafe extern "C" fn ignore_flush(
    _: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_flushjobinfo_t,
) {
}
unsafe extern "C" fn ignore_compaction(
    _: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_compactionjobinfo_t,
) {
}
unsafe extern "C" fn ignore_subcompaction(
    _: *mut c_void,
    _: *const ffi::rocksdb_subcompactionjobinfo_t,
) {
}
unsafe extern "C" fn ignore_ingestion(
    _: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_externalfileingestioninfo_t,
) {
}
unsafe extern "C" fn ignore_stall(_: *mut c_void, _: *const ffi::rocksdb_writestallinfo_t) {}
unsafe extern "C" fn ignore_memtable(_: *mut c_void, _: *const ffi::rocksdb_memtableinfo_t) {}
