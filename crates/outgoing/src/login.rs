//! Logging in to a MongoDB as the user of a connection string: SCRAM-SHA-256, or SCRAM-SHA-1 where the
//! server's user has nothing newer, or by the certificate of the connection.
//!
//! Invariant: the password is never shown, whatever is printed of a login.

use crate::{Error, Result, Url};
use auth::scram::{Hash, ScramClient, digest_password, nonce};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use std::fmt;
use std::sync::{Mutex, PoisonError};

const X509: &str = "MONGODB-X509";
const EXTERNAL: &str = "$external";

/// A connection on which a command can be said: its reply, an error reply too.
pub trait Converse {
    type Failure: From<Error>;

    fn ask(&mut self, db: &str, command: Doc<'_>) -> std::result::Result<DocBuf, Self::Failure>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mechanism {
    /// The best that the user has.
    Chosen,
    Scram(Hash),
    X509,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Empty if the certificate alone names the user.
    user: String,
    password: String,
    /// The database that knows the user.
    source: String,
    mechanism: Mechanism,
    /// The salted password may be kept for the next login: it is a program's.
    may_remember: bool,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.source)
    }
}

impl Credentials {
    /// A person's typed credentials; nothing of them is cached.
    pub fn new(user: &str, password: &str, source: &str) -> Credentials {
        Credentials {
            user: user.into(),
            password: password.into(),
            source: source.into(),
            mechanism: Mechanism::Chosen,
            may_remember: false,
        }
    }

    /// What `user:password@`, `authSource` and `authMechanism` say.
    pub fn of(url: &Url) -> Result<Option<Credentials>> {
        let usage = |why: &str| Err(Error::Usage(format!("{}: {why}", url.text)));
        let mechanism = match url.option("authmechanism") {
            None | Some("" | "DEFAULT") => Mechanism::Chosen,
            Some(X509) => Mechanism::X509,
            Some(name) => match Hash::named(name) {
                Some(hash) => Mechanism::Scram(hash),
                None => {
                    return usage("authMechanism is SCRAM-SHA-256, SCRAM-SHA-1 or MONGODB-X509");
                }
            },
        };
        let source = url.option("authsource").map(String::from);
        if mechanism == Mechanism::X509 {
            if url.password.is_some() || source.as_deref().is_some_and(|s| s != EXTERNAL) {
                return usage("MONGODB-X509 takes no password, and users of $external");
            }
            return Ok(Some(Credentials {
                user: url.user.clone().unwrap_or_default(),
                password: String::new(),
                source: EXTERNAL.into(),
                mechanism,
                may_remember: true,
            }));
        }
        let Some(user) = url.user.clone() else {
            return match mechanism {
                Mechanism::Chosen => Ok(None),
                _ => usage("a mechanism, and no user"),
            };
        };
        let Some(password) = url.password.clone() else {
            return usage("a user without a password");
        };
        let source = source.or_else(|| url.database.clone());
        Ok(Some(Credentials {
            user,
            password,
            source: source.unwrap_or_else(|| "admin".into()),
            mechanism,
            may_remember: true,
        }))
    }

    /// What `hello` asks for with `saslSupportedMechs`.
    pub fn asks_for(&self) -> Option<String> {
        let chosen = self.mechanism == Mechanism::Chosen;
        chosen.then(|| format!("{}.{}", self.source, self.user))
    }

