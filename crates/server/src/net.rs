//! Listening and connected sockets, TCP and Unix alike.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::handshakes::Stepped;
use crate::tls::{Layer, Session};
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Poll, Registry, Token};
use service::{Address, PeerCertificate};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 4096;
/// A peer that vanished without a word is noticed after this long.
const KEEPALIVE: Duration = Duration::from_secs(120);

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Sockets that listen, not yet served.
pub struct Listeners(pub(crate) Vec<Listener>);

impl Listeners {
    /// The TCP addresses that are listened on, with the ports that port 0 became.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let tcp = self.0.iter().filter_map(|l| match l {
            Listener::Tcp(l) => l.local_addr().ok(),
            Listener::Unix(..) => None,
        });
        tcp.collect()
    }
}

impl Listeners {
    /// Has `poll` tell of connections that wait; the token is the listener's place.
    pub(crate) fn register(&mut self, poll: &Poll) -> io::Result<()> {
        for (i, listener) in self.0.iter_mut().enumerate() {
            let source: &mut dyn Source = match listener {
                Listener::Tcp(l) => l,
                Listener::Unix(l, _) => l,
            };
            let interest = Interest::READABLE;
            poll.registry().register(source, Token(i), interest)?;
        }
        Ok(())
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        for l in &self.0 {
            if let Listener::Unix(_, path) = l {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Opens the listening sockets. The error is one sentence for the user.
pub fn listen(hosts: &[String], port: u16, unix: Option<&Path>) -> Result<Listeners, String> {
    let mut listeners = Listeners(Vec::new());
    let mut bound: Vec<SocketAddr> = Vec::new();
    for host in hosts {
        let name = if host == "*" { "0.0.0.0" } else { host };
        let found = (name, port)
            .to_socket_addrs()
            .map_err(|e| format!("cannot resolve the address to bind, {host}: {e}"))?;
        let (mut last, mut any) = (None, false);
        for mut address in found {
            // Port 0 becomes one port for all addresses.
            if let (0, Some(first)) = (port, bound.first()) {
                address.set_port(first.port());
            }
            if bound.contains(&address) {
                any = true;
                continue;
            }
            match listen_tcp(address) {
                Ok(l) => {
                    any = true;
                    bound.push(l.local_addr().unwrap_or(address));
                    listeners.0.push(Listener::Tcp(l));
                }
                // A name may stand for addresses of a family that this machine does not have.
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    return Err(explain(&address, &e));
                }
                Err(e) => last = Some(explain(&address, &e)),
            }
        }
        if !any {
            return Err(
                last.unwrap_or_else(|| format!("the address to bind, {host}, stands for nothing"))
            );
        }
    }
    if let Some(path) = unix {
        let fail = |e: io::Error| format!("cannot listen on the socket {}: {e}", path.display());
        // A socket without a listener is left over from a process that died.
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(format!(
                "the socket {} is in use by another program",
                path.display()
            ));
        }
        let _ = std::fs::remove_file(path);
        let l = UnixListener::bind(path).map_err(fail)?;
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(fail)?;
        listeners.0.push(Listener::Unix(l, path.to_path_buf()));
    }
    Ok(listeners)
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into()))
}

fn explain(address: &SocketAddr, e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use by another program: stop it, or choose another --port")
        }
        io::ErrorKind::PermissionDenied => format!("no permission to listen on {address}"),
        io::ErrorKind::AddrNotAvailable => {
            format!("cannot listen on {address}: this machine has no such address")
        }
        _ => format!("cannot listen on {address}: {e}"),
    }
}

pub(crate) enum Stream {
    Tcp(TcpStream, Layer),
    Unix(UnixStream),
}

impl Stream {
    /// Makes ready a socket that was accepted; gives both ends.
    pub fn accepted(stream: Stream, peer: Address) -> io::Result<(Stream, Address, Address)> {
        let local = match &stream {
            Stream::Tcp(s, _) => {
                s.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new()
                    .with_time(KEEPALIVE)
                    .with_interval(Duration::from_secs(10));
                SockRef::from(s).set_tcp_keepalive(&keepalive)?;
                Address::Tcp(s.local_addr()?)
            }
            Stream::Unix(s) => Address::Unix(unix_path(&s.local_addr()?)),
        };
        Ok((stream, peer, local))
    }

    /// Whether TLS is not settled yet.
    pub fn is_establishing(&self) -> bool {
        matches!(self, Stream::Tcp(_, layer) if layer.is_establishing())
    }

    /// What the peer shows for a certificate, when that is checked.
    pub fn certificate(&self) -> Arc<OnceLock<PeerCertificate>> {
        match self {
            Stream::Tcp(_, layer) => layer.certificate(),
            Stream::Unix(_) => Arc::default(),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(s, _) => s,
            Stream::Unix(s) => s,
        }
    }

    pub fn register(&mut self, registry: &Registry, key: usize) -> io::Result<()> {
        registry.register(self.source(), Token(key), Interest::READABLE)
    }

    /// Bytes that have arrived and were not read.
    pub fn unread(&self) -> usize {
        let fd = match self {
            Stream::Tcp(s, _) => s.as_raw_fd(),
            Stream::Unix(s) => s.as_raw_fd(),
        };
        let mut bytes: libc::c_int = 0;
        // SAFETY: an open socket, and a place for the answer.
        let known = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) } == 0;
        if known { bytes.max(0) as usize } else { 0 }
    }

    /// Whether to hear of room to write, besides of bytes to read.
    pub fn want_writable(
        &mut self,
        registry: &Registry,
        key: usize,
        writable: bool,
    ) -> io::Result<()> {
        let interest = if writable {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        registry.reregister(self.source(), Token(key), interest)
    }

    /// Bytes read into `buf`: 0 at the end of the stream, `None` when there are none for now.
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Stream::Tcp(s, Layer::Plain) => transfer(|| s.read(buf)),
            Stream::Unix(s) => transfer(|| s.read(buf)),
            Stream::Tcp(s, layer) => {
                if !layer.decide(s)? {
                    return Ok(None);
                }
                match layer {
                    Layer::Session(session) => session.read(s, buf),
                    Layer::Stepping => Ok(None),
                    _ => transfer(|| s.read(buf)),
                }
            }
        }
    }

    /// A handshake that has something to compute: it goes to another thread, and comes back to
    /// [`Stream::end_step`].
    pub fn take_step(&mut self) -> Option<Box<Session>> {
        match self {
            Stream::Tcp(_, layer) => layer.take_step(),
            Stream::Unix(_) => None,
        }
    }

    pub fn end_step(&mut self, stepped: Stepped) -> io::Result<()> {
        match self {
            Stream::Tcp(s, layer) => layer.end_step(s, stepped.session, stepped.outcome),
            Stream::Unix(_) => Ok(()),
        }
    }

    /// Bytes written of `buf`; `None` when there is no room for now.
    pub fn write(&mut self, buf: &[u8]) -> io::Result<Option<usize>> {
        match self {
            Stream::Tcp(s, Layer::Session(session)) => session.write(s, buf),
            // Nothing goes out as plain text meanwhile.
            Stream::Tcp(_, Layer::Stepping) => Ok(None),
            Stream::Tcp(s, _) => transfer(|| s.write(buf)),
            Stream::Unix(s) => transfer(|| s.write(buf)),
        }
    }
}

fn transfer(mut operation: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match operation() {
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

pub(crate) fn unix_path(address: &std::os::unix::net::SocketAddr) -> String {
    address
        .as_pathname()
        .map(|p| p.display().to_string())
        .unwrap_or_default()
}
