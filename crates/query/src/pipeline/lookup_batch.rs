//! The input of a `$lookup` or a `$graphLookup` whose foreign collection is on other servers: so many
//! documents of it are taken in, and one query asks for all that they join; of a search, one for each
//! step away from where they start.
//!
//! ```text
//! input ── 16, 32, … 512 documents ── one query: the foreign field is one of all their values
//!                                     │   └── a table, in which each finds its own
//!                                     └── $graphLookup: one query for all that this leads to, …
//! ```
//! A query for each document would be a message to a server and back. Where the foreign collection is
//! sharded by the joined field the query goes to the shards that have these values, and to no others.
//!
//! Invariant: the documents come out as they went in. The table answers as
//! [`super::lookup_table`] says; what it cannot answer is asked for by itself.

use super::lookup_table::{JoinedCollection, Table, read_into};
use super::stage_memory::hold;
use super::{IdleVisitor, Namespace, Pipeline, PipelineHost, Share, Source};
use crate::expr::Vars;
use crate::metadata::Metadata;
use crate::path::FieldPath;
use bson::{Doc, DocBuf, Val, Value, key};
use errors::Result;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// For no more documents than this it is not worth asking how large the other side is.
const UNASKED: usize = 4;
/// How many documents a batch takes: at first few, so that a small limit waits for few, and at the most.
const FEWEST: usize = 16;
const MOST: usize = 512;
const MOST_BYTES: usize = 1 << 20;
/// Of a value that was asked for, beside its bytes, about.
const VALUE_BYTES: usize = 64;

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

/// A stage that joins by values of a path.
pub(super) trait Joins: Send + Sync {
    /// As errors name it.
    const STAGE: &'static str;
    /// The most values that one query asks for.
    const MOST_VALUES: usize;
    /// The collection, and the path by which it is asked.
    fn from(&self) -> Option<(&Namespace, &FieldPath)>;
    /// Whether a query for many is worth it, where each is a message.
    fn gains(&self, there: &JoinedCollection) -> bool;
    /// The values that a document of the input looks for.
    fn values(&self, doc: Doc<'_>, vars: &Arc<Vars>) -> Result<Vec<Value>>;
    /// What finds the documents that have one of the values.
    fn query(&self, values: Vec<Val<'_>>) -> Pipeline;
    /// The values that are looked for where this was found.
    fn leads_to<'d>(&self, found: Doc<'d>) -> Vec<Val<'d>>;
    /// How many steps from the first documents the search goes; `None`: as far as they lead.
    fn most_steps(&self) -> Option<i64>;
}

/// The values of a batch.
#[derive(Default)]
struct Wanted {
    /// Keys of all that were wanted so far.
    known: HashSet<Vec<u8>>,
    /// Not asked for yet; those of the next step.
    here: VecDeque<Value>,
    next: VecDeque<Value>,
    step: i64,
    bytes: usize,
}

impl Wanted {
    fn want(&mut self, v: Val<'_>) {
        let key = key::of(v);
        let bytes = key.len() + v.bytes.len() + VALUE_BYTES;
        if self.known.insert(key) {
            self.bytes += bytes;
            self.next.push_back(v.to_value());
        }
    }

