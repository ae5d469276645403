//! One connection's TLS: the peer's encrypted bytes become those of messages, and the other way
//! round.
//!
//! Invariants:
//! - A session that waits holds no buffer: what it keeps between calls are encrypted bytes that are
//!   no whole record yet, and bytes for which the reader or the kernel had no room.
//! - A read that gives less than was asked for has emptied the socket: readiness is told once.
//! - Bytes taken of a reply count as sent when their encrypted form is with the kernel, and not before.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use mio::net::TcpStream;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ProtocolVersion, ServerConfig};
use service::PeerCertificate;

use super::Tls;

/// What a client may send before its handshake is done: its hello and its certificates.
pub(super) const HANDSHAKE_BYTES: usize = 24 << 10;
/// The most that is read from a socket at once, and that a session keeps: some records of 16 KB.
const READ_BYTES: usize = 64 << 10;
/// The most of a reply that is encrypted at once.
const CHUNK_BYTES: usize = 64 << 10;
/// What a peer may make the server answer, beside replies, without taking it.
const ANSWER_BYTES: usize = 256 << 10;
/// More than TLS adds to a record.
const OVERHEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 16 << 10;

thread_local! {
    /// Buffers for encrypted bytes, of whichever session the thread serves.
    static INCOMING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static OUTGOING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(crate) struct Session {
    tls: Arc<Tls>,
    connection: UnbufferedServerConnection,
    /// Where the peer's certificate goes, for commands.
    certificate: Arc<OnceLock<PeerCertificate>>,
    /// Encrypted bytes of the peer that are not decrypted.
    incoming: Vec<u8>,
    /// Decrypted bytes that the reader had no room for.
    plain: Vec<u8>,
    /// Encrypted bytes for the peer; those before `sent` are with the kernel.
    outgoing: Vec<u8>,
    sent: usize,
    /// Bytes of the reply that are in `outgoing`.
    owed: usize,
    /// Bytes that its handshake has sent.
    shaken: usize,
    /// There are bytes of the handshake that were not computed on.
    fed: bool,
    /// The handshake is done, and its session counted.
    begun: bool,
    /// The peer sends no more.
    ended: bool,
}

impl Session {
    pub fn new(
        tls: Arc<Tls>,
        config: Arc<ServerConfig>,
        certificate: Arc<OnceLock<PeerCertificate>>,
    ) -> io::Result<Session> {
        Ok(Session {
            tls,
            connection: UnbufferedServerConnection::new(config).map_err(io::Error::other)?,
            certificate,
            incoming: Vec::new(),
            plain: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            owed: 0,
            shaken: 0,
            fed: false,
            begun: false,
            ended: false,
        })
    }

    /// Whether the handshake is done.
    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// Whether there is something to compute for the handshake.
    pub fn has_step(&self) -> bool {
        self.fed
    }

    /// As [`crate::net::Stream::read`].
    pub fn read(&mut self, socket: &mut TcpStream, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.begun {
            return self.feed(socket);
        }
        let mut encrypted = INCOMING.take();
        encrypted.resize(READ_BYTES, 0);
        let read = self.read_through(socket, &mut encrypted, buf);
        INCOMING.set(encrypted);
        read
    }

    /// As [`Session::read`], through the buffer `encrypted`.
    fn read_through(
        &mut self,
        socket: &mut TcpStream,
        encrypted: &mut [u8],
        buf: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let mut filled = self.take_plain(buf);
        let mut held = self.incoming.len();
        encrypted[..held].copy_from_slice(&self.incoming);
        self.incoming = Vec::new();
        let mut emptied = false;
        loop {
            let used = self.decrypt(socket, &mut encrypted[..held], buf, &mut filled)?;
            encrypted.copy_within(used..held, 0);
            held -= used;
            if emptied || self.ended || filled == buf.len() {
                break;
            }
            match socket.read(&mut encrypted[held..]) {
                // Gone without a word, or a record that is longer than any may be.
                Ok(0) => self.ended = true,
                Ok(n) => {
                    emptied = n < encrypted.len() - held;
                    held += n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        self.incoming = encrypted[..held].to_vec();
        Ok((filled > 0 || self.ended).then_some(filled))
    }

    /// Moves decrypted bytes that were left over to `buf`; how many.
    fn take_plain(&mut self, buf: &mut [u8]) -> usize {
        let n = self.plain.len().min(buf.len());
        buf[..n].copy_from_slice(&self.plain[..n]);
        if n == self.plain.len() {
            self.plain = Vec::new();
        } else {
            self.plain.drain(..n);
        }
        n
    }

    /// Decrypts from `encrypted` into `buf` from `filled` on, while there is room, and answers what
    /// asks for an answer. Gives the number of bytes that are done with.
    fn decrypt(
        &mut self,
        socket: &mut TcpStream,
        encrypted: &mut [u8],
        buf: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<usize> {
        let plain = &mut self.plain;
        let processed = process(
            &mut self.connection,
            encrypted,
            &mut self.outgoing,
            &mut |payload| {
                let n = payload.len().min(buf.len() - *filled);
                buf[*filled..*filled + n].copy_from_slice(&payload[..n]);
                plain.extend_from_slice(&payload[n..]);
                *filled += n;
                *filled < buf.len()
            },
            None,
        );
        let (used, outcome) = self.note(processed);
        self.answer(socket, outcome)?;
        Ok(used)
    }

    /// Keeps what processing came to; after an error the alert that tells the peer why.
    fn note(
        &mut self,
        processed: Result<Processed, rustls::Error>,
    ) -> (usize, Result<(), rustls::Error>) {
        match processed {
            Ok(processed) => {
                self.ended |= processed.ended;
                (processed.used, Ok(()))
            }
            Err(e) => {
                let connection = &mut self.connection;
                let _ = process(connection, &mut [], &mut self.outgoing, &mut |_| true, None);
                (0, Err(e))
            }
        }
    }

    /// Takes bytes of a handshake, to be computed on elsewhere; `None` until that is done.
    fn feed(&mut self, socket: &mut TcpStream) -> io::Result<Option<usize>> {
        if self.fed {
            return Ok(None);
        }
        let mut bytes = [0; 4096];
        loop {
            match socket.read(&mut bytes) {
                Ok(0) => return Ok(Some(0)),
                Ok(n) => {
                    self.incoming.extend_from_slice(&bytes[..n]);
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

    /// Computes on the bytes fed so far. Not for an event loop.
    pub fn step(&mut self) -> Result<(), rustls::Error> {
        self.fed = false;
        let mut incoming = std::mem::take(&mut self.incoming);
        let plain = &mut self.plain;
        let processed = process(
            &mut self.connection,
            &mut incoming,
            &mut self.outgoing,
            &mut |payload| {
                plain.extend_from_slice(payload);
                true
            },
            None,
        );
        let (used, outcome) = self.note(processed);
        self.incoming = incoming[used..].to_vec();
        outcome
    }

    /// Sends what follows from what has come in, which went as `outcome` says.
    pub fn answer(
        &mut self,
        socket: &mut TcpStream,
        outcome: Result<(), rustls::Error>,
    ) -> io::Result<()> {
        if let Err(e) = outcome {
            // Whether the alert arrives is no matter any more.
            let _ = self.flush(socket);
            self.tls.tell_failure(socket, &e);
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        if self.shaken > HANDSHAKE_BYTES && self.connection.is_handshaking() {
            self.tls.tell_failure(socket, &"the handshake is too long");
            return Err(io::Error::from(ErrorKind::InvalidData));
        }
        if !self.flush(socket)?
            && (self.connection.is_handshaking() || self.outgoing.len() > ANSWER_BYTES)
        {
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
            if self.owed > 0 || buf.is_empty() {
                return Ok(Some(std::mem::take(&mut self.owed)));
            }
            self.encrypt(buf.get(..CHUNK_BYTES).unwrap_or(buf))?;
        }
    }

    fn encrypt(&mut self, chunk: &[u8]) -> io::Result<()> {
        if self.outgoing.capacity() == 0 {
            self.outgoing = OUTGOING.take();
        }
        let plain = &mut self.plain;
        let processed = process(
            &mut self.connection,
            &mut self.incoming,
            &mut self.outgoing,
            &mut |payload| {
                plain.extend_from_slice(payload);
                true
            },
            Some(chunk),
        );
        let (used, outcome) = self.note(processed);
        self.incoming.drain(..used);
        self.owed = chunk.len();
        outcome.map_err(io::Error::other)
    }

    /// Gives the kernel the encrypted bytes; false when it takes no more for now.
    fn flush(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        while self.sent < self.outgoing.len() {
            match socket.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero)),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        self.sent = 0;
        let mut spare = std::mem::take(&mut self.outgoing);
        if spare.capacity() > 0 && spare.capacity() <= 2 * CHUNK_BYTES {
            spare.clear();
            OUTGOING.set(spare);
        }
        Ok(true)
    }
}

/// What processing a number of encrypted bytes came to.
struct Processed {
    /// How many of them are done with.
    used: usize,
    /// The peer has said that it sends no more.
    ended: bool,
}

/// Processes records from `bytes` until there is no whole one, or `take` wants no more bytes of
/// messages. Appends what the protocol answers to `outgoing`, and at the end `chunk`, encrypted.
fn process(
    connection: &mut UnbufferedServerConnection,
    bytes: &mut [u8],
    outgoing: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]) -> bool,
    chunk: Option<&[u8]>,
) -> Result<Processed, rustls::Error> {
    let (mut used, mut ended) = (0, false);
    loop {
        let UnbufferedStatus { mut discard, state } =
            connection.process_tls_records(&mut bytes[used..]);
        let mut done = false;
        match state? {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    done |= !take(record.payload);
                }
            }
            ConnectionState::EncodeTlsData(mut data) => append(outgoing, 0, |out| {
                data.encode(out).map_err(|e| match e {
                    EncodeError::InsufficientSize(e) => Some(e),
                    EncodeError::AlreadyEncoded => None,
                })
            })?,
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::PeerClosed => ended = true,
            ConnectionState::WriteTraffic(mut traffic) => {
                if let Some(chunk) = chunk {
                    let records = chunk.len() / RECORD_BYTES + 1;
                    let likely = chunk.len() + records * OVERHEAD_BYTES;
                    append(outgoing, likely, |out| {
                        traffic.encrypt(chunk, out).map_err(|e| match e {
                            EncryptError::InsufficientSize(e) => Some(e),
                            EncryptError::EncryptExhausted => None,
                        })
                    })?;
                }
                done = true;
            }
            ConnectionState::BlockedHandshake | ConnectionState::Closed if chunk.is_none() => {
                done = true;
            }
            // Early data is not offered, and a reply needs a session.
            _ => return Err(rustls::Error::General("unexpected state".into())),
        }
        used += discard;
        if done {
            return Ok(Processed { used, ended });
        }
    }
}

/// Appends what `write` writes to `outgoing`: with room for `likely` bytes first, and then for as
/// many as it says it needs.
fn append(
    outgoing: &mut Vec<u8>,
    likely: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) -> Result<(), rustls::Error> {
    let (start, mut room) = (outgoing.len(), likely);
    loop {
        outgoing.resize(start + room, 0);
        match write(&mut outgoing[start..]) {
            Ok(n) => {
                outgoing.truncate(start + n);
                return Ok(());
            }
            Err(Some(e)) if e.required_size > room => room = e.required_size,
            Err(_) => return Err(rustls::Error::EncryptError),
        }
    }
}
