//! What an average hides: a server that stood still, and a client that was late itself.
//!
//! A closed loop waits for a server that stands still, so few of its operations are slow, and no percentile tells of it. The
//! seconds in which hardly anything ended do, and the longest operation does.

use crate::lang::{known, tr};
use crate::measure::{Sample, median};
use crate::report::{MeasuredStep, Report};
use crate::terms::span;
use crate::text;

/// A second with less than this share of the median rate is one of standstill.
const HARDLY: f64 = 0.05;
/// Below this rate a second without an operation says nothing.
const LEAST_RATE: f64 = 50.0;
/// So much standstill is told of, in seconds.
const LEAST_SILENCE: f64 = 0.9;
/// An operation as long as this, and so many times the median, is a standstill too.
const LEAST_LONGEST: f64 = 0.5;
const LONGER: f64 = 20.0;
/// From this share of a latency on it is the client's lag that is told of, and not the server's time.
const MOSTLY: f64 = 0.5;
/// Less lag than this is no matter, in microseconds.
const LEAST_LAG_US: f64 = 1000.0;

/// A server that stood still in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Seconds in which hardly anything ended.
    pub silence: f64,
    /// Seconds of the longest operation.
    pub longest: f64,
}

impl Stall {
    /// The worst of a step's repeats.
    pub fn of(step: &MeasuredStep) -> Option<Stall> {
        let repeats = step.repeats.iter().filter_map(Stall::of_one);
        let all = repeats.chain(Stall::of_one(step));
        all.max_by(|a, b| a.time().total_cmp(&b.time()))
    }

    fn of_one(step: &MeasuredStep) -> Option<Stall> {
        let silence: f64 = silent(step).map(|s| s.seconds).sum();
        let longest = step.latency.values().map(|l| l.max_us).fold(0.0, f64::max) / 1e6;
        let stands_out = |l: &crate::measure::Latency| {
            l.max_us >= LEAST_LONGEST * 1e6 && l.max_us >= l.p50_us * LONGER && l.p50_us > 0.0
        };
        let is_long = step.latency.values().any(stands_out);
        (silence >= LEAST_SILENCE || is_long).then_some(Stall { silence, longest })
    }

    fn time(&self) -> f64 {
        self.silence.max(self.longest)
    }
}

/// The seconds of a step in which hardly anything ended.
pub fn silent(step: &MeasuredStep) -> impl Iterator<Item = &Sample> {
    let whole = step.series.iter().filter(|s| s.seconds > 0.2);
    let rates: Vec<f64> = whole.map(|s| s.operations as f64 / s.seconds).collect();
    let usual = Some(median(&rates)).filter(|r| *r >= LEAST_RATE);
    let is_silent = move |s: &&Sample| {
        usual.is_some_and(|usual| (s.operations as f64) < usual * s.seconds * HARDLY)
    };
    step.series.iter().filter(is_silent)
}

/// The ends of the seconds in which a server stood still: hardly anything ended, or what ended had waited for long.
pub fn seconds(step: &MeasuredStep) -> Vec<f64> {
    let silent: Vec<f64> = silent(step).map(|s| s.at).collect();
    let is_long = |s: &&Sample| {
        s.max_us >= LEAST_LONGEST * 1e6 && s.p50_us > 0.0 && s.max_us >= s.p50_us * LONGER
    };
    let all = step.series.iter();
    all.filter(|s| silent.contains(&s.at) || is_long(s))
        .map(|s| s.at)
        .collect()
}

/// A sentence for each target that stood still: the worst of its steps, and how many there were.
pub fn sentences(r: &Report) -> Vec<String> {
    let mut found: Vec<(&MeasuredStep, Stall, usize)> = Vec::new();
    for (step, stall) in r.steps.iter().filter_map(|s| Some((s, Stall::of(s)?))) {
        match found.iter_mut().find(|(s, _, _)| s.target == step.target) {
            Some((s, worst, n)) => {
                *n += 1;
                if stall.time() > worst.time() {
                    (*s, *worst) = (step, stall);
                }
            }
            None => found.push((step, stall, 1)),
        }
    }
    let told = found.iter().map(|(step, stall, n)| {
        let more = match n - 1 {
            0 => String::new(),
            1 => text!(" So it did in one other step."),
            more => text!(" So it did in {0} other steps.", more),
        };
        sentence(step, *stall) + &more
    });
    told.collect()
}

