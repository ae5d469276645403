//! What changes as data grows, and from second to second.

use super::super::plot::{Axis, Body, Line};
use super::super::published;
use super::{Charts, distinct, grouped, spikes};
use crate::lang::{known, tr};
use crate::overview::connections as connections_of;
use crate::rates::{drawn, group_interval};
use crate::report::{CollectionSizes, MeasuredStep};
use crate::text;

/// How many records were in after so many seconds.
fn inserted(s: &MeasuredStep, at: f64) -> f64 {
    let mut seconds = 0.0;
    let groups = s.group_seconds.iter().take_while(|group| {
        seconds += **group;
        seconds <= at
    });
    (groups.count() as u64 * s.group) as f64
}

/// `test 4: one number, 10 documents` of `test 4: one number, 10 documents, of 1000`.
fn test_of(s: &MeasuredStep) -> &str {
    let part = s.name.rsplit_once(", of ").or(s.name.rsplit_once(", to "));
    part.map_or(&*s.name, |n| n.0)
}

/// Records that were there after each `part` groups of inserts, and the rate of these.
fn insert_rates(s: &MeasuredStep, part: usize) -> Vec<(f64, f64)> {
    let records = (part as u64 * s.group) as f64;
    let parts = s.group_seconds.chunks_exact(part).enumerate();
    let points = parts.map(|(i, seconds)| {
        let seconds: f64 = seconds.iter().sum();
        ((i + 1) as f64 * records, records / seconds.max(1e-9))
    });
    points.collect()
}

