//! SCRAM-SHA-256 as a client (RFC 5802, 7677): what PostgreSQL and MongoDB ask of a user with a password.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut block = [0u8; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let mut inner = Sha256::new();
    inner.update(block.map(|b| b ^ 0x36));
    for p in parts {
        inner.update(p);
    }
    let mut outer = Sha256::new();
    outer.update(block.map(|b| b ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// A login under way.
pub struct Scram {
    first_bare: String,
    password: String,
    server_signature: Option<[u8; 32]>,
}

/// More rounds than any server asks for; a server that does wants to keep us busy.
const MOST_ROUNDS: u32 = 1_000_000;

impl Scram {
    /// `nonce` must not have been used before.
    pub fn new(user: &str, password: &str, nonce: &str) -> Scram {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Scram {
            first_bare: format!("n={user},r={nonce}"),
            password: password.to_string(),
            server_signature: None,
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
        let password = self.password.as_bytes();
        let mut u = hmac(password, &[&salt, &[0, 0, 0, 1]]);
        let mut salted = u;
        for _ in 1..rounds {
            u = hmac(password, &[&u]);
            salted.iter_mut().zip(u).for_each(|(s, u)| *s ^= u);
        }
        let client_key = hmac(&salted, &[b"Client Key"]);
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hmac(&Sha256::digest(client_key), &[signed.as_bytes()]);
        let mut proof = client_key;
        proof.iter_mut().zip(signature).for_each(|(p, s)| *p ^= s);
        let server_key = hmac(&salted, &[b"Server Key"]);
        self.server_signature = Some(hmac(&server_key, &[signed.as_bytes()]));
        Some(format!("{without_proof},p={}", STANDARD.encode(proof)))
    }

    /// Whether the server has shown that it knows the password too.
    pub fn proven(&self, server_last: &str) -> bool {
        let shown = server_last
            .strip_prefix("v=")
            .and_then(|v| STANDARD.decode(v).ok());
        shown.is_some_and(|s| self.server_signature.is_some_and(|own| s == own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_7677() {
        let mut s = Scram::new("user", "pencil", "rOprNGfwEbeRWgbNEkqO");
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
}
