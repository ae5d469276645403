//! TLS on TCP connections, by rustls.
//!
//! ```text
//! socket ── first bytes ─┬─ a ClientHello → a session: decrypted on the way in, encrypted on the way out
//!                        └─ anything else → plain, unless TLS is required
//! ```
//! Invariants:
//! - A loop computes nothing of a handshake: a session that has something to compute goes to
//!   `handshakes`, and comes back.
//! - A peer that does not take the few bytes of a handshake, sends more than [`session::HANDSHAKE_BYTES`]
//!   for one, or has not ended it in time (`event_loop`) is closed.
//! - Each connection is checked by itself: no session is resumed.

mod session;

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use certificates::Identity;
use mio::net::TcpStream;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, version};
use service::config::{TlsMode, TlsOptions};
use service::{OwnCertificate, PeerCertificate};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use session::Session;

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

/// The loaded files.
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

    /// For other listeners with the same certificate and the same demands on clients.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.loaded.load().config.clone()
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

    /// The protocol is not known yet, or a handshake is in progress.
    pub fn is_establishing(&self) -> bool {
        match self {
            Layer::Plain => false,
            Layer::Undecided(..) => true,
            Layer::Session(session) => !session.is_begun(),
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
            Layer::Session(session) if session.has_step() => Some(session),
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
                let config = tls.loaded.load().config.clone();
                let session = Session::new(tls.clone(), config, certificate.clone())?;
                *self = Layer::Session(Box::new(session));
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
