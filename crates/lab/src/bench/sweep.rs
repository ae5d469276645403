//! Throughput by number of connections: the peak, and the rest of it with very many.

use super::Args;
use super::cases::LoadedServer;
use super::slices::settle;
use crate::fault::Result;
use crate::fleet::{Fleet, RunOutcome, interrupted};
use crate::measure::median;
use crate::process::cpu_time;
use crate::progress::say;
use crate::report::{CheckedFigure, MeasuredStep};
use crate::study::operation::{StudyOperation, Work};
use crate::terms::WriteDurability;
use std::time::Duration;

/// Connections, and the least share of the peak there.
const BARS: [(usize, f64); 2] = [(128, 0.95), (256, 0.90)];
/// How many turns each number of connections gets.
const ROUNDS: usize = 3;

struct Point {
    connections: usize,
    fleet: Fleet<Work>,
    rates: Vec<f64>,
    all: Option<RunOutcome>,
    cpu: Option<Duration>,
}

pub fn measure(
    args: &Args,
    stage: &LoadedServer<'_>,
    name: &str,
    inserting: bool,
) -> Result<(Vec<MeasuredStep>, Vec<CheckedFigure>)> {
    let durability = WriteDurability::W1;
    let operation = if inserting {
        StudyOperation::Insert {
            durability,
            batch: 1,
        }
    } else {
        StudyOperation::PointRead
    };
    let mut points = Vec::new();
    for &connections in &args.sweep {
        let fleet = Fleet::connect(stage.target(), connections, 1, |_, _| {
            Work::new(&stage.place, operation, connections as u64)
        })?;
        points.push(Point {
            connections,
            fleet,
            rates: Vec::new(),
            all: None,
            cpu: None,
        });
    }
    for round in 0..ROUNDS {
        say(
            args.to.quiet,
            format_args!("{name}: round {} of {ROUNDS}", round + 1),
        );
        for p in &mut points {
            if !interrupted() {
                p.turn(stage.pid(), args.slice)?;
            }
        }
    }
    points.retain(|p| !p.rates.is_empty());
    let peak = points
        .iter()
        .map(|p| median(&p.rates))
        .fold(f64::NAN, f64::max);
    let mut steps = Vec::new();
    let mut checks = Vec::new();
    for p in &points {
        let Some(outcome) = &p.all else { continue };
        let mut step = MeasuredStep::new(name, p.connections, 1, outcome, p.cpu);
        step.per_second = median(&p.rates);
        step.durability = inserting.then(|| durability.name().to_string());
        steps.push(step);
    }
    for (connections, bar) in BARS {
        if let Some(p) = points.iter().find(|p| p.connections == connections) {
            let share = median(&p.rates) / peak;
            let what = format!("{name}: share of the peak at {connections} connections");
            let note = format!("peak {peak:.0}/s");
            checks.push(CheckedFigure::at_least(&what, share, "", bar).note(note));
        }
    }
    Ok((steps, checks))
}

impl Point {
    fn turn(&mut self, pid: Option<u32>, slice: Duration) -> Result<()> {
        // A short run first, so that connections that idled through the others' turns are awake.
        self.fleet.run_quietly(Some(slice / 10))?;
        let before = pid.and_then(cpu_time);
        let outcome = self.fleet.run_quietly(Some(slice))?;
        if let Some(pid) = pid {
            settle(&[pid]);
        }
        let spent = before
            .zip(pid.and_then(cpu_time))
            .map(|(b, a)| a.saturating_sub(b));
        self.rates.push(outcome.rate());
        match &mut self.all {
            None => {
                self.all = Some(outcome);
                self.cpu = spent;
            }
            Some(all) => {
                all.operations += outcome.operations;
                all.requests += outcome.requests;
                all.elapsed += outcome.elapsed;
                all.client_cpu += outcome.client_cpu;
                for ((_, sum), (_, one)) in all.kinds.iter_mut().zip(&outcome.kinds) {
                    // Same bounds.
                    let _ = sum.add(one);
                }
                self.cpu = self.cpu.zip(spent).map(|(a, b)| a + b);
            }
        }
        Ok(())
    }
}
