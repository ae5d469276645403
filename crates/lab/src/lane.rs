//! One thread's share of the load: many connections, each with one request under way, on one poll.
//!
//! Closed loop: a connection sends its next request when the reply to the last was checked. A thread a connection would
//! cost a context switch an operation, and the client must be cheaper than the server that it measures.
//!
//! Invariant: whatever is sent is either answered and counted, or ends the run with a fault. A lane whose run ended
//! normally has nothing under way, so that slices of different lanes can alternate.

use crate::fault::{Fault, Result, target};
use crate::measure::{Recorder, Tick, histogram};
use crate::process::{thread_cpu_time, thread_delay};
use crate::random::Rng;
use crate::reply;
use crate::request::{Template, command, set_request_id};
use bson::{Doc, doc};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use outgoing::Stream;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How long a connection may be without a reply.
const STALL: Duration = Duration::from_secs(120);
/// Once a run is over: no reply for this long, or for this many times the longest operation, is a fault
/// too.
const STALL_AT_END: Duration = Duration::from_secs(10);
const LONGER: u32 = 4;
/// How long replies are waited for after Ctrl-C; then the result is complete.
const FAREWELL: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(250);
/// Unacknowledged requests that one connection sends before the others have their turn.
const BURST: u32 = 32;
const INPUT_BYTES: usize = 16 * 1024;

/// What a request is.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    /// Index into [`Workload::kinds`].
    pub kind: u8,
    /// The kind under which the whole operation is recorded too, when it is more than this request.
    pub whole: Option<u8>,
    /// How many operations it counts for when done (documents of a batch).
    pub units: u32,
    /// The workload's own note, for checking the reply.
    pub tag: u64,
    /// Whether a reply will come.
    pub acknowledged: bool,
}

impl Issued {
    /// A request of the first kind, which is a whole operation, or `units` of them, and gets a reply.
    pub fn plain(units: u32, tag: u64) -> Issued {
        Issued {
            kind: 0,
            whole: None,
            units,
            tag,
            acknowledged: true,
        }
    }
}

/// A whole reply, and the number of the request that it answers.
pub type Numbered<'m> = (&'m [u8], i32);

/// A further request of the same operation, if one was appended.
pub type Judged = Result<Option<Issued>>;

/// What a lane sends, and how it judges the answers.
pub trait Workload: Send {
    /// Names of the kinds of requests, for the result.
    fn kinds(&self) -> &'static [&'static str];

    /// Appends the next request, a whole message, to `out`; `None` when there is nothing left to do.
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued>;

    /// Checks a reply whose `ok` is 1. A further request of the same operation may be appended to `out`.
    fn reply(&mut self, issued: &Issued, reply: Doc<'_>, out: &mut Vec<u8>) -> Judged;

    // The protocol: MongoDB's, unless the workload speaks through a dialect.

    /// Gives a request its number.
    fn stamp(&self, request: &mut [u8], id: i32, _connection: u32) {
        set_request_id(request, id);
    }

    /// Whether `input` holds a whole reply.
    fn frame(&self, input: &[u8]) -> Result<wire::Frame> {
        wire::frame(input).map_err(|f| Fault::Target(format!("the reply is not a message: {f}")))
    }

    /// A whole reply to the request `id`.
    fn message(
        &mut self,
        issued: &Issued,
        (message, id): Numbered<'_>,
        out: &mut Vec<u8>,
    ) -> Judged {
        let body = reply::body(message, id)?;
        reply::ok(body)?;
        self.reply(issued, body, out)
    }
}

/// When the requests of an open loop are due: their response times count from then, however late they are sent.
#[derive(Clone, Copy, Debug)]
pub struct OpenLoopPace {
    /// Operations a second, of this lane.
    pub rate: f64,
    /// The final rate, and the time over which it is reached.
    pub ramp: Option<(f64, Duration)>,
    /// Exponentially distributed gaps (a Poisson process) instead of equal ones.
    pub poisson: bool,
    pub seed: u64,
}

