//! Connections to the servers behind the router, kept for the next request.
//!
//! Invariant: a connection that has failed, or whose reply was not read, is never used again.

use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Writer};
use outgoing::{Converse, MongoTarget, Stream};
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::time::Duration;

/// Idle connections kept to one server.
const KEEP: usize = 128;
/// A first read of this many bytes takes most replies in one.
const READ_BYTES: usize = 16 << 10;
/// How long a server may keep a router waiting that has asked it who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// One server.
pub struct Upstream {
    pub host: String,
    url: String,
    idle: Mutex<Vec<Line>>,
}

/// A connection to one server, logged in.
pub struct Line {
    stream: Stream,
    host: String,
}

impl Upstream {
    pub fn new(host: &str, url: String) -> Upstream {
        Upstream {
            host: host.into(),
            url,
            idle: Mutex::default(),
        }
    }

    /// A connection, and whether it was there already: then the server may have closed it.
    fn line(&self) -> Outcome<(Line, bool)> {
        if let Some(line) = self.idle.lock().pop() {
            return Ok((line, true));
        }
        Ok((self.open()?, false))
    }

    fn open(&self) -> Outcome<Line> {
        let unreachable = |e: outgoing::Error| Failure::Unreachable(format!("{}: {e}", self.host));
        let target = MongoTarget::parse(&self.url).map_err(unreachable)?;
        let stream = target.connect().map_err(unreachable)?;
        stream.wait_without_end().map_err(unreachable)?;
        let mut line = Line {
            stream,
            host: self.host.clone(),
        };
        if let Some(login) = &target.login {
            let mut hello = Writer::new();
            hello.i32("hello", 1);
            if let Some(user) = login.asks_for() {
                hello.str("saslSupportedMechs", &user);
            }
            let said = line
                .ask("admin", hello.finish().as_doc())
                .map_err(unreachable)?;
            login
                .perform(&mut line, said.as_doc())
                .map_err(unreachable)?;
        }
        Ok(line)
    }

    /// Sends a message: the connection on which its reply comes.
    pub(crate) fn send(&self, message: &[u8]) -> Outcome<Line> {
        let (mut line, old) = self.line()?;
        if old && line.is_closed() {
            line = self.open()?;
        }
        line.stream.write_all(message).map_err(|e| line.lost(e))?;
        Ok(line)
    }

    /// The reply to what was sent.
    pub(crate) fn receive(&self, mut line: Line) -> Outcome<DocBuf> {
        let reply = line.read_reply()?;
        let mut idle = self.idle.lock();
        if idle.len() < KEEP {
            idle.push(line);
        }
        Ok(reply)
    }

    pub(crate) fn call(&self, message: &[u8]) -> Outcome<DocBuf> {
        let line = self.send(message)?;
        self.receive(line)
    }

    /// What the server says it is, within a moment; on the connection that was kept for it, which is
    /// opened where there is none.
    pub(crate) fn hello(&self, kept: &mut Option<Line>) -> Outcome<DocBuf> {
        let mut line = match kept.take() {
            Some(line) => line,
            None => self.open()?,
        };
        line.set_timeout(Some(HELLO_TIMEOUT));
        let hello = bson::doc! {"hello": 1, "$db": "admin"};
        let reply = line.exchange(&message(hello.as_doc(), &[]))?;
        *kept = Some(line);
        Ok(reply)
    }

    /// Connections that may lead to a server that is no more what it was.
    pub fn forget(&self) {
        self.idle.lock().clear();
    }
}

impl Line {
    fn lost(&self, e: std::io::Error) -> Failure {
        Failure::Lost(format!("{}: {e}", self.host))
    }

