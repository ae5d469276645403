//! Rates by connections, and response times by load.

use super::super::plot::{Axis, Body, Line};
use super::{Charts, distinct, grouped};
use crate::lang::{known, tr};
use crate::rates::{drawn, interval, peak_and_knee};
use crate::report::MeasuredStep;
use crate::text;
use std::collections::BTreeSet;

/// A workload by connections, with its peak and its knee.
fn connections_line(name: String, color: usize, own: &[&MeasuredStep]) -> Line {
    let at = |s: &MeasuredStep| (s.connections as f64, s.per_second);
    let mark = |what: &str, s: &MeasuredStep| {
        let n = s.connections;
        let rate = format!("{:.0}", s.per_second);
        let label = text!(
            "{0} {1}: {2} {3}/s at {1} connections",
            known(what),
            n,
            name,
            rate
        );
        (at(s).0, at(s).1, label)
    };
    let mut marks = Vec::new();
    if let Some((peak, knee)) = peak_and_knee(own) {
        marks.push(mark("peak", peak));
        let knee = knee.filter(|k| k.connections != peak.connections);
        marks.extend(knee.map(|k| mark("knee", k)));
    }
    let band = own.iter().filter_map(|s| {
        let [low, high] = drawn(s.per_second, interval(s)?);
        Some((s.connections as f64, low, high))
    });
    Line {
        color,
        points: own.iter().map(|s| at(s)).collect(),
        band: band.collect(),
        dots: true,
        marks,
        name,
        ..Line::default()
    }
}

/// Milliseconds of the operation that ran most.
fn p99(s: &MeasuredStep) -> Option<f64> {
    let most = s.latency.values().max_by_key(|l| l.count)?;
    Some(most.at(0.99)? / 1e3)
}

fn p99_axis() -> Axis {
    Axis {
        suffix: " ms",
        ..Axis::log(tr("p99 of the operation that ran most,"), Vec::new())
    }
}

fn dotted(name: String, color: usize, points: Vec<(f64, f64)>) -> Line {
    Line {
        name,
        color,
        points,
        dots: true,
        ..Line::default()
    }
}

