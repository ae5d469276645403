//! The blocking sort. It keeps sort keys and record keys. It keeps documents only while they are
//! few, since they can be read again from the snapshot. With a limit it is a heap of that size.
//! What exceeds memory goes to temporary files in sorted runs. Without `allowDiskUse` the sort
//! fails where MongoDB, which sorts documents, would run out of memory.
//!
//! ```text
//! spilled row = has document u8 | record key length u32 LE | record key | document
//! ```

use crate::op::OpCtx;
use crate::read::step::{Current, Step};
use crate::read::text;
use crate::records;
use bson::Doc;
use errors::{Error, Result, bail};
use planner::Plan;
use query::metadata::Metadata;
use query::pipeline::{Merge, Runs, Share, SpillFile, SpillTarget};
use query::sort::SortPattern;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// The memory limit of a sort; MongoDB's default.
const MEMORY_LIMIT: usize = 100 << 20;
/// Documents are kept beside their keys up to this total size.
const KEEP_DOCS: usize = 4 << 20;
const FETCH_BATCH: usize = 64;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    key: Vec<u8>,
    /// Order of arrival: the sort is stable.
    seq: u64,
    record_key: Vec<u8>,
    doc: Option<Vec<u8>>,
    /// The bytes that are charged for a document that is not kept.
    charged: usize,
}

pub(crate) struct Sorter {
    pattern: SortPattern,
    /// Gives the scores that documents are sorted by.
    scores: Option<Arc<Plan>>,
    limit: Option<usize>,
    heap: BinaryHeap<Row>,
    all: Vec<Row>,
    scratch: Vec<u8>,
    rows: u64,
    bytes: usize,
    peak: usize,
    docs_bytes: usize,
    /// The bytes in runs.
    spilled_bytes: u64,
    share: Share,
    disk_use: bool,
    runs: Runs,
}

/// The temporary files for runs.
struct Files<'a, 'c>(&'a mut OpCtx<'c>);

impl SpillTarget for Files<'_, '_> {
    fn file(&mut self) -> Result<Box<dyn SpillFile>> {
        self.0.need_worker()?;
        Ok(Box::new(self.0.engine.store.temporary_file()?))
    }

    fn check(&mut self) -> Result<()> {
        self.0.tick(1)
    }
}

impl Sorter {
    pub(crate) fn new(
        ctx: &OpCtx,
        pattern: SortPattern,
        limit: Option<usize>,
        disk_use: bool,
    ) -> Sorter {
        Sorter {
            pattern,
            scores: None,
            limit,
            heap: BinaryHeap::new(),
            all: Vec::new(),
            scratch: Vec::new(),
            rows: 0,
            bytes: 0,
            peak: 0,
            docs_bytes: 0,
            spilled_bytes: 0,
            share: ctx.engine.stage_memory.share(),
            disk_use,
            runs: Runs::default(),
        }
    }

    /// To be called where the order may be by what the plan knows of documents.
    pub(crate) fn score_by(&mut self, plan: &Arc<Plan>) {
        self.scores = self.pattern.by_text_score().then(|| plan.clone());
    }

    /// `keep`: the document cannot be fetched again (it was built from an index).
    pub(crate) fn add(
        &mut self,
        ctx: &mut OpCtx,
        doc: Doc<'_>,
        record_key: &[u8],
        keep: bool,
    ) -> Result<()> {
        self.add_as(ctx, doc, record_key, keep, self.rows + 1)
    }

