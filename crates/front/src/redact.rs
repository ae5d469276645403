//! The secret fields of commands: they are shown neither in the log, nor by the profiler, currentOp, or
//! an error.

use bson::{Doc, DocBuf, Writer};

/// Fields that hold secrets, by command.
const SECRETS: &[(&str, &[&str])] = &[
    ("createUser", &["pwd"]),
    ("updateUser", &["pwd"]),
    ("saslStart", &["payload"]),
    ("saslContinue", &["payload"]),
    ("authenticate", &["key", "nonce", "pwd"]),
    ("hello", &["speculativeAuthenticate"]),
    ("isMaster", &["speculativeAuthenticate"]),
    ("ismaster", &["speculativeAuthenticate"]),
];

/// The command as it may be shown, where that is not as it is.
pub fn without_secrets(body: Doc<'_>) -> Option<DocBuf> {
    let name = body.first().map_or("", |e| e.name);
    let (_, fields) = SECRETS.iter().find(|(command, _)| *command == name)?;
    let has = body.iter().any(|e| fields.contains(&e.name));
    has.then(|| without(body, fields))
}

fn without(body: Doc<'_>, fields: &[&str]) -> DocBuf {
    let mut w = Writer::new();
    for e in body.iter() {
        match fields.contains(&e.name) {
            true => w.str(e.name, "xxx"),
            false => w.val(e.name, e.val),
        };
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn secrets_are_not_shown() {
        let command = doc! { "createUser": "u", "pwd": "secret", "roles": 1 };
        let text = without_secrets(command.as_doc()).unwrap();
        let text = bson::shell::doc(text.as_doc());
        assert!(!text.contains("secret") && text.contains("roles"), "{text}");
        let find = doc! { "find": "c", "pwd": "x" };
        assert!(without_secrets(find.as_doc()).is_none());
    }
}
