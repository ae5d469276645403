//! `pando lab study sizes`: study C complete. Five scenarios at 1 to 256 connections on three data sizes, each in a table
//! of its own; the fall of the rate with data size is the plot that matters.
//!
//! Published: 5, 30 and 100 million records (Test_20, Test_80, Test_300) on 24 cores and 256 GB. `--scale` takes that
//! share of them; shapes are compared, not figures.

use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::{course, say, step};
use crate::report::Draft;
use crate::targets;
use crate::targets::local::Launch;
use crate::terms::{Durability, count, duration, pause, positive};
use crate::ycsb::session::Plan;
use crate::ycsb::{Session, Spec, scenario};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Targets, one after the other; those that do not answer are skipped. A router of a cluster is a target like others.
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
    pub durability: Durability,
    /// Threads of the load client (default: one a core).
    #[arg(long, default_value_t = 0)]
    pub client_threads: usize,
    /// Keep the tables.
    #[arg(long)]
    pub keep: bool,
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
    if args.records.contains(&0) || args.scale.is_nan() || args.scale <= 0.0 {
        return Err(Fault::Usage(
            "--records and --scale must be more than zero".into(),
        ));
    }
    let sizes: Vec<(String, u64)> = if args.records.is_empty() {
        let scaled = |n: u64| ((n as f64 * args.scale) as u64).max(1);
        PUBLISHED
            .iter()
            .map(|(name, n)| ((*name).to_string(), scaled(*n)))
            .collect()
    } else {
        args.records
            .iter()
            .map(|n| (format!("Test_{n}"), *n))
            .collect()
    };
    for s in &args.scenarios {
        scenario::spec(s, None)?;
    }
    let launched = args.launch.start(!args.url.is_empty(), args.to.quiet)?;
    let targets = match &launched {
        Some(started) => targets::open_all(&[started.url()])?,
        None => targets::open_all(&args.url)?,
    };
    let mut draft = Draft::new("study", "C-sizes");
    draft.set("records", sizes.iter().map(|(_, n)| *n).collect::<Vec<_>>());
    draft.set("durability", args.durability.name());
    draft.set("seconds_a_point", args.duration.as_secs_f64());
    draft.note("Published: 24 cores, 256 GB, 5, 30 and 100 million records; compare the shapes.");
    let mut journal = Journal::open(&mut draft, &args.to)?;
    let points = sizes.len() * args.scenarios.len() * args.connections.len() * targets.len();
    course(points.saturating_sub(draft.report.steps.len()) as f64);
    for target in targets {
        let mut session =
            Session::open(target, "C", spec("C.S5", "usertable", 1)?, args.durability)?;
        draft.tell_apart(&mut session.info);
        session.quiet = args.to.quiet;
        session.client_threads = args.client_threads;
        draft.add_target(session.info.clone());
        for (table, records) in &sizes {
            one_size(
                &args,
                &mut session,
                table,
                *records,
                &mut draft,
                &mut journal,
            )?;
        }
    }
    drop(launched);
    journal.finish(draft, Page::Beside)?;
    Ok(true)
}

fn spec(name: &str, table: &str, records: u64) -> Result<Spec> {
    Ok(Spec {
        table: table.into(),
        ..scenario::spec(name, records)?
    })
}

fn one_size(
    args: &Args,
    session: &mut Session,
    table: &str,
    records: u64,
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    let mut used = Vec::new();
    for scenario in &args.scenarios {
        let inserts = spec(scenario, table, records)?.only_inserts();
        // Inserts start empty each time, and leave the table that the others read alone.
        let place = if inserts {
            format!("{table}_insert")
        } else {
            table.to_string()
        };
        session.set_spec(scenario, spec(scenario, &place, records)?);
        for &n in &args.connections {
            let key = format!("{} / {table} / {scenario} / {n}", session.info.label());
            if interrupted() || draft.has(&key) {
                continue;
            }
            step(1.0);
            if !session.prepare(false)? {
                continue;
            }
            say(
                args.to.quiet,
                format_args!("{table}, {scenario}, {n} connection(s)"),
            );
            let plan = Plan {
                operations: if inserts { records } else { u64::MAX },
                warmup: args.warmup,
                ..Plan::timed(n, args.duration)
            };
            let (_, mut point) = session.run(plan, &mut |_| {})?;
            point.mode = Some(table.to_string());
            point.at = Some(records as f64);
            draft.push(&key, point);
            journal.save(draft);
        }
        if !used.contains(&place) {
            used.push(place);
        }
    }
    for place in used.iter().filter(|_| !args.keep) {
        session.set_spec("C", spec("C.S5", place, records)?);
        session.drop_table()?;
    }
    Ok(())
}
