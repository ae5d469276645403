//! Connections to the servers behind the router, kept for the next request.
//!
//! Invariant: a connection that has failed, or whose reply was not read, is never used again.

use crate::{Failure, Outcome, operation_time};
use bson::{Doc, DocBuf, Val, Writer};
use errors::err;
use outgoing::{Converse, MongoTarget, Stream, StreamEnder};
use parking_lot::Mutex;
use service::Control;
use service::in_flight::SMALL_BYTES;
use sharding::protocol;
use std::io::{ErrorKind, Read as _, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Idle connections kept to one server.
const KEEP: usize = 128;
/// A first read of this many bytes takes most replies in one.
const READ_BYTES: usize = 16 << 10;
/// How often a worker that waits for memory checks for a shutdown.
const LOOK: Duration = Duration::from_millis(250);
/// How long a server may take for a word of the login.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a wait for a reply checks whether it is late.
const SLICE: Duration = Duration::from_secs(1);

/// The budget for long replies of this process; empty where it is neither router nor shard.
static BUDGET: OnceLock<Arc<Control>> = OnceLock::new();

/// Has long replies wait for memory.
pub fn account_to(control: &Arc<Control>) {
    let _ = BUDGET.set(control.clone());
}

/// The memory that a reply of this length takes on its way: it is copied once.
pub fn room_for(bytes: usize) -> usize {
    bytes.saturating_mul(2)
}

/// Memory for a long reply, given back with this.
pub struct ReplyRoom(Option<(Arc<Control>, usize)>);

impl ReplyRoom {
    pub fn none() -> ReplyRoom {
        ReplyRoom(None)
    }

    /// Memory that was taken already.
    pub fn taken(control: &Arc<Control>, bytes: usize) -> ReplyRoom {
        ReplyRoom(Some((control.clone(), bytes)))
    }

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// For a worker: waits for memory, within its operation's time. A holder gives some back, or is
    /// given up.
    fn await_for(bytes: usize) -> Outcome<ReplyRoom> {
        let Some(control) = BUDGET.get() else {
            return Ok(ReplyRoom::none());
        };
        if !control.in_flight.try_take(bytes) {
            let _waiting = control.waits();
            while !control.in_flight.wait(bytes, LOOK) && !control.is_stopping() {
                operation_time::check()?;
            }
        }
        Ok(ReplyRoom::taken(control, bytes))
    }
}

impl Drop for ReplyRoom {
    fn drop(&mut self) {
        if let Some((control, bytes)) = self.0.take() {
            control.in_flight.give(bytes);
        }
    }
}

/// How a reply is waited for.
pub struct Wait<'p> {
    /// When the operation's own time is over.
    until: Option<Instant>,
    /// Called every second.
    late: &'p dyn Fn(),
}

impl<'p> Wait<'p> {
    /// `until`: when the operation's own time is over.
    pub fn to(until: Option<Instant>, late: &'p dyn Fn()) -> Wait<'p> {
        Wait { until, late }
    }

    /// How long to wait until the next look.
    fn slice(&self) -> Outcome<Duration> {
        let Some(until) = self.until else {
            return Ok(SLICE);
        };
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(time_is_over()),
            left => Ok(left.min(SLICE)),
        }
    }
}

/// The operation's own time is over, whatever the server does.
pub fn time_is_over() -> Failure {
    Failure::Client(err!(MaxTimeMSExpired, "operation exceeded time limit"))
}

/// One server.
pub struct Upstream {
    pub host: String,
    url: String,
    idle: Mutex<Vec<Connection>>,
    /// Of all connections that are open, and of some that are not any more.
    open: Mutex<Vec<StreamEnder>>,
    /// Grows when the connections of before may not be used any more.
    life: AtomicU64,
}

/// A connection to one server, logged in.
pub struct Connection {
    stream: Stream,
    host: String,
}

