//! `pando lab study sizes`: study C complete. Five scenarios at 1 to 256 connections on three data sizes, each in a table
//! of its own; the fall of the rate with data size is the plot that matters.
//!
//! Published: 5, 30 and 100 million records (Test_20, Test_80, Test_300) on 24 cores and 256 GB. `--scale` takes that
//! share of them; shapes are compared, not figures.

use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::{course, say, step};
use crate::repeat::{Repeat, turns};
use crate::report::Draft;
use crate::targets;
use crate::targets::local::Launch;
use crate::terms::{WriteDurability, count, duration, pause, positive};
use crate::ycsb::session::StepPlan;
use crate::ycsb::{Session, Spec, scenario};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Targets, which take turns; those that do not answer are skipped. A router of a cluster is a target like others.
    #[arg(long)]
    pub url: Vec<String>,
    #[command(flatten)]
    pub launch: Launch,
    /// Share of the published 5, 30 and 100 million records.
    #[arg(long, default_value_t = 0.01)]
    pub scale: f64,
    /// Records of the tables, instead of --scale.
    #[arg(long, value_delimiter = ',', value_parser = count)]
    pub records: Vec<u64>,
    /// Scenarios.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "C.S1,C.S5,C.S2,C.S3,C.S4"
    )]
    pub scenarios: Vec<String>,
    /// Numbers of connections, one after the other.
    #[arg(
        long,
        alias = "threads",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256"
    )]
    pub connections: Vec<usize>,
    /// Length of each point.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub duration: Duration,
    /// Before each point.
    #[arg(long, default_value = "1s", value_parser = pause)]
    pub warmup: Duration,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    /// Threads of the load client (default: one a core).
    #[arg(long, default_value_t = 0)]
    pub client_threads: usize,
    /// Keep the tables.
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

const PUBLISHED: [(&str, u64); 3] = [
    ("Test_20", 5_000_000),
    ("Test_80", 30_000_000),
    ("Test_300", 100_000_000),
];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &args.connections)?;
    let sizes = sizes(&args)?;
    for s in &args.scenarios {
        scenario::spec(s, None)?;
    }
    let launched = args.launch.start(!args.url.is_empty(), args.to.quiet)?;
    let targets = match &launched {
        Some(started) => targets::open_all(&[started.url()])?,
        None => targets::open_all(&args.url)?,
    };
    let repeats = args.repeat.times(targets.len())?;
    let mut draft = Draft::new("study", "C-sizes");
    draft.set("records", sizes.iter().map(|(_, n)| *n).collect::<Vec<_>>());
    draft.set("durability", args.durability.name());
    draft.set("seconds_a_point", args.duration.as_secs_f64());
    draft.repeated(repeats);
    draft.note("Published: 24 cores, 256 GB, 5, 30 and 100 million records; compare the shapes.");
    let mut journal = Journal::open(&mut draft, &args.to)?;
    let each = sizes.len() * args.scenarios.len() * args.connections.len();
    course((each * targets.len() * repeats).saturating_sub(draft.done()) as f64);
    let mut sessions = Vec::new();
    for target in targets {
        let spec = spec("C.S5", "usertable", 1)?;
        let mut session = Session::open(target, "C", spec, args.durability)?;
        draft.tell_apart(&mut session.info);
        session.quiet = args.to.quiet;
        session.client_threads = args.client_threads;
        draft.add_target(session.info.clone());
        sessions.push(session);
    }
    for (table, records) in &sizes {
        let size = Size {
            args: &args,
            table,
            records: *records,
            repeats,
        };
        size.run(&mut sessions, &mut draft, &mut journal)?;
    }
    drop(launched);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// The tables' names and how many records each has.
fn sizes(args: &Args) -> Result<Vec<(String, u64)>> {
    if args.records.contains(&0) || args.scale.is_nan() || args.scale <= 0.0 {
        return Err(Fault::Usage(
            "--records and --scale must be more than zero".into(),
        ));
    }
    if args.duration.is_zero() {
        return Err(Fault::Usage("--duration must be more than nothing".into()));
    }
    if args.records.is_empty() {
        let scaled = |n: u64| ((n as f64 * args.scale) as u64).max(1);
        let published = PUBLISHED.iter();
        return Ok(published
            .map(|(name, n)| ((*name).to_string(), scaled(*n)))
            .collect());
    }
    let given = args.records.iter();
    Ok(given.map(|n| (format!("Test_{n}"), *n)).collect())
}

fn spec(name: &str, table: &str, records: u64) -> Result<Spec> {
    Ok(Spec {
        table: table.into(),
        ..scenario::spec(name, records)?
    })
}

/// One data size, in a table of its own on each target.
struct Size<'a> {
    args: &'a Args,
    table: &'a str,
    records: u64,
    repeats: usize,
}

impl Size<'_> {
    fn run(
        &self,
        sessions: &mut [Session],
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let mut used = Vec::new();
        for scenario in &self.args.scenarios {
            let inserts = spec(scenario, self.table, self.records)?.only_inserts();
            // Inserts start empty each time, and leave the table that the others read alone.
            let place = match inserts {
                true => format!("{}_insert", self.table),
                false => self.table.to_string(),
            };
            for session in &mut *sessions {
                session.set_spec(scenario, spec(scenario, &place, self.records)?);
            }
            for (repeat, i) in turns(self.repeats, sessions.len()) {
                draft.begin(repeat);
                for &n in &self.args.connections {
                    self.point(&mut sessions[i], n, draft, journal)?;
                }
            }
            if !used.contains(&place) {
                used.push(place);
            }
        }
        for place in used.iter().filter(|_| !self.args.keep) {
            for session in &mut *sessions {
                session.set_spec("C", spec("C.S5", place, self.records)?);
                session.drop_table()?;
            }
        }
        Ok(())
    }

    /// The scenario that the session is set to, at one number of connections.
    fn point(
        &self,
        session: &mut Session,
        n: usize,
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let (label, scenario) = (session.info.label(), session.name.clone());
        let key = format!("{label} / {} / {scenario} / {n}", self.table);
        if interrupted() || draft.has(&key) {
            return Ok(());
        }
        step(1.0);
        if !session.prepare(false)? {
            return Ok(());
        }
        say(
            self.args.to.quiet,
            format_args!("{label}, {}, {scenario}, {n} connection(s)", self.table),
        );
        let inserts = session.spec.only_inserts();
        let plan = StepPlan {
            operations: if inserts { self.records } else { u64::MAX },
            warmup: self.args.warmup,
            ..StepPlan::timed(n, self.args.duration)
        };
        let (_, mut point) = session.run(plan, &mut |_| {})?;
        point.mode = Some(self.table.to_string());
        point.at = Some(self.records as f64);
        draft.push(&key, point);
        journal.save(draft);
        Ok(())
    }
}
