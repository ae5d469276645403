//! Of study H: the rate against the work done until then. Deleted records must not slow later
//! operations, and a fast target has more of them behind itself in the same second.

use super::super::plot::{Axis, Body, Line};
use super::{Charts, grouped};
use crate::lang::tr;
use crate::overview::connections as connections_of;
use crate::report::MeasuredStep;
use crate::text;

impl Charts<'_> {
    pub(super) fn over_done(&mut self) {
        let report = self.report;
        if !report.name.starts_with("H-") {
            return;
        }
        let long = report.steps.iter().filter(|s| s.series.len() >= 8);
        for ((name, connections), steps) in grouped(long, |s| (s.name.clone(), s.connections)) {
            let lines: Vec<Line> = steps
                .iter()
                .map(|s| Line {
                    name: s.target.clone().unwrap_or_else(|| name.clone()),
                    color: self.color(s),
                    points: rate_by_done(s),
                    ..Line::default()
                })
                .collect();
            let what = format!("{name}, {}", connections_of(connections));
            self.push(
                &format!("done-{what}"),
                text!("Rate against what was done: {0}", what),
                tr("One value a second. A line that falls says that what is gone still costs; the length of a line is how much was done."),
                Axis::linear(tr("operations done")),
                Axis::linear(tr("ops/s")),
                Body::Lines(lines),
            );
        }
    }
}

/// The rate of each whole second, at the operations that were done when it ended.
fn rate_by_done(step: &MeasuredStep) -> Vec<(f64, f64)> {
    let mut done = 0;
    let mut points = Vec::with_capacity(step.series.len());
    for second in &step.series {
        done += second.operations;
        if second.seconds > 0.3 {
            points.push((done as f64, second.operations as f64 / second.seconds));
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Draft;

    #[test]
    fn a_page_of_study_h_opens_with_rates_over_time_and_over_what_was_done() {
        let mut report = Draft::new("study", "H-queue").report;
        let step = MeasuredStep::example("H-queue", "P", 1, 100.0);
        report.steps.push(step);
        let step = &report.steps[0];
        let points = rate_by_done(step);
        let all: u64 = step.series.iter().map(|s| s.operations).sum();
        assert_eq!(points.len(), step.series.len());
        assert_eq!(points.last().map(|p| p.0), Some(all as f64));
        let charts = super::super::of(&report);
        let first = super::super::first(&report, &charts);
        let begins = |at: usize, with: &str| charts[first[at]].id.starts_with(with);
        assert!(begins(0, "done-") && begins(1, "time-"));
    }
}
