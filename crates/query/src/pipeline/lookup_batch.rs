//! The input of a `$lookup` whose foreign collection is on other servers: so many documents of it are
//! taken in, and one query asks for all that they join.
//!
//! ```text
//! input ── 16, 32, … 512 documents ── one query: the foreign field is one of all their values
//!                                         └── a table, in which each finds its own
//! ```
//! A query for each document would be a message to a server and back. Where the foreign collection is
//! sharded by the joined field the query goes to the shards that have these values, and to no others.
//!
//! Invariant: the documents come out as they went in. The table answers as
//! [`super::lookup_table`] says; what it cannot answer is asked for by itself.

use super::lookup::{Lookup, equals_any, join_values};
use super::lookup_table::{Table, empty_table, is_exact};
use super::stage_memory::hold;
use super::{IdleVisitor, Pipeline, PipelineHost, Share, Source};
use crate::expr::Vars;
use crate::filter::Filter;
use crate::metadata::Metadata;
use bson::{Doc, DocBuf, Val};
use errors::Result;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// For no more documents than this it is not worth asking how large the other side is.
const UNASKED: usize = 4;
/// How many documents are taken in: at first, so that who wants few waits for few, and at the most.
const FEWEST: usize = 16;
const MOST: usize = 512;
const MOST_BYTES: usize = 1 << 20;

/// What the documents that are taken in join: made by one side, read by the other.
#[derive(Clone, Default)]
pub(super) struct Batch(Arc<Mutex<Option<Arc<Table>>>>);

impl Batch {
    pub fn table(&self) -> Option<Arc<Table>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn put(&self, table: Option<Arc<Table>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = table;
    }
}

enum State {
    /// Whether there is anything to gain is not known yet: so many documents went through.
    Unknown(usize),
    /// Documents go through as they come.
    Through,
    Filling,
    Reading(Box<dyn Source>, Box<Table>),
    Giving,
}

pub(super) struct Ahead {
    input: Box<dyn Source>,
    spec: Arc<Lookup>,
    vars: Arc<Vars>,
    batch: Batch,
    state: State,
    /// Taken in, and not given yet; the first is the current one while it is given.
    held: VecDeque<(DocBuf, Metadata)>,
    bytes: usize,
    most: usize,
    ended: bool,
    share: Option<Share>,
}

impl Ahead {
    /// Of a stage whose matches a table may give.
    pub fn new(input: Box<dyn Source>, spec: Arc<Lookup>, vars: Arc<Vars>, batch: Batch) -> Ahead {
        Ahead {
            input,
            spec,
            vars,
            batch,
            state: State::Unknown(0),
            held: VecDeque::new(),
            bytes: 0,
            most: FEWEST,
            ended: false,
            share: None,
        }
    }

    /// Whether a query costs a message, and an index serves it.
    fn gains(&self, host: &mut dyn PipelineHost) -> bool {
        let (Some(ns), Some((_, foreign))) = (&self.spec.from, &self.spec.fields) else {
            return false;
        };
        let there = host.foreign(ns, foreign);
        there.is_some_and(|f| f.remote && f.indexed)
    }

    fn fill(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while !self.ended && self.held.len() < self.most && self.bytes < MOST_BYTES {
            let share = self.share.get_or_insert_with(|| host.share());
            hold(share, self.bytes, host, "$lookup")?;
            if self.input.advance(host)? {
                let doc = self.input.doc().to_buf();
                self.bytes += doc.as_bytes().len() + size_of::<DocBuf>();
                self.held.push_back((doc, self.input.meta().clone()));
            } else {
                self.ended = true;
            }
        }
        Ok(())
    }

    /// The query for all that is held; `None` where no document has a value to look for.
    fn query(&self, host: &mut dyn PipelineHost) -> Result<Option<Box<dyn Source>>> {
        let (Some(ns), Some((local, foreign))) = (&self.spec.from, &self.spec.fields) else {
            return Ok(None);
        };
        let all = self.held.iter();
        let mut values: Vec<Val<'_>> = all
            .flat_map(|(doc, _)| join_values(doc.as_doc(), local))
            .collect();
        values.retain(|v| is_exact(*v));
        if values.is_empty() {
            return Ok(None);
        }
        let filter = Filter::from_node(equals_any(foreign, values, None));
        let pipeline: Pipeline = self.spec.pipeline.after(filter);
        host.open(ns, &pipeline, &self.vars).map(Some)
    }

    /// Reads what the query gives into a table, where that can be and has room.
    fn read(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let State::Reading(source, table) = &mut self.state else {
            return Ok(());
        };
        let share = self.share.get_or_insert_with(|| host.share());
        let fits = loop {
            host.check()?;
            if !source.advance(host)? {
                break true;
            }
            let added = table.add(source.doc(), None);
            let bytes = self.bytes + table.bytes();
            if !added || bytes > host.memory_limit() || !share.fits(bytes) {
                break false;
            }
        };
        if let State::Reading(_, table) = std::mem::replace(&mut self.state, State::Giving) {
            self.batch.put(fits.then(|| Arc::new(*table)));
        }
        Ok(())
    }
}

impl Source for Ahead {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        loop {
            match &mut self.state {
                State::Through => return self.input.advance(host),
                State::Unknown(seen) if *seen < UNASKED => {
                    let more = self.input.advance(host)?;
                    *seen += 1;
                    return Ok(more);
                }
                State::Unknown(_) => {
                    self.state = match self.gains(host) {
                        true => State::Filling,
                        false => State::Through,
                    }
                }
                State::Filling => {
                    self.fill(host)?;
                    if self.held.is_empty() {
                        return Ok(false);
                    }
                    let found = self.query(host)?;
                    let table = empty_table(&self.spec);
                    self.state = match (found, table) {
                        (Some(found), Some(table)) => State::Reading(found, Box::new(table)),
                        _ => State::Giving,
                    };
                    self.most = MOST.min(self.most * 2);
                    if matches!(self.state, State::Giving) {
                        return Ok(true);
                    }
                }
                State::Reading(..) => {
                    self.read(host)?;
                    return Ok(true);
                }
                State::Giving => {
                    if let Some((doc, _)) = self.held.pop_front() {
                        self.bytes = self
                            .bytes
                            .saturating_sub(doc.as_bytes().len() + size_of::<DocBuf>());
                    }
                    if !self.held.is_empty() {
                        return Ok(true);
                    }
                    self.batch.put(None);
                    self.bytes = 0;
                    self.state = State::Filling;
                }
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        match self.state {
            State::Unknown(_) | State::Through => self.input.doc(),
            _ => self.held.front().map_or(Doc::EMPTY, |(d, _)| d.as_doc()),
        }
    }

    fn meta(&self) -> &Metadata {
        match self.state {
            State::Unknown(_) | State::Through => self.input.meta(),
            _ => self.held.front().map_or(Metadata::NONE, |(_, meta)| meta),
        }
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        let through = matches!(self.state, State::Unknown(_) | State::Through);
        self.input.parts(wanted && through, to)?;
        if let State::Reading(source, _) = &mut self.state {
            source.parts(false, to)?;
        }
        Ok(())
    }
}
