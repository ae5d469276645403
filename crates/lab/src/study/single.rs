//! `pando lab study single`: study A on one server, on a router, or on one process and a cluster in turn, tests 1 to 8.
//!
//! Inserts come from one connection, as published, and every second of them is kept: the series is the result. Reads come
//! from many. Test 8 is the sizes, taken as the other tests go on.

use super::dataset::{
    DOCUMENT_BYTES, Dataset, Dates, INDEXES, Ids, PER_NUMBER, PER_RANGE, Payload,
};
use super::operation::{OperationPlace, StudyOperation, Work};
use super::{moves, shards};
use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::process;
use crate::progress::{self, Goal, Progress, say};
use crate::repeat::{Repeat, turns};
use crate::report::{CollectionSizes, Draft, MeasuredStep, ShardPart, TargetInfo};
use crate::targets::Activity;
use crate::targets::local::{Launch, Started};
use crate::targets::mongodb::MongoDb;
use crate::terms::{WriteDurability, count, duration, pause};
use crate::ycsb::sequence::KeySequence;
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
    /// A pause between loading and reading: the loaded data is merged meanwhile.
    #[arg(long, default_value = "0s", value_parser = pause)]
    pub settle: Duration,
    /// The longest time of insert tests other than the batch insert; 0s for all records, however long that takes.
    #[arg(long, default_value = "60s", value_parser = pause)]
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
    /// A router too, which takes turns with the process at --url: single against sharded.
    #[arg(long, value_name = "URL", requires = "url", conflicts_with = "sharded")]
    pub sharded_url: Option<String>,
    /// With --launch and --shards: one process of the same product too, in turn with the cluster.
    #[arg(long, requires = "launch")]
    pub against_one: bool,
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

/// Chunks of each shard that a sharded collection has before its documents come.
const CHUNKS: u64 = 8;

const INSERTS: [(&str, &str, WriteDurability); 3] = [
    (
        "1",
        "test 1: insert, unacknowledged",
        WriteDurability::Unack,
    ),
    ("3", "test 3: safe insert, w:1", WriteDurability::W1),
    (
        "3j",
        "test 3: safe insert, j:true",
        WriteDurability::Journaled,
    ),
];
/// Test 2, which also loads what the read tests read.
const BATCHES: StudyOperation = StudyOperation::Insert {
    durability: WriteDurability::W1,
    batch: 1000,
};
const READS: [(&str, StudyOperation); 4] = [
    ("4", StudyOperation::OneNumber),
    ("5", StudyOperation::TwoNumbers),
    ("6", StudyOperation::SortedRange),
    ("7", StudyOperation::First),
];
const ALL: [&str; 8] = ["1", "2", "3", "3j", "4", "5", "6", "7"];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    check(&args)?;
    let (started, places) = places(&args)?;
    let mut study = Single::open(args, &places)?;
    for (repeat, i) in turns(study.repeats, study.sides.len()) {
        study.draft.begin(repeat);
        study.turn = i;
        study.run()?;
    }
    let Single { draft, journal, .. } = study;
    drop(started);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// Refuses what makes no sense together.
fn check(args: &Args) -> Result<()> {
    let refuse = |why: String| Err(Fault::Usage(why));
    for test in &args.only {
        if !ALL.contains(&test.as_str()) {
            return refuse(format!("test {test} is not one of {}", ALL.join(", ")));
        }
    }
    if args.connections == 0 || args.records == 0 || args.steps == 0 {
        return refuse("--connections, --records and --steps must be at least 1".into());
    }
    if args.launch.shards > 1 && !args.launch.has_router() {
        return refuse(
            "study A asks by secondary indexes, and so needs a router: --shards goes with --launch mongod, or with --launch pando --cluster".into(),
        );
    }
    if args.against_one && args.launch.shards < 2 {
        return refuse("--against-one goes with --shards".into());
    }
    if args.sharded && args.url.is_none() {
        return refuse(
            "--sharded goes with the --url of a router; --launch mongod --shards 3 starts one"
                .into(),
        );
    }
    Ok(())
}

/// A target, and whether it is a router over whose shards the collections are spread.
type Found = (String, bool);

/// The targets, those that this run has started among them.
fn places(args: &Args) -> Result<(Vec<Started>, Vec<Found>)> {
    let mut started = Vec::new();
    let mut all: Vec<Found> = Vec::new();
    if args.against_one {
        let one = Launch {
            shards: 1,
            ..args.launch.clone()
        };
        started.extend(one.start(false, args.to.quiet)?);
    }
    started.extend(args.launch.start(args.url.is_some(), args.to.quiet)?);
    let clustered = args.launch.shards > 1;
    for (i, s) in started.iter().enumerate() {
        all.push((s.url(), clustered && i + 1 == started.len()));
    }
    all.extend(args.url.iter().map(|url| (url.clone(), args.sharded)));
    all.extend(args.sharded_url.iter().map(|url| (url.clone(), true)));
    Ok((started, all))
}

