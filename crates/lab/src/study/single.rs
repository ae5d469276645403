//! `pando lab study single`: study A on one server, tests 1 to 8.
//!
//! Inserts come from one connection, as published, and every second of them is kept: the series is the result. Reads come
//! from many. Test 8 is the sizes, taken as the other tests go on.

use super::dataset::{
    DOCUMENT_BYTES, Dataset, Dates, INDEXES, Ids, PER_NUMBER, PER_RANGE, Payload,
};
use super::operation::{Operation, Place, Work};
use super::shards;
use crate::connection::{Address, Connection};
use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::process;
use crate::progress::{self, Goal, Progress, say};
use crate::repeat::Repeat;
use crate::report::{Draft, Shard, Sizes, Step, TargetInfo};
use crate::targets::Activity;
use crate::targets::local::Launch;
use crate::targets::mongodb::MongoDb;
use crate::terms::{Durability, count, duration, pause};
use crate::ycsb::sequence::Sequence;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// The server, as mongodb://host:port (default: one of this run's own).
    #[arg(long)]
    pub url: Option<String>,
    #[command(flatten)]
    pub launch: Launch,
    /// Documents of the data set (1 KB each; 100k, 5m …).
    #[arg(long, default_value = "1m", value_parser = count)]
    pub records: u64,
    /// Connections of the read tests.
    #[arg(long, alias = "threads", default_value_t = 32)]
    pub connections: usize,
    /// Load in so many steps, and run the read tests after each: how they change as data grows.
    #[arg(long, default_value_t = 1)]
    pub steps: u64,
    /// Length of each read test.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Wait so long between loading and reading: what is loaded is merged meanwhile.
    #[arg(long, default_value = "0s", value_parser = pause)]
    pub settle: Duration,
    /// Insert tests other than the batch insert end after so long if not all documents are in.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub insert_duration: Duration,
    /// Only these tests: 1, 2, 3, 3j, 4, 5, 6, 7 (2 loads the data of the read tests).
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// What fills the documents up.
    #[arg(long, value_enum, default_value = "text")]
    pub payload: Payload,
    /// Whether dates follow the order of insertion, as in the study.
    #[arg(long, value_enum, default_value = "follow")]
    pub dates: Dates,
    /// The target is a router: spread each collection over its shards by `_id`, as published, and give the statistics of
    /// each shard at the end.
    #[arg(long)]
    pub sharded: bool,
    /// The database; the study's collections in it are dropped first.
    #[arg(long, default_value = "studya")]
    pub database: String,
    /// Keep the collections.
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

/// Test 2, which also loads what the read tests read.
const BATCHES: Operation = Operation::Insert {
    durability: Durability::W1,
    batch: 1000,
};
const READS: [(&str, Operation); 4] = [
    ("4", Operation::OneNumber),
    ("5", Operation::TwoNumbers),
    ("6", Operation::SortedRange),
    ("7", Operation::First),
];
const ALL: [&str; 8] = ["1", "2", "3", "3j", "4", "5", "6", "7"];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    for test in &args.only {
        if !ALL.contains(&test.as_str()) {
            return Err(Fault::Usage(format!(
                "test {test} is not one of {}",
                ALL.join(", ")
            )));
        }
    }
    if args.connections == 0 || args.records == 0 || args.steps == 0 {
        return Err(Fault::Usage(
            "--connections, --records and --steps must be at least 1".into(),
        ));
    }
    let mut args = args;
    if args.launch.shards > 1 && args.launch.launch.as_deref() != Some("mongod") {
        return Err(Fault::Usage(
            "study A asks by secondary indexes, and so needs a router: --shards goes with --launch mongod".into(),
        ));
    }
    if args.sharded && args.url.is_none() {
        return Err(Fault::Usage(
            "--sharded goes with the --url of a router; --launch mongod --shards 3 starts one"
                .into(),
        ));
    }
    let launched = args.launch.start(args.url.is_some(), args.to.quiet)?;
    if let Some(started) = &launched {
        args.url = Some(started.url());
        args.sharded = args.launch.shards > 1;
    }
    let target = Address::parse(args.url.as_deref().unwrap_or_default())?;
    let mut study = Single::open(args, target)?;
    for repeat in 0..study.repeats {
        study.draft.begin(repeat);
        study.run()?;
    }
    let Single { draft, journal, .. } = study;
    drop(launched);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

