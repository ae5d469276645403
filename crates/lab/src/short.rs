//! `pando lab` without a word: the canonical short study, a few minutes on a server of its own, ending with a table and a
//! page. One server is started for it and gone afterwards; `--with` lays installed databases beside it.

use crate::bench::place::{Server, ServerSetup};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::null::Form;
use crate::output::{Journal, Output, Page};
use crate::process::CorePlacement;
use crate::progress::{self, say};
use crate::repeat::{Repeat, turns};
use crate::report::{CheckedFigure, Draft};
use crate::study::pains::shape;
use crate::sweep::Turns;
use crate::targets::local::{Means, Started, Up, installed, own_server};
use crate::targets::{self, TargetDatabase};
use crate::terms::{WriteDurability, count, duration};
use crate::ycsb::session::StepPlan;
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
    pub durability: WriteDurability,
    #[command(flatten)]
    pub repeat: Repeat,
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
    // Known before a server is started: there is no wait for missing programs.
    let beside = args.with.iter().filter(|p| installed(package(p).0)).count();
    let repeats = args.repeat.times(args.url.len().max(1) + beside)?;
    let mut draft = Draft::new("study", "canonical");
    draft.set("records", args.records);
    draft.set("durability", args.durability.name());
    draft.set("seconds_a_point", args.duration.as_secs_f64());
    draft.repeated(repeats);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    let servers = Servers::start(&args, &mut draft)?;
    let mut sessions = Vec::new();
    for target in &servers.targets {
        let spec = scenario::spec("C.S1", args.records)?;
        let mut session = Session::open(Arc::clone(target), "load", spec, args.durability)?;
        session.quiet = args.to.quiet;
        draft.tell_apart(&mut session.info);
        draft.add_target(session.info.clone());
        sessions.push(session);
    }
    // The load, three workloads by connections, and two of them by load.
    let each = 4 + 3 * args.connections.len() + 2 * 3 * 2;
    let course = each * sessions.len() * repeats;
    progress::course(course.saturating_sub(draft.done()) as f64);
    let done = all(&args, repeats, &mut sessions, &mut draft, &mut journal);
    drop(sessions);
    drop(servers);
    done?;
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// A product as the user names it: what it is installed as, and its layout.
fn package(product: &str) -> (&str, &str) {
    match product {
        "postgres-jsonb" => ("postgres", "jsonb"),
        other => (other, "columns"),
    }
}

/// The databases of the study; those that were started for it end with it.
struct Servers {
    targets: Vec<Arc<dyn TargetDatabase>>,
    own: Option<(Server, ServerSetup)>,
    _beside: Started,
}

impl Servers {
    fn start(args: &Args, draft: &mut Draft) -> Result<Servers> {
        let mut all = Servers {
            targets: Vec::new(),
            own: None,
            _beside: Started::default(),
        };
        if args.url.is_empty() {
            all.start_own(args, draft)?;
        } else {
            all.targets = targets::open_all(&args.url)?;
        }
        for product in &args.with {
            let (name, layout) = package(product);
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
            let url = all._beside.add(&up, args.to.quiet)?;
            all.targets.push(targets::open(&url)?);
        }
        Ok(all)
    }

    fn start_own(&mut self, args: &Args, draft: &mut Draft) -> Result<()> {
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
        let placement = CorePlacement::new(None, None)?;
        let room = ServerSetup::open(None, Some(&launch), None, placement, Form::Threads)?;
        say(args.to.quiet, "starting a server");
        let server = room.start(&room.fresh_dbpath()?, &[])?;
        let ready = server.ready.as_secs_f64() * 1e3;
        draft
            .report
            .checks
            .push(CheckedFigure::figure("ready after", ready, "ms"));
        self.targets.push(targets::open(&server.target.url)?);
        self.own = Some((server, room));
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Some((server, _)) = &mut self.own {
            server.stop();
        }
    }
}

fn all(
    args: &Args,
    repeats: usize,
    sessions: &mut [Session],
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    for (repeat, i) in turns(repeats, sessions.len()) {
        draft.begin(repeat);
        load(args, &mut sessions[i], draft, journal)?;
    }
    for (workload, latency) in [
        ("C.S5", &[50, 70, 90][..]),
        ("C.S3", &[50, 70, 90]),
        ("C.S1", &[]),
    ] {
        if interrupted() {
            break;
        }
        let mut spec = scenario::spec(workload, args.records)?;
        if spec.only_inserts() {
            spec.table = "inserts".into();
        }
        for session in &mut *sessions {
            session.set_spec(workload, spec.clone());
        }
        let sweep = Turns {
            connections: &args.connections,
            duration: args.duration,
            repeats,
            latency,
            poisson: false,
            quiet: args.to.quiet,
        };
        sweep.run(sessions, draft, journal)?;
    }
    for session in sessions {
        session.drop_table()?;
        session.set_spec("C.S5", scenario::spec("C.S5", args.records)?);
        session.drop_table()?;
    }
    Ok(())
}

/// The measured load, whose records the workloads read.
fn load(
    args: &Args,
    session: &mut Session,
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    let label = session.info.label();
    let key = format!("{label} / load");
    if interrupted() || draft.has(&key) {
        return Ok(());
    }
    say(
        args.to.quiet,
        format_args!("{label}: {} inserts", args.records),
    );
    progress::step(4.0);
    let plan = StepPlan {
        limit: None,
        ..StepPlan::timed(8, Duration::ZERO)
    };
    let (_, mut step) = session.load(plan, &mut |_| {})?;
    step.name = "load".into();
    for check in shape(&step) {
        draft.check(CheckedFigure {
            name: format!("{label}: {}", check.name),
            ..check
        });
    }
    draft.push(&key, step);
    journal.save(draft);
    Ok(())
}