impl Charts<'_> {
    /// The rate as the data grows, in a hundred parts or per 100,000.
    pub(super) fn growth(&mut self) {
        let report = self.report;
        let timed = report
            .steps
            .iter()
            .filter(|s| s.group_seconds.len() >= 20 && s.name == "insert");
        // Targets are laid over each other; of one target its modes are.
        let many = self.many_targets();
        let of = |s: &MeasuredStep| s.mode.clone().filter(|_| many).unwrap_or_default();
        for (mode, steps) in grouped(timed, of) {
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
            let lines = steps.iter().enumerate().map(|(i, s)| {
                let points = insert_rates(s, part);
                let own = if many { &s.target } else { &s.mode };
                Line {
                    name: own.clone().unwrap_or_default(),
                    color: if many { self.color(s) } else { i },
                    marks: spikes(&points),
                    points,
                    ..Line::default()
                }
            });
            let lines = lines.collect();
            let events = self.events(&steps, inserted);
            self.push(
                &format!("growth-{mode}"),
                match mode.is_empty() {
                    true => tr("Insert rate as data grows").into(),
                    false => text!("Insert rate as data grows: {0}", mode),
                },
                &text!(
                    "One value for every {0} inserts. Level is good; rings mark values below half the median, blocks at the foot what the server did beside.",
                    part as u64 * group
                ),
                Axis::linear(tr("records inserted")),
                Axis::linear(tr("inserts/s")),
                Body::Lines(lines),
            );
            if let Some(chart) = self.all.last_mut() {
                chart.events = events;
            }
        }
    }

    /// What the targets did beside requests, where it stands on the plot.
    fn events(
        &self,
        steps: &[&MeasuredStep],
        place: impl Fn(&MeasuredStep, f64) -> f64,
    ) -> Vec<(String, Vec<f64>)> {
        let mut events = Vec::new();
        for s in steps {
            for (what, at) in &s.activity {
                let name = match &s.target {
                    Some(t) if self.many_targets() => text!("{0} of {1}", known(what), t),
                    _ => known(what).to_string(),
                };
                events.push((name, at.iter().map(|at| place(s, *at)).collect()));
            }
        }
        events
    }

    /// Study A: tests 4 to 7 by the number of records; of several targets a plot for each test.
    pub(super) fn reads_by_records(&mut self) {
        let report = self.report;
        if !report.name.starts_with("A-") {
            return;
        }
        let reads = report
            .steps
            .iter()
            .filter(|s| s.at.is_some() && s.durability.is_none());
        let many = self.many_targets();
        let plot = |s: &MeasuredStep| test_of(s).to_string();
        for (test, steps) in grouped(reads, |s| many.then(|| plot(s))) {
            let named = |s: &MeasuredStep| match many {
                true => s.target.clone().unwrap_or_default(),
                false => plot(s),
            };
            let mut lines: Vec<Line> = Vec::new();
            for (name, steps) in grouped(steps.into_iter(), named) {
                let points = steps.iter().filter_map(|s| Some((s.at?, s.per_second)));
                lines.push(Line {
                    name: known(&name).to_string(),
                    color: if many {
                        self.color(steps[0])
                    } else {
                        lines.len()
                    },
                    points: points.collect(),
                    dots: true,
                    ..Line::default()
                });
            }
            if lines.iter().all(|l| l.points.len() < 2) {
                continue;
            }
            let title = match &test {
                Some(test) => text!("As data grows: {0}", known(test)),
                None => tr("Tests 4 to 7 as data grows").into(),
            };
            self.push(
                &format!("records-reads-{}", test.unwrap_or_default()),
                title,
                tr("Operations a second after each step of the load. Published: tests 4 and 5 steady, 6 falling once indexes outgrew memory; past 200 million records 6 and 7 swing."),
                Axis::linear(tr("records")),
                Axis::log(tr("ops/s"), Vec::new()),
                Body::Lines(lines),
            );
        }
    }

    /// Study A: each test that inserts as one curve over the records that were there, second by second.
    pub(super) fn inserts_by_records(&mut self) {
        let report = self.report;
        if !report.name.starts_with("A-") {
            return;
        }
        let inserts = report.steps.iter().filter(|s| s.durability.is_some());
        for (test, steps) in grouped(inserts, |s| test_of(s).to_string()) {
            let mut lines = Vec::new();
            for (target, steps) in grouped(steps.into_iter(), |s| s.target.clone()) {
                let points: Vec<(f64, f64)> = steps.iter().flat_map(|s| s.by_records()).collect();
                lines.push(Line {
                    name: target.unwrap_or_else(|| known(&test).to_string()),
                    color: self.color(steps[0]),
                    marks: spikes(&points),
                    points,
                    ..Line::default()
                });
            }
            if lines.iter().all(|l| l.points.len() < 3) {
                continue;
            }
            self.push(
                &format!("records-inserts-{test}"),
                text!("Inserts by records: {0}", known(&test)),
                tr("One value a second, by the records that were there. Published: 25 MB/s until memory was full, then 2 MB/s; safe inserts steady."),
                Axis::linear(tr("records inserted")),
                Axis::linear(tr("inserts/s")),
                Body::Lines(lines),
            );
        }
    }

    pub(super) fn reads_by_keys(&mut self) {
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
                            let [low, high] = drawn(steps[i].per_second, group_interval(steps[i])?);
                            Some((steps[i].at?, low, high))
                        })
                        .collect(),
                    dots: true,
                    ..Line::default()
                })
                .collect();
            self.push(
                &format!("reads-{mode}"),
                text!("Reads by number of distinct keys: {0}", mode),
                tr("Each key once, in random order. Published: far ahead of MySQL while keys are few, uneven when they are many."),
                Axis::log(tr("distinct keys"), ticks),
                Axis::linear(tr("reads/s")),
                Body::Lines(lines),
            );
        }
    }

    /// The rate against data size, and the published shape beside it: of one target all scenarios in one plot, of several
    /// a plot for each scenario.
    pub(super) fn by_size(&mut self) {
        if self.report.name != "C-sizes" {
            return;
        }
        let best = self.best_by_size();
        let ticks = distinct(best.iter().map(|b| b.2));
        if ticks.len() < 2 {
            return;
        }
        let mut names: Vec<String> = best.iter().map(|b| b.1.clone()).collect();
        names.sort();
        names.dedup();
        let plots: Vec<(String, Vec<String>)> = match self.many_targets() {
            true => names.iter().map(|n| (n.clone(), vec![n.clone()])).collect(),
            false => vec![(tr("all scenarios").into(), names)],
        };
        for (what, names) in plots {
            let (lines, shapes) = self.size_lines(&best, &names);
            self.push(
                &format!("size-{what}"),
                text!("Rate against data size: {0}", what),
                tr("The most operations a second at any number of connections. The fall with data size was the study's main finding."),
                Axis::log(tr("records"), ticks.clone()),
                Axis::linear(tr("ops/s")),
                Body::Lines(lines),
            );
            self.push(
                &format!("size-shape-{what}"),
                text!("The same as shapes, beside the published: {0}", what),
                tr("Smallest size = 1. Dashed: published on 24 cores and 256 GB (5, 30, 100 million records). Compare slopes only."),
                Axis {
                    suffix: "×",
                    ..Axis::log(tr("data size"), vec![1.0, 2.0, 6.0, 20.0])
                },
                Axis::linear(tr("rate, smallest size = 1")),
                Body::Lines(shapes),
            );
        }
    }

    /// Target, scenario, records, and the best rate over all connections.
    fn best_by_size(&self) -> Vec<(String, String, f64, f64)> {
        let mut best: Vec<(String, String, f64, f64)> = Vec::new();
        for s in &self.report.steps {
            let (Some(at), Some(target)) = (s.at, s.target.clone()) else {
                continue;
            };
            let here =
                |b: &&mut (String, String, f64, f64)| b.0 == target && b.1 == s.name && b.2 == at;
            match best.iter_mut().find(here) {
                Some(b) => b.3 = b.3.max(s.per_second),
                None => best.push((target, s.name.clone(), at, s.per_second)),
            }
        }
        best
    }

    /// A line for each target and scenario; the same with the smallest size as 1, the published ones beside.
    fn size_lines(
        &self,
        best: &[(String, String, f64, f64)],
        names: &[String],
    ) -> (Vec<Line>, Vec<Line>) {
        let (mut lines, mut shapes) = (Vec::new(), Vec::new());
        let many = self.many_targets();
        for name in names {
            for (target, color) in self.targets.iter().zip(&self.colors) {
                let color = if many { *color } else { self.color_of(name) };
                let own = best.iter().filter(|b| b.0 == *target && b.1 == *name);
                let points: Vec<(f64, f64)> = own.map(|b| (b.2, b.3)).collect();
                let Some(first) = points.first().copied() else {
                    continue;
                };
                let line = Line {
                    name: if many { target.clone() } else { name.clone() },
                    color,
                    points,
                    dots: true,
                    ..Line::default()
                };
                let part = |p: &(f64, f64)| (p.0 / first.0, p.1 / first.1);
                shapes.push(Line {
                    points: line.points.iter().map(part).collect(),
                    ..line.clone()
                });
                lines.push(line);
            }
            if let Some(rates) = published::c_by_size(name) {
                let part = |(n, r): &(f64, f64)| (n / rates[0].0, r / rates[0].1);
                shapes.push(Line {
                    name: text!("{0}, published", name),
                    // No product's.
                    color: if many { 7 } else { self.color_of(name) },
                    points: rates.iter().map(part).collect(),
                    dashed: true,
                    ..Line::default()
                });
            }
        }
        (lines, shapes)
    }

    fn rate_by_second(&self, s: &MeasuredStep) -> Line {
        let whole = s.series.iter().filter(|x| x.seconds > 0.3);
        let points = whole.map(|x| (x.at, x.operations as f64 / x.seconds));
        let points: Vec<(f64, f64)> = points.collect();
        Line {
            color: self.color(s),
            marks: spikes(&points),
            points,
            ..Line::default()
        }
    }

    pub(super) fn over_time(&mut self) {
        let report = self.report;
        let long = report
            .steps
            .iter()
            .filter(|s| s.series.len() >= 8 && s.offered.is_none() && s.group_seconds.is_empty());
        // With moves and without them are to be seen beside each other.
        let is_beside = report.name == "I-moves";
        let key = |s: &MeasuredStep| {
            let mode = s.mode.clone().filter(|_| !is_beside);
            (s.name.clone(), mode.unwrap_or_default(), s.connections)
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
            let lines = steps.iter().enumerate().map(|(i, s)| {
                let own = s.target.as_deref().unwrap_or(name);
                let mode = s.mode.as_deref().filter(|_| is_beside);
                Line {
                    name: mode.map_or(own.into(), |mode| format!("{own}, {mode}")),
                    // With moves and without them are of one target: told apart by dashes.
                    dashed: mode.is_some() && i % 2 == 0,
                    ..self.rate_by_second(s)
                }
            });
            let lines = lines.collect();
            let mode = if mode.is_empty() {
                String::new()
            } else {
                format!(", {mode}")
            };
            let events = self.events(steps, |_, at| at);
            let what = format!("{name}{mode}, {}", connections_of(*connections));
            charts.push((what, lines, events));
        }
        for (what, lines, events) in charts.into_iter().take(24) {
            self.push(
                &format!("time-{what}"),
                text!("Rate over time: {0}", what),
                tr("One value a second, nothing left out. Rings mark seconds below half the median; blocks at the foot, what the server did beside."),
                Axis {
                    suffix: " s",
                    ..Axis::linear(tr("since the start"))
                },
                Axis::linear(tr("ops/s")),
                Body::Lines(lines),
            );
            if let Some(chart) = self.all.last_mut() {
                chart.events = events;
            }
        }
    }

    pub(super) fn sizes_over_time(&mut self) {
        let report = self.report;
        // Of study A the steps of test 2 are one load.
        let of = |s: &MeasuredStep| match s.name.starts_with("test 2") {
            true => ("test 2".to_string(), s.target.clone()),
            false => (s.name.clone(), s.target.clone()),
        };
        let all = grouped(report.steps.iter().filter(|s| !s.sizes.is_empty()), of);
        let grown = all.into_iter().map(|((name, target), steps)| {
            let sizes: Vec<&CollectionSizes> = steps.iter().flat_map(|s| &s.sizes).collect();
            let own = target.filter(|_| self.many_targets());
            (own.map_or(name.clone(), |t| format!("{name}, {t}")), sizes)
        });
        let grows = |s: &(String, Vec<&CollectionSizes>)| {
            let grown = s.1.windows(2).all(|w| w[0].documents <= w[1].documents);
            grown && s.1.len() >= 3 && s.1[0].documents < s.1[s.1.len() - 1].documents
        };
        for (name, sizes) in grown.filter(grows).take(6).collect::<Vec<_>>() {
            let line = |name: &str, color, of: fn(&CollectionSizes) -> u64| Line {
                name: name.into(),
                color,
                points: sizes
                    .iter()
                    .map(|z| (z.documents as f64, of(z) as f64 / 1e6))
                    .collect(),
                ..Line::default()
            };
            let lines = vec![
                line(tr("data"), 0, |z| z.data_bytes),
                line(tr("on disk"), 1, |z| z.storage_bytes),
                line(tr("indexes"), 2, |z| z.index_bytes),
                line(tr("server memory"), 3, |z| {
                    z.server_resident_bytes.unwrap_or(0)
                }),
            ];
            self.push(
                &format!("sizes-{name}"),
                text!("Sizes as data grows: {0}", name),
                tr("What the server says of the table, and the memory that its process holds."),
                Axis::linear(tr("documents")),
                Axis {
                    suffix: " MB",
                    ..Axis::linear(tr("megabytes"))
                },
                Body::Lines(lines),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_with_moves_stands_beside_the_same_without() {
        let step = |mode: &str| MeasuredStep {
            name: "inserts".into(),
            target: Some("two shards".into()),
            mode: Some(mode.into()),
            series: (1..=9)
                .map(|at| crate::measure::Sample {
                    at: f64::from(at),
                    seconds: 1.0,
                    operations: 100,
                    ..Default::default()
                })
                .collect(),
            ..MeasuredStep::default()
        };
        let mut with = step("with moves");
        with.activity = [("chunk moved".to_string(), vec![3.0, 5.0])].into();
        let mut report = crate::report::Draft::new("study", "I-moves").report;
        report.steps = vec![step("without moves"), with];
        let charts = super::super::of(&report);
        let chart = charts.iter().find(|c| c.id.starts_with("time-")).unwrap();
        let Body::Lines(lines) = &chart.body else {
            panic!("no lines");
        };
        let names: Vec<&str> = lines.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(
            names,
            ["two shards, without moves", "two shards, with moves"]
        );
        assert_eq!(chart.events, [("chunk moved".to_string(), vec![3.0, 5.0])]);
    }

    #[test]
    fn spikes_of_a_load_stand_beside_what_the_server_did() {
        let mut s = MeasuredStep::example("insert", "P", 1, 1000.0);
        s.mode = Some("no key".into());
        s.group = 1000;
        s.group_seconds = (0..100).map(|i| if i == 60 { 5.0 } else { 1.0 }).collect();
        s.activity = [("flush".to_string(), vec![10.0, 62.0])].into();
        let mut report = crate::report::Draft::new("study", "B-keys").report;
        report.steps.push(s);
        let charts = super::super::of(&report);
        let growth = charts.iter().find(|c| c.id == "growth").unwrap();
        assert_eq!(
            growth.events,
            [("flush".to_string(), vec![10_000.0, 60_000.0])]
        );
        let Body::Lines(lines) = &growth.body else {
            panic!("no lines")
        };
        assert_eq!(lines[0].marks.len(), 1);
        assert_eq!(lines[0].marks[0].0, 62_000.0);
    }
}
