//! What studies L and M share: targets that are filled, build an index and are asked, each request made before the clock starts
//! and each reply judged.

use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, interrupted};
use crate::lane::{Issued, Judged, Numbered, Workload};
use crate::output::{Journal, Page};
use crate::process::{ProcessCounters, allowed_cores, cpu_time_of};
use crate::progress::{self, Goal, Progress, say};
use crate::queries::How;
use crate::repeat::turns;
use crate::report::{Draft, MeasuredStep, TargetInfo};
use crate::spoken::Spoken;
use crate::targets::local::{Means, Started, Up, given_or_own};
use crate::targets::{ByteStrings, Dialect, Instruction, QueryLanguage, Table, TargetDatabase};
use crate::terms::{WriteDurability, positive};
use bson::{array, doc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub const BUILD: &str = "index build";
/// Connections that fill a table.
const FILLERS: usize = 4;
/// How long a server is looked at, and the share of a core that it takes at most when it is done with what it began.
const LOOK: Duration = Duration::from_secs(1);
const QUIET: f64 = 0.1;
/// How long an index may take.
const PATIENCE: Duration = Duration::from_secs(4 * 3600);

#[derive(clap::Args)]
pub struct Common {
    /// Products that are started and measured beside each other: pando, postgres.
    #[arg(long, value_name = "PRODUCT", value_delimiter = ',')]
    pub launch: Vec<String>,
    #[command(flatten)]
    pub means: Means,
    /// Connections, each with one request under way; a list runs one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    pub connections: Vec<usize>,
    #[command(flatten)]
    pub how: How,
}

/// A study under way: its sides take turns.
pub struct Study {
    pub draft: Draft,
    journal: Journal,
    sides: Vec<Side>,
    connections: Vec<usize>,
    repeats: usize,
    /// Those that end with the study.
    _started: (Started, Option<Started>),
}

impl Study {
    /// Starts and reaches the targets; `steps` are those that are measured again and again.
    pub fn open(common: Common, mut draft: Draft, steps: usize) -> Result<Study> {
        positive("--connections", &common.connections)?;
        let mut how = common.how;
        let mut started = Started::default();
        for product in &common.launch {
            let mut means = common.means.clone();
            // With several products a given program is the one that is not found by itself.
            let given = means.binary.take();
            means.binary = given.filter(|_| product == "mongod" || common.launch.len() == 1);
            how.url
                .push(started.add(&Up::new(product, means, 1), how.to.quiet)?);
        }
        let (own, targets) = given_or_own(&how.url, how.to.quiet)?;
        let repeats = how.repeat.times(targets.len())?;
        draft.set("seconds_a_step", how.duration.as_secs_f64());
        draft.set("seed", how.seed);
        draft.repeated(repeats);
        let mut sides = Vec::new();
        for target in targets {
            sides.push(Side::new(target, &how, &mut draft)?);
        }
        let journal = Journal::open(&mut draft, &how.to)?;
        let steps = sides.len() * (1 + repeats * common.connections.len() * steps);
        progress::course(steps.saturating_sub(draft.done()) as f64);
        if draft.done() >= steps {
            sides.clear();
        }
        Ok(Study {
            draft,
            journal,
            sides,
            connections: common.connections,
            repeats,
            _started: (started, own),
        })
    }

    /// Fills each side and builds its index. One that has nothing to search with is left out, and the result says so.
    pub fn prepare(&mut self, mut build: impl FnMut(&Side) -> Result<MeasuredStep>) -> Result<()> {
        self.draft.begin(0);
        let all = std::mem::take(&mut self.sides);
        for side in all {
            match build(&side) {
                Ok(built) => {
                    let key = side.key(BUILD, 1);
                    self.draft.forget(&key);
                    self.draft.push(&key, built);
                    self.journal.save(&self.draft);
                    self.sides.push(side);
                }
                Err(Fault::Target(why)) if !interrupted() => {
                    let line = format!("{}: left out ({why})", side.info.label());
                    eprintln!("{line}");
                    self.draft.note(line);
                }
                Err(fault) => return Err(fault),
            }
        }
        let is_done = self.draft.done() > 0 || interrupted();
        let none = || Fault::Target("none of the targets can search".into());
        is_done.then_some(()).ok_or_else(none)
    }

    /// Measures the steps of these names, in each repeat side by side, unless that is done.
    pub fn measure(
        &mut self,
        names: &[&str],
        mut step: impl FnMut(&Side, (usize, usize), &mut Draft) -> Result<MeasuredStep>,
    ) -> Result<()> {
        for (repeat, name) in (0..self.repeats).flat_map(|r| (0..names.len()).map(move |n| (r, n)))
        {
            self.draft.begin(repeat);
            for (_, i) in turns(self.repeats, self.sides.len()).filter(|t| t.0 == repeat) {
                for &connections in &self.connections {
                    let key = self.sides[i].key(names[name], connections);
                    if interrupted() || self.draft.has(&key) {
                        continue;
                    }
                    progress::step(1.0);
                    let done = step(&self.sides[i], (name, connections), &mut self.draft)?;
                    self.draft.push(&key, done);
                    self.journal.save(&self.draft);
                }
            }
        }
        Ok(())
    }

    /// Drops the tables of these names, and writes the result.
    pub fn finish(self, tables: &[&str]) -> Result<bool> {
        for side in self.sides.iter().filter(|_| !interrupted()) {
            for name in tables {
                side.target.drop_table(&side.table(name, &[]))?;
            }
        }
        drop((self.sides, self._started));
        Ok(self.journal.finish(self.draft, Page::Beside)?.passed())
    }
}

/// Writes the rows of a range of numbers as one request.
pub type Write = dyn Fn(&mut dyn Dialect, std::ops::Range<u64>, &mut Vec<u8>) + Send + Sync;

/// Inserts, shared by their lanes.
struct Rows {
    write: Arc<Write>,
    end: u64,
    batch: u64,
    next: AtomicU64,
}

impl Rows {
    fn new(write: &Arc<Write>, end: u64, batch: u64) -> Rows {
        Rows {
            write: Arc::clone(write),
            end,
            batch,
            next: AtomicU64::new(0),
        }
    }
}

struct Inserter {
    rows: Arc<Rows>,
    dialect: Box<dyn Dialect>,
}

impl Spoken for Inserter {
    fn kinds(&self) -> &'static [&'static str] {
        &["INSERT-ROW"]
    }

    fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let first = self.rows.next.fetch_add(self.rows.batch, Relaxed);
        let end = self.rows.end.min(first.saturating_add(self.rows.batch));
        let units = u32::try_from(end.checked_sub(first)?)
            .ok()
            .filter(|n| *n > 0)?;
        (self.rows.write)(&mut *self.dialect, first..end, out);
        Some(Issued::plain(units, 0))
    }

    fn judge(&mut self, issued: &Issued, (message, id): Numbered<'_>, _: &mut Vec<u8>) -> Judged {
        match self.dialect.answer(message, id)?.affected {
            n if n == u64::from(issued.units) => Ok(None),
            n => Err(Fault::Check(format!(
                "{n} inserts of {} were done",
                issued.units
            ))),
        }
    }
}

