//! The loops with a scripted service: order, group commit, workers, limits, and clients that
//! misbehave.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bson::{Doc, DocBuf, Writer, doc};
use errors::{Fallible, err};
use server::{Limits, listen, serve};
use service::{
    Address, Client, Control, DiskRead, Mode, Needs, Outcome, Request, Service, Unfinished,
};
use wire::{Codec, Compressor, Frame, Message};

type Callback = Box<dyn Fn() + Send + Sync>;

/// Does what the command's name says.
#[derive(Default)]
struct Script {
    committed: AtomicU64,
    durable: AtomicU64,
    fail_commits: AtomicBool,
    fail_disk: AtomicBool,
    hold_disk: AtomicBool,
    cancelled: AtomicUsize,
    gone: AtomicUsize,
    unacknowledged: AtomicUsize,
    awaited: AtomicUsize,
    /// A client that has not sent "enter" is a guest.
    asks_login: AtomicBool,
    /// The number of "turn"s so far.
    turns: AtomicU64,
    on_durable: parking_lot::Mutex<Vec<Callback>>,
    /// Its bytes are 0, 1, 2 and so on.
    file: parking_lot::Mutex<Option<Arc<File>>>,
}

impl Script {
    fn sync(&self) {
        self.durable.store(self.committed.load(SeqCst), SeqCst);
        self.on_durable.lock().iter().for_each(|f| f());
    }
}

/// What a loop or a worker keeps.
#[derive(Default)]
struct Kept {
    /// Writes.
    staged: u64,
    /// Where the loop hears of replies.
    post: Option<Arc<Post>>,
    tickets: u64,
}

/// Replies of another server, as tickets.
struct Post {
    bell: (UnixStream, UnixStream),
    came: parking_lot::Mutex<Vec<u64>>,
}

impl Post {
    fn bring(&self, ticket: u64) {
        self.came.lock().push(ticket);
        (&self.bell.1).write_all(&[0]).unwrap();
    }
}

impl Service for Script {
    type Local = Kept;
    /// Replies given by an exhaust cursor.
    type State = AtomicU64;

    fn local(&self) -> Kept {
        Kept::default()
    }

    fn watch_replies(&self, local: &mut Kept) -> Option<RawFd> {
        let bell = UnixStream::pair().unwrap();
        bell.0.set_nonblocking(true).unwrap();
        let came = Default::default();
        let post = local.post.insert(Arc::new(Post { bell, came }));
        Some(post.bell.0.as_raw_fd())
    }

    fn take_arrived(&self, local: &mut Kept, tickets: &mut Vec<u64>) {
        let post = local.post.as_ref().unwrap();
        while (&post.bell.0).read(&mut [0; 64]).is_ok() {}
        tickets.append(&mut post.came.lock());
    }

    fn connected(&self, _: i64, _: &Address) -> AtomicU64 {
        AtomicU64::new(0)
    }

    fn disconnected(&self, _: &Client<AtomicU64>) {
        self.gone.fetch_add(1, SeqCst);
    }

    fn is_guest(&self, client: &Client<AtomicU64>) -> bool {
        self.asks_login.load(SeqCst) && client.state.load(SeqCst) == 0
    }