struct Single {
    args: Args,
    sides: Vec<Side>,
    places: Vec<Found>,
    /// Whose turn it is.
    turn: usize,
    data: Arc<Dataset>,
    repeats: usize,
    draft: Draft,
    journal: Journal,
}

/// One of the targets.
struct Side {
    address: MongoAddress,
    control: MongoConnection,
    info: TargetInfo,
    sharded: bool,
}

impl Side {
    fn open((url, sharded): &Found) -> Result<Side> {
        let address = MongoAddress::parse(url)?;
        let mut control = address.connect()?;
        if *sharded && !control.is_router() {
            return Err(Fault::Usage(format!(
                "{}: no router answers there; it cannot be sharded",
                address.url
            )));
        }
        let mut info = TargetInfo::of(&address, &mut control);
        if *sharded {
            shards::name_cluster(&mut info, &mut control);
        }
        Ok(Side {
            address,
            control,
            info,
            sharded: *sharded,
        })
    }
}

/// Sleeps that long, or until Ctrl-C.
fn rest(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !interrupted() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Single {
    fn open(args: Args, places: &[Found]) -> Result<Single> {
        let sides = places.iter().map(Side::open).collect::<Result<Vec<_>>>()?;
        let data = Dataset::new(args.records, args.steps, args.payload, Ids::Generated);
        let data = Arc::new(data.dated(args.dates));
        let name = match &sides[..] {
            [only] if only.sharded => "A-sharded",
            [_] => "A-single",
            _ => "A-both",
        };
        let mut draft = Draft::new("study", name);
        draft.note(format!(
            "Equality gives {PER_NUMBER} documents in tests 4 and 5, the range of test 6 {PER_RANGE}: the study does not say."
        ));
        sides.iter().for_each(|s| draft.add_target(s.info.clone()));
        draft.set("records", data.records);
        draft.set("steps", args.steps);
        draft.set("document_bytes", DOCUMENT_BYTES);
        draft.set("payload", format!("{:?}", args.payload).to_lowercase());
        draft.set("dates", format!("{:?}", args.dates).to_lowercase());
        draft.set("indexes", "Number, Number1, Date descending");
        draft.set("documents_per_number", PER_NUMBER);
        draft.set("documents_per_range", PER_RANGE);
        let repeats = args.repeat.times(sides.len())?;
        draft.repeated(repeats);
        let journal = Journal::open(&mut draft, &args.to)?;
        Ok(Single {
            args,
            sides,
            places: places.to_vec(),
            turn: 0,
            data,
            repeats,
            draft,
            journal,
        })
    }

    fn side(&mut self) -> &mut Side {
        &mut self.sides[self.turn]
    }

    /// What tells a step from all others.
    fn key(&self, title: &str) -> String {
        match self.sides.len() {
            1 => title.to_string(),
            _ => format!("{} / {title}", self.sides[self.turn].info.label()),
        }
    }

    fn has(&self, title: &str) -> bool {
        self.draft.has(&self.key(title))
    }

    fn push(&mut self, mut step: MeasuredStep) {
        let key = self.key(&step.name);
        if self.sides.len() > 1 {
            step.target = Some(self.sides[self.turn].info.label());
        }
        self.draft.push(&key, step);
        self.journal.save(&self.draft);
    }

    fn wants(&self, test: &str) -> bool {
        self.args.only.is_empty() || self.args.only.iter().any(|t| t == test)
    }

    fn run(&mut self) -> Result<()> {
        let mut reads = vec!["2"];
        reads.extend(READS.map(|(test, _)| test));
        let needs_data = reads.iter().any(|t| self.wants(t));
        if self.draft.repeat() == 0 && self.turn == 0 {
            let all = self.steps(needs_data) * (self.repeats * self.sides.len()) as u64;
            progress::course(all.saturating_sub(self.draft.done() as u64) as f64);
        }
        for (test, title, durability) in INSERTS {
            if interrupted() {
                break;
            }
            if self.wants(test) && !self.has(title) {
                self.insert_test(test, title, durability)?;
            }
            // In the published order the batch insert comes second; its collection is the one that is read.
            if test == "1" && needs_data {
                self.grow_and_read()?;
            }
        }
        if needs_data {
            self.shard_statistics()?;
        }
        if !self.args.keep {
            let db = self.args.database.clone();
            self.side().control.drop_collection(&db, "single")?;
        }
        Ok(())
    }

    /// How many steps one target takes in one repeat.
    fn steps(&self, needs_data: bool) -> u64 {
        let single = INSERTS.iter().filter(|(t, _, _)| self.wants(t)).count() as u64;
        let wanted = READS.iter().filter(|(t, _)| self.wants(t)).count() as u64;
        match needs_data {
            true => single + (1 + wanted) * self.args.steps,
            false => single,
        }
    }

    /// What each shard holds in the end.
    fn shard_statistics(&mut self) -> Result<()> {
        let side = &self.sides[self.turn];
        if side.sharded {
            let shards = shards::statistics(&self.url(), &self.args.database, "single", 0)?;
            let of = shards.len() as u64;
            let all: Vec<ShardPart> = shards.into_iter().map(|s| ShardPart { of, ..s }).collect();
            if let Some(uneven) = shards::uneven(&all) {
                self.draft.note(uneven);
            }
            self.draft.note(format!(
                "Sharded by _id, {CHUNKS} chunks a shard from the beginning; documents come in the order of _id, so one shard at a time takes them."
            ));
            self.draft.report.shards = all;
        }
        Ok(())
    }

    /// The address of the target whose turn it is, with what it takes to log in.
    fn url(&self) -> String {
        self.places[self.turn].0.clone()
    }

    fn place(&self, collection: &str) -> OperationPlace {
        OperationPlace {
            db: self.args.database.clone(),
            collection: collection.into(),
            data: Arc::clone(&self.data),
            loaded: 0,
            inserts: Arc::new(KeySequence::new(0)),
            insert_end: self.data.records,
            verify: true,
        }
    }

    fn count(&mut self, collection: &str) -> Result<u64> {
        let db = self.args.database.clone();
        self.side().control.count(&db, collection)
    }

    /// A collection with its indexes and nothing in it.
    fn fresh(&mut self, collection: &str) -> Result<OperationPlace> {
        let (db, data) = (self.args.database.clone(), Arc::clone(&self.data));
        let side = self.side();
        side.control.drop_collection(&db, collection)?;
        if side.sharded {
            let key = bson::Value::from(1);
            side.control.shard_collection(&db, collection, "_id", key)?;
            let parts = moves::shards_of(&mut side.control)?.len() as u64 * CHUNKS;
            let middles = data.middles(parts);
            moves::split_and_spread(&mut side.control, &db, collection, middles)?;
        }
        side.control.create_indexes(&db, collection, &INDEXES)?;
        Ok(self.place(collection))
    }

    /// The collection of the read tests with so many documents. A run that died has left it so, or it is loaded again,
    /// not measured. `None` when Ctrl-C came first.
    fn with_documents(&mut self, documents: u64) -> Result<Option<OperationPlace>> {
        let left = self.count("single")?;
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
            Fleet::connect(&self.side().address.clone(), 1, 1, |i, _| {
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
    fn insert_test(&mut self, test: &str, title: &str, durability: WriteDurability) -> Result<()> {
        let collection = format!("insert{test}");
        let place = self.fresh(&collection)?;
        let operation = StudyOperation::Insert {
            durability,
            batch: 1,
        };
        let limit = Some(self.args.insert_duration).filter(|l| !l.is_zero());
        let step = self.measure(title, &place, operation, 1, limit)?;
        let counted = self.count(&collection)?;
        if counted != step.operations {
            return Err(Fault::Check(format!(
                "{title}: {counted} documents after {} inserts",
                step.operations
            )));
        }
        self.push(step);
        if !self.args.keep {
            let db = self.args.database.clone();
            self.side().control.drop_collection(&db, &collection)?;
        }
        Ok(())
    }

    /// What a step of the load is called; of one alone without how many documents there were.
    fn title(&self, whole: &str, part: String) -> String {
        match self.args.steps {
            1 => whole.to_string(),
            _ => part,
        }
    }

    /// The read tests that are to be done on so many documents.
    fn reads_of(&self, documents: u64) -> Vec<(String, StudyOperation)> {
        let wanted = READS.into_iter().filter(|(test, _)| self.wants(test));
        let named = wanted.map(|(test, operation)| {
            let what = match operation {
                StudyOperation::OneNumber => "one number, 10 documents",
                StudyOperation::TwoNumbers => "two numbers, two fields",
                StudyOperation::SortedRange => "range, by date, skip 100",
                _ => "first 100 documents",
            };
            let title = format!("test {test}: {what}");
            (
                self.title(&title, format!("{title}, of {documents}")),
                operation,
            )
        });
        named.filter(|(title, _)| !self.has(title)).collect()
    }

    /// Test 2 in steps, and after each the read tests.
    fn grow_and_read(&mut self) -> Result<()> {
        let one = self.data.records / self.args.steps;
        let mut place: Option<OperationPlace> = None;
        for end in (1..=self.args.steps).map(|step| one * step) {
            let part = format!("test 2: batch insert, w:1, to {end}");
            let title = self.title("test 2: batch insert of 1,000, w:1", part);
            let reads = self.reads_of(end);
            let inserted = self.has(&title);
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
                self.grow(&mut here, &title, end)?;
            }
            if interrupted() {
                return Ok(());
            }
            let counted = self.count(&here.collection)?;
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

    /// One step of the load, to so many documents.
    fn grow(&mut self, here: &mut OperationPlace, title: &str, end: u64) -> Result<()> {
        here.insert_end = end;
        // The last step's batch may have taken numbers past its end.
        here.inserts = Arc::new(KeySequence::new(here.loaded));
        let measured = self.measure(title, here, BATCHES, 1, None)?;
        self.push(measured);
        if !interrupted() {
            here.loaded = end;
            rest(self.args.settle);
        }
        Ok(())
    }

    fn measure(
        &mut self,
        title: &str,
        place: &OperationPlace,
        operation: StudyOperation,
        connections: usize,
        limit: Option<Duration>,
    ) -> Result<MeasuredStep> {
        progress::step(1.0);
        let inserting = matches!(operation, StudyOperation::Insert { .. });
        let threads = process::allowed_cores().len().min(connections);
        let goal = match limit {
            Some(t) if !inserting => Goal::Time(t),
            _ => Goal::Operations(place.insert_end - place.loaded),
        };
        let quiet = self.args.to.quiet;
        let side = &mut self.sides[self.turn];
        say(quiet, format_args!("{title}, {connections} connection(s)"));
        let progress = Progress::new(title, goal, side.info.pids(), quiet);
        let mut fleet = Fleet::connect(&side.address, connections, threads, |i, _| {
            Work::new(place, operation, i as u64 + 1)
        })?;
        let mut watch = Sizing::new(side, place);
        let (outcome, spent) = fleet.watched(limit, progress, &mut |s| {
            if inserting {
                watch.second(s.at);
            }
        })?;
        let (sizes, activity) = watch.end(inserting)?;
        let mut step = MeasuredStep::new(title, connections, threads, &outcome, spent);
        step.durability = operation.durability().map(|d| d.name().to_string());
        step.sizes = sizes;
        step.activity = activity.0;
        step.bytes_per_operation = Some(operation.bytes());
        if let StudyOperation::Insert { batch, .. } = operation {
            step.planned = limit.map(|_| place.insert_end - place.loaded);
            step.batch = (batch > 1).then_some(batch);
        }
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

/// Test 8: sizes as inserts go on, and what the server does beside.
struct Sizing<'a> {
    side: &'a mut Side,
    place: &'a OperationPlace,
    watched: MongoDb,
    start: Instant,
    next: Duration,
    activity: Activity,
    sizes: Result<Vec<CollectionSizes>>,
}

impl<'a> Sizing<'a> {
    /// A collStats every few seconds costs the server nothing that a figure would show.
    const EVERY: Duration = Duration::from_secs(5);

    fn new(side: &'a mut Side, place: &'a OperationPlace) -> Sizing<'a> {
        Sizing {
            watched: MongoDb::at(side.address.clone()),
            side,
            place,
            start: Instant::now(),
            next: Sizing::EVERY,
            activity: Activity::default(),
            sizes: Ok(Vec::new()),
        }
    }

    fn second(&mut self, at: f64) {
        self.activity.look(&self.watched, at);
        if self.start.elapsed() >= self.next {
            self.next = self.start.elapsed() + Sizing::EVERY;
            let now = self.now();
            match (&mut self.sizes, now) {
                (Ok(all), Ok(now)) => all.push(now),
                (Ok(_), Err(fault)) => self.sizes = Err(fault),
                (Err(_), _) => {}
            }
        }
    }

    fn now(&mut self) -> Result<CollectionSizes> {
        let (place, at) = (self.place, self.start.elapsed().as_secs_f64());
        let mut s = CollectionSizes::of(&mut self.side.control, &place.db, &place.collection, at)?;
        s.server_resident_bytes = self.side.info.memory_bytes();
        s.server_disk_bytes = self.side.info.disk_bytes();
        Ok(s)
    }

    fn end(mut self, inserting: bool) -> Result<(Vec<CollectionSizes>, Activity)> {
        let mut sizes = std::mem::replace(&mut self.sizes, Ok(Vec::new()))?;
        if inserting {
            let last = self.now()?;
            // A sample of the same second says nothing that the last does not.
            sizes.retain(|s| s.at < last.at - 1.0);
            sizes.push(last);
        }
        Ok((sizes, self.activity))
    }
}