    /// Whether the server has closed it while it was idle.
    fn is_closed(&mut self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let mut byte = [0];
        let read = self.stream.read(&mut byte);
        let quiet = matches!(read, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_err() || !quiet
    }

    fn set_timeout(&self, limit: Option<Duration>) {
        let _ = self.stream.set_read_timeout(limit);
    }

    fn exchange(&mut self, message: &[u8]) -> Outcome<DocBuf> {
        self.stream.write_all(message).map_err(|e| self.lost(e))?;
        self.read_reply()
    }

    fn read_reply(&mut self) -> Outcome<DocBuf> {
        let stranger =
            |host: &str| Failure::Lost(format!("{host} does not answer as a server does"));
        let mut reply = vec![0; READ_BYTES];
        let mut have = 0;
        loop {
            match wire::frame(&reply[..have]) {
                Ok(wire::Frame::Complete { len }) => {
                    let whole = &reply[..len];
                    let Ok((_, wire::Message::Msg(msg))) = wire::parse(whole) else {
                        return Err(stranger(&self.host));
                    };
                    let body = Doc::new(msg.body).ok_or_else(|| stranger(&self.host))?;
                    return Ok(body.to_buf());
                }
                Ok(wire::Frame::Incomplete { need }) => {
                    if reply.len() < need {
                        reply.resize(need, 0);
                    }
                    match self.stream.read(&mut reply[have..]) {
                        Ok(0) => {
                            return Err(Failure::Lost(format!(
                                "{} has closed the connection",
                                self.host
                            )));
                        }
                        Ok(n) => have += n,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(self.lost(e)),
                    }
                }
                Err(_) => return Err(stranger(&self.host)),
            }
        }
    }
}

impl Converse for Line {
    type Failure = outgoing::Error;

    fn ask(&mut self, db: &str, command: Doc<'_>) -> Result<DocBuf, outgoing::Error> {
        let mut body = Writer::new();
        body.extend(command).str("$db", db);
        let reply = self.exchange(&message(body.finish().as_doc(), &[]));
        reply.map_err(|e| outgoing::Error::Failed(e.to_string()))
    }
}

/// Where the body of a message begins: behind header, flags and the kind of its section.
pub const BODY_AT: usize = 16 + 4 + 1;

/// A command, which says its `$db`, with its sequences.
pub fn message(body: Doc<'_>, sequences: &[wire::Sequence<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 64);
    let start = wire::begin_msg(&mut out, 1, 0, 0);
    wire::begin_body(&mut out);
    out.extend_from_slice(body.as_bytes());
    for sequence in sequences {
        let at = wire::begin_sequence(&mut out, sequence.name);
        out.extend_from_slice(sequence.documents);
        wire::end_sequence(&mut out, at);
    }
    wire::end(&mut out, start);
    out
}

/// The same command with these fields at its end.
pub fn with_fields(body: Doc<'_>, fields: Doc<'_>) -> DocBuf {
    let mut bytes = Vec::with_capacity(body.len() + fields.len());
    bytes.extend_from_slice(body.as_bytes());
    service::append_fields(&mut bytes, 0, fields);
    DocBuf::from_vec(bytes).unwrap_or_default()
}

/// The error that a reply tells, if it does.
pub fn error_of(reply: Doc<'_>) -> Option<errors::Error> {
    if reply.get("ok").is_some_and(|v| v.truthy()) {
        return None;
    }
    let code = reply.get("code").and_then(|v| v.to_i64_exact());
    let code = code.and_then(|n| i32::try_from(n).ok()).unwrap_or(8);
    let says = reply.get("errmsg").and_then(|v| v.as_str());
    let mut error = errors::Error::coded(code, says.unwrap_or("a shard failed without a reason"));
    let mut extra = Writer::new();
    let own = [
        "ok",
        "errmsg",
        "code",
        "codeName",
        "$clusterTime",
        "operationTime",
    ];
    for e in reply.iter().filter(|e| !own.contains(&e.name)) {
        extra.val(e.name, e.val);
    }
    if !extra.is_empty() {
        error = error.with_extra(extra.finish().into_vec());
    }
    Some(error)
}