    fn run(
        &self,
        local: &mut Kept,
        mode: Mode,
        client: &Client<AtomicU64>,
        r: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let n = r
            .body
            .first()
            .and_then(|e| e.val.to_i64_truncated())
            .unwrap_or(0);
        let mut reply = |fields: DocBuf| out.extend_from_slice(fields.as_bytes());
        match r.command() {
            "ping" => reply(doc! { "ok": 1.0, "n": n, "db": r.db().unwrap_or("?") }),
            "enter" => {
                client.state.store(1, SeqCst);
                reply(doc! { "ok": 1.0 });
            }
            "turn" => reply(doc! { "ok": 1.0, "n": self.turns.fetch_add(1, SeqCst) as i64 }),
            "hold the loop" => {
                std::thread::sleep(Duration::from_millis(n as u64));
                reply(doc! { "ok": 1.0 });
            }
            "count" => reply(
                doc! { "ok": 1.0, "n": r.sequence("documents").map_or(-1, |s| s.count() as i64) },
            ),
            "big" => reply(doc! { "ok": 1.0, "text": "x".repeat(n as usize).as_str() }),
            "stage" => {
                if r.more_to_come {
                    self.unacknowledged.fetch_add(1, SeqCst);
                }
                reply(doc! { "ok": 1.0, "n": n });
                if mode == Mode::Worker {
                    return Outcome::WaitDurable(self.committed.fetch_add(1, SeqCst) + 1);
                }
                local.staged += 1;
                return Outcome::Staged {
                    durable: r.body.contains("durable"),
                };
            }
            "slow" | "stuck" | "crash" if mode == Mode::Inline => {
                return Outcome::Suspended(Unfinished {
                    needs: Needs::Worker,
                    kept: None,
                });
            }
            "fetch" if mode == Mode::Inline => {
                // Reads the next bytes until one of them is `n`; counts its runs.
                let runs = r.resumed.and_then(|r| r.take::<u64>()).map_or(0, |n| *n);
                assert_eq!(runs == 0, r.resumed.is_none());
                let read = r.resumed.map_or(0, |resumed| resumed.reads.len());
                let seen: Vec<u8> = (r.resumed.iter().flat_map(|resumed| resumed.reads))
                    .map(|(of, bytes)| {
                        assert!(of.of.downcast_ref::<Arc<File>>().is_some());
                        bytes.first().copied().unwrap_or(0)
                    })
                    .collect();
                let wanted = r.body.get("wanted").and_then(|v| v.to_i64_truncated());
                let wanted = wanted.unwrap_or(1) as usize;
                if read < wanted || seen.iter().all(|b| i64::from(*b) < n) {
                    let from = seen.iter().copied().max().map_or(0, |b| u64::from(b) + 1);
                    let file = self.file.lock().clone().unwrap();
                    let fd = match r.body.contains("broken") {
                        true => -1,
                        false => file.as_raw_fd(),
                    };
                    let lack = |i| DiskRead {
                        fd,
                        offset: from + i,
                        len: 1,
                        of: Box::new(file.clone()),
                    };
                    return Outcome::Suspended(Unfinished {
                        needs: Needs::Reads((0..wanted as u64).map(lack).collect()),
                        kept: Some(Box::new(runs + 1)),
                    });
                }
                let seen = i64::from(seen.iter().copied().max().unwrap_or(0));
                reply(doc! { "ok": 1.0, "n": seen, "worker": 0, "runs": runs as i64 + 1 });
            }
            "fetch" => reply(doc! { "ok": 1.0, "n": n, "worker": 1 }),
            "remote" => {
                if let Some(resumed) = r.resumed {
                    let there = resumed.take::<Arc<AtomicBool>>().unwrap();
                    let there = i64::from(there.load(SeqCst));
                    reply(doc! { "ok": 1.0, "n": n, "there": there });
                    return Outcome::Reply;
                }
                let there = Arc::new(AtomicBool::new(false));
                local.tickets += 1;
                let (ticket, told) = (local.tickets, there.clone());
                let post = local.post.clone().unwrap();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(n as u64));
                    told.store(true, SeqCst);
                    post.bring(ticket);
                });
                return Outcome::Suspended(Unfinished {
                    needs: Needs::Replies(ticket),
                    kept: Some(Box::new(there)),
                });
            }
            "slow" => {
                std::thread::sleep(Duration::from_millis(n as u64));
                let thread = format!("{:?}", std::thread::current().id());
                reply(doc! { "ok": 1.0, "n": n, "thread": thread.as_str() });
            }
            "stuck" => {
                while !client.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                self.cancelled.fetch_add(1, SeqCst);
                return Outcome::NoReply;
            }
            "panic" | "crash" => {
                let _lost = Writer::on(std::mem::take(out));
                panic!("as asked");
            }
            "exhaust" => {
                let given = client.state.fetch_add(1, SeqCst) + 1;
                reply(doc! { "ok": 1.0, "n": given as i64 });
                if given < n as u64 && r.exhaust_allowed {
                    return Outcome::ReplyMore;
                }
            }
            "await" if !r.again => {
                let seen = r.body.get("seen").and_then(|v| v.to_i64_truncated());
                return Outcome::Await {
                    until: Instant::now() + Duration::from_millis(n as u64),
                    seen: seen.unwrap_or(0) as usize,
                };
            }
            "await" => {
                self.awaited.fetch_add(1, SeqCst);
                reply(doc! { "ok": 1.0, "n": n });
            }
            "nothing" => {}
            "close" => return Outcome::Close,
            other => self.write_error(&err!(CommandNotFound, "no such command: '{other}'"), out),
        }
        Outcome::Reply
    }

    fn commit(&self, local: &mut Kept) -> Fallible<u64> {
        let staged = std::mem::take(&mut local.staged);
        assert!(staged > 0, "nothing to commit");
        if self.fail_commits.load(SeqCst) {
            return Err(err!(OutOfDiskSpace, "the log is full"));
        }
        Ok(self.committed.fetch_add(staged, SeqCst) + staged)
    }

    fn durable(&self) -> Fallible<u64> {
        if self.fail_disk.load(SeqCst) {
            return Err(err!(FileStreamFailed, "the disk has failed"));
        }
        Ok(self.durable.load(SeqCst))
    }

    fn request_sync(&self, _: u64) {
        if !self.hold_disk.load(SeqCst) {
            self.sync();
        }
    }

    fn on_durable(&self, changed: Callback) {
        self.on_durable.lock().push(changed);
    }

    fn finish(&self, _: &Client<AtomicU64>, out: &mut Vec<u8>, body_start: usize) {
        let (committed, durable) = (
            self.committed.load(SeqCst) as i64,
            self.durable.load(SeqCst) as i64,
        );
        service::append_fields(
            out,
            body_start,
            doc! { "committed": committed, "durable": durable }.as_doc(),
        );
    }
}

