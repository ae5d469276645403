//! Sockets, threads, limits and shutdown: everything between the network and a
//! [`service::Service`]; nothing else in the project owns a socket.
//!
//! ```text
//! acceptor (calling thread) accepts, enforces the limit of connections, hands each connection to
//!                           one event loop
//! event loops (one a core)  read, run short requests to their end, commit the writes of a turn as
//!                           one group, reply
//! workers (elastic)         run what may block; hand the reply back to the connection's loop
//! handshake threads         compute what TLS handshakes ask for, behind all others
//! ```
//! Invariants: a connection belongs to one loop for life and has one request at a time, so replies
//! keep their order; a reply to a staged write is sent only after its group is committed; nothing
//! that a peer sends, or fails to read, can panic a thread, block a loop or take memory without
//! bound.
//!
//! Rejected: a thread a connection (measured at half as much CPU again for a short request), and an
//! async runtime (the loop's turn is the unit of group commit, which a scheduler would hide).

mod acceptor;
mod connection;
mod establishment;
mod event_loop;
pub mod figures_page;
mod handshakes;
mod inbox;
mod loop_watch;
mod net;
pub mod null;
mod runner;
pub mod tls;
mod workers;

pub use acceptor::serve;
pub use net::{Listeners, listen};

/// What bounds the server's use of the machine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Event loops; as many as cores when 0.
    pub loops: usize,
    /// A connection past this is accepted and closed, as MongoDB does.
    pub max_connections: usize,
    /// Worker threads at most; they come and go with need.
    pub max_workers: usize,
    /// Bytes of long requests and replies that are received, served or sent at a time; past it,
    /// sockets wait to be read.
    pub in_flight_bytes: usize,
    /// A longer message goes to a worker unseen.
    pub inline_bytes: usize,
    /// How long requests that are running may take to finish once the server stops; then they are
    /// cancelled.
    pub grace: std::time::Duration,
    /// A long request or reply that does not get on for this long is given up when others wait for
    /// its memory.
    pub stall: std::time::Duration,
    /// Reads from the disk are done by the kernel while the event loops go on, where it can; else
    /// workers read.
    pub reads_under_way: bool,
    /// What TCP listeners offer; `None` is plain text alone.
    pub tls: Option<std::sync::Arc<tls::Tls>>,
    /// No log lines for connections that come and go.
    pub quiet: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            loops: 0,
            max_connections: 65_536,
            max_workers: 256,
            in_flight_bytes: service::in_flight::DEFAULT_BYTES,
            inline_bytes: 256 << 10,
            grace: std::time::Duration::from_millis(1000),
            stall: std::time::Duration::from_secs(10),
            reads_under_way: true,
            tls: None,
            quiet: false,
        }
    }
}
