//! Reading entries back: for recovery, and for readers that follow the log.

use crate::error::{Error, Result};
use crate::file::{LogFile, read_full_at};
use crate::frame::{self, FRAME_HEAD_BYTES, HEADER_BYTES, Parsed};
use crate::segment::Segment;
use crate::{Shared, Stamp};
use encryption::EntryCipher;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const READ_BYTES: usize = 1 << 20;
/// How a frame begins; not all of it is 0.
const LENGTH_AND_CRC_BYTES: usize = 8;

/// An entry as the log stores it.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub index: u64,
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
    /// The term of the primary that made the entry; 0 without a replica set.
    pub term: u64,
    /// The wall clock of the member that made the entry, in milliseconds since 1970.
    pub wall_millis: i64,
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    pub(crate) fn new(stamp: &Stamp, payload: &'a [u8]) -> Record<'a> {
        Record {
            index: stamp.index,
            ts: stamp.ts,
            term: stamp.term,
            wall_millis: stamp.wall_millis,
            payload,
        }
    }
}

/// Where a frame lies in a [`Frames`] buffer.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub stamp: Stamp,
    start: usize,
    len: usize,
}

pub(crate) enum Step {
    Frame(Found),
    /// The file ends where a frame ends, or has only reserved space behind it.
    End,
    Damaged(&'static str),
}

enum Zeros {
    /// Other bytes stand at the place, or behind it.
    None,
    ToTheEnd,
    /// They are there no more.
    Overwritten,
}

/// The frames of one segment file in order, through a buffer.
pub(crate) struct Frames {
    file: Arc<dyn LogFile>,
    cipher: Option<Arc<EntryCipher>>,
    /// See [`Segment::bytes`].
    bytes: Arc<AtomicU64>,
    buf: Vec<u8>,
    /// The next frame is at `buf[at..end]`, which is `offset` in the file. Bytes behind `end` are old.
    at: usize,
    end: usize,
    offset: u64,
}

impl Frames {
    pub fn new(segment: &Segment) -> Frames {
        Frames {
            file: segment.file.clone(),
            cipher: segment.cipher.clone(),
            bytes: segment.bytes.clone(),
            buf: Vec::new(),
            at: 0,
            end: 0,
            offset: HEADER_BYTES as u64,
        }
    }

    /// Where the next frame begins in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn next(&mut self) -> std::io::Result<Step> {
        let mut want = FRAME_HEAD_BYTES;
        loop {
            let rest = &self.buf[self.at..self.end];
            match frame::parse(rest) {
                Parsed::Frame(f, total) => {
                    let stamp = f.stamp;
                    let place = match &self.cipher {
                        None => Some((FRAME_HEAD_BYTES, f.payload.len())),
                        Some(cipher) => {
                            frame::open(&mut self.buf[self.at..self.at + total], cipher)
                        }
                    };
                    let Some((start, len)) = place else {
                        return Ok(Step::Damaged(
                            "it was changed, or encrypted with another key",
                        ));
                    };
                    let start = self.at + start;
                    let found = Found { stamp, start, len };
                    self.at += total;
                    self.offset += total as u64;
                    return Ok(Step::Frame(found));
                }
                Parsed::Damaged(why) => match self.zeros()? {
                    Zeros::None => return Ok(Step::Damaged(why)),
                    Zeros::ToTheEnd => return Ok(Step::End),
                    Zeros::Overwritten => {
                        self.skip(0);
                        want = FRAME_HEAD_BYTES;
                    }
                },
                Parsed::Short(total) => {
                    if !self.fill(total.max(want))? {
                        let is_end = self.buf[self.at..self.end].iter().all(|b| *b == 0);
                        return Ok(match is_end {
                            true => Step::End,
                            false => Step::Damaged("it is not whole"),
                        });
                    }
                    want = total;
                }
            }
        }
    }