impl Charts<'_> {
    pub(super) fn by_connections(&mut self) {
        let report = self.report;
        let closed = report.steps.iter().filter(|s| {
            s.offered.is_none() && s.group_seconds.is_empty() && s.megabytes_per_second.is_none()
        });
        let many = self.many_targets();
        let key = move |s: &MeasuredStep| {
            let mode = s.mode.clone().unwrap_or_default();
            if many {
                format!("{} {mode}", s.name)
            } else {
                mode
            }
        };
        for (title, steps) in grouped(closed, key) {
            let ticks = distinct(steps.iter().map(|s| s.connections as f64));
            if ticks.len() < 3 {
                continue;
            }
            let lines: Vec<Line> = self
                .named(&steps, |s| s.name.clone())
                .into_iter()
                .filter(|(_, _, of)| of.len() > 1)
                .map(|(name, color, of)| {
                    let own: Vec<&MeasuredStep> = of.iter().map(|&i| steps[i]).collect();
                    connections_line(name, color, &own)
                })
                .collect();
            if lines.is_empty() {
                continue;
            }
            let of = if title.trim().is_empty() {
                String::new()
            } else {
                format!(": {}", title.trim())
            };
            self.push(
                &format!("connections{of}"),
                text!("Throughput by connections{0}", of),
                tr("Closed loop. Peak: the most operations a second; knee: the fewest connections whose interval reaches it. The band is the interval."),
                Axis::log(tr("connections"), ticks),
                Axis::linear(tr("ops/s")),
                Body::Lines(lines),
            );
        }
    }

    /// Study C: latency by threads at each data size, and by data size at the threads that gave the most.
    pub(super) fn latency_of_sizes(&mut self) {
        if self.report.name == "C-sizes" {
            self.latency_by_threads();
            self.latency_by_size();
        }
    }

    /// Steps by scenario, of several targets by target too, each with its name and color.
    fn scenarios<'s>(
        &self,
        steps: impl Iterator<Item = &'s MeasuredStep>,
    ) -> Vec<(String, usize, Vec<&'s MeasuredStep>)> {
        let many = self.many_targets();
        let named = |s: &MeasuredStep| match many {
            true => format!("{}, {}", s.target.clone().unwrap_or_default(), s.name),
            false => s.name.clone(),
        };
        let all = grouped(steps, named).into_iter();
        let colored = all.map(|(name, own)| {
            let color = match many {
                true => self.color(own[0]),
                false => self.color_of(&name),
            };
            (name, color, own)
        });
        colored.collect()
    }

    fn latency_by_threads(&mut self) {
        let report = self.report;
        for (size, steps) in grouped(report.steps.iter(), |s| s.mode.clone().unwrap_or_default()) {
            let ticks = distinct(steps.iter().map(|s| s.connections as f64));
            let lines = self.scenarios(steps.into_iter()).into_iter();
            let lines = lines.map(|(name, color, own)| {
                let points = own.iter();
                let points = points.filter_map(|s| Some((s.connections as f64, p99(s)?)));
                dotted(name, color, points.collect())
            });
            let lines = lines.collect();
            self.push(
                &format!("p99-{size}"),
                text!("Latency by connections: {0}", size),
                tr("Closed loop: service time. Published: more writes, more variance and latency."),
                Axis::log(tr("connections"), ticks),
                p99_axis(),
                Body::Lines(lines),
            );
        }
    }

    fn latency_by_size(&mut self) {
        let report = self.report;
        let ticks = distinct(report.steps.iter().filter_map(|s| s.at));
        if ticks.len() < 2 {
            return;
        }
        let lines = self.scenarios(report.steps.iter()).into_iter();
        let lines = lines.map(|(name, color, own)| {
            let best = grouped(own.into_iter(), |s| s.at.unwrap_or(0.0)).into_iter();
            let best = best.filter_map(|(at, steps)| {
                let steps = steps.into_iter();
                let most = steps.max_by(|a, b| a.per_second.total_cmp(&b.per_second))?;
                Some((at, p99(most)?))
            });
            dotted(name, color, best.collect())
        });
        let lines = lines.collect();
        self.push(
            "p99-by-size",
            tr("Latency by data size").into(),
            tr("At the number of connections that gave the most operations a second."),
            Axis::log(tr("records"), ticks),
            p99_axis(),
            Body::Lines(lines),
        );
    }

    /// All targets in one plot: of several, the median and the 99th percentile of each.
    pub(super) fn latency_by_load(&mut self) {
        let report = self.report;
        let open = report.steps.iter().filter(|s| s.offered.is_some());
        for (name, steps) in grouped(open, |s| s.name.clone()) {
            let many = self.many_targets();
            let mut lines: Vec<Line> = Vec::new();
            for (target, own) in grouped(steps.iter().copied(), |s| s.target.clone()) {
                let of = target.filter(|_| many);
                self.quantiles(&mut lines, &own, of.as_deref());
            }
            let ticks = distinct(steps.iter().filter_map(|s| s.offered));
            self.push(
                &format!("latency-{name}"),
                text!("Response time by load: {0}", name),
                tr("Open loop: counted from the moment at which each operation was due, so that waiting counts."),
                Axis {
                    ticks: if many { Vec::new() } else { ticks },
                    ..Axis::linear(tr("operations offered a second"))
                },
                Axis {
                    suffix: " ms",
                    ..Axis::log(tr("response time,"), Vec::new())
                },
                Body::Lines(lines),
            );
        }
    }

    /// Each operation by its own name; of a mixed workload or of several targets two lines for each.
    fn quantiles(&self, lines: &mut Vec<Line>, steps: &[&MeasuredStep], target: Option<&str>) {
        let kinds: BTreeSet<&String> = steps.iter().flat_map(|s| s.latency.keys()).collect();
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
        let few = kinds.len() > 1 || target.is_some();
        let highest = if few { "p99" } else { "p99.9" };
        for kind in &kinds {
            for (what, of) in &quantiles {
                if few && *what != "p50" && *what != "p99" {
                    continue;
                }
                let points = steps.iter().filter_map(|s| {
                    let latency = s.timed(kind)?.at(*of)?;
                    Some((s.offered?, latency / 1e3))
                });
                let points: Vec<(f64, f64)> = points.collect();
                let marks = steps
                    .iter()
                    .zip(&points)
                    .filter(|(s, _)| s.overloaded && *what == highest);
                let mut parts: Vec<&str> = target.into_iter().collect();
                parts.extend(Some(kind.as_str()).filter(|_| kinds.len() > 1));
                parts.push(what);
                lines.push(Line {
                    name: parts.join(" "),
                    color: match target {
                        Some(_) => self.color(steps[0]),
                        None => lines.len(),
                    },
                    dashed: target.is_some() && *what == "p50",
                    marks: marks
                        .map(|(_, p)| (p.0, p.1, tr("overloaded: the backlog grew").to_string()))
                        .collect(),
                    points,
                    dots: true,
                    ..Line::default()
                });
            }
        }
    }
}
