//! MongoDB's wire protocol, without I/O: bytes in a buffer to messages, and messages to bytes in a buffer.
//!
//! Invariant: nothing here blocks, reads a socket, or panics on a peer's bytes; a parsed message borrows
//! from the buffer, and a reply is built where it will be sent from, so that a large reply is never
//! copied.
//!
//! ```text
//! message   length i32 | requestId i32 | responseTo i32 | opCode i32 | payload            (little-endian, length counts all)
//! OP_MSG    flags u32 | section… | crc32c u32 if CHECKSUM_PRESENT
//!   section 0 | document                                     body, exactly one
//!           1 | size i32 | name cstring | document…          document sequence, at most two; size counts itself
//! OP_COMPRESSED  original opCode i32 | uncompressed size i32 | compressor u8 | compressed payload
//! OP_QUERY  flags i32 | ns cstring | skip i32 | limit i32 | document | document?
//! OP_REPLY  flags i32 | cursorId i64 | startingFrom i32 | count i32 | document…
//! ```
//!
//! Reading (both directions):
//! ```
//! # let mut out = Vec::new();
//! # let at = wire::begin_msg(&mut out, 1, 0, 0); wire::begin_body(&mut out); out.extend([5, 0, 0, 0, 0]); wire::end(&mut out, at);
//! # let buffer = &out[..];
//! match wire::frame(buffer) {
//!     Ok(wire::Frame::Incomplete { need }) => { /* read on until the buffer holds `need` bytes */ }
//!     Ok(wire::Frame::Complete { len }) => match wire::parse(&buffer[..len]) {
//!         Ok((header, wire::Message::Msg(msg))) => { let (_to, _body, _more) = (header.request_id, msg.body, msg.more_to_come()); }
//!         Ok((_, wire::Message::Compressed(_))) => { /* Codec::decompress into a scratch buffer, then parse that */ }
//!         Ok(_) => { /* Query, Reply, Removed, Unknown */ }
//!         Err(fault) if fault.fatal => { /* close the connection */ }
//!         Err(fault) => { let _answer_with = fault.error; }
//!     },
//!     Err(_fault) => { /* a bad length: close the connection */ }
//! }
//! ```
//!
//! Writing, a request as a client sends it (a reply is the same with `response_to` set and no sequence):
//! ```
//! let mut out = Vec::new();
//! let start = wire::begin_msg(&mut out, 7, 0, 0);
//! wire::begin_body(&mut out);
//! out.extend_from_slice(&[5, 0, 0, 0, 0]); // the body's BSON bytes, appended in place
//! let sequence = wire::begin_sequence(&mut out, "documents");
//! out.extend_from_slice(&[5, 0, 0, 0, 0]); // the documents, one after the other
//! wire::end_sequence(&mut out, sequence);
//! wire::end(&mut out, start); // patches the length; end_checksummed adds a CRC-32C
//! # assert!(matches!(wire::frame(&out), Ok(wire::Frame::Complete { len }) if len == out.len()));
//! ```
//!
//! Documents are framed here (length, terminator), not validated inside: that is `bson::validate`'s work.

mod compress;
mod legacy;
mod msg;
mod read;

pub use compress::{Codec, Compressed, Compressor, may_compress, plain_bytes};
pub use legacy::{OpQuery, OpReply, begin_reply, query, reply_flags};
pub use msg::{
    CHECKSUM_PRESENT, EXHAUST_ALLOWED, MORE_TO_COME, Msg, Sequence, begin_body, begin_msg,
    begin_sequence, end, end_checksummed, end_sequence, set_flags,
};

use errors::{Code, Error, err};
use read::Reader;

/// The longest message in either direction, header included (`maxMessageSizeBytes`).
pub const MAX_MESSAGE_BYTES: usize = 48_000_000;
/// The longest message that is read: a router adds to its client's, which may be of that length.
pub const MAX_FRAME_BYTES: usize = MAX_MESSAGE_BYTES + (64 << 10);
/// The length of a message's header.
pub const HEADER_BYTES: usize = 16;
/// The largest document that a client may store (`maxBsonObjectSize`).
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;
/// The most documents in one write command (`maxWriteBatchSize`).
pub const MAX_WRITE_BATCH: usize = 100_000;
/// The operation codes, by their number on the wire.
pub mod op {
    pub const REPLY: i32 = 1;
    pub const UPDATE: i32 = 2001;
    pub const INSERT: i32 = 2002;
    pub const QUERY: i32 = 2004;
    pub const GET_MORE: i32 = 2005;
    pub const DELETE: i32 = 2006;
    pub const KILL_CURSORS: i32 = 2007;
    pub const COMPRESSED: i32 = 2012;
    pub const MSG: i32 = 2013;
}

/// Why a message cannot be served.
#[derive(Clone, Debug)]
pub struct MessageError {
    pub error: Error,
    /// The connection cannot go on: MongoDB closes it without a reply. Otherwise `error` is the reply.
    pub fatal: bool,
}

impl MessageError {
    /// The connection must be closed.
    pub fn close(error: Error) -> MessageError {
        MessageError { error, fatal: true }
    }

    /// The frame is sound, its content is not: answer with the error and go on.
    pub fn answer(error: Error) -> MessageError {
        MessageError {
            error,
            fatal: false,
        }
    }
}

