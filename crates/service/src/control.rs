//! The running server, as the commands see it: stop it, and read its counters.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;

use crate::establishment::Establishment;
use crate::in_flight::InFlight;
use crate::moves::Moves;

/// Stops the server, from any thread.
pub struct Control {
    stopping: AtomicBool,
    wakers: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    pub metrics: Metrics,
    pub in_flight: InFlight,
    pub establishment: Establishment,
    pub certificates: OfferedCertificates,
    /// Requests on worker threads that only wait for something to happen.
    waiting: AtomicUsize,
    stirred: AtomicUsize,
    pub started: Instant,
    pub started_at: SystemTime,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            stopping: AtomicBool::new(false),
            wakers: Mutex::default(),
            metrics: Metrics::default(),
            in_flight: InFlight::default(),
            establishment: Establishment::default(),
            certificates: OfferedCertificates::default(),
            waiting: AtomicUsize::new(0),
            stirred: AtomicUsize::new(0),
            started: Instant::now(),
            started_at: SystemTime::now(),
        }
    }
}

/// The certificate that the server shows.
#[derive(Clone, Debug)]
pub struct OwnCertificate {
    /// RFC 2253.
    pub subject: String,
    /// Its parts O, OU and DC, sorted: members of one cluster have them in common.
    pub organization: Vec<String>,
    /// Milliseconds since 1970.
    pub expires_millis: i64,
    /// Clients' certificates are checked.
    pub has_authority: bool,
}

/// How long before its end a warning is given.
const WARN_DAYS: i64 = 30;
const DAY_MILLIS: i64 = 86_400_000;

impl OwnCertificate {
    /// Tells the operator when it ends soon, or has ended.
    pub fn warn_of_end(&self, now_millis: i64) {
        let days = (self.expires_millis - now_millis) / DAY_MILLIS;
        if self.expires_millis <= now_millis {
            tracing::error!(target: "NETWORK", id = 23785, subject = self.subject, daysAgo = -days, startup_warning = true,
                "Server certificate has expired: clients refuse it. Put a new one in place, and run rotateCertificates");
        } else if days < WARN_DAYS {
            tracing::warn!(target: "NETWORK", id = 23221, subject = self.subject, daysLeft = days, startup_warning = true,
                "Server certificate expires soon");
        }
    }
}

/// What the side of the sockets does with its certificates, for commands.
pub struct Certificates {
    /// Reads certificates and keys anew; after an error the old ones stay.
    pub rotate: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// The server's own, as it is now.
    pub own: Box<dyn Fn() -> OwnCertificate + Send + Sync>,
    /// How many sessions of TLS 1.2 and 1.3 there have been.
    pub sessions: Box<dyn Fn() -> [u64; 2] + Send + Sync>,
}

/// Empty where connections are not encrypted.
#[derive(Default)]
pub struct OfferedCertificates(OnceLock<Certificates>);

impl OfferedCertificates {
    pub fn offer(&self, certificates: Certificates) {
        let _ = self.0.set(certificates);
    }

    pub fn get(&self) -> Option<&Certificates> {
        self.0.get()
    }
}

impl Control {
    /// Begins a clean shutdown and returns at once: no new connections or requests; what runs may
    /// finish for a moment.
    pub fn shutdown(&self) {
        if !self.stopping.swap(true, SeqCst) {
            self.wakers.lock().iter().for_each(|wake| wake());
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    /// Has all requests that wait ([`crate::Outcome::Await`]) run again: what they wait for may
    /// have happened.
    pub fn stir(&self) {
        self.stirred.fetch_add(1, SeqCst);
        self.wakers.lock().iter().for_each(|wake| wake());
    }

    /// Changes with every [`Control::stir`].
    pub fn stirred(&self) -> usize {
        self.stirred.load(SeqCst)
    }

    /// For a request on a worker thread that is going to wait for an event: until the guard is dropped
    /// the thread does not count among those that the pool may have, so that waiting requests do not
    /// keep others from working.
    pub fn waits(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(&self.waiting)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Registers what to call at shutdown, when it has begun already at once, and at every
    /// [`Control::stir`].
    pub fn on_shutdown(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.wakers.lock().push(wake);
        if self.is_stopping() {
            self.wakers.lock().iter().for_each(|wake| wake());
        }
    }
}

/// See [`Control::waits`].
pub struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Counters since the start, for `serverStatus`.
#[derive(Debug, Default)]
pub struct Metrics {
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub requests: AtomicU64,
    /// Requests that ran, or run again, on a worker thread.
    pub offloaded: AtomicU64,
    /// Requests that are on a worker thread or in its queue now.
    pub active: AtomicU64,
    /// Worker threads that exist now.
    pub workers: AtomicU64,
    pub connections: AtomicU64,
    pub connections_created: AtomicU64,
    pub connections_rejected: AtomicU64,
    /// The most connections at a time.
    pub connections_limit: AtomicU64,
    /// Groups of staged writes that the loops have committed, and the requests in them.
    pub groups: AtomicU64,
    pub grouped: AtomicU64,
    /// Reads from the disk that the kernel has done for the loops while they went on.
    pub disk_reads: AtomicU64,
    /// Turns of event loops that took longer than they may ([`Metrics::loop_held_longest_ms`] is
    /// the longest of them, as far as it has come).
    pub loop_held: AtomicU64,
    pub loop_held_longest_ms: AtomicU64,
    pub moves: Arc<Moves>,
}

impl Metrics {
    pub fn connections_available(&self) -> u64 {
        self.connections_limit
            .load(Relaxed)
            .saturating_sub(self.connections.load(Relaxed))
    }
}
