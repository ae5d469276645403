//! A batch of a check: a range of a collection's documents in the order of `_id`, or of an index's
//! entries, read in one state. Members that have the same make the same digest of it.

use crate::stats::validate::{Extra, extra};
use bson::{Doc, DocBuf, Writer, doc, order};
use catalog::keyspace::{self, PREFIX};
use catalog::{Collection, Index, IndexState};
use errors::{Error, Result, Stop};
use executor::{OpCtx, ReadRequest, RecordStream};
use planner::Hint;
use query::filter::Filter;
use query::index_keys::KeySet;
use query::sort::SortPattern;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;
use storage::{Direction, View};

/// What is wrong is told of up to so many documents or entries of a batch.
const MOST_WRONG: usize = 100;
/// The clock is asked once for so many documents.
const LOOK: u64 = 64;

/// A place in the order: of documents `{_id: <value>}` as BSON, of an index's entries the key.
pub type Bound = Vec<u8>;

/// Where a batch is cut.
pub struct BatchLimits {
    pub count: u64,
    pub bytes: u64,
    pub until: Instant,
}

/// What is read.
pub struct BatchRange<'a> {
    pub view: &'a View,
    pub coll: &'a Arc<Collection>,
    /// Excluded; `None`: from the beginning.
    pub from: Option<&'a [u8]>,
    /// Included; `None`: to the end.
    pub to: Option<&'a [u8]>,
    /// Of the primary, which says where the batch ends.
    pub limits: Option<&'a BatchLimits>,
}

/// Something wrong: MongoDB's sentence, and what it is about.
pub struct Inconsistency {
    pub message: &'static str,
    pub context: DocBuf,
}

#[derive(Default)]
pub struct BatchContents {
    pub digest: String,
    pub count: u64,
    pub bytes: u64,
    /// The last that was read.
    pub last: Option<Bound>,
    /// Nothing is left of what was to be read.
    pub ended: bool,
    pub wrong: Vec<Inconsistency>,
}

impl BatchContents {
    fn wrong(&mut self, message: &'static str, context: impl FnOnce() -> DocBuf) {
        if self.wrong.len() < MOST_WRONG {
            let context = context();
            self.wrong.push(Inconsistency { message, context });
        }
    }

    fn is_full(&self, limits: Option<&BatchLimits>) -> bool {
        let late = |l: &BatchLimits| self.count.is_multiple_of(LOOK) && Instant::now() >= l.until;
        let full = |l: &BatchLimits| self.count >= l.count || self.bytes >= l.bytes || late(l);
        // A batch of nothing would not come on.
        self.count > 0 && limits.is_some_and(full)
    }
}

fn id_of(bound: Option<&[u8]>) -> Option<bson::Val<'_>> {
    Doc::new(bound?)?.first().map(|e| e.val)
}

/// Reads documents; with `indexes`, looks for the entries that each must have there.
pub fn documents(
    op: &mut OpCtx<'_>,
    range: &BatchRange<'_>,
    with_indexes: bool,
) -> Result<BatchContents> {
    let usable = |i: &&Arc<Index>| with_indexes && i.state == IndexState::Ready;
    let indexes: Vec<Arc<Index>> = range.coll.indexes.iter().filter(usable).cloned().collect();
    let all = Filter::all();
    let by_id = SortPattern::parse(doc! { "_id": 1 }.as_doc())?;
    let read = ReadRequest {
        sort: Some(&by_id),
        min: range.from.and_then(Doc::new),
        hint: range.from.map(|_| Hint::Key(doc! { "_id": 1 })),
        ..ReadRequest::new(&all)
    };
    let (from, to) = (id_of(range.from), id_of(range.to));
    let mut rows = RecordStream::open(op, range.view.clone(), range.coll.clone(), &read)?;
    let (mut found, mut sum, mut keys) =
        (BatchContents::default(), md5::Context::new(), KeySet::new());
    found.ended = loop {
        match rows.next(op) {
            Ok(true) => {}
            Ok(false) => break true,
            Err(Stop::Failed(e)) if !e.is_interruption() => {
                found.wrong(
                    "Error fetching record from record id",
                    || doc! { "error": e.message.as_str() },
                );
                break true;
            }
            Err(stop) => return Err(stop),
        }
        let (document, record) = (rows.doc(), rows.record_key());
        let Some(id) = document.get("_id") else {
            continue;
        };
        if from.is_some_and(|from| order::compare(id, from) != Ordering::Greater) {
            continue;
        }
        if to.is_some_and(|to| order::compare(id, to) == Ordering::Greater) {
            break true;
        }
        if found.is_full(range.limits) {
            break false;
        }
        found.count += 1;
        found.bytes += document.len() as u64;
        sum.consume(document.as_bytes());
        found.last = Some(single(id).into_vec());
        if bson::validate(document.as_bytes()).is_err() {
            found.wrong("Document is not well-formed BSON", || single(id));
            continue;
        }
        let missing = missing_keys(range.view, &indexes, document, record, &mut keys)?;
        if !missing.is_empty() {
            found.wrong("Document has missing index keys", || lacking(id, &missing));
        }
    };
    found.digest = format!("{:x}", sum.finalize());
    Ok(found)
}