/// Judges the rows of the answer to the request of that number.
pub type Judge = dyn Fn(usize, &ByteStrings) -> Result<()> + Send + Sync;

/// Requests that are sent again and again.
pub struct Questions {
    pub requests: Vec<Vec<u8>>,
    pub judge: Box<Judge>,
}

struct Client {
    questions: Arc<Questions>,
    dialect: Box<dyn Dialect>,
    next: usize,
    rows: ByteStrings,
}

impl Spoken for Client {
    fn kinds(&self) -> &'static [&'static str] {
        &["SEARCH"]
    }

    fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let at = self.next % self.questions.requests.len();
        self.next = at + 1;
        out.extend_from_slice(&self.questions.requests[at]);
        Some(Issued::plain(1, at as u64))
    }

    fn judge(&mut self, issued: &Issued, (message, id): Numbered<'_>, _: &mut Vec<u8>) -> Judged {
        self.dialect.answer(message, id)?;
        self.rows.clear();
        self.dialect.rows(message, id, &mut self.rows)?;
        (self.questions.judge)(issued.tag as usize, &self.rows)?;
        Ok(None)
    }
}

/// A target of the study.
pub struct Side {
    pub target: Arc<dyn TargetDatabase>,
    pub info: TargetInfo,
    pub language: QueryLanguage,
    pub database: String,
    threads: usize,
    warmup: Duration,
    duration: Duration,
    quiet: bool,
}

