//! Which plots a result asks for: everything that its steps can show, in the order in which one reads it.

use super::plot::{Axis, Body, Boxed, Chart, Line, Range};
use super::published;
use crate::measure::{median, median_interval};
use crate::report::{Report, Step};
use crate::terms::span;
use std::collections::BTreeMap;

/// Steps that belong together, in the order in which they came.
fn grouped<'a, K: PartialEq>(
    steps: impl Iterator<Item = &'a Step>,
    key: impl Fn(&Step) -> K,
) -> Vec<(K, Vec<&'a Step>)> {
    let mut groups: Vec<(K, Vec<&Step>)> = Vec::new();
    for s in steps {
        let k = key(s);
        match groups.iter_mut().find(|(have, _)| *have == k) {
            Some((_, list)) => list.push(s),
            None => groups.push((k, vec![s])),
        }
    }
    groups
}

pub struct Charts<'a> {
    report: &'a Report,
    /// Targets by label, in order: the place is the colour.
    targets: Vec<String>,
    pub all: Vec<Chart>,
}

pub fn of(report: &Report) -> Vec<Chart> {
    let mut targets: Vec<String> = Vec::new();
    for s in &report.steps {
        let label = s.target.clone().unwrap_or_default();
        if !targets.contains(&label) {
            targets.push(label);
        }
    }
    let mut charts = Charts {
        report,
        targets,
        all: Vec::new(),
    };
    charts.side_by_side();
    charts.ratios();
    charts.by_mode();
    charts.files();
    charts.boxes();
    charts.growth();
    charts.reads_by_keys();
    charts.by_connections();
    charts.by_size();
    charts.by_shards();
    charts.latency_by_load();
    charts.over_time();
    charts.sizes_over_time();
    charts.comparisons();
    let mut ids: Vec<String> = Vec::new();
    for c in &mut charts.all {
        while ids.contains(&c.id) {
            c.id.push('_');
        }
        ids.push(c.id.clone());
    }
    charts.all
}

/// An interval of a step's rate, from its whole seconds.
pub fn rate_interval(s: &Step) -> [f64; 2] {
    let whole = s.series.iter().filter(|x| x.seconds > 0.5);
    let rates: Vec<f64> = whole.map(|x| x.operations as f64 / x.seconds).collect();
    if rates.len() < 3 {
        return [s.per_second, s.per_second];
    }
    let [low, high] = median_interval(&rates);
    [low.min(s.per_second), high.max(s.per_second)]
}

/// The peak, and the least number of connections whose interval reaches its.
pub fn peak_and_knee<'a>(steps: &[&'a Step]) -> Option<(&'a Step, &'a Step)> {
    let peak = steps
        .iter()
        .copied()
        .max_by(|a, b| a.per_second.total_cmp(&b.per_second))?;
    let low = rate_interval(peak)[0];
    let mut by_connections: Vec<&Step> = steps.to_vec();
    by_connections.sort_by_key(|s| s.connections);
    let knee = by_connections
        .into_iter()
        .find(|s| rate_interval(s)[1] >= low)?;
    Some((peak, knee))
}

fn slug(s: &str) -> String {
    let mut out = String::new();
    for c in s.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_string()
}

