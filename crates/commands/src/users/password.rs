//! Credentials from what `createUser` and `updateUser` say of a password.

use crate::Commands;
use crate::security::login::iterations_of;
use auth::scram::{Credential, Hash};
use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};

/// What a command says about a password.
#[derive(Clone, Copy, Default)]
pub struct Password<'a> {
    /// The client hashed it; only the older mechanism can take it then.
    pub is_digest: bool,
    pub mechanisms: Option<Doc<'a>>,
}

impl Password<'_> {
    /// The mechanisms that are asked for; all without a word about them.
    pub fn hashes(&self) -> Result<Vec<Hash>> {
        let Some(list) = self.mechanisms else {
            return Ok(vec![Hash::Sha1, Hash::Sha256]);
        };
        let mut hashes = Vec::new();
        for v in list.values() {
            let name = v.as_str().unwrap_or("");
            match Hash::named(name) {
                Some(hash) => hashes.push(hash),
                None => bail!(BadValue, "Unknown auth mechanism '{name}'"),
            }
        }
        if hashes.is_empty() {
            bail!(BadValue, "mechanisms field must not be empty");
        }
        Ok(hashes)
    }

    /// The `credentials` of a user with this password. Takes some ten milliseconds.
    pub fn credentials(&self, app: &Commands, user: &str, pwd: &str) -> Result<DocBuf> {
        if pwd.is_empty() {
            bail!(BadValue, "Password cannot be empty");
        }
        let mut w = Writer::new();
        for hash in self.hashes()? {
            let iterations = iterations_of(app, hash);
            let credential = match (hash, self.is_digest) {
                (Hash::Sha1, true) => Credential::of_prepared(hash, pwd, iterations),
                (Hash::Sha256, true) => bail!(
                    BadValue,
                    "Use of SCRAM-SHA-256 requires undigested passwords"
                ),
                (_, false) => Credential::new(hash, user, pwd, iterations)?,
            };
            w.doc(hash.mechanism(), credential.document().as_doc());
        }
        Ok(w.finish())
    }
}