struct Running {
    address: SocketAddr,
    service: Arc<Script>,
    control: Arc<Control>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Running {
    fn start(limits: Limits) -> Running {
        let listeners = listen(&["127.0.0.1".into()], 0, None).unwrap();
        let address = listeners.addresses()[0];
        let (service, control) = (Arc::new(Script::default()), Arc::new(Control::default()));
        let (s, c) = (Arc::clone(&service), Arc::clone(&control));
        let thread = Some(std::thread::spawn(move || serve(listeners, s, c, limits)));
        Running {
            address,
            service,
            control,
            thread,
        }
    }

    fn client(&self) -> Peer {
        Peer::new(self.address)
    }

    fn stop(mut self) {
        self.control.shutdown();
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert!(
            TcpStream::connect(self.address).is_err(),
            "the port is still open"
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.shutdown();
    }
}

fn two_loops() -> Limits {
    Limits {
        loops: 2,
        grace: Duration::from_millis(200),
        ..Limits::default()
    }
}

struct Peer {
    socket: TcpStream,
    buffer: Vec<u8>,
    next: i32,
}

impl Peer {
    fn new(address: SocketAddr) -> Peer {
        let socket = TcpStream::connect(address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        socket.set_nodelay(true).unwrap();
        Peer {
            socket,
            buffer: Vec::new(),
            next: 0,
        }
    }

    fn message(&mut self, flags: u32, body: &DocBuf) -> Vec<u8> {
        self.next += 1;
        let mut out = Vec::new();
        let start = wire::begin_msg(&mut out, self.next, 0, flags);
        wire::begin_body(&mut out);
        out.extend_from_slice(body.as_bytes());
        wire::end(&mut out, start);
        out
    }

    fn send(&mut self, body: DocBuf) {
        let m = self.message(0, &body);
        self.socket.write_all(&m).unwrap();
    }

    /// One whole message, or `None` when the server has closed.
    fn receive_bytes(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Frame::Complete { len } = wire::frame(&self.buffer).unwrap() {
                return Some(self.buffer.drain(..len).collect());
            }
            let mut chunk = [0; 65536];
            match self.socket.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                // As the kernel does to a thread that has had a ring of its own.
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn receive(&mut self) -> (i32, u32, DocBuf) {
        let bytes = self.receive_bytes().expect("closed");
        let (header, Message::Msg(m)) = wire::parse(&bytes).unwrap() else {
            panic!()
        };
        let body = bson::validate(m.body).unwrap().to_buf();
        (header.response_to, m.flags, body)
    }

    fn call(&mut self, body: DocBuf) -> DocBuf {
        self.send(body);
        let (response_to, _, reply) = self.receive();
        assert_eq!(response_to, self.next);
        reply
    }

    fn is_closed(&mut self) -> bool {
        self.receive_bytes().is_none()
    }
}

fn int(d: &DocBuf, name: &str) -> i64 {
    d.get(name)
        .and_then(|v| v.to_i64_truncated())
        .unwrap_or_else(|| panic!("no {name} in {d:?}"))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn many_connections_are_answered_each_in_order() {
    let server = Running::start(two_loops());
    let mut peers: Vec<Peer> = (0..100).map(|_| server.client()).collect();
    for round in 0..20 {
        for (i, p) in peers.iter_mut().enumerate() {
            p.send(if i % 3 == 0 {
                doc! { "stage": round }
            } else {
                doc! { "ping": round, "$db": "test" }
            });
        }
        for p in &mut peers {
            let (response_to, _, reply) = p.receive();
            assert_eq!((response_to, int(&reply, "n")), (p.next, i64::from(round)));
        }
    }
    assert_eq!(server.control.metrics.connections.load(SeqCst), 100);
    assert_eq!(server.service.committed.load(SeqCst), 34 * 20);
    drop(peers);
    until("all gone", || server.service.gone.load(SeqCst) == 100);
    until("counted", || {
        server.control.metrics.requests.load(SeqCst) == 2000
    });
    assert_eq!(server.control.metrics.connections.load(SeqCst), 0);
    server.stop();
}

fn count_from_zero(server: &Running) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&(0..=255).collect::<Vec<u8>>()).unwrap();
    *server.service.file.lock() = Some(Arc::new(file));
}

#[test]
fn reads_that_a_request_lacks_are_done_while_the_loop_goes_on() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    count_from_zero(&server);
    // Where the kernel has no ring for us, workers read.
    let ring = uring::Ring::<()>::polled(8).is_some();
    let worker = i64::from(!ring);
    let mut peers: Vec<Peer> = (0..20).map(|_| server.client()).collect();
    for p in &mut peers {
        p.send(doc! { "fetch": 0 });
    }
    for p in &mut peers {
        let (_, _, reply) = p.receive();
        assert_eq!((int(&reply, "n"), int(&reply, "worker")), (0, worker));
    }
    let one = &mut peers[0];
    // Several at once; one after the other; and so many in a row that it is a worker's.
    let reply = one.call(doc! { "fetch": 9, "wanted": 10 });
    assert_eq!((int(&reply, "n"), int(&reply, "worker")), (9, worker));
    let reply = one.call(doc! { "fetch": 5 });
    assert_eq!((int(&reply, "n"), int(&reply, "worker")), (5, worker));
    let reply = one.call(doc! { "fetch": 100 });
    assert_eq!(int(&reply, "worker"), 1);
    // More than may be asked for at once, and a read that fails.
    let reply = one.call(doc! { "fetch": 0, "wanted": 1000 });
    assert_eq!(int(&reply, "worker"), 1);
    let reply = one.call(doc! { "fetch": 0, "broken": true });
    assert_eq!(int(&reply, "worker"), 1);
    // While it has the loop to itself.
    for _ in 0..50 {
        let reply = one.call(doc! { "fetch": 3, "wanted": 4 });
        assert_eq!((int(&reply, "n"), int(&reply, "worker")), (3, worker));
        assert!(worker == 1 || int(&reply, "runs") == 2);
    }
    let done = server.control.metrics.disk_reads.load(SeqCst);
    assert_eq!(done > 0, ring);
    // Clients that go while theirs are under way, and a server that stops.
    for mut p in peers {
        p.send(doc! { "fetch": 7, "wanted": 2 });
    }
    until("all gone", || server.service.gone.load(SeqCst) == 20);
    let mut last = server.client();
    last.send(doc! { "fetch": 7 });
    server.stop();
}

#[test]
fn without_a_ring_workers_read() {
    let server = Running::start(Limits {
        reads_under_way: false,
        ..two_loops()
    });
    count_from_zero(&server);
    let reply = server.client().call(doc! { "fetch": 0 });
    assert_eq!(int(&reply, "worker"), 1);
    assert_eq!(server.control.metrics.disk_reads.load(SeqCst), 0);
    server.stop();
}

#[test]
fn a_wait_for_another_server_holds_up_no_client() {
    let server = Running::start(Limits {
        loops: 1,
        ..Limits::default()
    });
    let mut waiting: Vec<_> = (0..8).map(|_| server.client()).collect();
    let mut other = server.client();
    for (i, client) in waiting.iter_mut().enumerate() {
        client.send(doc! { "remote": 400 + 10 * (7 - i as i64) });
    }
    let began = Instant::now();
    assert_eq!(int(&other.call(doc! { "ping": 1 }), "n"), 1);
    // A worker, where it needs one, does not hold up the loop either.
    other.call(doc! { "slow": 1 });
    assert!(began.elapsed() < Duration::from_millis(300));
    for (i, client) in waiting.iter_mut().enumerate() {
        let (_, _, reply) = client.receive();
        assert_eq!(int(&reply, "n"), 400 + 10 * (7 - i as i64));
        assert_eq!(int(&reply, "there"), 1);
    }
    // A client that has gone is dropped when the reply comes.
    let gone = server.service.gone.load(SeqCst);
    let mut leaves = server.client();
    leaves.send(doc! { "remote": 50 });
    other.call(doc! { "ping": 1 });
    drop(leaves);
    until("the client is gone", || {
        server.service.gone.load(SeqCst) == gone + 1
    });
    assert_eq!(int(&waiting[0].call(doc! { "remote": 1 }), "there"), 1);
}

#[test]
fn replies_are_lost_with_the_state_that_waits_for_them() {
    let server = Running::start(Limits {
        loops: 1,
        ..Limits::default()
    });
    let (mut waits, mut other) = (server.client(), server.client());
    waits.send(doc! { "remote": 60_000 });
    other.call(doc! { "ping": 1 });
    other.call(doc! { "panic": 1 });
    assert_eq!(int(&waits.receive().2, "there"), 0);
    // The state that took its place hears of its own.
    assert_eq!(int(&waits.call(doc! { "remote": 1 }), "there"), 1);
}

#[test]
fn pipelined_messages_in_pieces_keep_their_order() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    let mut all = Vec::new();
    for i in 0..300 {
        let body = match i % 5 {
            0 => doc! { "stage": i },
            1 => doc! { "slow": 0, "as": i },
            _ => doc! { "ping": i },
        };
        all.extend(p.message(0, &body));
    }
    let mut writer = p.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for piece in all.chunks(37) {
            writer.write_all(piece).unwrap();
        }
    });
    for i in 1..=300 {
        let (response_to, _, reply) = p.receive();
        assert_eq!(response_to, i);
        // Replies to staged writes are finished, and sent, after their commit.
        assert_eq!(int(&reply, "committed"), i64::from((i + 4) / 5));
    }
    sender.join().unwrap();
    server.stop();
}

