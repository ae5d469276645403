//! The reading side of an event loop: from sockets to messages.
//!
//! Invariant: bytes are read only for a connection that can run them. Before the buffer of a long
//! message grows, the message takes its share of the memory for messages; when there is none, the
//! connection is parked.

use std::time::{Duration, Instant};

use service::Service;
use service::in_flight::SMALL_BYTES;
use wire::Frame;

use super::{AfterReply, EventLoop, InlineOutcome};
use crate::connection::Connection;
use crate::net::Stream;
use crate::runner::log_close;

/// The most that one system call reads of a long message.
const READ_BYTES: usize = 256 << 10;
/// The most messages of one connection in a turn.
const MESSAGES_A_TURN: usize = 32;
/// A long message that is slower than this, in bytes a second, has stalled.
const SLOWEST: u64 = 16 << 10;
/// How often stalled messages are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// The memory that a message of `len` bytes takes, of which `start` has arrived: once for itself
/// (and what it is decompressed to); nothing for short messages. What it is processed into counts for its operation.
fn claim(len: usize, start: &[u8]) -> usize {
    let plain = wire::plain_bytes(start);
    match (len > SMALL_BYTES, plain > SMALL_BYTES) {
        (_, true) => len + plain,
        (true, false) => len,
        (false, false) => 0,
    }
}

impl<S: Service> EventLoop<S> {
    /// As [`EventLoop::pump`], or when it is the turn of guests.
    pub(super) fn pump_or_queue(&mut self, key: usize, c: &mut Connection<S>) -> AfterReply {
        if c.is_free() && self.is_guest(c) {
            self.queue_guest(key, c);
            return AfterReply::Keep;
        }
        self.pump(key, c)
    }

    /// Runs messages of a connection until none is complete, one is under way, or its turn is over.
    pub(super) fn pump(&mut self, key: usize, c: &mut Connection<S>) -> AfterReply {
        for _ in 0..MESSAGES_A_TURN {
            if !c.is_free() || self.stopping_since.is_some() {
                return AfterReply::Keep;
            }
            if c.again.is_some() && c.hung_up {
                return AfterReply::Close;
            }
            let fate = if let Some(again) = c.again.take() {
                match self.run_message(key, c, &again.message, Some(again.respond_to)) {
                    InlineOutcome::Handled => AfterReply::Keep,
                    InlineOutcome::ToWorker => {
                        self.hand_over(key, c, again.message, Some(again.respond_to));
                        AfterReply::Keep
                    }
                    InlineOutcome::Close => AfterReply::Close,
                }
            } else if c.at < c.input.len() {
                match wire::frame(c.buffered()) {
                    Ok(Frame::Complete { len }) => {
                        let claim = claim(len, c.buffered());
                        if !self.take_room(key, c, claim) {
                            return AfterReply::Keep;
                        }
                        self.run_buffered(key, c, len)
                    }
                    Ok(Frame::Incomplete { need }) => match self.read_on(key, c, need) {
                        // A long message is read in parts, one in each turn, so that short messages
                        // do not wait for all of it.
                        Some(AfterReply::Keep) if c.reserved > 0 && c.input.len() < need => {
                            if c.readable {
                                self.ready.push(key);
                            }
                            return AfterReply::Keep;
                        }
                        Some(fate) => fate,
                        None => return AfterReply::Keep,
                    },
                    Err(fault) => {
                        answer_http(&mut c.stream, c.input.get(c.at..).unwrap_or(&[]));
                        log_close(c.client.id, &fault.error);
                        AfterReply::Close
                    }
                }
            } else if c.readable {
                self.read_fresh(key, c)
            } else {
                return if c.ended {
                    AfterReply::Close
                } else {
                    AfterReply::Keep
                };
            };
            if let AfterReply::Close = fate {
                return AfterReply::Close;
            }
        }
        if c.is_free() && c.has_more() {
            self.ready.push(key);
        }
        AfterReply::Keep
    }

