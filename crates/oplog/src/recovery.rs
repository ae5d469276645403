//! Recovery: opens a log that may end anywhere, even in the middle of an entry.
//!
//! Recovery reads the segment that holds `from` and all later ones; of earlier segments it checks
//! the header only. At the first frame that is damaged, missing or out of order, recovery looks for
//! a later entry that proves the frame was durable (see `frame`). With such a proof the frame is
//! damaged, and opening fails. Without it the last loss of power tore the tail: the log ends there,
//! the rest of the segment is cut off, and later segments are removed.

use crate::cut::Cuts;
use crate::error::{Error, Result};
use crate::frame::{FLAG_GAP, HEADER_BYTES, Header, VERSION};
use crate::reader::{Frames, Record, Step, corrupt, unreadable};
use crate::segment::{Segment, Segments, parse_name};
use crate::sync::{Growing, Syncer};
use crate::{Log, LogOptions, Shared, Stamp, Tail, frame};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The number of entries passed to `replay`.
    pub replayed: u64,
    /// Bytes of a torn tail that were dropped.
    pub dropped_bytes: u64,
    /// The last index of the log.
    pub last_index: u64,
}

/// A segment file on disk; `None` when its header is incomplete.
struct Candidate {
    first_index: u64,
    path: PathBuf,
    opened: Option<(Arc<Segment>, Header)>,
}