impl Upstream {
    pub fn new(host: &str, url: String) -> Upstream {
        Upstream {
            host: host.into(),
            url,
            idle: Mutex::default(),
            open: Mutex::default(),
            life: AtomicU64::new(0),
        }
    }

    /// A connection, and whether it was there already: then the server may have closed it.
    fn connection(&self) -> Outcome<(Connection, bool)> {
        if let Some(connection) = self.idle.lock().pop() {
            return Ok((connection, true));
        }
        Ok((self.open()?, false))
    }

    fn open(&self) -> Outcome<Connection> {
        let unreachable = |e: outgoing::Error| Failure::Unreachable(format!("{}: {e}", self.host));
        let target = MongoTarget::parse(&self.url).map_err(unreachable)?;
        // Zero would be no limit.
        let limit = operation_time::at_most(LOGIN_TIMEOUT).max(Duration::from_millis(1));
        let stream = target.connect_within(limit).map_err(unreachable)?;
        self.note_open(stream.ending());
        let limited = stream.set_timeouts(Some(limit));
        limited.map_err(|e| Failure::Unreachable(format!("{}: {e}", self.host)))?;
        let mut connection = Connection {
            stream,
            host: self.host.clone(),
        };
        if let Some(login) = &target.login {
            let mut hello = Writer::new();
            hello.i32("hello", 1);
            if let Some(user) = login.asks_for() {
                hello.str("saslSupportedMechs", &user);
            }
            let said = connection
                .ask("admin", hello.finish().as_doc())
                .map_err(unreachable)?;
            login
                .perform(&mut connection, said.as_doc())
                .map_err(unreachable)?;
        }
        connection.set_timeout(SLICE);
        Ok(connection)
    }

    fn note_open(&self, ending: StreamEnder) {
        let mut open = self.open.lock();
        // Looked at when there are twice as many as were left.
        if open.len() == open.capacity() {
            open.retain(|other| !other.is_past());
            let many = open.len().max(16);
            open.reserve_exact(many);
        }
        open.push(ending);
    }

    /// Ends all connections: waits for replies on them fail as lost.
    pub fn cut(&self) {
        self.forget();
        let open = std::mem::take(&mut *self.open.lock());
        open.iter().for_each(StreamEnder::end);
    }

    /// Sends a message: the connection on which its reply comes.
    pub fn send(&self, message: &[u8], patience: &Wait<'_>) -> Outcome<Connection> {
        let (mut connection, old) = self.connection()?;
        if old && connection.is_closed() {
            connection = self.open()?;
        }
        connection.write(message, Some(patience))?;
        Ok(connection)
    }

    /// The reply to a sent request.
    pub fn receive(&self, mut connection: Connection, patience: &Wait<'_>) -> Outcome<DocBuf> {
        let reply = connection.read_reply(Some(patience))?;
        let mut idle = self.idle.lock();
        if idle.len() < KEEP {
            idle.push(connection);
        }
        Ok(reply)
    }

    pub fn call(&self, message: &[u8], patience: &Wait<'_>) -> Outcome<DocBuf> {
        let connection = self.send(message, patience)?;
        self.receive(connection, patience)
    }

    /// What the server says it is, within `limit`; on the connection that was kept for it, which is
    /// opened where there is none. `news`: it answers when it is not what it was at that version, at
    /// the latest after that time.
    pub fn hello(
        &self,
        kept: &mut Option<Connection>,
        news: Option<&(DocBuf, Duration)>,
        limit: Duration,
    ) -> Outcome<DocBuf> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => self.open()?,
        };
        let most = news.map_or(Duration::ZERO, |(_, most)| *most);
        connection.set_timeout(limit + most);
        let mut hello = Writer::new();
        hello.i32("hello", 1);
        hello.doc(protocol::FIELD, protocol::spoken().as_doc());
        if let Some((version, most)) = news {
            hello.doc("topologyVersion", version.as_doc());
            hello.i64("maxAwaitTimeMS", most.as_millis() as i64);
        }
        hello.str("$db", "admin");
        let reply = connection.exchange(&message(hello.finish().as_doc(), &[]))?;
        *kept = Some(connection);
        Ok(reply)
    }

    /// Connections that may lead to a server that is no more what it was.
    pub fn forget(&self) {
        self.life.fetch_add(1, Ordering::Relaxed);
        self.idle.lock().clear();
    }

    /// What tells connections that may be used from those that were forgotten.
    pub fn life(&self) -> u64 {
        self.life.load(Ordering::Relaxed)
    }

    /// An idle connection, for an event loop to keep; it does not block.
    pub fn take_idle(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle.lock().pop()?;
            if !connection.is_closed() && connection.stream.set_nonblocking(true).is_ok() {
                return Some(connection);
            }
        }
    }
}

