//! The null server: it reads a whole message and writes back recorded bytes, and does nothing else. What a server costs
//! beyond it is the server's own work; what a client costs against it is the client's own.
//!
//! Two forms: a thread for each connection, the form that the bars are stated against, and one event loop.
//!
//! Invariant: the only bytes of a reply that change are its request id and the id of the request that it answers.

use crate::fault::{Fault, Result, local};
use bson::{Doc, Val, Value, doc};
use mio::{Events, Interest, Poll, Token};
use own_process::handicap;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `pando lab null`
#[derive(clap::Args)]
pub struct Args {
    /// Port on 127.0.0.1 (0: any free one, printed).
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Recorded replies (`pando lab record`). Without it every command gets {ok: 1}, a find one document of 1 KB.
    #[arg(long)]
    replies: Option<PathBuf>,
    /// Only the replies recorded under this name.
    #[arg(long)]
    operation: Option<String>,
    /// One event loop for all connections instead of a thread for each.
    #[arg(long)]
    event_loop: bool,
    /// What a count says.
    #[arg(long, hide = true, default_value_t = 0)]
    records: u64,
    /// Percent of its CPU time that it spends once more in vain (see `compare`).
    #[arg(long, hide = true, default_value_t = 0.0)]
    handicap: f64,
}

pub fn main(args: Args) -> Result<bool> {
    let replies = match &args.replies {
        Some(path) => Replies::read(path, args.operation.as_deref())?,
        None => Replies::with_records(args.records),
    };
    handicap::start(args.handicap).map_err(Fault::Usage)?;
    let form = if args.event_loop {
        Form::EventLoop
    } else {
        Form::Threads
    };
    let listener = TcpListener::bind(("127.0.0.1", args.port))
        .map_err(local(format!("listening on 127.0.0.1:{}", args.port)))?;
    let addr = listener.local_addr().map_err(local("listening"))?;
    println!("listening on {addr}");
    std::io::stdout()
        .flush()
        .map_err(local("standard output"))?;
    serve(listener, Arc::new(replies), form)?;
    Ok(true)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Threads,
    EventLoop,
}

/// One recorded reply.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The operation it was recorded for.
    pub operation: String,
    /// The command that it answers.
    pub command: String,
    /// The whole reply message.
    pub message: Vec<u8>,
}

/// What the null server says, by command.
#[derive(Clone, Debug)]
pub struct Replies {
    by_command: Vec<(Vec<u8>, Vec<u8>)>,
    otherwise: Vec<u8>,
}

/// The bytes before the first element's name in an OP_MSG: header, flags, section kind, length, type.
const NAME_AT: usize = wire::HEADER_BYTES + 4 + 1 + 4 + 1;
const FILE_VERSION: i32 = 1;

fn message(body: Doc<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let at = wire::begin_msg(&mut out, 0, 0, 0);
    wire::begin_body(&mut out);
    out.extend_from_slice(body.as_bytes());
    wire::end(&mut out, at);
    out
}

impl Replies {
    pub fn new(recorded: &[Recorded]) -> Replies {
        let hello = doc! {
            "helloOk": true, "isWritablePrimary": true, "maxBsonObjectSize": 16_777_216,
            "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000,
            "minWireVersion": 0, "maxWireVersion": 25, "ok": 1.0,
        };
        let mut replies = Replies {
            by_command: vec![(b"hello\0".to_vec(), message(hello.as_doc()))],
            otherwise: message(doc! {"ok": 1.0}.as_doc()),
        };
        for r in recorded {
            let mut name = r.command.clone().into_bytes();
            name.push(0);
            // The operation under measurement is looked for first.
            replies.by_command.insert(0, (name, r.message.clone()));
        }
        replies
    }

