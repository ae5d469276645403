//! From a message to a reply: parse, validate, run, frame. The same on an event loop and on a
//! worker.
//!
//! Invariant: `out` holds only the message that is built in it. Whatever the message contains and
//! the service does (even a panic), the connection can act on the outcome.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use bson::{Doc, Malformed};
use errors::{Error, err};
use service::{Client, Mode, Needs, Outcome, Request, Resumed, Service, Unfinished};
use smallvec::SmallVec;
use wire::{Codec, Compressor, Header, Message, MessageError, Sequence};

/// How deep a command or a document in it may nest (MongoDB's limit for messages; for stored
/// documents it is lower).
const MESSAGE_DEPTH: usize = 200;
/// A larger scratch buffer is freed.
const KEPT_SCRATCH_BYTES: usize = 1 << 20;

static NEXT_REPLY_ID: AtomicI32 = AtomicI32::new(1);

/// What a thread needs to run requests.
pub(crate) struct Runner<S: Service> {
    service: Arc<S>,
    local: S::Local,
    mode: Mode,
    /// A message that decompresses to more bytes than this goes to a worker.
    inline_bytes: usize,
    codec: Codec,
    plain: Vec<u8>,
    /// How often the service's state for this thread was replaced.
    pub resets: u64,
}

/// The parts needed to complete a reply.
#[derive(Debug)]
pub(crate) struct Head {
    /// Where the reply document starts.
    pub body: usize,
    pub reply_id: i32,
    pub respond_to: i32,
    legacy: bool,
    compressor: Option<Compressor>,
    checksum: bool,
}

impl Head {
    /// Starts the reply over in `out`, up to where the document begins.
    fn begin(&mut self, out: &mut Vec<u8>, reply_flags: i32) {
        out.clear();
        if self.legacy {
            wire::begin_reply(out, self.reply_id, self.respond_to, reply_flags);
        } else {
            wire::begin_msg(out, self.reply_id, self.respond_to, 0);
            wire::begin_body(out);
        }
        self.body = out.len();
    }
}

#[derive(Debug)]
pub(crate) struct Executed {
    pub outcome: Outcome,
    /// `None` when nothing is to be sent.
    pub head: Option<Head>,
    /// The service panicked: its state for this thread must not be used again.
    pub panicked: bool,
    /// The service has seen the message, so its BSON is valid.
    pub served: bool,
}

impl Executed {
    pub fn bare(outcome: Outcome) -> Executed {
        Executed {
            outcome,
            head: None,
            panicked: false,
            served: false,
        }
    }
}

/// A parsed message, or its fault.
struct Incoming<'a> {
    header: Header,
    legacy: bool,
    flags: u32,
    /// The message came compressed, and the reply may go the same way.
    compressor: Option<Compressor>,
    content: Result<Content<'a>, MessageError>,
}

struct Content<'a> {
    body: Doc<'a>,
    sequences: SmallVec<[Sequence<'a>; 2]>,
    legacy_db: Option<&'a str>,
}

impl<S: Service> Runner<S> {
    pub fn new(service: Arc<S>, mode: Mode, inline_bytes: usize) -> Runner<S> {
        let local = service.local();
        Runner {
            service,
            local,
            mode,
            inline_bytes,
            codec: Codec::default(),
            plain: Vec::new(),
            resets: 0,
        }
    }

    /// After a panic: replaces the service's state for this thread, which must not be used again.
    pub fn reset(&mut self) {
        self.local = self.service.local();
        self.resets += 1;
    }

    /// What polls as readable when replies of other servers have come.
    pub fn watch_replies(&mut self) -> Option<RawFd> {
        self.service.watch_replies(&mut self.local)
    }

    /// Appends the tickets of requests whose replies are there.
    pub fn take_arrived(&mut self, tickets: &mut Vec<u64>) {
        let taken = catch_unwind(AssertUnwindSafe(|| {
            self.service.take_arrived(&mut self.local, tickets);
        }));
        if taken.is_err() {
            tracing::error!(target: "NETWORK", "Taking replies of other servers panicked");
            self.reset();
        }
    }

