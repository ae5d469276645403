//! OP_MSG: sections in, sections out, and the checksum over all of it.
//!
//! Invariant: a [`Msg`] has exactly one body and at most two sequences with different names, every document of which is
//! framed inside its section. The faults, and which of them close the connection, are MongoDB's.

use errors::err;
use smallvec::SmallVec;

use crate::read::{Documents, Reader};
use crate::{HEADER_BYTES, MessageError, begin, op, patch};

/// The message ends with a CRC-32C of all before it.
pub const CHECKSUM_PRESENT: u32 = 1;
/// In a request: no reply is wanted. In a reply: another one follows without a request.
pub const MORE_TO_COME: u32 = 1 << 1;
/// The client can take replies with [`MORE_TO_COME`].
pub const EXHAUST_ALLOWED: u32 = 1 << 16;

/// The low half of the flags: a receiver must know every one that is set.
const REQUIRED_FLAGS: u32 = 0xffff;
const CHECKSUM_BYTES: usize = 4;
const MAX_SEQUENCES: usize = 2;

/// An OP_MSG.
#[derive(Debug)]
pub struct Msg<'a> {
    pub flags: u32,
    /// The body's BSON bytes, framed but not validated.
    pub body: &'a [u8],
    pub sequences: SmallVec<[Sequence<'a>; MAX_SEQUENCES]>,
}

/// A document sequence: a field of the command whose array travels beside the body.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    pub name: &'a str,
    /// The documents, one after the other, each framed but not validated.
    pub documents: &'a [u8],
}

impl<'a> Sequence<'a> {
    pub fn iter(&self) -> Documents<'a> {
        Documents(self.documents)
    }
}

impl<'a> Msg<'a> {
    pub fn more_to_come(&self) -> bool {
        self.flags & MORE_TO_COME != 0
    }

    pub fn exhaust_allowed(&self) -> bool {
        self.flags & EXHAUST_ALLOWED != 0
    }

    /// The flags of a whole message that is an OP_MSG, even of one whose sections do not parse.
    pub fn peek_flags(message: &[u8]) -> u32 {
        message
            .get(HEADER_BYTES..)
            .and_then(|payload| Reader::new(payload).u32())
            .unwrap_or(0)
    }

    pub(crate) fn parse(message: &'a [u8]) -> Result<Msg<'a>, MessageError> {
        let cut = || MessageError::answer(err!(InvalidBSON, "OP_MSG is cut short"));
        let mut payload = Reader::new(message.get(HEADER_BYTES..).ok_or_else(cut)?);
        let flags = payload.u32().ok_or_else(cut)?;
        if flags & REQUIRED_FLAGS & !(CHECKSUM_PRESENT | MORE_TO_COME) != 0 {
            return Err(MessageError::close(err!(
                IllegalOpMsgFlag,
                "Message contains illegal flags value: Ob{flags:032b}"
            )));
        }
        let mut sections = payload.rest();
        if flags & CHECKSUM_PRESENT != 0 {
            let (rest, sum) = sections
                .split_last_chunk::<CHECKSUM_BYTES>()
                .ok_or_else(cut)?;
            if crc32c::crc32c(&message[..message.len() - CHECKSUM_BYTES])
                != u32::from_le_bytes(*sum)
            {
                return Err(MessageError::close(err!(
                    ProtocolError,
                    "OP_MSG checksum does not match contents"
                )));
            }
            sections = rest;
        }
        let mut body = None;
        let mut sequences: SmallVec<[Sequence<'a>; MAX_SEQUENCES]> = SmallVec::new();
        let mut r = Reader::new(sections);
        while let Some(kind) = r.u8() {
            match kind {
                0 if body.is_some() => {
                    return Err(MessageError::answer(err!(
                        40430,
                        "Multiple body sections in message"
                    )));
                }
                0 => body = Some(r.doc().map_err(MessageError::answer)?),
                1 => {
                    if sequences.len() == MAX_SEQUENCES {
                        return Err(MessageError::close(err!(
                            TooManyDocumentSequences,
                            "Too many document sequences in OP_MSG"
                        )));
                    }
                    let sequence = parse_sequence(&mut r)?;
                    if sequences.iter().any(|s| s.name == sequence.name) {
                        return Err(MessageError::answer(err!(
                            40431,
                            "Duplicate document sequence: {}",
                            sequence.name
                        )));
                    }
                    sequences.push(sequence);
                }
                other => {
                    return Err(MessageError::answer(err!(
                        40432,
                        "Unknown section kind {other}"
                    )));
                }
            }
        }
        let body = body
            .ok_or_else(|| MessageError::answer(err!(40587, "OP_MSG messages must have a body")))?;
        Ok(Msg {
            flags,
            body,
            sequences,
        })
    }
}

fn parse_sequence<'a>(r: &mut Reader<'a>) -> Result<Sequence<'a>, MessageError> {
    let bad = || {
        MessageError::answer(err!(
            InvalidBSON,
            "document sequence of OP_MSG is malformed"
        ))
    };
    let size = r
        .i32()
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(bad)?;
    let content = size
        .checked_sub(4)
        .and_then(|n| r.take(n))
        .ok_or_else(bad)?;
    let mut inner = Reader::new(content);
    let name = inner.cstr().ok_or_else(bad)?;
    let documents = inner.rest();
    while !inner.is_empty() {
        inner.doc().map_err(MessageError::answer)?;
    }
    Ok(Sequence { name, documents })
}

/// Appends an OP_MSG's header and flags; gives the message's position, for [`end`].
pub fn begin_msg(out: &mut Vec<u8>, request_id: i32, response_to: i32, flags: u32) -> usize {
    let start = begin(out, request_id, response_to, op::MSG);
    out.extend_from_slice(&(flags & !CHECKSUM_PRESENT).to_le_bytes());
    start
}

/// Opens the body section: the caller appends one document next.
pub fn begin_body(out: &mut Vec<u8>) {
    out.push(0);
}

/// Opens a document sequence: the caller appends documents next, then [`end_sequence`] with the position given here.
pub fn begin_sequence(out: &mut Vec<u8>, name: &str) -> usize {
    out.push(1);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    at
}

pub fn end_sequence(out: &mut [u8], at: usize) {
    let size = out.len().saturating_sub(at);
    patch(out, at, size as u32);
}

/// Closes the message that starts at `start` and runs to the end of `out`: patches its length.
pub fn end(out: &mut [u8], start: usize) {
    let len = out.len().saturating_sub(start);
    patch(out, start, len as u32);
}

/// Adds flags to an OP_MSG that was begun at `start`.
pub fn set_flags(out: &mut [u8], start: usize, flags: u32) {
    let set = Msg::peek_flags(out.get(start..).unwrap_or(&[])) | flags;
    patch(out, start + HEADER_BYTES, set);
}

/// [`end`] for an OP_MSG that shall carry a checksum.
pub fn end_checksummed(out: &mut Vec<u8>, start: usize) {
    set_flags(out, start, CHECKSUM_PRESENT);
    let len = out.len().saturating_sub(start) + CHECKSUM_BYTES;
    patch(out, start, len as u32);
    let sum = crc32c::crc32c(out.get(start..).unwrap_or(&[]));
    out.extend_from_slice(&sum.to_le_bytes());
}
