//! The operations of study A and of the table of bars, each as a workload.

use super::dataset::{DOCUMENT_BYTES, Dataset, PER_NUMBER, PER_RANGE};
use crate::fault::{Fault, Result};
use crate::lane::{Issued, Judged, Workload};
use crate::random::Rng;
use crate::reply::{self, SAMPLE_EVERY};
use crate::request::{InsertHead, Template, command, find_by_id, update_by_id};
use crate::terms::WriteDurability;
use crate::ycsb::sequence::KeySequence;
use bson::{Doc, Val, Value, Writer, doc};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StudyOperation {
    /// One document by `_id`.
    PointRead,
    /// Test 4: `Number` equal, 10 documents.
    OneNumber,
    /// Test 5: `Number` and `Number1` equal, 10 documents, two fields.
    TwoNumbers,
    /// Test 6: a range of 1,000 documents by `Number`, sorted by `Date` descending, skip 100, limit 10.
    SortedRange,
    /// Test 7: the first 100 documents.
    First,
    /// One field of one document by `_id`.
    Update(WriteDurability),
    /// Documents past the data set, so many in a message.
    Insert {
        durability: WriteDurability,
        batch: u64,
    },
    /// A count over a range of 1,000 index keys.
    CountRange,
    /// A count without a filter.
    CountAll,
}

impl StudyOperation {
    /// Bytes of documents that it moves.
    pub fn bytes(self) -> f64 {
        let documents = |n: f64| n * DOCUMENT_BYTES as f64;
        match self {
            // Of a batch each document is an operation.
            StudyOperation::PointRead
            | StudyOperation::Update(_)
            | StudyOperation::Insert { .. } => documents(1.0),
            StudyOperation::CountRange | StudyOperation::CountAll => 0.0,
            StudyOperation::OneNumber | StudyOperation::SortedRange => documents(10.0),
            // Ten times two small fields.
            StudyOperation::TwoNumbers => 200.0,
            StudyOperation::First => documents(100.0),
        }
    }

    /// The name in results, and of recorded replies.
    pub fn name(self) -> &'static str {
        match self {
            StudyOperation::PointRead => "point-read",
            StudyOperation::OneNumber => "test4",
            StudyOperation::TwoNumbers => "test5",
            StudyOperation::SortedRange => "test6",
            StudyOperation::First => "test7",
            StudyOperation::Update(_) => "update",
            StudyOperation::Insert { batch: 1, .. } => "insert",
            StudyOperation::Insert { .. } => "batch-insert",
            StudyOperation::CountRange => "count-range",
            StudyOperation::CountAll => "count-all",
        }
    }

    pub fn durability(self) -> Option<WriteDurability> {
        match self {
            StudyOperation::Update(d) | StudyOperation::Insert { durability: d, .. } => Some(d),
            _ => None,
        }
    }

    pub fn command(self) -> &'static str {
        match self {
            StudyOperation::Update(_) => "update",
            StudyOperation::Insert { .. } => "insert",
            StudyOperation::CountRange | StudyOperation::CountAll => "count",
            _ => "find",
        }
    }
}

/// Where an operation works, and on what.
#[derive(Clone)]
pub struct OperationPlace {
    pub db: String,
    pub collection: String,
    pub data: Arc<Dataset>,
    /// Documents of the data set that are loaded.
    pub loaded: u64,
    /// Numbers of the documents that inserts write; inserts stop below `insert_end`.
    pub inserts: Arc<KeySequence>,
    pub insert_end: u64,
    /// Whether documents are compared too, not only counted.
    pub verify: bool,
}

/// One lane of an operation.
pub struct Work {
    place: OperationPlace,
    operation: StudyOperation,
    rng: Rng,
    template: Template,
    head: Arc<InsertHead>,
    id: Vec<u8>,
    seen: u32,
    /// First number and count of every acknowledged insert, if they will be checked.
    pub acknowledged: Option<Vec<(u64, u64)>>,
}

const KINDS: [&str; 1] = ["operation"];

impl Work {
    pub fn new(place: &OperationPlace, operation: StudyOperation, seed: u64) -> Work {
        Work {
            rng: Rng::new(seed),
            template: template(place, operation),
            head: Arc::new(InsertHead::new(
                &place.db,
                &place.collection,
                operation.durability().unwrap_or(WriteDurability::W1),
            )),
            place: place.clone(),
            operation,
            id: Vec::new(),
            seen: 0,
            acknowledged: None,
        }
    }

