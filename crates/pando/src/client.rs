//! A client for the tools that ask a running server one thing: `pando schema`, `pando backup` and
//! `pando oplog`, and those that ask many: `pando migrate`. Invariant: one command a connection, waited for as long as it takes where nothing else is
//! said.

use bson::{Doc, DocBuf, Writer};
use outgoing::{Converse, Error, MongoTarget, Stream};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// A server by its connection string, with credentials and TLS. Of several hosts it is the one that
/// takes writes, or else the first that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// At least one.
    targets: Vec<MongoTarget>,
}

impl ServerAddress {
    pub fn parse(uri: &str) -> Result<ServerAddress, String> {
        let (mut targets, mut wrong) = (Vec::new(), None);
        for one in each_host(uri) {
            match MongoTarget::parse(&one) {
                Ok(target) => targets.push(target),
                Err(e) => wrong = wrong.or(Some(e.to_string())),
            }
        }
        match (targets.is_empty(), wrong) {
            (true, Some(why)) => Err(why),
            (true, None) => Err("a connection string names a host".into()),
            // Of members of a set some may be gone from the name service.
            (false, _) => Ok(ServerAddress { targets }),
        }
    }

    /// `host:port`, or the path of a Unix socket; several with commas between.
    pub fn host(&self) -> String {
        let each = self.targets.iter().map(|t| t.url.host.to_string());
        each.collect::<Vec<_>>().join(",")
    }

    /// The database that the connection string names.
    pub fn database(&self) -> Option<&str> {
        self.targets.first()?.url.database.as_deref()
    }

    /// Runs one command and gives its reply, an error reply too.
    pub fn ask(&self, db: &str, command: Doc<'_>) -> Result<DocBuf, String> {
        self.try_ask(db, command).map_err(|e| e.to_string())
    }

    /// The same of a server that may not answer: each of its words is waited for that long.
    pub fn ask_within(
        &self,
        limit: Duration,
        db: &str,
        command: Doc<'_>,
    ) -> Result<DocBuf, String> {
        let asked = self.converse(Some(limit));
        let reply = asked.and_then(|mut c| c.ask(db, command));
        reply.map_err(|e| e.to_string())
    }

    /// A connection that is kept, logged in.
    pub fn open(&self) -> Result<Conversation, String> {
        self.converse(None).map_err(|e| e.to_string())
    }

    fn try_ask(&self, db: &str, command: Doc<'_>) -> Result<DocBuf, Error> {
        self.converse(None)?.ask(db, command)
    }

    /// `limit`: how long each word of the server is waited for.
    fn converse(&self, limit: Option<Duration>) -> Result<Conversation, Error> {
        if let [only] = &*self.targets {
            return converse_with(only, limit);
        }
        let (mut reader, mut failure) = (None, None);
        for target in &self.targets {
            match converse_with(target, limit).and_then(|mut c| Ok((c.takes_writes()?, c))) {
                Ok((true, c)) => return Ok(c),
                Ok((false, c)) => reader = reader.or(Some(c)),
                Err(e) => failure = Some(e),
            }
        }
        let nothing = || Error::Failed("no host is named".into());
        reader.ok_or_else(|| failure.unwrap_or_else(nothing))
    }
}

/// The connection string with each one of its hosts.
fn each_host(uri: &str) -> Vec<String> {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let end = uri[start..]
        .find(['/', '?'])
        .map_or(uri.len(), |n| start + n);
    let (before, rest) = (&uri[..start], &uri[end..]);
    let (login, hosts) = match uri[start..end].rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), &uri[start..end]),
    };
    let each = hosts.split(',');
    each.map(|host| format!("{before}{login}{host}{rest}"))
        .collect()
}

fn converse_with(target: &MongoTarget, limit: Option<Duration>) -> Result<Conversation, Error> {
    let host = target.url.host.to_string();
    let stream = target.connect()?;
    stream
        .set_timeouts(limit)
        .map_err(|e| Error::Failed(format!("{host}: {e}")))?;
    let mut c = Conversation { stream, host };
    if let Some(login) = &target.login {
        let mut hello = Writer::new();
        hello.i32("hello", 1);
        if let Some(user) = login.asks_for() {
            hello.str("saslSupportedMechs", &user);
        }
        let hello = c.ask("admin", hello.finish().as_doc())?;
        login.perform(&mut c, hello.as_doc())?;
    }
    Ok(c)
}

/// A connection, logged in.
pub struct Conversation {
    stream: Stream,
    host: String,
}

/// Documents beside a command's body, where they have more room than in it.
pub struct DocumentSequence<'d> {
    /// The field that they stand for.
    pub field: &'d str,
    /// One after the other.
    pub bytes: &'d [u8],
}