    /// Commits the staged writes; a panic of the service is an error like any other.
    pub fn commit(&mut self) -> Result<u64, Error> {
        let committed = catch_unwind(AssertUnwindSafe(|| self.service.commit(&mut self.local)));
        committed.unwrap_or_else(|panic| {
            tracing::error!(target: "STORAGE", "A commit panicked");
            self.reset();
            Err(panic_error(&*panic))
        })
    }

    /// Runs a complete `message`. `respond_to` is the message that the reply answers, when that is not
    /// `message` itself; `resumed`: what the service has kept of its last run. The caller vouches that
    /// the service has seen this message ([`Executed::served`]): its documents are not validated again.
    pub fn execute(
        &mut self,
        client: &Client<S::State>,
        message: &[u8],
        respond_to: Option<i32>,
        resumed: Option<Resumed<'_>>,
        out: &mut Vec<u8>,
    ) -> Executed {
        let documents = match resumed {
            None => Documents::Unknown,
            Some(_) => Documents::Valid,
        };
        let (header, compressed) = match wire::parse(message) {
            Ok((header, Message::Compressed(c))) => (header, c),
            parsed => {
                let incoming = understand(message, parsed, documents);
                return self.run(client, incoming, respond_to, resumed, out);
            }
        };
        if self.mode.on_loop() && compressed.uncompressed_bytes > self.inline_bytes {
            return Executed::bare(Outcome::Suspended(Unfinished {
                needs: Needs::Worker,
                kept: None,
            }));
        }
        let mut plain = std::mem::take(&mut self.plain);
        let executed = match self.codec.decompress(&header, &compressed, &mut plain) {
            Ok(()) => {
                let mut incoming = understand(&plain, wire::parse(&plain), documents);
                incoming.compressor = Some(compressed.compressor);
                self.run(client, incoming, respond_to, resumed, out)
            }
            Err(fault) => {
                log_close(client.id, &fault.error);
                Executed::bare(Outcome::Close)
            }
        };
        if plain.capacity() <= KEPT_SCRATCH_BYTES {
            self.plain = plain;
        }
        executed
    }

    fn run(
        &mut self,
        client: &Client<S::State>,
        incoming: Incoming<'_>,
        respond_to: Option<i32>,
        resumed: Option<Resumed<'_>>,
        out: &mut Vec<u8>,
    ) -> Executed {
        out.clear();
        let silent = incoming.flags & wire::MORE_TO_COME != 0;
        let mut head = Head {
            body: 0,
            reply_id: NEXT_REPLY_ID.fetch_add(1, Relaxed),
            respond_to: respond_to.unwrap_or(incoming.header.request_id),
            legacy: incoming.legacy,
            compressor: None,
            checksum: incoming.flags & wire::CHECKSUM_PRESENT != 0,
        };
        let mut served = false;
        let (outcome, panicked) = match incoming.content {
            Err(fault) if fault.fatal => {
                log_close(client.id, &fault.error);
                return Executed::bare(Outcome::Close);
            }
            Err(fault) => {
                self.refuse_message(&mut head, out, &fault.error);
                (Outcome::Reply, false)
            }
            Ok(content) => {
                served = true;
                head.begin(out, wire::reply_flags::AWAIT_CAPABLE);
                let request = Request {
                    body: content.body,
                    sequences: &content.sequences,
                    legacy_db: content.legacy_db,
                    more_to_come: silent,
                    exhaust_allowed: incoming.flags & wire::EXHAUST_ALLOWED != 0 && !silent,
                    again: respond_to.is_some(),
                    message_bytes: incoming.header.length,
                    resumed,
                };
                let may_compress = wire::may_compress(request.command());
                head.compressor = incoming.compressor.filter(|_| may_compress);
                self.call(client, &request, &mut head, out)
            }
        };
        if !silent {
            return Executed {
                outcome,
                head: Some(head),
                panicked,
                served,
            };
        }
        out.clear();
        Executed {
            outcome: match outcome {
                Outcome::Reply | Outcome::ReplyMore | Outcome::WaitDurable(_) => Outcome::NoReply,
                other => other,
            },
            head: None,
            panicked,
            served,
        }
    }

