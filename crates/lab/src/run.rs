//! `pando lab run`: a YCSB workload, loaded and run at one or more numbers of connections.

use crate::connection::{Connection, Target};
use crate::fault::{Fault, Result};
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::process;
use crate::progress::{Goal, Progress, say};
use crate::report::{Draft, Sizes, Step, TargetInfo};
use crate::show;
use crate::terms::{Durability, count, duration, positive};
use crate::ycsb::{Client, Phase, Properties, Shared, Spec, scenario};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Phases {
    /// Insert the records and stop.
    Load,
    /// Run on what is there.
    Run,
    /// Load what is missing, then run.
    Both,
}

#[derive(clap::Args)]
pub struct Args {
    /// A built-in scenario (C.S1 … C.S5, A … F) or a property file.
    pub workload: Option<String>,
    /// Property files, in order; what comes later wins.
    #[arg(short = 'P', value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Single properties, over all files.
    #[arg(short = 'p', value_name = "KEY=VALUE")]
    pub properties: Vec<String>,
    /// The server, as mongodb://host:port[/database][?w=…&journal=…]
    #[arg(long)]
    pub url: Option<String>,
    /// Connections, each with one operation under way; a list runs one after the other.
    #[arg(long, alias = "threads", value_delimiter = ',')]
    pub connections: Vec<usize>,
    /// Threads of the load client (default: one a core).
    #[arg(long)]
    pub client_threads: Option<usize>,
    /// Records (recordcount): 1000, 50k, 5m …
    #[arg(long, value_parser = count)]
    pub records: Option<u64>,
    /// Operations of each run; with --duration, whichever ends first.
    #[arg(long, value_parser = count)]
    pub operations: Option<u64>,
    /// Length of each run.
    #[arg(long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// Run so long before measuring (not with workloads that only insert).
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub warmup: Duration,
    /// What a write waits for (default: what the URL says, else w1).
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
    #[arg(long, value_enum, default_value = "both")]
    pub phase: Phases,
    /// Documents of an insert message when loading is not what is measured.
    #[arg(long, default_value_t = 1000)]
    pub load_batch: u64,
    /// Load anew even if the records are there.
    #[arg(long)]
    pub reload: bool,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Result file (default: a new one in lab-results/; - for none).
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let (name, properties) = gather(&args)?;
    let (spec, warnings) = Spec::new(&properties)?;
    for w in warnings {
        eprintln!("warning: {w}");
    }
    let url = args
        .url
        .clone()
        .or_else(|| properties.get("mongodb.url").map(String::from))
        .unwrap_or_else(|| "mongodb://127.0.0.1:27017".into());
    let target = Target::parse(&url)?;
    let durability = match args.durability {
        Some(d) => d,
        None => durability_of(&url)?,
    };
    let connections = if args.connections.is_empty() {
        vec![properties.parse("threadcount", 1)?]
    } else {
        args.connections.clone()
    };
    positive("--connections", &connections)?;
    positive("--load-batch", &[args.load_batch as usize])?;
    let mut run = Run::open(args, name, spec, target, durability)?;
    run.all(&connections, &properties)?;
    let Run { draft, args, .. } = run;
    let report = draft.finish(args.out.as_deref())?;
    show::report(&report);
    Ok(true)
}

/// The workload's name and all its properties.
fn gather(args: &Args) -> Result<(String, Properties)> {
    let mut properties = Properties::default();
    let mut name = String::from("ycsb");
    if let Some(workload) = &args.workload {
        if let Some(text) = scenario::find(workload) {
            properties.add_text(text)?;
            name = workload.to_ascii_uppercase();
        } else if Path::new(workload).is_file() {
            properties.add_file(Path::new(workload))?;
            name = stem(Path::new(workload));
        } else {
            return Err(Fault::Usage(format!(
                "{workload} is neither a scenario (see `pando lab list`) nor a file"
            )));
        }
    } else if args.files.is_empty() && args.properties.is_empty() {
        return Err(Fault::Usage(
            "name a scenario (see `pando lab list`) or give a property file with -P".into(),
        ));
    }
    for file in &args.files {
        properties.add_file(file)?;
        if args.workload.is_none() {
            name = stem(file);
        }
    }
    for pair in &args.properties {
        properties.add_pair(pair)?;
    }
    if let Some(n) = args.records {
        properties.set("recordcount", n);
    }
    Ok((name, properties))
}

