//! Connections to the other members of a replica set: for each a thread that sends what the member
//! has for it, in batches, and waits for the answer to one before it sends the next.
//!
//! Invariant: what a peer does not take is thrown away past a bound. Consensus sends it again.

use crate::client::{Conversation, ServerAddress, refusal};
use bson::{Doc, DocBuf, ObjectId, Writer};
use parking_lot::{Condvar, Mutex};
use replication::driver::{Known, SetName, Told};
use replication::initial_sync::{AboutPart, Offer, Part, SyncSource};
use replication::{Config, Transport, message};
use service::config::{ClusterAuth, ServerConfig, TlsMode, TlsOptions};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What waits for a peer at the most, in bytes.
const QUEUE_BYTES: usize = 64 << 20;
/// What one command carries at the most, in bytes.
const PART_BYTES: usize = 8 << 20;
/// After a failure, before the next try.
const PAUSE: Duration = Duration::from_millis(200);
/// A peer that does not answer is complained about so often.
const COMPLAIN: Duration = Duration::from_secs(30);

pub struct Peers {
    security: Arc<Access>,
    lines: Mutex<HashMap<u64, Arc<Line>>>,
    set: Arc<Mutex<(SetName, Option<DocBuf>)>>,
    board: Arc<Mutex<Board>>,
}

/// What the others are told of all members, with a number that grows.
type Board = (u64, Vec<Known>);

/// How this member proves who it is to others.
struct Access {
    key: Option<String>,
    tls: Option<String>,
    by_certificate: bool,
}

impl Access {
    fn of(config: &ServerConfig) -> Access {
        let encrypts = matches!(config.tls.mode, TlsMode::Require | TlsMode::Prefer);
        let tls = encrypts.then(|| tls_options(&config.tls));
        let security = &config.security;
        let shows = matches!(
            security.cluster_auth,
            ClusterAuth::SendX509 | ClusterAuth::X509
        );
        Access {
            key: security.keys.first().cloned(),
            by_certificate: tls.is_some()
                && (shows || security.keys.is_empty() && security.authorization),
            tls,
        }
    }

    fn url(&self, host: &str) -> String {
        let mut options: Vec<String> = self.tls.iter().cloned().collect();
        let mut user = String::new();
        if self.by_certificate {
            options.push("authMechanism=MONGODB-X509".into());
        } else if let Some(key) = &self.key {
            user = user_of(key);
            options.push(BY_KEY.into());
        }
        format!("mongodb://{user}{host}/?{}", options.join("&"))
    }
}

const BY_KEY: &str = "authSource=local&authMechanism=SCRAM-SHA-256";

fn user_of(key: &str) -> String {
    // A slash would end the part of the connection string that says who and where.
    format!("__system:{}@", escape(key).replace('/', "%2F"))
}

/// The connection string of a host, for a member with that key.
pub fn by_key(key: &str, host: &str) -> String {
    format!("mongodb://{}{host}/?{BY_KEY}", user_of(key))
}

/// What a connection string says of certificates: the one of this server is shown, or the one that is
/// for members.
fn tls_options(tls: &TlsOptions) -> String {
    let path = |path: &Path| escape(&path.to_string_lossy());
    let (file, password) = match &tls.cluster_file {
        Some(file) => (file, &tls.cluster_password),
        None => (&tls.certificate_key_file, &tls.certificate_key_password),
    };
    let mut options = format!("tls=true&tlsCertificateKeyFile={}", path(file));
    if let Some(password) = password {
        options += &format!("&tlsCertificateKeyFilePassword={}", escape(&password.0));
    }
    match &tls.ca_file {
        Some(ca) if !tls.allow_invalid_certificates => {
            options += &format!("&tlsCAFile={}", path(ca))
        }
        _ => options += "&tlsAllowInvalidCertificates=true",
    }
    if tls.allow_invalid_hostnames {
        options += "&tlsAllowInvalidHostnames=true";
    }
    options
}

/// How a router, or who balances, proves who it is: the connection string of a host.
pub fn access(config: &ServerConfig) -> router::ConnectionStrings {
    let access = Access::of(config);
    Arc::new(move |host| access.url(host))
}

