//! The contract between the sockets and the commands: what the event loops ask of a service, and what
//! the service may know of the server around it (its configuration, its counters, its log, how to stop
//! it).
//!
//! Invariant: no I/O here, and no knowledge of any command or of any socket; `server` and
//! `commands` both stand on it.
//!
//! **How a request is run.** An event loop reads a message and calls [`Service::run`] with
//! [`Mode::Inline`]: the service answers at once, or gives [`Outcome::Suspended`] having
//! changed nothing, and the loop has a worker thread run the request again with [`Mode::Worker`],
//! where it may block. Where reads from the disk are all that is lacking, the service says which
//! ([`Needs::Reads`]); the loop may have them done while it goes on, and run the request
//! again with what they brought ([`Resumed`]). Where replies of other servers are
//! ([`Needs::Replies`]), the loop runs it again when the service says that they are there. A write
//! that is run inline is *staged* in the loop's [`Service::Local`]; at the end of its turn the loop
//! calls [`Service::commit`] once for all of them and only then sends their replies. One connection
//! has one request at a time: the next is read when the reply of the last is on its way.

mod client;
pub mod config;
mod control;
pub mod establishment;
pub mod in_flight;
pub mod logging;
pub mod moves;

pub use client::{Address, Client, OWN_ID, PeerCertificate, Waker};
pub use config::ServerConfig;
pub use control::{Certificates, Control, Metrics, OwnCertificate};
pub use in_flight::InFlight;

use bson::{Doc, Writer};
use errors::{Error, Fallible};
use std::any::Any;
use std::cell::RefCell;
use std::os::fd::RawFd;
use std::time::Instant;

/// Where a request runs, and so what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On an event loop: it must be short and must not block; writes are staged.
    Inline,
    /// On a thread of its own: it may block and take its time; writes are committed by the service
    /// itself.
    Worker,
}

impl Mode {
    /// Whether writes are staged, and the loop's connections wait for the end of it.
    pub fn on_loop(self) -> bool {
        self != Mode::Worker
    }
}

/// One command. The body and every document of the sequences have been validated
/// (`bson::validate`).
#[derive(Debug)]
pub struct Request<'a> {
    pub body: Doc<'a>,
    /// Fields of the command whose array of documents travels beside the body; no name occurs twice
    /// or in the body.
    pub sequences: &'a [wire::Sequence<'a>],
    /// The database when the message itself names it (legacy OP_QUERY on `<db>.$cmd`); else the
    /// body's `$db` does.
    pub legacy_db: Option<&'a str>,
    /// The client wants no reply (an unacknowledged write): the bytes appended to `out` are discarded.
    pub more_to_come: bool,
    /// The client takes a stream of replies: [`Outcome::ReplyMore`] is allowed.
    pub exhaust_allowed: bool,
    /// It has been run before, for the reply before this one of a stream, or until it had to wait
    /// ([`Outcome::ReplyMore`], [`Outcome::Await`]).
    pub again: bool,
    /// The whole message, in bytes.
    pub message_bytes: usize,
    /// It was run before, and lacked reads that have been done since.
    pub resumed: Option<Resumed<'a>>,
}

/// A read from a file that was not done because it may block.
#[derive(Debug)]
pub struct DiskRead {
    /// Open for as long as this lives.
    pub fd: RawFd,
    /// In bytes; in whole sectors where the file is read past the page cache.
    pub offset: u64,
    pub len: usize,
    /// What the service knows it by.
    pub of: Box<dyn Any + Send>,
}

/// What a service wants to have back when it runs a request again.
pub type KeptProgress = Box<dyn Any + Send>;

/// A request that is run again.
#[derive(Clone, Copy, Debug)]
pub struct Resumed<'a> {
    /// What the last run kept, until it is [taken](Resumed::take).
    pub kept: &'a RefCell<Option<KeptProgress>>,
    /// The reads that it lacked, with what each brought: as many bytes as it asked for, or fewer at the
    /// end of the file. Replies of other servers are in `kept`; a missing one was lost.
    pub reads: &'a [(&'a DiskRead, &'a [u8])],
    /// When it was run first.
    pub since: Instant,
}