    /// Reads into the loop's buffer, and runs complete messages in place.
    fn read_fresh(&mut self, key: usize, c: &mut Connection<S>) -> AfterReply {
        let mut buffer = std::mem::take(&mut self.buffer);
        let fate = self.read_and_run(key, c, &mut buffer);
        self.buffer = buffer;
        fate
    }

    fn read_and_run(&mut self, key: usize, c: &mut Connection<S>, buffer: &mut [u8]) -> AfterReply {
        let Some(stream) = &mut c.stream else {
            return AfterReply::Close;
        };
        let n = match stream.read(buffer) {
            Ok(Some(0)) => {
                (c.readable, c.ended) = (false, true);
                return AfterReply::Keep;
            }
            Ok(Some(n)) => n,
            Ok(None) => {
                c.readable = false;
                return match stream.take_step() {
                    Some(step) => self.compute_step(key, c, step),
                    None => AfterReply::Keep,
                };
            }
            Err(_) => return AfterReply::Close,
        };
        self.bytes_in += n as u64;
        c.readable = n == buffer.len() || c.hung_up;
        let mut rest = &buffer[..n];
        while !rest.is_empty() && c.is_free() && c.again.is_none() {
            match wire::frame(rest) {
                Ok(Frame::Complete { len }) => {
                    let (message, after) = rest.split_at(len);
                    if !self.take_room(key, c, claim(len, message)) {
                        break;
                    }
                    rest = after;
                    match self.run_message(key, c, message, None) {
                        InlineOutcome::Handled => self.release(c),
                        InlineOutcome::ToWorker => self.hand_over(key, c, message.to_vec(), None),
                        InlineOutcome::Close => return AfterReply::Close,
                    }
                }
                Ok(Frame::Incomplete { .. }) if is_client_hello(rest) => {
                    tracing::info!(target: "NETWORK", id = 22988, remote = %c.client.peer,
                        "TLS handshake received but server is started without TLS support");
                    return AfterReply::Close;
                }
                Ok(Frame::Incomplete { .. }) => break,
                Err(fault) => {
                    answer_http(&mut c.stream, rest);
                    log_close(c.client.id, &fault.error);
                    return AfterReply::Close;
                }
            }
        }
        if !rest.is_empty() {
            c.input.clear();
            c.input.extend_from_slice(rest);
            c.at = 0;
        }
        AfterReply::Keep
    }

    /// Reads more of the message of `need` bytes that the input begins with. `None`: nothing more
    /// for now.
    fn read_on(&mut self, key: usize, c: &mut Connection<S>, need: usize) -> Option<AfterReply> {
        if !c.readable {
            return c.ended.then_some(AfterReply::Close);
        }
        if c.at > 0 {
            c.input.drain(..c.at);
            c.at = 0;
        }
        // A client that sends byte by byte takes no memory until it has sent as much as a short
        // message.
        let early = SMALL_BYTES.saturating_sub(c.input.len());
        if need > SMALL_BYTES && c.reserved == 0 && early == 0 {
            let claim = claim(need, c.buffered());
            if !self.take_room(key, c, claim) {
                // A client that hung up in the middle of a message would wait for nothing, and many
                // may do so while there is no room.
                let arrived = c.input.len() + c.stream.as_ref().map_or(0, Stream::unread);
                return (c.hung_up && arrived < need).then_some(AfterReply::Close);
            }
            c.since = Instant::now();
            c.progress = c.since;
            // Address space, not memory: pages come as bytes do.
            c.input.reserve_exact(need - c.input.len());
        }
        // To the end of a long message and no further, so that its buffer can be handed on whole.
        let missing = need.saturating_sub(c.input.len());
        let limit = if c.reserved > 0 {
            missing.min(READ_BYTES)
        } else if need > SMALL_BYTES {
            early.max(1)
        } else {
            missing.max(4096)
        };
        match c.read_on(limit) {
            Ok(Some(0)) => {
                (c.readable, c.ended) = (false, true);
                Some(AfterReply::Close)
            }
            Ok(Some(n)) => {
                self.bytes_in += n as u64;
                c.readable = n == limit || c.hung_up;
                if c.reserved > 0 {
                    c.progress = Instant::now();
                }
                Some(AfterReply::Keep)
            }
            Ok(None) => {
                c.readable = false;
                None
            }
            Err(_) => Some(AfterReply::Close),
        }
    }

