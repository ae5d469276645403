//! Objects may be encrypted: AES-256-GCM in pieces, under a key of its own for each object.
//!
//! ```text
//! "pando-sealed-1\n\0" | salt 32 | piece | piece | … | last piece        a piece: 64 KB and 16 bytes that prove it
//! the object's key = HMAC-SHA256(key of the file, "object" salt)
//! ```
//! The pieces are a STREAM (Hoang, Reyhanitabar, Rogaway, Vizár 2015; the crate `aead-stream`): their order
//! and their end are proven too, and with them the object's name.
//!
//! Invariant: an object that was changed, cut, or put under another name fails to be read.

use crate::ArchiveResult;
use aead_stream::{DecryptorBE32, EncryptorBE32};
use aes_gcm::aead::Payload;
use aes_gcm::{Aes256Gcm, KeyInit};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

const MAGIC: &[u8; 16] = b"pando-sealed-1\n\0";
const SALT: usize = 32;
const PIECE: usize = 64 << 10;
const PROOF: usize = 16;

/// What a key file holds: 32 bytes.
#[derive(Clone)]
pub struct ArchiveKey([u8; 32]);

impl ArchiveKey {
    /// 32 bytes in base64, as `openssl rand -base64 32` makes them, or 64 hexadecimal digits.
    pub fn load(path: &Path) -> ArchiveResult<ArchiveKey> {
        let text = fs::read_to_string(path)
            .map_err(|e| format!("cannot read the key {}: {e}", path.display()))?;
        ArchiveKey::parse(&text).ok_or_else(|| {
            format!(
                "{} is no key: it should have 32 bytes in base64, as openssl rand -base64 32 makes them",
                path.display()
            )
        })
    }

    fn parse(text: &str) -> Option<ArchiveKey> {
        let text = text.trim();
        if text.len() == 64 {
            let digits = text.as_bytes().chunks(2).map(|pair| {
                let pair = std::str::from_utf8(pair).ok()?;
                u8::from_str_radix(pair, 16).ok()
            });
            let bytes: Option<Vec<u8>> = digits.collect();
            return Some(ArchiveKey(bytes?.try_into().ok()?));
        }
        let bytes = BASE64_STANDARD.decode(text).ok()?;
        Some(ArchiveKey(bytes.try_into().ok()?))
    }

    /// A number that can be made of these bytes only with the key.
    pub(crate) fn derive(&self, purpose: &str, bytes: &[u8]) -> [u8; 32] {
        let mac = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(&self.0);
        // HMAC takes keys of any length.
        let mut mac = mac.expect("a key of 32 bytes");
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }

    fn of_object(&self, salt: &[u8; SALT]) -> Aes256Gcm {
        Aes256Gcm::new(&self.derive("object", salt).into())
    }
}

/// Reads what another reader gives, encrypted for the object of that name.
pub(crate) struct EncryptingReader<'r> {
    from: &'r mut dyn Read,
    name: String,
    stream: Option<EncryptorBE32<Aes256Gcm>>,
    /// The next piece, not encrypted yet: only the bytes behind it tell whether it is the last.
    next: Vec<u8>,
    out: Vec<u8>,
    at: usize,
}

impl<'r> EncryptingReader<'r> {
    pub fn new(
        key: &ArchiveKey,
        name: &str,
        from: &'r mut dyn Read,
    ) -> io::Result<EncryptingReader<'r>> {
        let mut salt = [0; SALT];
        File::open("/dev/urandom")?.read_exact(&mut salt)?;
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&salt);
        let next = piece(from, PIECE)?;
        let stream = EncryptorBE32::from_aead(key.of_object(&salt), &Default::default());
        Ok(EncryptingReader {
            from,
            name: name.into(),
            stream: Some(stream),
            next,
            out,
            at: 0,
        })
    }

    fn step(&mut self) -> io::Result<()> {
        let Some(mut stream) = self.stream.take() else {
            return Ok(());
        };
        let after = piece(self.from, PIECE)?;
        let payload = Payload {
            msg: &self.next,
            aad: self.name.as_bytes(),
        };
        let sealed = match after.is_empty() {
            true => stream.encrypt_last(payload),
            false => {
                let sealed = stream.encrypt_next(payload);
                self.stream = Some(stream);
                sealed
            }
        };
        self.out =
            sealed.map_err(|_| io::Error::other("the object is too long to be encrypted"))?;
        (self.at, self.next) = (0, after);
        Ok(())
    }
}

impl Read for EncryptingReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.out.len() {
            self.step()?;
        }
        Ok(hand_out(&self.out, &mut self.at, to))
    }
}

