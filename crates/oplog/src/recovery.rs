//! Opening a log that may have been cut short anywhere.
//!
//! Only the segments from the one that holds `from` on are read; those before are only checked for their header. At the first
//! frame that is damaged, missing or out of order, recovery looks for a later entry that proves it had been durable (see
//! `frame`). With such a proof it is damage, and an error; without, it is the tail that the last loss of power tore, and the
//! log ends there: the rest of the segment is cut off and later segments are removed.

use crate::cut::Cuts;
use crate::error::{Error, Result};
use crate::frame::{FLAG_GAP, HEADER_BYTES, Header, VERSION};
use crate::reader::{Frames, Record, Step, corrupt, unreadable};
use crate::segment::{Segment, Segments, parse_name};
use crate::sync::Syncer;
use crate::{Log, LogOptions, Shared, Tail, frame};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What opening found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Entries handed to `replay`.
    pub replayed: u64,
    /// Bytes of a torn tail that were dropped.
    pub dropped_bytes: u64,
    /// The last index of the log.
    pub last_index: u64,
}

/// A segment file on disk; `None` when its header is not whole.
struct Candidate {
    first_index: u64,
    path: PathBuf,
    opened: Option<(Arc<Segment>, Header)>,
}

pub(crate) fn open<E: From<Error>>(
    opts: LogOptions,
    from: u64,
    floor_ts: u64,
    mut replay: impl FnMut(Record<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(Log, Recovered), E> {
    let candidates = list(&opts)?;
    let mut kept: VecDeque<Arc<Segment>> = VecDeque::new();
    let mut found = Recovered::default();
    let mut last_ts = floor_ts;
    let mut term = 0;
    // The index that the next frame must have; 0 before the first segment that is read.
    let mut expected = 0;
    let start = candidates
        .partition_point(|c| c.first_index <= from)
        .saturating_sub(1);
    if let Some(first) = candidates.first().map(|c| c.first_index)
        && first > from
    {
        return Err(Error::Missing {
            wanted: from,
            first,
        }
        .into());
    }
    let mut end_offset = HEADER_BYTES as u64;
    for (at, candidate) in candidates.iter().enumerate() {
        let later = candidates.get(at + 1..).unwrap_or(&[]);
        let Some((segment, header)) = &candidate.opened else {
            let index = candidate.first_index;
            // Only what was never durable may have a header that is not whole: its own entries tell.
            let behind = Segment::open_headless(&opts, &candidate.path, index)?;
            let rest = Frames::new(&behind)
                .rest()
                .map_err(|e| unreadable(&candidate.path, &e))?;
            if at < start || proven(&rest, later, index)? {
                return Err(corrupt(&candidate.path, 0, index, "the segment has no header").into());
            }
            found.dropped_bytes += drop_segments(&opts, candidates.get(at..).unwrap_or(&[]))?;
            break;
        };
        if at < start {
            kept.push_back(segment.clone());
            continue;
        }
        if header.first_index < expected {
            let why = format!("entries from {} on are there twice", header.first_index);
            return Err(corrupt(&candidate.path, 0, expected, why).into());
        }
        if expected != 0 && header.first_index != expected && header.flags & FLAG_GAP == 0 {
            // The segment before ends at a frame's end, yet too early.
            let here = candidates.get(at..).unwrap_or(&[]);
            if proven(&[], here, expected)? {
                let why = format!("entries up to {} are missing", header.first_index);
                return Err(corrupt(&candidate.path, 0, expected, why).into());
            }
            found.dropped_bytes += drop_segments(&opts, here)?;
            break;
        }
        expected = header.first_index;
        term = term.max(header.term_before);
        last_ts = last_ts.max(header.ts_before);
        let mut frames = Frames::new(segment);
        let torn = loop {
            let offset = frames.offset();
            let why = match frames.next().map_err(|e| unreadable(&candidate.path, &e))? {
                Step::End => break false,
                Step::Frame(f) if f.stamp.index == expected && f.stamp.ts > 0 => {
                    if segment.first_ts.load(Ordering::Relaxed) == 0 {
                        segment.first_ts.store(f.stamp.ts, Ordering::Relaxed);
                    }
                    last_ts = last_ts.max(f.stamp.ts);
                    term = term.max(f.stamp.term);
                    expected += 1;
                    if f.stamp.index >= from {
                        found.replayed += 1;
                        replay(Record::new(&f.stamp, frames.payload(f)))?;
                    }
                    continue;
                }
                // Its checksum is right: no crash writes that.
                Step::Frame(f) => {
                    let why = format!("entry {} is in its place", f.stamp.index);
                    return Err(corrupt(&candidate.path, offset, expected, why).into());
                }
                Step::Damaged(why) => why,
            };
            let rest = frames.rest().map_err(|e| unreadable(&candidate.path, &e))?;
            if proven(&rest, later, expected)? {
                return Err(corrupt(&candidate.path, offset, expected, why).into());
            }
            found.dropped_bytes += rest.len() as u64;
            segment
                .file
                .truncate(offset)
                .map_err(|e| Error::io(format!("cannot cut {}", candidate.path.display()), &e))?;
            break true;
        };
        end_offset = frames.offset();
        segment.bytes.store(end_offset, Ordering::Relaxed);
        segment
            .file
            .sync_data()
            .map_err(|e| Error::io(format!("cannot sync {}", candidate.path.display()), &e))?;
        kept.push_back(segment.clone());
        if torn {
            found.dropped_bytes += drop_segments(&opts, later)?;
            break;
        }
    }
    let next_index = expected.max(from).max(1);
    // A state that is ahead of the log leaves a hole, which only a new segment can have before it.
    let segment = match kept.back() {
        Some(segment) if expected == next_index => segment.clone(),
        _ => {
            let flags = if next_index > 1 { FLAG_GAP } else { 0 };
            let header = Header {
                version: VERSION,
                flags,
                first_index: next_index,
                term_before: term,
                ts_before: last_ts,
            };
            let segment = Segment::create(&opts, header)?;
            end_offset = HEADER_BYTES as u64;
            kept.push_back(segment.clone());
            segment
        }
    };
    segment
        .file
        .sync_data()
        .and_then(|()| opts.file_system.sync_dir(&opts.dir))
        .map_err(|e| Error::io(format!("cannot sync {}", opts.dir.display()), &e))?;
    found.last_index = next_index - 1;
    Ok((
        start_log(opts, kept, segment, end_offset, next_index, last_ts, term)?,
        found,
    ))
}

fn start_log(
    opts: LogOptions,
    kept: VecDeque<Arc<Segment>>,
    segment: Arc<Segment>,
    offset: u64,
    next_index: u64,
    last_ts: u64,
    term: u64,
) -> Result<Log> {
    let shared = Arc::new(Shared {
        opts,
        segments: Mutex::new(Segments { all: kept }),
        written: AtomicU64::new(next_index - 1),
        last_ts: AtomicU64::new(last_ts),
        bytes: AtomicU64::new(0),
        cuts: Cuts::default(),
        syncer: Syncer::new(next_index - 1, segment.file.clone(), false),
    });
    let for_thread = shared.clone();
    let sync_thread = std::thread::Builder::new()
        .name("log-sync".into())
        .spawn(move || for_thread.run_sync_thread())
        .map_err(|e| Error::io("cannot start the sync thread", &e))?;
    Ok(Log {
        shared,
        tail: Mutex::new(Tail {
            segment,
            offset,
            next_index,
            last_ts,
            last_term: term,
            term,
            buf: Vec::new(),
        }),
        sync_thread: Some(sync_thread),
    })
}

/// All segment files, by first index.
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

/// Whether an entry in `rest`, or the first entry of a later segment, proves that `index` had been durable.
fn proven(rest: &[u8], later: &[Candidate], index: u64) -> Result<bool> {
    // The last segment's entries know most: each says how far the log was durable when it was written.
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
    // From the last on: a crash in between must not leave a hole.
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