impl std::fmt::Display for MessageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for MessageError {}

/// The fixed start of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole message, header included, in bytes.
    pub length: usize,
    pub request_id: i32,
    pub response_to: i32,
    pub op_code: i32,
}

impl Header {
    /// The header at the start of `buf`, without judging its length; `None` when `buf` is shorter than a header.
    pub fn read(buf: &[u8]) -> Option<Header> {
        let mut r = Reader::new(buf);
        let length = r.i32()?;
        Some(Header {
            length: usize::try_from(length).unwrap_or(0),
            request_id: r.i32()?,
            response_to: r.i32()?,
            op_code: r.i32()?,
        })
    }
}

/// How much of a message the buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The buffer must grow to `need` bytes in all (a header's length as long as the message's own is not known).
    Incomplete { need: usize },
    /// The first `len` bytes of the buffer are one message.
    Complete { len: usize },
}

/// Finds the first message in `buf`. A length below a header's or past [`MAX_FRAME_BYTES`] is fatal.
pub fn frame(buf: &[u8]) -> Result<Frame, MessageError> {
    let Some(raw) = Reader::new(buf).i32() else {
        return Ok(Frame::Incomplete { need: HEADER_BYTES });
    };
    let len = usize::try_from(raw).unwrap_or(0);
    if !(HEADER_BYTES..=MAX_FRAME_BYTES).contains(&len) {
        return Err(MessageError::close(err!(
            ProtocolError,
            "message length {raw} is invalid. Min: {HEADER_BYTES}, Max: {MAX_FRAME_BYTES}"
        )));
    }
    if buf.len() < len {
        Ok(Frame::Incomplete { need: len })
    } else {
        Ok(Frame::Complete { len })
    }
}

/// One message, borrowed from the buffer that it was read into.
#[derive(Debug)]
pub enum Message<'a> {
    Msg(Msg<'a>),
    Query(OpQuery<'a>),
    Reply(OpReply<'a>),
    Compressed(Compressed<'a>),
    /// An operation that MongoDB dropped in 6.0 (OP_INSERT, OP_UPDATE, OP_DELETE, OP_GET_MORE,
    /// OP_KILL_CURSORS): see [`removed`] for the answer.
    Removed(i32),
    /// Not an operation of this protocol: the connection must be closed.
    Unknown(i32),
}

/// Parses one whole message as delimited by [`frame`].
pub fn parse(message: &[u8]) -> Result<(Header, Message<'_>), MessageError> {
    let header = Header::read(message)
        .filter(|h| h.length == message.len())
        .ok_or_else(|| {
            MessageError::close(err!(
                ProtocolError,
                "message is shorter than its header says"
            ))
        })?;
    let payload = &message[HEADER_BYTES..];
    let parsed = match header.op_code {
        op::MSG => Message::Msg(Msg::parse(message)?),
        op::QUERY => Message::Query(OpQuery::parse(payload)?),
        op::REPLY => Message::Reply(OpReply::parse(payload)?),
        op::COMPRESSED => Message::Compressed(Compressed::parse(payload)?),
        op::UPDATE | op::INSERT | op::GET_MORE | op::DELETE | op::KILL_CURSORS => {
            Message::Removed(header.op_code)
        }
        other => Message::Unknown(other),
    };
    Ok((header, parsed))
}

/// The code of the error for OP_QUERY on a collection and OP_GET_MORE.
pub const LEGACY_READ_REMOVED: i32 = 5_739_101;

/// What a removed operation gets: OP_GET_MORE (and OP_QUERY on a collection, with [`op::QUERY`]) an OP_REPLY that carries
/// the error, since the peer waits for one; the others, which never had a reply, a closed connection.
pub fn removed(op_code: i32) -> MessageError {
    let (name, code, fatal) = match op_code {
        op::QUERY => ("OP_QUERY", LEGACY_READ_REMOVED, false),
        op::GET_MORE => ("OP_GET_MORE", LEGACY_READ_REMOVED, false),
        op::INSERT => ("OP_INSERT", 5_745_702, true),
        op::UPDATE => ("OP_UPDATE", 5_745_702, true),
        op::DELETE => ("OP_DELETE", 5_745_702, true),
        _ => ("OP_KILL_CURSORS", 5_745_702, true),
    };
    let error = Error::new(
        Code(code),
        format!(
            "{name} is no longer supported. The client driver may require an upgrade. For more details see https://dochub.mongodb.org/core/legacy-opcode-removal"
        ),
    );
    MessageError { error, fatal }
}

/// Appends a message header whose length [`end`] fills in; gives its position in `out`.
pub(crate) fn begin(out: &mut Vec<u8>, request_id: i32, response_to: i32, op_code: i32) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&request_id.to_le_bytes());
    out.extend_from_slice(&response_to.to_le_bytes());
    out.extend_from_slice(&op_code.to_le_bytes());
    start
}

/// Writes `value` over four bytes of our own making; out of range is our bug and leaves the bytes as they are.
pub(crate) fn patch(out: &mut [u8], at: usize, value: u32) {
    debug_assert!(at + 4 <= out.len());
    if let Some(slot) = out.get_mut(at..at + 4) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}
