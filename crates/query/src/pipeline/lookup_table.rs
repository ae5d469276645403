//! The foreign side of a `$lookup` as a hash table, where it is small beside what has to be looked
//! up.
//!
//! ```text
//! the first documents of the input ── a query each
//!     as many as a scan costs      ── the foreign collection is read once, into the table
//! all others                       ── a look into the table; a query for what it cannot answer
//! ```
//! Invariants:
//! - A table answers only where its keys are exactly the matches: one or more values that are
//!   neither null, missing, undefined nor arrays, and no collation.
//! - What the table holds counts in the memory of stages ([`Share`]); where it does not fit,
//!   queries go on.

use super::group::ShortKey;
use super::lookup::{Lookup, join_values};
use super::lookup_batch::Batch;
use super::narrow::Names;
use super::{IdleVisitor, Op, PipelineHost, Share, Source};
use crate::expr::Vars;
use crate::index_keys::{KeyPattern, KeySet};
use crate::path::FieldPath;
use bson::{Doc, Val, Writer, key, tag};
use errors::Result;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Row numbers that match.
type Rows = SmallVec<[u32; 4]>;

/// A collection that a stage looks things up in.
#[derive(Clone, Copy, Debug)]
pub struct JoinedCollection {
    pub documents: u64,
    pub bytes: u64,
    /// An index serves an equality on the path that was asked about.
    pub indexed: bool,
    /// It is on other servers: a query is a message there and back.
    pub remote: bool,
}

/// Documents that are scanned into a table in the time that one is found by an index.
const SCANNED_PER_QUERY: u64 = 24;
/// No table is made for fewer queries than this.
const FEWEST: u64 = 16;
/// What an entry of the table takes beside its key.
const ENTRY_BYTES: usize = 64;

/// How the documents of the input find theirs.
pub(super) struct Joiner {
    spec: Arc<Lookup>,
    /// The fields of joined documents that are read; `None`: all.
    read: Option<Names>,
    queries: u64,
    /// A table is made after so many queries; `None` until it was asked.
    table_after: Option<u64>,
    state: State,
    share: Option<Share>,
    /// For the key that is looked for.
    key: Vec<u8>,
    /// What the documents that were taken in ahead join.
    batch: Batch,
}

/// What there is to join to a document.
pub(super) enum Matches {
    Found(Found),
    Queried(Box<dyn Source>),
}

enum State {
    Queries,
    Reading(Box<dyn Source>, Box<Table>),
    Table(Arc<Table>),
}

impl Joiner {
    /// `read`: the fields of joined documents that later stages read; `None`: all.
    pub fn new(spec: Arc<Lookup>, read: Option<Names>, batch: Batch) -> Joiner {
        let table_after = (!may_have_table(&spec)).then_some(u64::MAX);
        Joiner {
            spec,
            read,
            queries: 0,
            table_after,
            state: State::Queries,
            share: None,
            key: Vec::new(),
            batch,
        }
    }

    /// What there is to join to `doc`. After an error it may be asked again.
    pub fn open(
        &mut self,
        doc: Doc<'_>,
        host: &mut dyn PipelineHost,
        vars: &Arc<Vars>,
    ) -> Result<Matches> {
        if let Some(table) = self.batch.table()
            && let Some(found) = self.found(&table, doc)
        {
            return Ok(Matches::Found(found));
        }
        if matches!(self.state, State::Queries) && self.wants_table(host) {
            self.begin(host, vars)?;
        }
        if let State::Reading(..) = self.state {
            self.read(host)?;
        }
        if let State::Table(table) = &self.state {
            let table = table.clone();
            if let Some(found) = self.found(&table, doc) {
                return Ok(Matches::Found(found));
            }
        }
        self.queries += 1;
        Ok(Matches::Queried(self.spec.open(doc, host, vars)?))
    }

    /// The rows of a table for a document; `None` where it cannot tell.
    fn found(&mut self, table: &Arc<Table>, doc: Doc<'_>) -> Option<Found> {
        let (local, _) = self.spec.fields.as_ref()?;
        let rows = table.find(&join_values(doc, local), &mut self.key)?;
        Some(Found {
            table: table.clone(),
            rows,
            next: 0,
        })
    }

    fn wants_table(&mut self, host: &mut dyn PipelineHost) -> bool {
        if self.queries < FEWEST {
            return false;
        }
        let after = match self.table_after {
            Some(after) => after,
            None => *self.table_after.insert(table_after(&self.spec, host)),
        };
        self.queries >= after
    }