#[test]
fn slow_senders_cost_nothing_to_others() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    let (mut slow, mut fast) = (server.client(), server.client());
    let m = slow.message(0, &doc! { "ping": 1 });
    for byte in &m {
        slow.socket.write_all(&[*byte]).unwrap();
        assert_eq!(int(&fast.call(doc! { "ping": 2 }), "n"), 2);
    }
    assert_eq!(int(&slow.receive().2, "n"), 1);
    server.stop();
}

#[test]
fn guests_come_after_all_others() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    let (mut known, mut holder) = (server.client(), server.client());
    known.call(doc! { "enter": 1 });
    holder.call(doc! { "enter": 1 });
    server.service.asks_login.store(true, SeqCst);
    let mut guests: Vec<Peer> = (0..60).map(|_| server.client()).collect();
    for guest in &mut guests {
        guest.call(doc! { "ping": 1 });
    }
    holder.send(doc! { "hold the loop": 300 });
    std::thread::sleep(Duration::from_millis(50));
    for guest in &mut guests {
        guest.send(doc! { "turn": 1 });
    }
    known.send(doc! { "turn": 1 });
    let (_, _, first) = known.receive();
    assert_eq!(
        int(&first, "n"),
        0,
        "a client who is logged in waits for no guest"
    );
    let mut seen: Vec<i64> = guests
        .iter_mut()
        .map(|g| int(&g.receive().2, "n"))
        .collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        (1..=60).collect::<Vec<_>>(),
        "every guest is answered"
    );
    server.stop();
}

#[test]
fn unacknowledged_writes_get_no_reply_and_all_happen() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    let mut all = Vec::new();
    for i in 0..100 {
        all.extend(p.message(wire::MORE_TO_COME, &doc! { "stage": i }));
    }
    p.socket.write_all(&all).unwrap();
    let reply = p.call(doc! { "ping": 0 });
    assert_eq!(int(&reply, "committed"), 100);
    // And those that a client leaves behind when it goes.
    let mut p = server.client();
    let m = p.message(wire::MORE_TO_COME, &doc! { "stage": 1 });
    for _ in 0..100 {
        p.socket.write_all(&m).unwrap();
    }
    drop(p);
    until("left behind", || {
        server.service.committed.load(SeqCst) == 200
    });
    server.stop();
}

#[test]
fn replies_wait_for_the_disk() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    server.service.hold_disk.store(true, SeqCst);
    let mut waiting: Vec<Peer> = (0..5).map(|_| server.client()).collect();
    for p in &mut waiting {
        p.send(doc! { "stage": 1, "durable": true });
    }
    let mut other = server.client();
    until("committed", || {
        int(&other.call(doc! { "ping": 1 }), "committed") == 5
    });
    for p in &mut waiting {
        p.socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        assert!(
            p.socket.read(&mut [0; 1]).is_err(),
            "acknowledged before it was on disk"
        );
        p.socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
    }
    server.service.sync();
    for p in &mut waiting {
        assert_eq!(int(&p.receive().2, "durable"), 5);
    }
    // A failed disk is the reply to all that wait.
    other.send(doc! { "stage": 1, "durable": true });
    until("committed", || server.service.committed.load(SeqCst) == 6);
    server.service.fail_disk.store(true, SeqCst);
    server.service.sync();
    assert_eq!(int(&other.receive().2, "ok"), 0);
    assert_eq!(
        int(&other.call(doc! { "stage": 1, "durable": true }), "ok"),
        0
    );
    assert_eq!(int(&other.call(doc! { "stage": 1 }), "ok"), 1);
    server.stop();
}

