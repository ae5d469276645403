//! The server's side of an exchange.
//!
//! Invariant: bytes from a client are read, never trusted. Whether the user exists changes neither
//! a message's form nor the work that is done.

use super::{Credential, decode, encode, xor};
use errors::{Error, Fallible, err};
use subtle::ConstantTimeEq;

/// A client's message is short; a longer one is invalid.
const LONGEST: usize = 8192;

/// The user that a first message names, and its nonce.
pub struct First {
    pub user: String,
    bare: String,
    nonce: String,
}

/// An exchange under way, after the server's first message.
pub struct Exchange {
    credential: Credential,
    /// There is such a user, with such a credential.
    genuine: bool,
    nonce: String,
    /// Client's first message without its head, and the server's first.
    signed: String,
}

/// How an exchange ended.
pub enum ScramStep {
    /// The password is right; this is the server's last message.
    Proven(String),
    Refused,
}

/// What all failures look like from outside. The reason is for the log.
pub(super) fn malformed(what: &str) -> Error {
    err!(AuthenticationFailed, "{what}")
}

fn text(payload: &[u8]) -> Fallible<&str> {
    if payload.len() > LONGEST {
        return Err(malformed("The SCRAM message is too long"));
    }
    std::str::from_utf8(payload).map_err(|_| malformed("The SCRAM message is not UTF-8"))
}

impl First {
    /// `n,,n=USER,r=NONCE`, with an authorization identity that may be the user.
    pub fn parse(payload: &[u8]) -> Fallible<First> {
        let whole = text(payload)?;
        let bad = || malformed("Incorrect number of arguments for first SCRAM client message");
        let mut parts = whole.splitn(3, ',');
        let (Some(binding), Some(identity), Some(bare)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        if !matches!(binding, "n" | "y") {
            return Err(malformed("Server does not support channel binding"));
        }
        let mut fields = bare.split(',');
        let user = fields.next().and_then(|f| f.strip_prefix("n="));
        let nonce = fields.next().and_then(|f| f.strip_prefix("r="));
        let (Some(user), Some(nonce)) = (user, nonce) else {
            return Err(bad());
        };
        let user = unescape(user).ok_or_else(|| malformed("Invalid SCRAM user name"))?;
        let identity = identity.strip_prefix("a=").map(unescape);
        if user.is_empty() || nonce.is_empty() || identity.is_some_and(|i| i != Some(user.clone()))
        {
            return Err(bad());
        }
        Ok(First {
            user,
            bare: bare.to_string(),
            nonce: nonce.to_string(),
        })
    }
}

/// `=2C` is a comma, `=3D` an equals sign; any other `=` is a fault.
fn unescape(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut out = parts.next()?.to_string();
    for part in parts {
        let (escaped, rest) = part.split_at_checked(2)?;
        out.push(match escaped {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        out.push_str(rest);
    }
    Some(out)
}

impl Exchange {
    /// Answers a client's first message. `genuine` is false for a credential of no user
    /// ([`Credential::of_unknown_user`]).
    pub fn begin(
        first: First,
        credential: Credential,
        genuine: bool,
        server_nonce: &str,
    ) -> (Exchange, String) {
        let nonce = format!("{}{server_nonce}", first.nonce);
        let salt = encode(&credential.salt);
        let reply = format!("r={nonce},s={salt},i={}", credential.iterations);
        let exchange = Exchange {
            signed: format!("{},{reply}", first.bare),
            credential,
            genuine,
            nonce,
        };
        (exchange, reply)
    }

    /// Checks a client's last message: `c=biws,r=NONCE,p=PROOF`.
    pub fn end(self, payload: &[u8]) -> Fallible<ScramStep> {
        let whole = text(payload)?;
        let bad = || malformed("Incorrect number of arguments for second SCRAM client message");
        let (without_proof, proof) = whole.rsplit_once(",p=").ok_or_else(bad)?;
        let mut fields = without_proof.split(',');
        let binding = fields.next().and_then(|f| f.strip_prefix("c="));
        let nonce = fields.next().and_then(|f| f.strip_prefix("r="));
        // The head of the first message again: `n,,` or `y,,`.
        if !matches!(binding, Some("biws" | "eSws")) || nonce.is_none() {
            return Err(bad());
        }
        if nonce != Some(&self.nonce) {
            return Err(malformed("Incorrect nonce received from client"));
        }
        let proof = decode(proof).ok_or_else(bad)?;
        let c = &self.credential;
        if proof.len() != c.hash.size() {
            return Err(bad());
        }
        let signed = format!("{},{without_proof}", self.signed);
        let signature = c.hash.hmac(&c.stored_key, signed.as_bytes());
        let client_key = xor(&proof, &signature);
        let right: bool = c.hash.digest(&client_key).ct_eq(&c.stored_key).into();
        let answer = encode(&c.hash.hmac(&c.server_key, signed.as_bytes()));
        match right & self.genuine {
            true => Ok(ScramStep::Proven(format!("v={answer}"))),
            false => Ok(ScramStep::Refused),
        }
    }
}
