//! Bars that a user sets for a run, `--threshold "READ p99<5ms"`: each step that has the figure is checked, and one that
//! misses its bar makes the exit code 1.

use crate::report::{CheckedFigure, MeasuredStep, Report};
use crate::terms::pause;

/// `[STEP:][KIND ]FIGURE<VALUE` or `…>VALUE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// Only steps whose names hold it.
    step: Option<String>,
    /// Only this kind of operation.
    kind: Option<String>,
    figure: Figure,
    below: bool,
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// Operations a second.
    Rate,
    /// Milliseconds.
    Mean,
    Max,
    Percentile(f64),
    /// CPU microseconds of the server an operation.
    Cpu,
}

/// A threshold from the command line.
pub fn threshold(text: &str) -> Result<Threshold, String> {
    let wrong = || {
        format!(
            "'{text}' is not a threshold (such as \"p99<5ms\", \"READ p99.9<20ms\", \"C.S5: rate>10000\", \"cpu<30\")"
        )
    };
    let at = text.find(['<', '>']).ok_or_else(wrong)?;
    let (left, value) = (text[..at].trim(), text[at + 1..].trim());
    let (step, left) = match left.rsplit_once(':') {
        Some((step, left)) => (Some(step.trim().to_string()), left.trim()),
        None => (None, left),
    };
    let (kind, name) = match left.rsplit_once(' ') {
        Some((kind, name)) => (Some(kind.trim().to_string()), name),
        None => (None, left),
    };
    let percentile = |p: &str| p.parse().ok().filter(|p| (0.0..=100.0).contains(p));
    let figure = match name {
        "rate" => Figure::Rate,
        "mean" => Figure::Mean,
        "max" => Figure::Max,
        "cpu" => Figure::Cpu,
        p => {
            let p = p.strip_prefix('p').and_then(percentile);
            Figure::Percentile(p.ok_or_else(wrong)?)
        }
    };
    let value = match figure {
        Figure::Rate | Figure::Cpu => value.parse().map_err(|_| wrong())?,
        _ => pause(value).map_err(|_| wrong())?.as_secs_f64() * 1e3,
    };
    Ok(Threshold {
        step,
        kind,
        figure,
        below: text.as_bytes()[at] == b'<',
        value,
    })
}

impl Threshold {
    fn of_kind(&self, s: &MeasuredStep, kind: &str) -> Option<f64> {
        let l = s.latency.get(kind)?;
        Some(match self.figure {
            Figure::Mean => l.mean_us / 1e3,
            Figure::Max => l.max_us / 1e3,
            Figure::Percentile(p) => l.histogram().ok()?.value_at_percentile(p) as f64 / 1e6,
            Figure::Rate | Figure::Cpu => return None,
        })
    }

    /// Its checks on a step: one, or one for each kind of operation.
    fn on(&self, s: &MeasuredStep) -> Vec<(String, f64)> {
        match self.figure {
            Figure::Rate => vec![(String::new(), s.per_second)],
            Figure::Cpu => s
                .server_cpu_us
                .map(|c| (String::new(), c))
                .into_iter()
                .collect(),
            _ => {
                let wanted = |k: &&String| self.kind.as_ref().is_none_or(|w| w == *k);
                let kinds = s.latency.keys().filter(wanted);
                let one = |k: &String| Some((k.clone(), self.of_kind(s, k)?));
                kinds.filter_map(one).collect()
            }
        }
    }

    fn name(&self) -> (String, &'static str) {
        match self.figure {
            Figure::Rate => ("rate".into(), "/s"),
            Figure::Mean => ("mean".into(), "ms"),
            Figure::Max => ("max".into(), "ms"),
            Figure::Percentile(p) => (format!("p{p}"), "ms"),
            Figure::Cpu => ("server CPU".into(), "µs"),
        }
    }
}

/// The checks of all thresholds; one that no step has a figure for is missed.
pub fn checks(thresholds: &[Threshold], r: &Report) -> Vec<CheckedFigure> {
    let mut all = Vec::new();
    for t in thresholds {
        let (what, unit) = t.name();
        let before = all.len();
        let wanted = |s: &&MeasuredStep| t.step.as_ref().is_none_or(|w| s.name.contains(w));
        for s in r.steps.iter().filter(wanted) {
            for (kind, value) in t.on(s) {
                let mut name = format!("{} @{}", s.name, s.connections);
                for part in [&s.mode, &s.target].into_iter().flatten() {
                    name.push_str(&format!(", {part}"));
                }
                let name = format!("{name}: {kind} {what}").replace(":  ", ": ");
                all.push(match t.below {
                    true => CheckedFigure::at_most(&name, value, unit, t.value),
                    false => CheckedFigure::at_least(&name, value, unit, t.value),
                });
            }
        }
        if all.len() == before {
            let mut check = CheckedFigure::figure(&format!("threshold {what}"), 0.0, unit);
            check.at_least = Some(t.value);
            check.pass = false;
            all.push(check.note("no step has this figure"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Latency, histogram};

    #[test]
    fn thresholds_are_read_and_checked() {
        let mut s = MeasuredStep::example("C.S3", "T", 8, 1000.0);
        for (kind, ms) in [("READ", 2), ("UPDATE", 9)] {
            let mut h = histogram();
            h.saturating_record(ms * 1_000_000);
            s.latency.insert(kind.into(), Latency::of(&h));
        }
        let mut r = crate::report::Draft::new("run", "C.S3").report;
        r.steps.push(s);
        let passes = |text: &str| -> Vec<bool> {
            let t = threshold(text).unwrap();
            checks(&[t], &r).iter().map(|c| c.pass).collect()
        };
        assert_eq!(passes("p99<5ms"), [true, false]);
        assert_eq!(passes("READ p99<5ms"), [true]);
        assert_eq!(passes("UPDATE p99.9 < 5ms"), [false]);
        assert_eq!(passes("rate>900"), [true]);
        assert_eq!(passes("C.S3: rate > 1001"), [false]);
        // What nothing is measured for holds nothing.
        assert_eq!(passes("C.S4: rate>1"), [false]);
        assert_eq!(passes("cpu<10"), [false]);
        for wrong in ["p99", "q99<5ms", "p99<x", "rate>5ms", "p101<1s", ""] {
            assert!(threshold(wrong).is_err(), "{wrong}");
        }
    }
}