#[test]
fn a_failed_commit_is_the_reply() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    server.service.fail_commits.store(true, SeqCst);
    let reply = p.call(doc! { "stage": 1 });
    assert_eq!(
        reply.get("codeName").and_then(|v| v.as_str()),
        Some("OutOfDiskSpace")
    );
    server.service.fail_commits.store(false, SeqCst);
    assert_eq!(int(&p.call(doc! { "stage": 2 }), "n"), 2);
    server.stop();
}

#[test]
fn workers_block_no_client_and_stop_for_those_that_vanish() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    let start = Instant::now();
    let mut slow: Vec<Peer> = (0..20).map(|_| server.client()).collect();
    for p in &mut slow {
        p.send(doc! { "slow": 300 });
    }
    let mut fast = server.client();
    for i in 0..50 {
        assert_eq!(int(&fast.call(doc! { "ping": i }), "n"), i64::from(i));
    }
    assert!(
        start.elapsed() < Duration::from_millis(250),
        "pings waited for sleepers"
    );
    for p in &mut slow {
        assert_eq!(int(&p.receive().2, "n"), 300);
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "sleepers slept one after the other"
    );

    let mut gone = server.client();
    gone.send(doc! { "stuck": 1 });
    until("running", || {
        server.control.metrics.active.load(SeqCst) == 1
    });
    drop(gone);
    until("cancelled", || server.service.cancelled.load(SeqCst) == 1);
    until("gone", || server.service.gone.load(SeqCst) == 1);
    server.stop();
}

#[test]
fn the_worker_that_slept_last_works_first() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    let mut peers: Vec<Peer> = (0..12).map(|_| server.client()).collect();
    peers.iter_mut().for_each(|p| p.send(doc! { "slow": 200 }));
    peers
        .iter_mut()
        .for_each(|p| assert_eq!(int(&p.receive().2, "ok"), 1));
    assert_eq!(server.control.metrics.workers.load(SeqCst), 12);
    // One after the other, one is enough: the others may sleep until they leave.
    let mut threads = std::collections::HashSet::new();
    for _ in 0..40 {
        let reply = peers[0].call(doc! { "slow": 0 });
        let thread = reply.get("thread").and_then(|v| v.as_str());
        threads.insert(thread.map(str::to_owned));
        // It goes to sleep behind its reply.
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(threads.len() <= 4, "{threads:?}");
    server.stop();
}

#[test]
fn workers_are_bounded() {
    let server = Running::start(Limits {
        loops: 1,
        max_workers: 2,
        ..two_loops()
    });
    let mut peers: Vec<Peer> = (0..6).map(|_| server.client()).collect();
    let start = Instant::now();
    peers.iter_mut().for_each(|p| p.send(doc! { "slow": 50 }));
    peers
        .iter_mut()
        .for_each(|p| assert_eq!(int(&p.receive().2, "ok"), 1));
    assert!(
        start.elapsed() >= Duration::from_millis(150),
        "six naps of two sleepers"
    );
    assert!(server.control.metrics.workers.load(SeqCst) <= 2);
    server.stop();
}

#[test]
fn panics_and_broken_contracts_are_answered() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    for _ in 0..3 {
        for command in [
            doc! { "panic": 1 },
            doc! { "crash": 1 },
            doc! { "nothing": 1 },
        ] {
            let reply = p.call(command);
            assert_eq!(
                reply.get("codeName").and_then(|v| v.as_str()),
                Some("InternalError")
            );
        }
        assert_eq!(int(&p.call(doc! { "stage": 1 }), "ok"), 1);
    }
    assert_eq!(int(&p.call(doc! { "unheard": 1 }), "code"), 59);
    p.send(doc! { "close": 1 });
    assert!(p.is_closed());
    server.stop();
}

const HOUR: i64 = 3_600_000;

#[test]
fn a_request_waits_for_its_moment() {
    let server = Running::start(two_loops());
    let mut peer = server.client();
    let start = Instant::now();
    assert_eq!(int(&peer.call(doc! { "await": 30 }), "n"), 30);
    assert!(start.elapsed() >= Duration::from_millis(30));
    // What it had not seen has happened by the time that it waits.
    peer.call(doc! { "await": HOUR, "seen": 7 });
    peer.call(doc! { "await": 0 });
    peer.call(doc! { "ping": 1 });
    server.stop();
}

#[test]
fn who_waits_holds_nothing_and_hears_of_events() {
    let server = Running::start(two_loops());
    let mut peers: Vec<Peer> = (0..100).map(|_| server.client()).collect();
    let (mut far, mut near) = (server.client(), server.client());
    for p in &mut peers {
        p.send(doc! { "await": HOUR });
    }
    // Sent together: the second must wait for the first.
    let both = [
        far.message(0, &doc! { "await": HOUR }),
        far.message(0, &doc! { "ping": 5 }),
    ];
    far.socket.write_all(&both.concat()).unwrap();
    until("read", || {
        near.call(doc! { "ping": 1 });
        server.control.metrics.requests.load(SeqCst) >= 102
    });
    let metrics = &server.control.metrics;
    let busy = metrics.active.load(SeqCst) + metrics.workers.load(SeqCst);
    assert_eq!((busy, server.service.awaited.load(SeqCst)), (0, 0));
    // A client that hangs up is dropped, the others are not.
    drop(peers.split_off(50));
    until("gone", || server.service.gone.load(SeqCst) == 50);
    server.control.stir();
    for p in &mut peers {
        assert_eq!(int(&p.receive().2, "n"), HOUR);
    }
    assert_eq!(int(&far.receive().2, "n"), HOUR);
    assert_eq!(int(&far.receive().2, "n"), 5);
    assert_eq!(server.service.awaited.load(SeqCst), 51);
    server.stop();
}

#[test]
fn shutdown_does_not_wait_for_who_waits() {
    let server = Running::start(Limits {
        grace: Duration::from_secs(3600),
        ..two_loops()
    });
    let mut peer = server.client();
    peer.send(doc! { "await": HOUR });
    until("read", || server.control.metrics.requests.load(SeqCst) == 1);
    server.control.shutdown();
    assert!(peer.is_closed());
    server.stop();
}

