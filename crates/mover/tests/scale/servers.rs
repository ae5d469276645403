//! Servers on loopback that say what members of a cluster say, and count what they are asked.
//!
//! Invariant: a message is counted before its reply is sent, so counts are whole when a caller goes on.

use bson::{Doc, DocBuf, Val, doc};
use cluster_view::ConnectionStrings;
use cluster_view::upstream::{BODY_AT, message};
use parking_lot::Mutex;
use sharding::protocol;
use std::collections::BTreeMap;
use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Threads of connections only copy bytes.
const STACK_BYTES: usize = 256 << 10;

/// How often something was asked: messages, bytes of both directions, documents of cursors in the replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub messages: u64,
    pub bytes: u64,
    pub documents: u64,
}

impl std::ops::AddAssign for Requests {
    fn add_assign(&mut self, other: Requests) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.documents += other.documents;
    }
}

/// What a member says to commands other than `hello`.
pub trait Role: Send + Sync {
    fn answer(&self, name: &str, command: Doc<'_>) -> DocBuf;
}

/// One member.
pub struct Server {
    pub host: String,
    role: Arc<dyn Role>,
    /// What it says of itself; the counter grows with each change.
    primary: AtomicBool,
    changes: AtomicI64,
    counts: Mutex<BTreeMap<String, Requests>>,
}

impl Server {
    /// A primary that serves until the process ends.
    pub fn start(role: Arc<dyn Role>) -> Arc<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        let server = Arc::new(Server {
            host,
            role,
            primary: AtomicBool::new(true),
            changes: AtomicI64::new(0),
            counts: Mutex::default(),
        });
        let serving = server.clone();
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                // A connection ends with its client.
                spawn(move || drop(server.serve(stream)));
            }
        });
        server
    }

    pub fn set_primary(&self, primary: bool) {
        self.primary.store(primary, SeqCst);
        self.changes.fetch_add(1, SeqCst);
    }

    /// Whether it was asked anything since the last time.
    pub fn was_asked(&self) -> bool {
        !self.counts.lock().is_empty()
    }

    /// What it was asked since the last time, by the commands' names.
    pub fn take_counts(&self) -> BTreeMap<String, Requests> {
        std::mem::take(&mut *self.counts.lock())
    }

    fn serve(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let mut head = [0; 4];
            stream.read_exact(&mut head)?;
            let mut request = vec![0; (i32::from_le_bytes(head) as usize).max(BODY_AT)];
            request[..4].copy_from_slice(&head);
            stream.read_exact(&mut request[4..])?;
            let command = Doc::new(&request[BODY_AT..]).expect("a command");
            let name = command.first().expect("a name").name;
            let reply = match name {
                "hello" => self.hello(command),
                name if !self.answers(name, command) => error(10107, "not primary"),
                name => self.role.answer(name, command),
            };
            let bytes = message(reply.as_doc(), &[]);
            *self.counts.lock().entry(name.into()).or_default() += Requests {
                messages: 1,
                bytes: (request.len() + bytes.len()) as u64,
                documents: documents_in(&reply),
            };
            stream.write_all(&bytes)?;
        }
    }

    /// A primary answers all; a secondary, reads that are for any member, and their cursors.
    fn answers(&self, name: &str, command: Doc<'_>) -> bool {
        let is_for_any = name == "getMore" || command.contains("$readPreference");
        is_for_any || self.primary.load(SeqCst)
    }

    /// At once, or when it is no more what the client knows.
    fn hello(&self, asked: Doc<'_>) -> DocBuf {
        let known = asked.get("topologyVersion").and_then(Val::as_doc);
        let known = known.and_then(|v| v.get("counter")?.to_i64_exact());
        let most = asked.get("maxAwaitTimeMS").and_then(Val::to_i64_exact);
        let until = Instant::now() + Duration::from_millis(most.unwrap_or(0).unsigned_abs());
        while known == Some(self.changes.load(SeqCst)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let primary = self.primary.load(SeqCst);
        let mut w = bson::Writer::new();
        w.bool("isWritablePrimary", primary)
            .bool("secondary", !primary);
        w.doc(protocol::FIELD, protocol::spoken().as_doc());
        let version = doc! {"counter": self.changes.load(SeqCst)};
        w.doc("topologyVersion", version.as_doc()).f64("ok", 1.0);
        w.finish()
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(run).expect("a thread");
}

fn documents_in(reply: &DocBuf) -> u64 {
    cluster_view::reply::batch_of(reply).count() as u64
}

pub fn error(code: i32, why: &str) -> DocBuf {
    doc! {"ok": 0.0, "code": code, "errmsg": why}
}

/// The connection strings of members that want no login.
pub fn access() -> ConnectionStrings {
    Arc::new(|host: &str| format!("mongodb://{host}/?directConnection=true"))
}

/// The sum of what members were asked since the last time, by the commands' names.
pub fn take_all(servers: &[Arc<Server>]) -> BTreeMap<String, Requests> {
    let mut sum = BTreeMap::new();
    for (name, asked) in servers.iter().flat_map(|s| s.take_counts()) {
        *sum.entry(name).or_insert_with(Requests::default) += asked;
    }
    sum
}

/// All of these but `hello`, by which clients look at members whenever they like.
pub fn total(counts: &BTreeMap<String, Requests>) -> Requests {
    let mut sum = Requests::default();
    for (_, asked) in counts.iter().filter(|(name, _)| *name != "hello") {
        sum += *asked;
    }
    sum
}