/// `Q stood still in C.S5: for 3.0 of 8.0 s hardly anything ended; the longest operation took 3.0 s`.
fn sentence(step: &MeasuredStep, stall: Stall) -> String {
    let who = step.target.as_deref().unwrap_or(tr("The server"));
    let how_long = span((stall.longest * 1e9) as u64);
    let name = known(&step.name);
    if stall.silence <= 0.0 {
        return text!(
            "{0} stood still in {1}: an operation took {2}.",
            who,
            name,
            how_long
        );
    }
    let (silence, all) = (
        format!("{:.1}", stall.silence),
        format!("{:.1}", step.seconds),
    );
    text!(
        "{0} stood still in {1}: for {2} of {3} s hardly anything ended; the longest operation took {4}.",
        who,
        name,
        silence,
        all,
        how_long
    )
}

/// How much of an open loop's latency was the client's own: it sent late.
pub fn lag(step: &MeasuredStep) -> Option<String> {
    let lag = step.lag.as_ref()?.p99_us;
    let worst = step.latency.values().map(|l| l.p99_us).fold(0.0, f64::max);
    let is_the_clients = lag >= LEAST_LAG_US && lag >= worst * MOSTLY;
    is_the_clients.then(|| {
        let (all, own) = (span((worst * 1e3) as u64), span((lag * 1e3) as u64));
        text!(
            "of a p99 of {0} in {1} the client itself was {2} late",
            all,
            step.name,
            own
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Latency;

    fn step(operations: &[u64], p50_us: f64, max_us: f64) -> MeasuredStep {
        let mut s = MeasuredStep::example("C.S5", "Q", 8, 1000.0);
        s.seconds = operations.len() as f64;
        s.series = operations
            .iter()
            .enumerate()
            .map(|(i, n)| Sample {
                at: i as f64 + 1.0,
                seconds: 1.0,
                operations: *n,
                ..Sample::default()
            })
            .collect();
        let latency = Latency {
            count: 1,
            p50_us,
            p99_us: max_us / 2.0,
            max_us,
            ..Latency::default()
        };
        s.latency.insert("READ".into(), latency);
        s
    }

    fn sentence_of(step: &MeasuredStep) -> Option<String> {
        Some(sentence(step, Stall::of(step)?))
    }

    #[test]
    fn a_standstill_is_told_of_however_good_the_average_is() {
        let long = step(
            &[40_000, 41_000, 0, 0, 12, 39_000, 40_000, 42_000],
            100.0,
            3e6,
        );
        let told = sentence_of(&long).unwrap();
        assert!(
            told.contains("Q stood still in C.S5: for 3.0 of 8.0 s") && told.contains("3.0"),
            "{told}"
        );
        // One of a second in the midst of two.
        let short = step(&[40_000, 20_000, 20_000, 41_000], 100.0, 1e6);
        let told = sentence_of(&short).unwrap();
        assert!(told.contains("an operation took"), "{told}");
        // One sentence for a target, about the worst of its steps.
        let mut report = crate::report::Draft::new("run", "x").report;
        report.steps = vec![short.clone(), long, short];
        let told = sentences(&report);
        assert!(
            told.len() == 1
                && told[0].contains("for 3.0 of 8.0 s")
                && told[0].contains("in 2 other steps"),
            "{told:?}"
        );
    }

    #[test]
    fn what_is_slow_by_nature_does_not_stand_still() {
        assert_eq!(
            sentence_of(&step(&[40_000, 20_000, 30_000], 100.0, 9_000.0)),
            None
        );
        assert_eq!(
            sentence_of(&step(&[1, 0, 1, 0, 2, 1], 900_000.0, 1.6e6)),
            None
        );
        assert_eq!(sentence_of(&step(&[], 0.0, 0.0)), None);
    }

    #[test]
    fn a_late_client_is_told_of() {
        let mut s = step(&[1000, 1000], 100.0, 1.684e6);
        assert_eq!(lag(&s), None);
        s.lag = Some(Latency {
            p99_us: 841_500.0,
            ..Latency::default()
        });
        let told = lag(&s).unwrap();
        assert!(told.contains("842") && told.contains("late"), "{told}");
        s.lag.as_mut().unwrap().p99_us = 90.0;
        assert_eq!(lag(&s), None);
    }
}
