//! The console: a page of the server and of the router, over HTTP, for operators.
//!
//! ```text
//! browser ── http, guard ── sessions ── api ── in_process ── the way of every command
//!                                        └──── sampler, slow: what the process saw of itself, for who may see it
//! ```
//! Invariants:
//! - Data and state of the server are shown only as answers to a command of the user who looks, or after
//!   such a command was answered: there is no second check of rights.
//! - Connections, sessions, replies and kept samples are bounded; nothing waits for a client without
//!   end.
//! - Nothing here is on the way of a command of another client.

mod advice;
mod api;
mod assets;
mod guard;
mod http;
mod in_process;
mod rate;
mod sampler;
mod session;
mod slow;
mod start_log;

use bson::{Doc, DocBuf};
use errors::Fallible;
use guard::Guard;
use http::{HttpReply, HttpRequest, Method, PATIENCE, REPLY_PATIENCE, Timed, Unread};
use in_process::{Backend, InProcess};
use parking_lot::{Condvar, Mutex};
use rate::Failures;
use sampler::SampledHour;
use service::{Address, Control, Service};
use session::ConsoleSessions;
use slow::Shapes;
use start_log::StartLog;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Connections at a time; past it, the one that has been waited for the longest makes room: it has not said yet what it
/// wants, or does not take its reply.
const MOST_CONNECTIONS: usize = 64;
/// Of all replies that clients have not taken yet, but for short ones.
const MOST_REPLY_BYTES: usize = 64 << 20;
const SHORT_REPLY_BYTES: usize = 128 << 10;
/// Commands are evaluated recursively; untouched pages take no memory.
const STACK_BYTES: usize = 16 << 20;
const STOP: Duration = Duration::from_secs(5);
/// After accepting failed (no more files, say), the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Gives the certificates that are shown now.
pub type TlsSource = Box<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>;

pub struct ConsoleOptions {
    pub listener: TcpListener,
    /// Encrypted, where it is given.
    pub tls: Option<TlsSource>,
    /// Users have to log in.
    pub authorization: bool,
    /// Names that this server is known under.
    pub names: Vec<String>,
}

/// What the process tells of itself.
pub struct Process {
    /// The reply to a command of its own, on the database `admin`.
    pub ask: Box<dyn Fn(Doc<'_>) -> Fallible<DocBuf> + Send + Sync>,
    /// Bytes of the data directory's file system: all, and those that are free.
    pub disk: Box<dyn Fn() -> Option<(u64, u64)> + Send + Sync>,
}

/// A page that is served, until it is stopped.
pub struct Console {
    shared: Arc<Shared>,
    address: SocketAddr,
}

pub(crate) struct Shared {
    backend: Mutex<Option<Arc<dyn Backend>>>,
    process: Process,
    guard: Guard,
    tls: Option<TlsSource>,
    authorization: bool,
    cookie: String,
    sessions: ConsoleSessions,
    failures: Failures,
    /// One login at a time: they compute for long on purpose.
    login: Mutex<()>,
    history: SampledHour,
    shapes: Shapes,
    start: StartLog,
    /// Bytes of long replies in flight.
    replies: AtomicUsize,
    stopping: AtomicBool,
    connections: Mutex<Connections>,
    ended: Condvar,
}

#[derive(Default)]
struct Connections {
    open: usize,
    next: u64,
    /// Those whose client is waited for, oldest first: they have not said yet what they want, or their reply is under way.
    awaited: VecDeque<(u64, TcpStream)>,
}

/// Opens the socket of the page.
pub fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let failed = |e| format!("the console cannot be served on {address}: {e}");
    TcpListener::bind(address).map_err(failed)
}