impl OpenLoopPace {
    /// The rate at that time after the start.
    fn at(&self, since: Duration) -> f64 {
        match self.ramp {
            Some((end, over)) => {
                let share = (since.as_secs_f64() / over.as_secs_f64().max(1e-9)).min(1.0);
                self.rate + (end - self.rate) * share
            }
            None => self.rate,
        }
    }
}

/// An open loop under way.
struct Schedule {
    pace: OpenLoopPace,
    rng: Rng,
    start: Instant,
    due: Instant,
    idle: Vec<usize>,
    /// Since when a connection is idle: before that it was the server that a request waited for.
    idle_since: Instant,
    lag: hdrhistogram::Histogram<u64>,
}

impl Schedule {
    fn release(&mut self, connection: usize, now: Instant) {
        if self.idle.is_empty() {
            self.idle_since = now;
        }
        self.idle.push(connection);
    }

    fn next(&mut self) {
        let rate = self.pace.at(self.due - self.start);
        let gap = match self.pace.poisson {
            true => -(1.0 - self.rng.unit()).ln() / rate,
            false => 1.0 / rate,
        };
        self.due += Duration::from_secs_f64(gap.clamp(0.0, 60.0));
    }
}

/// After unacknowledged requests, a ping that tells when all were worked off.
const SYNC: Issued = Issued {
    kind: u8::MAX,
    whole: None,
    units: 0,
    tag: 0,
    acknowledged: true,
};

struct Conn {
    stream: Stream,
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    sent: usize,
    issued: Option<Issued>,
    operation_started: Instant,
    request_started: Instant,
    /// How late the open loop's operation and its first request were sent.
    late: [Duration; 2],
    request_id: i32,
    /// What the dialect gave with the socket.
    number: u32,
    unsynced: bool,
}

/// What one run of a lane gave.
pub struct LaneOutcome {
    pub recorder: Recorder,
    pub elapsed: Duration,
    /// CPU time of the lane's thread.
    pub cpu: Duration,
    /// How long it waited for the server, or for the next request to be due.
    pub idle: Duration,
    /// Sent and received.
    pub bytes: [u64; 2],
    /// How late the client itself sent requests of an open loop, in nanoseconds: after they were due and a connection was idle.
    pub lag: Option<hdrhistogram::Histogram<u64>>,
}

pub struct Lane<W> {
    poll: Poll,
    events: Events,
    conns: Vec<Conn>,
    pub workload: W,
    out: Vec<u8>,
    ready: Vec<usize>,
    /// Connections that sent a burst and want to go on.
    again: Vec<usize>,
    recorder: Recorder,
    live: usize,
    /// Bytes sent and received, those of encrypted connections before they are.
    bytes: [u64; 2],
    /// The server, as a fault names it.
    peer: String,
    deadline: Option<Instant>,
    ping: Template,
    /// Whether each operation is kept by itself.
    pub singles: bool,
    /// Set for an open loop.
    pub pace: Option<OpenLoopPace>,
    schedule: Option<Schedule>,
    /// Time that was spent in waiting for sockets.
    waited: Duration,
}

fn lost(peer: &str, what: &str) -> Fault {
    Fault::Target(format!("{peer} {what} in the middle of the run"))
}

/// The server at a socket's other end, as a fault names it.
fn peer(stream: &Stream) -> String {
    stream
        .peer_addr()
        .map_or("the target".into(), |address| address.to_string())
}

