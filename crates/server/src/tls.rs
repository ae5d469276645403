//! TLS on TCP connections, by rustls.
//!
//! ```text
//! socket ── first bytes ─┬─ a ClientHello → a session: decrypted on the way in, encrypted on the way out
//!                        └─ anything else → plain, unless TLS is required
//! ```
//! Invariants:
//! - A read that gives less than was asked for has emptied the socket: readiness is told once.
//! - What was taken of a reply counts as sent when its encrypted form is with the kernel, and not
//!   before.
//! - A loop computes nothing of a handshake: a session that has something to compute goes to
//!   `handshakes`, and comes back.
//! - A peer that does not take the few bytes of a handshake, sends more than [`HANDSHAKE_BYTES`]
//!   for one, or has not ended it in time (`event_loop`) is closed.
//! - Each connection is checked by itself: no session is resumed.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use certificates::Identity;
use mio::net::TcpStream;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ProtocolVersion, ServerConfig, ServerConnection, version};
use service::config::{TlsMode, TlsOptions};
use service::{OwnCertificate, PeerCertificate};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most of a reply that is encrypted at once.
const CHUNK_BYTES: usize = 64 << 10;

/// What a client may send before its handshake is done: its hello and its certificates.
const HANDSHAKE_BYTES: usize = 24 << 10;
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What listeners offer.
pub struct Tls {
    options: TlsOptions,
    loaded: ArcSwap<Loaded>,
    /// Sessions by version: 1.2 and 1.3.
    sessions: [AtomicU64; 2],
    /// When a failure was last told to the log, and how many there were since.
    told: Mutex<(Option<Instant>, u64)>,
}

/// What was read from the files.
struct Loaded {
    config: Arc<ServerConfig>,
    own: OwnCertificate,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("mode", &self.options.mode)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificates and key. The error is one line that names the file.
    pub fn open(options: &TlsOptions) -> Result<Tls, String> {
        let loaded = load(options)?;
        warn_of_end(&loaded.own);
        Ok(Tls {
            options: options.clone(),
            loaded: ArcSwap::from_pointee(loaded),
            sessions: Default::default(),
            told: Mutex::default(),
        })
    }

    /// Reads certificates and key anew: connections from now on get them. After an error the old
    /// ones stay.
    pub fn rotate(&self) -> Result<(), String> {
        let loaded = load(&self.options)?;
        warn_of_end(&loaded.own);
        self.loaded.store(Arc::new(loaded));
        Ok(())
    }

    /// The certificate that is shown now.
    pub fn own(&self) -> OwnCertificate {
        self.loaded.load().own.clone()
    }

    /// Tells the log why a connection is closed: at most one a second, with the number of others.
    fn tell_failure(&self, socket: &TcpStream, why: &dyn fmt::Display) {
        let mut told = self.told.lock();
        if told.0.is_some_and(|t| t.elapsed() < TELL_EVERY) {
            told.1 += 1;
            return;
        }
        let untold = std::mem::take(&mut told.1);
        told.0 = Some(Instant::now());
        drop(told);
        let remote = socket
            .peer_addr()
            .map_or_else(|_| String::new(), |a| a.to_string());
        tracing::info!(target: "NETWORK", id = 22988, remote, error = %why, notShown = untold,
            "Error receiving request from client. Ending connection from remote");
    }

    /// How many sessions of TLS 1.2 and 1.3 there have been.
    pub fn sessions(&self) -> [u64; 2] {
        [0, 1].map(|i| self.sessions[i].load(Relaxed))
    }
}

fn warn_of_end(own: &OwnCertificate) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    own.warn_of_end(now.map_or(0, |d| d.as_millis() as i64));
}

