//! SCRAM-SHA-1 and SCRAM-SHA-256 (RFC 5802 and 7677), as MongoDB's clients and servers use them.
//!
//! ```text
//! client                                        server
//! n,,n=USER,r=NONCE                         ─►
//!                                           ◄─  r=NONCE+MORE,s=SALT,i=ITERATIONS
//! c=biws,r=NONCE+MORE,p=PROOF               ─►
//!                                           ◄─  v=SIGNATURE
//! ```
//! The server keeps neither the password nor what could log in with it, but two keys made of it
//! ([`Credential`]).

mod client;
mod credential;
mod server;

pub use client::ScramClient;
pub use credential::{Credential, digest_password};
pub use server::{Exchange, First, ScramStep};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hash function of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
}

impl Hash {
    /// All, the better first.
    pub const ALL: [Hash; 2] = [Hash::Sha256, Hash::Sha1];

    /// The mechanism's name.
    pub fn mechanism(self) -> &'static str {
        match self {
            Hash::Sha1 => "SCRAM-SHA-1",
            Hash::Sha256 => "SCRAM-SHA-256",
        }
    }

    pub fn named(mechanism: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|h| h.mechanism() == mechanism)
    }

    /// How long a digest is, in bytes.
    pub fn size(self) -> usize {
        match self {
            Hash::Sha1 => 20,
            Hash::Sha256 => 32,
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Hash::Sha1 => Sha1::digest(bytes).to_vec(),
            Hash::Sha256 => Sha256::digest(bytes).to_vec(),
        }
    }

    fn hmac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        // A key of any length will do, so that none of the two fails.
        match self {
            Hash::Sha1 => Hmac::<Sha1>::new_from_slice(key)
                .map(|m| m.chain_update(text).finalize().into_bytes().to_vec()),
            Hash::Sha256 => Hmac::<Sha256>::new_from_slice(key)
                .map(|m| m.chain_update(text).finalize().into_bytes().to_vec()),
        }
        .unwrap_or_default()
    }

    /// What a prepared password is hashed to. Takes as long as `iterations` say: not for an event
    /// loop.
    pub fn salted(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut out = vec![0; self.size()];
        match self {
            Hash::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut out),
            Hash::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut out),
        }
        out
    }
}

fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Random characters that no other exchange has.
pub fn nonce() -> String {
    encode(&rand::random::<[u8; 24]>())
}

#[cfg(test)]
mod tests;
