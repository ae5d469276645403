//! Offline examination: reads a log that no process has open, changes nothing, and reads on after
//! damage.
//!
//! A torn tail, which recovery would cut off, is told apart from damage by the same proof (see
//! `frame`). A tail that nothing proves durable is what a loss of power leaves; it is no fault.

use crate::LogOptions;
use crate::error::{Error, Result};
use crate::frame::{self, FLAG_GAP};
use crate::reader::{Frames, Record, Step, corrupt, unreadable};
use crate::segment::{Segment, parse_name};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The findings.
#[derive(Clone, Debug, Default)]
pub struct LogExamination {
    pub segments: u64,
    pub bytes: u64,
    /// The number of intact entries.
    pub entries: u64,
    /// The index of the first and of the last intact entry; 0 when there is none.
    pub first_index: u64,
    pub last_index: u64,
    /// Bytes after the last entry that recovery will drop.
    pub torn_bytes: u64,
    /// Damage, each with its place.
    pub faults: Vec<Error>,
}

/// Reads every segment and passes each intact entry to `each`, in order.
pub fn examine(opts: &LogOptions, mut each: impl FnMut(Record<'_>)) -> Result<LogExamination> {
    examine_from(opts, 0, |record| {
        each(record);
        true
    })
}

/// As [`examine`], from the segment on that holds entry `from`, and until `each` wants no more.
pub fn examine_from(
    opts: &LogOptions,
    from: u64,
    mut each: impl FnMut(Record<'_>) -> bool,
) -> Result<LogExamination> {
    let mut paths = segment_paths(opts)?;
    let holding = paths.partition_point(|(first, _)| *first <= from);
    paths.drain(..holding.saturating_sub(1));
    let mut examination = Examination::default();
    let last = paths.len().saturating_sub(1);
    for (at, (first_index, path)) in paths.iter().enumerate() {
        let place = Place {
            path,
            first_index: *first_index,
            last: at == last,
        };
        if let Some((segment, follows)) = examination.open(opts, place)? {
            examination.begin(place, follows);
            if !examination.read(&segment, place, &mut each) {
                break;
            }
        }
    }
    Ok(examination.found)
}

/// The first index of a segment behind which all entries are whose timestamp is not below `ts`. It looks at one entry of each
/// segment that is later.
pub fn segment_before(opts: &LogOptions, ts: u64) -> Result<u64> {
    for (first_index, path) in segment_paths(opts)?.into_iter().rev() {
        let opened = Segment::open_to_read(opts, &path, first_index)?;
        let first_ts = opened.map_or(0, |(segment, _)| segment.first_ts());
        if (1..ts).contains(&first_ts) {
            return Ok(first_index);
        }
    }
    Ok(0)
}

/// The segment files, ordered by the first index in their names.
fn segment_paths(opts: &LogOptions) -> Result<Vec<(u64, PathBuf)>> {
    let names = match opts.file_system.list(&opts.dir) {
        Ok(names) => names,
        // A backup made while the server ran has no log.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            return Err(Error::io(format!("cannot read {}", opts.dir.display()), &e));
        }
    };
    let mut paths: Vec<(u64, PathBuf)> = names
        .into_iter()
        .filter_map(|name| Some((parse_name(&name)?, opts.dir.join(name))))
        .collect();
    paths.sort();
    Ok(paths)
}

/// A segment's file, and its position among the segments.
#[derive(Clone, Copy)]
struct Place<'p> {
    path: &'p Path,
    first_index: u64,
    /// Only the last may have a torn tail.
    last: bool,
}

#[derive(Default)]
struct Examination {
    found: LogExamination,
    /// The index expected next; 0 before the first entry, and after a segment that could not be
    /// opened.
    expected: u64,
}