impl<W: Workload> Lane<W> {
    /// `connect` gives a socket that is ready for the workload's requests.
    pub fn connect(
        connect: &dyn Fn() -> Result<(Stream, u32)>,
        connections: usize,
        workload: W,
    ) -> Result<Lane<W>> {
        let poll = Poll::new().map_err(target("poll"))?;
        let mut conns = Vec::with_capacity(connections);
        let mut other = String::new();
        for i in 0..connections {
            let (stream, number) = connect()?;
            other = peer(&stream);
            stream.set_nonblocking(true).map_err(target("socket"))?;
            poll.registry()
                .register(
                    &mut SourceFd(&stream.as_raw_fd()),
                    Token(i),
                    Interest::READABLE | Interest::WRITABLE,
                )
                .map_err(target("poll"))?;
            conns.push(Conn {
                stream,
                input: vec![0; INPUT_BYTES],
                filled: 0,
                output: Vec::new(),
                sent: 0,
                issued: None,
                operation_started: Instant::now(),
                request_started: Instant::now(),
                late: [Duration::ZERO; 2],
                request_id: 0,
                number,
                unsynced: false,
            });
        }
        Ok(Lane {
            poll,
            events: Events::with_capacity(connections.clamp(16, 1024)),
            conns,
            recorder: Recorder::new(workload.kinds().len()),
            workload,
            out: Vec::with_capacity(INPUT_BYTES),
            ready: Vec::new(),
            again: Vec::new(),
            live: 0,
            bytes: [0; 2],
            singles: false,
            peer: other,
            deadline: None,
            ping: command("admin", doc! {"ping": 1}.as_doc()),
            pace: None,
            schedule: None,
            waited: Duration::ZERO,
        })
    }

    /// Runs until the workload has nothing left, `limit` is over or `stop` is set; all replies are in when it returns.
    pub fn run(
        &mut self,
        limit: Option<Duration>,
        stop: &AtomicBool,
        ticks: &Sender<Tick>,
    ) -> Result<LaneOutcome> {
        let (start, cpu, delayed) = (Instant::now(), thread_cpu_time(), thread_delay());
        let kinds = self.workload.kinds().len();
        self.recorder = Recorder::detailed(kinds, self.pace.is_some(), self.singles);
        self.deadline = limit.map(|l| start + l);
        self.live = 0;
        self.bytes = [0; 2];
        self.waited = Duration::ZERO;
        self.again.clear();
        self.schedule = self.pace.map(|pace| Schedule {
            pace,
            rng: Rng::new(pace.seed),
            start,
            due: start,
            idle: Vec::new(),
            idle_since: start,
            lag: histogram(),
        });
        for c in 0..self.conns.len() {
            self.live += 1;
            self.issue(c, Instant::now())?;
        }
        let (mut now, mut next_tick) = (Instant::now(), start + TICK);
        let (mut seen, mut seen_at, mut stopped) = (0, now, None);
        while self.live > 0 {
            self.turn()?;
            now = Instant::now();
            if now >= next_tick {
                let _ = ticks.send(self.recorder.tick());
                next_tick = now + TICK;
                if stop.load(Ordering::Relaxed) {
                    self.deadline = Some(now);
                    let since = *stopped.get_or_insert(now);
                    if now - since > FAREWELL {
                        break;
                    }
                }
                if self.recorder.requests != seen {
                    (seen, seen_at) = (self.recorder.requests, now);
                } else if now - seen_at > self.patience(now) {
                    let what = format!("gave no reply for {} s", (now - seen_at).as_secs());
                    return Err(lost(&self.peer, &what));
                }
            }
        }
        let _ = ticks.send(self.recorder.tick());
        let delayed = thread_delay().saturating_sub(delayed);
        Ok(LaneOutcome {
            recorder: std::mem::replace(&mut self.recorder, Recorder::new(0)),
            elapsed: now - start,
            cpu: thread_cpu_time().saturating_sub(cpu),
            // A thread that waits for a core is not idle.
            idle: self.waited.saturating_sub(delayed),
            bytes: self.bytes,
            lag: self.schedule.take().map(|s| s.lag),
        })
    }

    /// For how long a reply may be missing.
    fn patience(&self, now: Instant) -> Duration {
        let longest = self.recorder.longest();
        match self.deadline.is_some_and(|d| now >= d) {
            true if longest > Duration::ZERO => (longest * LONGER).clamp(STALL_AT_END, STALL),
            _ => STALL,
        }
    }