    fn begin(&mut self, host: &mut dyn PipelineHost, vars: &Arc<Vars>) -> Result<()> {
        let path = self.spec.fields.as_ref().map(|(_, path)| path);
        let Some(table) = path.and_then(Table::by) else {
            self.table_after = Some(u64::MAX);
            return Ok(());
        };
        let source = match &self.spec.from {
            Some(ns) => host.open(ns, &self.spec.pipeline, vars)?,
            None => self.spec.pipeline.run_alone(vars),
        };
        self.state = State::Reading(source, Box::new(table));
        Ok(())
    }

    /// Reads the foreign collection to its end; gives the table up where it gets too large.
    fn read(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        let State::Reading(source, table) = &mut self.state else {
            return Ok(());
        };
        let share = self.share.get_or_insert_with(|| host.share());
        let fits = read_into(table, source, (host, share), self.read.as_ref(), |_| 0)?;
        self.state = match std::mem::replace(&mut self.state, State::Queries) {
            State::Reading(_, table) if fits => State::Table(Arc::new(*table)),
            _ => {
                self.table_after = Some(u64::MAX);
                self.share = None;
                State::Queries
            }
        };
        Ok(())
    }

    /// [`Source::parts`].
    pub fn parts(&mut self, to: &mut dyn IdleVisitor) -> Result<()> {
        match &mut self.state {
            State::Reading(source, _) => source.parts(false, to),
            State::Queries | State::Table(_) => Ok(()),
        }
    }
}

