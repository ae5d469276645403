//! SCRAM-SHA-1 and SCRAM-SHA-256 as a client (RFC 5802, 7677): what PostgreSQL and MongoDB ask of a user with a password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
}

impl Hash {
    /// The mechanism's name.
    pub fn mechanism(self) -> &'static str {
        match self {
            Hash::Sha1 => "SCRAM-SHA-1",
            Hash::Sha256 => "SCRAM-SHA-256",
        }
    }

    pub fn named(mechanism: &str) -> Option<Hash> {
        [Hash::Sha256, Hash::Sha1]
            .into_iter()
            .find(|h| h.mechanism() == mechanism)
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

    fn salted(self, password: &[u8], salt: &[u8], rounds: u32) -> Vec<u8> {
        match self {
            Hash::Sha1 => {
                let mut out = vec![0; 20];
                pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, rounds, &mut out);
                out
            }
            Hash::Sha256 => {
                let mut out = vec![0; 32];
                pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, rounds, &mut out);
                out
            }
        }
    }
}

/// A login under way.
pub struct Scram {
    hash: Hash,
    first_bare: String,
    password: String,
    /// What the server's last message must be.
    proof: Option<String>,
}

/// More rounds than any server asks for; a server that does wants to keep us busy.
const MOST_ROUNDS: u32 = 1_000_000;

impl Scram {
    /// `nonce` must not have been used before.
    pub fn new(hash: Hash, user: &str, password: &str, nonce: &str) -> Scram {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Scram {
            hash,
            first_bare: format!("n={user},r={nonce}"),
            password: password.to_string(),
            proof: None,
        }
    }

    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// The client's last message; `None` when the server's makes no sense.
    pub fn last(&mut self, server_first: &str) -> Option<String> {
        let part = |name: &str| server_first.split(',').find_map(|p| p.strip_prefix(name));
        let nonce = part("r=")?;
        let ours = self.first_bare.rsplit_once("r=")?.1;
        let salt = STANDARD.decode(part("s=")?).ok()?;
        let rounds: u32 = part("i=")?.parse().ok()?;
        if !nonce.starts_with(ours) || !(1..=MOST_ROUNDS).contains(&rounds) {
            return None;
        }
        let hash = self.hash;
        let salted = hash.salted(self.password.as_bytes(), &salt, rounds);
        let client_key = hash.hmac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hash.hmac(&hash.digest(&client_key), signed.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(signature)
            .map(|(k, s)| k ^ s)
            .collect();
        let server_key = hash.hmac(&salted, b"Server Key");
        let theirs = hash.hmac(&server_key, signed.as_bytes());
        self.proof = Some(format!("v={}", STANDARD.encode(theirs)));
        Some(format!("{without_proof},p={}", STANDARD.encode(proof)))
    }

    /// What the server's last message must be, once the client's last is known: it shows that the server knows the
    /// password too.
    pub fn proof(&self) -> Option<&str> {
        self.proof.as_deref()
    }

    pub fn proven(&self, server_last: &str) -> bool {
        self.proof() == Some(server_last)
    }
}

/// A nonce that was not used before by this process or, in all likelihood, another.
pub fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    // The state is the system's randomness.
    let part = |salt: u8| RandomState::new().hash_one((now, salt));
    format!("{:016x}{:016x}", part(0), part(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_7677() {
        let mut s = Scram::new(Hash::Sha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(s.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let last = s.last("r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        assert_eq!(
            last.as_deref(),
            Some(
                "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
            )
        );
        assert!(s.proven("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
        assert!(!s.proven("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5="));
        assert!(
            s.last("r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
                .is_none()
        );
    }

    #[test]
    fn the_example_of_rfc_5802() {
        let mut s = Scram::new(Hash::Sha1, "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL");
        assert!(!s.proven("v="));
        assert_eq!(s.first(), "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL");
        let last = s.last("r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096");
        assert_eq!(
            last.as_deref(),
            Some(
                "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
            )
        );
        assert!(s.proven("v=rmF9pqV8S7suAoZWja4dJRkFsKQ="));
    }

    #[test]
    fn mechanisms_and_nonces() {
        assert_eq!(Hash::named("SCRAM-SHA-1"), Some(Hash::Sha1));
        assert_eq!(Hash::named("MONGODB-X509"), None);
        assert_ne!(nonce(), nonce());
        let s = Scram::new(Hash::Sha256, "a=b,c", "", "x");
        assert_eq!(s.first(), "n,,n=a=3Db=2Cc,r=x");
        let mut s = Scram::new(Hash::Sha256, "u", "p", "x");
        for bad in [
            "",
            "r=xy",
            "r=xy,s=!,i=1",
            "r=xy,s=QQ==,i=0",
            "r=xy,s=QQ==,i=9999999",
        ] {
            assert!(s.last(bad).is_none(), "{bad}");
        }
    }
}
