//! `$sort` (with a limit: only the first of them are kept), `$sample`, and the order of
//! `$setWindowFields`, `$bucketAuto` and `$densify`.

use super::bucket::BucketAuto;
use super::densify::Ranking;
use super::spill::{Merge, Runs};
use super::window::Window;
use super::{IdleVisitor, PipelineHost, Share, Source, StageProfiler, too_much_memory};
use crate::expr::Vars;
use crate::metadata::Metadata;
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
    /// With its metadata.
    doc: Vec<u8>,
}

/// What documents are sorted by.
pub(super) enum Order {
    By(Arc<SortPattern>),
    /// Random keys: the least of them are a sample, in random order.
    Random,
    /// Partition, then sort key.
    Window(Arc<Window>, Arc<Vars>),
    /// The group expression.
    Bucket(Arc<BucketAuto>),
    /// Partition, then value.
    Densify(Ranking),
    /// Where a search has them.
    Token {
        backwards: bool,
    },
}

impl Order {
    fn key(&mut self, doc: Doc<'_>, meta: &Metadata, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Order::By(pattern) => pattern.sort_key_with(doc, meta, out),
            Order::Random => {
                out.extend_from_slice(&rand::random::<u64>().to_be_bytes());
                Ok(())
            }
            Order::Window(window, vars) => window.order(doc, vars, out),
            Order::Bucket(spec) => {
                spec.order(doc, out);
                Ok(())
            }
            Order::Densify(ranking) => ranking.order(doc, out),
            Order::Token { backwards } => {
                let start = out.len();
                let token = meta.sequence_token.as_deref().unwrap_or("");
                out.extend_from_slice(token.as_bytes());
                out.push(0);
                if *backwards {
                    out.iter_mut().skip(start).for_each(|b| *b = !*b);
                }
                Ok(())
            }
        }
    }

    fn stage(&self) -> &'static str {
        match self {
            Order::By(_) | Order::Token { .. } => "$sort",
            Order::Random => "$sample",
            Order::Window(..) => "$setWindowFields",
            Order::Bucket(_) => "$bucketAuto",
            Order::Densify(_) => "$densify",
        }
    }
}

pub(super) struct Run {
    input: Option<Box<dyn Source>>,
    order: Order,
    limit: Option<usize>,
    settled: bool,
    /// Results given.
    given: usize,
    /// The greatest on top, so that a smaller one can take its place.
    heap: BinaryHeap<Row>,
    all: Vec<Row>,
    bytes: usize,
    share: Option<Share>,
    seq: u64,
    scratch: Vec<u8>,
    runs: Runs,
    spilled_bytes: u64,
    sorted: std::vec::IntoIter<Row>,
    merge: Option<Merge>,
    key: Vec<u8>,
    out: Vec<u8>,
    meta: Metadata,
}

impl Run {
    pub fn new(input: Box<dyn Source>, order: Order, limit: Option<u64>) -> Run {
        Run {
            input: Some(input),
            order,
            limit: limit.and_then(|l| usize::try_from(l).ok()),
            settled: false,
            given: 0,
            heap: BinaryHeap::new(),
            all: Vec::new(),
            bytes: 0,
            share: None,
            seq: 0,
            scratch: Vec::new(),
            runs: Runs::default(),
            spilled_bytes: 0,
            sorted: Vec::new().into_iter(),
            merge: None,
            key: Vec::new(),
            out: Vec::new(),
            meta: Metadata::default(),
        }
    }

    pub fn order(&self) -> &Order {
        &self.order
    }

    /// How many documents were taken in: all of the input once one was given.
    pub fn taken(&self) -> u64 {
        self.seq
    }

