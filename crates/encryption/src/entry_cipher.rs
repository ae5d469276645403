//! The cipher of entries: each is sealed for itself, together with its fields in the clear.
//!
//! ```text
//! sealed entry = nonce 12 | encrypted payload | proof 16
//! nonce        = random number of the opened segment u64 LE | number of the entry since then u32 LE
//! ```
//! A segment's key is its own, so two nonces of one key agree only where two openings of one segment drew the
//! same random number of 64 bits.

use crate::data_key::cipher;
use crate::random;
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use std::sync::atomic::{AtomicU32, Ordering};

const PROOF_BYTES: usize = 16;
/// What a sealed payload has more than a plain one.
pub const OVERHEAD_BYTES: usize = NONCE_LEN + PROOF_BYTES;

pub struct EntryCipher {
    key: LessSafeKey,
    opening: [u8; 8],
    count: AtomicU32,
}

impl EntryCipher {
    pub(crate) fn new(key: &[u8; 32]) -> EntryCipher {
        let mut opening = [0; 8];
        random(&mut opening);
        EntryCipher {
            key: cipher(key),
            opening,
            count: AtomicU32::new(0),
        }
    }

    /// The room that a payload needs before it, and behind it, to be sealed in place.
    pub const FRONT: [u8; NONCE_LEN] = [0; NONCE_LEN];
    pub const BACK: [u8; PROOF_BYTES] = [0; PROOF_BYTES];

    /// Seals a payload in place: `room` has [`EntryCipher::FRONT`] before it, and [`EntryCipher::BACK`] behind it. `clear`
    /// is proven with it.
    pub fn seal(&self, clear: &[u8], room: &mut [u8]) {
        let (front, rest) = room.split_at_mut(NONCE_LEN);
        let (payload, back) = rest.split_at_mut(rest.len() - PROOF_BYTES);
        // A segment holds fewer entries by far than this counts.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let (opening, counted) = front.split_at_mut(self.opening.len());
        opening.copy_from_slice(&self.opening);
        counted.copy_from_slice(&count.to_le_bytes());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(front);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(clear), payload);
        match sealed {
            Ok(tag) => back.copy_from_slice(tag.as_ref()),
            // The bound is 64 GB; an entry has at most one.
            Err(_) => unreachable!("an entry is not too long to encrypt"),
        }
    }

    /// Opens what [`EntryCipher::seal`] made, proof included, in place. Returns where the payload begins and how long
    /// it is; `None` where something was changed, or sealed with another key.
    pub fn open(&self, clear: &[u8], sealed: &mut [u8]) -> Option<(usize, usize)> {
        let len = sealed.len().checked_sub(OVERHEAD_BYTES)?;
        let (nonce, rest) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        self.key.open_in_place(nonce, Aad::from(clear), rest).ok()?;
        Some((NONCE_LEN, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataKey;

    fn sealed(cipher: &EntryCipher, payload: &[u8]) -> Vec<u8> {
        let mut room = [&EntryCipher::FRONT, payload, &EntryCipher::BACK].concat();
        cipher.seal(b"clear", &mut room);
        room
    }

    #[test]
    fn what_was_changed_is_not_opened() {
        let key = DataKey::generate();
        let (one, again, other) = (key.of_segment(1), key.of_segment(1), key.of_segment(2));
        for payload in [&b""[..], b"x", &[7; 5000]] {
            let whole = sealed(&one, payload);
            let mut own = whole.clone();
            let (at, len) = again.open(b"clear", &mut own).unwrap();
            assert_eq!(&own[at..at + len], payload);
            assert!(other.open(b"clear", &mut whole.clone()).is_none());
            assert!(again.open(b"cleaR", &mut whole.clone()).is_none());
            for at in [0, 12, whole.len() - 1] {
                let mut bad = whole.clone();
                bad[at] ^= 1;
                assert!(again.open(b"clear", &mut bad).is_none(), "{at}");
            }
            assert!(again.open(b"clear", &mut whole[1..].to_vec()).is_none());
        }
        assert!(one.open(b"clear", &mut [0; OVERHEAD_BYTES - 1]).is_none());
        assert_ne!(sealed(&one, b"x"), sealed(&one, b"x"));
        assert_ne!(sealed(&one, b"x"), sealed(&again, b"x"));
    }
}