impl Conversation {
    fn takes_writes(&mut self) -> Result<bool, Error> {
        // The name that servers before 5.0 know too.
        let hello = self.ask("admin", bson::doc! { "isMaster": 1 }.as_doc())?;
        Ok(hello.get("ismaster").is_some_and(|v| v.truthy()))
    }

    /// Runs one command and gives its reply, an error reply too.
    pub fn run(&mut self, db: &str, command: Doc<'_>) -> Result<DocBuf, String> {
        self.ask(db, command).map_err(|e| e.to_string())
    }

    /// As [`Conversation::run`]; the reply stays where it was received, in a buffer that is used again.
    pub fn run_into<'b>(
        &mut self,
        db: &str,
        command: Doc<'_>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Doc<'b>, String> {
        self.exchange(db, command, None, buffer)
            .map_err(|e| e.to_string())
    }

    /// Runs a command with documents beside its body; at most 48 MB in all.
    pub fn run_with(
        &mut self,
        db: &str,
        command: Doc<'_>,
        documents: &DocumentSequence<'_>,
    ) -> Result<DocBuf, String> {
        let mut buffer = Vec::new();
        let reply = self.exchange(db, command, Some(documents), &mut buffer);
        reply.map(Doc::to_buf).map_err(|e| e.to_string())
    }

    fn exchange<'b>(
        &mut self,
        db: &str,
        command: Doc<'_>,
        documents: Option<&DocumentSequence<'_>>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Doc<'b>, Error> {
        let failed = |e: std::io::Error| Error::Failed(format!("{}: {e}", self.host));
        let stranger = || Error::Failed(format!("{} does not answer as a server does", self.host));
        let mut body = Writer::new();
        for e in command {
            body.val(e.name, e.val);
        }
        body.str("$db", db);
        let mut message = Vec::new();
        let start = wire::begin_msg(&mut message, 1, 0, 0);
        wire::begin_body(&mut message);
        message.extend_from_slice(body.finish().as_bytes());
        if let Some(documents) = documents {
            let sequence = wire::begin_sequence(&mut message, documents.field);
            message.extend_from_slice(documents.bytes);
            wire::end_sequence(&mut message, sequence);
        }
        wire::end(&mut message, start);
        self.stream.write_all(&message).map_err(failed)?;
        let mut received = 0;
        let len = loop {
            match wire::frame(&buffer[..received]) {
                Ok(wire::Frame::Complete { len }) => break len,
                Ok(wire::Frame::Incomplete { need }) => {
                    if buffer.len() < need {
                        buffer.resize(need, 0);
                    }
                    let missing = &mut buffer[received..need];
                    self.stream
                        .read_exact(missing)
                        .map_err(|e| match e.kind() {
                            ErrorKind::UnexpectedEof => {
                                Error::Failed(format!("{} has closed the connection", self.host))
                            }
                            _ => failed(e),
                        })?;
                    received = need;
                }
                Err(_) => return Err(stranger()),
            }
        };
        let whole = buffer.get(..len).ok_or_else(stranger)?;
        match wire::parse(whole) {
            Ok((_, wire::Message::Msg(msg))) => Doc::new(msg.body).ok_or_else(stranger),
            _ => Err(stranger()),
        }
    }
}

impl Converse for Conversation {
    type Failure = Error;

    fn ask(&mut self, db: &str, command: Doc<'_>) -> Result<DocBuf, Error> {
        let mut buffer = Vec::new();
        Ok(self.exchange(db, command, None, &mut buffer)?.to_buf())
    }
}

/// What a reply without `ok` says.
pub fn refusal(reply: Doc<'_>) -> Option<String> {
    if reply.get("ok").is_some_and(|v| v.truthy()) {
        return None;
    }
    let text = reply.get("errmsg").and_then(|v| v.as_str());
    Some(text.unwrap_or("the server refused without a reason").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (uri, host, database) in [
            ("mongodb://127.0.0.1:1/", "127.0.0.1:1", None),
            ("mongodb://127.0.0.1", "127.0.0.1:27017", None),
            (
                "mongodb://u:p@127.0.0.1:2/x?replicaSet=rs0",
                "127.0.0.1:2",
                Some("x"),
            ),
            ("mongodb://[::1]", "[::1]:27017", None),
            ("mongodb://%2Ftmp%2Fm.sock", "/tmp/m.sock", None),
            (
                "mongodb://u:p@127.0.0.1:1,127.0.0.1:2/x?replicaSet=rs0",
                "127.0.0.1:1,127.0.0.1:2",
                Some("x"),
            ),
        ] {
            let is = ServerAddress::parse(uri).unwrap();
            assert_eq!((&*is.host(), is.database()), (host, database), "{uri}");
        }
        assert!(
            ServerAddress::parse("http://a").is_err()
                && ServerAddress::parse("mongodb:///x").is_err()
        );
    }
}
