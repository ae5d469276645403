//! A connection, as the commands see it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(String),
}

impl Address {
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            // A dual-stack listener reports IPv4 peers as mapped addresses, which are hard to read.
            Address::Tcp(a) => Some(a.ip().to_canonical()),
            Address::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(a) => SocketAddr::new(a.ip().to_canonical(), a.port()).fmt(f),
            Address::Unix(path) if path.is_empty() => f.write_str("anonymous unix socket"),
            Address::Unix(path) => f.write_str(path),
        }
    }
}

/// A client's certificate, which the server has checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// RFC 2253, the most particular part first: `CN=…,O=…`.
    pub subject: String,
    /// Its parts O, OU and DC, sorted.
    pub organization: Vec<String>,
    /// Role and database, where the certificate itself says what its owner may do.
    pub roles: Vec<(String, String)>,
}

/// Has one connection's request that waits ([`crate::Outcome::Await`]) run again. It may be called from any thread, and after the
/// connection is gone.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// The number of the process itself, where it runs a command of its own.
pub const OWN_ID: i64 = 0;

/// A connected client: `S` is what the service keeps for it.
#[derive(Debug)]
pub struct Client<S> {
    /// `connectionId`; never used twice in the life of a process.
    pub id: i64,
    pub peer: Address,
    /// The address that the client connected to: what `hello` gives as `hosts` when nothing is
    /// advertised.
    pub local: Address,
    /// What it has shown for a certificate; empty before that is checked, and without one.
    pub certificate: Arc<OnceLock<PeerCertificate>>,
    /// Set once the client is gone: a command that is still running for it should stop. Shared, so
    /// that executors can keep it without knowing of connections.
    pub cancelled: Arc<AtomicBool>,
    /// Bytes of [`crate::InFlight`] that the reply holds until it is sent; the thread that closes the
    /// connection gives them back.
    pub reply_held: AtomicUsize,
    /// Set when it is gone and its last reply was not sent in whole.
    pub undelivered: AtomicBool,
    /// Set before its first request is run.
    pub waker: OnceLock<Waker>,
    pub state: S,
}

impl<S> Client<S> {
    /// A client that has shown no certificate.
    pub fn new(id: i64, peer: Address, local: Address, state: S) -> Self {
        Client {
            id,
            peer,
            local,
            certificate: Arc::default(),
            cancelled: Arc::default(),
            reply_held: Default::default(),
            undelivered: Default::default(),
            waker: Default::default(),
            state,
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
