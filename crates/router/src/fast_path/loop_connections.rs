//! The connections of one event loop to the servers behind the router: the loop sends commands on
//! them, and reads the replies when they come. No thread waits.
//!
//! ```text
//! idle ── send ──► busy ── the whole reply ──► idle
//!   └── closed by the server ──► gone ◄── lost ──┘
//! ```
//! A loop takes connections over that workers have opened ([`Upstream`](cluster_view::upstream::Upstream)):
//! opening one waits, so that what finds none goes to a worker.
//!
//! Of a long reply no more is read than its beginning until there is memory for it
//! ([`InFlight`](service::InFlight)).
//!
//! Invariant: a connection carries one command at a time. Each command that was sent gets a reply or
//! a failure in its [`Slot`], and its ticket is told once, when all commands of the ticket have. A
//! ticket of which one reply holds memory takes it for its others, so that it comes to its end.

use bson::DocBuf;
use cluster_view::replica_set::{LATE, Member, ReplicaSet};
use cluster_view::upstream::{Connection, Read, ReplyRoom, room_for, time_is_over};
use cluster_view::{Failure, Outcome};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use parking_lot::Mutex;
use service::Control;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most idle connections kept to one server: as many as a burst of clients needs. Those idle for
/// [`IDLE`] are closed.
const KEEP: usize = 1024;
const IDLE: Duration = Duration::from_secs(60);
/// How often idle connections are looked for.
const TRIM: Duration = Duration::from_secs(10);
/// How often late replies are looked for.
const LOOK: Duration = Duration::from_millis(40);
const BUFFER_BYTES: usize = 64 << 10;
/// Connections of which one poll tells.
const EVENTS: usize = 256;

/// Where a reply comes to be, with its memory.
pub(crate) type Slot = Arc<Mutex<Option<(Outcome<DocBuf>, ReplyRoom)>>>;

struct Ticket {
    /// How many replies it lacks.
    lacking: usize,
    /// One of its replies holds memory.
    holds: bool,
}

/// A message and its recipient.
pub(crate) struct Outgoing {
    pub set: Arc<ReplicaSet>,
    pub member: Arc<Member>,
    pub message: Vec<u8>,
    /// When the operation's own time is over.
    pub until: Option<Instant>,
}

/// A command on its way.
struct CommandInFlight {
    ticket: u64,
    slot: Slot,
    set: Arc<ReplicaSet>,
    began: Instant,
    until: Option<Instant>,
}

struct LoopConnection {
    connection: Connection,
    member: Arc<Member>,
    /// [`Upstream::life`](cluster_view::upstream::Upstream::life) when it was opened.
    life: u64,
    /// What the kernel has not taken yet.
    unsent: Vec<u8>,
    /// What has come of a reply.
    have: Vec<u8>,
    command: Option<CommandInFlight>,
    /// For the reply that comes.
    room: ReplyRoom,
    /// Its reply waits for memory.
    short: bool,
    /// The server has closed its side.
    ended: bool,
    used: Instant,
}

pub(crate) struct LoopConnections {
    poll: Poll,
    events: Events,
    all: Slab<LoopConnection>,
    /// By the address of their member, which they keep alive; the last used is last.
    idle: HashMap<usize, VecDeque<usize>>,
    trimmed: Instant,
    /// When it was last looked whether a reply is late.
    looked: Instant,
    tickets: HashMap<u64, Ticket>,
    /// Connections whose replies wait for memory.
    short: Vec<usize>,
    /// [`InFlight::given`](service::InFlight::given) when they last tried.
    given: usize,
    control: Arc<Control>,
    next: u64,
    buffer: Vec<u8>,
}

fn key_of(member: &Arc<Member>) -> usize {
    Arc::as_ptr(member) as usize
}

