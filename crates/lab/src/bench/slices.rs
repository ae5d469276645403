//! Two sides in alternating slices: A B, B A, A B … , and what comes of it.

use crate::fault::Result;
use crate::fleet::{Fleet, Outcome, interrupted};
use crate::lane::Workload;
use crate::measure::{Latency, histogram, median, median_interval};
use crate::process::cpu_time;
use crate::report::{Comparison, Side};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// How long what a slice left behind (flushes, compaction) may take.
const SETTLE: Duration = Duration::from_secs(10);
const QUIET_FOR: Duration = Duration::from_millis(50);
/// Below this share of a core a server counts as idle.
const QUIET_SHARE: f64 = 0.05;

/// One side: connections to a server, and what its slices gave.
pub struct Contender<W> {
    fleet: Fleet<W>,
    pid: Option<u32>,
    operations: u64,
    elapsed: Duration,
    client_cpu: Duration,
    cpu: Option<Duration>,
    rates: Vec<f64>,
    costs: Vec<f64>,
    latency: Histogram<u64>,
}

impl<W: Workload> Contender<W> {
    pub fn new(fleet: Fleet<W>, pid: Option<u32>) -> Contender<W> {
        Contender {
            fleet,
            pid,
            operations: 0,
            elapsed: Duration::ZERO,
            client_cpu: Duration::ZERO,
            cpu: Some(Duration::ZERO),
            rates: Vec::new(),
            costs: Vec::new(),
            latency: histogram(),
        }
    }

    fn run(&mut self, slice: Duration) -> Result<(Outcome, Option<Duration>)> {
        let before = self.pid.and_then(cpu_time);
        let outcome = self.fleet.run_quietly(Some(slice))?;
        if let Some(pid) = self.pid {
            settle(pid);
        }
        let after = self.pid.and_then(cpu_time);
        let spent = before.zip(after).map(|(b, a)| a.saturating_sub(b));
        Ok((outcome, spent))
    }

    fn slice(&mut self, slice: Duration) -> Result<()> {
        let (outcome, spent) = self.run(slice)?;
        self.operations += outcome.operations;
        self.elapsed += outcome.elapsed;
        self.client_cpu += outcome.client_cpu;
        self.cpu = self.cpu.zip(spent).map(|(sum, s)| sum + s);
        self.rates.push(outcome.rate());
        let operations = outcome.operations.max(1) as f64;
        self.costs
            .extend(spent.map(|s| s.as_secs_f64() * 1e6 / operations));
        for (_, h) in &outcome.kinds {
            // Same bounds on both sides.
            let _ = self.latency.add(h);
        }
        Ok(())
    }

    fn side(&self) -> Side {
        let operations = self.operations.max(1) as f64;
        let seconds = self.elapsed.as_secs_f64();
        Side {
            operations: self.operations,
            seconds,
            per_second: median(&self.rates),
            slices_per_second: self.rates.clone(),
            slices_cpu_us: self.costs.clone(),
            cpu_us: self.cpu.map(|c| c.as_secs_f64() * 1e6 / operations),
            client_cpu_us: self.client_cpu.as_secs_f64() * 1e6 / operations,
            client_busy: self.client_cpu.as_secs_f64() / seconds.max(1e-9),
            latency: Latency::of(&self.latency),
        }
    }
}

/// Waits until the process has been idle for a moment.
pub fn settle(pid: u32) {
    let deadline = Instant::now() + SETTLE;
    let (mut at, mut spent) = (Instant::now(), cpu_time(pid));
    while Instant::now() < deadline {
        std::thread::sleep(QUIET_FOR);
        let (now, then) = (Instant::now(), cpu_time(pid));
        let Some((before, after)) = spent.zip(then) else {
            return;
        };
        let busy = after.saturating_sub(before).as_secs_f64() / (now - at).as_secs_f64();
        if busy < QUIET_SHARE {
            return;
        }
        (at, spent) = (now, then);
    }
}

/// Alternates the two for `pairs` pairs after one unmeasured slice each; the caller fills in names and bars.
pub fn alternate<W: Workload>(
    subject: &mut Contender<W>,
    reference: &mut Contender<W>,
    slice: Duration,
    pairs: usize,
) -> Result<Comparison> {
    let warmup = slice.min(Duration::from_secs(1));
    subject.run(warmup)?;
    reference.run(warmup)?;
    for pair in 0..pairs {
        if interrupted() && pair > 0 {
            break;
        }
        if pair % 2 == 0 {
            subject.slice(slice)?;
            reference.slice(slice)?;
        } else {
            reference.slice(slice)?;
            subject.slice(slice)?;
        }
    }
    let shares: Vec<f64> = subject
        .rates
        .iter()
        .zip(&reference.rates)
        .map(|(s, r)| s / r)
        .collect();
    let (subject, reference) = (subject.side(), reference.side());
    Ok(Comparison {
        slice_seconds: slice.as_secs_f64(),
        share: median(&shares),
        share_interval: median_interval(&shares),
        cpu_ratio: subject.cpu_us.zip(reference.cpu_us).map(|(s, r)| s / r),
        subject,
        reference,
        ..Comparison::default()
    })
}