    /// On to the next step, where nothing of this one is left; whether there is anything to ask for.
    fn goes_on(&mut self, most_steps: Option<i64>) -> bool {
        if self.here.is_empty() {
            self.here = std::mem::take(&mut self.next);
            self.step += 1;
        }
        // The first step is to the values of the input itself.
        !self.here.is_empty() && most_steps.is_none_or(|most| self.step - 1 <= most)
    }
}

struct Reading {
    table: Table,
    wanted: Wanted,
    source: Option<Box<dyn Source>>,
}

enum State {
    /// Whether there is anything to gain is not known yet: so many documents went through.
    Unknown(usize),
    /// Documents go through as they come.
    Through,
    Filling,
    Reading(Box<Reading>),
    Giving,
}

pub(super) struct BatchedJoin<J> {
    input: Box<dyn Source>,
    spec: Arc<J>,
    vars: Arc<Vars>,
    batch: Batch,
    state: State,
    /// Taken in, and not given yet; the first is the current one while it is given.
    held: VecDeque<(DocBuf, Metadata)>,
    bytes: usize,
    most: usize,
    ended: bool,
    /// What a batch joins is too much to hold.
    gave_up: bool,
    share: Option<Share>,
}

impl<J: Joins> BatchedJoin<J> {
    /// Of a stage whose matches a table may give.
    pub fn new(
        input: Box<dyn Source>,
        spec: Arc<J>,
        vars: Arc<Vars>,
        batch: Batch,
    ) -> BatchedJoin<J> {
        BatchedJoin {
            input,
            spec,
            vars,
            batch,
            state: State::Unknown(0),
            held: VecDeque::new(),
            bytes: 0,
            most: FEWEST,
            ended: false,
            gave_up: false,
            share: None,
        }
    }

    /// Whether a query costs a message, and many values may be asked for by one.
    fn gains(&self, host: &mut dyn PipelineHost) -> bool {
        let Some((ns, path)) = self.spec.from() else {
            return false;
        };
        let there = host.joined_collection(ns, path);
        there.is_some_and(|f| f.remote && self.spec.gains(&f))
    }

    fn fill(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while !self.ended && self.held.len() < self.most && self.bytes < MOST_BYTES {
            let share = self.share.get_or_insert_with(|| host.share());
            hold(share, self.bytes, host, J::STAGE)?;
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

    /// What all that is held looks for; `None` where that is nothing, or no table can tell.
    fn begin(&self) -> Result<Option<Reading>> {
        let Some(table) = self.spec.from().and_then(|(_, path)| Table::by(path)) else {
            return Ok(None);
        };
        let mut wanted = Wanted::default();
        for (doc, _) in &self.held {
            match self.spec.values(doc.as_doc(), &self.vars) {
                Ok(values) => values.iter().for_each(|v| wanted.want(v.as_val())),
                Err(e) if e.is_suspension() => return Err(e),
                // It comes up when it is that document's turn.
                Err(_) => {}
            }
        }
        Ok((!wanted.next.is_empty()).then_some(Reading {
            table,
            wanted,
            source: None,
        }))
    }

    /// Reads what the queries give into a table, where that can be and has room.
    fn read(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let (State::Reading(reading), Some((ns, _))) = (&mut self.state, self.spec.from()) else {
            return Ok(());
        };
        let Reading {
            table,
            wanted,
            source,
        } = &mut **reading;
        let share = self.share.get_or_insert_with(|| host.share());
        let fits = loop {
            let from = match source {
                Some(source) => source,
                None if !wanted.goes_on(self.spec.most_steps()) => break true,
                None => {
                    let many = wanted.here.len().min(J::MOST_VALUES);
                    let values = wanted.here.iter().take(many).map(Value::as_val).collect();
                    let found = host.open(ns, &self.spec.query(values), &self.vars)?;
                    wanted.here.drain(..many);
                    source.insert(found)
                }
            };
            let held = self.bytes;
            let fits = read_into(table, from, (&mut *host, &mut *share), None, |found| {
                let next = self.spec.leads_to(found);
                next.into_iter().for_each(|v| wanted.want(v));
                held + wanted.bytes
            })?;
            if !fits {
                break false;
            }
            *source = None;
        };
        if let State::Reading(reading) = std::mem::replace(&mut self.state, State::Giving) {
            self.batch.put(fits.then(|| Arc::new(reading.table)));
        }
        self.gave_up = !fits;
        Ok(())
    }
}

impl<J: Joins> Source for BatchedJoin<J> {
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
                    self.state = match self.begin()? {
                        Some(reading) => State::Reading(Box::new(reading)),
                        None => State::Giving,
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
                    self.state = match (self.gave_up, self.ended) {
                        (true, false) => State::Through,
                        _ => State::Filling,
                    };
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
        if let State::Reading(reading) = &mut self.state
            && let Some(source) = &mut reading.source
        {
            source.parts(false, to)?;
        }
        Ok(())
    }
}
