//! `pando lab bench`: a server against the null server, operation by operation, and against its bars.
//!
//! The server has one core and the client another. Slices of server and null server alternate in one run on preloaded
//! data, so that whatever else the machine does hits both. Two figures each: the share of the null server's throughput,
//! and CPU microseconds an operation beside the null server's. What a server works off after a slice (flushes,
//! compaction) is waited for and charged to it.

mod cases;
mod idle;
pub mod place;
pub mod recovery;
pub mod slices;
mod sweep;

use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::process::CorePlacement;
use crate::progress::say;
use crate::report::{CheckedFigure, Draft};
use crate::study::dataset::{DOCUMENT_BYTES, Payload};
use crate::terms::{count, duration};
use crate::{sheets, show};
use place::ServerSetup;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Only these (see `pando lab list`).
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// A server that runs already, bound to its core by you; else one is started.
    #[arg(long, conflicts_with = "launch")]
    pub url: Option<String>,
    /// How to start the server, {dbpath} and {port} filled in (default: this program's `serve`).
    #[arg(long)]
    pub launch: Option<String>,
    /// Documents of the data set, 1 KB each.
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Connections, where the operation does not name its own.
    #[arg(long, default_value_t = 32)]
    pub connections: usize,
    /// Length of a slice.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub slice: Duration,
    /// Pairs of slices.
    #[arg(long, default_value_t = 8)]
    pub pairs: usize,
    /// What fills the documents up.
    #[arg(long, value_enum, default_value = "text")]
    pub payload: Payload,
    /// Core of the server and of the null server (default: the first).
    #[arg(long)]
    pub server_core: Option<usize>,
    /// Core of the client (default: the last).
    #[arg(long)]
    pub client_core: Option<usize>,
    /// Compare with the null server of one event loop instead of a thread for each connection.
    #[arg(long)]
    pub event_loop: bool,
    /// Run the recovery benchmark with so many GB of incompressible data.
    #[arg(long)]
    pub recover_gb: Option<f64>,
    /// Documents a second that log and engine take in process (storage's example engine_fill with group=1000): the batch
    /// insert is compared with it.
    #[arg(long)]
    pub engine_rate: Option<f64>,
    /// Connections of the sweeps.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256"
    )]
    pub sweep: Vec<usize>,
    /// Where servers keep their data meanwhile (default: a folder in the temporary directory).
    #[arg(long)]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub to: Output,
    /// The null server as threads of this process (its CPU is then unknown).
    #[arg(long, hide = true)]
    pub in_process_null: bool,
}

/// A batch of inserts over the wire against log and engine by themselves.
const ENGINE_BAR: f64 = 0.6;

/// Benchmarks that are not one comparison.
const OTHERS: [(&str, &str); 4] = [
    (
        "sweep-read",
        "point reads at 1 to 256 connections: what is left of the peak",
    ),
    ("sweep-insert", "the same of inserts, w:1"),
    (
        "idle",
        "memory and time to readiness with an empty directory",
    ),
    (
        "recovery",
        "kill -9 under load with --recover-gb of data: readiness, acknowledged writes",
    ),
];

/// Names for `--only`, and what they are.
pub fn names() -> Vec<(&'static str, &'static str)> {
    let cases = cases::ALL.iter().map(|c| (c.name, c.title));
    cases.chain(OTHERS).collect()
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let known: Vec<&str> = names().iter().map(|(n, _)| *n).collect();
    for name in &args.only {
        if !known.contains(&name.as_str()) {
            return Err(Fault::Usage(format!(
                "{name} is not one of {}",
                known.join(", ")
            )));
        }
    }
    if args.pairs == 0 || args.connections == 0 || args.records == 0 || args.slice.is_zero() {
        return Err(Fault::Usage(
            "--pairs, --connections, --records and --slice must not be zero".into(),
        ));
    }
    crate::terms::positive("--sweep", &args.sweep)?;
    let mut bench = Bench::open(args)?;
    let done = bench.run();
    if let Err(fault) = done {
        bench.room.keep();
        return Err(fault);
    }
    let Bench { draft, journal, .. } = bench;
    Ok(journal.finish(draft, Page::None)?.passed())
}

pub(crate) struct Bench {
    args: Args,
    room: ServerSetup,
    draft: Draft,
    journal: Journal,
}