    /// Fills the buffer with at least `want` bytes from the next frame's start; false at the end of
    /// the file.
    fn fill(&mut self, want: usize) -> std::io::Result<bool> {
        self.buf.copy_within(self.at..self.end, 0);
        let have = self.end - self.at;
        (self.at, self.end) = (0, have);
        let end = self.offset + have as u64;
        // A damaged length must not cause an allocation larger than the file.
        let in_file = self.bytes.load(Ordering::Acquire).saturating_sub(end);
        let in_file = usize::try_from(in_file).unwrap_or(usize::MAX);
        let more = want.saturating_sub(have).max(READ_BYTES).min(in_file);
        if self.buf.len() < have + more {
            let mut larger = vec![0; have + more];
            larger[..have].copy_from_slice(&self.buf[..have]);
            self.buf = larger;
        }
        let space = &mut self.buf[have..have + more];
        let n = read_full_at(&*self.file, space, end)?;
        self.end = have + n;
        Ok(n > 0 && self.end >= want.min(have + more))
    }

    /// What stands where a frame would begin with zeros, as no frame does: reserved space that was
    /// never written, or damage.
    fn zeros(&mut self) -> std::io::Result<Zeros> {
        let head = &self.buf[self.at..self.end];
        if head.iter().take(LENGTH_AND_CRC_BYTES).any(|b| *b != 0) {
            return Ok(Zeros::None);
        }
        let mut piece = vec![0; READ_BYTES];
        let mut at = self.offset;
        let end = self.bytes.load(Ordering::Acquire);
        while at < end {
            let want = piece
                .len()
                .min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let n = read_full_at(&*self.file, &mut piece[..want], at)?;
            if piece[..n].iter().any(|b| *b != 0) {
                break;
            }
            match n {
                0 => at = end,
                n => at += n as u64,
            }
        }
        if at >= end {
            return Ok(Zeros::ToTheEnd);
        }
        // A server that has the log open may have written here since the buffer was filled. It
        // writes in order: what stands behind was written after what stands here.
        let mut again = [0; LENGTH_AND_CRC_BYTES];
        read_full_at(&*self.file, &mut again, self.offset)?;
        Ok(match again.iter().any(|b| *b != 0) {
            true => Zeros::Overwritten,
            false => Zeros::None,
        })
    }

    pub fn payload(&self, found: Found) -> &[u8] {
        &self.buf[found.start..found.start + found.len]
    }

    /// Skips bytes that are not a frame.
    pub fn skip(&mut self, bytes: usize) {
        self.offset += bytes as u64;
        (self.at, self.end) = (0, 0);
    }

    /// All bytes from the next frame's start to the end of the file.
    pub fn rest(&self) -> std::io::Result<Vec<u8>> {
        let len = self
            .bytes
            .load(Ordering::Acquire)
            .saturating_sub(self.offset);
        let mut rest = vec![0; usize::try_from(len).unwrap_or(0)];
        let n = read_full_at(&*self.file, &mut rest, self.offset)?;
        rest.truncate(n);
        Ok(rest)
    }
}

pub(crate) fn corrupt(path: &Path, offset: u64, index: u64, why: impl Into<String>) -> Error {
    Error::Corrupt {
        segment: path.to_path_buf(),
        offset,
        index,
        why: why.into(),
    }
}

pub(crate) fn unreadable(path: &Path, e: &std::io::Error) -> Error {
    Error::io(format!("cannot read {}", path.display()), e)
}

/// A reader's position. A reader that continues from a mark finds its place without reading earlier
/// entries, as long as the segment is kept. When the segment is gone, only the mark's index counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMark {
    pub index: u64,
    /// The first index of the segment, and the offset in its file.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// Follows the log from an index on. When a truncation removes entries that the reader has already
/// given, it fails with [`Error::Cut`]. A segment that is trimmed while the reader is in it stays
/// readable.
pub struct LogReader {
    shared: Arc<Shared>,
    next_index: u64,
    current: Option<(Arc<Segment>, Frames)>,
    /// The number of cuts that the reader's position takes into account.
    cuts: usize,
}

impl LogReader {
    pub(crate) fn new(shared: Arc<Shared>, from: u64) -> Result<LogReader> {
        let cuts = shared.cuts.count();
        let first = shared.segments.lock().first_index();
        if from < first {
            return Err(Error::Missing {
                wanted: from,
                first,
            });
        }
        Ok(LogReader {
            shared,
            next_index: from,
            current: None,
            cuts,
        })
    }

