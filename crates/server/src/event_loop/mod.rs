//! One event loop: its connections, and the group of writes that its turn gathers.
//!
//! ```text
//! turn:  poll ─ what other threads handed over ─ requests whose reads, or replies of other
//!        servers, have come ─ connections with more to run ─ sockets with bytes: read, run (replies
//!        are sent a few at a time) ─ submit reads ─ send replies ─ commit the group ─ send its
//!        replies, or have them wait for the disk ─ the same for a few guests ─ take in new
//!        connections
//! ```
//! Invariants: the loop never blocks except in `poll` and in the service's own commit; every reply made or staged in a turn
//! is sent or replaced by an error in that turn; readiness is edge-triggered, so `readable` stays
//! set until a read gives `WouldBlock` or fewer bytes than asked.

mod disk_queue;
mod guests;
mod reading;
mod reads;
mod remote;
mod replies;
mod requests;
mod waits;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use errors::Error;
use mio::event::Event;
use mio::{Events, Poll, Token};
use service::in_flight::SMALL_BYTES;
use service::{Client, Control, Mode, Service, Waker};
use slab::Slab;

use crate::Limits;
use crate::connection::{Connection, Phase};
use crate::handshakes::{Handshakes, Stepped};
use crate::inbox::{Inbox, Item};
use crate::loop_watch::TurnClock;
use crate::net::Stream;
use crate::runner::{Head, Runner};
use crate::tls::Session;
use crate::workers::Workers;
use disk_queue::{DiskQueue, RING};
use remote::{REMOTE, Remote};
use requests::Suspended;

/// How long a client may take to say its first bytes and to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(20);

pub(crate) const WAKE: Token = Token(usize::MAX);

/// What all loops share.
pub(crate) struct Shared<S: Service> {
    pub service: Arc<S>,
    pub control: Arc<Control>,
    pub workers: Arc<Workers<S>>,
    /// `None` where connections are plain.
    pub handshakes: Option<Arc<Handshakes<S>>>,
    pub limits: Limits,
}

/// A request whose write is in the group.
struct Staged {
    key: usize,
    id: i64,
    durable: bool,
    head: Option<Head>,
}

enum AfterReply {
    Keep,
    Close,
}

/// The outcome of running a message inline.
enum InlineOutcome {
    /// A reply is sent, staged or waiting, or there is none.
    Handled,
    ToWorker,
    Close,
}

pub(crate) struct EventLoop<S: Service> {
    shared: Arc<Shared<S>>,
    inbox: Arc<Inbox<S>>,
    poll: Poll,
    runner: Runner<S>,
    /// A connection is taken out of its slot while it is worked on.
    connections: Slab<Option<Box<Connection<S>>>>,
    /// Connections that may have more to run without a new event.
    ready: Vec<usize>,
    /// Connections of guests that may have something to run, in the order of their turns.
    guests: VecDeque<(usize, i64)>,
    parked: Vec<usize>,
    /// [`service::in_flight::InFlight::given`] when the parked connections last tried.
    given: usize,
    /// When stalled messages were last looked for.
    looked: Instant,
    /// Connections whose replies are whole and not sent yet.
    unsent: Vec<(usize, i64)>,
    /// Since when the first of them waits.
    unsent_since: Instant,
    staged: Vec<Staged>,
    committed: Vec<(Staged, Result<u64, Error>)>,
    /// Connections whose replies wait for the disk, with the index that they wait for.
    awaiting: Vec<(usize, i64, u64)>,
    /// Connections whose requests wait for a deadline or an event.
    waits: BTreeSet<(Instant, usize, i64)>,
    /// Connections that may have to be told apart or to shake hands, and until when, in order.
    establishing: VecDeque<(Instant, usize, i64)>,
    /// Connections whose handshakes have begun, the oldest first; some have ended since.
    shaking: VecDeque<(usize, i64)>,
    /// [`Control::stirred`] when they were last run.
    stirred: usize,
    /// The durable index that the service last gave.
    durable: u64,
    /// A reply has begun to wait for the disk in this turn.
    ask_sync: bool,
    buffer: Vec<u8>,
    spares: Vec<Vec<u8>>,
    bytes_in: u64,
    bytes_out: u64,
    requests: u64,
    /// `None` before the loop runs, and where the kernel has no `io_uring`.
    disk: Option<DiskQueue<Suspended>>,
    remote: Remote,
    stopping_since: Option<Instant>,
    clock: Arc<TurnClock>,
}