impl Resumed<'_> {
    /// What the last run kept, if it is a `T`. It is given once.
    pub fn take<T: Any>(&self) -> Option<Box<T>> {
        self.kept.take()?.downcast().ok()
    }
}

impl<'a> Request<'a> {
    /// A command that came in no message: the process's own.
    pub fn own(body: Doc<'a>) -> Request<'a> {
        Request {
            body,
            sequences: &[],
            legacy_db: None,
            more_to_come: false,
            exhaust_allowed: false,
            again: false,
            message_bytes: body.len(),
            resumed: None,
        }
    }

    /// The command's name: the first field of the body.
    pub fn command(&self) -> &'a str {
        self.body.first().map_or("", |e| e.name)
    }

    /// The database that the command addresses, if it says so.
    pub fn db(&self) -> Option<&'a str> {
        self.legacy_db
            .or_else(|| self.body.get("$db").and_then(|v| v.as_str()))
    }

    /// The documents of the sequence `name`.
    pub fn sequence(&self, name: &str) -> Option<impl Iterator<Item = Doc<'a>> + Clone + use<'a>> {
        let found = self.sequences.iter().find(|s| s.name == name)?;
        Some(found.iter().filter_map(Doc::new))
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// The reply document is appended to `out`.
    Reply,
    /// As `Reply`, and the same request shall run again once this reply is on its way: an exhaust
    /// cursor. The reply is marked as one that another follows. Only if the request allowed it.
    ReplyMore,
    /// There is nothing to say yet. Run it again at this time, when the client's [`Waker`] was called
    /// since this run began, or as soon as [`Control::stirred`] differs from `seen`; until then it costs
    /// a place in a list.
    Await { until: Instant, seen: usize },
    /// Inline only. The reply document is appended to `out`, but may be sent only after the group
    /// that the write was staged in is committed, and if `durable`, is on disk.
    Staged { durable: bool },
    /// The reply document is appended to `out`; send it once the log is on disk up to this index.
    WaitDurable(u64),
    /// There is nothing to send.
    NoReply,
    /// Close the connection without a reply.
    Close,
    /// Inline only. Nothing was changed: the request is to run again when it has what it needs.
    Suspended(Unfinished),
}

/// Why a request stopped before its end.
#[derive(Debug)]
pub struct Unfinished {
    pub needs: Needs,
    /// Spares the next run, on a loop or a worker, some of this one. It may be dropped.
    pub kept: Option<KeptProgress>,
}

/// What a suspended request needs to go on.
#[derive(Debug)]
pub enum Needs {
    /// These reads from the disk, and nothing else. Which they are is not always known. A worker
    /// can do them too.
    Reads(Vec<DiskRead>),
    /// A thread that may block and take its time.
    Worker,
    /// What other servers reply. The service has sent them something itself, and tells under this
    /// ticket when all of it is there ([`Service::take_arrived`]). No ticket is given twice.
    Replies(u64),
}

