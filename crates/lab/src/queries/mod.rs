//! `pando lab queries FILE`: queries of the user's own, from a small file, on any targets in turn.
//!
//! ```text
//! set customer = zipfian(1, 100000)       a variable: drawn anew for each operation
//! set id = sequence(1)                    1, 2, 3 …, never twice on one target
//! before 1000                             said so many times before anything is measured
//! {"insert": "orders", "documents": [{"_id": ":id", "customer": ":customer"}]}
//! query of_customer weight 9 rows 0..100  a query: how often beside the others, what it may give
//! {"find": "orders", "filter": {"customer": ":customer"}, "batchSize": 100}
//! query of_customer                       the same for databases that speak SQL
//! SELECT * FROM orders WHERE customer = :customer
//! after                                   said once when all is done
//! {"drop": "orders"}
//! ```
//! A statement that begins with `{` is a command in Extended JSON, all others are SQL; a target is told
//! those of its language. `query of_customer on mysql` is the same for MySQL and MariaDB, in place of
//! the other SQL. Messages are made ready before the clock starts: in a command a variable is patched in
//! place.
//!
//! Invariant: a reply that is an error, or that gives another number of records than the file says, ends the run.

mod client;
mod file;
mod statement;
mod variable;

use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::process;
use crate::progress::{self, Goal, Progress, say};
use crate::repeat::{Repeat, turns};
use crate::report::{CheckedFigure, Draft, MeasuredStep, TargetInfo};
use crate::targets::local::given_or_own;
use crate::targets::{KeyRole, QueryLanguage, Table, TargetDatabase};
use crate::terms::{WriteDurability, duration, pause, positive};
use client::{LaneShare, StatementClient};
use file::define;

pub use file::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// The file (see docs/lab.md).
    pub file: PathBuf,
    /// Another value for a constant of the file's: `-D customers=500`.
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE", value_parser = define)]
    pub define: Vec<(String, i64)>,
    /// Connections, each with one query under way; a list runs one after the other.
    #[arg(
        long,
        alias = "threads",
        value_delimiter = ',',
        default_value = "1,8,64"
    )]
    pub connections: Vec<usize>,
    #[command(flatten)]
    pub how: How,
}

/// The targets of the queries, and for how long.
#[derive(clap::Args)]
pub struct How {
    /// Targets, which take turns; without one a server of this run's own.
    #[arg(long)]
    pub url: Vec<String>,
    /// The database that commands speak of, where the URL names none.
    #[arg(long, default_value = "lab")]
    pub database: String,
    /// Length of each step.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Unmeasured time before each step.
    #[arg(long, default_value = "1s", value_parser = pause)]
    pub warmup: Duration,
    /// Threads of the load client (default: one a core).
    #[arg(long, default_value_t = 0)]
    pub client_threads: usize,
    /// Where random numbers begin: the same seed, the same values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

/// Connections that say what comes before a measurement.
const BEFORE: usize = 4;

pub fn main(args: Args) -> Result<bool> {
    let file = File::read(&args.file, &args.define)?;
    let name = args.file.file_stem().unwrap_or_default();
    let mut draft = Draft::new("queries", &name.to_string_lossy());
    for (name, value) in &args.define {
        draft.set(name, *value);
    }
    run(&args.how, &file, draft, &args.connections, Steps::Together)
}

/// What the queries of a file are measured in.
#[derive(Clone, Copy)]
pub enum Steps<'a> {
    /// All in one step, beside each other.
    Together,
    /// Each in a step of its own, in which the targets take turns query by query.
    Apart,
    /// As together; each step, with its key, is looked at.
    Whole(&'a dyn Fn(&str, &MeasuredStep) -> Vec<CheckedFigure>),
}

/// Asks the targets the queries of a file.
pub fn run(
    how: &How,
    file: &File,
    mut draft: Draft,
    connections: &[usize],
    kind: Steps<'_>,
) -> Result<bool> {
    catch_interrupts();
    positive("--connections", connections)?;
    let (own, targets) = given_or_own(&how.url, how.to.quiet)?;
    let repeats = how.repeat.times(targets.len())?;
    draft.set("queries", file.text.clone());
    draft.set("seconds_a_step", how.duration.as_secs_f64());
    draft.set("seed", how.seed);
    draft.repeated(repeats);
    let mut all = Vec::new();
    for target in targets {
        all.push(Asker::new(how, file, target, &mut draft)?);
    }
    let mut journal = Journal::open(&mut draft, &how.to)?;
    let groups: Vec<Option<usize>> = match kind {
        Steps::Apart => (0..file.names().len()).map(Some).collect(),
        Steps::Together | Steps::Whole(_) => vec![None],
    };
    let steps = connections.len() * groups.len() * all.len() * repeats;
    progress::course(steps.saturating_sub(draft.done()) as f64);
    if draft.done() < steps {
        all.iter().try_for_each(|asked| asked.say(&file.before))?;
    }
    for repeat in 0..repeats {
        draft.begin(repeat);
        for &group in &groups {
            for (_, i) in turns(repeats, all.len()).filter(|t| t.0 == repeat) {
                for &n in connections {
                    all[i].measure(kind, group, n, &mut draft, &mut journal)?;
                }
            }
        }
    }
    if !interrupted() {
        all.iter().try_for_each(|asked| asked.say(&file.after))?;
    }
    drop(own);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// One target, and the queries in its language.
struct Asker<'a> {
    args: &'a How,
    target: Arc<dyn TargetDatabase>,
    info: TargetInfo,
    table: Arc<Table>,
    language: QueryLanguage,
    share: Arc<LaneShare>,
}

impl<'a> Asker<'a> {
    fn new(
        args: &'a How,
        file: &File,
        target: Arc<dyn TargetDatabase>,
        draft: &mut Draft,
    ) -> Result<Asker<'a>> {
        let mut info = target.info()?;
        draft.tell_apart(&mut info);
        draft.add_target(info.clone());
        let database = target.database().unwrap_or_else(|| args.database.clone());
        // No table of ours: statements name their own.
        let table = Arc::new(Table {
            database: database.clone(),
            name: String::new(),
            key: KeyRole::Primary,
            key_name: String::new(),
            fields: Vec::new(),
            text: true,
            single_fields: false,
        });
        let language = target.dialect(&table, WriteDurability::W1)?.language();
        let share = LaneShare::new(file, language, &database, args.seed)?;
        Ok(Asker {
            args,
            target,
            info,
            table,
            language,
            share: Arc::new(share),
        })
    }