    /// Runs a request in the service, and checks its outcome. The second value: whether the service
    /// panicked.
    fn call(
        &mut self,
        client: &Client<S::State>,
        request: &Request<'_>,
        head: &mut Head,
        out: &mut Vec<u8>,
    ) -> (Outcome, bool) {
        let (service, local, mode) = (&self.service, &mut self.local, self.mode);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            service.run(local, mode, client, request, out)
        }));
        match ran {
            Ok(outcome) => (self.enforce_contract(outcome, request, head, out), false),
            Err(panic) => {
                let error = panic_error(&*panic);
                tracing::error!(target: "COMMAND", ctx = %format_args!("conn{}", client.id),
                    command = request.command(), error = %error.message, "A command panicked");
                self.refuse(head, out, &error);
                (Outcome::Reply, true)
            }
        }
    }

    /// Makes an error the reply to a message that holds no command.
    fn refuse_message(&self, head: &mut Head, out: &mut Vec<u8>, error: &Error) {
        if !head.legacy || error.code.0 != wire::LEGACY_READ_REMOVED {
            return self.refuse(head, out, error);
        }
        // A legacy query or getMore is answered the way its sender reads errors.
        head.begin(out, wire::reply_flags::QUERY_FAILURE);
        let (message, code) = (error.message.as_str(), error.code.0);
        let reply = bson::doc! { "$err": message, "code": code, "ok": 0.0 };
        out.extend_from_slice(reply.as_bytes());
    }

    /// Makes an error the reply, whatever was in `out`.
    fn refuse(&self, head: &mut Head, out: &mut Vec<u8>, error: &Error) {
        head.begin(out, wire::reply_flags::AWAIT_CAPABLE);
        self.service.write_error(error, out);
    }

    /// Checks the service's outcome: one that the mode or the request does not allow, or a reply
    /// that is no document, becomes InternalError.
    fn enforce_contract(
        &self,
        outcome: Outcome,
        request: &Request<'_>,
        head: &mut Head,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let framed = || {
            out.get(head.body..)
                .and_then(Doc::new)
                .is_some_and(|d| d.len() == out.len() - head.body)
        };
        let problem = match &outcome {
            Outcome::Staged { .. } | Outcome::Suspended(_) if self.mode == Mode::Worker => {
                "an outcome of event loops"
            }
            Outcome::ReplyMore if !request.exhaust_allowed && !request.more_to_come => {
                "a stream that was not asked for"
            }
            Outcome::Reply
            | Outcome::ReplyMore
            | Outcome::Staged { .. }
            | Outcome::WaitDurable(_)
                if !request.more_to_come && !framed() =>
            {
                "a reply that is no document"
            }
            _ => return outcome,
        };
        let error = Error::internal(format!("the command {} gave {problem}", request.command()));
        tracing::error!(target: "COMMAND", error = %error.message, "A command broke its contract");
        self.refuse(head, out, &error);
        match outcome {
            // The staged write is in the group nevertheless.
            Outcome::Staged { .. } if self.mode.on_loop() => outcome,
            _ => Outcome::Reply,
        }
    }

    /// Replaces the reply's document by an error.
    pub fn replace(&self, head: &Head, out: &mut Vec<u8>, error: &Error) {
        out.truncate(head.body);
        self.service.write_error(error, out);
    }

    /// Completes the reply in `out`: the fields of the moment, flags, length, checksum or
    /// compression. False when that failed, and the connection must be closed.
    pub fn finish(
        &mut self,
        client: &Client<S::State>,
        head: &Head,
        more: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        let finished = catch_unwind(AssertUnwindSafe(|| {
            self.service.finish(client, out, head.body)
        }));
        if finished.is_err() || out.len() < head.body {
            return false;
        }
        if more && !head.legacy {
            wire::set_flags(out, 0, wire::MORE_TO_COME);
        }
        if let Some(with) = head.compressor {
            wire::end(out, 0);
            return self.codec.compress(out, 0, with).is_ok();
        }
        if head.checksum && !head.legacy {
            wire::end_checksummed(out, 0)
        } else {
            wire::end(out, 0)
        }
        true
    }
}