fn load(options: &TlsOptions) -> Result<Loaded, String> {
    let file = &options.certificate_key_file;
    let wrong = |e: &dyn fmt::Display| format!("{}: {e}", file.display());
    certificates::check_private(file)?;
    let password = options.certificate_key_password.as_ref();
    let own = Identity::read(file, file, password.map(|p| p.0.as_str()))?;
    let mut versions = Vec::new();
    if !options.disabled.iter().any(|p| p == "TLS1_2") {
        versions.push(&version::TLS12);
    }
    if !options.disabled.iter().any(|p| p == "TLS1_3") {
        versions.push(&version::TLS13);
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|e| wrong(&e))?;
    let builder = match &options.ca_file {
        Some(ca) if !options.allow_invalid_certificates => {
            let roots = Arc::new(certificates::read_authorities(ca)?);
            let revoked = options.crl_file.as_deref();
            let revoked = revoked.map(certificates::read_revocations).transpose()?;
            let revoked = revoked.unwrap_or_default();
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .with_crls(revoked)
                .only_check_end_entity_revocation()
                .enforce_revocation_expiration();
            if options.allow_without_certificates {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier
                .build()
                .map_err(|e| format!("{}: {e}", ca.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ if options.crl_file.is_some() => {
            return Err(
                "--tlsCRLFile needs --tlsCAFile: without authorities no certificate is checked"
                    .into(),
            );
        }
        _ => builder.with_no_client_auth(),
    };
    let certified = certificates::read(own.der()).map_err(|e| wrong(&e))?;
    let mut config = builder
        .with_single_cert(own.chain, own.key)
        .map_err(|e| wrong(&e))?;
    // A session that is resumed would pass over the check of a certificate that has ended since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded {
        config: Arc::new(config),
        own: OwnCertificate {
            subject: certified.subject,
            organization: certified.organization,
            expires_millis: certified.expires_millis,
            has_authority: options.ca_file.is_some(),
        },
    })
}

/// What lies between a socket and its messages.
pub(crate) enum Layer {
    Plain,
    /// The first bytes tell.
    Undecided(Arc<Tls>, Arc<OnceLock<PeerCertificate>>),
    Session(Box<Session>),
    /// The session is away: a step of its handshake is being computed.
    Stepping,
}

impl Layer {
    pub fn of(tls: Option<&Arc<Tls>>) -> Layer {
        tls.map_or(Layer::Plain, |tls| {
            Layer::Undecided(tls.clone(), Arc::default())
        })
    }

    /// Nobody knows yet who speaks, or a handshake is under way.
    pub fn is_establishing(&self) -> bool {
        match self {
            Layer::Plain => false,
            Layer::Undecided(..) => true,
            Layer::Session(session) => !session.begun,
            Layer::Stepping => true,
        }
    }

    pub fn certificate(&self) -> Arc<OnceLock<PeerCertificate>> {
        match self {
            Layer::Undecided(_, certificate) => certificate.clone(),
            _ => Arc::default(),
        }
    }

    /// The session, if it has something to compute.
    pub fn take_step(&mut self) -> Option<Box<Session>> {
        match std::mem::replace(self, Layer::Stepping) {
            Layer::Session(session) if session.fed => Some(session),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Takes back a session whose step was computed, and sends what it answers.
    pub fn end_step(
        &mut self,
        socket: &mut TcpStream,
        mut session: Box<Session>,
        outcome: Result<(), rustls::Error>,
    ) -> io::Result<()> {
        let answered = session.answer(socket, outcome);
        *self = Layer::Session(session);
        answered
    }

    /// Looks at the first bytes of a connection that is undecided; false while there are too few.
    pub fn decide(&mut self, socket: &TcpStream) -> io::Result<bool> {
        let Layer::Undecided(tls, certificate) = self else {
            return Ok(true);
        };
        let mut first = [0; 3];
        match socket.peek(&mut first) {
            // A record of a handshake, version 3.1 to 3.3. A message of the protocol that began so
            // would be longer than 66,000 bytes: none begins a connection.
            Ok(3..) if matches!(first, [0x16, 3, 1..=3]) => {
                let session = ServerConnection::new(tls.loaded.load().config.clone());
                *self = Layer::Session(Box::new(Session {
                    tls: tls.clone(),
                    connection: session.map_err(io::Error::other)?,
                    certificate: certificate.clone(),
                    owed: 0,
                    shaken: 0,
                    fed: false,
                    begun: false,
                }));
                Ok(true)
            }
            Ok(1) if first[0] == 0x16 => Ok(false),
            Ok(2) if first[..2] == [0x16, 3] => Ok(false),
            Ok(0) => Ok(true),
            Ok(_) if tls.options.mode == TlsMode::Require => {
                let why = "The server is configured to only allow TLS connections";
                tls.tell_failure(socket, &why);
                Err(io::Error::other(why))
            }
            Ok(_) => {
                *self = Layer::Plain;
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// One connection's TLS.
pub(crate) struct Session {
    tls: Arc<Tls>,
    connection: ServerConnection,
    /// Bytes of the reply that are encrypted, and not all with the kernel yet.
    owed: usize,
    /// Where the peer's certificate goes, for commands.
    certificate: Arc<OnceLock<PeerCertificate>>,
    /// Bytes that its handshake has sent.
    shaken: usize,
    /// There are bytes of the handshake that were not computed on.
    fed: bool,
    /// The handshake is done, and its session counted.
    begun: bool,
}

impl Session {
    /// As [`crate::net::Stream::read`].
    pub fn read(&mut self, socket: &mut TcpStream, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.begun {
            return self.feed(socket);
        }
        let mut filled = 0;
        loop {
            match self.connection.reader().read(&mut buf[filled..]) {
                Ok(0) => return Ok(Some(filled)),
                Ok(n) => {
                    filled += n;
                    if filled == buf.len() {
                        return Ok(Some(filled));
                    }
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The peer was gone without a word.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(Some(filled)),
                Err(e) => return Err(e),
            }
            match self.connection.read_tls(socket) {
                Ok(_) => {
                    let processed = self.connection.process_new_packets().map(drop);
                    self.answer(socket, processed)?;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Ok((filled > 0).then_some(filled));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes bytes of a handshake, to be computed on elsewhere; `None` until that is done.
    fn feed(&mut self, socket: &mut TcpStream) -> io::Result<Option<usize>> {
        if self.fed {
            return Ok(None);
        }
        loop {
            match self.connection.read_tls(socket) {
                Ok(0) => return Ok(Some(0)),
                Ok(n) => {
                    self.shaken += n;
                    self.fed = true;
                    return Ok(None);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Computes on what was fed. Not for an event loop.
    pub fn step(&mut self) -> Result<(), rustls::Error> {
        self.fed = false;
        self.connection.process_new_packets().map(drop)
    }

    /// Sends what follows from what has come in, which went as `processed` says.
    fn answer(
        &mut self,
        socket: &mut TcpStream,
        processed: Result<(), rustls::Error>,
    ) -> io::Result<()> {
        if let Err(e) = processed {
            // The alert that tells the peer why; whether it arrives is no matter any more.
            let _ = self.connection.write_tls(socket);
            self.tls.tell_failure(socket, &e);
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        if self.shaken > HANDSHAKE_BYTES && self.connection.is_handshaking() {
            self.tls.tell_failure(socket, &"the handshake is too long");
            return Err(io::Error::from(ErrorKind::InvalidData));
        }
        if !self.flush(socket)? && self.connection.is_handshaking() {
            return Err(io::Error::from(ErrorKind::WriteZero));
        }
        if !self.begun && !self.connection.is_handshaking() {
            self.begun = true;
            self.begin();
        }
        Ok(())
    }

    fn begin(&mut self) {
        let newer = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        self.tls.sessions[usize::from(newer)].fetch_add(1, Relaxed);
        let shown = self.connection.peer_certificates().and_then(|c| c.first());
        if let Some(c) = shown.and_then(|der| certificates::read(der).ok()) {
            let _ = self.certificate.set(PeerCertificate {
                subject: c.subject,
                organization: c.organization,
                roles: c.roles.unwrap_or_default(),
            });
        }
    }

    /// As [`crate::net::Stream::write`]. After `None` it is called again with the same bytes.
    pub fn write(&mut self, socket: &mut TcpStream, buf: &[u8]) -> io::Result<Option<usize>> {
        loop {
            if !self.flush(socket)? {
                return Ok(None);
            }
            if self.owed > 0 {
                return Ok(Some(std::mem::take(&mut self.owed)));
            }
            let chunk = buf.get(..CHUNK_BYTES).unwrap_or(buf);
            self.owed = self.connection.writer().write(chunk)?;
            if self.owed == 0 {
                return Ok(Some(0));
            }
        }
    }

    /// Gives the kernel what is encrypted; false when it takes no more for now.
    fn flush(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero)),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}
