//! The acceptor: accepts connections, and starts and stops event loops and workers.
//!
//! Invariant: when [`serve`] returns, no socket is open and no event loop runs.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Waker};
use service::{Address, Client, Control, Service};

use crate::Limits;
use crate::establishment::{Arrival, Establishing};
use crate::event_loop::{EventLoop, Shared, WAKE};
use crate::handshakes::Handshakes;
use crate::inbox::{Inbox, Item};
use crate::loop_watch::{self, TurnClock};
use crate::net::{Listener, Listeners, Stream, unix_path};
use crate::tls::Layer;
use crate::workers::Workers;

/// After accepting failed (no more files, say), the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until [`Control::shutdown`]; returns when all is flushed and closed.
pub fn serve<S: Service>(
    mut listeners: Listeners,
    service: Arc<S>,
    control: Arc<Control>,
    limits: Limits,
) -> io::Result<()> {
    let max_connections = limits.max_connections as u64;
    let metrics = &control.metrics;
    metrics.connections_limit.store(max_connections, Relaxed);
    control.in_flight.set_limit(limits.in_flight_bytes);
    if let Some(tls) = limits.tls.clone() {
        let counted = tls.clone();
        control.certificates.offer(service::Certificates {
            rotate: Box::new(move || tls.rotate()),
            own: Box::new({
                let tls = counted.clone();
                move || tls.own()
            }),
            sessions: Box::new(move || counted.sessions()),
        });
    }
    let mut poll = Poll::new()?;
    listeners.register(&poll)?;
    let workers = Arc::new(Workers::new(
        Arc::clone(&service),
        Arc::clone(&control),
        limits.max_workers,
    ));
    let handshakes = limits.tls.is_some().then(Handshakes::start).transpose()?;
    let shared = Arc::new(Shared {
        service: Arc::clone(&service),
        control: Arc::clone(&control),
        workers: Arc::clone(&workers),
        handshakes: handshakes.clone(),
        limits: limits.clone(),
    });
    let loops = open_loops(&limits)?;
    let inboxes: Vec<_> = loops.iter().map(|(_, inbox)| Arc::clone(inbox)).collect();
    wake_on_changes(&shared, &inboxes, Waker::new(poll.registry(), WAKE)?);
    let threads = start_loops(&shared, loops)?;

    let mut acceptor = Acceptor {
        service,
        control: Arc::clone(&control),
        inboxes,
        limits,
        complained: AtomicBool::new(false),
        establishing: Establishing::default(),
        next_id: 0,
    };
    let mut result = acceptor.watch(&mut poll, &listeners);
    control.shutdown();
    drop(listeners);
    for thread in threads {
        match thread.join() {
            Ok(ended) => result = result.and(ended),
            Err(_) => result = result.and(Err(io::Error::other("an event loop has panicked"))),
        }
    }
    handshakes.iter().for_each(|h| h.stop());
    if !workers.stop(Instant::now() + Duration::from_secs(5)) {
        tracing::warn!(target: "NETWORK", "Some commands have not stopped in time");
    }
    result
}

type OpenLoop<S> = (Poll, Arc<Inbox<S>>);

