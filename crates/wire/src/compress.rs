//! OP_COMPRESSED: a message inside a message.
//!
//! Invariant: what a peer says about sizes is a limit, never a promise: nothing is decompressed past the size that the
//! message states, that size is at most [`MAX_MESSAGE_BYTES`], and content that ends short of it or runs past it is fatal.

use errors::{Error, err};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::read::Reader;
use crate::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MessageError, begin, end, op};

/// Original opCode, uncompressed size, compressor.
const PREFIX_BYTES: usize = 9;
/// Below this a compressed message saves no packet and costs time.
const WORTH_COMPRESSING_BYTES: usize = 192;
const ZLIB_LEVEL: u32 = 3;
const ZSTD_LEVEL: i32 = 1;

/// The compressors of the protocol, by their number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compressor {
    Noop = 0,
    Snappy = 1,
    Zlib = 2,
    Zstd = 3,
}

impl Compressor {
    /// What `hello` negotiates, in the server's order of preference.
    pub const NEGOTIABLE: [Compressor; 3] =
        [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib];

    pub fn from_id(id: u8) -> Option<Compressor> {
        [
            Compressor::Noop,
            Compressor::Snappy,
            Compressor::Zlib,
            Compressor::Zstd,
        ]
        .into_iter()
        .find(|c| *c as u8 == id)
    }

    /// The name in `hello`'s `compression` array.
    pub fn name(self) -> &'static str {
        match self {
            Compressor::Noop => "noop",
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    pub fn from_name(name: &str) -> Option<Compressor> {
        Compressor::NEGOTIABLE
            .into_iter()
            .find(|c| c.name() == name)
    }
}

/// Whether a command and its reply may travel compressed: those that carry credentials, or come before a compressor is
/// agreed on, never do (MongoDB's compression specification). Names match without regard to case.
pub fn may_compress(command: &str) -> bool {
    const NEVER: [&str; 11] = [
        "hello",
        "isMaster",
        "saslStart",
        "saslContinue",
        "getnonce",
        "authenticate",
        "createUser",
        "updateUser",
        "copydbSaslStart",
        "copydbgetnonce",
        "copydb",
    ];
    !NEVER
        .iter()
        .any(|never| never.eq_ignore_ascii_case(command))
}

/// An OP_COMPRESSED, not yet decompressed.
#[derive(Debug)]
pub struct Compressed<'a> {
    pub original_op: i32,
    /// Of the payload, without a header.
    pub uncompressed_bytes: usize,
    pub compressor: Compressor,
    pub content: &'a [u8],
}

impl<'a> Compressed<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Compressed<'a>, MessageError> {
        let cut = || MessageError::close(err!(ProtocolError, "OP_COMPRESSED is cut short"));
        let mut r = Reader::new(payload);
        let original_op = r.i32().ok_or_else(cut)?;
        let size = r.i32().ok_or_else(cut)?;
        let id = r.u8().ok_or_else(cut)?;
        let uncompressed_bytes = usize::try_from(size)
            .ok()
            .filter(|n| n.saturating_add(HEADER_BYTES) <= MAX_MESSAGE_BYTES)
            .ok_or_else(|| {
                MessageError::close(err!(
                    BadValue,
                    "decompressed message would be {size} bytes. Max: {MAX_MESSAGE_BYTES}"
                ))
            })?;
        let compressor = Compressor::from_id(id).ok_or_else(|| {
            MessageError::close(err!(BadValue, "compressor {id} of a message is not known"))
        })?;
        if original_op == op::COMPRESSED {
            return Err(MessageError::close(err!(
                ProtocolError,
                "OP_COMPRESSED inside OP_COMPRESSED"
            )));
        }
        Ok(Compressed {
            original_op,
            uncompressed_bytes,
            compressor,
            content: r.rest(),
        })
    }
}

/// How long the message that begins with `start` says that it is when it is decompressed, in bytes; 0 when it is not compressed,
/// and when it says nothing that it may.
pub fn plain_bytes(start: &[u8]) -> usize {
    let int = |at: usize| {
        let bytes = start.get(at..at + 4)?;
        Some(i32::from_le_bytes(bytes.try_into().ok()?))
    };
    // The opCode is the last of the header.
    if int(HEADER_BYTES - 4) != Some(op::COMPRESSED) {
        return 0;
    }
    let stated = int(HEADER_BYTES + 4).and_then(|size| usize::try_from(size).ok());
    stated.filter(|n| *n <= MAX_MESSAGE_BYTES).unwrap_or(0)
}

/// Compression state that is worth keeping: one for each thread.
#[derive(Default)]
pub struct Codec {
    snappy: Option<snap::raw::Encoder>,
    deflate: Option<Compress>,
    inflate: Option<Decompress>,
    zstd_in: Option<zstd::bulk::Decompressor<'static>>,
    zstd_out: Option<zstd::bulk::Compressor<'static>>,
    scratch: Vec<u8>,
}

