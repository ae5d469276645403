//! A client for the tools that ask a running server one thing: `pando schema`, `pando backup` and
//! `pando oplog`. Invariant: one command a connection, waited for as long as it takes where nothing else is
//! said.

use bson::{Doc, DocBuf, Writer};
use outgoing::{Converse, Error, MongoTarget, Stream};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// A server by its connection string, which says who asks and whether it is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    target: MongoTarget,
}

impl ServerAddress {
    pub fn parse(uri: &str) -> Result<ServerAddress, String> {
        let target = MongoTarget::parse(uri).map_err(|e| e.to_string())?;
        Ok(ServerAddress { target })
    }

    /// `host:port`, or the path of a Unix socket.
    pub fn host(&self) -> String {
        self.target.url.host.to_string()
    }

    /// The database that the connection string names.
    pub fn database(&self) -> Option<&str> {
        self.target.url.database.as_deref()
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
        let stream = self.target.connect()?;
        stream
            .set_timeouts(limit)
            .map_err(|e| Error::Failed(format!("{}: {e}", self.host())))?;
        let mut c = Conversation {
            stream,
            host: self.host(),
        };
        if let Some(login) = &self.target.login {
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
}

/// A connection, logged in.
pub struct Conversation {
    stream: Stream,
    host: String,
}

impl Conversation {
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
        self.exchange(db, command, buffer)
            .map_err(|e| e.to_string())
    }

    fn exchange<'b>(
        &mut self,
        db: &str,
        command: Doc<'_>,
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
        Ok(self.exchange(db, command, &mut buffer)?.to_buf())
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
