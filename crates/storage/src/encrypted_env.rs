//! The engine's environment in an encrypted directory (see `cpp/encrypted.cc`): every file that it writes has a header,
//! and is encrypted behind it. Its log for people is not: it has names of files and figures, and no data.
//!
//! Invariant: an environment lives for ever, and so does the key that it has; there is one for each key.

use encryption::{DataKey, FILE_HEADER_BYTES, FileCipher};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::c_void;
use std::slice;

/// The layout of cpp/encrypted.cc.
#[repr(C)]
struct Calls {
    key: *const c_void,
    header_bytes: usize,
    make: extern "C" fn(*const c_void, *mut u8, usize),
    open: extern "C" fn(*const c_void, *const u8, usize) -> *mut c_void,
    apply: extern "C" fn(*const c_void, u64, *mut u8, usize),
    close: extern "C" fn(*mut c_void),
}

unsafe extern "C" {
    fn pando_encrypted_env(calls: *const Calls) -> *mut c_void;
}

/// RocksDB's `Env*`.
#[derive(Clone, Copy)]
pub(crate) struct Env(pub *mut c_void);

// SAFETY: RocksDB's environments may be used from any thread at once.
unsafe impl Send for Env {}

pub(crate) fn of(key: &DataKey) -> Env {
    static MADE: Mutex<Option<HashMap<[u8; 32], Env>>> = Mutex::new(None);
    let mut made = MADE.lock();
    let make = || {
        let calls = Calls {
            key: Box::into_raw(Box::new(key.clone())).cast_const().cast(),
            header_bytes: FILE_HEADER_BYTES,
            make,
            open,
            apply,
            close,
        };
        // SAFETY: what it points to is copied; the key lives for ever.
        Env(unsafe { pando_encrypted_env(&calls) })
    };
    *made
        .get_or_insert_default()
        .entry(key.name())
        .or_insert_with(make)
}

/// # Safety
/// `key` is that of [`of`].
unsafe fn key_of<'k>(key: *const c_void) -> &'k DataKey {
    // SAFETY: as the caller promises; it lives for ever.
    unsafe { &*key.cast::<DataKey>() }
}

extern "C" fn make(key: *const c_void, header: *mut u8, len: usize) {
    // SAFETY: RocksDB gives room of that length.
    let (key, room) = unsafe { (key_of(key), slice::from_raw_parts_mut(header, len)) };
    for (to, from) in room.iter_mut().zip(key.new_header()) {
        *to = from;
    }
}

/// Null where the header is damaged or of another key.
extern "C" fn open(key: *const c_void, header: *const u8, len: usize) -> *mut c_void {
    if len == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: RocksDB gives that many bytes.
    let (key, header) = unsafe { (key_of(key), slice::from_raw_parts(header, len)) };
    match key.of_file(header) {
        Some(cipher) => Box::into_raw(Box::new(cipher)).cast(),
        None => std::ptr::null_mut(),
    }
}

extern "C" fn apply(cipher: *const c_void, offset: u64, bytes: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: `cipher` is from `open`, and RocksDB gives that many bytes.
    let (cipher, bytes) = unsafe {
        (
            &*cipher.cast::<FileCipher>(),
            slice::from_raw_parts_mut(bytes, len),
        )
    };
    cipher.apply(offset, bytes);
}

extern "C" fn close(cipher: *mut c_void) {
    // SAFETY: from `open`, and closed once.
    drop(unsafe { Box::from_raw(cipher.cast::<FileCipher>()) });
}
