//! Messages to one other member: two queues, each with a thread and a connection, which sends waiting
//! messages in batches and waits for the answer to one before it sends the next.
//!
//! ```text
//! what continues a log ────────────────────────────► main ──► the peer
//! heartbeats, votes, answers ── main carries little ──┘
//!                            └─ it carries much ────► aside ─► the peer
//! ```
//! So a long entry on its way does not keep back what elections depend on.
//!
//! Invariant: what a peer does not take is thrown away past a bound. Consensus sends it again.

use super::{Access, Board};
use crate::client::{Conversation, ServerAddress, refusal};
use bson::{DocBuf, ObjectId, Writer};
use parking_lot::{Condvar, Mutex};
use replication::driver::{KnownMember, MemberReport, Release, SetName};
use replication::message::{self, Message};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What waits for a peer at the most, in bytes.
const QUEUE_BYTES: usize = 64 << 20;
/// What one command carries at the most, in bytes.
const PART_BYTES: usize = 8 << 20;
/// Behind so many bytes that wait or are under way in the main queue, nothing waits that may overtake.
const MUCH_BYTES: usize = 1 << 20;
/// After a failure, before the next try.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a peer that does not answer is logged.
const COMPLAIN: Duration = Duration::from_secs(30);

/// The log's words for a peer without data.
const LACKS: &str = "it has no data of this set (it is new, or its disk was replaced), and is taken in when a majority of the others agrees";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Main,
    /// Opened when it is needed first.
    Aside,
}

pub(super) const QUEUE_KINDS: [QueueKind; 2] = [QueueKind::Main, QueueKind::Aside];

#[derive(Default)]
struct Queue {
    batches: Vec<u8>,
    closed: bool,
}

#[derive(Default)]
struct SendQueue {
    queue: Mutex<Queue>,
    more: Condvar,
    /// Bytes that were taken from the queue and not answered yet.
    under_way: AtomicUsize,
}

impl SendQueue {
    fn put(&self, message: &Message) {
        let mut queue = self.queue.lock();
        if queue.batches.len() < QUEUE_BYTES {
            message::write(message, &mut queue.batches);
            self.more.notify_one();
        }
    }

    fn bytes(&self) -> usize {
        self.queue.lock().batches.len() + self.under_way.load(Relaxed)
    }

    /// What waits; `None` at the end.
    fn next(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue.lock();
        self.under_way.store(0, Relaxed);
        while queue.batches.is_empty() && !queue.closed {
            self.more.wait(&mut queue);
        }
        self.under_way.store(queue.batches.len(), Relaxed);
        (!queue.closed).then(|| std::mem::take(&mut queue.batches))
    }

    fn close(&self) {
        self.queue.lock().closed = true;
        self.more.notify_all();
    }
}

pub(super) struct PeerConnection {
    pub host: String,
    main: SendQueue,
    aside: SendQueue,
    /// What the peer has said of itself last.
    pub report: Mutex<Option<MemberReport>>,
    /// Why it does not take what it is sent.
    pub trouble: Mutex<Option<String>>,
    /// The configuration by which it does not know this member.
    pub without: Mutex<Option<DocBuf>>,
}

impl PeerConnection {
    pub fn new(host: String) -> PeerConnection {
        PeerConnection {
            host,
            main: SendQueue::default(),
            aside: SendQueue::default(),
            report: Mutex::default(),
            trouble: Mutex::default(),
            without: Mutex::default(),
        }
    }

    fn queue_of(&self, kind: QueueKind) -> &SendQueue {
        match kind {
            QueueKind::Main => &self.main,
            QueueKind::Aside => &self.aside,
        }
    }

    fn queue_for(&self, message: &Message) -> &SendQueue {
        match message::may_overtake(message) && self.main.bytes() >= MUCH_BYTES {
            true => &self.aside,
            false => &self.main,
        }
    }

    pub fn put(&self, message: &Message) {
        self.queue_for(message).put(message);
    }

    pub fn close(&self) {
        for kind in QUEUE_KINDS {
            self.queue_of(kind).close();
        }
    }
}

/// What every message between members begins with.
pub(super) fn introduction(set: &SetName, to: u64) -> Writer {
    let mut w = Writer::new();
    w.i32("pandoReplicate", 1)
        .i32("version", message::VERSION)
        .str("set", &set.name)
        .oid("setId", ObjectId(set.id))
        .i64("founder", set.founder as i64)
        .i64("to", to as i64);
    w
}

fn append_board(w: &mut Writer, from: u64, board: &[KnownMember]) {
    w.i64("from", from as i64).open_array("members");
    for known in board {
        w.open_doc("")
            .i64("id", known.id as i64)
            .timestamp("ts", known.durable.ts)
            .i64("term", known.durable.term as i64)
            .i64("wall", known.durable.wall_millis)
            .timestamp("applied", known.report.applied)
            .i32("state", known.report.state)
            .bool("heard", known.is_heard);
        if known.report.release.is_known() {
            w.str("release", &known.report.release.to_string());
        }
        w.close();
    }
    w.close();
}