/// Percent-encoded, for a connection string.
fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~/".contains(&b);
    text.bytes()
        .map(|b| {
            if plain(b) {
                (b as char).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

#[derive(Default)]
struct Queue {
    batches: Vec<u8>,
    closed: bool,
}

struct Line {
    host: String,
    queue: Mutex<Queue>,
    more: Condvar,
    /// What the peer has said of itself last.
    told: Mutex<Option<Told>>,
    /// The configuration by which it does not know this member.
    without: Mutex<Option<DocBuf>>,
}

impl Peers {
    pub fn new(config: &ServerConfig) -> Peers {
        Peers {
            security: Arc::new(Access::of(config)),
            lines: Mutex::default(),
            set: Arc::default(),
            board: Arc::default(),
        }
    }
}

impl Transport for Peers {
    fn peers(&self, set: &SetName, config: &Config, peers: &[(u64, String)]) {
        *self.set.lock() = (set.clone(), Some(config.to_doc()));
        let mut lines = self.lines.lock();
        lines.retain(|id, line| {
            let stays = peers
                .iter()
                .any(|(peer, host)| peer == id && *host == line.host);
            if !stays {
                line.queue.lock().closed = true;
                line.more.notify_all();
            }
            stays
        });
        for (id, host) in peers {
            if lines.contains_key(id) {
                continue;
            }
            let line = Arc::new(Line {
                host: host.clone(),
                queue: Mutex::default(),
                more: Condvar::new(),
                told: Mutex::default(),
                without: Mutex::default(),
            });
            let sender = Sender {
                to: *id,
                line: line.clone(),
                access: self.security.clone(),
                set: self.set.clone(),
                board: self.board.clone(),
                spread: 0,
                complained: None,
            };
            let spawned = std::thread::Builder::new()
                .name(format!("peer-{id}"))
                .spawn(move || sender.run());
            if spawned.is_ok() {
                lines.insert(*id, line);
            }
        }
    }

    fn source(&self, host: &str, member: u64) -> errors::Fallible<Box<dyn SyncSource>> {
        let unreachable = |why: String| errors::err!(HostUnreachable, "{why}");
        let address = ServerAddress::parse(&self.security.url(host)).map_err(unreachable)?;
        let set = self.set.lock().0.clone();
        Ok(Box::new(FilesOf {
            connection: address.open().map_err(unreachable)?,
            set,
            member,
            reply: Vec::new(),
        }))
    }

    fn ask(&self, host: &str, db: &str, command: Doc<'_>) -> errors::Fallible<DocBuf> {
        let unreachable = |why: String| errors::err!(HostUnreachable, "{why}");
        let address = ServerAddress::parse(&self.security.url(host)).map_err(unreachable)?;
        address.ask(db, command).map_err(unreachable)
    }

    fn told(&self, member: u64) -> Option<Told> {
        *self.lines.lock().get(&member)?.told.lock()
    }

    fn without(&self) -> Vec<DocBuf> {
        let lines = self.lines.lock();
        let told = lines.values().filter_map(|line| line.without.lock().take());
        told.collect()
    }

    fn spread(&self, known: &[Known]) {
        let mut board = self.board.lock();
        if board.1 != known {
            *board = (board.0 + 1, known.to_vec());
        }
    }

    fn joins(&self, set: &SetName, host: &str, member: u64) -> errors::Fallible<()> {
        let unreachable = |why: String| errors::err!(HostUnreachable, "{why}");
        let address = ServerAddress::parse(&self.security.url(host)).map_err(unreachable)?;
        let ask = introduction(set, member).finish();
        let reply = address.ask("admin", ask.as_doc()).map_err(unreachable)?;
        let Some(why) = refusal(reply.as_doc()) else {
            return Ok(());
        };
        let code = reply.as_doc().get("code").and_then(|v| v.to_i64_exact());
        let code = code.and_then(|n| i32::try_from(n).ok());
        Err(errors::Error::coded(code.unwrap_or_default(), why))
    }

    fn send(&self, messages: Vec<message::Message>) {
        let lines = self.lines.lock();
        for m in messages {
            let Some(line) = lines.get(&m.to) else {
                continue;
            };
            let mut queue = line.queue.lock();
            if queue.batches.len() < QUEUE_BYTES {
                message::write(&m, &mut queue.batches);
                line.more.notify_one();
            }
        }
    }
}

/// What every message between members begins with.
fn introduction(set: &SetName, to: u64) -> Writer {
    let mut w = Writer::new();
    w.i32("pandoReplicate", 1)
        .i32("version", message::VERSION)
        .str("set", &set.name)
        .oid("setId", ObjectId(set.id))
        .i64("founder", set.founder as i64)
        .i64("to", to as i64);
    w
}

fn append_board(w: &mut Writer, from: u64, board: &[Known]) {
    w.i64("from", from as i64).open_array("members");
    for known in board {
        w.open_doc("")
            .i64("id", known.id as i64)
            .timestamp("ts", known.durable.ts)
            .i64("term", known.durable.term as i64)
            .i64("wall", known.durable.wall_millis)
            .timestamp("applied", known.told.applied)
            .i32("state", known.told.state)
            .bool("heard", known.is_heard)
            .close();
    }
    w.close();
}

/// The files of another member, over a connection of their own.
struct FilesOf {
    connection: Conversation,
    set: SetName,
    member: u64,
    /// Where replies are received.
    reply: Vec<u8>,
}

impl FilesOf {
    fn ask(&mut self, w: Writer) -> errors::Fallible<Doc<'_>> {
        let unreachable = |why: String| errors::err!(HostUnreachable, "{why}");
        let reply = self
            .connection
            .run_into("admin", w.finish().as_doc(), &mut self.reply)
            .map_err(unreachable)?;
        refusal(reply).map_or(Ok(reply), |why| Err(unreachable(why)))
    }
}

fn what_to_copy(what: &str) -> Writer {
    let mut w = Writer::new();
    w.str("pandoCopyFiles", what);
    w
}

impl SyncSource for FilesOf {
    fn begin(&mut self, known: Option<ObjectId>) -> errors::Fallible<Offer> {
        let mut w = what_to_copy("begin");
        w.str("set", &self.set.name)
            .oid("setId", ObjectId(self.set.id))
            .i64("member", self.member as i64);
        if let Some(known) = known {
            w.oid("known", known);
        }
        let reply = self.ask(w)?;
        let offer = reply.get("offer").and_then(|v| v.as_doc());
        let offer = offer.and_then(Offer::from_doc);
        offer.ok_or_else(|| errors::err!(BadValue, "the offer of files makes no sense"))
    }

    fn read(
        &mut self,
        id: ObjectId,
        file: &str,
        offset: u64,
        whole: bool,
    ) -> errors::Fallible<Part<'_>> {
        let mut w = what_to_copy("read");
        w.oid("id", id)
            .str("file", file)
            .i64("offset", offset as i64)
            .bool("whole", whole);
        let reply = self.ask(w)?;
        let number = |name: &str| reply.get(name).and_then(|v| v.to_i64_exact());
        let (bytes, checksum) = (
            reply.get("bytes").and_then(|v| v.as_binary()),
            number("checksum"),
        );
        let checksum = checksum.and_then(|n| u32::try_from(n).ok());
        let Some((bytes, checksum)) = bytes.zip(checksum) else {
            return Err(errors::err!(BadValue, "the part of a file makes no sense"));
        };
        let wait = number("waitMillis").map_or(0, i64::unsigned_abs);
        let wait = Duration::from_millis(wait);
        Ok(Part {
            bytes: bytes.1,
            about: AboutPart { checksum, wait },
        })
    }

    fn end(&mut self, id: ObjectId) -> errors::Fallible<()> {
        let mut w = what_to_copy("end");
        w.oid("id", id);
        self.ask(w).map(|_| ())
    }
}

struct Sender {
    to: u64,
    line: Arc<Line>,
    access: Arc<Access>,
    set: Arc<Mutex<(SetName, Option<DocBuf>)>>,
    board: Arc<Mutex<Board>>,
    /// The number of the board that the peer was told last.
    spread: u64,
    complained: Option<Instant>,
}

impl Sender {
    fn run(mut self) {
        let mut connection = None;
        while let Some(bytes) = self.next() {
            if let Err(why) = self.deliver(&mut connection, &bytes) {
                connection = None;
                self.complain(&why);
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// What waits; `None` at the end.
    fn next(&self) -> Option<Vec<u8>> {
        let mut queue = self.line.queue.lock();
        while queue.batches.is_empty() && !queue.closed {
            self.line.more.wait(&mut queue);
        }
        (!queue.closed).then(|| std::mem::take(&mut queue.batches))
    }

    fn deliver(
        &mut self,
        connection: &mut Option<Conversation>,
        bytes: &[u8],
    ) -> Result<(), String> {
        let opened = match connection {
            Some(opened) => opened,
            None => {
                let address = ServerAddress::parse(&self.access.url(&self.line.host))?;
                connection.insert(address.open()?)
            }
        };
        let mut parts = bytes.chunks(PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let more = parts.peek().is_some();
            let reply = opened.run("admin", self.command(Some((part, more))).as_doc())?;
            if let Some(why) = refusal(reply.as_doc()) {
                return Err(why);
            }
            let applied = reply.as_doc().get("applied");
            if let Some(applied) = applied.and_then(|v| v.as_timestamp()) {
                let state = reply.as_doc().get("state").and_then(|v| v.as_i32());
                let state = state.unwrap_or_default();
                *self.line.told.lock() = Some(Told { applied, state });
            }
            if let Some(config) = reply.as_doc().get("config").and_then(|v| v.as_doc()) {
                *self.line.without.lock() = Some(config.to_buf());
            }
            if reply.as_doc().get("lacks").is_some_and(|v| v.truthy()) {
                let reply = opened.run("admin", self.command(None).as_doc())?;
                return refusal(reply.as_doc()).map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// With messages, or with the configuration.
    fn command(&mut self, messages: Option<(&[u8], bool)>) -> DocBuf {
        let set = self.set.lock();
        let (name, config) = &*set;
        let mut w = introduction(name, self.to);
        let board = self.board.lock();
        if messages.is_some() && board.0 != self.spread {
            self.spread = board.0;
            append_board(&mut w, name.from, &board.1);
        }
        drop(board);
        match (messages, config) {
            (Some((bytes, more)), _) => {
                w.binary("messages", 0, bytes).bool("more", more);
            }
            (None, Some(config)) => {
                w.doc("config", config.as_doc());
            }
            (None, None) => {}
        }
        w.finish()
    }

    fn complain(&mut self, why: &str) {
        if self.complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
            self.complained = Some(Instant::now());
            tracing::warn!(target: "REPL", host = self.line.host.as_str(), error = why, "A member is not reached");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_log_in_by_their_key() {
        let mut config = ServerConfig::default();
        assert_eq!(Access::of(&config).url("a:1"), "mongodb://a:1/?");
        config.security.keys = vec!["x+y/z=".into()];
        assert_eq!(
            Access::of(&config).url("a:1"),
            "mongodb://__system:x%2By%2Fz%3D@a:1/?authSource=local&authMechanism=SCRAM-SHA-256"
        );
    }

    #[test]
    fn members_log_in_by_their_certificate_where_that_is_sent() {
        let mut config = ServerConfig::default();
        config.security.keys = vec!["xyz".into()];
        config.tls.mode = TlsMode::Require;
        config.tls.certificate_key_file = "/own.pem".into();
        config.tls.ca_file = Some("/ca.pem".into());
        for (mode, says) in [
            (ClusterAuth::KeyFile, "authMechanism=SCRAM-SHA-256"),
            (ClusterAuth::SendKeyFile, "authMechanism=SCRAM-SHA-256"),
            (ClusterAuth::SendX509, "authMechanism=MONGODB-X509"),
            (ClusterAuth::X509, "authMechanism=MONGODB-X509"),
        ] {
            config.security.cluster_auth = mode;
            let url = Access::of(&config).url("a:1");
            assert!(url.contains(says), "{url}");
            assert!(url.contains("tlsCertificateKeyFile=/own.pem&tlsCAFile=/ca.pem"));
        }
        config.tls.cluster_file = Some("/member.pem".into());
        config.tls.allow_invalid_hostnames = true;
        let url = Access::of(&config).url("a:1");
        assert!(url.contains("tlsCertificateKeyFile=/member.pem&"), "{url}");
        assert!(url.contains("tlsAllowInvalidHostnames=true"), "{url}");
    }
}