/// Serves the page of `service`. The error is one sentence.
pub fn start<S: Service>(
    options: ConsoleOptions,
    service: Arc<S>,
    control: Arc<Control>,
    process: Process,
) -> Result<Console, String> {
    let listener = options.listener;
    let failed = |e: std::io::Error| format!("the console cannot be served: {e}");
    let address = listener.local_addr().map_err(failed)?;
    let secure = options.tls.is_some();
    let prefix = if secure { "__Host-" } else { "" };
    let backend: Arc<dyn Backend> = Arc::new(InProcess {
        service,
        control,
        local: Address::Tcp(address),
    });
    let shared = Arc::new(Shared {
        backend: Mutex::new(Some(backend)),
        process,
        guard: Guard {
            names: options
                .names
                .iter()
                .map(|n| n.to_ascii_lowercase())
                .collect(),
            secure,
        },
        tls: options.tls,
        authorization: options.authorization,
        // Browsers keep one set of cookies for all ports of a host.
        cookie: format!("{prefix}pando_console_{}", address.port()),
        sessions: ConsoleSessions::default(),
        failures: Failures::default(),
        login: Mutex::new(()),
        history: SampledHour::default(),
        shapes: Shapes::default(),
        start: StartLog::default(),
        replies: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
        connections: Mutex::default(),
        ended: Condvar::new(),
    });
    let accepting = shared.clone();
    spawn("console", move || accepting.accept(&listener)).map_err(failed)?;
    let sampling = shared.clone();
    spawn("console-samples", move || sampler::run(&sampling)).map_err(failed)?;
    Ok(Console { shared, address })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.stack_size(STACK_BYTES).spawn(run).map(|_| ())
}

