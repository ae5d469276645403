//! Connections to the other members of a replica set: the members, this member's credentials, and their
//! files for an initial sync. Messages to them go over [`connection`].

mod connection;

use crate::client::{Conversation, ServerAddress, refusal};
use bson::{Doc, DocBuf, ObjectId, Writer};
use connection::{PeerConnection, QUEUE_KINDS, Sender, introduction};
use parking_lot::Mutex;
use replication::driver::{Admission, KnownMember, MemberReport, SetName};
use replication::initial_sync::{AboutPart, FilePart, Offer, SyncSource};
use replication::{Config, Transport, message};
use service::config::{ClusterAuth, ServerConfig, TlsMode, TlsOptions};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub struct Peers {
    security: Arc<Access>,
    connections: Mutex<HashMap<u64, Arc<PeerConnection>>>,
    set: Arc<Mutex<(SetName, Option<DocBuf>)>>,
    board: Arc<Mutex<Board>>,
}

/// What the others are told of all members, with a number that grows.
type Board = (u64, Vec<KnownMember>);

/// This member's credentials for the others.
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
    // A slash would end the part of the connection string with user and host.
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

/// A connection string for people: the database is before the question mark.
pub fn client_uri(hosts: &str, database: &str, options: &[String]) -> String {
    match options.is_empty() {
        true => format!("mongodb://{hosts}/{database}"),
        false => format!("mongodb://{hosts}/{database}?{}", options.join("&")),
    }
}

/// What a connection string says of encryption where the server asks for it.
pub fn tls_of_client(ca: Option<&Path>) -> Vec<String> {
    let mut options = vec!["tls=true".to_string()];
    options.extend(ca.map(|ca| format!("tlsCAFile={}", escape(&ca.to_string_lossy()))));
    options
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:,@%".contains(&b);
    match word.bytes().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The connection string of a host, with the credentials of a router or a balancer.
pub fn access(config: &ServerConfig) -> cluster_view::ConnectionStrings {
    let access = Access::of(config);
    Arc::new(move |host| access.url(host))
}

/// Percent-encoded, for a connection string.
pub fn escape(text: &str) -> String {
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

impl Peers {
    pub fn new(config: &ServerConfig) -> Peers {
        Peers {
            security: Arc::new(Access::of(config)),
            connections: Mutex::default(),
            set: Arc::default(),
            board: Arc::default(),
        }
    }

    /// Starts the threads that send to a peer.
    fn send_over(&self, connection: &Arc<PeerConnection>, to: u64) -> std::io::Result<()> {
        for queue_kind in QUEUE_KINDS {
            let sender = Sender {
                to,
                connection: connection.clone(),
                queue_kind,
                access: self.security.clone(),
                set: self.set.clone(),
                board: self.board.clone(),
                spread: 0,
                complained: None,
            };
            std::thread::Builder::new()
                .name(format!("peer-{to}"))
                .spawn(move || sender.run())?;
        }
        Ok(())
    }
}

impl Transport for Peers {
    fn peers(&self, set: &SetName, config: &Config, peers: &[(u64, String)]) {
        *self.set.lock() = (set.clone(), Some(config.to_doc()));
        let mut connections = self.connections.lock();
        connections.retain(|id, connection| {
            let stays = (peers.iter()).any(|(peer, host)| peer == id && *host == connection.host);
            if !stays {
                connection.close();
            }
            stays
        });
        for (id, host) in peers {
            if connections.contains_key(id) {
                continue;
            }
            let connection = Arc::new(PeerConnection::new(host.clone()));
            if self.send_over(&connection, *id).is_ok() {
                connections.insert(*id, connection);
            } else {
                connection.close();
            }
        }
    }

    fn source(&self, host: &str, member: u64) -> errors::Fallible<Box<dyn SyncSource>> {
        let unreachable = |why: String| errors::err!(HostUnreachable, "{why}");
        let address = ServerAddress::parse(&self.security.url(host)).map_err(unreachable)?;
        let set = self.set.lock().0.clone();
        Ok(Box::new(RemoteFiles {
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

    fn report(&self, member: u64) -> Option<MemberReport> {
        *self.connections.lock().get(&member)?.report.lock()
    }

    fn without(&self) -> Vec<DocBuf> {
        let connections = self.connections.lock();
        let lists = connections
            .values()
            .filter_map(|connection| connection.without.lock().take());
        lists.collect()
    }

    fn spread(&self, known: &[KnownMember]) {
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

    fn admits(&self, set: &SetName, host: &str, to: u64, from: u64) -> errors::Fallible<Admission> {
        let unreachable = |why: String| errors::err!(HostUnreachable, "{host}: {why}");
        let address = ServerAddress::parse(&self.security.url(host)).map_err(unreachable)?;
        let mut ask = introduction(set, to);
        ask.i64("begins", from as i64);
        let reply = address
            .ask("admin", ask.finish().as_doc())
            .map_err(unreachable)?;
        let reply = reply.as_doc();
        if let Some(why) = refusal(reply) {
            return Err(errors::err!(InvalidReplicaSetConfig, "{host}: {why}"));
        }
        let state = reply.get("state").and_then(|v| v.to_i64_exact());
        let until = reply.get("until").and_then(|v| v.to_i64_exact());
        let until = until.map_or(0, i64::unsigned_abs);
        Ok(match reply.get("admitted").map(|v| v.truthy()) {
            Some(true) => Admission::Now(until),
            Some(false) => Admission::Later,
            // A primary of an earlier release is not asked.
            None if state == Some(1) => Admission::Now(0),
            None => Admission::NotHere,
        })
    }

    fn trouble(&self, member: u64) -> Option<String> {
        self.connections.lock().get(&member)?.trouble.lock().clone()
    }

    fn send(&self, messages: Vec<message::Message>) {
        let connections = self.connections.lock();
        for m in messages {
            let Some(connection) = connections.get(&m.to) else {
                continue;
            };
            connection.put(&m);
        }
    }
}

/// The files of another member, over a connection of their own.
struct RemoteFiles {
    connection: Conversation,
    set: SetName,
    member: u64,
    /// Where replies are received.
    reply: Vec<u8>,
}

impl RemoteFiles {
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

impl SyncSource for RemoteFiles {
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
    ) -> errors::Fallible<FilePart<'_>> {
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
        Ok(FilePart {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_for_a_shell_is_a_command() {
        let tls = tls_of_client(Some(Path::new("/it's a/ca.pem")));
        let uri = client_uri("localhost:1", "admin", &tls);
        assert_eq!(
            uri,
            "mongodb://localhost:1/admin?tls=true&tlsCAFile=/it%27s%20a/ca.pem"
        );
        assert_eq!(quoted(&uri), format!("'{uri}'"));
        assert_eq!(client_uri("a:1,b:2", "", &[]), "mongodb://a:1,b:2/");
        assert_eq!(quoted("mongodb://a:1,b:2/"), "mongodb://a:1,b:2/");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

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
