//! One connection's state between the turns of its loop.
//!
//! Invariant: at most one request is in progress; while it is, or while its reply does not fit the
//! socket, nothing more is read, so that a connection holds at most one message (of the limited length)
//! and one reply. An idle connection holds no buffer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Registry;
use service::{Client, KeptProgress, Service};

use crate::net::Stream;
use crate::runner::Head;

/// What the connection is waiting for.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The next message.
    Idle,
    /// The commit of the loop's group.
    Staged,
    /// A worker.
    Working,
    /// Reads from the disk, after which it is run again.
    Reading,
    /// Replies of other servers, after which it is run again.
    Remote,
    /// The durable index. The reply is in `output`, not complete yet.
    AwaitsDurable(Head),
    /// The deadline, or an event before it. Then `again` is run.
    Waiting(Instant),
}

impl Phase {
    /// Whether the request is elsewhere (on a worker, in the disk queue, with other servers), and
    /// comes back to the connection.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self, Phase::Working | Phase::Reading | Phase::Remote)
    }
}

/// A request that runs again: after its last reply is sent, or after it has waited.
pub(crate) struct Rerun {
    pub message: Vec<u8>,
    pub respond_to: i32,
}

/// What the next run of a suspended request starts from.
pub(crate) struct Resume {
    /// What the service has kept for it.
    pub kept: Option<KeptProgress>,
    /// When the request first ran.
    pub since: Instant,
    /// The number of runs so far.
    pub rounds: u8,
}

pub(crate) struct Connection<S: Service> {
    /// `None` when the peer is gone and a worker still runs its request.
    pub stream: Option<Stream>,
    pub client: Arc<Client<S::State>>,
    pub phase: Phase,
    /// Bytes read; those before `at` belong to messages that were run.
    pub input: Vec<u8>,
    pub at: usize,
    /// The reply; what comes before `sent` is with the kernel.
    pub output: Vec<u8>,
    pub sent: usize,
    /// The socket may hold unread bytes.
    pub readable: bool,
    /// The peer has closed its side: read until the end shows.
    pub hung_up: bool,
    /// The end of the stream was read.
    pub ended: bool,
    /// The client wants no reply to the current request.
    pub silent: bool,
    pub wants_writable: bool,
    /// The bytes that the current message has taken from the memory budget.
    pub reserved: usize,
    /// Waits for the turn of guests.
    pub queued: bool,
    /// Waits for the budget.
    pub parked: bool,
    /// Its handshake is counted among those under way.
    pub shaking: bool,
    /// When the long message began to arrive, or its long reply began to wait; and when either last
    /// made progress.
    pub since: Instant,
    pub reply_since: Option<Instant>,
    pub progress: Instant,
    pub again: Option<Box<Rerun>>,
    /// Its waker was called while its request was elsewhere.
    pub woken: bool,
    /// For the worker that continues a run of the loop.
    pub resume: Option<Resume>,
}

/// The outcome of a write to the socket.
pub(crate) enum Sent {
    All,
    Blocked,
    Failed,
}

impl<S: Service> Connection<S> {
    pub fn new(stream: Stream, client: Arc<Client<S::State>>) -> Connection<S> {
        Connection {
            stream: Some(stream),
            client,
            phase: Phase::Idle,
            input: Vec::new(),
            at: 0,
            output: Vec::new(),
            sent: 0,
            readable: false,
            hung_up: false,
            ended: false,
            silent: false,
            wants_writable: false,
            reserved: 0,
            queued: false,
            parked: false,
            shaking: false,
            since: Instant::now(),
            reply_since: None,
            progress: Instant::now(),
            again: None,
            woken: false,
            resume: None,
        }
    }

    /// Whether no request is in progress, so that the next message may run.
    pub fn is_free(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.output.is_empty()
    }

    /// Whether there may be another message to run, once the connection is free.
    pub fn has_more(&self) -> bool {
        self.again.is_some()
            || self.at < self.input.len()
            || (self.readable && !self.parked)
            || self.ended
    }

    /// For a long message that holds memory and waits for the peer to send or to receive: since
    /// when, and how many bytes have passed.
    pub fn long_under_way(&self) -> Option<(Duration, usize)> {
        if !matches!(self.phase, Phase::Idle) {
            return None;
        }
        match self.reply_since {
            Some(since) => Some((since.elapsed(), self.sent)),
            None if self.reserved > 0 && !self.readable => {
                Some((self.since.elapsed(), self.input.len()))
            }
            None => None,
        }
    }

    /// Bytes read but not run.
    pub fn buffered(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Writes the rest of the reply, and registers for writability when the socket is full.
    pub fn flush(&mut self, registry: &Registry, key: usize, bytes_out: &mut u64) -> Sent {
        let Some(stream) = &mut self.stream else {
            return Sent::Failed;
        };
        while self.sent < self.output.len() {
            match stream.write(&self.output[self.sent..]) {
                Ok(Some(0)) | Err(_) => return Sent::Failed,
                Ok(Some(n)) => {
                    self.sent += n;
                    *bytes_out += n as u64;
                }
                Ok(None) => {
                    if !self.wants_writable {
                        self.wants_writable = true;
                        if stream.want_writable(registry, key, true).is_err() {
                            return Sent::Failed;
                        }
                    }
                    return Sent::Blocked;
                }
            }
        }
        if self.wants_writable {
            self.wants_writable = false;
            if stream.want_writable(registry, key, false).is_err() {
                return Sent::Failed;
            }
        }
        self.sent = 0;
        Sent::All
    }

    /// Reads into the input, growing it by at most `limit` bytes. `None` when there is nothing for
    /// now.
    pub fn read_on(&mut self, limit: usize) -> io::Result<Option<usize>> {
        let Some(stream) = &mut self.stream else {
            return Ok(Some(0));
        };
        let len = self.input.len();
        self.input.resize(len + limit, 0);
        let read = stream.read(&mut self.input[len..]);
        let n = match &read {
            Ok(Some(n)) => *n,
            _ => 0,
        };
        self.input.truncate(len + n);
        read
    }
}