    fn turn(&mut self) -> Result<()> {
        let wait = match &self.schedule {
            _ if !self.again.is_empty() => Duration::ZERO,
            // A poll sleeps in milliseconds: shorter times are waited for awake.
            Some(s) if !s.idle.is_empty() => {
                let left = s.due.saturating_duration_since(Instant::now());
                left.saturating_sub(Duration::from_millis(1)).min(TICK)
            }
            _ => TICK,
        };
        let before = Instant::now();
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(target("poll")(e)),
            _ => {}
        }
        self.waited += before.elapsed();
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        ready.extend(self.events.iter().map(|e| e.token().0));
        for &c in &ready {
            self.progress(c)?;
        }
        ready.clear();
        ready.append(&mut self.again);
        for &c in &ready {
            self.issue(c, Instant::now())?;
        }
        self.ready = ready;
        self.due()
    }

    /// Sends what an open loop has due on the connections that are idle; at the end it lets them go.
    fn due(&mut self) -> Result<()> {
        loop {
            let now = Instant::now();
            let over = self.deadline.is_some_and(|d| now >= d);
            let Some(schedule) = &mut self.schedule else {
                return Ok(());
            };
            if !over && schedule.due > now {
                return Ok(());
            }
            let Some(c) = schedule.idle.pop() else {
                return Ok(());
            };
            if over {
                self.retire(c)?;
                continue;
            }
            let due = schedule.due;
            let late = now.saturating_duration_since(due);
            let own = now.saturating_duration_since(due.max(schedule.idle_since));
            let ns = u64::try_from(own.as_nanos()).unwrap_or(u64::MAX);
            schedule.lag.saturating_record(ns.max(1));
            schedule.next();
            self.conns[c].late = [late; 2];
            self.begin(c, due)?;
        }
    }

    /// One operation of an open loop, counted from when it was due.
    fn begin(&mut self, c: usize, due: Instant) -> Result<()> {
        self.out.clear();
        let Some(issued) = self.workload.next(&mut self.out) else {
            return self.retire(c);
        };
        self.conns[c].operation_started = due;
        self.send(c, issued, due)?;
        if !issued.acknowledged && self.conns[c].output.is_empty() {
            self.written(c);
            if let Some(s) = &mut self.schedule {
                s.release(c, Instant::now());
            }
        }
        Ok(())
    }

    /// Starts the connection's next operation, or retires the connection when the run is over.
    fn issue(&mut self, c: usize, mut now: Instant) -> Result<()> {
        if let Some(s) = &mut self.schedule {
            s.release(c, now);
            return Ok(());
        }
        for _ in 0..BURST {
            self.out.clear();
            let over = self.deadline.is_some_and(|d| now >= d);
            let next = if over {
                None
            } else {
                self.workload.next(&mut self.out)
            };
            let Some(issued) = next else {
                return self.retire(c);
            };
            self.conns[c].operation_started = now;
            self.send(c, issued, now)?;
            if issued.acknowledged || !self.conns[c].output.is_empty() {
                return Ok(());
            }
            now = self.written(c);
        }
        self.again.push(c);
        Ok(())
    }

    fn retire(&mut self, c: usize) -> Result<()> {
        let conn = &mut self.conns[c];
        conn.issued = None;
        if !std::mem::take(&mut conn.unsynced) {
            self.live -= 1;
            return Ok(());
        }
        self.out.clear();
        self.ping.write(&mut self.out, &[]);
        self.send(c, SYNC, Instant::now())
    }

    /// An unacknowledged request is done when its last byte was taken.
    fn written(&mut self, c: usize) -> Instant {
        let now = Instant::now();
        let conn = &mut self.conns[c];
        conn.unsynced = true;
        if let Some(issued) = conn.issued.take() {
            self.finished(c, &issued, now);
            self.ended(c, &issued, now);
        }
        now
    }

    /// Sends what `self.out` holds.
    fn send(&mut self, c: usize, issued: Issued, now: Instant) -> Result<()> {
        let conn = &mut self.conns[c];
        conn.request_id = conn.request_id.wrapping_add(1);
        conn.request_started = now;
        conn.issued = Some(issued);
        self.workload
            .stamp(&mut self.out, conn.request_id, conn.number);
        self.bytes[0] += self.out.len() as u64;
        let mut done = 0;
        while done < self.out.len() {
            match conn.stream.write(&self.out[done..]) {
                Ok(0) => return Err(lost(&self.peer, "closed a connection")),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    conn.output.clear();
                    conn.sent = 0;
                    conn.output.extend_from_slice(&self.out[done..]);
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(&self.peer, &format!("failed a connection ({e})"))),
            }
        }
        Ok(())
    }

    /// Writes what a full socket left over. Whether all is out now.
    fn flush(&mut self, c: usize) -> Result<bool> {
        let conn = &mut self.conns[c];
        while conn.sent < conn.output.len() {
            match conn.stream.write(&conn.output[conn.sent..]) {
                Ok(0) => return Err(lost(&self.peer, "closed a connection")),
                Ok(n) => conn.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(&self.peer, &format!("failed a connection ({e})"))),
            }
        }
        conn.output.clear();
        conn.sent = 0;
        Ok(true)
    }

    /// The socket is ready for something.
    fn progress(&mut self, c: usize) -> Result<()> {
        if !self.conns[c].output.is_empty() {
            if !self.flush(c)? {
                return Ok(());
            }
            if self.conns[c].issued.is_some_and(|i| !i.acknowledged) {
                let now = self.written(c);
                return self.issue(c, now);
            }
        }
        loop {
            let conn = &mut self.conns[c];
            if !conn.issued.is_some_and(|i| i.acknowledged) {
                return Ok(());
            }
            match conn.stream.read(&mut conn.input[conn.filled..]) {
                Ok(0) => return Err(lost(&self.peer, "closed a connection")),
                Ok(n) => conn.filled += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(lost(&self.peer, &format!("failed a connection ({e})"))),
            }
            match self.workload.frame(&conn.input[..conn.filled])? {
                wire::Frame::Complete { len } if len == conn.filled => {
                    // Nothing more can come before the next request, so the socket need not be read empty.
                    return self.answered(c);
                }
                wire::Frame::Complete { .. } => {
                    return Err(Fault::Target("bytes after a reply".into()));
                }
                wire::Frame::Incomplete { need } => {
                    if conn.input.len() < need {
                        conn.input.resize(need.max(conn.input.len() * 2), 0);
                    }
                }
            }
        }
    }

    /// A whole reply is in the connection's input.
    fn answered(&mut self, c: usize) -> Result<()> {
        let now = Instant::now();
        let conn = &mut self.conns[c];
        let Some(issued) = conn.issued.take() else {
            return Err(Fault::Target("a reply that nobody asked for".into()));
        };
        let filled = std::mem::take(&mut conn.filled);
        self.bytes[1] += filled as u64;
        let message = &conn.input[..filled];
        if issued.kind == SYNC.kind {
            reply::ok(reply::body(message, conn.request_id)?)?;
            self.live -= 1;
            return Ok(());
        }
        self.out.clear();
        let follow_up =
            self.workload
                .message(&issued, (message, conn.request_id), &mut self.out)?;
        self.finished(c, &issued, now);
        if let Some(next) = follow_up {
            self.send(c, next, now)?;
            if next.acknowledged || !self.conns[c].output.is_empty() {
                return Ok(());
            }
            let now = self.written(c);
            return self.issue(c, now);
        }
        self.ended(c, &issued, now);
        self.issue(c, now)
    }

    /// A request is done.
    #[inline]
    fn finished(&mut self, c: usize, issued: &Issued, now: Instant) {
        let conn = &mut self.conns[c];
        let took = now - conn.request_started;
        self.recorder.request(issued.kind, took);
        if self.schedule.is_some() || self.singles {
            // What follows within the operation is sent at once.
            let late = std::mem::take(&mut conn.late[1]);
            self.recorder.detail(issued.kind, took, late);
        }
    }

    /// A whole operation is done.
    #[inline]
    fn ended(&mut self, c: usize, issued: &Issued, now: Instant) {
        let conn = &mut self.conns[c];
        if let Some(kind) = issued.whole {
            let took = now - conn.operation_started;
            self.recorder.whole(kind, took);
            if self.schedule.is_some() || self.singles {
                let late = std::mem::take(&mut conn.late[0]);
                self.recorder.detail(kind, took, late);
            }
        }
        self.recorder.done(issued.units);
    }
}