/// Whether the documents of a message are validated.
#[derive(Clone, Copy)]
enum Documents {
    Unknown,
    /// The message was run before.
    Valid,
}

impl Documents {
    /// A command: no field occurs twice, so every reader of a field finds the same.
    fn read(self, bytes: &[u8]) -> Result<Doc<'_>, MessageError> {
        let doc = match (self, Doc::new(bytes)) {
            (Documents::Valid, Some(doc)) => return Ok(doc),
            _ => validated(bytes)?,
        };
        match doc.repeated_name() {
            None => Ok(doc),
            Some(field) => Err(MessageError::answer(err!(
                IDLDuplicateField,
                "BSON field '{}.{field}' is a duplicate field",
                doc.first().map_or("", |e| e.name)
            ))),
        }
    }
}

fn understand<'a>(
    message: &'a [u8],
    parsed: Result<(Header, Message<'a>), MessageError>,
    documents: Documents,
) -> Incoming<'a> {
    let header = Header::read(message).unwrap_or(Header {
        length: 0,
        request_id: 0,
        response_to: 0,
        op_code: 0,
    });
    let legacy = header.op_code != wire::op::MSG;
    let flags = if legacy {
        0
    } else {
        wire::Msg::peek_flags(message)
    };
    Incoming {
        legacy,
        flags,
        compressor: None,
        content: parsed.and_then(|(_, message)| content_of(message, header.op_code, documents)),
        header,
    }
}

fn content_of(
    message: Message<'_>,
    op_code: i32,
    documents: Documents,
) -> Result<Content<'_>, MessageError> {
    match message {
        Message::Msg(msg) => {
            let body = documents.read(msg.body)?;
            for sequence in &msg.sequences {
                if body.contains(sequence.name) {
                    return Err(MessageError::answer(err!(
                        40433,
                        "Duplicate field between body and document sequence {}",
                        sequence.name
                    )));
                }
                if let Documents::Unknown = documents {
                    for document in sequence.iter() {
                        validated(document)?;
                    }
                }
            }
            Ok(Content {
                body,
                sequences: msg.sequences,
                legacy_db: None,
            })
        }
        Message::Query(query) => {
            let db = query
                .command_db()
                .ok_or_else(|| wire::removed(wire::op::QUERY))?;
            Ok(Content {
                body: documents.read(query.command()?)?,
                sequences: SmallVec::new(),
                legacy_db: Some(db),
            })
        }
        Message::Removed(op) => Err(wire::removed(op)),
        Message::Reply(_) | Message::Compressed(_) => Err(MessageError::close(err!(
            ProtocolError,
            "operation {op_code} is not a request"
        ))),
        Message::Unknown(op) => Err(MessageError::close(err!(
            ProtocolError,
            "operation {op} is not known"
        ))),
    }
}

fn validated(bytes: &[u8]) -> Result<Doc<'_>, MessageError> {
    bson::validate_with_depth(bytes, MESSAGE_DEPTH).map_err(|malformed| {
        MessageError::answer(match malformed {
            Malformed::TooDeep => err!(
                Overflow,
                "BSONObj exceeded maximum nested object depth: {MESSAGE_DEPTH}"
            ),
            other => err!(InvalidBSON, "{other}"),
        })
    })
}

fn panic_error(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::internal(format!(
        "the server failed on this command: {}",
        what.unwrap_or("unknown panic")
    ))
}

pub(crate) fn log_close(connection: i64, error: &Error) {
    tracing::warn!(target: "NETWORK", id = 4615638, ctx = %format_args!("conn{connection}"), error = %error,
        "Closing a connection after a message that cannot be served");
}