    /// Adds the row with sequence number `seq`, in any order of calls.
    pub(crate) fn add_as(
        &mut self,
        ctx: &mut OpCtx,
        doc: Doc<'_>,
        record_key: &[u8],
        keep: bool,
        seq: u64,
    ) -> Result<()> {
        self.rows += 1;
        if !self.make_key(doc, seq)? {
            return Ok(());
        }
        if self.room() == 0
            && let Some(r) = self.heap.pop()
        {
            self.bytes -= size(&r);
            self.docs_bytes -= r.doc.as_ref().map_or(0, Vec::len);
        }
        let keep = keep || self.limit.is_none() && self.may_keep(doc.len());
        if keep {
            self.docs_bytes += doc.len();
        }
        let row = Row {
            key: self.scratch.clone(),
            seq,
            record_key: record_key.to_vec(),
            doc: keep.then(|| doc.as_bytes().to_vec()),
            charged: if keep || self.disk_use { 0 } else { doc.len() },
        };
        self.bytes += size(&row);
        self.peak = self.peak.max(self.bytes);
        if self.limit.is_some() {
            self.heap.push(row);
        } else {
            self.all.push(row);
        }
        if self.bytes > MEMORY_LIMIT || !self.share.fits(self.bytes) {
            // Without `allowDiskUse` only the sort's own memory can make it fail, not that of
            // others.
            let before = self.limit.map_or(self.spilled_bytes, |_| 0);
            if !self.disk_use && self.bytes as u64 + before > MEMORY_LIMIT as u64 {
                bail!(
                    QueryExceededMemoryLimitNoDiskUseAllowed,
                    "Sort exceeded memory limit of {MEMORY_LIMIT} bytes, but did not opt in to external sorting."
                );
            }
            self.spill(ctx)?;
        }
        Ok(())
    }

    /// Makes the row's sort key in `scratch`; false where the row comes behind all that are wanted.
    fn make_key(&mut self, doc: Doc<'_>, seq: u64) -> Result<bool> {
        self.scratch.clear();
        let known = self.scores.as_ref().map(|plan| text::metadata(plan, doc));
        let known = known.as_ref().unwrap_or(Metadata::NONE);
        let last = self.heap.peek().filter(|_| self.room() == 0);
        let last_key = last.map(|row| row.key.as_slice());
        let (pattern, key) = (&self.pattern, &mut self.scratch);
        let may_come = pattern.sort_key_until(doc, known, last_key, key)?;
        let before = |row: &Row| (key.as_slice(), seq) < (row.key.as_slice(), row.seq);
        Ok(may_come && last.is_none_or(before))
    }

    /// Takes the rows in memory, in order.
    fn drain(&mut self) -> Vec<Row> {
        (self.bytes, self.docs_bytes) = (0, 0);
        if self.limit.is_some() {
            return std::mem::take(&mut self.heap).into_sorted_vec();
        }
        let mut rows = std::mem::take(&mut self.all);
        rows.sort_unstable();
        rows
    }

    /// Writes the rows in memory as a run.
    fn spill(&mut self, ctx: &mut OpCtx) -> Result<()> {
        self.runs.prepare(&mut Files(ctx))?;
        self.spilled_bytes += self.bytes as u64;
        let rows = self.drain();
        let entries = rows.iter().map(|r| (r.key.as_slice(), r.to_bytes()));
        self.runs.write(entries)?;
        drop(rows);
        self.share.release();
        Ok(())
    }

    /// The peak memory, in bytes.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.peak
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether a document of so many bytes may be kept beside its key.
    pub(crate) fn may_keep(&self, bytes: usize) -> bool {
        self.docs_bytes + bytes <= KEEP_DOCS
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// The number of rows that still fit before one is dropped.
    pub(crate) fn room(&self) -> usize {
        let limit = self.limit.unwrap_or(usize::MAX);
        limit.saturating_sub(self.heap.len())
    }

    /// The key of the last kept row, once the heap is full.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        let last = self.heap.peek().filter(|_| self.room() == 0);
        last.map(|row| row.key.as_slice())
    }

    pub(crate) fn finish(mut self, ctx: &mut OpCtx) -> Result<Sorted> {
        let mut sorted = Sorted::default();
        match self.runs.is_empty() {
            true => sorted.rows = self.drain().into(),
            false => {
                self.spill(ctx)?;
                sorted.spilled = Some(self.runs.merge()?);
            }
        }
        sorted.share = self.share;
        Ok(sorted)
    }
}