    /// The best that the server says the user has; servers that say nothing are old ones.
    fn choose(&self, hello: Doc<'_>) -> Hash {
        if let Mechanism::Scram(hash) = self.mechanism {
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

    fn refused(&self, why: &str) -> Error {
        let who = match self.user.as_str() {
            "" => "the certificate's owner".to_string(),
            user => format!("user {user} of database {}", self.source),
        };
        Error::Failed(format!("{who} is not let in: {why}"))
    }

    /// Logs in on a connection whose server has answered `hello`.
    pub fn perform<C: Converse>(
        &self,
        c: &mut C,
        hello: Doc<'_>,
    ) -> std::result::Result<(), C::Failure> {
        match self.mechanism {
            Mechanism::X509 => self.show_certificate(c),
            _ => self.prove_password(c, self.choose(hello)),
        }
    }

    fn show_certificate<C: Converse>(&self, c: &mut C) -> std::result::Result<(), C::Failure> {
        let mut command = Writer::new();
        command.i32("authenticate", 1).str("mechanism", X509);
        if !self.user.is_empty() {
            command.str("user", &self.user);
        }
        let reply = c.ask(EXTERNAL, command.finish().as_doc())?;
        Ok(self.check(reply.as_doc())?)
    }

    fn prove_password<C: Converse>(
        &self,
        c: &mut C,
        hash: Hash,
    ) -> std::result::Result<(), C::Failure> {
        let mut scram = ScramClient::new(hash, &self.user, &self.prepared(hash), &nonce());
        let start = doc! {
            "saslStart": 1, "mechanism": hash.mechanism(),
            "payload": Value::binary(0, scram.first().as_bytes()),
            "options": doc! {"skipEmptyExchange": true},
        };
        let (first, id, _) = self.say(c, &start)?;
        let last = scram
            .last_by(&first, |password, salt, iterations| {
                match self.may_remember {
                    true => salted(hash, password, salt, iterations),
                    false => hash.salted(password, salt, iterations),
                }
            })
            .ok_or_else(|| self.refused("its challenge makes no sense"))?;
        let next = |payload: &str| {
            doc! {
                "saslContinue": 1, "conversationId": id,
                "payload": Value::binary(0, payload.as_bytes()),
            }
        };
        let (said, _, mut done) = self.say(c, &next(&last))?;
        if !scram.proven(&said) {
            return Err(self
                .refused("the server does not know the password itself")
                .into());
        }
        if !done {
            // Servers that know no skipEmptyExchange want one more, empty.
            done = self.say(c, &next(""))?.2;
        }
        match done {
            true => Ok(()),
            false => Err(self.refused("the login has no end").into()),
        }
    }

    /// One message of the conversation: what the server says, the conversation's number, and whether it is over.
    fn say<C: Converse>(
        &self,
        c: &mut C,
        command: &DocBuf,
    ) -> std::result::Result<(String, i32, bool), C::Failure> {
        let reply = c.ask(&self.source, command.as_doc())?;
        self.check(reply.as_doc())?;
        let payload = reply.get("payload").and_then(Val::as_binary);
        let text = payload.and_then(|(_, bytes)| std::str::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| self.refused("its answer is no text"))?;
        let id = reply.get("conversationId").and_then(Val::to_i64_exact);
        let id = id.and_then(|id| i32::try_from(id).ok()).unwrap_or(1);
        let done = reply.get("done").and_then(Val::as_bool).unwrap_or(false);
        Ok((text.to_string(), id, done))
    }

    fn check(&self, reply: Doc<'_>) -> Result<()> {
        if reply.get("ok").is_some_and(Val::truthy) {
            return Ok(());
        }
        let why = reply.get("errmsg").and_then(Val::as_str);
        Err(self.refused(why.unwrap_or("the server does not say why")))
    }
}

/// A salted password that was computed, which takes long on purpose: members open many connections
/// with the same key.
struct Salted {
    hash: Hash,
    password: Vec<u8>,
    salt: Vec<u8>,
    iterations: u32,
    salted: Vec<u8>,
}

/// The newest come last.
static COMPUTED: Mutex<Vec<Salted>> = Mutex::new(Vec::new());
/// As many members' salts are remembered.
const MOST_COMPUTED: usize = 64;

fn salted(hash: Hash, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
    let lock = || COMPUTED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |known: &&Salted| {
        known.hash == hash
            && known.iterations == iterations
            && known.salt == salt
            && known.password == password
    };
    if let Some(known) = lock().iter().find(same) {
        return known.salted.clone();
    }
    let computed = hash.salted(password, salt, iterations);
    let mut all = lock();
    if all.len() >= MOST_COMPUTED {
        all.remove(0);
    }
    all.push(Salted {
        hash,
        password: password.into(),
        salt: salt.into(),
        iterations,
        salted: computed.clone(),
    });
    computed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(url: &str) -> Result<Option<Credentials>> {
        Credentials::of(&Url::parse(url, 27017)?)
    }

    #[test]
    fn urls_say_who_and_where() {
        assert_eq!(login("mongodb://127.0.0.1/").unwrap(), None);
        let l = login("mongodb://me:s%40t@127.0.0.1/lab").unwrap().unwrap();
        assert_eq!(l.asks_for().as_deref(), Some("lab.me"));
        assert_eq!(l.password, "s@t");
        assert!(!format!("{l:?}").contains("s@t"));
        let l = login("mongodb://me:x@127.0.0.1/lab?authSource=admin&authMechanism=SCRAM-SHA-1");
        let l = l.unwrap().unwrap();
        let sha1 = Mechanism::Scram(Hash::Sha1);
        assert_eq!((l.source.as_str(), l.mechanism), ("admin", sha1));
        assert_eq!(l.asks_for(), None);
        let l = login("mongodb://127.0.0.1/?authMechanism=MONGODB-X509");
        let l = l.unwrap().unwrap();
        assert_eq!(
            (l.source.as_str(), l.mechanism),
            (EXTERNAL, Mechanism::X509)
        );
        for bad in [
            "mongodb://me@127.0.0.1/",
            "mongodb://me:x@127.0.0.1/?authMechanism=PLAIN",
            "mongodb://127.0.0.1/?authMechanism=SCRAM-SHA-256",
            "mongodb://me:x@127.0.0.1/?authMechanism=MONGODB-X509",
        ] {
            assert!(login(bad).is_err(), "{bad}");
        }
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
