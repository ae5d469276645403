//! Group append: a group of entries is written by one write(2).

use crate::error::{Error, Result};
use crate::file::write_all_at;
use crate::frame::{self, HEADER_BYTES, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES};
use crate::reader::LogMark;
use crate::segment::Segment;
use crate::sync::Growing;
use crate::{Record, Shared, Tail};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// A larger buffer is freed after its group: one huge group must not hold its memory for ever.
const KEEP_BUFFER_BYTES: usize = 4 << 20;

/// So much disk space is reserved ahead of the last entry: of each so many bytes, one sync has metadata to write.
const RESERVE_BYTES: u64 = 1 << 20;

/// An entry's place in the log, and when it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub index: u64,
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
    /// The term of the primary that made the entry; 0 without a replica set.
    pub term: u64,
    /// The wall clock of the member that made the entry, in milliseconds since 1970. It may go
    /// backwards from one entry to the next.
    pub wall_millis: i64,
}

/// Entries collected under the append lock. A group dropped without [`Group::write`] has no effect.
pub struct Group<'a> {
    shared: &'a Shared,
    tail: MutexGuard<'a, Tail>,
    last: Stamp,
    first_ts: u64,
    now_millis: u64,
    durable: u64,
    oversized: bool,
}

impl<'a> Group<'a> {
    pub(crate) fn new(shared: &'a Shared, mut tail: MutexGuard<'a, Tail>) -> Group<'a> {
        tail.buf.clear();
        let last = Stamp {
            index: tail.next_index - 1,
            ts: tail.last_ts,
            term: tail.last_term,
            wall_millis: 0,
        };
        Group {
            shared,
            last,
            first_ts: 0,
            now_millis: (shared.opts.clock)(),
            durable: shared.syncer.durable(),
            oversized: false,
            tail,
        }
    }

    /// The term of entries that are added here.
    pub fn term(&self) -> u64 {
        self.tail.term
    }

    /// Adds an entry. `fill` appends its payload to the given buffer.
    pub fn add(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Stamp {
        self.add_behind(0, fill)
    }

    /// As [`Group::add`], with so many timestamps before its own that no other entry gets.
    pub fn add_behind(&mut self, reserved: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Stamp {
        // The first increment of a second is 1, as in MongoDB.
        let now_ts = (self.now_millis / 1000) << 32 | 1;
        let stamp = Stamp {
            index: self.last.index + 1,
            ts: now_ts
                .max(self.last.ts + 1)
                .max(self.shared.floor_ts.load(Ordering::Acquire))
                + reserved,
            term: self.tail.term,
            wall_millis: self.now_millis as i64,
        };
        self.push(stamp, fill);
        stamp
    }

    /// Adds an entry that another member made: it keeps its index, timestamp, term and wall clock.
    /// It must directly follow the last entry. After an error the group is unchanged.
    pub fn add_record(&mut self, record: &Record<'_>) -> Result<()> {
        let refuse = |why: String| Error::OutOfOrder {
            index: record.index,
            why,
        };
        let last = &self.last;
        if record.index != last.index + 1 {
            return Err(refuse(format!("the log ends at {}", last.index)));
        }
        if record.ts <= last.ts || record.term < last.term {
            let (ts, term) = (last.ts, last.term);
            return Err(refuse(format!(
                "its timestamp {} or term {} is before {ts} and {term} of the last",
                record.ts, record.term
            )));
        }
        if record.payload.len() > MAX_PAYLOAD_BYTES {
            return Err(refuse(format!(
                "it is larger than {MAX_PAYLOAD_BYTES} bytes"
            )));
        }
        let stamp = Stamp {
            index: record.index,
            ts: record.ts,
            term: record.term,
            wall_millis: record.wall_millis,
        };
        self.push(stamp, |buf| buf.extend_from_slice(record.payload));
        Ok(())
    }

    fn push(&mut self, stamp: Stamp, fill: impl FnOnce(&mut Vec<u8>)) {
        assert!(stamp.index == self.last.index + 1, "indexes are dense");
        assert!(
            stamp.ts > self.last.ts && stamp.term >= self.last.term,
            "time goes forward, and terms do not fall"
        );
        let lag = u32::try_from(stamp.index.saturating_sub(self.durable)).unwrap_or(u32::MAX);
        let start = self.tail.buf.len();
        let is_sealed = self.tail.segment.cipher.is_some();
        frame::encode(&mut self.tail.buf, &stamp, lag, is_sealed, fill);
        self.oversized |= self.tail.buf.len() - start - 8 > MAX_FRAME_BYTES;
        if self.first_ts == 0 {
            self.first_ts = stamp.ts;
        }
        self.last = stamp;
    }

    /// Writes the group. After an error nothing of it is in the log. Unless the log is poisoned,
    /// the next group may succeed.
    pub fn write(mut self) -> Result<Stamp> {
        let tail = &mut *self.tail;
        if tail.buf.is_empty() {
            return Ok(self.last);
        }
        assert!(
            self.last.index >= tail.next_index,
            "what is written has an entry"
        );
        self.shared.syncer.healthy()?;
        if self.oversized {
            return Err(Error::Io {
                what: format!("an entry is larger than {MAX_FRAME_BYTES} bytes"),
                kind: std::io::ErrorKind::InvalidInput,
            });
        }
        let len = tail.buf.len() as u64;
        if tail.offset > HEADER_BYTES as u64 && tail.offset + len > self.shared.opts.segment_bytes {
            roll(self.shared, tail)?;
        }
        if let Some(cipher) = &tail.segment.cipher {
            frame::seal_all(&mut tail.buf, cipher);
        }
        reserve(self.shared, tail, len);
        write_buffer(self.shared, tail)?;
        if tail.offset == HEADER_BYTES as u64 {
            tail.segment
                .first_ts
                .store(self.first_ts, Ordering::Relaxed);
        }
        assert!(
            self.shared.syncer.durable() < tail.next_index,
            "nothing is durable that was not written"
        );
        tail.recent.push(LogMark {
            index: tail.next_index,
            segment: tail.segment.first_index,
            offset: tail.offset,
        });
        tail.offset += len;
        tail.segment.bytes.store(tail.offset, Ordering::Release);
        tail.next_index = self.last.index + 1;
        tail.last_ts = self.last.ts;
        tail.last_term = self.last.term;
        tail.term = tail.term.max(tail.last_term);
        if tail.buf.capacity() > KEEP_BUFFER_BYTES {
            tail.buf = Vec::new();
        }
        self.shared.bytes.fetch_add(len, Ordering::Relaxed);
        self.shared.last_ts.store(self.last.ts, Ordering::Release);
        self.shared
            .written
            .store(self.last.index, Ordering::Release);
        self.shared.syncer.mark_dirty();
        Ok(self.last)
    }
}

/// Writes the group's bytes behind the last group's. After an error the file is as it was, or the log is poisoned.
fn write_buffer(shared: &Shared, tail: &mut Tail) -> Result<()> {
    if let Err(e) = write_all_at(&*tail.segment.file, &tail.buf, tail.offset) {
        let failure = Error::io(
            format!("cannot write to {}", tail.segment.path.display()),
            &e,
        );
        // Part of the group may be in the file. A recovery must not find it after later groups
        // were acknowledged.
        tail.reserved = tail.offset;
        if let Err(e) = tail.segment.file.truncate(tail.offset) {
            shared.syncer.poison(format!(
                "a write to {} failed, and cutting it off again failed too: {e}",
                tail.segment.path.display()
            ));
        }
        return Err(failure);
    }
    Ok(())
}

/// Starts the next segment. The next sync includes the previous segment, before any entry of the
/// new one counts as durable.
fn roll(shared: &Shared, tail: &mut Tail) -> Result<()> {
    tail.give_back();
    let next = Segment::create(&shared.opts, tail.header(0))?;
    assert!(
        tail.segment.first_index < next.first_index && next.first_index == tail.next_index,
        "segments follow one another without a hole"
    );
    shared.syncer.add_file(Growing::new(&next));
    shared.segments.lock().all.push_back(next.clone());
    tail.segment = next;
    tail.offset = HEADER_BYTES as u64;
    tail.reserved = tail.offset;
    Ok(())
}

/// Has disk space ready for the next `len` bytes, and some more.
fn reserve(shared: &Shared, tail: &mut Tail, len: u64) {
    let end = tail.offset + len;
    if end <= tail.reserved {
        return;
    }
    let to = (end + RESERVE_BYTES).min(shared.opts.segment_bytes.max(end));
    if tail.segment.file.reserve(tail.offset, to) {
        tail.reserved = to;
    }
}
