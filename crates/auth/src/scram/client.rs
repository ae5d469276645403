//! The client's side of an exchange: of the laboratory, of tools, and of members among each other.

use super::{Hash, decode, encode, xor};

/// A login under way.
pub struct ScramClient {
    hash: Hash,
    first_bare: String,
    password: String,
    /// What the server's last message must be.
    signature: Option<String>,
}

/// More iterations than any server asks for; a server that does wants to keep us busy.
const MOST_ITERATIONS: u32 = 1_000_000;

impl ScramClient {
    /// `nonce` must not have been used before. The password is what the mechanism hashes: for
    /// MongoDB's SCRAM-SHA-1 its digest.
    pub fn new(hash: Hash, user: &str, password: &str, nonce: &str) -> ScramClient {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        ScramClient {
            hash,
            first_bare: format!("n={user},r={nonce}"),
            password: password.to_string(),
            signature: None,
        }
    }

    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// The client's last message; `None` when the server's makes no sense.
    pub fn last(&mut self, server_first: &str) -> Option<String> {
        let hash = self.hash;
        self.last_by(server_first, |password, salt, iterations| {
            hash.salted(password, salt, iterations)
        })
    }

    /// The same, where `salted` gives the result of [`Hash::salted`] for password, salt and iterations:
    /// a client that logs in often caches it.
    pub fn last_by(
        &mut self,
        server_first: &str,
        salted: impl FnOnce(&[u8], &[u8], u32) -> Vec<u8>,
    ) -> Option<String> {
        let part = |name: &str| server_first.split(',').find_map(|p| p.strip_prefix(name));
        let nonce = part("r=")?;
        let ours = self.first_bare.rsplit_once("r=")?.1;
        let salt = decode(part("s=")?)?;
        let iterations: u32 = part("i=")?.parse().ok()?;
        if !nonce.starts_with(ours) || !(1..=MOST_ITERATIONS).contains(&iterations) {
            return None;
        }
        let hash = self.hash;
        let salted = salted(self.password.as_bytes(), &salt, iterations);
        let client_key = hash.hmac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = hash.hmac(&hash.digest(&client_key), signed.as_bytes());
        let server_key = hash.hmac(&salted, b"Server Key");
        let theirs = hash.hmac(&server_key, signed.as_bytes());
        self.signature = Some(format!("v={}", encode(&theirs)));
        let proof = encode(&xor(&client_key, &signature));
        Some(format!("{without_proof},p={proof}"))
    }

    /// What the server's last message must be, once the client's last is known: it shows that the
    /// server knows the password too.
    pub fn signature(&self) -> Option<&str> {
        self.signature.as_deref()
    }

    pub fn proven(&self, server_last: &str) -> bool {
        self.signature() == Some(server_last)
    }
}
