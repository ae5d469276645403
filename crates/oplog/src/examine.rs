//! Looking at a log that nobody has open: nothing is changed, and damage does not end the reading.
//!
//! What recovery would cut off as a torn tail is told apart from damage by the same proof (see `frame`): a tail of which nothing
//! says that it was durable is what a loss of power leaves, and no fault.

use crate::LogOptions;
use crate::error::{Error, Result};
use crate::frame::{self, FLAG_GAP};
use crate::reader::{Frames, Record, Step, corrupt, unreadable};
use crate::segment::{Segment, parse_name};
use std::path::PathBuf;
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
    let mut found = Examined::default();
    let names = match opts.file_system.list(&opts.dir) {
        Ok(names) => names,
        // A copy made while the server ran has no log.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(e) => {
            return Err(Error::io(format!("cannot read {}", opts.dir.display()), &e));
        }
    };
    let mut paths: Vec<(u64, PathBuf)> = names
        .into_iter()
        .filter_map(|name| Some((parse_name(&name)?, opts.dir.join(name))))
        .collect();
    paths.sort();
    // The index that comes next; 0 before the first entry, and after a segment that could not be opened.
    let mut expected = 0;
    let last = paths.len().saturating_sub(1);
    for (at, (first_index, path)) in paths.into_iter().enumerate() {
        found.segments += 1;
        let (segment, follows) = match Segment::open_to_read(opts, &path, first_index) {
            Ok(Some((segment, header))) => (segment, header.flags & FLAG_GAP == 0),
            Ok(None) => {
                let behind = Segment::open_headless(opts, &path, first_index)?;
                let rest = Frames::new(&behind)
                    .rest()
                    .map_err(|e| unreadable(&path, &e))?;
                if at == last && !frame::proves_durable(&rest, first_index) {
                    found.torn_bytes += behind.bytes.load(Ordering::Relaxed);
                    continue;
                }
                let why = "the segment has no header";
                found.faults.push(corrupt(&path, 0, first_index, why));
                // What is behind it may be whole.
                (behind, false)
            }
            Err(e) => {
                found.faults.push(e);
                expected = 0;
                continue;
            }
        };
        if first_index < expected {
            let why = format!("entries from {first_index} on are there twice");
            found.faults.push(corrupt(&path, 0, expected, why));
        } else if expected != 0 && first_index != expected && follows {
            let why = format!("entries up to {first_index} are missing");
            found.faults.push(corrupt(&path, 0, expected, why));
        }
        expected = first_index;
        let mut frames = Frames::new(&segment);
        loop {
            let offset = frames.offset();
            match frames.next().map_err(|e| unreadable(&path, &e)) {
                Err(e) => {
                    found.faults.push(e);
                    expected = 0;
                    break;
                }
                Ok(Step::End) => break,
                Ok(Step::Frame(f)) => {
                    if f.stamp.index != expected {
                        let why = format!("entry {} is in its place", f.stamp.index);
                        found.faults.push(corrupt(&path, offset, expected, why));
                        if f.stamp.index < expected {
                            continue;
                        }
                    }
                    expected = f.stamp.index + 1;
                    found.entries += 1;
                    if found.first_index == 0 {
                        found.first_index = f.stamp.index;
                    }
                    found.last_index = f.stamp.index;
                    each(Record::new(&f.stamp, frames.payload(f)));
                }
                Ok(Step::Damaged(why)) => {
                    let rest = match frames.rest() {
                        Ok(rest) => rest,
                        Err(e) => {
                            found.faults.push(unreadable(&path, &e));
                            break;
                        }
                    };
                    if at == last && !frame::proves_durable(&rest, expected) {
                        found.torn_bytes += rest.len() as u64;
                        break;
                    }
                    found.faults.push(corrupt(&path, offset, expected, why));
                    let Some(skip) = frame::next_whole(&rest, expected) else {
                        expected = 0;
                        break;
                    };
                    frames.skip(skip);
                    // The hole is reported; the entry behind it is where it should be.
                    if let Some(index) = rest.get(skip..).and_then(frame::index_at) {
                        expected = index;
                    }
                }
            }
        }
        found.bytes += frames.offset();
    }
    Ok(found)
}