struct Single {
    args: Args,
    target: Address,
    control: Connection,
    pid: Option<u32>,
    data: Arc<Dataset>,
    repeats: usize,
    draft: Draft,
    journal: Journal,
}

/// Sleeps so long, or until Ctrl-C.
fn rest(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !interrupted() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Single {
    fn open(args: Args, target: Address) -> Result<Single> {
        let mut control = target.connect()?;
        if args.sharded && !control.is_router() {
            return Err(Fault::Usage(format!(
                "{}: no router answers there: leave out --sharded",
                target.url
            )));
        }
        let data = Dataset::new(args.records, args.steps, args.payload, Ids::Generated);
        let data = Arc::new(data.dated(args.dates));
        let name = if args.sharded {
            "A-sharded"
        } else {
            "A-single"
        };
        let mut draft = Draft::new("study", name);
        draft.note(format!(
            "Equality gives {PER_NUMBER} documents in tests 4 and 5, the range of test 6 {PER_RANGE}: the study does not say."
        ));
        let info = TargetInfo::of(&target, &mut control);
        let pid = info.pid;
        draft.add_target(info);
        draft.set("records", data.records);
        draft.set("steps", args.steps);
        draft.set("document_bytes", DOCUMENT_BYTES);
        draft.set("payload", format!("{:?}", args.payload).to_lowercase());
        draft.set("dates", format!("{:?}", args.dates).to_lowercase());
        draft.set("indexes", "Number, Number1, Date descending");
        draft.set("documents_per_number", PER_NUMBER);
        draft.set("documents_per_range", PER_RANGE);
        let repeats = args.repeat.times(1)?;
        draft.repeated(repeats);
        let journal = Journal::open(&mut draft, &args.to)?;
        Ok(Single {
            args,
            target,
            control,
            pid,
            data,
            repeats,
            draft,
            journal,
        })
    }

    fn push(&mut self, step: Step) {
        let key = step.name.clone();
        self.draft.push(&key, step);
        self.journal.save(&self.draft);
    }

    fn wants(&self, test: &str) -> bool {
        self.args.only.is_empty() || self.args.only.iter().any(|t| t == test)
    }

    fn run(&mut self) -> Result<()> {
        let inserts = [
            ("1", "test 1: insert, unacknowledged", Durability::Unack),
            ("3", "test 3: safe insert, w:1", Durability::W1),
            ("3j", "test 3: safe insert, j:true", Durability::Journaled),
        ];
        let mut reads = vec!["2"];
        reads.extend(READS.map(|(test, _)| test));
        let needs_data = reads.iter().any(|t| self.wants(t));
        let single = inserts.iter().filter(|(t, _, _)| self.wants(t)).count() as u64;
        let wanted = READS.iter().filter(|(t, _)| self.wants(t)).count() as u64;
        let grown = if needs_data {
            (1 + wanted) * self.args.steps
        } else {
            0
        };
        if self.draft.repeat() == 0 {
            let all = (single + grown) * self.repeats as u64;
            progress::course(all.saturating_sub(self.draft.done() as u64) as f64);
        }
        for (test, title, durability) in inserts {
            if interrupted() {
                break;
            }
            if self.wants(test) && !self.draft.has(title) {
                self.insert_test(test, title, durability)?;
            }
            // In the published order the batch insert comes second; its collection is the one that is read.
            if test == "1" && needs_data {
                self.grow_and_read()?;
            }
        }
        if self.args.sharded && needs_data {
            let (url, db) = (
                self.args.url.as_deref().unwrap_or_default(),
                &self.args.database,
            );
            let shards = shards::statistics(url, db, "single", 0)?;
            let of = shards.len() as u64;
            let all = shards.into_iter().map(|s| Shard { of, ..s });
            self.draft.report.shards = all.collect();
        }
        if !self.args.keep {
            self.control
                .drop_collection(&self.args.database, "single")?;
        }
        Ok(())
    }

    fn place(&self, collection: &str) -> Place {
        Place {
            db: self.args.database.clone(),
            collection: collection.into(),
            data: Arc::clone(&self.data),
            loaded: 0,
            inserts: Arc::new(Sequence::new(0)),
            insert_end: self.data.records,
            verify: true,
        }
    }

    /// A collection with its indexes and nothing in it.
    fn fresh(&mut self, collection: &str) -> Result<Place> {
        let db = &self.args.database;
        self.control.drop_collection(db, collection)?;
        if self.args.sharded {
            let key = bson::Value::from(1);
            self.control.shard_collection(db, collection, "_id", key)?;
        }
        self.control.create_indexes(db, collection, &INDEXES)?;
        Ok(self.place(collection))
    }

    /// The collection of the read tests with so many documents. A run that died has left it so, or it is loaded again,
    /// not measured. `None` when Ctrl-C came first.
    fn with_documents(&mut self, documents: u64) -> Result<Option<Place>> {
        let left = self.control.count(&self.args.database, "single")?;
        let mut place = if documents > 0 && left == documents {
            self.place("single")
        } else {
            self.fresh("single")?
        };
        if documents > 0 && left != documents {
            say(
                self.args.to.quiet,
                format_args!("loading {documents} documents again"),
            );
            place.insert_end = documents;
            Fleet::connect(&self.target, 1, 1, |i, _| {
                Work::new(&place, BATCHES, i as u64 + 1)
            })?
            .run_quietly(None)?;
            if interrupted() {
                return Ok(None);
            }
        }
        place.loaded = documents;
        Ok(Some(place))
    }

    /// Inserts from one connection into a collection of its own, and counts in the end.
    fn insert_test(&mut self, test: &str, title: &str, durability: Durability) -> Result<()> {
        let collection = format!("insert{test}");
        let place = self.fresh(&collection)?;
        let operation = Operation::Insert {
            durability,
            batch: 1,
        };
        let limit = Some(self.args.insert_duration);
        let step = self.measure(title, &place, operation, 1, limit)?;
        let counted = self.control.count(&self.args.database, &collection)?;
        if counted != step.operations {
            return Err(Fault::Check(format!(
                "{title}: {counted} documents after {} inserts",
                step.operations
            )));
        }
        self.push(step);
        if !self.args.keep {
            self.control
                .drop_collection(&self.args.database, &collection)?;
        }
        Ok(())
    }

    /// Test 2 in steps, and after each the read tests.
    fn grow_and_read(&mut self) -> Result<()> {
        let one = self.data.records / self.args.steps;
        let mut place: Option<Place> = None;
        for end in (1..=self.args.steps).map(|step| one * step) {
            let of = |all: &str, of: String| if self.args.steps == 1 { all.into() } else { of };
            let title: String = of(
                "test 2: batch insert of 1,000, w:1",
                format!("test 2: batch insert, w:1, to {end}"),
            );
            let reads: Vec<(String, Operation)> = READS
                .into_iter()
                .filter(|(test, _)| self.wants(test))
                .map(|(test, operation)| {
                    let what = match operation {
                        Operation::OneNumber => "one number, 10 documents",
                        Operation::TwoNumbers => "two numbers, two fields",
                        Operation::SortedRange => "range, by date, skip 100",
                        _ => "first 100 documents",
                    };
                    let title = format!("test {test}: {what}");
                    (of(&title, format!("{title}, of {end}")), operation)
                })
                .filter(|(title, _)| !self.draft.has(title))
                .collect();
            let inserted = self.draft.has(&title);
            if inserted && reads.is_empty() {
                continue;
            }
            let mut here = match place.take() {
                Some(place) => place,
                None => match self.with_documents(if inserted { end } else { end - one })? {
                    Some(place) => place,
                    None => return Ok(()),
                },
            };
            if !inserted {
                here.insert_end = end;
                // The last step's batch may have taken numbers past its end.
                here.inserts = Arc::new(Sequence::new(here.loaded));
                let measured = self.measure(&title, &here, BATCHES, 1, None)?;
                self.push(measured);
                if interrupted() {
                    return Ok(());
                }
                here.loaded = end;
                rest(self.args.settle);
            }
            let counted = self.control.count(&here.db, &here.collection)?;
            if counted != here.loaded {
                return Err(Fault::Check(format!(
                    "{title}: {counted} documents where {} were inserted",
                    here.loaded
                )));
            }
            for (title, operation) in reads {
                if interrupted() {
                    return Ok(());
                }
                let (limit, n) = (Some(self.args.duration), self.args.connections);
                let measured = self.measure(&title, &here, operation, n, limit)?;
                self.push(measured);
            }
            place = Some(here);
        }
        Ok(())
    }

    fn measure(
        &mut self,
        title: &str,
        place: &Place,
        operation: Operation,
        connections: usize,
        limit: Option<Duration>,
    ) -> Result<Step> {
        progress::step(1.0);
        let inserting = matches!(operation, Operation::Insert { .. });
        let threads = process::allowed_cores().len().min(connections);
        let goal = match limit {
            Some(t) if !inserting => Goal::Time(t),
            _ => Goal::Operations(place.insert_end - place.loaded),
        };
        say(
            self.args.to.quiet,
            format_args!("{title}, {connections} connection(s)"),
        );
        let pids = self.pid.into_iter().collect();
        let progress = Progress::new(title, goal, pids, self.args.to.quiet);
        let mut fleet = Fleet::connect(&self.target, connections, threads, |i, _| {
            Work::new(place, operation, i as u64 + 1)
        })?;
        let (mut sizes, mut failed) = (Vec::new(), None);
        let start = Instant::now();
        let every = Duration::from_secs(5);
        let mut next = every;
        let (control, pid) = (&mut self.control, self.pid);
        let (watched, mut activity) = (MongoDb::at(self.target.clone()), Activity::default());
        let (outcome, spent) = fleet.watched(limit, progress, &mut |s| {
            if inserting {
                activity.look(&watched, s.at);
            }
            // Test 8. A collStats every few seconds costs the server nothing that a figure would show.
            if inserting && start.elapsed() >= next && failed.is_none() {
                next = start.elapsed() + every;
                match size(control, pid, place, start.elapsed()) {
                    Ok(s) => sizes.push(s),
                    Err(e) => failed = Some(e),
                }
            }
        })?;
        if let Some(fault) = failed {
            return Err(fault);
        }
        if inserting {
            let last = size(&mut self.control, self.pid, place, start.elapsed())?;
            // A sample of the same second says nothing that the last does not.
            sizes.retain(|s| s.at < last.at - 1.0);
            sizes.push(last);
        }
        let mut step = Step::new(title, connections, threads, &outcome, spent);
        step.durability = operation.durability().map(|d| d.name().to_string());
        step.sizes = sizes;
        step.activity = activity.0;
        step.bytes_per_operation = Some(operation.bytes());
        if place.collection == "single" {
            // How many documents there were, at the end of an insert test.
            step.at = Some(if inserting {
                place.insert_end
            } else {
                place.loaded
            } as f64);
        }
        Ok(step)
    }
}

fn size(control: &mut Connection, pid: Option<u32>, place: &Place, at: Duration) -> Result<Sizes> {
    let mut s = Sizes::of(control, &place.db, &place.collection, at.as_secs_f64())?;
    s.server_resident_bytes = pid.and_then(process::resident_bytes);
    Ok(s)
}
