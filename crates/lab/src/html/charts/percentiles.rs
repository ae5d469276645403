//! Curves of percentiles, as HdrHistogram's plotter draws them: how long the slowest of ten, a hundred, a thousand took.

use super::super::plot::{Axis, Body, Line};
use super::{Charts, grouped};
use crate::report::Step;

/// Points for each decade of the axis.
const EACH_DECADE: u32 = 12;
/// A percentile needs so many operations beyond it: of five samples there is no p99.9.
const BEYOND: f64 = 5.0;

impl Charts<'_> {
    /// Of each workload the curves of its kinds of operations: of an open loop under the load that most targets were offered,
    /// else of the most connections.
    pub(super) fn percentiles(&mut self) {
        let report = self.report;
        let many = self.many_targets();
        let open = report.steps.iter().any(|s| s.offered.is_some());
        let steps = report.steps.iter().filter(|s| s.offered.is_some() == open);
        for (name, steps) in grouped(steps, |s| s.name.clone()) {
            let load = |s: &Step| s.offered.unwrap_or(s.connections as f64);
            let most = steps.iter().map(|s| load(s)).fold(0.0, f64::max);
            let shown: Vec<&Step> = match steps.iter().any(|s| s.at.is_some()) {
                // Sizes and shards are told apart elsewhere.
                true => continue,
                false => steps
                    .into_iter()
                    .filter(|s| load(s) >= most * 0.99)
                    .collect(),
            };
            let mut lines: Vec<Line> = Vec::new();
            for s in shown {
                for (kind, latency) in &s.latency {
                    let Some(points) = curve(latency) else {
                        continue;
                    };
                    let mut said: Vec<&str> =
                        s.target.as_deref().filter(|_| many).into_iter().collect();
                    said.push(kind);
                    lines.push(Line {
                        name: said.join(" "),
                        color: if many { self.color(s) } else { lines.len() },
                        dashed: many && lines.iter().any(|l| l.color == self.color(s)),
                        points,
                        ..Line::default()
                    });
                }
            }
            if lines.is_empty() || lines.len() > 8 {
                continue;
            }
            let caption = match open {
                true => {
                    "Open loop under the greatest load offered: counted from the moment at which each operation was due."
                }
                false => "Closed loop, at the most connections: service time.",
            };
            self.push(
                &format!("percentiles-{name}"),
                format!("Latency by percentile: {name}"),
                caption,
                Axis::shares("share of operations that took no longer"),
                Axis {
                    suffix: " ms",
                    ..Axis::log("latency,", Vec::new())
                },
                Body::Lines(lines),
            );
        }
    }
}

/// Latency in milliseconds by 1 / (1 - share), as far as there are operations enough.
fn curve(latency: &crate::measure::Latency) -> Option<Vec<(f64, f64)>> {
    let h = latency.histogram().ok().filter(|h| !h.is_empty())?;
    let last = h.len() as f64 / BEYOND;
    let step = |n: u32| 10f64.powf(f64::from(n) / f64::from(EACH_DECADE));
    let places = (0..).map(step).take_while(|x| *x <= last);
    let points: Vec<(f64, f64)> = places
        .map(|x| (x, h.value_at_quantile(1.0 - 1.0 / x) as f64 / 1e6))
        .filter(|(_, ms)| *ms > 0.0)
        .collect();
    (points.len() > 1).then_some(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Latency, histogram};

    #[test]
    fn a_curve_ends_where_there_are_too_few_operations() {
        let mut h = histogram();
        for i in 1..=10_000u64 {
            h.record(i * 1000).unwrap();
        }
        let points = curve(&Latency::of(&h)).unwrap();
        let (last, ms) = points[points.len() - 1];
        assert!((1000.0..=2000.0).contains(&last), "{last}");
        assert!((9.9..=10.1).contains(&ms), "{ms}");
        let half = points.iter().find(|p| p.0 >= 2.0).unwrap();
        assert!((4.9..=5.8).contains(&half.1), "{half:?}");
        assert!(curve(&Latency::default()).is_none());
    }
}
