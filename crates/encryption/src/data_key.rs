//! A data directory's own key, and how it is wrapped.
//!
//! ```text
//! pando data key 1
//! master 0123456789abcdef         which master key wraps it
//! wrapped NONCE(12) KEY(32) PROOF(16), in hexadecimal digits
//! sum CRC-like proof of the lines before, in hexadecimal digits
//! ```

use crate::entry_cipher::EntryCipher;
use crate::file_cipher::FileCipher;
use crate::{MasterKey, hex, random, unhex};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::{digest, hmac};
use std::sync::Arc;

const TITLE: &str = "pando data key 1";
const SUM_BYTES: usize = 8;

/// The key of a data directory. It lives in memory only.
#[derive(Clone)]
pub struct DataKey(Arc<Derivation>);

struct Derivation {
    bytes: [u8; 32],
    key: hmac::Key,
}

/// What became of a wrapped key.
pub enum Unwrapped {
    Key(DataKey),
    /// Another master key has wrapped it.
    OtherMaster,
    /// No key can unwrap this.
    Damaged,
}

impl DataKey {
    pub fn generate() -> DataKey {
        let mut bytes = [0; 32];
        random(&mut bytes);
        DataKey::new(bytes)
    }

    fn new(bytes: [u8; 32]) -> DataKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        DataKey(Arc::new(Derivation { bytes, key }))
    }

    /// The text of the file that holds the key, for holders of the master key.
    pub fn wrap(&self, master: &MasterKey) -> String {
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce);
        let mut wrapped = self.0.bytes.to_vec();
        let sealed = cipher(&master.0).seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(TITLE),
            &mut wrapped,
        );
        assert!(sealed.is_ok(), "32 bytes are not too many to encrypt");
        let head = format!(
            "{TITLE}\nmaster {}\nwrapped {}{}\n",
            hex(&master.id()),
            hex(&nonce),
            hex(&wrapped)
        );
        format!("{head}sum {}\n", sum(&head))
    }

    pub fn unwrap(text: &str, master: &MasterKey) -> Unwrapped {
        let Some((id, nonce, mut wrapped)) = parse(text) else {
            return Unwrapped::Damaged;
        };
        if id != master.id() {
            return Unwrapped::OtherMaster;
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = cipher(&master.0).open_in_place(nonce, Aad::from(TITLE), &mut wrapped);
        let bytes = opened.ok().and_then(|bytes| (&*bytes).try_into().ok());
        bytes.map_or(Unwrapped::Damaged, |bytes| {
            Unwrapped::Key(DataKey::new(bytes))
        })
    }

    /// The key for one purpose and one salt.
    pub(crate) fn derive(&self, purpose: &str, salt: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0.key);
        context.update(purpose.as_bytes());
        context.update(&[0]);
        context.update(salt);
        let tag = context.sign();
        let mut key = [0; 32];
        key.iter_mut()
            .zip(tag.as_ref())
            .for_each(|(to, from)| *to = *from);
        key
    }

    /// What tells one key from another in memory, and is no key itself.
    pub fn name(&self) -> [u8; 32] {
        self.derive("name", b"")
    }

    /// The cipher of the log's segment that begins with the entry `first_index`.
    pub fn of_segment(&self, first_index: u64) -> EntryCipher {
        EntryCipher::new(&self.derive("segment", &first_index.to_le_bytes()))
    }

    /// A header for a new file.
    pub fn new_header(&self) -> Vec<u8> {
        FileCipher::new_header(self)
    }

    /// The cipher of a file that begins with this header; `None` where the header is damaged or of another key.
    pub fn of_file(&self, header: &[u8]) -> Option<FileCipher> {
        FileCipher::of(self, header)
    }
}

pub(crate) fn cipher(key: &[u8; 32]) -> LessSafeKey {
    match UnboundKey::new(&AES_256_GCM, key) {
        Ok(key) => LessSafeKey::new(key),
        Err(_) => unreachable!("32 bytes are a key"),
    }
}

/// Tells a file that was damaged from one that another key has wrapped.
fn sum(head: &str) -> String {
    let whole = digest::digest(&digest::SHA256, head.as_bytes());
    hex(whole.as_ref().get(..SUM_BYTES).unwrap_or_default())
}

type Parts = ([u8; 8], [u8; NONCE_LEN], Vec<u8>);

fn parse(text: &str) -> Option<Parts> {
    let at = text.find("sum ")?;
    let (head, last) = text.split_at_checked(at)?;
    if last.strip_prefix("sum ")?.trim_end() != sum(head) {
        return None;
    }
    let mut lines = head.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let id = unhex(lines.next()?.strip_prefix("master ")?)?;
    let wrapped = unhex(lines.next()?.strip_prefix("wrapped ")?)?;
    let (nonce, wrapped) = wrapped.split_at_checked(NONCE_LEN)?;
    Some((
        id.try_into().ok()?,
        nonce.try_into().ok()?,
        wrapped.to_vec(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_master_key_and_a_damaged_file_are_told_apart() {
        let (key, one, other) = (DataKey::generate(), MasterKey([1; 32]), MasterKey([2; 32]));
        let text = key.wrap(&one);
        match DataKey::unwrap(&text, &one) {
            Unwrapped::Key(same) => assert_eq!(same.0.bytes, key.0.bytes),
            _ => panic!("the key is there"),
        }
        assert!(matches!(
            DataKey::unwrap(&text, &other),
            Unwrapped::OtherMaster
        ));
        for at in 0..text.len() - 1 {
            let mut bad = text.clone().into_bytes();
            bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
            let bad = String::from_utf8(bad).unwrap();
            assert!(
                matches!(DataKey::unwrap(&bad, &one), Unwrapped::Damaged),
                "{at}"
            );
        }
        for len in 0..text.len() - 1 {
            assert!(
                matches!(DataKey::unwrap(&text[..len], &one), Unwrapped::Damaged),
                "{len}"
            );
        }
    }

    #[test]
    fn wrapping_twice_does_not_look_the_same_and_purposes_have_keys_of_their_own() {
        let (key, master) = (DataKey::generate(), MasterKey([1; 32]));
        assert_ne!(key.wrap(&master), key.wrap(&master));
        assert_ne!(key.derive("a", b"b"), key.derive("a", b"c"));
        assert_ne!(key.derive("a", b"b"), key.derive("ab", b""));
    }
}
