//! `pando lab sweep`: one workload by number of connections, its peak and its knee, and then the response times at 50, 70
//! and 90% of the peak in an open loop; of several targets the least peak, so that all are offered the same. The two kinds of figures are never mixed: a step either has a rate offered or not.

use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::{self, say};
use crate::rates::peak_and_knee;
use crate::repeat::{Repeat, turns};
use crate::report::{CheckedFigure, Draft, MeasuredStep};
use crate::targets::local::given_or_own;
use crate::terms::{WriteDurability, count, duration, grouped, positive};
use crate::ycsb::session::StepPlan;
use crate::ycsb::{Session, scenario};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// A built-in scenario (see `pando lab list`).
    #[arg(default_value = "C.S5")]
    pub workload: String,
    /// Targets, which take turns; those that do not answer are skipped.
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
    /// Percent of the least peak at which response times are taken; none with 0.
    #[arg(long, value_delimiter = ',', default_value = "50,70,90")]
    pub latency: Vec<u32>,
    /// Random gaps between the operations of the open loop instead of equal ones.
    #[arg(long)]
    pub poisson: bool,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    /// Threads of the load client (default: one a core).
    #[arg(long, default_value_t = 0)]
    pub client_threads: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

/// Turns of each point unless the user says otherwise: a knee needs intervals.
const TURNS: usize = 3;

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &args.connections)?;
    if args.latency.iter().any(|p| *p > 150) || args.duration.is_zero() {
        return Err(Fault::Usage(
            "--latency takes percents up to 150, --duration more than nothing".into(),
        ));
    }
    let spec = scenario::spec(&args.workload, args.records)?;
    let (own, targets) = given_or_own(&args.url, args.to.quiet)?;
    let repeats = args.repeat.times(targets.len())?;
    let repeats = args.repeat.repeat.map_or(repeats.max(TURNS), |n| n);
    let mut draft = Draft::new("sweep", &args.workload.to_ascii_uppercase());
    draft.set("records", args.records);
    draft.set("durability", args.durability.name());
    draft.set("seconds_a_turn", args.duration.as_secs_f64());
    draft.repeated(repeats);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    // The open loops take twice as long as a turn.
    let each = args.connections.len() + 2 * args.latency.iter().filter(|p| **p > 0).count();
    progress::course((each * targets.len() * repeats).saturating_sub(draft.done()) as f64);
    let mut sessions = Vec::new();
    for target in targets {
        let name = args.workload.to_ascii_uppercase();
        let mut session = Session::open(target, &name, spec.clone(), args.durability)?;
        draft.tell_apart(&mut session.info);
        session.quiet = args.to.quiet;
        session.client_threads = args.client_threads;
        draft.add_target(session.info.clone());
        sessions.push(session);
    }
    let sweep = Turns {
        connections: &args.connections,
        duration: args.duration,
        repeats,
        latency: &args.latency,
        poisson: args.poisson,
        quiet: args.to.quiet,
    };
    sweep.run(&mut sessions, &mut draft, &mut journal)?;
    drop(own);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// A workload by connections, then by load.
pub struct Turns<'a> {
    pub connections: &'a [usize],
    pub duration: Duration,
    pub repeats: usize,
    pub latency: &'a [u32],
    pub poisson: bool,
    pub quiet: bool,
}