impl Charts<'_> {
    fn color(&self, s: &Step) -> usize {
        let label = s.target.clone().unwrap_or_default();
        self.targets.iter().position(|t| *t == label).unwrap_or(0)
    }

    fn many_targets(&self) -> bool {
        self.targets.len() > 1
    }

    fn push(&mut self, id: &str, title: String, caption: &str, x: Axis, y: Axis, body: Body) {
        self.all.push(Chart {
            id: slug(id),
            title,
            caption: caption.to_string(),
            x,
            y,
            body,
            events: Vec::new(),
        });
    }

    /// Lines of a group of steps: by target where there are several, else by what `name` says.
    fn named(
        &self,
        steps: &[&Step],
        name: impl Fn(&Step) -> String,
    ) -> Vec<(String, usize, Vec<usize>)> {
        let mut out: Vec<(String, usize, Vec<usize>)> = Vec::new();
        for (i, s) in steps.iter().enumerate() {
            let label = if self.many_targets() {
                s.target.clone().unwrap_or_default()
            } else {
                name(s)
            };
            match out.iter_mut().find(|o| o.0 == label) {
                Some(o) => o.2.push(i),
                None => {
                    let color = if self.many_targets() {
                        self.color(s)
                    } else {
                        out.len()
                    };
                    out.push((label, color, vec![i]));
                }
            }
        }
        out
    }

    /// Ways of doing the same side by side: insert modes, journal modes.
    fn by_mode(&mut self) {
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
                    let own =
                        |s: &&&Step| s.target.as_ref() == Some(t) && s.mode.as_ref() == Some(mode);
                    list.iter().find(own).map_or(f64::NAN, |s| s.per_second)
                };
                (t.clone(), modes.iter().map(rate).collect())
            });
            let series = series.collect();
            self.push(
                &format!("mode-{name}"),
                format!("By mode: {name}"),
                "Operations a second of the whole step.",
                Axis::linear("ops/s"),
                Axis::default(),
                Body::Bars {
                    groups: modes,
                    series,
                },
            );
        }
    }

    /// Megabytes a second of whole files.
    fn files(&mut self) {
        let moved = |s: &&Step| s.megabytes_per_second.is_some();
        let steps: Vec<&Step> = self.report.steps.iter().filter(moved).collect();
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
            "Whole files by connections".into(),
            "Uploads and downloads of whole files, every byte compared.",
            Axis::log("connections", ticks),
            Axis {
                suffix: " MB/s",
                ..Axis::linear("megabytes a second")
            },
            Body::Lines(lines),
        );
    }

    /// Time of every thousand operations.
    fn boxes(&mut self) {
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
                format!("Time of every {group} operations: {name}"),
                "Box: the middle half, with the median; line: 5% to 95%; ring: the longest. A ring far out is a stall.",
                Axis {
                    suffix: " ms",
                    ..Axis::log("milliseconds, logarithmic", Vec::new())
                },
                Axis::default(),
                Body::Boxes(boxes),
            );
        }
    }

    /// The rate as the data grows, in a hundred parts or per 100,000.
    fn growth(&mut self) {
        let report = self.report;
        let timed = report
            .steps
            .iter()
            .filter(|s| s.group_seconds.len() >= 20 && s.name == "insert");
        for (mode, steps) in grouped(timed, |s| s.mode.clone().unwrap_or_default()) {
            let longest = steps
                .iter()
                .map(|s| s.group_seconds.len())
                .max()
                .unwrap_or(0);
            let part = if longest >= 1000 {
                100
            } else {
                (longest / 50).max(1)
            };
            let group = steps.first().map_or(1000, |s| s.group);
            let lines: Vec<Line> = steps
                .iter()
                .map(|s| {
                    let points: Vec<(f64, f64)> = s
                        .group_seconds
                        .chunks(part)
                        .enumerate()
                        .filter(|(_, c)| c.len() == part)
                        .map(|(i, c)| {
                            let seconds: f64 = c.iter().sum();
                            (
                                ((i + 1) * part) as f64 * s.group as f64,
                                (part as u64 * s.group) as f64 / seconds.max(1e-9),
                            )
                        })
                        .collect();
                    let marks = spikes(&points);
                    Line {
                        name: s.target.clone().unwrap_or_else(|| mode.clone()),
                        color: self.color(s),
                        points,
                        marks,
                        ..Line::default()
                    }
                })
                .collect();
            self.push(
                &format!("growth-{mode}"),
                format!("Insert rate as data grows: {mode}"),
                &format!("One value for every {} inserts. Level is good; rings mark values below half the median.", part as u64 * group),
                Axis::linear("records inserted"),
                Axis::linear("inserts/s"),
                Body::Lines(lines),
            );
        }
    }

    fn reads_by_keys(&mut self) {
        let report = self.report;
        let reads = report
            .steps
            .iter()
            .filter(|s| s.name.starts_with("read of "));
        for (mode, steps) in grouped(reads, |s| s.mode.clone().unwrap_or_default()) {
            let ticks = distinct(steps.iter().filter_map(|s| s.at));
            if ticks.len() < 2 {
                continue;
            }
            let lines = self
                .named(&steps, |_| mode.clone())
                .into_iter()
                .map(|(name, color, of)| Line {
                    name,
                    color,
                    points: of
                        .iter()
                        .filter_map(|&i| Some((steps[i].at?, steps[i].per_second)))
                        .collect(),
                    band: of
                        .iter()
                        .filter_map(|&i| {
                            let [low, high] = group_interval(steps[i])?;
                            Some((steps[i].at?, low, high))
                        })
                        .collect(),
                    dots: true,
                    ..Line::default()
                })
                .collect();
            self.push(
                &format!("reads-{mode}"),
                format!("Reads by number of distinct keys: {mode}"),
                "Each key once, in random order. Published: far ahead of MySQL while keys are few, uneven when they are many.",
                Axis::log("distinct keys", ticks),
                Axis::linear("reads/s"),
                Body::Lines(lines),
            );
        }
    }

    fn by_connections(&mut self) {
        let report = self.report;
        let closed = report.steps.iter().filter(|s| {
            s.offered.is_none() && s.group_seconds.is_empty() && s.megabytes_per_second.is_none()
        });
        let many = self.many_targets();
        let key = move |s: &Step| {
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
                    let own: Vec<&Step> = of.iter().map(|&i| steps[i]).collect();
                    let at = |s: &Step| (s.connections as f64, s.per_second);
                    let mut marks = Vec::new();
                    if let Some((peak, knee)) = peak_and_knee(&own) {
                        let said = |what: &str, s: &Step| {
                            format!(
                                "{what} {}: {} {:.0}/s at {} connections",
                                s.connections, name, s.per_second, s.connections
                            )
                        };
                        marks.push((at(peak).0, at(peak).1, said("peak", peak)));
                        if knee.connections != peak.connections {
                            marks.push((at(knee).0, at(knee).1, said("knee", knee)));
                        }
                    }
                    Line {
                        name: name.clone(),
                        color,
                        points: own.iter().map(|s| at(s)).collect(),
                        band: own
                            .iter()
                            .map(|s| {
                                let [low, high] = rate_interval(s);
                                (s.connections as f64, low, high)
                            })
                            .collect(),
                        dots: true,
                        marks,
                        ..Line::default()
                    }
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
                format!("Throughput by connections{of}"),
                "Closed loop. Peak: the most operations a second; knee: the fewest connections whose interval reaches it. The band is the interval.",
                Axis::log("connections", ticks),
                Axis::linear("ops/s"),
                Body::Lines(lines),
            );
        }
    }

    /// The rate against data size, and the published shape beside it.
    fn by_size(&mut self) {
        if self.report.name != "C-sizes" {
            return;
        }
        let report = self.report;
        // The best over all connections at each size.
        let mut best: Vec<(String, String, f64, f64)> = Vec::new();
        for s in &report.steps {
            let (Some(at), Some(target)) = (s.at, s.target.clone()) else {
                continue;
            };
            match best
                .iter_mut()
                .find(|b| b.0 == target && b.1 == s.name && b.2 == at)
            {
                Some(b) => b.3 = b.3.max(s.per_second),
                None => best.push((target, s.name.clone(), at, s.per_second)),
            }
        }
        let ticks = distinct(best.iter().map(|b| b.2));
        if ticks.len() < 2 {
            return;
        }
        for (t, target) in self.targets.clone().iter().enumerate() {
            let names: Vec<String> = grouped(report.steps.iter(), |s| s.name.clone())
                .into_iter()
                .map(|g| g.0)
                .collect();
            let mut lines = Vec::new();
            let mut shapes = Vec::new();
            for (color, name) in names.iter().enumerate() {
                let points: Vec<(f64, f64)> = best
                    .iter()
                    .filter(|b| b.0 == *target && b.1 == *name)
                    .map(|b| (b.2, b.3))
                    .collect();
                if let Some(first) = points.first().copied() {
                    shapes.push(Line {
                        name: format!("{name} here"),
                        color,
                        points: points
                            .iter()
                            .map(|p| (p.0 / first.0, p.1 / first.1))
                            .collect(),
                        dots: true,
                        ..Line::default()
                    });
                    if let Some(rates) = published::c_by_size(name) {
                        shapes.push(Line {
                            name: format!("{name} published"),
                            color,
                            points: rates
                                .iter()
                                .map(|(n, r)| (n / rates[0].0, r / rates[0].1))
                                .collect(),
                            dashed: true,
                            ..Line::default()
                        });
                    }
                }
                lines.push(Line {
                    name: name.clone(),
                    color,
                    points,
                    dots: true,
                    ..Line::default()
                });
            }
            let suffix = if self.many_targets() {
                format!(", {target}")
            } else {
                String::new()
            };
            self.push(
                &format!("size-{t}"),
                format!("Rate against data size{suffix}"),
                "The most operations a second at any number of connections. The fall with data size was the study's main finding.",
                Axis::log("records", ticks.clone()),
                Axis::linear("ops/s"),
                Body::Lines(lines),
            );
            self.push(
                &format!("size-shape-{t}"),
                format!("The same as shapes, beside the published{suffix}"),
                "Smallest size = 1. Dashed: published on 24 cores and 256 GB (5, 30, 100 million records). Compare slopes only.",
                Axis {
                    suffix: "×",
                    ..Axis::log("data size", vec![1.0, 2.0, 6.0, 20.0])
                },
                Axis::linear("rate, smallest size = 1"),
                Body::Lines(shapes),
            );
        }
    }

    fn by_shards(&mut self) {
        if self.report.name != "D-shards" {
            return;
        }
        let steps: Vec<&Step> = self.report.steps.iter().collect();
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
            "Operations a second by shards".into(),
            "",
            Axis::linear("ops/s"),
            Axis::default(),
            Body::Bars {
                groups: names.clone(),
                series: series.clone(),
            },
        );
        series.truncate(1);
        if let Some((name, rates)) = series.first_mut() {
            *rates = base(rates);
            name.push_str(" here");
        }
        series.push(("one process, published".into(), base(&published::D_ONE)));
        self.push(
            "shards-shape",
            "One process as a shape, beside the published".into(),
            "The load = 1. Published on one process: 7,295 inserts/s, then 12,102, 15,982, 19,102 and 49,020 operations/s.",
            Axis::linear("rate, load = 1"),
            Axis::default(),
            Body::Bars { groups: names, series },
        );
    }

    fn latency_by_load(&mut self) {
        let report = self.report;
        let open = report.steps.iter().filter(|s| s.offered.is_some());
        for ((name, target), steps) in grouped(open, |s| {
            (s.name.clone(), s.target.clone().unwrap_or_default())
        }) {
            let quantiles: [(&str, fn(&crate::measure::Latency) -> f64); 4] = [
                ("p50", |l| l.p50_us),
                ("p90", |l| l.p90_us),
                ("p99", |l| l.p99_us),
                ("p99.9", |l| l.p999_us),
            ];
            let lines: Vec<Line> = quantiles
                .iter()
                .enumerate()
                .map(|(color, (what, of))| {
                    let points: Vec<(f64, f64)> = steps
                        .iter()
                        .filter_map(|s| {
                            let l = s.latency.values().max_by_key(|l| l.count)?;
                            Some((s.offered?, of(l) / 1e3))
                        })
                        .collect();
                    let marks = steps
                        .iter()
                        .zip(&points)
                        .filter(|(s, _)| s.overloaded && *what == "p99.9");
                    Line {
                        name: (*what).into(),
                        color,
                        marks: marks
                            .map(|(_, p)| (p.0, p.1, "overloaded: the backlog grew".to_string()))
                            .collect(),
                        points,
                        dots: true,
                        ..Line::default()
                    }
                })
                .collect();
            let ticks = distinct(steps.iter().filter_map(|s| s.offered));
            self.push(
                &format!("latency-{name}-{target}"),
                format!("Response time by load: {name}{}", if target.is_empty() { String::new() } else { format!(", {target}") }),
                "Open loop: counted from the moment at which each operation was due, so that waiting counts.",
                Axis {
                    ticks,
                    ..Axis::linear("operations offered a second")
                },
                Axis {
                    suffix: " ms",
                    ..Axis::log("milliseconds, logarithmic", Vec::new())
                },
                Body::Lines(lines),
            );
        }
    }

    fn over_time(&mut self) {
        let report = self.report;
        let long = report
            .steps
            .iter()
            .filter(|s| s.series.len() >= 8 && s.offered.is_none() && s.group_seconds.is_empty());
        let key = |s: &Step| {
            (
                s.name.clone(),
                s.mode.clone().unwrap_or_default(),
                s.connections,
            )
        };
        let groups = grouped(long, key);
        // Of a sweep every point has a series; only what stands by itself is worth a plot.
        let swept = |name: &str, mode: &str| {
            groups
                .iter()
                .filter(|((n, m, _), _)| n == name && m == mode)
                .count()
                > 2
        };
        let mut charts = Vec::new();
        for ((name, mode, connections), steps) in &groups {
            if swept(name, mode) {
                continue;
            }
            let lines: Vec<Line> = steps
                .iter()
                .map(|s| {
                    let whole = s.series.iter().filter(|x| x.seconds > 0.3);
                    let points: Vec<(f64, f64)> = whole
                        .map(|x| (x.at, x.operations as f64 / x.seconds))
                        .collect();
                    Line {
                        name: s.target.clone().unwrap_or_else(|| name.clone()),
                        color: self.color(s),
                        marks: spikes(&points),
                        points,
                        ..Line::default()
                    }
                })
                .collect();
            let mode = if mode.is_empty() {
                String::new()
            } else {
                format!(", {mode}")
            };
            let mut events: Vec<(String, Vec<f64>)> = Vec::new();
            for s in steps {
                for (what, at) in &s.activity {
                    let name = match &s.target {
                        Some(t) if self.many_targets() => format!("{what} of {t}"),
                        _ => what.clone(),
                    };
                    events.push((name, at.clone()));
                }
            }
            let what = format!("{name}{mode}, {connections} connection(s)");
            charts.push((what, lines, events));
        }
        for (what, lines, events) in charts.into_iter().take(24) {
            self.push(
                &format!("time-{what}"),
                format!("Rate over time: {what}"),
                "One value a second, nothing left out. Rings mark seconds below half the median; blocks at the foot, what the server did beside.",
                Axis {
                    suffix: " s",
                    ..Axis::linear("since the start")
                },
                Axis::linear("ops/s"),
                Body::Lines(lines),
            );
            if let Some(chart) = self.all.last_mut() {
                chart.events = events;
            }
        }
    }

    /// Steps that several targets have, as bars.
    fn side_by_side(&mut self) {
        if !self.many_targets() {
            return;
        }
        let (names, rates) = self.common();
        let series = self.targets.iter().cloned().zip(rates).collect();
        self.push(
            "targets",
            "All targets side by side".into(),
            "The median rate of each step that at least two targets ran.",
            Axis::linear("ops/s"),
            Axis::default(),
            Body::Bars {
                groups: names,
                series,
            },
        );
    }

    /// Names of the steps that at least two targets have, and each target's rates.
    fn common(&self) -> (Vec<String>, Vec<Vec<f64>>) {
        let key = |s: &Step| {
            (
                s.name.clone(),
                s.mode.clone(),
                s.connections,
                s.durability.clone(),
            )
        };
        let closed = self.report.steps.iter().filter(|s| s.offered.is_none());
        let several = grouped(closed, key)
            .into_iter()
            .filter(|(_, list)| list.len() > 1);
        let mut names = Vec::new();
        let mut rates = vec![Vec::new(); self.targets.len()];
        for ((name, mode, connections, _), list) in several.take(40) {
            let mode = mode.map_or(String::new(), |m| format!(", {m}"));
            names.push(format!("{name}{mode} @{connections}"));
            for (target, column) in self.targets.iter().zip(&mut rates) {
                let own = list.iter().find(|s| s.target.as_ref() == Some(target));
                column.push(own.map_or(f64::NAN, |s| s.per_second));
            }
        }
        (names, rates)
    }

    /// The first target against each other one, with an interval.
    fn ratios(&mut self) {
        if !self.many_targets() {
            return;
        }
        let first = self.targets[0].clone();
        let key = |s: &Step| {
            (
                s.name.clone(),
                s.mode.clone(),
                s.connections,
                s.durability.clone(),
            )
        };
        let mut rows = Vec::new();
        for ((name, mode, connections, _), list) in grouped(
            self.report.steps.iter().filter(|s| s.offered.is_none()),
            key,
        ) {
            let Some(own) = list.iter().find(|s| s.target.as_ref() == Some(&first)) else {
                continue;
            };
            for other in list.iter().filter(|s| s.target.as_ref() != Some(&first)) {
                let (a, b) = (interval(own), interval(other));
                let mode = mode.as_ref().map_or(String::new(), |m| format!(", {m}"));
                rows.push(Range {
                    name: format!(
                        "{name}{mode} @{connections} against {}",
                        other.target.as_deref().unwrap_or("–")
                    ),
                    color: self.color(other),
                    value: own.per_second / other.per_second.max(1e-9),
                    low: a[0] / b[1].max(1e-9),
                    high: a[1] / b[0].max(1e-9),
                });
            }
        }
        rows.truncate(60);
        self.push(
            "ratios",
            format!("{first} against the others"),
            "Its rate divided by theirs, with the interval: right of the line it is faster, over the line it is not decided.",
            Axis {
                suffix: "×",
                ..Axis::log("times as fast, logarithmic", vec![0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
            },
            Axis::default(),
            Body::Ranges { rows, reference: 1.0 },
        );
    }

    fn sizes_over_time(&mut self) {
        let report = self.report;
        let grown: Vec<&Step> = report.steps.iter().filter(|s| s.sizes.len() >= 3).collect();
        for s in grown.into_iter().take(6) {
            let line = |name: &str, color, of: fn(&crate::report::Sizes) -> u64| Line {
                name: name.into(),
                color,
                points: s
                    .sizes
                    .iter()
                    .map(|z| (z.documents as f64, of(z) as f64 / 1e6))
                    .collect(),
                ..Line::default()
            };
            let lines = vec![
                line("data", 0, |z| z.data_bytes),
                line("on disk", 1, |z| z.storage_bytes),
                line("indexes", 2, |z| z.index_bytes),
                line("server memory", 3, |z| z.server_resident_bytes.unwrap_or(0)),
            ];
            self.push(
                &format!("sizes-{}", s.name),
                format!("Sizes as data grows: {}", s.name),
                "What the server says of the table, and the memory that its process holds.",
                Axis::linear("documents"),
                Axis {
                    suffix: " MB",
                    ..Axis::linear("megabytes")
                },
                Body::Lines(lines),
            );
        }
    }

    fn comparisons(&mut self) {
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
                    name: format!("{} @{}", c.title, c.connections),
                    color: 0,
                    value: c.share,
                    low: c.share_interval[0],
                    high: c.share_interval[1],
                })
                .collect();
            self.push(
                &format!("comparison-{what}"),
                format!("Rate against {}", if what.is_empty() { "the reference" } else { what }),
                "Slices of both sides alternate; the median of paired ratios with its interval. The line is 1: as fast.",
                Axis {
                    suffix: "×",
                    ..Axis::linear("times as fast")
                },
                Axis::default(),
                Body::Ranges { rows, reference: 1.0 },
            );
        }
    }
}