    /// Takes memory for a message that holds none yet; the connection is parked when there is none.
    fn take_room(&mut self, key: usize, c: &mut Connection<S>, bytes: usize) -> bool {
        if bytes == 0 || c.reserved > 0 {
            return true;
        }
        let in_flight = &self.shared.control.in_flight;
        if in_flight.try_take(bytes) {
            if std::mem::take(&mut c.parked) {
                in_flight.end_wait();
            }
            c.reserved = bytes;
            return true;
        }
        if !c.parked {
            c.parked = true;
            self.parked.push(key);
            in_flight.begin_wait();
        }
        false
    }

    /// Runs the message of `len` bytes that the unread part of the input begins with.
    fn run_buffered(&mut self, key: usize, c: &mut Connection<S>, len: usize) -> AfterReply {
        let mut input = std::mem::take(&mut c.input);
        let at = c.at;
        let message = &input[at..at + len];
        let ran = self.run_message(key, c, message, None);
        if let InlineOutcome::Close = ran {
            return AfterReply::Close;
        }
        if let InlineOutcome::ToWorker = ran {
            let whole = if at == 0 && len == input.len() {
                std::mem::take(&mut input)
            } else {
                message.to_vec()
            };
            self.hand_over(key, c, whole, None);
        } else {
            self.release(c);
        }
        if at + len < input.len() {
            c.input = input;
            c.at = at + len;
        } else {
            c.at = 0;
            self.spare(input);
        }
        AfterReply::Keep
    }

    /// Lets parked connections try again; closes connections whose stalled messages hold memory.
    pub(super) fn unpark(&mut self) {
        let in_flight = &self.shared.control.in_flight;
        if !in_flight.has_waiting() {
            return;
        }
        let given = in_flight.given();
        let look = self.looked.elapsed() >= LOOK.min(self.shared.limits.stall);
        if given == self.given && !look {
            return;
        }
        self.given = given;
        let connections = &self.connections;
        self.parked.retain(|&key| {
            connections
                .get(key)
                .is_some_and(|c| c.as_ref().is_some_and(|c| c.parked))
        });
        self.ready.extend_from_slice(&self.parked);
        if !look {
            return;
        }
        self.looked = Instant::now();
        let stall = self.shared.limits.stall;
        let stalled = |c: &Connection<S>| {
            c.long_under_way().is_some_and(|(time, bytes)| {
                let slow = (bytes as u64) < time.as_secs().saturating_mul(SLOWEST);
                c.progress.elapsed() > stall || (time > stall && slow)
            })
        };
        let stalled: Vec<usize> = self
            .connections
            .iter()
            .filter_map(|(key, c)| c.as_ref().is_some_and(|c| stalled(c)).then_some(key))
            .collect();
        for key in stalled {
            self.with(key, |this, _, c| {
                this.shared.control.in_flight.gave_up();
                tracing::warn!(target: "NETWORK", ctx = %format_args!("conn{}", c.client.id), remote = %c.client.peer,
                    "Closing a connection whose message has stalled while others wait for its memory");
                AfterReply::Close
            });
        }
    }
}

/// Whether bytes that would be the beginning of a message of 66,000 bytes and more are that of a
/// TLS handshake: a record (0x16, version 3.x) with a ClientHello (1, version 3.x).
/// What mongod says to a browser or to curl.
const HTTP_SENTENCE: &str = "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 85\r\n\r\n\
    It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n";

/// Answers an HTTP client. What the socket does not take at once is not sent.
fn answer_http(stream: &mut Option<Stream>, bytes: &[u8]) {
    if let (true, Some(stream)) = (bytes.starts_with(b"GET "), stream) {
        let _ = stream.write(HTTP_SENTENCE.as_bytes());
    }
}

fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 3, 1..=3, _, _, 1, _, _, _, 3, ..])
}