impl Codec {
    /// Replaces `out` by the message that `compressed` (which came under `header`) holds, as if it had come plain.
    pub fn decompress(
        &mut self,
        header: &Header,
        compressed: &Compressed<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), MessageError> {
        let fail = |why: String| {
            MessageError::close(err!(
                BadValue,
                "cannot decompress a message ({}): {why}",
                compressed.compressor.name()
            ))
        };
        let (content, size) = (compressed.content, compressed.uncompressed_bytes);
        out.clear();
        begin(
            out,
            header.request_id,
            header.response_to,
            compressed.original_op,
        );
        let written = match compressed.compressor {
            Compressor::Noop => {
                out.extend_from_slice(content);
                content.len()
            }
            Compressor::Snappy => {
                // Snappy states its own size in front: the two must agree before memory is taken.
                let stated = snap::raw::decompress_len(content).map_err(|e| fail(e.to_string()))?;
                if stated != size {
                    return Err(fail(format!(
                        "content is {stated} bytes, message says {size}"
                    )));
                }
                out.resize(HEADER_BYTES + size, 0);
                snap::raw::Decoder::new()
                    .decompress(content, &mut out[HEADER_BYTES..])
                    .map_err(|e| fail(e.to_string()))?
            }
            Compressor::Zlib => {
                let inflate = self.inflate.get_or_insert_with(|| Decompress::new(true));
                inflate.reset(true);
                // One byte more than stated, so that content which runs on is noticed.
                out.reserve_exact(size.saturating_add(1));
                let status = inflate
                    .decompress_vec(content, out, FlushDecompress::Finish)
                    .map_err(|e| fail(e.to_string()))?;
                if status != Status::StreamEnd {
                    return Err(fail("content does not end where the message says".into()));
                }
                out.len() - HEADER_BYTES
            }
            Compressor::Zstd => {
                let zstd = match &mut self.zstd_in {
                    Some(zstd) => zstd,
                    none => none
                        .insert(zstd::bulk::Decompressor::new().map_err(|e| fail(e.to_string()))?),
                };
                out.resize(HEADER_BYTES + size, 0);
                zstd.decompress_to_buffer(content, &mut out[HEADER_BYTES..])
                    .map_err(|e| fail(e.to_string()))?
            }
        };
        if written != size || out.len() != HEADER_BYTES + size {
            return Err(fail(format!(
                "content is {written} bytes, message says {size}"
            )));
        }
        end(out, 0);
        Ok(())
    }

    /// Compresses, in place, the message that starts at `start` and runs to the end of `out`. One that is short, or that
    /// does not get shorter, stays as it is: a peer takes either.
    pub fn compress(
        &mut self,
        out: &mut Vec<u8>,
        start: usize,
        with: Compressor,
    ) -> Result<(), Error> {
        let Some(header) = out.get(start..).and_then(Header::read) else {
            return Err(Error::internal("no message to compress"));
        };
        let payload = &out[start + HEADER_BYTES..];
        if with == Compressor::Noop || payload.len() < WORTH_COMPRESSING_BYTES {
            return Ok(());
        }
        if !self.compress_to_scratch(payload, with)?
            || self.scratch.len() + PREFIX_BYTES >= payload.len()
        {
            return Ok(());
        }
        let size = payload.len() as u32;
        out.truncate(start);
        begin(out, header.request_id, header.response_to, op::COMPRESSED);
        out.extend_from_slice(&header.op_code.to_le_bytes());
        out.extend_from_slice(&size.to_le_bytes());
        out.push(with as u8);
        out.extend_from_slice(&self.scratch);
        end(out, start);
        if self.scratch.capacity() > 1 << 20 {
            self.scratch = Vec::new();
        }
        Ok(())
    }

    /// Says whether `scratch` has all of it: content that takes more room than before is given up.
    fn compress_to_scratch(&mut self, payload: &[u8], with: Compressor) -> Result<bool, Error> {
        let fail =
            |e: &dyn std::fmt::Display| Error::internal(format!("cannot compress a message: {e}"));
        self.scratch.clear();
        match with {
            Compressor::Noop => {}
            Compressor::Snappy => {
                self.scratch
                    .resize(snap::raw::max_compress_len(payload.len()), 0);
                let n = self
                    .snappy
                    .get_or_insert_with(snap::raw::Encoder::new)
                    .compress(payload, &mut self.scratch)
                    .map_err(|e| fail(&e))?;
                self.scratch.truncate(n);
            }
            Compressor::Zlib => {
                let deflate = self
                    .deflate
                    .get_or_insert_with(|| Compress::new(Compression::new(ZLIB_LEVEL), true));
                deflate.reset();
                // Room for what may be sent at all: content that does not fit in it is not worth sending compressed.
                self.scratch.reserve(payload.len());
                let status = deflate
                    .compress_vec(payload, &mut self.scratch, FlushCompress::Finish)
                    .map_err(|e| fail(&e))?;
                if status != Status::StreamEnd {
                    return Ok(false);
                }
            }
            Compressor::Zstd => {
                let zstd = match &mut self.zstd_out {
                    Some(zstd) => zstd,
                    none => {
                        none.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|e| fail(&e))?)
                    }
                };
                self.scratch
                    .resize(zstd::zstd_safe::compress_bound(payload.len()), 0);
                let n = zstd
                    .compress_to_buffer(payload, &mut self.scratch)
                    .map_err(|e| fail(&e))?;
                self.scratch.truncate(n);
            }
        }
        Ok(true)
    }
}