/// Opens the poll of each event loop.
fn open_loops<S: Service>(limits: &Limits) -> io::Result<Vec<OpenLoop<S>>> {
    let count = match limits.loops {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let open = || {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        Ok((poll, Arc::new(Inbox::new(waker))))
    };
    (0..count).map(|_| open()).collect()
}

/// Wakes the event loops and `acceptor` on changes by other threads.
fn wake_on_changes<S: Service>(shared: &Shared<S>, inboxes: &[Arc<Inbox<S>>], acceptor: Waker) {
    let wake_all = |inboxes: &[Arc<Inbox<S>>]| inboxes.iter().for_each(|inbox| inbox.wake());
    let inboxes = inboxes.to_vec();
    let all = inboxes.clone();
    let in_flight = &shared.control.in_flight;
    in_flight.on_change(Box::new(move || wake_all(&all)));
    let all = inboxes.clone();
    shared.service.on_durable(Box::new(move || {
        let waiting = all.iter().filter(|inbox| inbox.awaits_durable.load(SeqCst));
        waiting.for_each(|inbox| inbox.wake());
    }));
    shared.control.on_shutdown(Box::new(move || {
        let _ = acceptor.wake();
        wake_all(&inboxes);
    }));
}

fn start_loops<S: Service>(
    shared: &Arc<Shared<S>>,
    loops: Vec<OpenLoop<S>>,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let clocks: Vec<_> = loops.iter().map(|_| Arc::new(TurnClock::new())).collect();
    loop_watch::start(clocks.clone(), Arc::clone(&shared.control))?;
    let start = |(i, ((poll, inbox), clock)): (usize, (OpenLoop<S>, Arc<TurnClock>))| {
        let shared = Arc::clone(shared);
        let alive = ShutdownOnDrop(Arc::clone(&shared.control));
        std::thread::Builder::new()
            .name(format!("loop{i}"))
            .stack_size(own_process::COMMAND_STACK_BYTES)
            .spawn(move || {
                let _alive = alive;
                EventLoop::new(shared, inbox, poll, clock).run()
            })
    };
    let each = loops.into_iter().zip(clocks);
    each.enumerate().map(start).collect()
}

/// A loop that ends, for whatever reason, ends the server: half a server would strand its
/// connections.
struct ShutdownOnDrop(Arc<Control>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

struct Acceptor<S: Service> {
    service: Arc<S>,
    control: Arc<Control>,
    inboxes: Vec<Arc<Inbox<S>>>,
    limits: Limits,
    complained: AtomicBool,
    /// Connections that wait for admission.
    establishing: Establishing<(Stream, Address)>,
    next_id: i64,
}

impl<S: Service> Acceptor<S> {
    fn watch(&mut self, poll: &mut Poll, listeners: &Listeners) -> io::Result<()> {
        let mut events = Events::with_capacity(16);
        let mut again = false;
        while !self.control.is_stopping() {
            match poll.poll(&mut events, self.pause(again)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            // Readiness comes once for many: each listener is drained, and all of them after a
            // failure.
            let due: Vec<usize> = match again {
                true => (0..listeners.0.len()).collect(),
                false => events.iter().map(|e| e.token().0).collect(),
            };
            again = false;
            for listener in due.into_iter().filter_map(|i| listeners.0.get(i)) {
                again |= !self.drain(listener);
            }
            self.let_in_those_due();
        }
        Ok(())
    }

    /// How long to wait for connections.
    fn pause(&self, again: bool) -> Option<Duration> {
        let rate = self.control.establishment.rate();
        let due = self.establishing.pause(rate.as_ref());
        let again = again.then_some(ACCEPT_PAUSE);
        due.into_iter().chain(again).min()
    }

    /// Accepts all pending connections; false when that failed and must be tried again.
    fn drain(&mut self, listener: &Listener) -> bool {
        while !self.control.is_stopping() {
            let accepted = match listener {
                Listener::Tcp(l) => l.accept().map(|(s, a)| {
                    let layer = Layer::of(self.limits.tls.as_ref());
                    (Stream::Tcp(s, layer), Address::Tcp(a))
                }),
                Listener::Unix(l, path) => l
                    .accept()
                    .map(|(s, a)| (Stream::Unix(s), unix_peer(unix_path(&a), path))),
            };
            match accepted {
                Ok((stream, peer)) => self.arrive(stream, peer),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                // The peer was gone before it was accepted.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => {
                    if !self.complained.swap(true, Relaxed) {
                        tracing::error!(target: "NETWORK", error = %e, "Cannot accept connections; trying again");
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Admits a connection, queues it, or closes it.
    fn arrive(&mut self, stream: Stream, peer: Address) {
        let figures = &self.control.establishment;
        let Some(rate) = figures.rate() else {
            return self.admit(stream, peer);
        };
        let address = match &peer {
            Address::Tcp(a) => Some(a.ip()),
            Address::Unix(_) => None,
        };
        if rate.is_exempt(address) {
            figures.exempted.fetch_add(1, Relaxed);
            return self.admit(stream, peer);
        }
        let now = Instant::now();
        match self.establishing.arrive((stream, peer), &rate, now) {
            Arrival::LetIn((stream, peer)) => self.admit(stream, peer),
            Arrival::Queued => figures
                .queued
                .store(self.establishing.waiting() as u64, Relaxed),
            Arrival::Rejected(_) => {
                figures.rejected.fetch_add(1, Relaxed);
            }
        }
    }

    fn let_in_those_due(&mut self) {
        while self.establishing.waiting() > 0 {
            let rate = self.control.establishment.rate();
            let next = self.establishing.next(rate.as_ref(), Instant::now());
            let figures = &self.control.establishment;
            figures
                .queued
                .store(self.establishing.waiting() as u64, Relaxed);
            let Some((stream, peer)) = next else { break };
            self.admit(stream, peer);
        }
    }

    fn admit(&mut self, stream: Stream, peer: Address) {
        let metrics = &self.control.metrics;
        if metrics.connections.load(Relaxed) >= self.limits.max_connections as u64 {
            metrics.connections_rejected.fetch_add(1, Relaxed);
            tracing::info!(target: "NETWORK", id = 22942, ctx = "listener", remote = %peer,
                connectionCount = metrics.connections.load(Relaxed),
                "Connection refused because there are too many open connections");
            return;
        }
        let Ok((stream, peer, local)) = Stream::accepted(stream, peer) else {
            return;
        };
        self.complained.store(false, Relaxed);
        self.next_id += 1;
        let id = self.next_id;
        let count = metrics.connections.fetch_add(1, Relaxed) + 1;
        metrics.connections_created.fetch_add(1, Relaxed);
        if !self.limits.quiet {
            tracing::info!(target: "NETWORK", id = 22943, ctx = "listener", remote = %peer, connectionId = id,
                connectionCount = count, "Connection accepted");
        }
        let state = self.service.connected(id, &peer);
        let client = Arc::new(Client {
            certificate: stream.certificate(),
            ..Client::new(id, peer, local, state)
        });
        let turn = usize::try_from(id).unwrap_or(0) % self.inboxes.len().max(1);
        if let Some(inbox) = self.inboxes.get(turn) {
            inbox.push(Item::Accepted(stream, client));
        }
    }
}

/// Peers of a Unix socket have no name; the name of the socket tells more.
fn unix_peer(peer: String, listener: &Path) -> Address {
    Address::Unix(if peer.is_empty() {
        listener.display().to_string()
    } else {
        peer
    })
}
