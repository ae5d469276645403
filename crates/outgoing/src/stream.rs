//! A connected socket, with or without TLS. It blocks or does not, as its socket does.
//!
//! Invariant: what `write` says was taken is with the kernel. After `WouldBlock` it is called again
//! with the same bytes.

use crate::tls::ClientTls;
use crate::{Error, Result};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The most that is encrypted at once.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct Stream {
    socket: Arc<TcpStream>,
    session: Option<Box<Session>>,
}

#[derive(Debug)]
struct Session {
    connection: ClientConnection,
    /// Bytes of the caller's that are encrypted, and not all with the kernel yet.
    owed: usize,
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Stream {
        Stream {
            socket: Arc::new(socket),
            session: None,
        }
    }
}

impl Stream {
    /// Shakes hands; the socket must block. `name` is the host that the server must prove to be.
    pub fn secure(self, tls: &ClientTls, name: &str) -> Result<Stream> {
        let socket = self.socket;
        let why = |e: &dyn std::fmt::Display| Error::Failed(format!("TLS with {name}: {e}"));
        let server = ServerName::try_from(name.to_string()).map_err(|e| why(&e))?;
        let connection = ClientConnection::new(Arc::clone(&tls.config), server);
        let mut connection = connection.map_err(|e| why(&e))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut &*socket).map_err(|e| why(&e))?;
        }
        let session = Some(Box::new(Session {
            connection,
            owed: 0,
        }));
        Ok(Stream { socket, session })
    }

    /// How long a read or a write waits; `None` is as long as it takes.
    pub fn set_timeouts(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(limit)?;
        self.socket.set_write_timeout(limit)
    }

    /// A handle by which another thread ends it under a reader or a writer.
    pub fn ending(&self) -> StreamEnder {
        StreamEnder(Arc::downgrade(&self.socket))
    }

    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }
}

/// Ends a stream that another thread has, if it is still there.
#[derive(Debug)]
pub struct StreamEnder(Weak<TcpStream>);

impl StreamEnder {
    pub fn is_past(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// A waiting reader finds it closed.
    pub fn end(&self) {
        if let Some(socket) = self.0.upgrade() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else {
            return (&*self.socket).read(buf);
        };
        loop {
            match session.connection.reader().read(buf) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The peer was gone without a word.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            session.connection.read_tls(&mut &*self.socket)?;
            let processed = session.connection.process_new_packets();
            processed.map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else {
            return (&*self.socket).write(buf);
        };
        loop {
            while session.connection.wants_write() {
                if session.connection.write_tls(&mut &*self.socket)? == 0 {
                    return Err(ErrorKind::WriteZero.into());
                }
            }
            if session.owed > 0 {
                return Ok(std::mem::take(&mut session.owed));
            }
            let chunk = buf.get(..CHUNK_BYTES).unwrap_or(buf);
            session.owed = session.connection.writer().write(chunk)?;
            if session.owed == 0 {
                return Ok(0);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
