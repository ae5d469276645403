//! The stored form of a password.
//!
//! ```text
//! credentials: {"SCRAM-SHA-1":   {iterationCount, salt, storedKey, serverKey},
//!               "SCRAM-SHA-256": {iterationCount, salt, storedKey, serverKey}}      base64 each
//! ```

use super::{Hash, decode, encode};
use bson::{Doc, DocBuf, Writer};
use errors::{Fallible, bail};

/// The keys of one mechanism that prove a password and are no password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub hash: Hash,
    pub iterations: u32,
    pub salt: Vec<u8>,
    pub(super) stored_key: Vec<u8>,
    pub(super) server_key: Vec<u8>,
}

/// The digest that MongoDB's SCRAM-SHA-1 takes in the place of a password.
pub fn digest_password(user: &str, password: &str) -> String {
    format!("{:x}", md5::compute(format!("{user}:mongo:{password}")))
}

impl Credential {
    /// How long a salt is, in bytes: with its block's number it fills a digest.
    pub fn salt_size(hash: Hash) -> usize {
        hash.size() - 4
    }

    /// Of a password as the client types it. Slow on purpose: not for an event loop.
    pub fn new(hash: Hash, user: &str, password: &str, iterations: u32) -> Fallible<Credential> {
        let prepared = match hash {
            Hash::Sha1 => digest_password(user, password),
            Hash::Sha256 => prepare(password)?,
        };
        Ok(Credential::of_prepared(hash, &prepared, iterations))
    }

    /// Of what the mechanism hashes: the digest of a password for SCRAM-SHA-1.
    pub fn of_prepared(hash: Hash, prepared: &str, iterations: u32) -> Credential {
        let mut salt = vec![0u8; Credential::salt_size(hash)];
        rand::fill(&mut salt[..]);
        Credential::with_salt(hash, prepared, salt, iterations)
    }

    pub(super) fn with_salt(
        hash: Hash,
        prepared: &str,
        salt: Vec<u8>,
        iterations: u32,
    ) -> Credential {
        let salted = hash.salted(prepared.as_bytes(), &salt, iterations);
        let client_key = hash.hmac(&salted, b"Client Key");
        Credential {
            hash,
            iterations,
            salt,
            stored_key: hash.digest(&client_key),
            server_key: hash.hmac(&salted, b"Server Key"),
        }
    }

    /// A credential that no password proves, for an unknown user: always the same for one name, so that
    /// asking twice tells nothing.
    pub fn of_unknown_user(hash: Hash, name: &str, secret: &[u8], iterations: u32) -> Credential {
        let derive = |what: &str| Hash::Sha256.hmac(secret, format!("{what} {name}").as_bytes());
        let sized = |what: &str, n: usize| derive(what).into_iter().take(n).collect::<Vec<u8>>();
        Credential {
            hash,
            iterations,
            salt: sized("salt", Credential::salt_size(hash)),
            stored_key: sized("stored", hash.size()),
            server_key: sized("server", hash.size()),
        }
    }

    /// Of a user's `credentials`; `None` where it has none of that mechanism.
    pub fn read(credentials: Doc<'_>, hash: Hash) -> Option<Credential> {
        let d = credentials.get(hash.mechanism())?.as_doc()?;
        let bytes = |field: &str| decode(d.get(field)?.as_str()?);
        let keys = (bytes("storedKey")?, bytes("serverKey")?);
        let credential = Credential {
            hash,
            iterations: u32::try_from(d.get("iterationCount")?.to_i64_truncated()?).ok()?,
            salt: bytes("salt")?,
            stored_key: keys.0,
            server_key: keys.1,
        };
        let whole = credential.stored_key.len() == hash.size()
            && credential.server_key.len() == hash.size()
            && credential.iterations > 0;
        whole.then_some(credential)
    }

    /// As `credentials` keep it.
    pub fn document(&self) -> DocBuf {
        let mut w = Writer::new();
        w.i32("iterationCount", self.iterations as i32)
            .str("salt", &encode(&self.salt))
            .str("storedKey", &encode(&self.stored_key))
            .str("serverKey", &encode(&self.server_key));
        w.finish()
    }
}

/// SASLprep (RFC 4013), as the better mechanism asks.
fn prepare(password: &str) -> Fallible<String> {
    match stringprep::saslprep(password) {
        Ok(prepared) => Ok(prepared.into_owned()),
        Err(_) => bail!(
            BadValue,
            "The password holds characters that SASLprep prohibits"
        ),
    }
}