impl Turns<'_> {
    /// All sessions are of one workload; in each repeat each has its turn.
    pub fn run(
        &self,
        sessions: &mut [Session],
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        for (repeat, i) in turns(self.repeats, sessions.len()) {
            draft.begin(repeat);
            for &n in self.connections {
                self.closed(&mut sessions[i], n, repeat, draft, journal)?;
            }
        }
        // The rates offered are shares of peaks, which are medians.
        draft.gather()?;
        journal.save(draft);
        let mut peaks = Vec::new();
        for session in &*sessions {
            peaks.push(peak(session, draft));
        }
        let Some((connections, rate)) = common_peak(&peaks) else {
            return draft.gather();
        };
        for (repeat, i) in turns(self.repeats, sessions.len()) {
            if peaks[i].is_none() {
                continue;
            }
            draft.begin(repeat);
            for &percent in self.latency.iter().filter(|p| **p > 0) {
                let rate = rate * f64::from(percent) / 100.0;
                let plan = StepPlan {
                    rate: Some(rate),
                    poisson: self.poisson,
                    ..StepPlan::timed(connections.max(8), self.duration * 2)
                };
                self.open(&mut sessions[i], percent, plan, draft, journal)?;
            }
        }
        draft.gather()
    }

    /// One turn of a point in a closed loop.
    fn closed(
        &self,
        session: &mut Session,
        n: usize,
        repeat: usize,
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let (label, name) = (session.info.label(), session.name.clone());
        let key = format!("{label} / {name} / {n}");
        if interrupted() || draft.has(&key) || !session.prepare(false)? {
            return Ok(());
        }
        say(
            self.quiet,
            format_args!(
                "{label}, {name}: {n} connection(s), turn {} of {}",
                repeat + 1,
                self.repeats
            ),
        );
        let plan = StepPlan {
            warmup: self.duration / 5,
            ..StepPlan::timed(n, self.duration)
        };
        progress::step(1.0);
        let (_, turn) = session.run(plan, &mut |_| {})?;
        draft.push(&key, turn);
        journal.save(draft);
        Ok(())
    }

    /// One turn of an open loop at a share of the peak.
    fn open(
        &self,
        session: &mut Session,
        percent: u32,
        plan: StepPlan,
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let (label, name) = (session.info.label(), session.name.clone());
        let key = format!("{label} / {name} / {percent}%");
        if interrupted() || draft.has(&key) || !session.prepare(false)? {
            return Ok(());
        }
        let of = match draft.report.targets.len() {
            0 | 1 => "peak",
            _ => "least peak",
        };
        say(
            self.quiet,
            format_args!("{label}, {name}: response times at {percent}% of the {of}"),
        );
        progress::step(2.0);
        let (_, mut step) = session.run(plan, &mut |_| {})?;
        step.mode = Some(format!("{percent}% of the {of}"));
        draft.push(&key, step);
        journal.save(draft);
        Ok(())
    }
}

/// What all targets are offered a share of: the least rate of a peak, from as many connections as any needs for its own.
fn common_peak(peaks: &[Option<(usize, f64)>]) -> Option<(usize, f64)> {
    let found = || peaks.iter().flatten();
    let connections = found().map(|p| p.0).max()?;
    let rate = found().map(|p| p.1).min_by(f64::total_cmp)?;
    Some((connections, rate))
}

/// Connections and rate of a session's peak; peak and knee become figures of the result.
fn peak(session: &Session, draft: &mut Draft) -> Option<(usize, f64)> {
    let (label, name) = (session.info.label(), &session.name);
    let own = |s: &&MeasuredStep| {
        s.name == *name && s.target.as_deref() == Some(&label) && s.offered.is_none()
    };
    let points: Vec<&MeasuredStep> = draft.report.steps.iter().filter(own).collect();
    let (peak, knee) = peak_and_knee(&points)?;
    let found = (peak.connections, peak.per_second);
    let said = [("peak", Some(peak)), ("knee", knee)];
    let of = |(what, s): (&str, Option<&MeasuredStep>)| {
        let s = s?;
        let unit = match s.connections {
            1 => "connection",
            _ => "connections",
        };
        let name = format!("{label}, {name}: {what}");
        let figure = CheckedFigure::figure(&name, s.connections as f64, unit);
        Some(figure.note(format!("{}/s", grouped(s.per_second))))
    };
    let checks: Vec<CheckedFigure> = said.into_iter().filter_map(of).collect();
    draft
        .report
        .checks
        .retain(|c| checks.iter().all(|n| n.name != c.name));
    draft.report.checks.extend(checks);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_targets_are_offered_a_share_of_the_least_peak() {
        let peaks = [Some((8, 5000.0)), None, Some((64, 1200.0))];
        assert_eq!(common_peak(&peaks), Some((64, 1200.0)));
        assert_eq!(common_peak(&[None]), None);
    }
}
