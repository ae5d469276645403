//! The bytes of a segment file.
//!
//! ```text
//! segment = header frame*
//! header  = "PANDOLOG" | version u32 | flags u32 | first index u64 | term before u64 | timestamp before u64
//!           | crc32c of the 40 bytes before u32 | 0 u32                                        48 bytes
//! frame   = length u32 | crc32c u32 | index u64 | timestamp u64 | term u64 | wall clock i64 | lag u32 | payload
//!                                                                                              44 bytes + payload
//! ```
//! All integers little-endian. `length` counts from `index` on; the checksum covers `length` and
//! everything from `index` on. The wall clock is in milliseconds since 1970. `term before` and
//! `timestamp before` belong to the entry before the segment's first one, so that even an empty
//! segment tells where the log ends. `lag` is how far the durable index was behind this entry's
//! index when it was written (saturating). So index − lag was durable by then: the proof that
//! recovery needs to tell a torn tail from damage.
//!
//! Behind the last frame may be zeros: disk space that was reserved. No frame begins with eight of
//! them. Where other bytes follow they are not the end, but damage.
//!
//! In a sealed segment (flag 2) a payload is encrypted, and everything from `index` to `lag` is proven
//! with it (`encryption::EntryCipher`). The checksum is over the bytes of the file: damage is found
//! without a key.

use crate::Stamp;
use encryption::{ENTRY_OVERHEAD_BYTES, EntryCipher};

pub(crate) const HEADER_BYTES: usize = 48;
pub(crate) const FRAME_HEAD_BYTES: usize = 44;
/// The bytes that `length` counts besides the payload.
const FRAME_BODY_HEAD_BYTES: usize = 36;
pub(crate) const VERSION: u32 = 2;
/// The segment does not continue the previous one: the engine's state was ahead of the log when it
/// was opened.
pub(crate) const FLAG_GAP: u32 = 1;
/// Payloads are encrypted.
pub(crate) const FLAG_SEALED: u32 = 2;
/// The largest `length` of a frame; a larger one is damage.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 30;
/// The most bytes that the payload of an entry may have: 1 GiB less the head of its frame and what a sealed one has more.
pub const MAX_PAYLOAD_BYTES: usize = MAX_FRAME_BYTES - FRAME_BODY_HEAD_BYTES - ENTRY_OVERHEAD_BYTES;
/// The largest index. No log reaches it; a larger one read from a disk is damage. So index
/// arithmetic cannot overflow.
const MAX_INDEX: u64 = 1 << 62;
const MAX_TS: u64 = (u32::MAX as u64) << 32;
const MAGIC: &[u8; 8] = b"PANDOLOG";

