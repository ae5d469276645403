//! Encryption at rest: the keys, and the two ciphers of what lies in a data directory.
//!
//! ```text
//! master key   the file that the operator names: 32 bytes; it never encrypts data
//!    │ AES-256-GCM
//! data key     one for each data directory, made with it, wrapped in DIR/encryption.key
//!    │ HMAC-SHA256 of a purpose and a salt
//!    ├─ key of a file      AES-256-CTR: bytes are read and written at any place         (engine, search indexes, spill files)
//!    └─ key of a segment   AES-256-GCM for each entry: what was changed is not read     (log)
//! ```
//!
//! Invariants:
//! - No two places are encrypted with the same bytes of a key stream: a file and an entry have a salt of
//!   their own, and a second write to one place of a file has the same bytes.
//! - A wrong master key and a damaged `encryption.key` are two different errors.
//! - Pure but for the key files and the kernel's random numbers; knows no server and no file's meaning.

mod data_file;
mod data_key;
mod entry_cipher;
mod file_cipher;
mod master_key;

pub use data_file::{DataFile, DataFiles};
pub use data_key::{DataKey, Unwrapped};
pub use entry_cipher::{EntryCipher, OVERHEAD_BYTES as ENTRY_OVERHEAD_BYTES};
pub use file_cipher::{FileCipher, HEADER_BYTES as FILE_HEADER_BYTES};
pub use master_key::MasterKey;

use ring::rand::{SecureRandom, SystemRandom};

/// Fills `bytes` with the kernel's random numbers.
pub(crate) fn random(bytes: &mut [u8]) {
    // getrandom(2) fails only where the kernel is older than 3.17 and has no /dev/urandom.
    if SystemRandom::new().fill(bytes).is_err() {
        panic!("the kernel gives no random numbers, and without them there are no keys");
    }
}

/// Two hexadecimal digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pairs = digits.len().is_multiple_of(2).then(|| digits.chunks(2))?;
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