/// Answers requests. Every method may be called from any thread.
pub trait Service: Send + Sync + 'static {
    /// What an event loop or a worker thread keeps from request to request: scratch buffers, and
    /// the staged group.
    type Local;
    /// What a connection keeps: client metadata, authentication, negotiated options.
    type State: Send + Sync + 'static;

    /// For a new event loop or worker thread, on that thread.
    fn local(&self) -> Self::Local;

    /// A client has connected.
    fn connected(&self, id: i64, peer: &Address) -> Self::State;

    /// The client is gone and none of its requests is running.
    fn disconnected(&self, client: &Client<Self::State>);

    /// Whether the service requires a login, and the connection has none: such connections are served
    /// after all others.
    fn is_guest(&self, _client: &Client<Self::State>) -> bool {
        false
    }

    /// Runs one request. Only bytes appended to `out` count, and only under the outcomes that say so:
    /// one whole BSON document. A panic is answered with InternalError and the connection lives on.
    fn run(
        &self,
        local: &mut Self::Local,
        mode: Mode,
        client: &Client<Self::State>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome;

    /// For an event loop, on its thread: a descriptor that polls as readable when
    /// [`Service::take_arrived`] has something to do. `None`: its requests never need replies.
    fn watch_replies(&self, _local: &mut Self::Local) -> Option<RawFd> {
        None
    }

    /// Takes what other servers have sent, without waiting, and appends the tickets of the requests that
    /// may go on. Called also while a request waits for memory ([`InFlight`]), which replies may wait
    /// for too.
    fn take_arrived(&self, _local: &mut Self::Local, _tickets: &mut Vec<u64>) {}

    /// Commits the writes staged in `local` since the last call and gives their log index. On an error
    /// every staged reply is replaced by that error. Called only when at least one request was staged.
    fn commit(&self, local: &mut Self::Local) -> Fallible<u64>;

    /// The log index up to which everything is on disk; an error once the disk has failed for good,
    /// which is then the reply to all that wait.
    fn durable(&self) -> Fallible<u64>;

    /// Asks for the log to be written to disk up to `index`. Does not block.
    fn request_sync(&self, index: u64);

    /// Registers what to call, from any thread, whenever the answer of [`Service::durable`] has
    /// changed.
    fn on_durable(&self, changed: Box<dyn Fn() + Send + Sync>);

    /// Completes the reply document that runs from `body_start` to the end of `out`, just before it
    /// is sent: `operationTime` and `$clusterTime` (see [`append_fields`]).
    fn finish(&self, client: &Client<Self::State>, out: &mut Vec<u8>, body_start: usize);

    /// Appends the reply document for a request that failed before or after [`Service::run`].
    fn write_error(&self, error: &Error, out: &mut Vec<u8>) {
        write_error(error, out);
    }
}

/// Appends `{ok: 0, errmsg, code, codeName}` with the error's own fields and labels.
pub fn write_error(error: &Error, out: &mut Vec<u8>) {
    let mut w = Writer::on(std::mem::take(out));
    if let Some(extra) = error.extra.as_deref().and_then(Doc::new) {
        w.extend(extra);
    }
    w.f64("ok", 0.0).str("errmsg", &error.message);
    w.i32("code", error.code.0)
        .str("codeName", &error.code.name());
    if !error.labels.is_empty() {
        w.open_array("errorLabels");
        for label in &error.labels {
            w.push_value(*label);
        }
        w.close();
    }
    *out = w.finish_into();
}

/// Appends fields to the finished document that runs from `body_start` to the end of `out`.
pub fn append_fields(out: &mut Vec<u8>, body_start: usize, fields: Doc<'_>) {
    let Some(elements) = fields.as_bytes().get(4..) else {
        return;
    };
    if out.len() < body_start + 5 {
        return;
    }
    out.pop();
    out.extend_from_slice(elements); // ends with the terminator
    let len = (out.len() - body_start) as u32;
    if let Some(slot) = out.get_mut(body_start..body_start + 4) {
        slot.copy_from_slice(&len.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies() {
        let error = errors::err!(DuplicateKey, "E11000").with_label("RetryableWriteError");
        let mut out = vec![1, 2, 3];
        write_error(
            &error.with_extra(bson::doc! { "keyValue": 7 }.into_vec()),
            &mut out,
        );
        append_fields(&mut out, 3, bson::doc! { "operationTime": 9 }.as_doc());
        let doc = bson::validate(&out[3..]).unwrap();
        assert_eq!(doc.len(), out.len() - 3);
        let names: Vec<_> = doc.iter().map(|e| e.name).collect();
        assert_eq!(
            names,
            [
                "keyValue",
                "ok",
                "errmsg",
                "code",
                "codeName",
                "errorLabels",
                "operationTime"
            ]
        );
        assert_eq!(
            doc.get("codeName").and_then(|v| v.as_str()),
            Some("DuplicateKey")
        );
        let labels = doc.get("errorLabels").and_then(|v| v.as_array()).unwrap();
        assert_eq!(
            labels.values().next().and_then(|v| v.as_str()),
            Some("RetryableWriteError")
        );
    }
}