    /// One request of the operation, for recording its reply.
    pub fn request(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.next(&mut out)?;
        Some(out)
    }

    fn set_id(&mut self, i: u64) {
        self.id.clear();
        self.place.data.write_id(i, &mut self.id);
    }

    fn number(&mut self) -> i64 {
        let numbers = self.place.data.numbers(self.place.loaded);
        self.rng.below(numbers) as i64
    }

    /// A start of a range that lies whole within the loaded numbers.
    fn range_start(&mut self) -> i64 {
        let numbers = self.place.data.numbers(self.place.loaded);
        let width = PER_RANGE / PER_NUMBER;
        self.rng.below(numbers.saturating_sub(width) + 1) as i64
    }

    fn sampled(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.place.verify && self.seen.is_multiple_of(SAMPLE_EVERY)
    }

    fn check_documents(&self, docs: Doc<'_>, right: impl Fn(u64) -> bool) -> Result<()> {
        let mut last = None;
        for v in docs.values() {
            let d = v.as_doc().unwrap_or(Doc::EMPTY);
            let i = self.place.data.check(d)?;
            if !right(i) {
                return Err(Fault::Check(format!(
                    "{}: document {i} does not match: {}",
                    self.operation.name(),
                    reply::brief(d)
                )));
            }
            let date = self.place.data.date_ms(i);
            if self.operation == StudyOperation::SortedRange && last.is_some_and(|l| date > l) {
                return Err(Fault::Check("documents out of the order of Date".into()));
            }
            last = Some(date);
        }
        Ok(())
    }
}

fn template(place: &OperationPlace, operation: StudyOperation) -> Template {
    let id = place.data.id(0);
    let find = |filter: Doc<'_>, rest: Doc<'_>| {
        let mut w = Writer::new();
        w.str("find", &place.collection).doc("filter", filter);
        w.extend(rest);
        w
    };
    let finish = |mut w: Writer| {
        w.str("$db", &place.db);
        Template::new(w.finish().as_doc(), None, 0)
    };
    let zero = Value::from(0i64);
    let equal = doc! {"Number": 0i64};
    let both = doc! {"Number": 0i64, "Number1": zero};
    let range = doc! {"Number": doc! {"$gte": 0i64, "$lt": 0i64}};
    match operation {
        StudyOperation::PointRead => find_by_id(&place.db, &place.collection, id.as_val(), None),
        StudyOperation::OneNumber => {
            finish(find(equal.as_doc(), Doc::EMPTY)).slot(&["filter", "Number"])
        }
        StudyOperation::TwoNumbers => {
            let rest = doc! {"projection": doc! {"_id": 0, "Name": 1, "Code": 1}};
            finish(find(both.as_doc(), rest.as_doc()))
                .slot(&["filter", "Number"])
                .slot(&["filter", "Number1"])
        }
        StudyOperation::SortedRange => {
            let rest = doc! {"sort": doc! {"Date": -1}, "skip": 100, "limit": 10};
            finish(find(range.as_doc(), rest.as_doc()))
                .slot(&["filter", "Number", "$gte"])
                .slot(&["filter", "Number", "$lt"])
        }
        StudyOperation::First => {
            let rest = doc! {"limit": 100};
            finish(find(Doc::EMPTY, rest.as_doc()))
        }
        StudyOperation::Update(durability) => update_by_id(
            &place.db,
            &place.collection,
            durability,
            id.as_val(),
            doc! {"$set": doc! {"Count": 0}}.as_doc(),
            &[&["u", "$set", "Count"]],
        ),
        StudyOperation::Insert { .. } => command(&place.db, doc! {"ping": 1}.as_doc()),
        StudyOperation::CountRange => {
            let body = doc! {"count": place.collection.as_str(), "query": range};
            command(&place.db, body.as_doc())
                .slot(&["query", "Number", "$gte"])
                .slot(&["query", "Number", "$lt"])
        }
        StudyOperation::CountAll => {
            let body = doc! {"count": place.collection.as_str()};
            command(&place.db, body.as_doc())
        }
    }
}