fn stem(path: &Path) -> String {
    path.file_name()
        .map_or("ycsb".into(), |n| n.to_string_lossy().into_owned())
}

/// The write concern of a URL's options, as the MongoDB binding of YCSB takes it.
fn durability_of(url: &str) -> Result<Durability> {
    let options = url.split_once('?').map_or("", |(_, o)| o);
    let mut durability = Durability::W1;
    let mut journaled = false;
    for (key, value) in options.split('&').filter_map(|o| o.split_once('=')) {
        match (key.to_ascii_lowercase().as_str(), value) {
            ("w", "0") => durability = Durability::Unack,
            ("w", "1") => durability = Durability::W1,
            ("w", "majority") => durability = Durability::Majority,
            ("w", other) => {
                return Err(Fault::Usage(format!("{url}: w={other} is not supported")));
            }
            ("j" | "journal", "true") => journaled = true,
            _ => {}
        }
    }
    Ok(match durability {
        Durability::W1 if journaled => Durability::Journaled,
        other => other,
    })
}

struct Run {
    args: Args,
    name: String,
    spec: Spec,
    target: Target,
    db: String,
    durability: Durability,
    control: Connection,
    pid: Option<u32>,
    draft: Draft,
}

impl Run {
    fn open(
        args: Args,
        name: String,
        spec: Spec,
        target: Target,
        durability: Durability,
    ) -> Result<Run> {
        let mut control = target.connect()?;
        let mut draft = Draft::new("run", &name);
        let info = TargetInfo::of(&target, &mut control);
        let pid = info.pid;
        draft.report.target = Some(info);
        draft.set("records", spec.records);
        draft.set("fields", spec.field_count);
        draft.set("field_bytes", spec.field_length);
        draft.set("durability", durability.name());
        draft.set("requests", format!("{:?}", spec.request).to_lowercase());
        draft.set("seed", args.seed);
        let db = target.database.clone().unwrap_or_else(|| "ycsb".into());
        Ok(Run {
            args,
            name,
            spec,
            target,
            db,
            durability,
            control,
            pid,
            draft,
        })
    }

    fn all(&mut self, connections: &[usize], properties: &Properties) -> Result<()> {
        if self.args.phase == Phases::Load {
            return self.load_measured(connections[0]);
        }
        for &n in connections {
            if interrupted() {
                break;
            }
            self.prepare()?;
            self.run_measured(n, properties)?;
        }
        Ok(())
    }

    fn threads(&self, connections: usize) -> usize {
        self.args
            .client_threads
            .unwrap_or_else(|| process::allowed_cores().len())
            .clamp(1, connections)
    }

    fn empty_collection(&mut self) -> Result<()> {
        self.control.drop_collection(&self.db, &self.spec.table)?;
        self.control.create_indexes(&self.db, &self.spec.table, &[])
    }

    /// Brings the collection to the state that the run phase starts from.
    fn prepare(&mut self) -> Result<()> {
        if self.args.phase == Phases::Run {
            return Ok(());
        }
        if self.spec.only_inserts() {
            return self.empty_collection();
        }
        let table = self.spec.table.clone();
        let have = self.control.count(&self.db, &table)?;
        if have == self.spec.records && !self.args.reload {
            return Ok(());
        }
        self.args.reload = false;
        say(
            self.args.quiet,
            format_args!("loading {} records", self.spec.insert_count),
        );
        self.empty_collection()?;
        let mut spec = self.spec.clone();
        spec.batch = self.args.load_batch;
        let all = self.spec.insert_count;
        let outcome = self.drive(Phase::Load, spec, 4, u64::MAX, None, Goal::Operations(all))?;
        if interrupted() {
            return Err(Fault::Local("interrupted while loading".into()));
        }
        self.expect_count(outcome.0.operations)
    }

    fn expect_count(&mut self, want: u64) -> Result<()> {
        let have = self.control.count(&self.db, &self.spec.table)?;
        if have == want {
            return Ok(());
        }
        Err(Fault::Check(format!(
            "{have} documents in {}.{} where {want} were due",
            self.db, self.spec.table
        )))
    }

    /// The load phase as YCSB does it, measured.
    fn load_measured(&mut self, connections: usize) -> Result<()> {
        self.empty_collection()?;
        let goal = Goal::Operations(self.spec.insert_count);
        let limit = self.args.duration;
        let (outcome, cpu) = self.drive(
            Phase::Load,
            self.spec.clone(),
            connections,
            u64::MAX,
            limit,
            goal,
        )?;
        self.expect_count(outcome.operations)?;
        self.push_step("load", connections, &outcome, cpu)
    }

