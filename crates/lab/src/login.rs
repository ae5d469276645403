//! Logging in to a MongoDB as the user of a URL: SCRAM-SHA-256, or SCRAM-SHA-1 where the server's user has nothing newer.
//!
//! Invariant: the password is never shown, whatever is printed of a login.

use crate::connection::Connection;
use crate::fault::{Fault, Result};
use crate::reply;
use crate::targets::Url;
use auth::scram::{Client, Hash, digest_password, nonce};
use bson::{Doc, DocBuf, Val, Value, doc};
use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    user: String,
    password: String,
    /// The database that knows the user.
    source: String,
    hash: Option<Hash>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.source)
    }
}

impl Login {
    /// What `user:password@`, `authSource` and `authMechanism` say.
    pub fn of(url: &Url) -> Result<Option<Login>> {
        let usage = |why: &str| Err(Fault::Usage(format!("{}: {why}", url.text)));
        let Some(user) = url.user.clone() else {
            return Ok(None);
        };
        let Some(password) = url.password.clone() else {
            return usage("a user without a password");
        };
        let hash = match url.option("authmechanism") {
            None | Some("" | "DEFAULT") => None,
            Some(name) => match Hash::named(name) {
                Some(hash) => Some(hash),
                None => {
                    return usage("authMechanism is SCRAM-SHA-256 or SCRAM-SHA-1");
                }
            },
        };
        let source = url.option("authsource").map(String::from);
        let source = source.or_else(|| url.database.clone());
        Ok(Some(Login {
            user,
            password,
            source: source.unwrap_or_else(|| "admin".into()),
            hash,
        }))
    }

    /// What `hello` asks for with `saslSupportedMechs`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.source, self.user)
    }

    /// The best that the server says the user has; servers that say nothing are old ones.
    fn choose(&self, hello: Doc<'_>) -> Hash {
        if let Some(hash) = self.hash {
            return hash;
        }
        let said = hello.get("saslSupportedMechs").and_then(Val::as_array);
        let newer = Hash::Sha256.mechanism();
        let has = said.is_some_and(|all| all.values().any(|m| m.as_str() == Some(newer)));
        if has { Hash::Sha256 } else { Hash::Sha1 }
    }

    /// The password as the mechanism hashes it.
    fn prepared(&self, hash: Hash) -> String {
        match hash {
            Hash::Sha1 => digest_password(&self.user, &self.password),
            // What SASLprep forbids a server may have taken all the same.
            Hash::Sha256 => stringprep::saslprep(&self.password)
                .map_or_else(|_| self.password.clone(), |p| p.into_owned()),
        }
    }

    fn refused(&self, why: &str) -> Fault {
        Fault::Target(format!(
            "user {} of database {} is not let in: {why}",
            self.user, self.source
        ))
    }

    pub fn perform(&self, c: &mut Connection) -> Result<()> {
        let hash = self.choose(c.hello.as_doc());
        let mut scram = Client::new(hash, &self.user, &self.prepared(hash), &nonce());
        let start = doc! {
            "saslStart": 1, "mechanism": hash.mechanism(),
            "payload": Value::binary(0, scram.first().as_bytes()),
            "options": doc! {"skipEmptyExchange": true},
        };
        let (first, id, _) = self.say(c, &start)?;
        let last = scram
            .last(&first)
            .ok_or_else(|| self.refused("its challenge makes no sense"))?;
        let next = |payload: &str| {
            doc! {
                "saslContinue": 1, "conversationId": id,
                "payload": Value::binary(0, payload.as_bytes()),
            }
        };
        let (said, _, mut done) = self.say(c, &next(&last))?;
        if !scram.proven(&said) {
            return Err(self.refused("the server does not know the password itself"));
        }
        if !done {
            // Servers that know no skipEmptyExchange want one more, empty.
            done = self.say(c, &next(""))?.2;
        }
        if done {
            return Ok(());
        }
        Err(self.refused("the login has no end"))
    }

    /// One message of the conversation: what the server says, the conversation's number, and whether it is over.
    fn say(&self, c: &mut Connection, command: &DocBuf) -> Result<(String, i32, bool)> {
        let reply = c.try_command(&self.source, command.as_doc())?;
        if reply::ok(reply.as_doc()).is_err() {
            let why = reply.get("errmsg").and_then(Val::as_str);
            return Err(self.refused(why.unwrap_or("the server does not say why")));
        }
        let payload = reply.get("payload").and_then(Val::as_binary);
        let text = payload.and_then(|(_, bytes)| std::str::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| self.refused("its answer is no text"))?;
        let id = reply::int(reply.as_doc(), "conversationId").unwrap_or(1);
        let done = reply.get("done").and_then(Val::as_bool).unwrap_or(false);
        Ok((text.to_string(), i32::try_from(id).unwrap_or(1), done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(url: &str) -> Result<Option<Login>> {
        Login::of(&Url::parse(url, 27017)?)
    }

    #[test]
    fn urls_say_who_and_where() {
        assert_eq!(login("mongodb://127.0.0.1/").unwrap(), None);
        let l = login("mongodb://me:s%40t@127.0.0.1/lab").unwrap().unwrap();
        assert_eq!((l.name().as_str(), l.password.as_str()), ("lab.me", "s@t"));
        assert!(!format!("{l:?}").contains("s@t"));
        let l = login("mongodb://me:x@127.0.0.1/lab?authSource=admin&authMechanism=SCRAM-SHA-1");
        let l = l.unwrap().unwrap();
        assert_eq!((l.name().as_str(), l.hash), ("admin.me", Some(Hash::Sha1)));
        assert!(login("mongodb://me@127.0.0.1/").is_err());
        assert!(login("mongodb://me:x@127.0.0.1/?authMechanism=PLAIN").is_err());
    }

    #[test]
    fn the_best_mechanism_and_its_password() {
        let l = login("mongodb://user:pencil@127.0.0.1/").unwrap().unwrap();
        let both = bson::array!["SCRAM-SHA-1", "SCRAM-SHA-256"];
        let hello = doc! {"saslSupportedMechs": both};
        assert_eq!(l.choose(hello.as_doc()), Hash::Sha256);
        assert_eq!(l.choose(doc! {"ok": 1}.as_doc()), Hash::Sha1);
        assert_eq!(l.prepared(Hash::Sha256), "pencil");
        // md5 of user:mongo:pencil, the example of the drivers' specification of SCRAM-SHA-1.
        assert_eq!(l.prepared(Hash::Sha1), "1c33006ec1ffd90f9cadcbcc0e118200");
        let l = login("mongodb://u:I%C2%ADX@127.0.0.1/").unwrap().unwrap();
        assert_eq!(l.prepared(Hash::Sha256), "IX");
    }
}
