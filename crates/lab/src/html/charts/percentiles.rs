//! Curves of percentiles, as HdrHistogram's plotter draws them: how long the slowest of ten, a hundred, a thousand took.

use super::super::plot::{Axis, Body, Line};
use super::{Charts, grouped};
use crate::lang::tr;
use crate::measure::{BEYOND, Sample};
use crate::report::MeasuredStep;
use crate::stall;
use crate::text;

/// Points for each decade of the axis.
const EACH_DECADE: u32 = 12;

impl Charts<'_> {
    /// Of each workload the curves of its kinds of operations: of an open loop under the load that most targets were offered,
    /// else of the most connections.
    pub(super) fn percentiles(&mut self) {
        let report = self.report;
        let many = self.many_targets();
        let open = report.steps.iter().any(|s| s.offered.is_some());
        let steps = report.steps.iter().filter(|s| s.offered.is_some() == open);
        for (name, steps) in grouped(steps, |s| s.name.clone()) {
            let load = |s: &MeasuredStep| s.offered.unwrap_or(s.connections as f64);
            let most = steps.iter().map(|s| load(s)).fold(0.0, f64::max);
            let shown: Vec<&MeasuredStep> = match steps.iter().any(|s| s.at.is_some()) {
                // Sizes and shards are told apart elsewhere.
                true => continue,
                false => steps
                    .into_iter()
                    .filter(|s| load(s) >= most * 0.99)
                    .collect(),
            };
            let mut lines: Vec<Line> = Vec::new();
            for s in shown {
                for kind in s.latency.keys() {
                    let Some(points) = s.timed(kind).and_then(curve) else {
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
                true => tr(
                    "Open loop under the greatest load offered: counted from the moment at which each operation was due.",
                ),
                false => tr("Closed loop, at the most connections: service time."),
            };
            self.push(
                &format!("percentiles-{name}"),
                text!("Latency by percentile: {0}", name),
                caption,
                Axis::shares(tr("share of operations that took no longer")),
                Axis {
                    suffix: " ms",
                    ..Axis::log(tr("latency,"), Vec::new())
                },
                Body::Lines(lines),
            );
        }
    }
}

impl Charts<'_> {
    /// The p99 and the longest operation of each second, and the seconds in which a target stood still.
    pub(super) fn latency_over_time(&mut self) {
        let report = self.report;
        let long = report.steps.iter().filter(|s| s.series.len() >= 8);
        let long = long.filter(|s| s.group_seconds.is_empty() && s.mode.is_none());
        let load = |s: &MeasuredStep| (s.name.clone(), s.connections, s.offered.map(|o| o as u64));
        for ((name, connections, offered), steps) in grouped(long, load).into_iter().take(24) {
            let lines: Vec<Line> = steps.iter().flat_map(|s| self.each_second(s)).collect();
            if lines.is_empty() {
                continue;
            }
            let still = steps.iter().map(|s| {
                let who = s.target.clone().unwrap_or_default();
                (text!("{0} stood still", who), stall::seconds(s))
            });
            let still = still.filter(|(_, seconds): &(_, Vec<f64>)| !seconds.is_empty());
            let events = still.collect();
            let mut what = format!("{name}, {}", crate::overview::connections(connections));
            if let Some(load) = offered {
                what = text!(
                    "{0}, {1} operations a second offered",
                    what,
                    crate::terms::counted(load)
                );
            }
            self.push(
                &format!("latency-time-{what}"),
                text!("Latency over time: {0}", what),
                tr("The p99 of each second, dashed its longest operation; blocks at the foot are seconds in which a target stood still."),
                Axis {
                    suffix: " s",
                    ..Axis::linear(tr("since the start"))
                },
                Axis {
                    suffix: " ms",
                    ..Axis::log(tr("latency,"), Vec::new())
                },
                Body::Lines(lines),
            );
            if let Some(chart) = self.all.last_mut() {
                chart.events = events;
            }
        }
    }

    fn each_second(&self, s: &MeasuredStep) -> Vec<Line> {
        let line = |of: fn(&Sample) -> f64, what: &str, dashed: bool| {
            let ended = s.series.iter().filter(|x| of(x) > 0.0);
            let points: Vec<(f64, f64)> = ended.map(|x| (x.at, of(x) / 1e3)).collect();
            (points.len() > 1).then(|| Line {
                name: format!("{} {what}", s.target.as_ref().unwrap_or(&s.name)),
                color: self.color(s),
                dashed,
                points,
                ..Line::default()
            })
        };
        let lines = [
            line(|x| x.p99_us, "p99", false),
            line(|x| x.max_us, tr("max"), true),
        ];
        lines.into_iter().flatten().collect()
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
    fn seconds_of_standstill_are_marked_below_the_latency() {
        let mut s = MeasuredStep::example("C.S5", "P", 8, 1000.0);
        for second in &mut s.series {
            second.p99_us = 800.0;
        }
        s.series[3].operations = 0;
        s.series[3].p99_us = 0.0;
        // What waited meanwhile ends in the next second.
        s.series[4].p50_us = 500.0;
        s.series[4].max_us = 1.2e6;
        let mut report = crate::report::Draft::new("run", "C.S5").report;
        report.steps.push(s);
        let charts = super::super::of(&report);
        let chart = charts.iter().find(|c| c.id.starts_with("latency-time"));
        let chart = chart.unwrap();
        assert_eq!(
            chart.events,
            [("P stood still".to_string(), vec![4.0, 5.0])]
        );
        let Body::Lines(lines) = &chart.body else {
            panic!("no lines")
        };
        assert_eq!(lines[0].points.len(), 9);
    }

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
