//! `pando lab study pains`: study E, what the authors of the published studies complained of, as tests.
//!
//! Flatness and spikes of a long load, inserts with an own key against a generated one, inserts by threads, journal modes,
//! restart and the first minute, recovery after `kill -9` in mid-load. The last two start and stop a server of their own;
//! with `--url` they are left out with one line.

use super::keys;
use crate::bench::place::{Server, ServerSetup};
use crate::bench::recovery;
use crate::cgroup::MemoryLimit;
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::measure::{Sample, median};
use crate::null::Form;
use crate::output::{Journal, Output, Page};
use crate::process::CorePlacement;
use crate::progress::say;
use crate::repeat::Repeat;
use crate::report::{CheckedFigure, Draft, MeasuredStep};
use crate::targets::local::own_server;
use crate::targets::{self, KeyRole, TargetDatabase};
use crate::terms::{WriteDurability, bytes, bytes_of, count, duration, positive};
use crate::ycsb::session::StepPlan;
use crate::ycsb::spec::RequestDistribution;
use crate::ycsb::{Session, Spec, scenario};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// A target that runs already; without one this program's own server is started.
    #[arg(long)]
    pub url: Option<String>,
    /// How to start the server, {dbpath} and {port} filled in (default: this program's `serve`).
    #[arg(long, conflicts_with = "url")]
    pub launch: Option<String>,
    /// Only these: flatness, ids, threads, journal, restart, recovery.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Records of 1 KB.
    #[arg(long, default_value = "200k", value_parser = count)]
    pub records: u64,
    /// Memory that the server started here may use, page cache included (a memory cgroup); the published condition is
    /// data of four times it.
    #[arg(long, value_parser = bytes_of, conflicts_with = "url")]
    pub memory: Option<u64>,
    /// Connections of the flatness, journal and restart tests.
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Connections of the threads test.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256"
    )]
    pub threads: Vec<usize>,
    /// Length of each point of the threads and journal tests.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub duration: Duration,
    /// Length of the reads before and after the restart.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub after_restart: Duration,
    /// Gigabytes of the recovery test.
    #[arg(long, default_value_t = 1.0)]
    pub recover_gb: f64,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    /// Where the server keeps its data meanwhile (default: a folder in the temporary directory).
    #[arg(long)]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

const ALL: [&str; 6] = [
    "flatness", "ids", "threads", "journal", "restart", "recovery",
];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    for name in &args.only {
        if !ALL.contains(&name.as_str()) {
            return Err(Fault::Usage(format!(
                "{name} is not one of {}",
                ALL.join(", ")
            )));
        }
    }
    positive("--threads", &args.threads)?;
    if args.connections == 0 || args.records == 0 || args.recover_gb <= 0.0 {
        return Err(Fault::Usage(
            "--connections, --records and --recover-gb must be more than zero".into(),
        ));
    }
    let mut draft = Draft::new("study", "E-pains");
    draft.set("records", args.records);
    draft.set("durability", args.durability.name());
    draft.set("connections", args.connections);
    draft.set("memory_limit", args.memory);
    let repeats = args.repeat.times(1)?;
    draft.repeated(repeats);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    for repeat in 0..repeats {
        draft.begin(repeat);
        (draft, journal) = once(&args, draft, journal)?;
    }
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// One repeat, on a server of its own where none is given.
fn once(args: &Args, draft: Draft, journal: Journal) -> Result<(Draft, Journal)> {
    let mut study = Pains::open(args, draft, journal)?;
    if let Err(fault) = study.run() {
        // A server that the memory limit ended explains more than the connection that broke.
        let ended = study.server.as_mut().and_then(Server::ended);
        return Err(ended.map_or(fault, |how| {
            let limit = args
                .memory
                .map_or(String::new(), |b| format!(" with {} of memory", bytes(b)));
            Fault::Local(format!(
                "the server ended in the middle of the run{limit} ({how})"
            ))
        }));
    }
    let Pains { draft, journal, .. } = study;
    Ok((draft, journal))
}