impl Workload for Work {
    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let width = (PER_RANGE / PER_NUMBER) as i64;
        let mut issued = Issued::plain(1, 0);
        match self.operation {
            StudyOperation::PointRead => {
                issued.tag = self.rng.below(self.place.loaded);
                self.set_id(issued.tag);
                self.template.write(out, &[&self.id]);
            }
            StudyOperation::OneNumber => {
                let n = self.number();
                issued.tag = n as u64;
                self.template.write(out, &[&n.to_le_bytes()]);
            }
            StudyOperation::TwoNumbers => {
                let n = self.number();
                let n1 = self.place.data.number1_of(n);
                issued.tag = n as u64;
                self.template
                    .write(out, &[&n.to_le_bytes(), &n1.to_le_bytes()]);
            }
            StudyOperation::SortedRange | StudyOperation::CountRange => {
                let n = self.range_start();
                issued.tag = n as u64;
                self.template
                    .write(out, &[&n.to_le_bytes(), &(n + width).to_le_bytes()]);
            }
            StudyOperation::First | StudyOperation::CountAll => self.template.write(out, &[]),
            StudyOperation::Update(durability) => {
                issued.tag = self.rng.below(self.place.loaded);
                issued.acknowledged = durability.acknowledged();
                self.set_id(issued.tag);
                // Never the value that is there already, or hardly ever: an update that changes nothing is cheaper.
                let count = self.rng.next_u64() as i32;
                self.template.write(out, &[&self.id, &count.to_le_bytes()]);
            }
            StudyOperation::Insert { durability, batch } => {
                let end = self.place.insert_end;
                let (first, count) = self.place.inserts.take_below(batch, end)?;
                let head = Arc::clone(&self.head);
                head.write(out, |out| {
                    (first..first + count).for_each(|i| self.place.data.write(i, out));
                });
                issued.tag = first;
                issued.units = u32::try_from(count).unwrap_or(u32::MAX);
                issued.acknowledged = durability.acknowledged();
            }
        }
        Some(issued)
    }

    fn reply(&mut self, issued: &Issued, reply: Doc<'_>, _: &mut Vec<u8>) -> Judged {
        let number = issued.tag as i64;
        match self.operation {
            StudyOperation::PointRead => {
                let docs = reply::batch(reply, 1)?;
                if self.sampled() {
                    self.check_documents(docs, |i| i == issued.tag)?;
                }
            }
            StudyOperation::OneNumber => {
                let docs = reply::batch(reply, PER_NUMBER as usize)?;
                if self.sampled() {
                    self.check_documents(docs, |i| self.place.data.number(i) == number)?;
                }
            }
            StudyOperation::TwoNumbers => {
                let docs = reply::batch(reply, PER_NUMBER as usize)?;
                if self.sampled() {
                    two_short_fields(docs)?;
                }
            }
            StudyOperation::SortedRange => {
                let docs = reply::batch(reply, 10)?;
                if self.sampled() {
                    let range = number..number + (PER_RANGE / PER_NUMBER) as i64;
                    self.check_documents(docs, |i| range.contains(&self.place.data.number(i)))?;
                }
            }
            StudyOperation::First => {
                let docs = reply::batch(reply, 100)?;
                if self.sampled() {
                    self.check_documents(docs, |_| true)?;
                }
            }
            StudyOperation::Update(_) => reply::expect(reply, "n", 1)?,
            StudyOperation::Insert { .. } => {
                if self.place.verify {
                    reply::expect(reply, "n", i64::from(issued.units))?;
                }
                if let Some(list) = &mut self.acknowledged {
                    list.push((issued.tag, u64::from(issued.units)));
                }
            }
            StudyOperation::CountRange => reply::expect(reply, "n", PER_RANGE as i64)?,
            StudyOperation::CountAll => {
                if self.place.verify {
                    reply::expect(reply, "n", self.place.loaded as i64)?;
                }
            }
        }
        Ok(None)
    }
}

/// Test 5 gives two fields of ten letters.
fn two_short_fields(docs: Doc<'_>) -> Result<()> {
    let two = |d: Doc<'_>| {
        let field = |name| d.get(name).and_then(Val::as_str);
        let short = |name| field(name).is_some_and(|s| s.len() == 10);
        d.count() == 2 && short("Name") && short("Code")
    };
    match docs.values().all(|v| v.as_doc().is_some_and(two)) {
        true => Ok(()),
        false => Err(Fault::Check(format!(
            "test5: not two fields of 10 letters: {}",
            reply::brief(docs)
        ))),
    }
}