fn single(id: bson::Val<'_>) -> DocBuf {
    let mut w = Writer::new();
    w.val("_id", id);
    w.finish()
}

/// The indexes that lack an entry of a document.
fn missing_keys<'i>(
    view: &View,
    indexes: &'i [Arc<Index>],
    document: Doc<'_>,
    record: &[u8],
    keys: &mut KeySet,
) -> Result<Vec<&'i Index>> {
    let mut missing: Vec<&Index> = Vec::new();
    for index in indexes {
        let mut lacks = executor::keys_of(index, document, keys).is_err();
        for (key, _) in keys.iter() {
            let entry = [&index.prefix[..], key, record].concat();
            lacks |= !executor::has_entry(view, index, &entry)?;
        }
        if lacks {
            missing.push(index);
        }
    }
    Ok(missing)
}

fn lacking(id: bson::Val<'_>, missing: &[&Index]) -> DocBuf {
    let mut w = Writer::new();
    w.open_array("missingIndexKeys");
    for index in missing {
        let mut one = Writer::new();
        one.open_doc("keyString")
            .val("_id", id)
            .close()
            .str("indexName", index.name());
        w.push(one.finish().as_doc().as_val());
    }
    w.close().val("_id", id);
    w.finish()
}

/// Reads the entries of an index; with `looks_up`, looks for the document of each.
pub fn entries(
    op: &mut OpCtx<'_>,
    range: &BatchRange<'_>,
    name: &str,
    looks_up: bool,
) -> Result<BatchContents> {
    let index = range
        .coll
        .indexes
        .iter()
        .find(|i| i.name() == name && i.state == IndexState::Ready);
    let Some(index) = index else {
        return Err(no_index(range.coll, name).into());
    };
    let end = keyspace::prefix_end(&index.prefix);
    let begin = [&index.prefix[..], range.from.unwrap_or_default()].concat();
    let mut scan = range.view.scan(&begin, &end, Direction::Forward);
    let (mut found, mut sum, mut keys) =
        (BatchContents::default(), md5::Context::new(), KeySet::new());
    found.ended = loop {
        if !scan.next()? {
            break true;
        }
        op.tick(1)?;
        let (entry, value) = (scan.key().get(PREFIX..).unwrap_or(&[]), scan.value());
        if range.from.is_some_and(|from| entry <= from) {
            continue;
        }
        if range.to.is_some_and(|to| entry > to) {
            break true;
        }
        if found.is_full(range.limits) {
            break false;
        }
        found.count += 1;
        found.bytes += (entry.len() + value.len()) as u64;
        sum.consume(entry);
        sum.consume(value);
        found.last = Some(entry.to_vec());
        if !looks_up {
            continue;
        }
        let spec = || doc! { "indexSpec": index_spec(range.coll, name) };
        match extra(range.view, range.coll, index, (entry, value), &mut keys)? {
            None => {}
            Some(Extra::NoDocument) => {
                found.wrong("found extra index key entry without corresponding document", spec);
            }
            Some(Extra::NotWanted(_)) => found.wrong(
                "found index key entry with corresponding document/keystring set that does not contain the expected key string",
                spec,
            ),
            Some(Extra::Damaged) => found.wrong("found an index key entry that is damaged", spec),
        }
    };
    found.digest = format!("{:x}", sum.finalize());
    Ok(found)
}

fn index_spec(coll: &Collection, name: &str) -> DocBuf {
    let specs = coll.index_specs();
    let own = specs
        .iter()
        .find(|s| s.get("name").and_then(|v| v.as_str()) == Some(name));
    own.cloned().unwrap_or_default()
}

fn no_index(coll: &Collection, name: &str) -> Error {
    errors::err!(IndexNotFound, "cannot find index {name} for ns {}", coll.ns)
}
