//! `$sort` (with a limit: only the first of them are kept) and `$sample`.

use super::spill::{Merge, Runs};
use super::{Host, Source, Watch, too_much_memory};
use crate::sort::SortPattern;
use bson::Doc;
use errors::Result;
use std::collections::BinaryHeap;
use std::sync::Arc;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    key: Vec<u8>,
    /// Order of arrival: the sort is stable.
    seq: u64,
    doc: Vec<u8>,
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    pattern: Arc<SortPattern>,
    limit: Option<usize>,
    /// The greatest on top, so that a smaller one can take its place.
    heap: BinaryHeap<Row>,
    all: Vec<Row>,
    bytes: usize,
    seq: u64,
    scratch: Vec<u8>,
    runs: Runs,
    sorted: std::vec::IntoIter<Row>,
    merge: Option<Merge>,
    out: Vec<u8>,
}

impl Run {
    pub fn new(input: Box<dyn Source>, pattern: Arc<SortPattern>, limit: Option<u64>) -> Run {
        Run {
            input: Some(input),
            pattern,
            limit: limit.and_then(|l| usize::try_from(l).ok()),
            heap: BinaryHeap::new(),
            all: Vec::new(),
            bytes: 0,
            seq: 0,
            scratch: Vec::new(),
            runs: Runs::default(),
            sorted: Vec::new().into_iter(),
            merge: None,
            out: Vec::new(),
        }
    }

    /// What is in memory, in order.
    fn drain(&mut self) -> Vec<Row> {
        self.bytes = 0;
        if self.limit.is_some() {
            return std::mem::take(&mut self.heap).into_sorted_vec();
        }
        let mut rows = std::mem::take(&mut self.all);
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(a.seq.cmp(&b.seq)));
        rows
    }

    /// Tells explain what is in memory.
    fn measure(&self, host: &mut dyn Host) {
        if let Some(f) = host.watch().and_then(Watch::now) {
            f.sorted_bytes += self.bytes as u64;
        }
    }

    /// Writes what is in memory as a run.
    fn spill(&mut self, host: &mut dyn Host) -> Result<()> {
        let file = host.spill()?;
        self.measure(host);
        let mut rows = self.drain();
        let docs: Vec<Vec<u8>> = rows
            .iter_mut()
            .map(|r| std::mem::take(&mut r.doc))
            .collect();
        let entries = rows.iter().zip(docs).map(|(r, d)| (r.key.as_slice(), d));
        let bytes = self.runs.write(file, entries)?;
        if let Some(f) = host.watch().and_then(Watch::now) {
            f.spilled(rows.len(), bytes);
        }
        Ok(())
    }

    fn take_in(
        heap: &mut BinaryHeap<Row>,
        all: &mut Vec<Row>,
        limit: Option<usize>,
        key: &[u8],
        seq: u64,
        doc: Doc<'_>,
    ) -> isize {
        let size = |r: &Row| (r.key.len() + r.doc.len() + size_of::<Row>()) as isize;
        let row = || Row {
            key: key.to_vec(),
            seq,
            doc: doc.as_bytes().to_vec(),
        };
        match limit {
            None => {
                let r = row();
                let n = size(&r);
                all.push(r);
                n
            }
            Some(0) => 0,
            Some(limit) if heap.len() < limit => {
                let r = row();
                let n = size(&r);
                heap.push(r);
                n
            }
            Some(_) => match heap.peek_mut() {
                Some(mut top) if key < top.key.as_slice() => {
                    let r = row();
                    let n = size(&r) - size(&top);
                    *top = r;
                    n
                }
                _ => 0,
            },
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn Host) -> Result<bool> {
        if self.input.is_some() {
            let limit = host.memory_limit();
            while let Some(input) = &mut self.input {
                if self.bytes > limit {
                    if !host.allow_disk_use() {
                        return Err(too_much_memory("$sort", limit));
                    }
                    self.spill(host)?;
                    continue;
                }
                if !input.advance(host)? {
                    break;
                }
                let doc = input.doc();
                self.scratch.clear();
                self.pattern.sort_key(doc, &mut self.scratch)?;
                self.seq += 1;
                let grown = Run::take_in(
                    &mut self.heap,
                    &mut self.all,
                    self.limit,
                    &self.scratch,
                    self.seq,
                    doc,
                );
                self.bytes = self.bytes.saturating_add_signed(grown);
            }
            if !self.runs.is_empty() {
                self.spill(host)?;
                self.merge = Some(std::mem::take(&mut self.runs).merge()?);
            }
            self.measure(host);
            self.input = None;
            self.sorted = self.drain().into_iter();
        }
        host.check()?;
        if let Some(m) = &mut self.merge {
            let Some((_, doc)) = m.next()? else {
                return Ok(false);
            };
            self.out = doc;
            return Ok(true);
        }
        match self.sorted.next() {
            Some(r) => {
                self.out = r.doc;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }
}

/// `$sample`: documents with random keys, the least of them kept; so they come out in random order.
pub(super) struct Sample {
    input: Option<Box<dyn Source>>,
    size: usize,
    heap: BinaryHeap<(u64, Vec<u8>)>,
    chosen: std::vec::IntoIter<(u64, Vec<u8>)>,
    out: Vec<u8>,
}

impl Sample {
    pub fn new(input: Box<dyn Source>, size: u64) -> Sample {
        Sample {
            input: Some(input),
            size: usize::try_from(size).unwrap_or(usize::MAX),
            heap: BinaryHeap::new(),
            chosen: Vec::new().into_iter(),
            out: Vec::new(),
        }
    }
}

impl Source for Sample {
    fn advance(&mut self, host: &mut dyn Host) -> Result<bool> {
        if let Some(input) = &mut self.input {
            while input.advance(host)? {
                let key = rand::random::<u64>();
                if self.heap.len() < self.size {
                    self.heap.push((key, input.doc().as_bytes().to_vec()));
                } else if let Some(mut top) = self.heap.peek_mut()
                    && key < top.0
                {
                    *top = (key, input.doc().as_bytes().to_vec());
                }
            }
            self.input = None;
            self.chosen = std::mem::take(&mut self.heap).into_sorted_vec().into_iter();
        }
        host.check()?;
        match self.chosen.next() {
            Some((_, doc)) => {
                self.out = doc;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }
}