/// Opens the log, passes its entries from index `from` on to `replay`, and starts its sync thread.
/// New timestamps are above `floor_ts`.
pub(crate) fn open<E: From<Error>>(
    opts: LogOptions,
    from: u64,
    floor_ts: u64,
    mut replay: impl FnMut(Record<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(Log, Recovered), E> {
    let candidates = list(&opts)?;
    let start = candidates
        .partition_point(|c| c.first_index <= from)
        .saturating_sub(1);
    if let Some(first) = candidates.first().map(|c| c.first_index)
        && first > from
    {
        let wanted = from;
        return Err(Error::Missing { wanted, first }.into());
    }
    let mut recovery = Recovery::new(&opts, from, floor_ts);
    for at in 0..candidates.len() {
        let (before, rest) = candidates.split_at(at);
        if !recovery.take(rest, before.len() < start, &mut replay)? {
            break;
        }
    }
    let end = recovery.end()?;
    let found = end.found;
    Ok((start_log(opts, end)?, found))
}

/// The progress of recovery through the segments.
struct Recovery<'o> {
    opts: &'o LogOptions,
    from: u64,
    kept: VecDeque<Arc<Segment>>,
    found: Recovered,
    last_ts: u64,
    term: u64,
    /// The index that the next frame must have; 0 before the first segment that recovery reads.
    expected: u64,
    /// Where the last segment ends.
    end_offset: u64,
}

/// The end of the log, where the next entry will be appended.
struct End {
    kept: VecDeque<Arc<Segment>>,
    segment: Arc<Segment>,
    offset: u64,
    next_index: u64,
    last_ts: u64,
    term: u64,
    found: Recovered,
}

impl<'o> Recovery<'o> {
    fn new(opts: &'o LogOptions, from: u64, floor_ts: u64) -> Recovery<'o> {
        Recovery {
            opts,
            from,
            kept: VecDeque::new(),
            found: Recovered::default(),
            last_ts: floor_ts,
            term: 0,
            expected: 0,
            end_offset: HEADER_BYTES as u64,
        }
    }

    /// Recovers the first segment of `rest`; false when the log ends in it or before it. `unread`:
    /// the segment holds nothing from `from` on.
    fn take<E: From<Error>>(
        &mut self,
        rest: &[Candidate],
        unread: bool,
        replay: &mut impl FnMut(Record<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        let Some((candidate, later)) = rest.split_first() else {
            return Ok(false);
        };
        let Some((segment, header)) = &candidate.opened else {
            self.drop_headless(candidate, rest, unread)?;
            return Ok(false);
        };
        if unread {
            self.kept.push_back(segment.clone());
            return Ok(true);
        }
        if !self.follows(candidate, header, rest)? {
            return Ok(false);
        }
        self.expected = header.first_index;
        self.term = self.term.max(header.term_before);
        self.last_ts = self.last_ts.max(header.ts_before);
        let whole = self.read(candidate, segment, later, replay)?;
        self.kept.push_back(segment.clone());
        if !whole {
            self.found.dropped_bytes += drop_segments(self.opts, later)?;
        }
        Ok(whole)
    }

    /// Ends the log before a segment with an incomplete header. Only a segment that was never
    /// durable may have one; its own entries prove whether it was.
    fn drop_headless(
        &mut self,
        candidate: &Candidate,
        rest: &[Candidate],
        unread: bool,
    ) -> Result<()> {
        let (path, index) = (&candidate.path, candidate.first_index);
        let behind = Segment::open_headless(self.opts, path, index)?;
        let bytes = Frames::new(&behind)
            .rest()
            .map_err(|e| unreadable(path, &e))?;
        let later = &rest[1..];
        if unread || proven(&bytes, later, index)? {
            return Err(corrupt(path, 0, index, "the segment has no header"));
        }
        self.found.dropped_bytes += drop_segments(self.opts, rest)?;
        Ok(())
    }

    /// Whether the first segment of `rest` continues the log. When it does not, and nothing proves
    /// that the missing entries were durable, it is dropped with all later segments.
    fn follows(
        &mut self,
        candidate: &Candidate,
        header: &Header,
        rest: &[Candidate],
    ) -> Result<bool> {
        let first = header.first_index;
        if first < self.expected {
            let why = format!("entries from {first} on are there twice");
            return Err(corrupt(&candidate.path, 0, self.expected, why));
        }
        if header.flags & FLAG_GAP != 0 && first > self.expected.max(self.from) {
            // A state that is ahead of the log has what a gap leaves out. This one is of an earlier time.
            let why =
                format!("entries up to {first} are in no log, and the state has not all of them");
            return Err(corrupt(&candidate.path, 0, self.expected, why));
        }
        if self.expected == 0 || first == self.expected || header.flags & FLAG_GAP != 0 {
            return Ok(true);
        }
        // The previous segment ends with a whole frame, but too early.
        if proven(&[], rest, self.expected)? {
            let why = format!("entries up to {first} are missing");
            return Err(corrupt(&candidate.path, 0, self.expected, why));
        }
        self.found.dropped_bytes += drop_segments(self.opts, rest)?;
        Ok(false)
    }

    /// Reads a segment's entries; false when its tail was torn, which is now cut off.
    fn read<E: From<Error>>(
        &mut self,
        candidate: &Candidate,
        segment: &Arc<Segment>,
        later: &[Candidate],
        replay: &mut impl FnMut(Record<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        let path = &candidate.path;
        let mut frames = Frames::new(segment);
        let damage = loop {
            let offset = frames.offset();
            match frames.next().map_err(|e| unreadable(path, &e))? {
                Step::End => break None,
                Step::Frame(f) if f.stamp.index == self.expected && f.stamp.ts > 0 => {
                    self.count(segment, &f.stamp);
                    if f.stamp.index >= self.from {
                        self.found.replayed += 1;
                        replay(Record::new(&f.stamp, frames.payload(f)))?;
                    }
                }
                // The checksum is right, so no crash can have written this.
                Step::Frame(f) => {
                    let why = format!("entry {} is in its place", f.stamp.index);
                    return Err(corrupt(path, offset, self.expected, why).into());
                }
                Step::Damaged(why) => break Some((offset, why)),
            }
        };
        if let Some((offset, why)) = &damage {
            let rest = frames.rest().map_err(|e| unreadable(path, &e))?;
            if proven(&rest, later, self.expected)? {
                return Err(corrupt(path, *offset, self.expected, *why).into());
            }
            self.found.dropped_bytes += frame::written_bytes(&rest);
        }
        self.end_offset = frames.offset();
        // Behind it stand a torn tail, or space that was reserved.
        if segment.bytes.load(Ordering::Relaxed) > self.end_offset {
            let cut = segment.file.truncate(self.end_offset);
            cut.map_err(|e| Error::io(format!("cannot cut {}", path.display()), &e))?;
            segment.bytes.store(self.end_offset, Ordering::Relaxed);
        }
        let synced = segment.file.sync_data();
        synced.map_err(|e| Error::io(format!("cannot sync {}", path.display()), &e))?;
        Ok(damage.is_none())
    }

    /// Counts an entry with the expected index.
    fn count(&mut self, segment: &Segment, stamp: &Stamp) {
        if segment.first_ts.load(Ordering::Relaxed) == 0 {
            segment.first_ts.store(stamp.ts, Ordering::Relaxed);
        }
        self.last_ts = self.last_ts.max(stamp.ts);
        self.term = self.term.max(stamp.term);
        self.expected += 1;
    }

    /// Makes the end of the log final on disk.
    fn end(mut self) -> Result<End> {
        let next_index = self.expected.max(self.from).max(1);
        // When the engine's state is ahead of the log there is a hole. Only a new segment may begin
        // after a hole.
        let segment = match self.kept.back() {
            Some(segment) if self.expected == next_index => segment.clone(),
            _ => {
                let flags = if next_index > 1 { FLAG_GAP } else { 0 };
                let header = Header {
                    version: VERSION,
                    flags,
                    first_index: next_index,
                    term_before: self.term,
                    ts_before: self.last_ts,
                };
                let segment = Segment::create(self.opts, header)?;
                self.end_offset = HEADER_BYTES as u64;
                self.kept.push_back(segment.clone());
                segment
            }
        };
        let (dir, files) = (&self.opts.dir, &self.opts.file_system);
        let synced = segment.file.sync_data().and_then(|()| files.sync_dir(dir));
        synced.map_err(|e| Error::io(format!("cannot sync {}", dir.display()), &e))?;
        self.found.last_index = next_index - 1;
        Ok(End {
            kept: self.kept,
            segment,
            offset: self.end_offset,
            next_index,
            last_ts: self.last_ts,
            term: self.term,
            found: self.found,
        })
    }
}

fn start_log(opts: LogOptions, end: End) -> Result<Log> {
    let last_index = end.next_index - 1;
    assert_eq!(
        last_index, end.found.last_index,
        "the log goes on at its end"
    );
    assert!(
        end.segment.first_index <= end.next_index,
        "entries are in their segment"
    );
    let shared = Arc::new(Shared {
        window: Mutex::new(opts.window),
        trimmed: Mutex::default(),
        held_from: AtomicU64::new(u64::MAX),
        leases: Default::default(),
        opts,
        segments: Mutex::new(Segments { all: end.kept }),
        written: AtomicU64::new(last_index),
        last_ts: AtomicU64::new(end.last_ts),
        floor_ts: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        cuts: Cuts::default(),
        syncer: Syncer::new(last_index, Growing::new(&end.segment), false),
    });
    let for_thread = shared.clone();
    let sync_thread = std::thread::Builder::new()
        .name("log-sync".into())
        .spawn(move || for_thread.run_sync_thread())
        .map_err(|e| Error::io("cannot start the sync thread", &e))?;
    Ok(Log {
        shared,
        tail: Mutex::new(Tail {
            segment: end.segment,
            offset: end.offset,
            reserved: end.offset,
            next_index: end.next_index,
            last_ts: end.last_ts,
            last_term: end.term,
            term: end.term,
            buf: Vec::new(),
            recent: Default::default(),
        }),
        sync_thread: Some(sync_thread),
    })
}

/// All segment files, ordered by first index.
fn list(opts: &LogOptions) -> Result<Vec<Candidate>> {
    let fail = |e: &std::io::Error| Error::io(format!("cannot read {}", opts.dir.display()), e);
    opts.file_system
        .create_dir(&opts.dir)
        .map_err(|e| fail(&e))?;
    let mut candidates = Vec::new();
    for name in opts.file_system.list(&opts.dir).map_err(|e| fail(&e))? {
        if let Some(first_index) = parse_name(&name) {
            let path = opts.dir.join(name);
            let opened = Segment::open(opts, &path, first_index)?;
            candidates.push(Candidate {
                first_index,
                path,
                opened,
            });
        }
    }
    candidates.sort_by_key(|c| c.first_index);
    Ok(candidates)
}

/// Whether an entry in `rest`, or the first entry of a later segment, proves that `index` was
/// durable.
fn proven(rest: &[u8], later: &[Candidate], index: u64) -> Result<bool> {
    // Each entry says up to which index the log was durable when it was written, so the last
    // segment's entries prove most.
    if frame::proves_durable(rest, index) {
        return Ok(true);
    }
    for candidate in later {
        if let Some((segment, _)) = &candidate.opened {
            let rest = Frames::new(segment)
                .rest()
                .map_err(|e| unreadable(&segment.path, &e))?;
            if frame::proves_durable_from(&rest, index, segment.first_index) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn drop_segments(opts: &LogOptions, segments: &[Candidate]) -> Result<u64> {
    let mut bytes = 0;
    // The last one first: a crash in between must not leave a hole.
    for candidate in segments.iter().rev() {
        if let Some((segment, _)) = &candidate.opened {
            bytes += segment.bytes.load(Ordering::Relaxed);
        }
        opts.file_system
            .remove(&candidate.path)
            .map_err(|e| Error::io(format!("cannot remove {}", candidate.path.display()), &e))?;
    }
    Ok(bytes)
}