    fn run_measured(&mut self, connections: usize, properties: &Properties) -> Result<()> {
        let only_inserts = self.spec.only_inserts();
        let (operations, limit) = match (self.args.operations, self.args.duration) {
            (Some(n), limit) => (n, limit),
            (None, Some(limit)) => (u64::MAX, Some(limit)),
            // Of a scenario the size decides, of a property file its operationcount.
            (None, None) if only_inserts => (self.spec.records, None),
            (None, None) if self.args.workload.is_none() && self.spec.operations > 0 => {
                (self.spec.operations, None)
            }
            (None, None) => {
                let seconds = properties.parse("maxexecutiontime", 30)?;
                (u64::MAX, Some(Duration::from_secs(seconds)))
            }
        };
        if only_inserts && operations == u64::MAX && self.args.phase == Phases::Run {
            return Err(Fault::Usage(
                "a run that only inserts starts empty: leave out --phase run".into(),
            ));
        }
        let mut spec = self.spec.clone();
        // A zipfian makes room for the inserts to come; a run bounded by time counts on one pass over the records.
        spec.operations = if operations == u64::MAX {
            spec.records
        } else {
            operations
        };
        let goal = match limit {
            Some(t) => Goal::Time(t),
            None => Goal::Operations(operations),
        };
        if !self.args.warmup.is_zero() && !only_inserts && self.spec.insert == 0.0 {
            let (phase, warmup) = (Phase::Run, self.args.warmup);
            let goal = Goal::Time(warmup);
            self.drive(
                phase,
                spec.clone(),
                connections,
                u64::MAX,
                Some(warmup),
                goal,
            )?;
        }
        let before = self.control.count(&self.db, &self.spec.table)?;
        say(
            self.args.quiet,
            format_args!("{} with {connections} connection(s)", self.name),
        );
        let (outcome, cpu) = self.drive(Phase::Run, spec, connections, operations, limit, goal)?;
        if self.spec.delete == 0.0 {
            let inserted = if only_inserts {
                outcome.operations
            } else {
                let insert = outcome.kinds.iter().find(|(k, _)| *k == "INSERT");
                insert.map_or(0, |(_, h)| h.len()) * self.spec.batch
            };
            // A last batch may be smaller than the others, so only single inserts are counted to the document.
            if self.spec.batch == 1 || only_inserts {
                self.expect_count(before + inserted)?;
            }
        }
        let name = self.name.clone();
        self.push_step(&name, connections, &outcome, cpu)
    }

    fn push_step(
        &mut self,
        name: &str,
        connections: usize,
        outcome: &crate::fleet::Outcome,
        cpu: Option<Duration>,
    ) -> Result<()> {
        let threads = self.threads(connections);
        let mut step = Step::new(name, connections, threads, outcome, cpu);
        step.durability = Some(self.durability.name().into());
        let at = outcome.elapsed.as_secs_f64();
        let mut sizes = Sizes::of(&mut self.control, &self.db, &self.spec.table, at)?;
        sizes.server_resident_bytes = self.pid.and_then(process::resident_bytes);
        step.sizes.push(sizes);
        self.draft.report.steps.push(step);
        Ok(())
    }

    fn drive(
        &mut self,
        phase: Phase,
        spec: Spec,
        connections: usize,
        operations: u64,
        limit: Option<Duration>,
        goal: Goal,
    ) -> Result<(crate::fleet::Outcome, Option<Duration>)> {
        let title = match phase {
            Phase::Load => format!("{}: load", self.name),
            Phase::Run => format!("{}: {connections} connection(s)", self.name),
        };
        let seed = self.args.seed;
        let shared: Arc<Shared> =
            Shared::new(spec, &self.db, self.durability, phase, operations, seed);
        let mut fleet = Fleet::connect(
            &self.target,
            connections,
            self.threads(connections),
            |i, n| Client::new(&shared, i, n),
        )?;
        let mut progress = Progress::new(title, goal, self.pid, self.args.quiet);
        let cpu = self.pid.and_then(process::cpu_time);
        let outcome = fleet.run(limit, &mut |s| progress.sample(s))?;
        let spent = match (cpu, self.pid.and_then(process::cpu_time)) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before)),
            _ => None,
        };
        Ok((outcome, spent))
    }
}