    fn fleet(
        &self,
        share: &Arc<LaneShare>,
        connections: usize,
    ) -> Result<(Fleet<StatementClient>, usize)> {
        let threads = match self.args.client_threads {
            0 => process::allowed_cores().len(),
            n => n,
        };
        let threads = threads.clamp(1, connections);
        let control = self.target.dialect(&self.table, WriteDurability::W1)?;
        let fleet = Fleet::through(&*control, connections, threads, |i, _| {
            let dialect = self.target.dialect(&self.table, WriteDurability::W1)?;
            Ok(StatementClient::new(share, dialect, i as u64))
        })?;
        Ok((fleet, threads))
    }

    /// What comes before or after a measurement, statement by statement.
    fn say(&self, all: &[file::Once]) -> Result<()> {
        for once in all.iter().filter(|o| o.is_told_in(self.language)) {
            if interrupted() {
                return Ok(());
            }
            let line = once.text.lines().next().unwrap_or_default();
            say(
                self.args.to.quiet,
                format_args!("{}: {} × {line}", self.info.label(), once.times),
            );
            let share = Arc::new(self.share.only(once, &self.table.database)?);
            let connections = BEFORE.min(once.times as usize);
            self.fleet(&share, connections)?
                .0
                .run_quietly(None)
                .map_err(|f| f.at(&self.info.url))?;
        }
        Ok(())
    }

    /// A step of all queries, or of one.
    fn measure(
        &self,
        kind: Steps<'_>,
        query: Option<usize>,
        connections: usize,
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let label = self.info.label();
        let alone = query.and_then(|i| self.share.alone(i).map(Arc::new));
        let share = alone.as_ref().unwrap_or(&self.share);
        let name = match &alone {
            Some(share) => share.name().to_string(),
            None => draft.report.name.clone(),
        };
        let key = match &alone {
            Some(_) => format!("{label} / {name} / {connections}"),
            None => format!("{label} / {connections}"),
        };
        if interrupted() || draft.has(&key) {
            return Ok(());
        }
        progress::step(1.0);
        let title = match &alone {
            Some(_) => format!("{label}: {name}, {connections} connection(s)"),
            None => format!("{label}: {connections} connection(s)"),
        };
        say(self.args.to.quiet, &title);
        let (mut fleet, threads) = self.fleet(share, connections)?;
        if !self.args.warmup.is_zero() {
            fleet
                .run_quietly(Some(self.args.warmup))
                .map_err(|f| f.at(&self.info.url))?;
        }
        let limit = self.args.duration;
        let progress = Progress::new(
            title,
            Goal::Time(limit),
            self.info.pids(),
            self.args.to.quiet,
        );
        let done = fleet.watched(Some(limit), progress, &mut |_| {});
        let (outcome, spent) = done.map_err(|f| f.at(&self.info.url))?;
        let mut step = MeasuredStep::new(&name, connections, threads, &outcome, spent);
        step.target = Some(label);
        step.own_queries = true;
        if let Steps::Whole(look) = kind {
            look(&key, &step).into_iter().for_each(|c| draft.check(c));
        }
        draft.push(&key, step);
        journal.save(draft);
        Ok(())
    }
}

/// A fault of the file, and its line.
fn wrong(line: usize, why: impl std::fmt::Display) -> Fault {
    Fault::Usage(format!("line {line}: {why}"))
}