fn u32_at(buf: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        buf.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

fn u64_at(buf: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        buf.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub version: u32,
    pub flags: u32,
    pub first_index: u64,
    pub term_before: u64,
    pub ts_before: u64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.flags.to_le_bytes());
        out[16..24].copy_from_slice(&self.first_index.to_le_bytes());
        out[24..32].copy_from_slice(&self.term_before.to_le_bytes());
        out[32..40].copy_from_slice(&self.ts_before.to_le_bytes());
        let crc = crc32c::crc32c(&out[..40]);
        out[40..44].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` when `buf` is not a complete header of this version.
    pub fn decode(buf: &[u8]) -> Option<Header> {
        if buf.get(..8)? != MAGIC || crc32c::crc32c(buf.get(..40)?) != u32_at(buf, 40)? {
            return None;
        }
        Some(Header {
            version: u32_at(buf, 8)?,
            flags: u32_at(buf, 12)?,
            first_index: u64_at(buf, 16).filter(|first| *first <= MAX_INDEX)?,
            term_before: u64_at(buf, 24)?,
            ts_before: u64_at(buf, 32).filter(|ts| *ts <= MAX_TS)?,
        })
    }

    /// The version of a header that [`Header::decode`] cannot read because its length differs.
    pub fn other_version(buf: &[u8]) -> Option<u32> {
        let first = buf.get(..8)? == MAGIC && crc32c::crc32c(buf.get(..24)?) == u32_at(buf, 24)?;
        first.then(|| u32_at(buf, 8)).flatten()
    }
}

/// Appends a frame whose payload `fill` writes. One that is to be sealed has room for that, and is no frame before
/// [`seal_all`] has made it one.
pub(crate) fn encode(
    buf: &mut Vec<u8>,
    stamp: &Stamp,
    lag: u32,
    is_sealed: bool,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    let start = buf.len();
    let mut head = [0; FRAME_HEAD_BYTES];
    head[8..16].copy_from_slice(&stamp.index.to_le_bytes());
    head[16..24].copy_from_slice(&stamp.ts.to_le_bytes());
    head[24..32].copy_from_slice(&stamp.term.to_le_bytes());
    head[32..40].copy_from_slice(&stamp.wall_millis.to_le_bytes());
    head[40..44].copy_from_slice(&lag.to_le_bytes());
    buf.extend_from_slice(&head);
    if is_sealed {
        buf.extend_from_slice(&EntryCipher::FRONT);
    }
    fill(buf);
    if is_sealed {
        buf.extend_from_slice(&EntryCipher::BACK);
    }
    let length = (buf.len() - start - 8) as u32;
    buf[start..start + 4].copy_from_slice(&length.to_le_bytes());
    if !is_sealed {
        let crc = checksum(length, &buf[start + 8..]);
        buf[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Seals frames that were encoded for it. They are complete, since only this process has written them.
pub(crate) fn seal_all(mut frames: &mut [u8], cipher: &EntryCipher) {
    while let Some(length) = u32_at(frames, 0) {
        let (frame, rest) = frames.split_at_mut(8 + length as usize);
        let (head, room) = frame.split_at_mut(FRAME_HEAD_BYTES);
        cipher.seal(&head[8..], room);
        let crc = checksum(length, &frame[8..]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
        frames = rest;
    }
}

/// Opens the payload of a sealed frame in place: `frame` is all of it. Returns where the payload begins in it, and how
/// long it is; `None` where it was changed, or sealed with another key.
pub(crate) fn open(frame: &mut [u8], cipher: &EntryCipher) -> Option<(usize, usize)> {
    let (head, sealed) = frame.split_at_mut_checked(FRAME_HEAD_BYTES)?;
    let (at, len) = cipher.open(head.get(8..)?, sealed)?;
    Some((FRAME_HEAD_BYTES + at, len))
}

fn checksum(length: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), body)
}

/// A frame found in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub stamp: Stamp,
    pub lag: u32,
    pub payload: &'a [u8],
}

#[derive(Debug)]
pub(crate) enum Parsed<'a> {
    /// A frame and how many bytes it takes.
    Frame(Frame<'a>, usize),
    /// The buffer ends before the frame does. The frame takes at least this many bytes.
    Short(usize),
    Damaged(&'static str),
}

/// Parses the frame at the start of `buf`.
pub(crate) fn parse(buf: &[u8]) -> Parsed<'_> {
    let Some(length) = u32_at(buf, 0) else {
        return Parsed::Short(FRAME_HEAD_BYTES);
    };
    let length = length as usize;
    if !(FRAME_BODY_HEAD_BYTES..=MAX_FRAME_BYTES).contains(&length) {
        return Parsed::Damaged("its length is impossible");
    }
    let total = 8 + length;
    let Some(body) = buf.get(8..total) else {
        return Parsed::Short(total);
    };
    let (Some(crc), Some(index), Some(ts), Some(term), Some(wall), Some(lag), Some(payload)) = (
        u32_at(buf, 4),
        u64_at(body, 0),
        u64_at(body, 8),
        u64_at(body, 16),
        u64_at(body, 24),
        u32_at(body, 32),
        body.get(FRAME_BODY_HEAD_BYTES..),
    ) else {
        return Parsed::Short(total);
    };
    if checksum(length as u32, body) != crc {
        return Parsed::Damaged("its checksum is wrong");
    }
    if index > MAX_INDEX || ts > MAX_TS {
        return Parsed::Damaged("its index or its timestamp is impossible");
    }
    let stamp = Stamp {
        index,
        ts,
        term,
        wall_millis: wall as i64,
    };
    Parsed::Frame(
        Frame {
            stamp,
            lag,
            payload,
        },
        total,
    )
}

/// How many of the bytes behind the last entry were written: what is reserved behind them is zeros.
pub(crate) fn written_bytes(rest: &[u8]) -> u64 {
    rest.iter()
        .rposition(|b| *b != 0)
        .map_or(0, |at| at as u64 + 1)
}

/// The index field of the frame at the start of `buf`.
pub(crate) fn index_at(buf: &[u8]) -> Option<u64> {
    u64_at(buf, 8)
}

/// The offset in `rest`, at least 1, of the first intact frame of an entry after `index`.
pub(crate) fn next_whole(rest: &[u8], index: u64) -> Option<usize> {
    let limit = index.saturating_add((rest.len() / FRAME_HEAD_BYTES) as u64 + 1);
    (1..rest.len().saturating_sub(FRAME_HEAD_BYTES - 1)).find(|at| {
        u64_at(rest, at + 8).is_some_and(|i| i > index && i <= limit)
            && rest
                .get(*at..)
                .is_some_and(|tail| matches!(parse(tail), Parsed::Frame(..)))
    })
}

/// Whether any intact frame in `rest`, at any offset, proves that `index` was durable. `rest` holds
/// the bytes that follow entry `index` in the log.
pub(crate) fn proves_durable(rest: &[u8], index: u64) -> bool {
    proves_durable_from(rest, index, index)
}

/// The same, for bytes that begin at entry `first` or later.
pub(crate) fn proves_durable_from(rest: &[u8], index: u64, first: u64) -> bool {
    let limit = first.saturating_add((rest.len() / FRAME_HEAD_BYTES) as u64 + 1);
    (0..rest.len().saturating_sub(FRAME_HEAD_BYTES - 1)).any(|at| {
        // The index is checked before the checksum: one load rules out nearly every offset.
        u64_at(rest, at + 8).is_some_and(|i| i > index && i <= limit)
            && rest.get(at..).is_some_and(|tail| match parse(tail) {
                Parsed::Frame(f, _) => f.stamp.index.saturating_sub(u64::from(f.lag)) >= index,
                _ => false,
            })
    })
}