/// Reads an encrypted object. Nothing is given that is not proven.
pub(crate) struct DecryptingReader<'r> {
    from: Box<dyn Read + 'r>,
    name: String,
    stream: Option<DecryptorBE32<Aes256Gcm>>,
    next: Vec<u8>,
    out: Vec<u8>,
    at: usize,
}

fn damaged(name: &str) -> io::Error {
    let says = format!("{name} is damaged, or was encrypted with another key");
    io::Error::new(io::ErrorKind::InvalidData, says)
}

impl<'r> DecryptingReader<'r> {
    pub fn new(
        key: &ArchiveKey,
        name: &str,
        mut from: Box<dyn Read + 'r>,
    ) -> io::Result<DecryptingReader<'r>> {
        let head = piece(&mut *from, MAGIC.len() + SALT)?;
        let salt = head.strip_prefix(MAGIC).and_then(|s| s.try_into().ok());
        let salt = salt.ok_or_else(|| damaged(name))?;
        let next = piece(&mut *from, PIECE + PROOF)?;
        let stream = DecryptorBE32::from_aead(key.of_object(salt), &Default::default());
        Ok(DecryptingReader {
            from,
            name: name.into(),
            stream: Some(stream),
            next,
            out: Vec::new(),
            at: 0,
        })
    }

    fn step(&mut self) -> io::Result<()> {
        let Some(mut stream) = self.stream.take() else {
            return Ok(());
        };
        let after = piece(&mut *self.from, PIECE + PROOF)?;
        let payload = Payload {
            msg: &self.next,
            aad: self.name.as_bytes(),
        };
        let opened = match after.is_empty() {
            true => stream.decrypt_last(payload),
            false => {
                let opened = stream.decrypt_next(payload);
                self.stream = Some(stream);
                opened
            }
        };
        self.out = opened.map_err(|_| damaged(&self.name))?;
        (self.at, self.next) = (0, after);
        Ok(())
    }
}

impl Read for DecryptingReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.out.len() {
            self.step()?;
        }
        Ok(hand_out(&self.out, &mut self.at, to))
    }
}

fn hand_out(out: &[u8], at: &mut usize, to: &mut [u8]) -> usize {
    let rest = out.get(*at..).unwrap_or_default();
    let n = rest.len().min(to.len());
    if let (Some(to), Some(rest)) = (to.get_mut(..n), rest.get(..n)) {
        to.copy_from_slice(rest);
    }
    *at += n;
    n
}

/// The next so many bytes, or what there is before the end.
fn piece(from: &mut dyn Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> ArchiveKey {
        ArchiveKey([n; 32])
    }

    fn sealed(bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut from) = (Vec::new(), bytes);
        let mut sealing = EncryptingReader::new(&key(1), "a/b", &mut from).unwrap();
        sealing.read_to_end(&mut out).unwrap();
        out
    }

    fn open(key: &ArchiveKey, name: &str, sealed: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        DecryptingReader::new(key, name, Box::new(sealed))?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn what_is_sealed_comes_back_whatever_its_length() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let sealed = sealed(&bytes);
            assert_eq!(open(&key(1), "a/b", &sealed).unwrap(), bytes, "{len}");
            assert!(len < 9 || !sealed.windows(9).any(|w| w == &bytes[..9]));
        }
        // The same content twice does not look the same.
        assert_ne!(sealed(b"x"), sealed(b"x"));
    }

    #[test]
    fn what_was_changed_cut_or_moved_is_not_read() {
        let bytes = vec![5; 2 * PIECE + 10];
        let whole = sealed(&bytes);
        for at in [0, 20, MAGIC.len() + SALT, PIECE + 100, whole.len() - 1] {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            assert!(open(&key(1), "a/b", &bad).is_err(), "{at}");
        }
        let first_end = MAGIC.len() + SALT + PIECE + PROOF;
        for len in [0, 10, MAGIC.len() + SALT, first_end, whole.len() - 1] {
            assert!(open(&key(1), "a/b", &whole[..len]).is_err(), "cut at {len}");
        }
        assert!(open(&key(2), "a/b", &whole).is_err());
        assert!(open(&key(1), "a/c", &whole).is_err());
    }

    #[test]
    fn key_files() {
        let base64 = BASE64_STANDARD.encode([7; 32]);
        assert_eq!(
            ArchiveKey::parse(&format!("{base64}\n")).unwrap().0,
            [7; 32]
        );
        assert_eq!(ArchiveKey::parse(&"0a".repeat(32)).unwrap().0, [10; 32]);
        for bad in [
            "",
            "short",
            &"zz".repeat(32),
            &BASE64_STANDARD.encode([1; 31]),
        ] {
            assert!(ArchiveKey::parse(bad).is_none(), "{bad}");
        }
    }
}
