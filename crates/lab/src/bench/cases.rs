//! The comparisons, with their bars.

use super::Args;
use super::place::{NullProcess, Server, ServerSetup};
use super::slices::{Contender, alternate};
use crate::connection::MongoAddress;
use crate::fault::{Fault, Result};
use crate::fleet::Fleet;
use crate::report::{CheckedFigure, SideComparison};
use crate::study::dataset::{Dataset, INDEXES, Ids, PER_NUMBER, PER_RANGE};
use crate::study::operation::{OperationPlace, StudyOperation, Work};
use crate::study::record::{prepare, record};
use crate::terms::WriteDurability;
use bson::{Val, doc};
use std::cell::OnceCell;
use std::sync::Arc;

/// What a case is compared with.
#[derive(Clone, Copy, Debug)]
enum Reference {
    /// The null server, with the reply of the same operation.
    Null,
    /// The null server, with the reply of another operation: a document of a batch against a single insert.
    NullOf(StudyOperation),
    /// The same server and collection, another operation.
    Own(StudyOperation),
    /// The same server, the same operation, a small collection.
    OwnSmall,
    /// The same server, inserts with generated ids against the md5 of the subject.
    OwnGenerated,
}

pub struct Case {
    pub name: &'static str,
    pub title: &'static str,
    operation: StudyOperation,
    reference: Reference,
    connections: Option<usize>,
    bar_share: Option<f64>,
    bar_cpu: Option<f64>,
}

const fn insert(durability: WriteDurability, batch: u64) -> StudyOperation {
    StudyOperation::Insert { durability, batch }
}

const fn case(
    name: &'static str,
    title: &'static str,
    operation: StudyOperation,
    bar_share: Option<f64>,
    bar_cpu: Option<f64>,
) -> Case {
    Case {
        name,
        title,
        operation,
        reference: Reference::Null,
        connections: None,
        bar_share,
        bar_cpu,
    }
}

/// In the order of running: what writes comes after what reads.
pub const ALL: &[Case] = &[
    case(
        "point-read",
        "point read by _id",
        StudyOperation::PointRead,
        Some(0.70),
        Some(1.5),
    ),
    case(
        "test4",
        "test 4: one number, 10 documents",
        StudyOperation::OneNumber,
        Some(0.30),
        Some(3.3),
    ),
    case(
        "test5",
        "test 5: two numbers, two fields",
        StudyOperation::TwoNumbers,
        Some(0.30),
        Some(3.3),
    ),
    case(
        "test6",
        "test 6: range of 1,000, by date",
        StudyOperation::SortedRange,
        None,
        Some(150.0),
    ),
    case(
        "test7",
        "test 7: first 100 documents",
        StudyOperation::First,
        Some(0.50),
        Some(1.9),
    ),
    case(
        "count-range",
        "count over 1,000 index keys",
        StudyOperation::CountRange,
        Some(0.03),
        Some(35.0),
    ),
    Case {
        reference: Reference::OwnSmall,
        ..case(
            "count-all",
            "count without filter / in a small collection",
            StudyOperation::CountAll,
            Some(0.9),
            None,
        )
    },
    case(
        "update",
        "update by _id, w:1",
        StudyOperation::Update(WriteDurability::W1),
        Some(0.60),
        Some(1.8),
    ),
    case(
        "insert",
        "insert, three indexes, w:1",
        insert(WriteDurability::W1, 1),
        Some(0.60),
        Some(2.0),
    ),
    Case {
        reference: Reference::Own(insert(WriteDurability::W1, 1)),
        connections: Some(64),
        ..case(
            "insert-majority",
            "insert, majority / own w:1",
            insert(WriteDurability::Majority, 1),
            None,
            Some(1.3),
        )
    },
    Case {
        reference: Reference::NullOf(insert(WriteDurability::W1, 1)),
        connections: Some(4),
        ..case(
            "batch-insert",
            "batch of 1,000, a document / null insert",
            insert(WriteDurability::W1, 1000),
            None,
            Some(1.2),
        )
    },
    Case {
        reference: Reference::OwnGenerated,
        ..case(
            "md5-ids",
            "insert with md5 _id / generated _id",
            insert(WriteDurability::W1, 1),
            Some(0.85),
            None,
        )
    },
];

/// The server with the data set loaded.
pub struct LoadedServer<'a> {
    server: &'a Server,
    pub place: OperationPlace,
    small: OnceCell<OperationPlace>,
}

const DB: &str = "lab";

