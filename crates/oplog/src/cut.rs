//! Truncation: a former primary removes the suffix of its log that the new primary does not have.
//!
//! ```text
//! sync all ─ note the cut (readers look again) ─ remove later segments, last first ─ cut the segment ─ sync it ─ go on
//! ```
//!
//! Invariants:
//! - When `truncate_after` returns, the truncation is durable: no crash brings a removed entry
//!   back.
//! - A crash in the middle leaves a log that ends somewhere between the cut and its old end,
//!   without a hole and without a torn entry: each removal is on disk before the next one begins,
//!   and a file is shortened in one step. The caller repeats the truncation after the restart.
//! - A failure in the middle poisons the log: the content of its files is unknown until a restart.
//! - A reader never gets entries from before and after a cut as one history (see
//!   [`crate::LogReader`]).

use crate::error::{Error, Result};
use crate::file::read_full_at;
use crate::frame::{HEADER_BYTES, Header};
use crate::marks::RecentMarks;
use crate::reader::{Frames, Step, corrupt, unreadable};
use crate::segment::Segment;
use crate::sync::Growing;
use crate::{Log, Shared, Tail};
use own_process::fail_stop::FailStop;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The cuts since the log was opened.
#[derive(Default)]
pub(crate) struct Cuts {
    count: AtomicUsize,
    /// The last index that each cut left.
    after: Mutex<Vec<u64>>,
}

impl Cuts {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The lowest index that the cuts after the first `seen` left (`None` when there were none),
    /// and the number of cuts so far.
    pub fn since(&self, seen: usize) -> (Option<u64>, usize) {
        let after = self.after.lock();
        let newer = &after[seen..];
        (newer.iter().min().copied(), after.len())
    }

    fn note(&self, index: u64) {
        let mut after = self.after.lock();
        after.push(index);
        self.count.store(after.len(), Ordering::SeqCst);
    }
}

/// Where a segment ends after the cut, and the last entry before that end.
struct End {
    offset: u64,
    ts: u64,
    term: u64,
}

impl Log {
    /// Removes all entries after `index`, durably. Does nothing when there are none. A thread that
    /// waits for one of them to become durable gets an error.
    pub fn truncate_after(&self, index: u64) -> Result<()> {
        let _fail_stop = FailStop::begin();
        let mut tail = self.tail.lock();
        let shared = &*self.shared;
        if index.saturating_add(1) >= tail.next_index {
            return Ok(());
        }
        let _no_sync = shared.syncer.hold();
        // The entries that stay may be in files that were never synced.
        shared.sync()?;
        let holding = shared.segments.lock().holding(index + 1);
        let Some((segment, _)) = holding else {
            let first = self.first_index();
            return Err(Error::Missing {
                wanted: index + 1,
                first,
            });
        };
        let end = end_after(&segment, index)?;
        shared.written.store(index, Ordering::SeqCst);
        shared.cuts.note(index);
        if let Err(e) = shared.cut_files(&segment, end.offset) {
            let why = format!("cutting it after entry {index} failed: {e}");
            shared.syncer.poison(why);
            return Err(e);
        }
        segment.bytes.store(end.offset, Ordering::Release);
        shared.syncer.cut(index, Growing::new(&segment));
        assert_eq!(shared.syncer.durable(), index, "a cut is durable");
        assert!(
            segment.first_index <= index + 1 && end.offset >= HEADER_BYTES as u64,
            "the log goes on in the segment that was cut"
        );
        shared.last_ts.store(end.ts, Ordering::Release);
        if end.offset == HEADER_BYTES as u64 {
            segment.first_ts.store(0, Ordering::Relaxed);
        }
        *tail = Tail {
            segment,
            offset: end.offset,
            reserved: end.offset,
            next_index: index + 1,
            last_ts: end.ts,
            last_term: end.term,
            term: tail.term,
            buf: Vec::new(),
            recent: RecentMarks::default(),
        };
        Ok(())
    }
}

impl Shared {
    fn cut_files(&self, segment: &Arc<Segment>, offset: u64) -> Result<()> {
        let files = &self.opts.file_system;
        let fail = |segment: &Segment, e: &std::io::Error| {
            Error::io(format!("cannot cut {}", segment.path.display()), e)
        };
        loop {
            let last = {
                let mut segments = self.segments.lock();
                match segments.all.back() {
                    Some(last) if last.first_index > segment.first_index => segments.all.pop_back(),
                    _ => None,
                }
            };
            let Some(last) = last else { break };
            files.remove(&last.path).map_err(|e| fail(&last, &e))?;
            files
                .sync_dir(&self.opts.dir)
                .map_err(|e| fail(&last, &e))?;
        }
        let file = &segment.file;
        file.truncate(offset).map_err(|e| fail(segment, &e))?;
        file.sync_data().map_err(|e| fail(segment, &e))
    }
}

/// Finds the end of entry `index`, which is in the segment or is the last one before it.
fn end_after(segment: &Segment, index: u64) -> Result<End> {
    let mut head = [0; HEADER_BYTES];
    read_full_at(&*segment.file, &mut head, 0).map_err(|e| unreadable(&segment.path, &e))?;
    let header = Header::decode(&head)
        .ok_or_else(|| corrupt(&segment.path, 0, index, "the segment has no header"))?;
    let mut end = End {
        offset: HEADER_BYTES as u64,
        ts: header.ts_before,
        term: header.term_before,
    };
    let mut next = segment.first_index;
    let mut frames = Frames::new(segment);
    while next <= index {
        let step = frames.next().map_err(|e| unreadable(&segment.path, &e))?;
        let why = match step {
            Step::Frame(found) if found.stamp.index == next => {
                end = End {
                    offset: frames.offset(),
                    ts: found.stamp.ts,
                    term: found.stamp.term,
                };
                next += 1;
                continue;
            }
            Step::Frame(_) => "another entry is in its place",
            Step::End => "the segment ends before it",
            Step::Damaged(why) => why,
        };
        return Err(corrupt(&segment.path, end.offset, next, why));
    }
    Ok(end)
}