impl Side {
    /// Of a target that keeps each field by itself.
    fn new(target: Arc<dyn TargetDatabase>, how: &How, draft: &mut Draft) -> Result<Side> {
        let mut info = target.info()?;
        draft.tell_apart(&mut info);
        let database = target.database().unwrap_or_else(|| how.database.clone());
        let language = target
            .dialect(&table(&database, "", &[]), WriteDurability::W1)?
            .language();
        if language == QueryLanguage::MySql || info.product.ends_with("JSONB") {
            let why =
                "this study is for MongoDB's protocol, and for PostgreSQL with layout=columns";
            return Err(Fault::Usage(format!("{}: {why}", info.url)));
        }
        draft.add_target(info.clone());
        let threads = match how.client_threads {
            0 => allowed_cores().len(),
            n => n,
        };
        Ok(Side {
            target,
            info,
            language,
            database,
            threads,
            warmup: how.warmup,
            duration: how.duration,
            quiet: how.to.quiet,
        })
    }

    /// The key of a step in the result.
    pub fn key(&self, name: &str, connections: usize) -> String {
        format!("{} / {name} / {connections}", self.info.label())
    }

    pub fn table(&self, name: &str, fields: &[&str]) -> Arc<Table> {
        table(&self.database, name, fields)
    }

    pub fn obey(&self, order: &Instruction) -> Result<u64> {
        self.target.obey(&self.database, order)
    }

    /// The message of an order that is a question.
    pub fn request(&self, table: &Arc<Table>, order: &Instruction) -> Result<Vec<u8>> {
        let dialect = self.target.dialect(table, WriteDurability::W1)?;
        Ok(order.request(&*dialect, &self.database))
    }

    fn fleet<W: Workload>(
        &self,
        table: &Arc<Table>,
        connections: usize,
        make: impl Fn(Box<dyn Dialect>, usize) -> W,
    ) -> Result<(Fleet<W>, usize)> {
        let threads = self.threads.clamp(1, connections);
        let control = self.target.dialect(table, WriteDurability::W1)?;
        let fleet = Fleet::through(&*control, connections, threads, |i, _| {
            Ok(make(self.target.dialect(table, WriteDurability::W1)?, i))
        })?;
        Ok((fleet, threads))
    }

    /// Inserts so many rows, unmeasured.
    pub fn fill(
        &self,
        table: &Arc<Table>,
        write: &Arc<Write>,
        count: u64,
        batch: u64,
    ) -> Result<()> {
        let line = format_args!("{}: {count} rows into {}", self.info.label(), table.name);
        say(self.quiet, line);
        let rows = Rows::new(write, count, batch);
        let mut fleet = self.inserters(table, FILLERS, rows)?.0;
        fleet.run_quietly(None).map_err(|f| f.at(&self.info.url))?;
        Ok(())
    }