    /// Made-up replies: enough for any workload to count right against documents of 1 KB, of a collection of `records`.
    fn with_records(records: u64) -> Replies {
        let n = i64::try_from(records).unwrap_or(i64::MAX);
        let pid = i64::from(std::process::id());
        let filler = Value::binary(0, &[7; 1000]);
        let found = doc! {"_id": 1, "field0": filler};
        let cursor = doc! {"firstBatch": bson::array![found], "id": 0i64, "ns": "lab.null"};
        let recorded = |command: &str, body: bson::DocBuf| Recorded {
            operation: command.into(),
            command: command.into(),
            message: message(body.as_doc()),
        };
        Replies::new(&[
            recorded("insert", doc! {"n": 1, "ok": 1.0}),
            recorded("delete", doc! {"n": 1, "ok": 1.0}),
            recorded("update", doc! {"n": 1, "nModified": 1, "ok": 1.0}),
            recorded("find", doc! {"cursor": cursor, "ok": 1.0}),
            recorded("count", doc! {"n": n, "ok": 1.0}),
            recorded("collStats", doc! {"count": n, "ok": 1.0}),
            recorded("serverStatus", doc! {"pid": pid, "ok": 1.0}),
            recorded(
                "buildInfo",
                doc! {"version": "", "pandoLabNull": true, "ok": 1.0},
            ),
        ])
    }

    /// Reads a file of [`write_recorded`].
    pub fn read(path: &Path, operation: Option<&str>) -> Result<Replies> {
        let recorded = read_recorded(path)?;
        let chosen: Vec<Recorded> = recorded
            .into_iter()
            .filter(|r| operation.is_none_or(|o| r.operation == o))
            .collect();
        if chosen.is_empty() {
            return Err(Fault::Usage(format!(
                "{} has no reply of operation {}",
                path.display(),
                operation.unwrap_or("at all")
            )));
        }
        Ok(Replies::new(&chosen))
    }

    #[inline]
    fn choose(&self, request: &[u8]) -> &[u8] {
        let name = request.get(NAME_AT..).unwrap_or_default();
        self.by_command
            .iter()
            .find(|(command, _)| name.starts_with(command))
            .map_or(&self.otherwise, |(_, reply)| reply)
    }

    /// Appends the reply to `request`; nothing when none is wanted.
    #[inline]
    fn answer(&self, request: &[u8], out: &mut Vec<u8>) {
        if wire::Msg::peek_flags(request) & wire::MORE_TO_COME != 0 {
            return;
        }
        let start = out.len();
        out.extend_from_slice(self.choose(request));
        // requestID of ours is left as recorded; responseTo is the request's id.
        if let (Some(to), Some(id)) = (out.get_mut(start + 8..start + 12), request.get(4..8)) {
            to.copy_from_slice(id);
        }
    }
}

/// Writes recorded replies as one BSON document.
pub fn write_recorded(path: &Path, recorded: &[Recorded]) -> Result<()> {
    let mut list = bson::Writer::new_array();
    for r in recorded {
        list.push_value(doc! {
            "operation": r.operation.as_str(), "command": r.command.as_str(),
            "message": Value::binary(0, &r.message),
        });
    }
    let file = doc! {"pandoLabReplies": FILE_VERSION, "replies": list.finish_array()};
    std::fs::write(path, file.as_bytes()).map_err(local(path.display()))
}

pub fn read_recorded(path: &Path) -> Result<Vec<Recorded>> {
    let bytes = std::fs::read(path).map_err(local(path.display()))?;
    let bad = || Fault::Local(format!("{} is not a file of replies", path.display()));
    let file = bson::validate(&bytes).map_err(|_| bad())?;
    if file.get("pandoLabReplies").and_then(Val::as_i32) != Some(FILE_VERSION) {
        return Err(bad());
    }
    let list = file
        .get("replies")
        .and_then(Val::as_array)
        .ok_or_else(bad)?;
    list.values()
        .map(|v| {
            let d = v.as_doc()?;
            Some(Recorded {
                operation: d.get("operation")?.as_str()?.to_string(),
                command: d.get("command")?.as_str()?.to_string(),
                message: d.get("message")?.as_binary()?.1.to_vec(),
            })
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(bad)
}

/// Serves until the process ends.
pub fn serve(listener: TcpListener, replies: Arc<Replies>, form: Form) -> Result<()> {
    match form {
        Form::Threads => serve_threads(&listener, &replies),
        Form::EventLoop => serve_loop(listener, &replies),
    }
}

/// A null server inside this process, on any free port.
pub fn start_in_process(replies: Replies, form: Form) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(local("listening"))?;
    let addr = listener.local_addr().map_err(local("listening"))?;
    std::thread::spawn(move || serve(listener, Arc::new(replies), form));
    Ok(addr)
}

fn serve_threads(listener: &TcpListener, replies: &Arc<Replies>) -> Result<()> {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let replies = Arc::clone(replies);
        std::thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || {
                let _ = converse(stream, &replies);
            })
            .map_err(local("starting a thread"))?;
    }
    Ok(())
}