/// Points below half the median.
fn spikes(points: &[(f64, f64)]) -> Vec<(f64, f64, String)> {
    let middle = median(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    let low = points.iter().filter(|p| p.1 < middle / 2.0);
    low.take(40)
        .map(|p| {
            (
                p.0,
                p.1,
                format!(": {:.0} where {middle:.0} is the median", p.1),
            )
        })
        .collect()
}

fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// An interval of the rate from the times of groups.
fn group_interval(s: &Step) -> Option<[f64; 2]> {
    if s.group_seconds.len() < 3 {
        return None;
    }
    let rates: Vec<f64> = s
        .group_seconds
        .iter()
        .map(|t| s.group as f64 / t.max(1e-9))
        .collect();
    let [low, high] = median_interval(&rates);
    Some([low.min(s.per_second), high.max(s.per_second)])
}

fn interval(s: &Step) -> [f64; 2] {
    group_interval(s).unwrap_or_else(|| rate_interval(s))
}

/// What a figure is of: step, target, connections, and its p99.
pub fn headline(s: &Step) -> String {
    let mut parts = vec![s.name.clone()];
    parts.extend(s.mode.clone());
    parts.extend(s.target.clone());
    parts.push(match s.connections {
        1 => "1 connection".into(),
        n => format!("{n} connections"),
    });
    if let Some(l) = s.latency.values().max_by_key(|l| l.count) {
        parts.push(format!("p99 {}", span((l.p99_us * 1e3) as u64)));
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sample;

    fn step(name: &str, target: &str, connections: usize, rate: f64) -> Step {
        Step {
            name: name.into(),
            target: Some(target.into()),
            connections,
            per_second: rate,
            series: (1..=10)
                .map(|at| Sample {
                    at: f64::from(at),
                    seconds: 1.0,
                    operations: rate as u64,
                    ..Sample::default()
                })
                .collect(),
            ..Step::default()
        }
    }

    #[test]
    fn the_knee_is_the_least_that_reaches_the_peak() {
        let steps = [
            step("a", "t", 1, 10.0),
            step("a", "t", 8, 100.0),
            step("a", "t", 16, 100.0),
            step("a", "t", 32, 90.0),
        ];
        let list: Vec<&Step> = steps.iter().collect();
        let (peak, knee) = peak_and_knee(&list).unwrap();
        assert_eq!((peak.connections, knee.connections), (16, 8));
        assert!(peak_and_knee(&[]).is_none());
    }

    #[test]
    fn a_report_gets_the_plots_that_its_steps_can_show() {
        let mut report = crate::report::Draft::new("study", "C-sizes").report;
        for target in ["A 1", "B 2"] {
            for records in [100.0, 600.0] {
                for connections in [1, 2, 4] {
                    let mut s = step("C.S5", target, connections, 100.0 * connections as f64);
                    s.at = Some(records);
                    s.mode = Some(format!("Test_{records}"));
                    report.steps.push(s);
                }
            }
        }
        let mut open = step("C.S5", "A 1", 4, 50.0);
        open.offered = Some(50.0);
        report.steps.push(open);
        let ids: Vec<String> = of(&report).into_iter().map(|c| c.id).collect();
        for want in [
            "connections-c-s5-test-100",
            "size-0",
            "size-shape-1",
            "latency-c-s5-a-1",
            "targets",
            "ratios",
        ] {
            assert!(ids.iter().any(|i| i == want), "{want} in {ids:?}");
        }
        assert!(of(&crate::report::Draft::new("run", "x").report).is_empty());
    }
}