impl Examination {
    /// The segment, and whether its header says that it continues the previous one. `None` when it
    /// has nothing to read; that is recorded.
    fn open(
        &mut self,
        opts: &LogOptions,
        place: Place<'_>,
    ) -> Result<Option<(Arc<Segment>, bool)>> {
        let (path, first_index) = (place.path, place.first_index);
        self.found.segments += 1;
        match Segment::open_to_read(opts, path, first_index) {
            Ok(Some((segment, header))) => Ok(Some((segment, header.flags & FLAG_GAP == 0))),
            Ok(None) => {
                let behind = Segment::open_headless(opts, path, first_index)?;
                let rest = Frames::new(&behind)
                    .rest()
                    .map_err(|e| unreadable(path, &e))?;
                if place.last && !frame::proves_durable(&rest, first_index) {
                    self.found.torn_bytes += behind.bytes.load(Ordering::Relaxed);
                    return Ok(None);
                }
                let why = "the segment has no header";
                self.found.faults.push(corrupt(path, 0, first_index, why));
                // The frames behind the header may be intact.
                Ok(Some((behind, false)))
            }
            Err(e) => {
                self.found.faults.push(e);
                self.expected = 0;
                Ok(None)
            }
        }
    }

    /// Compares a segment's first index with the expected one.
    fn begin(&mut self, place: Place<'_>, follows: bool) {
        let (first_index, expected) = (place.first_index, self.expected);
        let why = if first_index < expected {
            Some(format!("entries from {first_index} on are there twice"))
        } else if expected != 0 && first_index != expected && follows {
            Some(format!("entries up to {first_index} are missing"))
        } else {
            None
        };
        let fault = why.map(|why| corrupt(place.path, 0, expected, why));
        self.found.faults.extend(fault);
        self.expected = first_index;
    }

    /// False once `each` wants no more.
    fn read(
        &mut self,
        segment: &Arc<Segment>,
        place: Place<'_>,
        each: &mut impl FnMut(Record<'_>) -> bool,
    ) -> bool {
        let mut frames = Frames::new(segment);
        loop {
            let offset = frames.offset();
            match frames.next().map_err(|e| unreadable(place.path, &e)) {
                Err(e) => {
                    self.found.faults.push(e);
                    self.expected = 0;
                    break;
                }
                Ok(Step::End) => break,
                Ok(Step::Frame(f)) => {
                    if self.takes(f.stamp.index, place, offset)
                        && !each(Record::new(&f.stamp, frames.payload(f)))
                    {
                        return false;
                    }
                }
                Ok(Step::Damaged(why)) => {
                    if !self.skip_damage(&mut frames, place, why) {
                        break;
                    }
                }
            }
        }
        self.found.bytes += frames.offset();
        true
    }

    /// Counts an intact entry; false for an index that was already read.
    fn takes(&mut self, index: u64, place: Place<'_>, offset: u64) -> bool {
        if index != self.expected {
            let why = format!("entry {index} is in its place");
            let fault = corrupt(place.path, offset, self.expected, why);
            self.found.faults.push(fault);
            if index < self.expected {
                return false;
            }
        }
        self.expected = index + 1;
        self.found.entries += 1;
        if self.found.first_index == 0 {
            self.found.first_index = index;
        }
        self.found.last_index = index;
        true
    }

    /// Continues at the next intact entry behind damage; false when there is none, or when the tail
    /// was never durable.
    fn skip_damage(&mut self, frames: &mut Frames, place: Place<'_>, why: &'static str) -> bool {
        let rest = match frames.rest() {
            Ok(rest) => rest,
            Err(e) => {
                self.found.faults.push(unreadable(place.path, &e));
                return false;
            }
        };
        if place.last && !frame::proves_durable(&rest, self.expected) {
            self.found.torn_bytes += frame::written_bytes(&rest);
            return false;
        }
        let fault = corrupt(place.path, frames.offset(), self.expected, why);
        self.found.faults.push(fault);
        let Some(skip) = frame::next_whole(&rest, self.expected) else {
            self.expected = 0;
            return false;
        };
        frames.skip(skip);
        // The hole is reported, so the entry behind it counts as expected.
        if let Some(index) = rest.get(skip..).and_then(frame::index_at) {
            self.expected = index;
        }
        true
    }
}