/// Adds what a source gives, to its end. `read`: as [`Table::add`]; `beside` gets each document, and
/// returns the bytes held beside the table. False where the table cannot take a document, or gets too
/// large: then it is of no use.
pub(super) fn read_into(
    table: &mut Table,
    source: &mut Box<dyn Source>,
    (host, share): (&mut dyn PipelineHost, &mut Share),
    read: Option<&Names>,
    mut beside: impl FnMut(Doc<'_>) -> usize,
) -> Result<bool> {
    loop {
        host.check()?;
        if !source.advance(host)? {
            return Ok(true);
        }
        let added = table.add(source.doc(), read);
        let bytes = beside(source.doc()) + table.bytes();
        if !added || bytes > host.memory_limit() || !share.fits(bytes) {
            return Ok(false);
        }
    }
}

/// Whether the matches of all documents come from one table: the inner pipeline filters at most,
/// and is the same for each.
pub(super) fn may_have_table(spec: &Lookup) -> bool {
    let filters = |op: &Op| match op {
        Op::Match(_) => true,
        Op::Documents(e) => !e.is_random(),
        _ => false,
    };
    spec.fields.is_some()
        && spec.lets.is_empty()
        && spec.collation.is_none()
        && spec.pipeline.stages.iter().all(|s| filters(&s.op))
}

fn table_after(spec: &Lookup, host: &mut dyn PipelineHost) -> u64 {
    let Some((_, path)) = &spec.fields else {
        return u64::MAX;
    };
    // Documents of the stage's own: each query makes all of them.
    let Some(ns) = &spec.from else {
        return 0;
    };
    let Some(foreign) = host.joined_collection(ns, path) else {
        return u64::MAX;
    };
    let entries = foreign.documents.saturating_mul(ENTRY_BYTES as u64);
    if foreign.bytes.saturating_add(entries) > host.memory_limit() as u64 {
        return u64::MAX;
    }
    match foreign.indexed {
        true => foreign.documents / SCANNED_PER_QUERY,
        false => 0,
    }
}

/// Documents by the values of one path.
pub(super) struct Table {
    pattern: KeyPattern,
    keys: KeySet,
    /// The documents one after another, and where each ends.
    docs: Vec<u8>,
    ends: Vec<usize>,
    /// By key: the first and the last of its entries.
    by_key: HashMap<ShortKey, (u32, u32), foldhash::fast::RandomState>,
    entries: Vec<Entry>,
    key_bytes: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    row: u32,
    /// The next entry of the same key; `NONE` at the end.
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Table {
    /// `None` where no key is made of such a path.
    pub fn by(path: &FieldPath) -> Option<Table> {
        let mut pattern = Writer::new();
        pattern.i32(path.as_str(), 1);
        let pattern = KeyPattern::parse(pattern.finish().as_doc()).ok()?;
        Some(Table::new(pattern))
    }

    /// The documents that have one of the values; `None` where the table cannot tell.
    pub fn found(self: &Arc<Table>, values: &[Val<'_>]) -> Option<Matches> {
        let rows = self.find(values, &mut Vec::new())?;
        Some(Matches::Found(Found {
            table: self.clone(),
            rows,
            next: 0,
        }))
    }

    /// All documents.
    pub fn all(self: &Arc<Table>) -> Matches {
        let rows = (0..).zip(&self.ends).map(|(row, _)| row).collect();
        Matches::Found(Found {
            table: self.clone(),
            rows,
            next: 0,
        })
    }

    fn new(pattern: KeyPattern) -> Table {
        Table {
            pattern,
            keys: KeySet::new(),
            docs: Vec::new(),
            ends: Vec::new(),
            by_key: HashMap::default(),
            entries: Vec::new(),
            key_bytes: 0,
        }
    }

    pub fn bytes(&self) -> usize {
        self.docs.capacity() + self.key_bytes + self.entries.len() * ENTRY_BYTES
    }

    /// False where the document has no keys that stand for it. `read`: the fields that are kept of
    /// it.
    pub fn add(&mut self, doc: Doc<'_>, read: Option<&Names>) -> bool {
        if self.pattern.extract(doc, false, &mut self.keys).is_err() {
            return false;
        }
        let (Ok(row), Ok(first)) = (
            u32::try_from(self.ends.len()),
            u32::try_from(self.entries.len()),
        ) else {
            return false;
        };
        for (at, (bytes, _)) in (first..NONE).zip(self.keys.iter()) {
            match self.by_key.get_mut(bytes) {
                Some((_, last)) => {
                    if let Some(before) = self.entries.get_mut(*last as usize) {
                        before.next = at;
                    }
                    *last = at;
                }
                None => {
                    self.by_key.insert(ShortKey::from_slice(bytes), (at, at));
                    self.key_bytes += bytes.len();
                }
            }
            self.entries.push(Entry { row, next: NONE });
        }
        match read {
            None => self.docs.extend_from_slice(doc.as_bytes()),
            Some(names) => names.copy(doc, &mut self.docs),
        }
        self.ends.push(self.docs.len());
        true
    }

    /// The rows that have one of the values, in their order; `None` where the table cannot tell.
    /// `scratch` is for a key.
    fn find(&self, values: &[Val<'_>], scratch: &mut Vec<u8>) -> Option<Rows> {
        if values.is_empty() || values.iter().any(|v| !is_exact(*v)) {
            return None;
        }
        let mut rows = Rows::new();
        for v in values {
            scratch.clear();
            key::encode(*v, false, scratch, None);
            let mut at = self.by_key.get(scratch.as_slice()).map_or(NONE, |e| e.0);
            while let Some(entry) = self.entries.get(at as usize) {
                rows.push(entry.row);
                at = entry.next;
            }
        }
        if values.len() > 1 {
            rows.sort_unstable();
            rows.dedup();
        }
        Some(rows)
    }

    fn row(&self, row: u32) -> Option<Doc<'_>> {
        let row = row as usize;
        let start = match row.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        Doc::new(self.docs.get(start..*self.ends.get(row)?)?)
    }
}

/// A value whose key only equal values have, and that a document with that key matches.
pub(super) fn is_exact(v: Val<'_>) -> bool {
    !matches!(v.tag, tag::NULL | tag::UNDEFINED | tag::ARRAY)
}

/// Rows of a table.
pub(super) struct Found {
    table: Arc<Table>,
    rows: Rows,
    next: usize,
}

impl Found {
    fn doc(&self) -> Doc<'_> {
        let row = self.next.checked_sub(1).and_then(|at| self.rows.get(at));
        assert!(row.is_some(), "asked for a document after a match");
        row.and_then(|row| self.table.row(*row))
            .unwrap_or(Doc::EMPTY)
    }
}

impl Source for Matches {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        match self {
            Matches::Queried(source) => source.advance(host),
            Matches::Found(found) => {
                host.check()?;
                found.next = found.rows.len().min(found.next) + 1;
                Ok(found.next <= found.rows.len())
            }
        }
    }

    fn doc(&self) -> Doc<'_> {
        match self {
            Matches::Queried(source) => source.doc(),
            Matches::Found(found) => found.doc(),
        }
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        match self {
            Matches::Queried(source) => source.parts(wanted, to),
            Matches::Found(_) => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "lookup_table_tests.rs"]
mod tests;