impl<S: Service> EventLoop<S> {
    pub fn new(
        shared: Arc<Shared<S>>,
        inbox: Arc<Inbox<S>>,
        poll: Poll,
        clock: Arc<TurnClock>,
    ) -> EventLoop<S> {
        let runner = Runner::new(
            Arc::clone(&shared.service),
            Mode::Inline,
            shared.limits.inline_bytes,
        );
        EventLoop {
            shared,
            inbox,
            poll,
            runner,
            connections: Slab::new(),
            ready: Vec::new(),
            guests: VecDeque::new(),
            parked: Vec::new(),
            given: 0,
            looked: Instant::now(),
            unsent: Vec::new(),
            unsent_since: Instant::now(),
            staged: Vec::new(),
            committed: Vec::new(),
            awaiting: Vec::new(),
            waits: BTreeSet::new(),
            establishing: VecDeque::new(),
            shaking: VecDeque::new(),
            stirred: 0,
            durable: 0,
            ask_sync: false,
            buffer: vec![0; SMALL_BYTES],
            spares: Vec::new(),
            bytes_in: 0,
            bytes_out: 0,
            requests: 0,
            disk: None,
            remote: Remote::default(),
            stopping_since: None,
            clock,
        }
    }

    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(512);
        if self.shared.limits.reads_under_way {
            self.disk = DiskQueue::open(self.poll.registry());
        }
        self.watch_replies();
        while !self.is_done() {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => events.clear(),
                other => other?,
            }
            self.clock.begin();
            let accepted = self.take_inbox();
            if self.inbox.awaits_durable.load(SeqCst) {
                self.release_durable();
            }
            self.take_reads();
            self.watch_replies();
            if self.may_have_replies(&events) {
                self.take_replies();
            }
            self.unpark();
            self.resume();
            self.end_handshakes();
            for key in std::mem::take(&mut self.ready) {
                self.with(key, |this, key, c| this.pump_or_queue(key, c));
                self.send_some();
            }
            for event in &events {
                if !matches!(event.token(), WAKE | RING | REMOTE) {
                    self.with(event.token().0, |this, key, c| this.on_event(key, c, event));
                    self.send_some();
                }
            }
            self.finish_replies();
            if !self.guests.is_empty() {
                self.serve_guests();
                self.finish_replies();
            }
            for (stream, client) in accepted {
                self.accept(stream, client);
            }
            self.count();
            self.clock.end();
        }
        Ok(())
    }

    /// Sends the replies that are made, and those of the group once it is committed.
    fn finish_replies(&mut self) {
        self.disk.iter_mut().for_each(DiskQueue::submit);
        // A commit may wait.
        self.send_unsent();
        self.commit();
        self.send_committed();
        self.await_durable();
        self.send_unsent();
    }

    fn timeout(&mut self) -> Option<Duration> {
        if !self.ready.is_empty()
            || self.are_replies_lost()
            || !self.guests.is_empty()
            || !self.committed.is_empty()
            || self.disk.as_mut().is_some_and(DiskQueue::is_busy)
        {
            Some(Duration::ZERO)
        } else if self.stopping_since.is_some() {
            Some(Duration::from_millis(20))
        } else {
            let stalled = Duration::from_secs(1).min(self.shared.limits.stall);
            let stalled = (self.shared.control.in_flight.has_waiting()).then_some(stalled);
            let waits = self.waits.first().map(|(until, ..)| until);
            let shaking = self.establishing.front().map(|(until, ..)| until);
            let due = waits.into_iter().chain(shaking).min();
            let due = due.map(|until| until.saturating_duration_since(Instant::now()));
            let replies = self.look_for_replies();
            stalled.into_iter().chain(due).chain(replies).min()
        }
    }

    /// Runs `step` on a connection, and closes the connection if the step says so.
    fn with(
        &mut self,
        key: usize,
        step: impl FnOnce(&mut Self, usize, &mut Connection<S>) -> AfterReply,
    ) {
        let Some(mut connection) = self.connections.get_mut(key).and_then(Option::take) else {
            return;
        };
        let fate = step(self, key, &mut connection);
        match fate {
            AfterReply::Keep => {
                if let Some(slot) = self.connections.get_mut(key) {
                    *slot = Some(connection);
                }
            }
            AfterReply::Close => self.close(key, connection),
        }
    }

    /// As [`EventLoop::with`], if the slot still belongs to the connection `id`.
    fn with_id(
        &mut self,
        key: usize,
        id: i64,
        step: impl FnOnce(&mut Self, usize, &mut Connection<S>) -> AfterReply,
    ) {
        self.with(key, |this, key, c| {
            if c.client.id == id {
                step(this, key, c)
            } else {
                AfterReply::Keep
            }
        });
    }

    fn accept(&mut self, mut stream: Stream, client: Arc<Client<S::State>>) {
        let slot = self.connections.vacant_entry();
        let (inbox, key, id) = (Arc::downgrade(&self.inbox), slot.key(), client.id);
        let _ = client.waker.set(Waker::new(move || {
            if let Some(inbox) = inbox.upgrade() {
                inbox.push(Item::Woken(key, id));
            }
        }));
        if stream.is_establishing() {
            let until = Instant::now() + HANDSHAKE;
            self.establishing.push_back((until, slot.key(), client.id));
        }
        if stream.register(self.poll.registry(), slot.key()).is_ok() {
            slot.insert(Some(Box::new(Connection::new(stream, client))));
        } else {
            self.shared
                .control
                .metrics
                .connections
                .fetch_sub(1, Relaxed);
            self.shared.service.disconnected(&client);
        }
    }

    /// Takes back a handshake of which a step was computed: answers, and reads on.
    fn on_stepped(&mut self, key: usize, c: &mut Connection<S>, stepped: Stepped) -> AfterReply {
        let answered = c.stream.as_mut().map(|s| s.end_step(stepped));
        if !matches!(answered, Some(Ok(()))) {
            return AfterReply::Close;
        }
        if !c.stream.as_ref().is_some_and(Stream::is_establishing) {
            self.count_shaken(c);
        }
        c.readable = true;
        self.go_on(key, c);
        AfterReply::Keep
    }

    /// Has a step of a handshake computed. `Close` where there are too many, and this is the oldest.
    fn compute_step(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        step: Box<Session>,
    ) -> AfterReply {
        let Some(handshakes) = self.shared.handshakes.clone() else {
            return AfterReply::Close;
        };
        if !c.shaking {
            c.shaking = true;
            self.shaking.push_back((key, c.client.id));
            if !handshakes.begin()
                && let AfterReply::Close = self.close_oldest_handshake(c.client.id)
            {
                return AfterReply::Close;
            }
        }
        handshakes.submit(key, &c.client, step, &self.inbox);
        AfterReply::Keep
    }

    /// Closes the oldest connection of those whose handshakes are under way; `Close` where that is the
    /// one in hand.
    fn close_oldest_handshake(&mut self, in_hand: i64) -> AfterReply {
        while let Some((key, id)) = self.shaking.pop_front() {
            if id == in_hand {
                return AfterReply::Close;
            }
            let mut closed = false;
            self.with_id(key, id, |_, _, c| {
                closed = c.shaking;
                if closed {
                    AfterReply::Close
                } else {
                    AfterReply::Keep
                }
            });
            if closed {
                break;
            }
        }
        AfterReply::Keep
    }

    fn count_shaken(&mut self, c: &mut Connection<S>) {
        if !std::mem::take(&mut c.shaking) {
            return;
        }
        if let Some(handshakes) = &self.shared.handshakes {
            handshakes.end();
        }
        // Those that have ended go as they come to the front.
        while let Some(&(key, id)) = self.shaking.front() {
            let slot = self.connections.get(key);
            // A slot that is empty for the moment is that of the connection in hand.
            let there = slot.is_some_and(|slot| {
                slot.as_ref()
                    .is_some_and(|o| o.client.id == id && o.shaking)
            });
            if there {
                break;
            }
            self.shaking.pop_front();
        }
    }

    /// Closes connections that have not ended their handshake in time.
    fn end_handshakes(&mut self) {
        while let Some(&(until, key, id)) = self.establishing.front() {
            if until > Instant::now() {
                break;
            }
            self.establishing.pop_front();
            self.with_id(key, id, |_, _, c| {
                match c.stream.as_ref().is_some_and(Stream::is_establishing) {
                    true => AfterReply::Close,
                    false => AfterReply::Keep,
                }
            });
        }
    }

    /// Closes the socket at once; the rest is freed when no worker runs a request of the
    /// connection.
    fn close(&mut self, key: usize, mut connection: Box<Connection<S>>) {
        connection.client.cancelled.store(true, SeqCst);
        self.count_shaken(&mut connection);
        let waits_for_reply = !matches!(connection.phase, Phase::Idle | Phase::Waiting(_));
        if waits_for_reply || !connection.output.is_empty() {
            connection.client.undelivered.store(true, Relaxed);
        }
        if connection.stream.take().is_some() {
            let metrics = &self.shared.control.metrics;
            let left = metrics.connections.fetch_sub(1, Relaxed).saturating_sub(1);
            if !self.shared.limits.quiet {
                tracing::info!(target: "NETWORK", id = 22944, ctx = %format_args!("conn{}", connection.client.id),
                    remote = %connection.client.peer, connectionId = connection.client.id, connectionCount = left,
                    "Connection ended");
            }
        }
        if connection.parked {
            connection.parked = false;
            self.shared.control.in_flight.end_wait();
        }
        if let Phase::Waiting(until) = connection.phase {
            self.waits.remove(&(until, key, connection.client.id));
        }
        if connection.phase.is_elsewhere() {
            connection.input = Vec::new();
            if let Some(slot) = self.connections.get_mut(key) {
                *slot = Some(connection);
            }
            return;
        }
        self.release(&mut connection);
        self.release_reply(&connection);
        self.connections.try_remove(key);
        self.shared.service.disconnected(&connection.client);
    }

    fn release(&self, connection: &mut Connection<S>) {
        let bytes = std::mem::take(&mut connection.reserved);
        if bytes > 0 {
            self.shared.control.in_flight.give(bytes);
        }
    }

    /// Gives back what the reply held.
    fn release_reply(&self, connection: &Connection<S>) {
        let held = &connection.client.reply_held;
        let bytes = held.load(Relaxed);
        if bytes > 0 {
            held.store(0, Relaxed);
            self.shared.control.in_flight.give(bytes);
        }
    }

    fn on_event(&mut self, key: usize, c: &mut Connection<S>, event: &Event) -> AfterReply {
        if event.is_error() || event.is_write_closed() {
            // Nothing can be sent any more; messages received before may be unacknowledged writes.
            c.readable = true;
            c.hung_up = true;
            if !c.output.is_empty() || (c.phase.is_elsewhere() && !c.silent) {
                return AfterReply::Close;
            }
        }
        if event.is_readable() || event.is_read_closed() {
            c.readable = true;
            c.hung_up |= event.is_read_closed();
            if c.hung_up && c.phase.is_elsewhere() && !c.silent {
                c.client.cancelled.store(true, SeqCst);
            }
        }
        if c.hung_up && matches!(c.phase, Phase::Waiting(_)) {
            return AfterReply::Close;
        }
        if event.is_writable()
            && c.wants_writable
            && let AfterReply::Close = self.send(key, c)
        {
            return AfterReply::Close;
        }
        self.pump_or_queue(key, c)
    }

    fn take_inbox(&mut self) -> Vec<(Stream, Arc<Client<S::State>>)> {
        let mut accepted = Vec::new();
        for item in self.inbox.take() {
            match item {
                Item::Accepted(stream, client) => accepted.push((stream, client)),
                Item::Done(done) => {
                    self.with_id(done.key, done.id, |this, key, c| this.on_done(key, c, done))
                }
                Item::Stepped(stepped) => self.with_id(stepped.key, stepped.id, |this, key, c| {
                    this.on_stepped(key, c, stepped)
                }),
                Item::Woken(key, id) => self.with_id(key, id, |this, key, c| this.woken(key, c)),
            }
        }
        accepted
    }

    fn count(&mut self) {
        let metrics = &self.shared.control.metrics;
        for (mine, all) in [
            (&mut self.bytes_in, &metrics.bytes_in),
            (&mut self.bytes_out, &metrics.bytes_out),
            (&mut self.requests, &metrics.requests),
        ] {
            if *mine > 0 {
                all.fetch_add(std::mem::take(mine), Relaxed);
            }
        }
    }

    /// Whether the loop may end: during a shutdown, when the last connection is closed or the grace
    /// period is over.
    fn is_done(&mut self) -> bool {
        if !self.shared.control.is_stopping() {
            return false;
        }
        let since = *self.stopping_since.get_or_insert_with(Instant::now);
        let grace = self.shared.limits.grace;
        let cancel = since.elapsed() > grace;
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.with(key, |_, _, c| {
                if cancel {
                    c.client.cancelled.store(true, SeqCst);
                }
                if c.is_free()
                    || matches!(c.phase, Phase::Waiting(_))
                    || (cancel
                        && !c.phase.is_elsewhere()
                        && !matches!(c.phase, Phase::AwaitsDurable(_)))
                {
                    return AfterReply::Close;
                }
                AfterReply::Keep
            });
        }
        let over = since.elapsed() > grace * 4;
        if self.connections.is_empty() || over {
            self.count();
            return true;
        }
        false
    }
}
