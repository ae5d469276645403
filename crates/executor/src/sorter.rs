//! The blocking sort. It keeps sort keys and record keys; documents only while they are few, since the snapshot can give
//! them again. With a limit it is a heap of that size.

use crate::op::OpCtx;
use crate::read::{Current, Step};
use bson::Doc;
use errors::{Result, bail};
use query::sort::SortPattern;
use std::collections::{BinaryHeap, VecDeque};

/// What a sort may hold in memory; MongoDB's default.
const MEMORY_LIMIT: usize = 100 << 20;
/// Documents are kept beside their keys up to this size in all.
const KEEP_DOCS: usize = 4 << 20;
const FETCH_BATCH: usize = 64;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    key: Vec<u8>,
    /// Order of arrival: the sort is stable.
    seq: u64,
    record_key: Vec<u8>,
    doc: Option<Vec<u8>>,
}

pub(crate) struct Sorter {
    pattern: SortPattern,
    limit: Option<usize>,
    heap: BinaryHeap<Row>,
    all: Vec<Row>,
    scratch: Vec<u8>,
    seq: u64,
    bytes: usize,
    peak: usize,
    docs_bytes: usize,
}

impl Sorter {
    pub(crate) fn new(pattern: SortPattern, limit: Option<usize>) -> Sorter {
        Sorter {
            pattern,
            limit,
            heap: BinaryHeap::new(),
            all: Vec::new(),
            scratch: Vec::new(),
            seq: 0,
            bytes: 0,
            peak: 0,
            docs_bytes: 0,
        }
    }

    /// `keep`: the document cannot be fetched again (it was built from an index).
    pub(crate) fn add(&mut self, doc: Doc<'_>, record_key: &[u8], keep: bool) -> Result<()> {
        self.scratch.clear();
        self.pattern.sort_key(doc, &mut self.scratch)?;
        self.seq += 1;
        if let Some(limit) = self.limit
            && self.heap.len() >= limit
        {
            match self.heap.peek() {
                Some(worst) if self.scratch < worst.key => {
                    if let Some(r) = self.heap.pop() {
                        self.bytes -= size(&r);
                    }
                }
                _ => return Ok(()),
            }
        }
        let keep = keep || self.limit.is_none() && self.docs_bytes + doc.len() <= KEEP_DOCS;
        if keep {
            self.docs_bytes += doc.len();
        }
        let row = Row {
            key: self.scratch.clone(),
            seq: self.seq,
            record_key: record_key.to_vec(),
            doc: keep.then(|| doc.as_bytes().to_vec()),
        };
        self.bytes += size(&row);
        self.peak = self.peak.max(self.bytes);
        if self.bytes > MEMORY_LIMIT {
            bail!(
                QueryExceededMemoryLimitNoDiskUseAllowed,
                "Sort exceeded memory limit of {MEMORY_LIMIT} bytes, but did not opt in to external sorting."
            );
        }
        if self.limit.is_some() {
            self.heap.push(row);
        } else {
            self.all.push(row);
        }
        Ok(())
    }

    /// What it held at most.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.peak
    }

    pub(crate) fn rows(&self) -> u64 {
        self.seq
    }

    pub(crate) fn finish(mut self) -> Sorted {
        let rows = if self.limit.is_some() {
            self.heap.into_sorted_vec()
        } else {
            self.all.sort_unstable();
            self.all
        };
        Sorted {
            rows: rows.into(),
            ready: VecDeque::new(),
        }
    }
}

fn size(r: &Row) -> usize {
    r.key.len()
        + r.record_key.len()
        + r.doc.as_ref().map_or(0, Vec::len)
        + std::mem::size_of::<Row>()
}

/// The sorted rows, given in order; documents that were not kept are fetched in batches.
pub(crate) struct Sorted {
    rows: VecDeque<Row>,
    ready: VecDeque<(Vec<u8>, Option<storage::Slice>)>,
}

impl Sorted {
    /// Passes over the first `n` rows without fetching them.
    pub(crate) fn skip(&mut self, n: usize) -> usize {
        let n = n.min(self.rows.len());
        self.rows.drain(..n);
        n
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        loop {
            if let Some((key, slice)) = self.ready.pop_front() {
                let Some(slice) = slice else { continue };
                step.record_key.clear();
                step.record_key.extend_from_slice(&key);
                return Ok(Some(Current::Fetched(slice)));
            }
            match self.rows.front() {
                None => return Ok(None),
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
                    let found = step.view.multi_get(&refs)?;
                    self.ready
                        .extend(self.rows.drain(..n).map(|r| r.record_key).zip(found));
                }
            }
        }
    }
}
