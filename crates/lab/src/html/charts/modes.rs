//! Ways of doing the same beside each other: modes, whole files, the time of every thousand operations, shards.

use super::super::plot::{Axis, Body, Boxed, Line};
use super::super::published;
use super::{Charts, distinct, grouped};
use crate::lang::tr;
use crate::report::MeasuredStep;
use crate::text;

impl Charts<'_> {
    /// Ways of doing the same side by side: insert modes, journal modes.
    pub(super) fn by_mode(&mut self) {
        let report = self.report;
        let steps = report
            .steps
            .iter()
            .filter(|s| s.mode.is_some() && s.at.is_none() && s.offered.is_none());
        let steps = steps.filter(|s| s.megabytes_per_second.is_none());
        for (name, list) in grouped(steps, |s| s.name.clone()) {
            let modes: Vec<String> =
                grouped(list.iter().copied(), |s| s.mode.clone().unwrap_or_default())
                    .into_iter()
                    .map(|g| g.0)
                    .collect();
            if modes.len() < 2 {
                continue;
            }
            let series = self.targets.iter().map(|t| {
                let rate = |mode: &String| {
                    let own = |s: &&&MeasuredStep| {
                        s.target.as_ref() == Some(t) && s.mode.as_ref() == Some(mode)
                    };
                    list.iter().find(own).map_or(f64::NAN, |s| s.per_second)
                };
                (t.clone(), modes.iter().map(rate).collect())
            });
            let series = series.collect();
            self.push(
                &format!("mode-{name}"),
                text!("By mode: {0}", name),
                tr("Operations a second of the whole step."),
                Axis::linear(tr("ops/s")),
                Axis::default(),
                Body::Bars {
                    groups: modes,
                    series,
                },
            );
        }
    }

    /// Megabytes a second of whole files.
    pub(super) fn files(&mut self) {
        let moved = |s: &&MeasuredStep| s.megabytes_per_second.is_some();
        let steps: Vec<&MeasuredStep> = self.report.steps.iter().filter(moved).collect();
        if steps.is_empty() {
            return;
        }
        let ticks = distinct(steps.iter().map(|s| s.connections as f64));
        let lines = grouped(steps.into_iter(), |s| s.name.clone())
            .into_iter()
            .enumerate()
            .map(|(color, (name, list))| Line {
                name,
                color,
                points: list
                    .iter()
                    .filter_map(|s| Some((s.connections as f64, s.megabytes_per_second?)))
                    .collect(),
                dots: true,
                ..Line::default()
            });
        let lines = lines.collect();
        self.push(
            "files",
            tr("Whole files by connections").into(),
            tr("Uploads and downloads of whole files, every byte compared."),
            Axis::log(tr("connections"), ticks),
            Axis {
                suffix: " MB/s",
                ..Axis::linear(tr("megabytes a second"))
            },
            Body::Lines(lines),
        );
    }

    /// Time of every thousand operations.
    pub(super) fn boxes(&mut self) {
        let report = self.report;
        let timed = report.steps.iter().filter(|s| s.group_seconds.len() >= 5);
        for (name, steps) in grouped(timed, |s| s.name.clone()) {
            let boxes: Vec<Boxed> = steps
                .iter()
                .map(|s| {
                    let mut ms: Vec<f64> = s.group_seconds.iter().map(|t| t * 1e3).collect();
                    ms.sort_by(f64::total_cmp);
                    let at = |q: f64| ms[((ms.len() - 1) as f64 * q).round() as usize];
                    let mode = s.mode.clone().unwrap_or_default();
                    Boxed {
                        name: match &s.target {
                            Some(t) => format!("{t} · {mode}"),
                            None => mode,
                        },
                        color: self.color(s),
                        at: [at(0.05), at(0.25), at(0.5), at(0.75), at(0.95), at(1.0)],
                    }
                })
                .collect();
            let group = steps.first().map_or(1000, |s| s.group);
            self.push(
                &format!("boxes-{name}"),
                text!("Time of every {0} operations: {1}", group, name),
                tr("Box: the middle half, with the median; line: 5% to 95%; ring: the longest. A ring far out is a stall."),
                Axis {
                    suffix: " ms",
                    ..Axis::log(tr("milliseconds, logarithmic"), Vec::new())
                },
                Axis::default(),
                Body::Boxes(boxes),
            );
        }
    }

    pub(super) fn by_shards(&mut self) {
        if self.report.name != "D-shards" {
            return;
        }
        let steps: Vec<&MeasuredStep> = self.report.steps.iter().collect();
        let groups = grouped(steps.iter().copied(), |s| s.name.clone());
        let setups: Vec<String> = grouped(steps.iter().copied(), |s| {
            s.mode.clone().unwrap_or_default()
        })
        .into_iter()
        .map(|g| g.0)
        .collect();
        let base = |list: &[f64]| {
            let first = list.first().copied().unwrap_or(1.0).max(1e-9);
            list.iter().map(|v| v / first).collect::<Vec<f64>>()
        };
        let mut series: Vec<(String, Vec<f64>)> = setups
            .iter()
            .map(|setup| {
                let rates = groups.iter().map(|(_, list)| {
                    let own = list.iter().find(|s| s.mode.as_deref() == Some(setup));
                    own.map_or(f64::NAN, |s| s.per_second)
                });
                (setup.clone(), rates.collect())
            })
            .collect();
        let names: Vec<String> = groups.iter().map(|g| g.0.clone()).collect();
        self.push(
            "shards",
            tr("Operations a second by shards").into(),
            "",
            Axis::linear(tr("ops/s")),
            Axis::default(),
            Body::Bars {
                groups: names.clone(),
                series: series.clone(),
            },
        );
        self.gain(&groups);
        series.truncate(1);
        if let Some((name, rates)) = series.first_mut() {
            *rates = base(rates);
            name.push_str(tr(" here"));
        }
        series.push((tr("one process, published").into(), base(&published::D_ONE)));
        self.push(
            "shards-shape",
            tr("One process as a shape, beside the published").into(),
            tr("The load = 1. Published on one process: 7,295 inserts/s, then 12,102, 15,982, 19,102 and 49,020 operations/s."),
            Axis::linear(tr("rate, load = 1")),
            Axis::default(),
            Body::Bars { groups: names, series },
        );
    }

    /// Each scenario with shards against itself on one process.
    fn gain(&mut self, groups: &[(String, Vec<&MeasuredStep>)]) {
        let mut lines = Vec::new();
        for (name, steps) in groups {
            let color = self.color_of(name);
            let one = steps.iter().find(|s| s.at == Some(1.0));
            let Some(one) = one.map(|s| s.per_second).filter(|r| *r > 0.0) else {
                continue;
            };
            let points = steps
                .iter()
                .filter_map(|s| Some((s.at?, s.per_second / one)));
            lines.push(Line {
                name: name.clone(),
                color,
                points: points.collect(),
                dots: true,
                ..Line::default()
            });
        }
        let ticks = distinct(lines.iter().flat_map(|l| l.points.iter().map(|p| p.0)));
        if ticks.len() < 2 {
            return;
        }
        self.push(
            "gain",
            tr("Gain by number of shards").into(),
            tr("One process = 1. Published: mixed loads gain 275%, reads alone nothing, six shards saturate the machine."),
            Axis {
                ticks,
                ..Axis::linear(tr("shards"))
            },
            Axis {
                suffix: "×",
                ..Axis::linear(tr("times one process"))
            },
            Body::Lines(lines),
        );
    }
}