/// The thread of a queue.
pub(super) struct Sender {
    pub to: u64,
    pub connection: Arc<PeerConnection>,
    pub queue_kind: QueueKind,
    pub access: Arc<Access>,
    pub set: Arc<Mutex<(SetName, Option<DocBuf>)>>,
    pub board: Arc<Mutex<Board>>,
    /// The number of the board that the peer was told last.
    pub spread: u64,
    pub complained: Option<Instant>,
}

impl Sender {
    pub fn run(mut self) {
        let mut socket = None;
        let connection = self.connection.clone();
        while let Some(bytes) = connection.queue_of(self.queue_kind).next() {
            let delivered = self.deliver(&mut socket, &bytes);
            *connection.trouble.lock() = match &delivered {
                Ok(trouble) => trouble.clone(),
                Err(why) => Some(why.clone()),
            };
            if let Err(why) = delivered {
                socket = None;
                self.complain(&why);
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// What the peer says is wrong with it.
    fn deliver(
        &mut self,
        connection: &mut Option<Conversation>,
        bytes: &[u8],
    ) -> Result<Option<String>, String> {
        let opened = match connection {
            Some(opened) => opened,
            None => {
                let address = ServerAddress::parse(&self.access.url(&self.connection.host))?;
                connection.insert(address.open()?)
            }
        };
        let mut trouble = None;
        let mut parts = bytes.chunks(PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let more = parts.peek().is_some();
            let reply = opened.run("admin", self.command(Some((part, more))).as_doc())?;
            if let Some(why) = refusal(reply.as_doc()) {
                return Err(why);
            }
            let applied = reply.as_doc().get("applied");
            if let Some(applied) = applied.and_then(|v| v.as_timestamp()) {
                let state = reply.as_doc().get("state").and_then(|v| v.as_i32());
                let state = state.unwrap_or_default();
                let release = reply.as_doc().get("release").and_then(|v| v.as_str());
                *self.connection.report.lock() = Some(MemberReport {
                    applied,
                    state,
                    release: Release::parse(release.unwrap_or("")),
                });
            }
            if let Some(config) = reply.as_doc().get("config").and_then(|v| v.as_doc()) {
                *self.connection.without.lock() = Some(config.to_buf());
            }
            if reply.as_doc().get("lacks").is_some_and(|v| v.truthy()) {
                let reply = opened.run("admin", self.command(None).as_doc())?;
                return refusal(reply.as_doc()).map_or(Ok(Some(LACKS.into())), Err);
            }
            let damaged = reply.as_doc().get("damaged").and_then(|v| v.as_str());
            trouble = damaged
                .map(|what| format!("its data files are damaged, and it is no candidate: {what}"));
        }
        Ok(trouble)
    }

    /// With messages, or with the configuration.
    fn command(&mut self, messages: Option<(&[u8], bool)>) -> DocBuf {
        let set = self.set.lock();
        let (name, config) = &*set;
        let mut w = introduction(name, self.to);
        let board = self.board.lock();
        if messages.is_some() && board.0 != self.spread {
            self.spread = board.0;
            append_board(&mut w, name.from, &board.1);
        }
        drop(board);
        match (messages, config) {
            (Some((bytes, more)), _) => {
                w.binary("messages", 0, bytes).bool("more", more);
            }
            (None, Some(config)) => {
                w.doc("config", config.as_doc());
            }
            (None, None) => {}
        }
        w.finish()
    }

    fn complain(&mut self, why: &str) {
        if self.complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
            self.complained = Some(Instant::now());
            tracing::warn!(target: "REPL", host = self.connection.host.as_str(), error = why, "A member is not reached");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replication::message::{Entry, MessageType};

    fn with_entry(bytes: usize) -> Message {
        let data = vec![0; bytes].into();
        let entries = vec![Entry {
            data,
            ..Entry::default()
        }];
        Message {
            entries: entries.into(),
            ..of_type(MessageType::MsgAppend)
        }
    }

    fn of_type(msg_type: MessageType) -> Message {
        Message {
            msg_type,
            ..Message::default()
        }
    }

    fn heartbeat() -> Message {
        of_type(MessageType::MsgHeartbeat)
    }

    fn waiting(queue: &SendQueue) -> bool {
        !queue.queue.lock().batches.is_empty()
    }

    #[test]
    fn a_long_entry_does_not_keep_a_heartbeat_back() {
        let connection = PeerConnection::new("a:1".into());
        connection.put(&with_entry(100));
        connection.put(&heartbeat());
        assert!(
            !waiting(&connection.aside),
            "with what carries little it goes"
        );
        connection.put(&with_entry(MUCH_BYTES));
        connection.put(&heartbeat());
        assert!(waiting(&connection.aside), "past what waits");
        connection.aside.next();
        connection.main.next();
        connection.put(&heartbeat());
        assert!(waiting(&connection.aside), "past what is under way");
        assert!(!waiting(&connection.main));
        connection.put(&of_type(MessageType::MsgAppend));
        assert!(
            waiting(&connection.main),
            "what continues the log stays in order"
        );
        connection.main.next();
        connection.aside.next();
        connection.put(&heartbeat());
        assert!(waiting(&connection.main), "what was much is answered");
        connection.close();
        assert_eq!(connection.main.next(), None);
    }
}
