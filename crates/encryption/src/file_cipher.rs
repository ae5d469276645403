//! The cipher of a file whose bytes are read and written at any place.
//!
//! ```text
//! header  "pando-at-rest-1\n" 16 | salt 32 | proof of both 32 | zeros to 4096         places count from the file's beginning
//! bytes   byte n of the file XOR byte n of AES-256-CTR, whose key is made of the salt
//! ```
//! What a file's bytes are is proven by its own checksums, not here.

use crate::{DataKey, random};
use aes::Aes256Enc;
use aes::cipher::{InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper, StreamCipherSeek};
use ctr::CtrCore;
use ctr::flavors::Ctr128BE;
use ring::hmac;

/// A header is as long as a page: the content keeps its place in pages, for reads past the page cache.
pub const HEADER_BYTES: usize = 4096;
const MAGIC: &[u8; 16] = b"pando-at-rest-1\n";
const SALT_BYTES: usize = 32;
const PROOF_AT: usize = MAGIC.len() + SALT_BYTES;
const PROOF_BYTES: usize = 32;

pub struct FileCipher {
    key: Aes256Enc,
}

impl FileCipher {
    /// For a file that has no header and lives no longer than this value.
    pub fn temporary() -> FileCipher {
        let mut key = [0; 32];
        random(&mut key);
        FileCipher::new(&key)
    }

    fn new(key: &[u8; 32]) -> FileCipher {
        FileCipher {
            key: Aes256Enc::new(&(*key).into()),
        }
    }

    pub(crate) fn new_header(data_key: &DataKey) -> Vec<u8> {
        let mut salt = [0; SALT_BYTES];
        random(&mut salt);
        let mut header = [&MAGIC[..], &salt].concat();
        let proof = hmac::sign(&proof_key(data_key), &header);
        header.extend_from_slice(proof.as_ref());
        header.resize(HEADER_BYTES, 0);
        header
    }

    pub(crate) fn of(data_key: &DataKey, header: &[u8]) -> Option<FileCipher> {
        let (told, proof) = (
            header.get(..PROOF_AT)?,
            header.get(PROOF_AT..PROOF_AT + PROOF_BYTES)?,
        );
        let salt = told.strip_prefix(MAGIC)?;
        hmac::verify(&proof_key(data_key), told, proof).ok()?;
        Some(FileCipher::new(&data_key.derive("file", salt)))
    }

    /// Encrypts bytes that go to that place of the file, or decrypts those from there.
    pub fn apply(&self, offset: u64, bytes: &mut [u8]) {
        let core = CtrCore::<_, Ctr128BE>::inner_iv_init(self.key.clone(), &[0; 16].into());
        let mut stream = StreamCipherCoreWrapper::from_core(core);
        stream.seek(offset);
        stream.apply_keystream(bytes);
    }
}

fn proof_key(data_key: &DataKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &data_key.derive("file header", b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_comes_back_as_it_was() {
        let key = DataKey::generate();
        let header = key.new_header();
        let (one, again) = (key.of_file(&header).unwrap(), key.of_file(&header).unwrap());
        let plain: Vec<u8> = (0..100_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let mut written = plain.clone();
        one.apply(4096, &mut written);
        assert_ne!(written, plain);
        for (from, to) in [(0, 1), (1, 17), (15, 16), (4095, 70_000), (0, plain.len())] {
            let mut part = written[from..to].to_vec();
            again.apply(4096 + from as u64, &mut part);
            assert_eq!(part, plain[from..to], "{from}..{to}");
        }
        let mut other = plain.clone();
        key.of_file(&key.new_header())
            .unwrap()
            .apply(4096, &mut other);
        assert_ne!(other, written);
    }

    #[test]
    fn a_header_that_was_changed_or_is_of_another_key_is_refused() {
        let key = DataKey::generate();
        let header = key.new_header();
        assert_eq!(header.len(), HEADER_BYTES);
        for at in [0, 16, 47, PROOF_AT, PROOF_AT + PROOF_BYTES - 1] {
            let mut bad = header.clone();
            bad[at] ^= 1;
            assert!(key.of_file(&bad).is_none(), "{at}");
        }
        assert!(key.of_file(&header[..PROOF_AT + 1]).is_none());
        assert!(DataKey::generate().of_file(&header).is_none());
    }

    /// NIST SP 800-38A, F.5.5: the counter there begins elsewhere, so one block of AES-256 is compared.
    #[test]
    fn the_key_stream_is_that_of_aes_256() {
        let cipher = FileCipher::new(&[0; 32]);
        let mut block = [0; 16];
        cipher.apply(0, &mut block);
        // AES-256 of zeros under a key of zeros (NIST AESAVS, as GCM's hash key of test case 13).
        assert_eq!(crate::hex(&block), "dc95c078a2408989ad48a21492842087");
    }
}
