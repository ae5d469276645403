//! `pando lab` without a word: the canonical short study, a few minutes on a server of its own, ending with a table and a
//! page. One server is started for it and gone afterwards; `--with` lays installed databases beside it.

use crate::bench::place::Room;
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::null::Form;
use crate::output::{Journal, Output, Page};
use crate::process::Placement;
use crate::progress::{self, say};
use crate::report::{Check, Draft};
use crate::study::pains::shape;
use crate::sweep::Turns;
use crate::targets::local::{Means, Started, Up, installed, own_server};
use crate::targets::{self, Target};
use crate::terms::{Durability, count, duration};
use crate::ycsb::session::Plan;
use crate::ycsb::{Session, scenario};
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Targets that run already, instead of a server of its own.
    #[arg(long)]
    pub url: Vec<String>,
    /// How to start the server, {dbpath} and {port} filled in (default: this program's `serve`).
    #[arg(long, conflicts_with = "url")]
    pub launch: Option<String>,
    /// Databases to start beside it: mariadb, postgres, postgres-jsonb, mongod.
    #[arg(long, value_delimiter = ',', value_parser = ["mariadb", "postgres", "postgres-jsonb", "mongod"])]
    pub with: Vec<String>,
    /// Records: 1000, 50k, 5m …
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Numbers of connections, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    pub connections: Vec<usize>,
    /// Length of each point.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub duration: Duration,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: Durability,
    #[command(flatten)]
    pub to: Output,
}

const CACHE: u64 = 512_000_000;

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    crate::terms::positive("--connections", &args.connections)?;
    if args.records == 0 || args.duration.is_zero() {
        return Err(Fault::Usage(
            "--records and --duration must be more than nothing".into(),
        ));
    }
    let mut draft = Draft::new("study", "canonical");
    draft.set("records", args.records);
    draft.set("durability", args.durability.name());
    draft.set("seconds_a_point", args.duration.as_secs_f64());
    let mut journal = Journal::open(&mut draft, &args.to)?;
    let mut beside = Started::default();
    let mut own = None;
    let mut list: Vec<Arc<dyn Target>> = if args.url.is_empty() {
        let launch = match &args.launch {
            Some(line) => line.clone(),
            None => {
                let own = own_server()?;
                let own = own.display();
                // The cache that the databases beside it get.
                format!(
                    "{own} serve --dbpath {{dbpath}} --port {{port}} --cache {}MB",
                    CACHE / 1_000_000
                )
            }
        };
        let placement = Placement::new(None, None)?;
        let room = Room::open(None, Some(&launch), None, placement, Form::Threads)?;
        say(args.to.quiet, "starting a server");
        let server = room.start(&room.fresh_dbpath()?, &[])?;
        let ready = server.ready.as_secs_f64() * 1e3;
        draft.check(Check::figure("ready after", ready, "ms"));
        let target = targets::open(&server.target.url)?;
        own = Some((server, room));
        vec![target]
    } else {
        targets::open_all(&args.url)?
    };
    for product in &args.with {
        let (name, layout) = match product.as_str() {
            "postgres-jsonb" => ("postgres", "jsonb"),
            other => (other, "columns"),
        };
        if !installed(name) {
            let line = format!("{product}: skipped (not installed)");
            eprintln!("{line}");
            draft.note(line);
            continue;
        }
        let up = Up {
            layout: layout.into(),
            ..Up::new(name, Means::with_memory(CACHE), 1)
        };
        list.push(targets::open(&beside.add(&up, args.to.quiet)?)?);
    }
    // The load, three workloads by connections, and two of them by load.
    let each = 4 + 3 * args.connections.len() + 2 * 3 * 2;
    let done = draft.report.steps.len() + draft.report.turns.len();
    progress::course((each * list.len()).saturating_sub(done) as f64);
    for target in list {
        if !interrupted() {
            one(&args, target, &mut draft, &mut journal)?;
        }
    }
    if let Some((mut server, _room)) = own {
        server.stop();
    }
    drop(beside);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

fn one(
    args: &Args,
    target: Arc<dyn Target>,
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    let mut session = Session::open(
        target,
        "load",
        scenario::spec("C.S1", args.records)?,
        args.durability,
    )?;
    session.quiet = args.to.quiet;
    draft.tell_apart(&mut session.info);
    let label = session.info.label();
    draft.add_target(session.info.clone());
    let key = format!("{label} / load");
    if !draft.has(&key) {
        say(
            args.to.quiet,
            format_args!("{label}: {} inserts", args.records),
        );
        progress::step(4.0);
        let plan = Plan {
            limit: None,
            ..Plan::timed(8, Duration::ZERO)
        };
        let (_, mut step) = session.load(plan, &mut |_| {})?;
        step.name = "load".into();
        for check in shape(&step) {
            draft.check(Check {
                name: format!("{label}: {}", check.name),
                ..check
            });
        }
        draft.push(&key, step);
        journal.save(draft);
    }
    for (workload, latency) in [
        ("C.S5", &[50, 70, 90][..]),
        ("C.S3", &[50, 70, 90]),
        ("C.S1", &[]),
    ] {
        if interrupted() {
            return Ok(());
        }
        let mut spec = scenario::spec(workload, args.records)?;
        if spec.only_inserts() {
            spec.table = "inserts".into();
        }
        session.set_spec(workload, spec);
        let turns = Turns {
            connections: &args.connections,
            duration: args.duration,
            rounds: 1,
            latency,
            poisson: false,
            quiet: args.to.quiet,
        };
        turns.run(&mut session, draft, journal)?;
    }
    session.drop_table()?;
    session.set_spec("C.S5", scenario::spec("C.S5", args.records)?);
    session.drop_table()
}