impl LoopConnections {
    pub fn open(control: Arc<Control>) -> std::io::Result<LoopConnections> {
        Ok(LoopConnections {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS),
            all: Slab::new(),
            idle: HashMap::new(),
            trimmed: Instant::now(),
            looked: Instant::now(),
            tickets: HashMap::new(),
            short: Vec::new(),
            given: 0,
            control,
            next: 0,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Sends each message to its member. `None`: one of them has no connection, and nothing was
    /// sent.
    pub fn send(&mut self, messages: &[Outgoing]) -> Option<(u64, Vec<Slot>)> {
        let mut taken = Vec::with_capacity(messages.len());
        for one in messages {
            match self.take(&one.member) {
                Some(at) => taken.push(at),
                None => {
                    taken.into_iter().for_each(|at| self.keep(at));
                    return None;
                }
            }
        }
        let ticket = self.next;
        self.next += 1;
        let mut slots = Vec::with_capacity(messages.len());
        let mut under_way = 0;
        let began = Instant::now();
        for (at, one) in taken.into_iter().zip(messages) {
            let slot = Slot::default();
            let command = CommandInFlight {
                ticket,
                slot: slot.clone(),
                set: one.set.clone(),
                began,
                until: one.until,
            };
            match self.begin(at, &one.message, command) {
                Ok(()) => under_way += 1,
                Err(failure) => *slot.lock() = Some((Err(failure), ReplyRoom::none())),
            }
            slots.push(slot);
        }
        // A message that is not whole at its server is not run.
        if under_way == 0 {
            return None;
        }
        let waiting = Ticket {
            lacking: under_way,
            holds: false,
        };
        self.tickets.insert(ticket, waiting);
        Some((ticket, slots))
    }

    fn begin(&mut self, at: usize, message: &[u8], command: CommandInFlight) -> Outcome<()> {
        let Some(kept) = self.all.get_mut(at) else {
            return Err(Failure::Unreachable("a connection is gone".into()));
        };
        assert!(
            kept.command.is_none(),
            "a connection carries one command at a time"
        );
        match kept.connection.write_now(message) {
            Ok(sent) => {
                kept.unsent
                    .extend_from_slice(message.get(sent..).unwrap_or_default());
                kept.command = Some(command);
                Ok(())
            }
            Err(failure) => {
                self.close(at);
                Err(Failure::Unreachable(failure.to_string()))
            }
        }
    }

    /// An idle connection to a member.
    fn take(&mut self, member: &Arc<Member>) -> Option<usize> {
        let life = member.upstream.life();
        while let Some(at) = self
            .idle
            .get_mut(&key_of(member))
            .and_then(VecDeque::pop_back)
        {
            match self.all.get(at).is_some_and(|kept| kept.life == life) {
                true => return Some(at),
                false => self.close(at),
            }
        }
        let connection = member.upstream.take_idle()?;
        let entry = self.all.vacant_entry();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let (fd, token) = (connection.as_raw_fd(), Token(entry.key()));
        let registry = self.poll.registry();
        registry
            .register(&mut SourceFd(&fd), token, interest)
            .ok()?;
        let kept = LoopConnection {
            connection,
            member: member.clone(),
            life,
            unsent: Vec::new(),
            have: Vec::new(),
            command: None,
            room: ReplyRoom::none(),
            short: false,
            ended: false,
            used: Instant::now(),
        };
        Some(self.all.insert(kept))
    }

    /// Keeps a connection for the next command.
    fn keep(&mut self, at: usize) {
        let Some(kept) = self.all.get_mut(at) else {
            return;
        };
        kept.used = Instant::now();
        let idle = self.idle.entry(key_of(&kept.member)).or_default();
        match kept.life == kept.member.upstream.life() && idle.len() < KEEP {
            true => idle.push_back(at),
            false => self.close(at),
        }
    }

    /// Closes a connection.
    fn close(&mut self, at: usize) {
        let removed = self.all.try_remove(at);
        if removed.as_ref().is_some_and(|kept| kept.short) {
            self.short.retain(|other| *other != at);
            self.control.in_flight.end_wait();
        }
        if let Some(kept) = removed
            && let Some(idle) = self.idle.get_mut(&key_of(&kept.member))
        {
            idle.retain(|other| *other != at);
            if idle.is_empty() {
                self.idle.remove(&key_of(&kept.member));
            }
        }
    }

    /// Takes what has come, and appends the tickets of which all replies are there.
    pub fn take_arrived(&mut self, tickets: &mut Vec<u64>) {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        loop {
            // It is not waited for; what fails now is told by the next poll.
            if self.poll.poll(&mut events, Some(Duration::ZERO)).is_err() {
                break;
            }
            let mut seen = 0;
            for event in &events {
                seen += 1;
                self.on_event(event, tickets);
            }
            if seen < EVENTS {
                break;
            }
        }
        self.events = events;
        self.read_short(tickets);
        self.end_late(tickets);
        self.trim();
    }

    /// Ends requests past their own time, and has the sets of late replies checked.
    fn end_late(&mut self, tickets: &mut Vec<u64>) {
        let now = Instant::now();
        if now - self.looked < LOOK {
            return;
        }
        self.looked = now;
        let mut over = Vec::new();
        for (at, kept) in &self.all {
            match &kept.command {
                Some(command) if command.until.is_some_and(|until| until <= now) => over.push(at),
                Some(command) if now - command.began >= LATE => command.set.is_late(),
                _ => {}
            }
        }
        for at in over {
            self.end(at, Err(time_is_over()), tickets);
        }
    }

    /// Reads on where memory is there by now: not before some was given back.
    fn read_short(&mut self, tickets: &mut Vec<u64>) {
        let given = self.control.in_flight.given();
        if self.short.is_empty() || std::mem::replace(&mut self.given, given) == given {
            return;
        }
        // A request that still waits must not count as the first waiter: that would wake all loops.
        self.control.in_flight.begin_wait();
        for at in std::mem::take(&mut self.short) {
            if let Some(kept) = self.all.get_mut(at) {
                kept.short = false;
                self.control.in_flight.end_wait();
                self.advance(at, tickets);
            }
        }
        self.control.in_flight.end_wait();
    }

    /// Closes connections that were idle for long.
    fn trim(&mut self) {
        let now = Instant::now();
        if now - self.trimmed < TRIM {
            return;
        }
        self.trimmed = now;
        let all = &self.all;
        let is_old = |at: &&usize| all.get(**at).is_none_or(|kept| now - kept.used > IDLE);
        // The longest unused come first.
        let old = self
            .idle
            .values()
            .flat_map(|idle| idle.iter().take_while(is_old));
        let old: Vec<usize> = old.copied().collect();
        old.into_iter().for_each(|at| self.close(at));
    }

    fn on_event(&mut self, event: &Event, tickets: &mut Vec<u64>) {
        let at = event.token().0;
        let ends = event.is_read_closed() || event.is_error();
        let Some(kept) = self.all.get_mut(at) else {
            return;
        };
        if kept.command.is_none() {
            // No request is in flight on it: mostly it is the end of the connection.
            if event.is_readable() || ends {
                self.close(at);
            }
            return;
        }
        kept.ended |= ends;
        if !kept.short {
            self.advance(at, tickets);
        }
    }

    /// Sends and reads on what a connection can for now.
    fn advance(&mut self, at: usize, tickets: &mut Vec<u64>) {
        let outcome = loop {
            let Some(kept) = self.all.get_mut(at) else {
                return;
            };
            match kept.go_on(&mut self.buffer) {
                Ok(Read::Nothing) => return,
                Ok(Read::Wants { bytes }) => {
                    if !self.make_room(at, room_for(bytes)) {
                        return;
                    }
                }
                Ok(Read::Reply(reply)) => break Ok(reply),
                Err(failure) => break Err(failure),
            }
        };
        self.end(at, outcome, tickets);
    }

    /// Gives the reply to the request that waits for it.
    fn end(&mut self, at: usize, outcome: Outcome<DocBuf>, tickets: &mut Vec<u64>) {
        let Some(kept) = self.all.get_mut(at) else {
            return;
        };
        let dropped = outcome.is_err() || kept.ended;
        let room = std::mem::replace(&mut kept.room, ReplyRoom::none());
        if let Some(command) = kept.command.take() {
            *command.slot.lock() = Some((outcome, room));
            self.count(command.ticket, tickets);
        }
        match dropped {
            true => self.close(at),
            false => self.keep(at),
        }
    }

    /// Takes memory for a reply, or has the connection wait for it.
    fn make_room(&mut self, at: usize, bytes: usize) -> bool {
        let Some(kept) = self.all.get_mut(at) else {
            return false;
        };
        let ticket = kept.command.as_ref().map(|command| command.ticket);
        let ticket = ticket.and_then(|ticket| self.tickets.get_mut(&ticket));
        let control = &self.control;
        let in_flight = &control.in_flight;
        match ticket.as_ref().is_none_or(|ticket| ticket.holds) {
            true => in_flight.take(bytes),
            false if in_flight.try_take(bytes) => {}
            false => {
                in_flight.begin_wait();
                // Memory given back before this is not announced to a new waiter, so it tries again
                // itself.
                if !in_flight.try_take(bytes) {
                    kept.short = true;
                    self.short.push(at);
                    return false;
                }
                in_flight.end_wait();
            }
        }
        kept.room = ReplyRoom::taken(control, bytes);
        if let Some(ticket) = ticket {
            ticket.holds = true;
        }
        true
    }

    fn count(&mut self, ticket: u64, tickets: &mut Vec<u64>) {
        let Some(waiting) = self.tickets.get_mut(&ticket) else {
            panic!("a command that has ended has its ticket");
        };
        assert!(waiting.lacking > 0, "each command of a ticket ends once");
        waiting.lacking -= 1;
        if waiting.lacking == 0 {
            self.tickets.remove(&ticket);
            tickets.push(ticket);
        }
    }
}

impl LoopConnection {
    /// Sends and reads on, without waiting.
    fn go_on(&mut self, buffer: &mut [u8]) -> Outcome<Read> {
        if !self.unsent.is_empty() {
            let sent = self.connection.write_now(&self.unsent)?;
            self.unsent.drain(..sent);
        }
        self.connection
            .read_now(&mut self.have, buffer, !self.room.is_none())
    }
}

impl Drop for LoopConnections {
    fn drop(&mut self) {
        self.short
            .iter()
            .for_each(|_| self.control.in_flight.end_wait());
    }
}

impl AsRawFd for LoopConnections {
    /// Polls as readable when [`LoopConnections::take_arrived`] has something to do.
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