#[test]
fn an_exhaust_cursor_streams() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    let m = p.message(
        wire::EXHAUST_ALLOWED,
        &doc! { "exhaust": 500, "pad": "x".repeat(2000).as_str() },
    );
    p.socket.write_all(&m).unwrap();
    let mut expected = p.next;
    for i in 1..=500 {
        let bytes = p.receive_bytes().unwrap();
        let (header, Message::Msg(msg)) = wire::parse(&bytes).unwrap() else {
            panic!()
        };
        assert_eq!(
            header.response_to, expected,
            "each reply answers the one before"
        );
        expected = header.request_id;
        assert_eq!(msg.more_to_come(), i < 500);
        assert_eq!(
            Doc::new(msg.body)
                .unwrap()
                .get("n")
                .and_then(|v| v.to_i64_truncated()),
            Some(i)
        );
    }
    assert_eq!(int(&p.call(doc! { "ping": 3 }), "n"), 3);
    server.stop();
}

#[test]
fn a_client_that_never_reads_is_not_read_from() {
    let server = Running::start(Limits {
        loops: 1,
        ..two_loops()
    });
    let mut p = server.client();
    let m = p.message(0, &doc! { "big": 1_000_000 });
    p.socket.set_nonblocking(true).unwrap();
    let (mut written, start) = (0u64, Instant::now());
    // Far more requests than the socket's buffers hold: they must come to a halt.
    while start.elapsed() < Duration::from_millis(300) {
        match p.socket.write(&m) {
            Ok(n) => written += n as u64,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let served = server.control.metrics.requests.load(SeqCst);
    assert!(
        served < 50,
        "{served} replies of 1 MB for nobody ({written} bytes of requests)"
    );
    let mut other = server.client();
    assert_eq!(int(&other.call(doc! { "ping": 1 }), "n"), 1);
    // It starts to read and gets everything that it asked for.
    p.socket.set_nonblocking(false).unwrap();
    for _ in 0..(written / m.len() as u64).min(200) {
        let bytes = p.receive_bytes().unwrap();
        assert!(bytes.len() > 1_000_000);
    }
    server.stop();
}

#[test]
fn lengths_operations_and_bson_that_are_wrong() {
    let server = Running::start(two_loops());
    let bad_length = |length: i32| {
        let mut p = server.client();
        p.socket.write_all(&length.to_le_bytes()).unwrap();
        assert!(p.is_closed(), "{length}");
    };
    [
        0,
        15,
        -1,
        i32::MIN,
        wire::MAX_FRAME_BYTES as i32 + 1,
        i32::MAX,
    ]
    .into_iter()
    .for_each(bad_length);
    for op in [
        1,
        77,
        wire::op::INSERT,
        wire::op::UPDATE,
        wire::op::DELETE,
        wire::op::KILL_CURSORS,
    ] {
        let mut p = server.client();
        let mut m = p.message(0, &doc! { "ping": 1 });
        m[12..16].copy_from_slice(&op.to_le_bytes());
        p.socket.write_all(&m).unwrap();
        assert!(p.is_closed(), "{op}");
    }
    let mut p = server.client();
    let mut broken = p.message(0, &doc! { "ping": "text" });
    let at = broken.len() - 3;
    broken[at] = 0xff; // not UTF-8
    for times in 0..3 {
        p.socket.write_all(&broken).unwrap();
        let reply = p.receive().2;
        assert_eq!(
            int(&reply, "code"),
            22,
            "InvalidBSON, and the connection lives on ({times})"
        );
    }
    let mut deep = doc! { "x": 1 };
    for _ in 0..200 {
        deep = doc! { "x": deep };
    }
    assert_eq!(int(&p.call(doc! { "ping": deep }), "code"), 15);
    assert_eq!(int(&p.call(doc! { "ping": 4 }), "n"), 4);
    server.stop();
}

#[test]
fn random_bytes_kill_no_loop() {
    use rand::{Rng, SeedableRng};
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let server = Running::start(two_loops());
    let mut steady = server.client();
    for i in 0..300 {
        let mut p = server.client();
        let mut m = p.message(
            0,
            &doc! { "ping": 1, "text": "some more to break", "in": doc! { "a": 1 } },
        );
        for _ in 0..rng.random_range(1..5) {
            let at = rng.random_range(4..m.len());
            m[at] = rng.random();
        }
        m.truncate(rng.random_range(1..=m.len()));
        p.socket.write_all(&m).unwrap();
        let _ = p.socket.shutdown(if rng.random() {
            Shutdown::Write
        } else {
            Shutdown::Both
        });
        if i % 10 == 0 {
            assert_eq!(int(&steady.call(doc! { "ping": i }), "n"), i64::from(i));
        }
    }
    drop(steady);
    until("all gone", || server.service.gone.load(SeqCst) == 301);
    server.stop();
}

#[test]
fn the_largest_message_and_sequences() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    let document = doc! { "text": "y".repeat(1 << 20).as_str() };
    let mut m = Vec::new();
    let start = wire::begin_msg(&mut m, 1, 0, 0);
    wire::begin_body(&mut m);
    m.extend_from_slice(doc! { "count": 1 }.as_bytes());
    let at = wire::begin_sequence(&mut m, "documents");
    let count = (wire::MAX_MESSAGE_BYTES - m.len()) / document.as_bytes().len();
    (0..count).for_each(|_| m.extend_from_slice(document.as_bytes()));
    wire::end_sequence(&mut m, at);
    wire::end_checksummed(&mut m, start);
    p.socket.write_all(&m).unwrap();
    let (_, flags, reply) = p.receive();
    assert_eq!(int(&reply, "n"), count as i64);
    assert_eq!(
        flags & wire::CHECKSUM_PRESENT,
        wire::CHECKSUM_PRESENT,
        "answered in kind"
    );

    // A sequence whose name the body uses too.
    let mut m = Vec::new();
    let start = wire::begin_msg(&mut m, 2, 0, 0);
    wire::begin_body(&mut m);
    m.extend_from_slice(doc! { "count": 1, "documents": 1 }.as_bytes());
    let at = wire::begin_sequence(&mut m, "documents");
    wire::end_sequence(&mut m, at);
    wire::end(&mut m, start);
    p.socket.write_all(&m).unwrap();
    assert_eq!(int(&p.receive().2, "code"), 40433);

    // A field of the body that is there twice.
    let mut m = Vec::new();
    let start = wire::begin_msg(&mut m, 3, 0, 0);
    wire::begin_body(&mut m);
    m.extend_from_slice(doc! { "count": 1, "of": 1, "of": 2 }.as_bytes());
    wire::end(&mut m, start);
    p.socket.write_all(&m).unwrap();
    assert_eq!(int(&p.receive().2, "code"), 40413);
    server.stop();
}

#[test]
fn who_hangs_up_while_waiting_for_room_is_let_go() {
    let server = Running::start(Limits {
        in_flight_bytes: 3 << 20,
        stall: Duration::from_secs(60),
        ..two_loops()
    });
    // Takes most of it, and keeps it.
    let mut keeper = server.client();
    let big = keeper.message(0, &doc! { "ping": 1, "text": "z".repeat(2 << 20).as_str() });
    let (begun, rest) = big.split_at(big.len() / 2);
    keeper.socket.write_all(begun).unwrap();
    until("room was taken", || {
        server.control.in_flight.used() > 1 << 20
    });
    // In the middle of theirs: torn down, and closed. All that was sent fits the socket, so that
    // the end of it is seen.
    for reset in [true, false].repeat(20) {
        let mut p = server.client();
        p.socket.write_all(&big[..100_000]).unwrap();
        if reset {
            let socket = socket2::SockRef::from(&p.socket);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(p);
    }
    // One that has sent all of it, wants no reply and is gone is heard all the same.
    let mut silent = server.client();
    let text = "z".repeat(70_000);
    let whole = doc! { "stage": 1, "text": text.as_str() };
    let whole = silent.message(wire::MORE_TO_COME, &whole);
    silent.socket.write_all(&whole).unwrap();
    drop(silent);
    until("all but the keeper are gone, or wait to be heard", || {
        server.service.gone.load(SeqCst) >= 40
    });
    keeper.socket.write_all(rest).unwrap();
    assert_eq!(int(&keeper.receive().2, "n"), 1);
    until("heard", || server.service.unacknowledged.load(SeqCst) == 1);
    server.stop();
}

#[test]
fn memory_for_large_messages_is_shared_out() {
    let limits = Limits {
        in_flight_bytes: 3 << 20,
        stall: Duration::from_millis(200),
        ..two_loops()
    };
    let server = Running::start(limits);
    // Takes most of it and stalls.
    let mut staller = server.client();
    let big = staller.message(0, &doc! { "ping": 1, "text": "z".repeat(2 << 20).as_str() });
    staller.socket.write_all(&big[..big.len() / 2]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let senders: Vec<_> = (0..8)
        .map(|i| {
            let (mut p, big) = (server.client(), big.clone());
            std::thread::spawn(move || {
                p.socket.write_all(&big).unwrap();
                assert_eq!(int(&p.receive().2, "n"), 1, "{i}");
            })
        })
        .collect();
    // Small ones do not wait at all.
    assert_eq!(int(&server.client().call(doc! { "ping": 5 }), "n"), 5);
    senders.into_iter().for_each(|s| s.join().unwrap());
    assert!(
        staller.is_closed(),
        "one that stalls is given up when others wait"
    );
    server.stop();
}

#[test]
fn unread_replies_are_counted_and_given_up() {
    let limits = Limits {
        in_flight_bytes: 20 << 20,
        stall: Duration::from_millis(300),
        ..two_loops()
    };
    let server = Running::start(limits);
    let in_flight = &server.control.in_flight;
    // Two that ask for more than sockets hold, and do not read.
    let mut greedy: Vec<_> = (0..2).map(|_| server.client()).collect();
    for p in &mut greedy {
        let ask = p.message(0, &doc! { "big": 16 << 20 });
        p.socket.write_all(&ask).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while in_flight.used() < 32 << 20 {
        assert!(Instant::now() < deadline, "{}", in_flight.used());
        std::thread::sleep(Duration::from_millis(5));
    }
    // Short messages do not wait; long ones do, until those that have stalled are given up.
    assert_eq!(int(&server.client().call(doc! { "ping": 5 }), "n"), 5);
    assert_eq!(in_flight.given_up(), 0, "nobody waits for memory");
    let mut p = server.client();
    let long = doc! { "ping": 6, "text": "z".repeat(1 << 20).as_str() };
    assert_eq!(int(&p.call(long), "n"), 6);
    assert!(in_flight.waits() > 0 && in_flight.given_up() > 0);
    drop(greedy);
    while in_flight.used() > 0 {
        assert!(Instant::now() < deadline + Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    // One that reads slowly gets all of it.
    let mut slow = server.client();
    let ask = slow.message(0, &doc! { "big": 16 << 20 });
    slow.socket.write_all(&ask).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let (_, _, reply) = slow.receive();
    assert_eq!(
        reply.get("text").and_then(|v| v.as_str()).map(str::len),
        Some(16 << 20)
    );
    server.stop();
}

#[test]
fn compressed_requests_are_answered_compressed() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    let mut codec = Codec::default();
    for compressor in Compressor::NEGOTIABLE {
        let mut m = p.message(0, &doc! { "big": 5000, "pad": "p".repeat(500).as_str() });
        codec.compress(&mut m, 0, compressor).unwrap();
        p.socket.write_all(&m).unwrap();
        let bytes = p.receive_bytes().unwrap();
        let (header, Message::Compressed(c)) = wire::parse(&bytes).unwrap() else {
            panic!("plain reply")
        };
        assert_eq!((c.compressor, header.response_to), (compressor, p.next));
        let mut plain = Vec::new();
        codec.decompress(&header, &c, &mut plain).unwrap();
        let (_, Message::Msg(msg)) = wire::parse(&plain).unwrap() else {
            panic!()
        };
        assert_eq!(
            bson::validate(msg.body)
                .unwrap()
                .get("text")
                .and_then(|v| v.as_str())
                .map(str::len),
            Some(5000)
        );
    }
    server.stop();
}

#[test]
fn legacy_commands_and_queries() {
    let server = Running::start(two_loops());
    let mut p = server.client();
    let mut ask = |ns: &str, body: DocBuf| {
        let mut m = Vec::new();
        wire::query(&mut m, 5, ns, -1, body.as_bytes());
        p.socket.write_all(&m).unwrap();
        let bytes = p.receive_bytes().unwrap();
        let (header, Message::Reply(r)) = wire::parse(&bytes).unwrap() else {
            panic!()
        };
        assert_eq!(header.response_to, 5);
        (r.flags, Doc::new(r.documents).unwrap().to_buf())
    };
    let (flags, reply) = ask("admin.$cmd", doc! { "ping": 7 });
    assert_eq!(
        (flags, int(&reply, "n")),
        (wire::reply_flags::AWAIT_CAPABLE, 7)
    );
    assert_eq!(reply.get("db").and_then(|v| v.as_str()), Some("admin"));
    let (flags, reply) = ask("test.people", doc! { "name": "x" });
    assert_eq!(
        (flags, int(&reply, "code")),
        (wire::reply_flags::QUERY_FAILURE, 5_739_101)
    );
    assert!(reply.get("$err").is_some());
    server.stop();
}

#[test]
fn connections_past_the_limit_are_closed() {
    let server = Running::start(Limits {
        max_connections: 3,
        ..two_loops()
    });
    let mut peers: Vec<Peer> = (0..3).map(|_| server.client()).collect();
    peers
        .iter_mut()
        .for_each(|p| assert_eq!(int(&p.call(doc! { "ping": 1 }), "n"), 1));
    assert!(server.client().is_closed());
    assert_eq!(server.control.metrics.connections_rejected.load(SeqCst), 1);
    assert_eq!(server.control.metrics.connections_available(), 0);
    peers.pop();
    until("room", || {
        server.control.metrics.connections_available() == 1
    });
    assert_eq!(int(&server.client().call(doc! { "ping": 2 }), "n"), 2);
    server.stop();
}

#[test]
fn shutdown_lets_what_runs_finish_and_cancels_what_does_not() {
    let server = Running::start(two_loops());
    let (mut quick, mut stuck, mut idle) = (server.client(), server.client(), server.client());
    assert_eq!(int(&idle.call(doc! { "ping": 1 }), "n"), 1);
    quick.send(doc! { "slow": 100 });
    stuck.send(doc! { "stuck": 1 });
    until("running", || {
        server.control.metrics.offloaded.load(SeqCst) == 2
    });
    let service = Arc::clone(&server.service);
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(3));
    assert_eq!(int(&quick.receive().2, "n"), 100);
    assert!(idle.is_closed() && stuck.is_closed());
    assert_eq!(service.cancelled.load(SeqCst), 1);
}

#[test]
fn unix_sockets() {
    let path = std::env::temp_dir().join(format!("pando-loops-{}.sock", std::process::id()));
    let listeners = listen(&[], 0, Some(&path)).unwrap();
    assert!(listen(&[], 0, Some(&path)).is_err(), "in use");
    let (service, control) = (Arc::new(Script::default()), Arc::new(Control::default()));
    let (s, c) = (Arc::clone(&service), Arc::clone(&control));
    let thread = std::thread::spawn(move || serve(listeners, s, c, two_loops()));
    let mut socket = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let mut m = Vec::new();
    wire::query(&mut m, 1, "admin.$cmd", -1, doc! { "ping": 1 }.as_bytes());
    socket.write_all(&m).unwrap();
    let mut head = [0; 16];
    socket.read_exact(&mut head).unwrap();
    assert_eq!(wire::Header::read(&head).unwrap().response_to, 1);
    control.shutdown();
    thread.join().unwrap().unwrap();
    assert!(!path.exists());
}

#[test]
fn the_null_service_answers_what_was_recorded() {
    let listeners = listen(&["127.0.0.1".into()], 0, None).unwrap();
    let address = listeners.addresses()[0];
    let control = Arc::new(Control::default());
    let null = Arc::new(server::null::Null::new(doc! { "recorded": 1 }.into_vec()));
    let c = Arc::clone(&control);
    let thread = std::thread::spawn(move || serve(listeners, null, c, two_loops()));
    let mut p = Peer::new(address);
    assert_eq!(int(&p.call(doc! { "hello": 1 }), "maxWireVersion"), 21);
    assert_eq!(p.call(doc! { "find": "x" }), doc! { "recorded": 1 });
    control.shutdown();
    thread.join().unwrap().unwrap();
}

#[test]
fn addresses_that_cannot_be_bound_are_explained() {
    let taken = listen(&["127.0.0.1".into()], 0, None).unwrap();
    let port = taken.addresses()[0].port();
    let error = |hosts: &str, port| listen(&[hosts.to_string()], port, None).err().unwrap();
    assert!(error("127.0.0.1", port).contains("is in use"));
    assert!(error("192.0.2.1", 0).contains("no such address"));
    assert!(error("no.such.host.invalid", 0).contains("cannot resolve"));
}