impl Connection {
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
        let quiet = matches!(read, Err(e) if e.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_err() || !quiet
    }

    fn set_timeout(&self, limit: Duration) {
        let _ = self.stream.set_timeouts(Some(limit));
    }

    /// For an exchange that has an end of its own.
    fn exchange(&mut self, message: &[u8]) -> Outcome<DocBuf> {
        self.write(message, None)?;
        self.read_reply(None)
    }

    /// After a wait in vain. Without patience that is the end of it.
    fn wait_on(&self, e: std::io::Error, patience: Option<&Wait<'_>>) -> Outcome<()> {
        let waits = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        match patience.filter(|_| waits) {
            Some(patience) => {
                patience.slice()?;
                (patience.late)();
                Ok(())
            }
            None => Err(self.lost(e)),
        }
    }

    /// Waits no longer than an operation has time, where it says so.
    fn wait_for(&self, patience: Option<&Wait<'_>>) -> Outcome<()> {
        if let Some(patience) = patience.filter(|p| p.until.is_some()) {
            self.set_timeout(patience.slice()?);
        }
        Ok(())
    }

    fn write(&mut self, message: &[u8], patience: Option<&Wait<'_>>) -> Outcome<()> {
        let mut left = message;
        while !left.is_empty() {
            self.wait_for(patience)?;
            match self.stream.write(left) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => left = left.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.wait_on(e, patience)?,
            }
        }
        Ok(())
    }

    fn read_reply(&mut self, patience: Option<&Wait<'_>>) -> Outcome<DocBuf> {
        let reply = self.read_whole(patience)?;
        if patience.is_some_and(|p| p.until.is_some()) {
            self.set_timeout(SLICE);
        }
        Ok(reply)
    }

    fn read_whole(&mut self, patience: Option<&Wait<'_>>) -> Outcome<DocBuf> {
        let mut reply = vec![0; READ_BYTES];
        let mut have = 0;
        let mut room = None;
        loop {
            match self.reply_in(&reply[..have])? {
                Parsed::Reply(reply) => return Ok(reply),
                Parsed::Lacks { bytes } => {
                    if room.is_none() && have + bytes > SMALL_BYTES {
                        room = Some(ReplyRoom::await_for(room_for(have + bytes))?);
                    }
                    if reply.len() < have + bytes {
                        reply.resize(have + bytes, 0);
                    }
                }
            }
            self.wait_for(patience)?;
            match self.stream.read(&mut reply[have..]) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.wait_on(e, patience)?,
            }
        }
    }

    fn closed(&self) -> Failure {
        Failure::Lost(format!("{} has closed the connection", self.host))
    }

    /// The reply that these bytes are, or how many more it lacks at least.
    fn reply_in(&self, bytes: &[u8]) -> Outcome<Parsed> {
        let stranger = || Failure::Lost(format!("{} does not answer as a server does", self.host));
        match wire::frame(bytes) {
            Ok(wire::Frame::Complete { len }) => {
                let whole = bytes.get(..len).unwrap_or_default();
                let Ok((_, wire::Message::Msg(msg))) = wire::parse(whole) else {
                    return Err(stranger());
                };
                let body = Doc::new(msg.body).ok_or_else(stranger)?;
                Ok(Parsed::Reply(body.to_buf()))
            }
            Ok(wire::Frame::Incomplete { need }) => Ok(Parsed::Lacks {
                bytes: need.saturating_sub(bytes.len()).max(1),
            }),
            Err(_) => Err(stranger()),
        }
    }

    /// Sends what it can without waiting: how many bytes that was.
    pub fn write_now(&mut self, bytes: &[u8]) -> Outcome<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(self.lost(e)),
            }
        }
        Ok(sent)
    }

    /// Reads the available bytes of a reply, without waiting. `have`: the bytes read before; `buffer`: a
    /// place to read to; `has_room`: its memory is accounted for.
    pub fn read_now(
        &mut self,
        have: &mut Vec<u8>,
        buffer: &mut [u8],
        has_room: bool,
    ) -> Outcome<Read> {
        loop {
            if !has_room && let Some(bytes) = length_of(have).filter(|n| *n > SMALL_BYTES) {
                return Ok(Read::Wants { bytes });
            }
            let n = match self.stream.read(buffer) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Read::Nothing),
                Err(e) => return Err(self.lost(e)),
            };
            let read = buffer.get(..n).unwrap_or_default();
            if have.is_empty() {
                match self.reply_in(read)? {
                    Parsed::Reply(reply) => return Ok(Read::Reply(reply)),
                    Parsed::Lacks { .. } => have.extend_from_slice(read),
                }
                continue;
            }
            have.extend_from_slice(read);
            if length_of(have).is_some_and(|n| n <= have.len())
                && let Parsed::Reply(reply) = self.reply_in(have)?
            {
                // A long one leaves no long buffer behind.
                *have = Vec::new();
                return Ok(Read::Reply(reply));
            }
        }
    }
}

