//! `pando lab sweep`: one workload by number of connections, its peak and its knee, and then the response times at 50, 70
//! and 90% of the peak in an open loop. The two kinds of figures are never mixed: a step either has a rate offered or not.

use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::{self, say};
use crate::rates::peak_and_knee;
use crate::report::{Check, Draft, Step};
use crate::targets::local::given_or_own;
use crate::terms::{Durability, count, duration, grouped, positive};
use crate::ycsb::session::Plan;
use crate::ycsb::{Session, scenario};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// A built-in scenario (see `pando lab list`).
    #[arg(default_value = "C.S5")]
    pub workload: String,
    /// Targets, one after the other; those that do not answer are skipped.
    #[arg(long)]
    pub url: Vec<String>,
    /// Records: 1000, 50k, 5m …
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Numbers of connections, one after the other.
    #[arg(
        long,
        alias = "threads",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256"
    )]
    pub connections: Vec<usize>,
    /// Length of one turn of a point.
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub duration: Duration,
    /// Turns of each point; they alternate, so that what else the machine does hits all.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Percent of the peak at which response times are taken; none with 0.
    #[arg(long, value_delimiter = ',', default_value = "50,70,90")]
    pub latency: Vec<u32>,
    /// Random gaps between the operations of the open loop instead of equal ones.
    #[arg(long)]
    pub poisson: bool,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: Durability,
    /// Threads of the load client (default: one a core).
    #[arg(long, default_value_t = 0)]
    pub client_threads: usize,
    #[command(flatten)]
    pub to: Output,
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &args.connections)?;
    positive("--rounds", &[args.rounds])?;
    if args.latency.iter().any(|p| *p > 150) || args.duration.is_zero() {
        return Err(Fault::Usage(
            "--latency takes percents up to 150, --duration more than nothing".into(),
        ));
    }
    let spec = scenario::spec(&args.workload, args.records)?;
    let (own, targets) = given_or_own(&args.url, args.to.quiet)?;
    let mut draft = Draft::new("sweep", &args.workload.to_ascii_uppercase());
    draft.set("records", args.records);
    draft.set("durability", args.durability.name());
    draft.set("rounds", args.rounds);
    draft.set("seconds_a_turn", args.duration.as_secs_f64());
    let mut journal = Journal::open(&mut draft, &args.to)?;
    // The open loops take twice as long as a turn.
    let turns = args.connections.len() * args.rounds;
    let each = turns + 2 * args.latency.iter().filter(|p| **p > 0).count();
    let done = draft.report.steps.len() * args.rounds + draft.report.turns.len();
    progress::course((each * targets.len()).saturating_sub(done) as f64);
    for target in targets {
        let name = args.workload.to_ascii_uppercase();
        let mut session = Session::open(target, &name, spec.clone(), args.durability)?;
        draft.tell_apart(&mut session.info);
        session.quiet = args.to.quiet;
        session.client_threads = args.client_threads;
        draft.add_target(session.info.clone());
        let turns = Turns {
            connections: &args.connections,
            duration: args.duration,
            rounds: args.rounds,
            latency: &args.latency,
            poisson: args.poisson,
            quiet: args.to.quiet,
        };
        turns.run(&mut session, &mut draft, &mut journal)?;
    }
    drop(own);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// A workload by connections, then by load.
pub struct Turns<'a> {
    pub connections: &'a [usize],
    pub duration: Duration,
    pub rounds: usize,
    pub latency: &'a [u32],
    pub poisson: bool,
    pub quiet: bool,
}

impl Turns<'_> {
    pub fn run(
        &self,
        session: &mut Session,
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let label = session.info.label();
        let name = session.name.clone();
        let key = |n: usize| format!("{label} / {name} / {n}");
        let left: Vec<usize> = self
            .connections
            .iter()
            .copied()
            .filter(|&n| !draft.has(&key(n)))
            .collect();
        for round in 0..self.rounds {
            for &n in &left {
                if interrupted() {
                    break;
                }
                if draft.has_turn(&key(n), round) {
                    continue;
                }
                if !session.prepare(false)? {
                    break;
                }
                say(
                    self.quiet,
                    format_args!(
                        "{label}, {name}: {n} connection(s), turn {} of {}",
                        round + 1,
                        self.rounds
                    ),
                );
                let plan = Plan {
                    warmup: self.duration / 5,
                    ..Plan::timed(n, self.duration)
                };
                progress::step(1.0);
                let (_, turn) = session.run(plan, &mut |_| {})?;
                draft.push_turn(&key(n), round, turn);
                journal.save(draft);
            }
        }
        for n in left {
            let key = key(n);
            let turns = draft.turns(&key, self.rounds);
            let whole = turns.len() == self.rounds && !turns.iter().any(|t| t.interrupted);
            if let Some(mut step) = Step::merged(turns)? {
                step.interrupted |= !whole;
                draft.push(&key, step);
            }
            if whole {
                draft.forget_turns(&key, self.rounds);
            }
        }
        journal.save(draft);
        let own = |s: &&Step| {
            s.name == name && s.target.as_deref() == Some(&label) && s.offered.is_none()
        };
        let points: Vec<Step> = draft.report.steps.iter().filter(own).cloned().collect();
        let list: Vec<&Step> = points.iter().collect();
        let Some((peak, knee)) = peak_and_knee(&list) else {
            return Ok(());
        };
        for (what, s) in [("peak", peak), ("knee", knee)] {
            let note = format!("{}/s", grouped(s.per_second));
            let name = format!("{label}, {name}: {what}");
            let unit = if s.connections == 1 {
                "connection"
            } else {
                "connections"
            };
            draft.check(Check::figure(&name, s.connections as f64, unit).note(note));
        }
        for &percent in self.latency.iter().filter(|p| **p > 0) {
            let key = format!("{label} / {name} / {percent}%");
            if interrupted() || draft.has(&key) {
                continue;
            }
            if !session.prepare(false)? {
                break;
            }
            say(
                self.quiet,
                format_args!("{label}, {name}: response times at {percent}% of the peak"),
            );
            progress::step(2.0);
            let rate = peak.per_second * f64::from(percent) / 100.0;
            let plan = Plan {
                rate: Some(rate),
                poisson: self.poisson,
                ..Plan::timed(peak.connections.max(8), self.duration * 2)
            };
            let (_, mut step) = session.run(plan, &mut |_| {})?;
            step.mode = Some(format!("{percent}% of the peak"));
            draft.push(&key, step);
            journal.save(draft);
        }
        Ok(())
    }
}