impl Console {
    /// Ends what runs, and waits for that: afterwards no command of the console runs.
    pub fn stop(self) {
        let shared = &self.shared;
        shared.stopping.store(true, SeqCst);
        shared.sessions.end_all();
        // The thread that waits for connections gets one, and looks.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
        let until = Instant::now() + STOP;
        let mut connections = shared.connections.lock();
        shared.ended.notify_all();
        for (_, socket) in connections.awaited.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        while connections.open > 0 {
            if shared.ended.wait_until(&mut connections, until).timed_out() {
                tracing::warn!(target: "NETWORK", "Some commands of the console have not stopped in time");
                break;
            }
        }
        drop(connections);
        shared.backend.lock().take();
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    fn backend(&self) -> Option<Arc<dyn Backend>> {
        self.backend.lock().clone()
    }

    /// Waits; false when the console stops.
    fn pause(&self, time: Duration) -> bool {
        let mut connections = self.connections.lock();
        let until = Instant::now() + time;
        while !self.is_stopping() {
            if self.ended.wait_until(&mut connections, until).timed_out() {
                return !self.is_stopping();
            }
        }
        false
    }

    /// Counts what runs commands, until the guard is dropped; nothing once the console stops.
    fn enter(self: &Arc<Self>) -> Option<OpenConnection> {
        let mut connections = self.connections.lock();
        if self.is_stopping() {
            return None;
        }
        connections.open += 1;
        Some(OpenConnection(self.clone()))
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.is_stopping() {
                return;
            }
            let Ok(client) = client else {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if let Some((id, entered)) = self.admit(&client) {
                let shared = self.clone();
                // Without a thread the client finds the connection closed.
                let spawned = spawn("console-client", move || {
                    shared.serve(id, client);
                    shared.leave(id);
                    drop(entered);
                });
                if spawned.is_err() {
                    self.leave(id);
                }
            }
        }
    }

    /// A place for a connection, if there is one.
    fn admit(self: &Arc<Self>, client: &TcpStream) -> Option<(u64, OpenConnection)> {
        let copy = client.try_clone().ok()?;
        let entered = self.enter()?;
        let mut connections = self.connections.lock();
        if connections.open > MOST_CONNECTIONS
            && let Some((_, oldest)) = connections.awaited.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        if connections.open > 2 * MOST_CONNECTIONS {
            return None;
        }
        let id = connections.next;
        connections.next += 1;
        connections.awaited.push_back((id, copy));
        drop(connections);
        Some((id, entered))
    }

    /// The client is waited for no longer: it has said what it wants, or is gone. Gives its socket.
    fn leave(&self, id: u64) -> Option<TcpStream> {
        let awaited = &mut self.connections.lock().awaited;
        let at = awaited.iter().position(|(other, _)| *other == id)?;
        awaited.remove(at).map(|(_, socket)| socket)
    }

    /// The client is waited for again, to take its reply.
    fn await_again(&self, id: u64, socket: TcpStream) {
        self.connections.lock().awaited.push_back((id, socket));
    }

    fn serve(self: &Arc<Self>, id: u64, client: TcpStream) {
        let Ok(peer) = client.peer_addr() else {
            return;
        };
        let _ = client.set_nodelay(true);
        let timed = Timed::new(client, PATIENCE);
        match &self.tls {
            None => self.converse(id, timed, peer, |t| t),
            Some(tls) => {
                if let Ok(session) = rustls::ServerConnection::new(tls()) {
                    let stream = rustls::StreamOwned::new(session, timed);
                    self.converse(id, stream, peer, |s| &mut s.sock);
                }
            }
        }
    }

    /// One request and its reply. A client that is gone misses the reply.
    fn converse<T: Read + Write>(
        self: &Arc<Self>,
        id: u64,
        mut stream: T,
        peer: SocketAddr,
        timed: impl Fn(&mut T) -> &mut Timed,
    ) {
        let read = http::read(&mut stream);
        // One that is gone from there was closed to make room.
        let Some(socket) = self.leave(id) else {
            return;
        };
        let refused = matches!(read, Err(Unread::Refused(..)));
        let (mut reply, head_only) = match read {
            Err(Unread::Gone) => return,
            Err(Unread::Refused(status, why)) => (HttpReply::error(status, why), false),
            Ok(request) => (self.answer(&request, peer), request.method == Method::Head),
        };
        let under_way = self.reserve(reply.body.len());
        if under_way.is_none() {
            reply = HttpReply::error(503, "long replies wait for clients that do not take them");
        }
        self.await_again(id, socket);
        timed(&mut stream).extend(REPLY_PATIENCE);
        let _ = http::write(&mut stream, &reply, head_only, self.guard.secure);
        if refused {
            timed(&mut stream).drain();
        }
    }

    /// Room for a reply until the guard is dropped; nothing where clients that do not read have all of it.
    fn reserve(self: &Arc<Self>, bytes: usize) -> Option<UnderWay> {
        let bytes = if bytes > SHORT_REPLY_BYTES { bytes } else { 0 };
        let under_way = UnderWay(self.clone(), bytes);
        let before = self.replies.fetch_add(bytes, SeqCst);
        (bytes == 0 || before + bytes <= MOST_REPLY_BYTES).then_some(under_way)
    }

    fn answer(self: &Arc<Self>, request: &HttpRequest, peer: SocketAddr) -> HttpReply {
        if let Some((status, why)) = self.guard.refusal(request) {
            return HttpReply::error(status, why);
        }
        if request.path.starts_with("/api/") {
            return api::answer(self, request, peer);
        }
        match assets::find(&request.path) {
            None => HttpReply::error(404, "there is no such page"),
            Some(_) if request.method == Method::Post => {
                HttpReply::error(405, "the page is read by GET")
            }
            Some(asset) => {
                let gzip = request.takes_gzip();
                HttpReply {
                    status: 200,
                    content_type: asset.content_type,
                    gzip,
                    cookie: None,
                    is_asset: true,
                    retry_after: false,
                    body: if gzip {
                        asset.gzip.to_vec()
                    } else {
                        asset.plain()
                    },
                }
            }
        }
    }
}

/// See [`Shared::enter`].
struct OpenConnection(Arc<Shared>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.lock().open -= 1;
        self.0.ended.notify_all();
    }
}

/// See [`Shared::reserve`].
struct UnderWay(Arc<Shared>, usize);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.replies.fetch_sub(self.1, SeqCst);
    }
}
