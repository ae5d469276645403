//! Two sides in alternating slices: A B, B A, A B … , and what comes of it; or in slices cut into alternating turns.

use crate::fault::Result;
use crate::fleet::{Fleet, RunOutcome, interrupted};
use crate::lane::Workload;
use crate::measure::{Latency, histogram, median, median_interval};
use crate::process::cpu_time;
use crate::report::{Side, SideComparison};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// How long what a slice left behind (flushes, compaction) may take.
const SETTLE: Duration = Duration::from_secs(10);
const QUIET_FOR: Duration = Duration::from_millis(50);
/// Below this share of a core servers count as idle.
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

    /// Goes on with other connections, to a process that took the place of the last.
    pub fn go_on(&mut self, fleet: Fleet<W>, pid: Option<u32>) {
        self.fleet = fleet;
        self.pid = pid;
    }

    /// A slice that is not measured.
    pub fn warm_up(&mut self, slice: Duration) -> Result<()> {
        self.run(slice).map(drop)
    }

    fn run(&mut self, slice: Duration) -> Result<(RunOutcome, Option<Duration>)> {
        let before = self.pid.and_then(cpu_time);
        let outcome = self.fleet.run_quietly(Some(slice))?;
        settle(self.pid.as_slice());
        let after = self.pid.and_then(cpu_time);
        let spent = before.zip(after).map(|(b, a)| a.saturating_sub(b));
        Ok((outcome, spent))
    }

    fn slice(&mut self, slice: Duration) -> Result<()> {
        let (outcome, spent) = self.run(slice)?;
        self.count(&outcome);
        self.close(outcome.operations, outcome.elapsed, spent);
        Ok(())
    }

    /// A part of a slice: its operations and time.
    fn turn(&mut self, turn: Duration) -> Result<(u64, Duration)> {
        let outcome = self.fleet.run_quietly(Some(turn))?;
        self.count(&outcome);
        Ok((outcome.operations, outcome.elapsed))
    }

    fn count(&mut self, outcome: &RunOutcome) {
        self.operations += outcome.operations;
        self.elapsed += outcome.elapsed;
        self.client_cpu += outcome.client_cpu;
        for (_, h) in &outcome.kinds {
            // Same bounds on both sides.
            let _ = self.latency.add(h);
        }
    }

    /// Ends a slice.
    fn close(&mut self, operations: u64, elapsed: Duration, spent: Option<Duration>) {
        self.cpu = self.cpu.zip(spent).map(|(sum, s)| sum + s);
        self.rates
            .push(operations as f64 / elapsed.as_secs_f64().max(1e-9));
        let operations = operations.max(1) as f64;
        self.costs
            .extend(spent.map(|s| s.as_secs_f64() * 1e6 / operations));
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

/// Waits until the processes have been idle for a moment.
pub fn settle(pids: &[u32]) {
    let spent = || -> Option<Duration> { pids.iter().map(|p| cpu_time(*p)).sum() };
    let deadline = Instant::now() + SETTLE;
    let (mut at, mut before) = (Instant::now(), spent());
    while Instant::now() < deadline && !pids.is_empty() {
        std::thread::sleep(QUIET_FOR);
        let (now, then) = (Instant::now(), spent());
        let Some((b, a)) = before.zip(then) else {
            return;
        };
        let busy = a.saturating_sub(b).as_secs_f64() / (now - at).as_secs_f64();
        if busy < QUIET_SHARE {
            return;
        }
        (at, before) = (now, then);
    }
}

/// Alternates the two for `pairs` pairs after one unmeasured slice each.
pub fn alternate<W: Workload>(
    subject: &mut Contender<W>,
    reference: &mut Contender<W>,
    slice: Duration,
    pairs: usize,
) -> Result<SideComparison> {
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
    Ok(comparison(subject, reference, slice))
}

/// One slice of each, cut into turns of about the length given that alternate, so that what else the machine does meets
/// both. CPU is read over all of it: what a turn leaves to be done in the other's is still its own server's.
pub fn pair<W: Workload>(
    a: &mut Contender<W>,
    b: &mut Contender<W>,
    slice: Duration,
    turn: Duration,
) -> Result<()> {
    let turns = (slice.as_secs_f64() / turn.as_secs_f64()).round().max(1.0) as u32;
    let turn = slice / turns;
    let before = [a.pid.and_then(cpu_time), b.pid.and_then(cpu_time)];
    let mut sums = [(0, Duration::ZERO); 2];
    for i in 0..turns {
        let order = if i % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let (operations, elapsed) = if side == 0 {
                a.turn(turn)?
            } else {
                b.turn(turn)?
            };
            sums[side].0 += operations;
            sums[side].1 += elapsed;
        }
    }
    let pids: Vec<u32> = [a.pid, b.pid].into_iter().flatten().collect();
    settle(&pids);
    let [spent_a, spent_b] = [(a.pid, before[0]), (b.pid, before[1])].map(|(pid, before)| {
        let after = pid.and_then(cpu_time);
        before.zip(after).map(|(b, a)| a.saturating_sub(b))
    });
    a.close(sums[0].0, sums[0].1, spent_a);
    b.close(sums[1].0, sums[1].1, spent_b);
    Ok(())
}

/// What the slices gave; the caller fills in names and bars.
pub fn comparison<W: Workload>(
    subject: &Contender<W>,
    reference: &Contender<W>,
    slice: Duration,
) -> SideComparison {
    let shares: Vec<f64> = subject
        .rates
        .iter()
        .zip(&reference.rates)
        .map(|(s, r)| s / r)
        .collect();
    let (subject, reference) = (subject.side(), reference.side());
    SideComparison {
        slice_seconds: slice.as_secs_f64(),
        share: median(&shares),
        share_interval: median_interval(&shares),
        cpu_ratio: subject.cpu_us.zip(reference.cpu_us).map(|(s, r)| s / r),
        subject,
        reference,
        ..SideComparison::default()
    }
}