impl Bench {
    fn open(args: Args) -> Result<Bench> {
        let placement = CorePlacement::new(args.server_core, args.client_core)?;
        if !placement.apart() {
            eprintln!("warning: server and client share a core; the shares mean little");
        }
        let room = ServerSetup::new(&args, placement)?;
        let mut draft = Draft::new("bench", "bars");
        let load = draft.load();
        if load > 0.5 {
            eprintln!(
                "warning: load average {load:.1} before the start; others are using the cores"
            );
        }
        draft.set("records", args.records);
        draft.set("document_bytes", DOCUMENT_BYTES);
        draft.set("payload", format!("{:?}", args.payload).to_lowercase());
        draft.set("slice_seconds", args.slice.as_secs_f64());
        draft.set("pairs", args.pairs);
        let form = if args.event_loop {
            "event loop"
        } else {
            "threads"
        };
        draft.set("null_server", form);
        draft.set("server_core", room.placement.server);
        draft.set("client_core", room.placement.client);
        let journal = Journal::open(&mut draft, &args.to)?;
        Ok(Bench {
            args,
            room,
            draft,
            journal,
        })
    }

    /// Whether it is asked for, and not done by the run that this one goes on with.
    fn wants(&self, name: &str) -> bool {
        let draft = &self.draft;
        let only_checks = ["idle", "recovery"].contains(&name);
        let done = draft.has_comparison(name)
            || draft.report.steps.iter().any(|s| s.name == name)
            || only_checks && draft.has_check(&format!("{name}: "));
        if done {
            return false;
        }
        if self.args.only.is_empty() {
            return name != "recovery" || self.args.recover_gb.is_some();
        }
        self.args.only.iter().any(|n| n == name)
    }

    fn run(&mut self) -> Result<()> {
        self.room.placement.pin_client()?;
        if self.wants("idle") && self.can_launch("idle") {
            let checks = idle::measure(&self.room, self.args.to.quiet)?;
            checks.into_iter().for_each(|c| self.draft.check(c));
            self.journal.save(&self.draft);
        }
        let on_data = cases::ALL.iter().any(|c| self.wants(c.name))
            || self.wants("sweep-read")
            || self.wants("sweep-insert");
        if on_data && !interrupted() {
            self.on_loaded_server()?;
        }
        if self.wants("recovery") && self.can_launch("recovery") && !interrupted() {
            let gb = self.args.recover_gb.unwrap_or(5.0);
            let checks = recovery::measure(&self.room, gb, self.args.to.quiet)?;
            checks.into_iter().for_each(|c| self.draft.check(c));
        }
        Ok(())
    }

    fn can_launch(&self, name: &str) -> bool {
        if self.room.given.is_some() {
            eprintln!("{name}: skipped, since it must start and stop the server itself");
        }
        self.room.given.is_none()
    }

    /// Everything that needs the server with the data set in it.
    fn on_loaded_server(&mut self) -> Result<()> {
        let mut server = self.room.server()?;
        self.draft.report.target = Some(server.info()?);
        let stage = cases::LoadedServer::open(&self.args, &server)?;
        for case in cases::ALL {
            if !self.wants(case.name) || interrupted() {
                continue;
            }
            say(self.args.to.quiet, format_args!("{}", case.title));
            let comparison = stage.compare(&self.args, &self.room, case)?;
            if !self.args.to.quiet {
                show::print(&sheets::comparisons(std::slice::from_ref(&comparison)));
            }
            if case.name == "count-range" {
                self.draft.check(stage.count_fetches()?);
            }
            if let ("batch-insert", Some(engine)) = (case.name, self.args.engine_rate) {
                let rate = comparison.subject.per_second;
                let what = "batch-insert: share of log and engine in process";
                let note = format!("{rate:.0} of {engine:.0} documents/s");
                let check = CheckedFigure::at_least(what, rate / engine, "", ENGINE_BAR).note(note);
                self.draft.check(check);
            }
            self.draft.push_comparison(comparison);
            self.journal.save(&self.draft);
        }
        for (name, inserting) in [("sweep-read", false), ("sweep-insert", true)] {
            if self.wants(name) && !interrupted() {
                let (steps, checks) = sweep::measure(&self.args, &stage, name, inserting)?;
                for step in steps {
                    let key = format!("{name} / {}", step.connections);
                    self.draft.push(&key, step);
                }
                checks.into_iter().for_each(|c| self.draft.check(c));
                self.journal.save(&self.draft);
            }
        }
        server.stop();
        Ok(())
    }
}