impl LoadedServer<'_> {
    pub fn open<'a>(args: &Args, server: &'a Server) -> Result<LoadedServer<'a>> {
        let data = Arc::new(Dataset::new(args.records, 1, args.payload, Ids::Generated));
        let place = prepare(&server.target, DB, "bench", &data, &INDEXES, args.to.quiet)?;
        if let Some(pid) = server.pid {
            super::slices::settle(&[pid]);
        }
        Ok(LoadedServer {
            server,
            place,
            small: OnceCell::new(),
        })
    }

    pub fn target(&self) -> &MongoAddress {
        &self.server.target
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.pid
    }

    /// All connections of one side on one thread: that of the client's core.
    fn contender(
        &self,
        place: &OperationPlace,
        operation: StudyOperation,
        connections: usize,
    ) -> Result<Contender<Work>> {
        let fleet = Fleet::connect(self.target(), connections, 1, |_, _| {
            Work::new(place, operation, 1)
        })?;
        Ok(Contender::new(fleet, self.server.pid))
    }

    /// The same requests to a null server; the documents of its replies are always the same, so only counts are checked.
    fn null_contender(
        &self,
        null: &NullProcess,
        operation: StudyOperation,
        connections: usize,
    ) -> Result<Contender<Work>> {
        let mut place = self.place.clone();
        place.verify = false;
        // Its inserts must not take numbers that the server would then miss.
        place.inserts = Arc::new(crate::ycsb::sequence::KeySequence::new(place.data.records));
        let fleet = Fleet::connect(&MongoAddress::local(null.port), connections, 1, |_, _| {
            Work::new(&place, operation, 2)
        })?;
        Ok(Contender::new(fleet, null.pid()))
    }

    pub fn compare(&self, args: &Args, room: &ServerSetup, case: &Case) -> Result<SideComparison> {
        let connections = case.connections.unwrap_or(args.connections);
        let null_of = |operation: StudyOperation| {
            let recorded = record(&mut self.target().connect()?, &self.place, operation)?;
            room.null(&recorded)
        };
        // Kept until the slices are done.
        let mut null = None;
        let (mut subject, mut reference, what) = match case.reference {
            Reference::Null | Reference::NullOf(_) => {
                let operation = match case.reference {
                    Reference::NullOf(other) => other,
                    _ => case.operation,
                };
                let running = null.insert(null_of(operation)?);
                (
                    self.contender(&self.place, case.operation, connections)?,
                    self.null_contender(running, operation, connections)?,
                    "the null server".to_string(),
                )
            }
            Reference::Own(other) => (
                self.contender(&self.place, case.operation, connections)?,
                self.contender(&self.place, other, connections)?,
                format!(
                    "the same server, {}",
                    other.durability().map_or("", WriteDurability::name)
                ),
            ),
            Reference::OwnSmall => {
                let mut all = self.place.clone();
                all.loaded = self.target().connect()?.count(DB, &self.place.collection)?;
                (
                    self.contender(&all, case.operation, connections)?,
                    self.contender(self.small(args)?, case.operation, connections)?,
                    "the same server, a collection of 1,000".to_string(),
                )
            }
            Reference::OwnGenerated => {
                let with = |collection: &str, ids: Ids| {
                    let records = args.records.min(100_000);
                    let data = Arc::new(Dataset::new(records, 1, args.payload, ids));
                    prepare(self.target(), DB, collection, &data, &[], args.to.quiet)
                };
                let (md5, generated) = (with("md5", Ids::Md5)?, with("generated", Ids::Generated)?);
                (
                    self.contender(&md5, case.operation, connections)?,
                    self.contender(&generated, case.operation, connections)?,
                    "the same server, generated _id".to_string(),
                )
            }
        };
        let mut c = alternate(&mut subject, &mut reference, args.slice, args.pairs)?;
        drop(null);
        c.name = case.name.into();
        c.title = case.title.into();
        c.connections = connections;
        c.durability = case.operation.durability().map(|d| d.name().to_string());
        c.reference_is = what;
        c.bar_share = case.bar_share;
        c.bar_cpu = case.bar_cpu;
        c.pass = case.bar_share.is_none_or(|bar| c.share >= bar)
            && case
                .bar_cpu
                .is_none_or(|bar| c.cpu_ratio.is_some_and(|r| r <= bar));
        Ok(c)
    }

    fn small(&self, args: &Args) -> Result<&OperationPlace> {
        if self.small.get().is_none() {
            let data = Arc::new(Dataset::new(PER_RANGE, 1, args.payload, Ids::Generated));
            let place = prepare(self.target(), DB, "small", &data, &INDEXES, true)?;
            let _ = self.small.set(place);
        }
        self.small
            .get()
            .ok_or_else(|| Fault::Local("no small collection".into()))
    }

    /// Documents that a count over an index range fetches, by the server's own explain.
    pub fn count_fetches(&self) -> Result<CheckedFigure> {
        let width = (PER_RANGE / PER_NUMBER) as i64;
        let range = doc! {"Number": doc! {"$gte": 0i64, "$lt": width}};
        let count = doc! {"count": self.place.collection.as_str(), "query": range};
        let body = doc! {"explain": count, "verbosity": "executionStats"};
        let reply = self.target().connect()?.command(DB, body.as_doc())?;
        let stats = reply.get("executionStats").and_then(Val::as_doc);
        let examined = stats.and_then(|s| s.get("totalDocsExamined")?.to_f64());
        let value = examined.unwrap_or(f64::NAN);
        Ok(CheckedFigure::at_most(
            "count-range: documents fetched",
            value,
            "documents",
            0.0,
        ))
    }
}