    /// What the current document was sorted by.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The current document, which is gone then.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The rows in memory, in order.
    fn drain(&mut self) -> Vec<Row> {
        self.bytes = 0;
        if self.limit.is_some() {
            return std::mem::take(&mut self.heap).into_sorted_vec();
        }
        let mut rows = std::mem::take(&mut self.all);
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(a.seq.cmp(&b.seq)));
        rows
    }

    /// Tells explain how much is in memory.
    fn measure(&self, host: &mut dyn PipelineHost) {
        if let Some(f) = host.watch().and_then(StageProfiler::now) {
            f.sorted_bytes += self.bytes as u64;
        }
    }

    /// Writes the rows in memory as a run.
    fn spill(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        self.runs.prepare(host)?;
        self.measure(host);
        let mut rows = self.drain();
        let docs: Vec<Vec<u8>> = rows
            .iter_mut()
            .map(|r| std::mem::take(&mut r.doc))
            .collect();
        let entries = rows.iter().zip(docs).map(|(r, d)| (r.key.as_slice(), d));
        let bytes = self.runs.write(entries)?;
        self.spilled_bytes += bytes;
        self.share = None;
        if let Some(f) = host.watch().and_then(StageProfiler::now) {
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
        (doc, meta): (Doc<'_>, &Metadata),
    ) -> isize {
        let size = |r: &Row| (r.key.len() + r.doc.len() + size_of::<Row>()) as isize;
        let row = || Row {
            key: key.to_vec(),
            seq,
            doc: meta.pack(doc),
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

    /// Writes the rows in memory as a run where they are too much.
    fn make_room(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let limit = host.memory_limit();
        let share = self.share.get_or_insert_with(|| host.share());
        if self.bytes <= limit && share.fits(self.bytes) {
            return Ok(());
        }
        // Without leave for files a stage is refused for its own memory, not for that of others.
        let before = self.limit.map_or(self.spilled_bytes, |_| 0);
        if !host.allow_disk_use() && self.bytes as u64 + before > limit as u64 {
            return Err(too_much_memory(self.order.stage(), limit).into());
        }
        self.spill(host)
    }

    /// Takes in all of the input.
    pub fn gather(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while self.input.is_some() {
            self.make_room(host)?;
            let Some(input) = self.input.as_mut() else {
                break;
            };
            if !input.advance(host)? {
                self.input = None;
                break;
            }
            let doc = input.doc();
            self.scratch.clear();
            self.order.key(doc, input.meta(), &mut self.scratch)?;
            self.seq += 1;
            let grown = Run::take_in(
                &mut self.heap,
                &mut self.all,
                self.limit,
                &self.scratch,
                self.seq,
                (doc, input.meta()),
            );
            self.bytes = self.bytes.saturating_add_signed(grown);
        }
        Ok(())
    }

    /// Takes over the rows of another, which come behind all that this one has seen.
    pub fn absorb(&mut self, mut next: Run, host: &mut dyn PipelineHost) -> Result<()> {
        if !self.runs.is_empty() || !next.runs.is_empty() {
            self.spill(host)?;
            next.spill(host)?;
            self.spilled_bytes += next.spilled_bytes;
            self.runs.append(next.runs);
            self.seq += next.seq;
            return Ok(());
        }
        for mut row in next.drain() {
            host.check()?;
            self.make_room(host)?;
            let meta = Metadata::unpack(&mut row.doc);
            let doc = (Doc::new(&row.doc).unwrap_or(Doc::EMPTY), &meta);
            let seq = self.seq + row.seq;
            let (heap, all) = (&mut self.heap, &mut self.all);
            let grown = Run::take_in(heap, all, self.limit, &row.key, seq, doc);
            self.bytes = self.bytes.saturating_add_signed(grown);
        }
        self.seq += next.seq;
        Ok(())
    }

    /// All of the input was taken in.
    fn settle(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        if self.settled {
            return Ok(());
        }
        if !self.runs.is_empty() {
            self.spill(host)?;
            self.merge = Some(std::mem::take(&mut self.runs).merge()?);
        }
        self.measure(host);
        self.sorted = self.drain().into_iter();
        self.settled = true;
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        self.gather(host)?;
        self.settle(host)?;
        host.check()?;
        // Runs of a sort with a limit have up to so many each.
        if self.limit.is_some_and(|l| self.given >= l) {
            return Ok(false);
        }
        let next = match &mut self.merge {
            Some(m) => m.next_entry()?,
            None => self.sorted.next().map(|r| (r.key, r.doc)),
        };
        let Some((key, doc)) = next else {
            return Ok(false);
        };
        self.given += 1;
        (self.key, self.out) = (key, doc);
        self.meta = Metadata::unpack(&mut self.out);
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        &self.meta
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)?;
        to.doc(&mut self.out, wanted)
    }
}