    /// Has an index built of so many rows, and waits until it is `ready` and the server has nothing to do any more.
    pub fn build(
        &self,
        make: &[Instruction],
        ready: &Instruction,
        rows: u64,
    ) -> Result<MeasuredStep> {
        say(
            self.quiet,
            format_args!("{}: index build", self.info.label()),
        );
        let pids = self.info.pids();
        let (before, began) = (cpu_time_of(&pids), Instant::now());
        make.iter()
            .try_for_each(|order| self.obey(order).map(drop))?;
        while self.obey(ready)? == 0 {
            if interrupted() || began.elapsed() > PATIENCE {
                return Err(Fault::Target(format!(
                    "{}: the index is not ready",
                    self.info.url
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let took = settled(&pids, began);
        let spent = before
            .zip(cpu_time_of(&pids))
            .map(|(b, a)| a.saturating_sub(b));
        Ok(MeasuredStep {
            name: BUILD.into(),
            target: Some(self.info.label()),
            connections: 1,
            client_threads: 1,
            operations: rows,
            seconds: took.as_secs_f64(),
            per_second: rows as f64 / took.as_secs_f64().max(1e-9),
            server_cpu_us: spent.map(|s| s.as_secs_f64() * 1e6 / rows.max(1) as f64),
            interrupted: interrupted(),
            ..MeasuredStep::default()
        })
    }

    /// A step of questions, after some that are not measured.
    pub fn ask(
        &self,
        name: &str,
        connections: usize,
        (table, questions): (&Arc<Table>, Questions),
    ) -> Result<MeasuredStep> {
        let questions = Arc::new(questions);
        let make = |dialect, lane: usize| Client {
            questions: Arc::clone(&questions),
            dialect,
            // Lanes begin in different places.
            next: lane * questions.requests.len() / self.threads.max(1),
            rows: ByteStrings::default(),
        };
        let fleet = self.fleet(table, connections, make)?;
        self.measure(name, connections, fleet, self.warmup)
    }

    /// A step of single inserts.
    pub fn insert(
        &self,
        name: &str,
        connections: usize,
        (table, write): (&Arc<Table>, &Arc<Write>),
    ) -> Result<MeasuredStep> {
        let fleet = self.inserters(table, connections, Rows::new(write, u64::MAX, 1))?;
        self.measure(name, connections, fleet, Duration::ZERO)
    }

    fn inserters(
        &self,
        table: &Arc<Table>,
        connections: usize,
        rows: Rows,
    ) -> Result<(Fleet<Inserter>, usize)> {
        let rows = Arc::new(rows);
        self.fleet(table, connections, |dialect, _| Inserter {
            rows: Arc::clone(&rows),
            dialect,
        })
    }

    fn measure<W: Workload>(
        &self,
        name: &str,
        connections: usize,
        (mut fleet, threads): (Fleet<W>, usize),
        warmup: Duration,
    ) -> Result<MeasuredStep> {
        let at = |f: Fault| f.at(&self.info.url);
        let title = format!("{}: {name}, {connections} connection(s)", self.info.label());
        say(self.quiet, &title);
        if !warmup.is_zero() {
            fleet.run_quietly(Some(warmup)).map_err(at)?;
        }
        let limit = self.duration;
        let progress = Progress::new(title, Goal::Time(limit), self.info.pids(), self.quiet);
        let done = fleet.watched(Some(limit), progress, &mut |_| {});
        let (outcome, spent) = done.map_err(at)?;
        let mut step = MeasuredStep::new(name, connections, threads, &outcome, spent);
        step.target = Some(self.info.label());
        Ok(step)
    }
}

/// An order whose answer has a record once the index answers. PostgreSQL acknowledges an index only then.
pub fn is_ready(language: QueryLanguage, table: &str, index: &str) -> Instruction {
    if language != QueryLanguage::Commands {
        return Instruction::Sql("SELECT 1".into());
    }
    let named = doc! {"$listSearchIndexes": doc! {"name": index}};
    let ready = doc! {"$match": doc! {"queryable": true, "status": "READY"}};
    let pipeline = array![named, ready];
    Instruction::Command(doc! {"aggregate": table, "pipeline": pipeline, "cursor": doc! {}})
}

fn table(database: &str, name: &str, fields: &[&str]) -> Arc<Table> {
    Arc::new(Table {
        database: database.into(),
        name: name.into(),
        key: crate::targets::KeyRole::Primary,
        key_name: "id".into(),
        fields: fields.iter().map(|f| (*f).to_string()).collect(),
        text: true,
        single_fields: false,
    })
}

/// Waits until the processes want hardly any CPU; gives how long that took since `began`, without the look that found them
/// quiet. On a busy machine they may have little although they want more. Those of another machine are not waited for.
fn settled(pids: &[u32], began: Instant) -> Duration {
    let wanted = || ProcessCounters::of(pids).map(|c| c.ran_ns + c.waited_ns);
    loop {
        let at = began.elapsed();
        let Some(before) = wanted().filter(|_| !interrupted()) else {
            return at;
        };
        std::thread::sleep(LOOK);
        let spent = wanted().unwrap_or_default().saturating_sub(before);
        if (spent as f64) < QUIET * LOOK.as_nanos() as f64 {
            return at;
        }
    }
}