/// Input of one connection: bytes read and not yet answered.
struct Inbox {
    bytes: Vec<u8>,
    filled: usize,
}

impl Inbox {
    fn new() -> Inbox {
        Inbox {
            bytes: vec![0; 64 * 1024],
            filled: 0,
        }
    }

    fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Answers every whole message, keeps the rest. `false` when the bytes are no protocol.
    fn answer_all(&mut self, replies: &Replies, out: &mut Vec<u8>) -> bool {
        let mut at = 0;
        let more = loop {
            match wire::frame(&self.bytes[at..self.filled]) {
                Ok(wire::Frame::Complete { len }) => {
                    replies.answer(&self.bytes[at..at + len], out);
                    at += len;
                }
                Ok(wire::Frame::Incomplete { need }) => break need,
                Err(_) => return false,
            }
        };
        self.bytes.copy_within(at..self.filled, 0);
        self.filled -= at;
        // Room for the message under way, and always for a next read.
        let wanted = more.max(self.filled + 1);
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        true
    }
}

fn converse(mut stream: TcpStream, replies: &Replies) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut inbox, mut out) = (Inbox::new(), Vec::new());
    loop {
        let n = stream.read(inbox.space())?;
        if n == 0 {
            return Ok(());
        }
        inbox.filled += n;
        out.clear();
        if !inbox.answer_all(replies, &mut out) {
            return Ok(());
        }
        if !out.is_empty() {
            stream.write_all(&out)?;
        }
    }
}

struct Client {
    stream: mio::net::TcpStream,
    inbox: Inbox,
    out: Vec<u8>,
    sent: usize,
}

impl Client {
    /// Reads, answers and writes as far as the socket goes. `false` at its end.
    fn progress(&mut self, replies: &Replies) -> std::io::Result<bool> {
        loop {
            if !self.flush()? {
                return Ok(true);
            }
            let space = self.inbox.space();
            let asked = space.len();
            match self.stream.read(space) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.inbox.filled += n;
                    if !self.inbox.answer_all(replies, &mut self.out) {
                        return Ok(false);
                    }
                    // Fewer bytes than asked for: the socket is empty, and new ones raise a new event.
                    if n < asked {
                        self.flush()?;
                        return Ok(true);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<bool> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}

fn serve_loop(listener: TcpListener, replies: &Replies) -> Result<()> {
    const LISTENER: Token = Token(usize::MAX);
    let fail = || local("the null server's event loop");
    listener.set_nonblocking(true).map_err(fail())?;
    let mut listener = mio::net::TcpListener::from_std(listener);
    let mut poll = Poll::new().map_err(fail())?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)
        .map_err(fail())?;
    let mut events = Events::with_capacity(1024);
    let mut clients: HashMap<usize, Client> = HashMap::new();
    let mut next = 0;
    loop {
        match poll.poll(&mut events, None) {
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(fail()(e)),
            _ => {}
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.set_nodelay(true);
                    let both = Interest::READABLE | Interest::WRITABLE;
                    poll.registry()
                        .register(&mut stream, Token(next), both)
                        .map_err(fail())?;
                    let client = Client {
                        stream,
                        inbox: Inbox::new(),
                        out: Vec::new(),
                        sent: 0,
                    };
                    clients.insert(next, client);
                    next += 1;
                }
            } else if let Some(client) = clients.get_mut(&event.token().0)
                && !client.progress(replies).unwrap_or(false)
            {
                clients.remove(&event.token().0);
            }
        }
    }
}
