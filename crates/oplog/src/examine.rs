//! Looking at a log that nobody has open: nothing is changed, and damage does not end the reading.
//!
//! What recovery would cut off as a torn tail is told apart from damage by the same proof (see `frame`): a tail of which nothing
//! says that it was durable is what a loss of power leaves, and no fault.

use crate::LogOptions;
use crate::error::{Error, Result};
use crate::frame::{self, FLAG_GAP};
use crate::reader::{Frames, Record, Step, corrupt, unreadable};
use crate::segment::{Segment, parse_name};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    pub segments: u64,
    pub bytes: u64,
    /// Entries that are whole.
    pub entries: u64,
    /// The first and the last of them; 0 when there is none.
    pub first_index: u64,
    pub last_index: u64,
    /// Bytes after the last entry that recovery will drop.
    pub torn_bytes: u64,
    /// Damage, each with its place.
    pub faults: Vec<Error>,
}

/// Reads every segment and hands each whole entry on to `each`, in order.
pub fn examine(opts: &LogOptions, mut each: impl FnMut(Record<'_>)) -> Result<Examined> {
    let paths = segment_paths(opts)?;
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
            examination.read(&segment, place, &mut each);
        }
    }
    Ok(examination.found)
}

/// The files of segments, by the first index that their names tell.
fn segment_paths(opts: &LogOptions) -> Result<Vec<(u64, PathBuf)>> {
    let names = match opts.file_system.list(&opts.dir) {
        Ok(names) => names,
        // A copy made while the server ran has no log.
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

/// A segment among the others.
#[derive(Clone, Copy)]
struct Place<'p> {
    path: &'p Path,
    first_index: u64,
    /// Only the last may have a torn tail.
    last: bool,
}

#[derive(Default)]
struct Examination {
    found: Examined,
    /// The index that comes next; 0 before the first entry, and after a segment that could not be
    /// opened.
    expected: u64,
}

impl Examination {
    /// The segment, and whether it says that it follows the one before. `None`: it has nothing to
    /// read, which is told.
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
                // What is behind it may be whole.
                Ok(Some((behind, false)))
            }
            Err(e) => {
                self.found.faults.push(e);
                self.expected = 0;
                Ok(None)
            }
        }
    }

    /// Compares a segment's first index with what came before it.
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

    fn read(
        &mut self,
        segment: &Arc<Segment>,
        place: Place<'_>,
        each: &mut impl FnMut(Record<'_>),
    ) {
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
                    if self.takes(f.stamp.index, place, offset) {
                        each(Record::new(&f.stamp, frames.payload(f)));
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
    }

    /// Counts a whole entry; false for one that came already.
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

    /// Goes on at the next whole entry behind damage; false where there is none, or nothing was
    /// ever durable there.
    fn skip_damage(&mut self, frames: &mut Frames, place: Place<'_>, why: &'static str) -> bool {
        let rest = match frames.rest() {
            Ok(rest) => rest,
            Err(e) => {
                self.found.faults.push(unreadable(place.path, &e));
                return false;
            }
        };
        if place.last && !frame::proves_durable(&rest, self.expected) {
            self.found.torn_bytes += rest.len() as u64;
            return false;
        }
        let fault = corrupt(place.path, frames.offset(), self.expected, why);
        self.found.faults.push(fault);
        let Some(skip) = frame::next_whole(&rest, self.expected) else {
            self.expected = 0;
            return false;
        };
        frames.skip(skip);
        // The hole is reported; the entry behind it is where it should be.
        if let Some(index) = rest.get(skip..).and_then(frame::index_at) {
            self.expected = index;
        }
        true
    }
}