    /// Continues where another reader stopped.
    pub(crate) fn at(shared: Arc<Shared>, mark: LogMark) -> Result<LogReader> {
        let held = shared.segments.lock().holding(mark.index);
        let mut reader = LogReader::new(shared, mark.index)?;
        if let Some((segment, _)) = held.filter(|(s, _)| s.first_index == mark.segment) {
            let mut frames = Frames::new(&segment);
            frames.offset = mark.offset;
            reader.current = Some((segment, frames));
        }
        Ok(reader)
    }

    /// The reader's position: before the next entry.
    pub fn mark(&self) -> LogMark {
        let (segment, offset) = match &self.current {
            Some((segment, frames)) => (segment.first_index, frames.offset()),
            None => (0, 0),
        };
        LogMark {
            index: self.next_index,
            segment,
            offset,
        }
    }

    /// The next entry; `None` when there is none yet.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        let Some(found) = self.advance()? else {
            return Ok(None);
        };
        let current = self.current.as_ref();
        Ok(current.map(|(_, frames)| Record::new(&found.stamp, frames.payload(found))))
    }

    /// Checks for new cuts; an error when entries that were already given have been removed.
    fn follow_cuts(&mut self) -> Result<()> {
        if self.shared.cuts.count() == self.cuts {
            return Ok(());
        }
        let (least, cuts) = self.shared.cuts.since(self.cuts);
        match least {
            Some(last) if self.next_index > last + 1 => Err(Error::Cut {
                wanted: self.next_index,
                last,
            }),
            _ => {
                self.cuts = cuts;
                // The buffered bytes may be from before the cut.
                self.current = None;
                Ok(())
            }
        }
    }

    fn advance(&mut self) -> Result<Option<Found>> {
        loop {
            self.follow_cuts()?;
            let next_index = self.next_index;
            let found = self.read_next();
            if self.shared.cuts.count() == self.cuts {
                return found;
            }
            // The files changed while they were read.
            self.next_index = next_index;
        }
    }

    fn read_next(&mut self) -> Result<Option<Found>> {
        // Beyond this index the file may hold a group that is being written.
        let written = self.shared.written.load(Ordering::Acquire);
        loop {
            if self.next_index > written {
                return Ok(None);
            }
            if self.current.is_none() {
                let segments = self.shared.segments.lock();
                let Some((segment, _)) = segments.holding(self.next_index) else {
                    return Err(Error::Missing {
                        wanted: self.next_index,
                        first: segments.first_index(),
                    });
                };
                let frames = Frames::new(&segment);
                self.current = Some((segment, frames));
            }
            let Some((segment, frames)) = self.current.as_mut() else {
                continue;
            };
            let at = frames.offset();
            match frames.next().map_err(|e| unreadable(&segment.path, &e))? {
                Step::Frame(found) if found.stamp.index < self.next_index => {}
                Step::Frame(found) if found.stamp.index == self.next_index => {
                    self.next_index += 1;
                    return Ok(Some(found));
                }
                Step::Frame(found) => {
                    let why = format!("entry {} is in its place", found.stamp.index);
                    return Err(corrupt(&segment.path, at, self.next_index, why));
                }
                Step::Damaged(why) => {
                    return Err(corrupt(&segment.path, at, self.next_index, why));
                }
                Step::End => {
                    let segments = self.shared.segments.lock();
                    let following = segments
                        .all
                        .iter()
                        .find(|s| s.first_index > segment.first_index)
                        .cloned();
                    drop(segments);
                    match following {
                        Some(next) => {
                            // When the engine's state was ahead of the log at a start, the log has
                            // a hole here.
                            self.next_index = self.next_index.max(next.first_index);
                            let frames = Frames::new(&next);
                            self.current = Some((next, frames));
                        }
                        None => {
                            return Err(corrupt(
                                &segment.path,
                                at,
                                self.next_index,
                                "the log ends before it",
                            ));
                        }
                    }
                }
            }
        }
    }
}
