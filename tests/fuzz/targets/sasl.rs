//! What a client sends before it is anybody: the two messages of a SCRAM exchange, parted by a zero,
//! and the text of a key file.

use auth::scram::{Credential, Exchange, First, Hash, ScramStep};

pub fn messages(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = auth::key_file::parse(text);
    }
    let at = input.iter().position(|b| *b == 0).unwrap_or(input.len());
    let (first, rest) = input.split_at(at);
    let last = rest.get(1..).unwrap_or_default();
    for hash in Hash::ALL {
        let Ok(first) = First::parse(first) else {
            return;
        };
        assert!(!first.user.is_empty());
        let credential = Credential::of_unknown_user(hash, &first.user, b"secret", 1);
        let (exchange, reply) = Exchange::begin(first, credential, true, "server");
        assert!(reply.starts_with("r=") && reply.contains("server,s="));
        // No proof is found by chance.
        assert!(!matches!(exchange.end(last), Ok(ScramStep::Proven(_))));
    }
}