struct Pains<'a> {
    args: &'a Args,
    /// Where our own server runs, unless a target was given.
    room: Option<ServerSetup>,
    server: Option<Server>,
    dbpath: PathBuf,
    limit: Option<MemoryLimit>,
    target: Arc<dyn TargetDatabase>,
    draft: Draft,
    journal: Journal,
}

impl<'a> Pains<'a> {
    fn open(args: &'a Args, mut draft: Draft, journal: Journal) -> Result<Pains<'a>> {
        let (mut room, mut server, mut limit, mut dbpath) = (None, None, None, PathBuf::new());
        let target = match &args.url {
            Some(url) => targets::open(url)?,
            None => {
                let placement = CorePlacement::new(None, None)?;
                // Half of the memory allowed is for the cache; the rest is for what a server needs besides.
                let launch = match (&args.launch, args.memory) {
                    (Some(line), _) => Some(line.clone()),
                    (None, Some(bytes)) => {
                        let own = own_server()?;
                        let megabytes = (bytes / 2_000_000).max(8);
                        Some(format!(
                            "{} serve --dbpath {{dbpath}} --port {{port}} --cache {megabytes}MB",
                            own.display()
                        ))
                    }
                    (None, None) => None,
                };
                let dir = args.dir.as_deref();
                let own =
                    ServerSetup::open(None, launch.as_deref(), dir, placement, Form::Threads)?;
                dbpath = own.fresh_dbpath()?;
                let started = own.start(&dbpath, &[])?;
                if let (Some(allowed), Some(pid)) = (args.memory, started.pid) {
                    limit = match MemoryLimit::on(pid, allowed) {
                        Ok(limit) => Some(limit),
                        Err(fault) => {
                            let line = format!("memory is not limited: {fault}");
                            eprintln!("{line}");
                            draft.note(line);
                            None
                        }
                    };
                }
                let target = targets::open(&started.target.url)?;
                (room, server) = (Some(own), Some(started));
                target
            }
        };
        draft.add_target(target.info()?);
        Ok(Pains {
            args,
            room,
            server,
            dbpath,
            limit,
            target,
            draft,
            journal,
        })
    }

    fn wants(&self, name: &str) -> bool {
        !interrupted() && (self.args.only.is_empty() || self.args.only.iter().any(|n| n == name))
    }

    fn run(&mut self) -> Result<()> {
        if self.wants("flatness") {
            self.flatness()?;
        }
        if self.wants("ids") {
            self.ids()?;
        }
        if self.wants("threads") {
            self.threads()?;
        }
        if self.wants("journal") {
            self.journal_modes()?;
        }
        for name in ["restart", "recovery"] {
            if self.wants(name) && self.room.is_none() {
                let line =
                    format!("{name}: skipped, since it must start and stop the server itself");
                eprintln!("{line}");
                self.draft.note(line);
            }
        }
        if self.room.is_some() && self.wants("restart") {
            self.restart()?;
        }
        if let Some(mut server) = self.server.take() {
            server.stop();
        }
        self.limit = None;
        if let Some(room) = self.room.as_ref().filter(|_| self.wants("recovery"))
            && !self.draft.has_check("recovery: ")
        {
            let checks = recovery::measure(room, self.args.recover_gb, self.args.to.quiet)?;
            checks.into_iter().for_each(|c| self.draft.check(c));
            self.journal.save(&self.draft);
        }
        Ok(())
    }

    fn session(&self, scenario: &str, durability: WriteDurability) -> Result<Session> {
        let spec = Spec {
            table: "pains".into(),
            request: RequestDistribution::Uniform,
            ..scenario::spec(scenario, self.args.records)?
        };
        let mut session = Session::open(Arc::clone(&self.target), scenario, spec, durability)?;
        session.quiet = self.args.to.quiet;
        Ok(session)
    }

    fn push(&mut self, key: &str, step: MeasuredStep) {
        self.draft.forget(key);
        self.draft.push(key, step);
        self.journal.save(&self.draft);
    }

    /// One long load, every second kept.
    fn flatness(&mut self) -> Result<()> {
        if self.draft.has("flatness") {
            return Ok(());
        }
        say(
            self.args.to.quiet,
            format_args!("flatness: {} inserts", self.args.records),
        );
        let mut session = self.session("C.S1", self.args.durability)?;
        let plan = StepPlan {
            limit: None,
            ..StepPlan::timed(self.args.connections, Duration::ZERO)
        };
        let (_, mut step) = session.load(plan, &mut |_| {})?;
        step.name = "load".into();
        step.mode = Some("flatness".into());
        shape(&step).into_iter().for_each(|c| self.draft.check(c));
        self.push("flatness", step);
        Ok(())
    }

    /// One connection inserts with a key of its own, random in order, and with a generated one.
    fn ids(&mut self) -> Result<()> {
        let mut rates = Vec::new();
        for (mode, key) in [("id", KeyRole::Primary), ("none", KeyRole::Unkeyed)] {
            let name = format!(
                "insert, {}",
                if mode == "id" {
                    "own key"
                } else {
                    "generated key"
                }
            );
            if !self.draft.has(&name) {
                let step = keys::insert(
                    &self.target,
                    mode,
                    key,
                    self.args.records / 4 + 1,
                    self.args.durability,
                    self.args.to.quiet,
                )?;
                self.push(&name, step);
            }
            rates.push(self.draft.step(&name).map_or(f64::NAN, |s| s.per_second));
        }
        self.draft.check(CheckedFigure::figure(
            "ids: own key against generated",
            rates[0] / rates[1],
            "",
        ));
        Ok(())
    }

    fn threads(&mut self) -> Result<()> {
        for &n in &self.args.threads {
            let key = format!("threads {n}");
            if interrupted() || self.draft.has(&key) {
                continue;
            }
            say(
                self.args.to.quiet,
                format_args!("threads: inserts with {n} connection(s)"),
            );
            let mut session = self.session("C.S1", self.args.durability)?;
            session.empty()?;
            let (_, mut step) = session.run(StepPlan::timed(n, self.args.duration), &mut |_| {})?;
            step.name = "insert by threads".into();
            self.push(&key, step);
        }
        let of = |n: &usize| self.draft.step(&format!("threads {n}"));
        let steps = self.args.threads.iter().filter_map(of);
        let rates: Vec<f64> = steps.map(|s| s.per_second).collect();
        let peak = rates.iter().copied().fold(f64::NAN, f64::max);
        let last = rates.last().copied().unwrap_or(f64::NAN);
        self.draft.check(CheckedFigure::figure(
            "threads: most connections against the peak",
            last / peak,
            "",
        ));
        Ok(())
    }

    fn journal_modes(&mut self) -> Result<()> {
        for durability in [
            WriteDurability::Unack,
            WriteDurability::W1,
            WriteDurability::Majority,
            WriteDurability::Journaled,
        ] {
            let key = format!("journal {}", durability.name());
            if interrupted() || self.draft.has(&key) {
                continue;
            }
            say(
                self.args.to.quiet,
                format_args!("journal: {}", durability.name()),
            );
            let mut session = self.session("C.S1", durability)?;
            session.empty()?;
            let plan = StepPlan::timed(self.args.connections, self.args.duration);
            let mut step = match session.run(plan, &mut |_| {}) {
                Ok((_, step)) => step,
                // A database without such a mode says so.
                Err(Fault::Usage(why)) => {
                    self.draft
                        .note(format!("journal, {}: skipped ({why})", durability.name()));
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            step.name = "insert by journal mode".into();
            step.mode = Some(durability.name().into());
            self.push(&key, step);
        }
        Ok(())
    }

    /// Reads before a restart, and from the first moment after it.
    fn restart(&mut self) -> Result<()> {
        if self.draft.has("restart after") {
            return Ok(());
        }
        let mut session = self.session("C.S5", self.args.durability)?;
        if !session.prepare(false)? {
            return Ok(());
        }
        let length = self.args.after_restart;
        let mut plan = StepPlan::timed(self.args.connections, length.min(Duration::from_secs(20)));
        plan.warmup = length / 6;
        say(self.args.to.quiet, "restart: reads before");
        let (_, mut before) = session.run(plan, &mut |_| {})?;
        before.name = "reads before the restart".into();
        let steady = before.per_second;
        self.push("restart before", before);
        let Some([stopped, ready]) = self.stop_and_start()? else {
            return Ok(());
        };
        let mut session = self.session("C.S5", self.args.durability)?;
        let (_, mut after) =
            session.run(StepPlan::timed(self.args.connections, length), &mut |_| {})?;
        after.name = "reads after the restart".into();
        let of_steady = |s: &Sample| s.operations as f64 / s.seconds.max(1e-9) / steady;
        let first = after.series.first().map_or(f64::NAN, of_steady);
        let warm = after.series.iter().find(|s| of_steady(s) >= 0.9);
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let mut figures = vec![
            ("restart: stopped after", ms(stopped), "ms"),
            ("restart: ready after", ms(ready), "ms"),
            ("restart: first second against before", first, ""),
        ];
        figures.extend(warm.map(|s| ("restart: 90% of before reached after", s.at, "s")));
        for (name, value, unit) in figures {
            self.draft.check(CheckedFigure::figure(name, value, unit));
        }
        self.push("restart after", after);
        Ok(())
    }

    /// How long the server took to stop and to be ready again; none where it is not ours.
    fn stop_and_start(&mut self) -> Result<Option<[Duration; 2]>> {
        let Some(room) = &self.room else {
            return Ok(None);
        };
        say(self.args.to.quiet, "restart: stopping and starting");
        let stopping = Instant::now();
        if let Some(mut server) = self.server.take() {
            server.stop();
        }
        let stopped = stopping.elapsed();
        let server = room.start(&self.dbpath, &[])?;
        let ready = server.ready;
        if let (Some(bytes), Some(pid)) = (
            self.args.memory.filter(|_| self.limit.is_some()),
            server.pid,
        ) {
            self.limit = Some(MemoryLimit::on(pid, bytes)?);
        }
        self.target = targets::open(&server.target.url)?;
        self.server = Some(server);
        Ok(Some([stopped, ready]))
    }
}

/// What the series of a load says: flatness and spikes.
pub fn shape(step: &MeasuredStep) -> Vec<CheckedFigure> {
    let whole: Vec<&Sample> = step.series.iter().filter(|s| s.seconds > 0.5).collect();
    let rate = |s: &&Sample| s.operations as f64 / s.seconds;
    let rates: Vec<f64> = whole.iter().map(rate).collect();
    let tenth = (rates.len() / 10).max(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let mut checks = Vec::new();
    let middle = median(&rates);
    if rates.len() >= 2 {
        let first = mean(&rates[..tenth]);
        let last = mean(&rates[rates.len() - tenth..]);
        checks.push(CheckedFigure::figure(
            "flatness: last tenth of the inserts against the first",
            last / first,
            "",
        ));
        let worst = rates.iter().copied().fold(f64::INFINITY, f64::min);
        checks.push(CheckedFigure::figure(
            "spikes: worst second against the median",
            worst / middle,
            "",
        ));
        let slow = rates.iter().filter(|r| **r < middle / 2.0).count();
        checks.push(CheckedFigure::figure(
            "spikes: seconds below half the median",
            slow as f64,
            "s",
        ));
    }
    if let Some(l) = step.latency.values().max_by_key(|l| l.count) {
        checks.push(CheckedFigure::figure(
            "spikes: p99.9",
            l.p999_us / 1e3,
            "ms",
        ));
        checks.push(CheckedFigure::figure(
            "spikes: slowest insert",
            l.max_us / 1e3,
            "ms",
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_a_load_that_falls_and_stalls() {
        let rates = [100, 100, 100, 100, 100, 10, 100, 90, 80, 50];
        let series = (1..).zip(rates).map(|(at, operations)| Sample {
            at: f64::from(at),
            seconds: 1.0,
            operations,
            ..Sample::default()
        });
        let step = MeasuredStep {
            series: series.collect(),
            ..MeasuredStep::default()
        };
        let values: Vec<f64> = shape(&step).iter().map(|c| c.value).collect();
        assert_eq!(values, [0.5, 0.1, 1.0]);
        assert!(shape(&MeasuredStep::default()).is_empty());
    }
}