/// How long the message is that begins so, once that is known.
fn length_of(bytes: &[u8]) -> Option<usize> {
    match wire::frame(bytes) {
        Ok(wire::Frame::Complete { len }) => Some(len),
        Ok(wire::Frame::Incomplete { need }) if bytes.len() >= 4 => Some(need),
        _ => None,
    }
}

/// What came of reading without waiting.
pub enum Read {
    Reply(DocBuf),
    Nothing,
    /// There must be room for a message of this length, before more of it is read.
    Wants {
        bytes: usize,
    },
}

/// What bytes are that came from a server.
enum Parsed {
    Reply(DocBuf),
    Lacks { bytes: usize },
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

impl Converse for Connection {
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
    message_with(body, |_| {}, sequences)
}

/// The same with fields at the command's end.
pub fn message_with(
    body: Doc<'_>,
    fields: impl FnOnce(&mut Writer),
    sequences: &[wire::Sequence<'_>],
) -> Vec<u8> {
    let beside: usize = sequences.iter().map(|s| s.documents.len() + 64).sum();
    let mut out = Vec::with_capacity(body.len() + beside + 320);
    let start = wire::begin_msg(&mut out, 1, 0, 0);
    wire::begin_body(&mut out);
    let mut w = Writer::on(out);
    w.extend(body);
    fields(&mut w);
    out = w.finish_into();
    debug_assert!(
        Doc::new(&out[BODY_AT..]).is_none_or(|d| d.repeated_name().is_none()),
        "a shard refuses a command that says something twice: {body}"
    );
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

/// What servers put to errors.
const LABELS: [&str; 5] = [
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "RetryableWriteError",
    "ResumableChangeStreamError",
    "NoWritesPerformed",
];

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
    let labels = reply.get("errorLabels").and_then(|v| v.as_array());
    for label in labels
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(Val::as_str)
    {
        if let Some(label) = LABELS.iter().find(|known| **known == label) {
            error = error.with_label(label);
        }
    }
    let own = [
        "ok",
        "errorLabels",
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