impl Row {
    fn to_bytes(&self) -> Vec<u8> {
        let doc = self.doc.as_deref().unwrap_or(&[]);
        let mut out = Vec::with_capacity(5 + self.record_key.len() + doc.len());
        out.push(u8::from(self.doc.is_some()));
        out.extend_from_slice(&(self.record_key.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.record_key);
        out.extend_from_slice(doc);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Row> {
        let (has_doc, rest) = bytes.split_first()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (record_key, doc) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        if *has_doc != 0 {
            Doc::new(doc)?;
        }
        Some(Row {
            key: Vec::new(),
            seq: 0,
            record_key: record_key.to_vec(),
            doc: (*has_doc != 0).then(|| doc.to_vec()),
            charged: 0,
        })
    }
}

fn size(r: &Row) -> usize {
    r.key.len()
        + r.record_key.len()
        + r.doc.as_ref().map_or(0, Vec::len)
        + r.charged
        + std::mem::size_of::<Row>()
}

/// The sorted rows, given in order; documents that were not kept are fetched in batches.
#[derive(Default)]
pub(crate) struct Sorted {
    rows: VecDeque<Row>,
    /// The rows after them, when they were spilled.
    spilled: Option<Merge>,
    ready: VecDeque<(Vec<u8>, Option<storage::Slice>)>,
    share: Share,
}

impl Sorted {
    /// Skips the next `n` rows, without fetching those that are not fetched yet; returns how many there were.
    pub(crate) fn skip(&mut self, n: usize) -> Result<usize> {
        let mut skipped = self.ready.len().min(n);
        self.ready.drain(..skipped);
        while skipped < n {
            self.refill()?;
            let some = self.rows.len().min(n - skipped);
            if some == 0 {
                break;
            }
            self.rows.drain(..some);
            skipped += some;
        }
        Ok(skipped)
    }

    /// Whether the next step fetches documents.
    pub(crate) fn has_keys(&self) -> bool {
        self.ready.is_empty() && self.rows.front().is_some_and(|r| r.doc.is_none())
    }

    /// Releases documents that can be fetched again.
    pub(crate) fn release(&mut self) {
        while let Some((record_key, _)) = self.ready.pop_back() {
            self.rows.push_front(Row {
                key: Vec::new(),
                seq: 0,
                record_key,
                doc: None,
                charged: 0,
            });
        }
    }

    /// Loads the next rows into memory, when there are none.
    fn refill(&mut self) -> Result<()> {
        while self.rows.len() < FETCH_BATCH
            && let Some(spilled) = &mut self.spilled
        {
            match spilled.next_entry()? {
                Some((_, bytes)) => {
                    let row = Row::from_bytes(&bytes)
                        .ok_or_else(|| Error::internal("a row of a spilled sort is damaged"))?;
                    self.rows.push_back(row);
                }
                None => self.spilled = None,
            }
        }
        Ok(())
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        loop {
            if let Some((key, slice)) = self.ready.pop_front() {
                let Some(slice) = slice else { continue };
                records::stored(step.coll, &key, &slice)?;
                step.record_key.clear();
                step.record_key.extend_from_slice(&key);
                return Ok(Some(Current::Fetched(slice)));
            }
            self.refill()?;
            match self.rows.front() {
                None => {
                    self.share.release();
                    return Ok(None);
                }
                Some(r) if r.doc.is_some() => {
                    let Some(r) = self.rows.pop_front() else {
                        return Ok(None);
                    };
                    step.record_key.clear();
                    step.record_key.extend_from_slice(&r.record_key);
                    return Ok(r.doc.map(Current::Built));
                }
                Some(_) => {
                    let n = self
                        .rows
                        .iter()
                        .take(FETCH_BATCH)
                        .take_while(|r| r.doc.is_none())
                        .count();
                    ctx.tick(n as u32)?;
                    let keys: Vec<Vec<u8>> = self
                        .rows
                        .iter()
                        .take(n)
                        .map(|r| step.coll.record_key(&r.record_key))
                        .collect();
                    let refs: Vec<&[u8]> = keys.iter().map(|k| k.as_slice()).collect();
                    let found = step.view.get_some(&refs)?;
                    let rows = self.rows.drain(..found.len());
                    self.ready.extend(rows.map(|r| r.record_key).zip(found));
                }
            }
        }
    }
}
