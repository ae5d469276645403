//! Targets beside each other, and the sides of comparisons.

use super::super::plot::{Axis, Body, Range};
use super::{Charts, grouped};
use crate::lang::{known, tr};
use crate::overview::connections as connections_of;
use crate::overview::modes_are_targets;
use crate::rates::{Ratio, drawn, rates};
use crate::report::MeasuredStep;
use crate::text;
use std::collections::BTreeMap;

impl Charts<'_> {
    /// Steps that several targets have, as bars.
    pub(super) fn side_by_side(&mut self) {
        if !self.many_targets() {
            return;
        }
        let (names, rates) = self.common();
        if names.is_empty() {
            return;
        }
        let series = self.targets.iter().cloned().zip(rates).collect();
        self.push(
            "targets",
            tr("All targets side by side").into(),
            tr("The median rate of each step that at least two targets ran."),
            Axis::linear(tr("ops/s")),
            Axis::default(),
            Body::Bars {
                groups: names,
                series,
            },
        );
    }

    /// What the steps that are beside each other have in common: name, mode, connections, durability.
    fn row(
        &self,
    ) -> impl Fn(&MeasuredStep) -> (String, Option<String>, usize, Option<String>) + use<> {
        let by_target = modes_are_targets(self.report);
        move |s| {
            let mode = s.mode.clone().filter(|_| !by_target);
            (s.name.clone(), mode, s.connections, s.durability.clone())
        }
    }

    /// Names of the steps that at least two targets have, and each target's rates.
    pub(super) fn common(&self) -> (Vec<String>, Vec<Vec<f64>>) {
        let key = self.row();
        let closed = self.report.steps.iter().filter(|s| s.offered.is_none());
        let several = grouped(closed, key)
            .into_iter()
            .filter(|(_, list)| list.len() > 1);
        let mut names = Vec::new();
        let mut rates = vec![Vec::new(); self.targets.len()];
        for ((name, mode, connections, _), list) in several.take(40) {
            let mode = mode.map_or(String::new(), |m| format!(", {m}"));
            names.push(format!("{name}{mode}, {}", connections_of(connections)));
            for (target, column) in self.targets.iter().zip(&mut rates) {
                let own = list.iter().find(|s| s.target.as_ref() == Some(target));
                column.push(own.map_or(f64::NAN, |s| s.per_second));
            }
        }
        (names, rates)
    }

    /// The first target against each other one, with an interval.
    pub(super) fn ratios(&mut self) {
        if !self.many_targets() {
            return;
        }
        let first = self.targets[0].clone();
        let key = self.row();
        let mut rows = Vec::new();
        for ((name, mode, connections, _), list) in grouped(
            self.report.steps.iter().filter(|s| s.offered.is_none()),
            key,
        ) {
            let Some(own) = list.iter().find(|s| s.target.as_ref() == Some(&first)) else {
                continue;
            };
            for other in list.iter().filter(|s| s.target.as_ref() != Some(&first)) {
                let Some(ratio) = Ratio::of(&rates(own), &rates(other)) else {
                    continue;
                };
                let [low, high] = drawn(ratio.value, ratio.interval.unwrap_or([ratio.value; 2]));
                let mode = mode.as_ref().map_or(String::new(), |m| format!(", {m}"));
                rows.push(Range {
                    name: text!(
                        "{0}{1}, {2} against {3}",
                        name,
                        mode,
                        connections_of(connections),
                        other.target.as_deref().unwrap_or("–")
                    ),
                    color: self.color(other),
                    value: ratio.value,
                    low,
                    high,
                });
            }
        }
        if rows.is_empty() {
            return;
        }
        rows.truncate(60);
        self.push(
            "ratios",
            text!("{0} against the others", first),
            tr("Its rate divided by theirs, with the interval: right of the line it is faster, over the line it is not decided."),
            Axis {
                suffix: "×",
                ..Axis::log(tr("times as fast, logarithmic"), vec![0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
            },
            Axis::default(),
            Body::Ranges { rows, reference: 1.0 },
        );
    }

    pub(super) fn comparisons(&mut self) {
        let report = self.report;
        for (what, list) in
            report
                .comparisons
                .iter()
                .fold(BTreeMap::<&str, Vec<_>>::new(), |mut m, c| {
                    m.entry(c.reference_is.as_str()).or_default().push(c);
                    m
                })
        {
            let rows = list
                .iter()
                .map(|c| Range {
                    name: format!("{}, {}", c.title, connections_of(c.connections)),
                    color: 0,
                    value: c.share,
                    low: c.share_interval[0],
                    high: c.share_interval[1],
                })
                .collect();
            self.push(
                &format!("comparison-{what}"),
                text!("Rate against {0}", if what.is_empty() { tr("the reference") } else { known(what) }),
                tr("Slices of both sides alternate; the median of paired ratios with its interval. The line is 1: as fast."),
                Axis {
                    suffix: "×",
                    ..Axis::linear(tr("times as fast"))
                },
                Axis::default(),
                Body::Ranges { rows, reference: 1.0 },
            );
        }
    }
}
