//! Which plots a result asks for: everything that its steps can show, in the order in which one reads it.

mod done;
mod growth;
mod loads;
mod modes;
mod percentiles;
mod plans;
mod targets;

use super::palette;
use super::plot::{Axis, Body, Chart};
use crate::measure::median;
use crate::report::{MeasuredStep, Report};

/// Steps that belong together, in the order in which they came.
fn grouped<'a, K: PartialEq>(
    steps: impl Iterator<Item = &'a MeasuredStep>,
    key: impl Fn(&MeasuredStep) -> K,
) -> Vec<(K, Vec<&'a MeasuredStep>)> {
    let mut groups: Vec<(K, Vec<&MeasuredStep>)> = Vec::new();
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
    /// Targets by label, in order, and the colour of each.
    targets: Vec<String>,
    colors: Vec<usize>,
    /// Names of steps, in order: of one target the place of a name is its colour, in all plots the same.
    names: Vec<String>,
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
    let mut names: Vec<String> = report.steps.iter().map(|s| s.name.clone()).collect();
    names.sort();
    names.dedup();
    let mut charts = Charts {
        report,
        colors: palette::colors(&targets),
        targets,
        names,
        all: Vec::new(),
    };
    charts.side_by_side();
    charts.ratios();
    charts.by_mode();
    charts.files();
    charts.boxes();
    charts.reads_by_records();
    charts.inserts_by_records();
    charts.growth();
    charts.reads_by_keys();
    charts.by_connections();
    charts.by_size();
    charts.by_shards();
    charts.latency_of_sizes();
    charts.latency_by_load();
    charts.percentiles();
    charts.over_done();
    charts.plans();
    charts.over_time();
    charts.latency_over_time();
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

/// Plots that a page of this result opens with, by the beginnings of their names; ranges of many rows
/// are folded.
pub fn first(r: &Report, charts: &[Chart]) -> Vec<usize> {
    let wanted: &[&str] = match (r.kind.as_str(), r.name.as_str()) {
        (_, "A-single" | "A-sharded" | "A-both") => {
            &["records-reads", "records-inserts", "time-test-2", "sizes"]
        }
        (_, "B-keys") => &["growth", "reads", "boxes-insert"],
        (_, "C-sizes") => &["size-", "connections"],
        (_, "D-shards") => &["shards", "gain"],
        (_, "E-pains") => &["time-load", "connections"],
        (_, "F-files") => &["files"],
        // With one client that takes jobs and with many.
        (_, "K-plans") => &["plans"; 2],
        (_, "H-queue" | "H-window") => &["done", "done", "time"],
        (_, "canonical") if r.targets.len() > 1 => &["percentiles", "latency"],
        ("sweep", _) | (_, "canonical") => &["connections", "latency"],
        ("queries", _) if r.targets.len() > 1 => &["connections", "targets"],
        _ => &[
            "ratios",
            "comparison",
            "connections",
            "targets",
            "mode",
            "time",
            "latency-time",
        ],
    };
    let mut out: Vec<usize> = Vec::new();
    for prefix in wanted {
        let wanted = |c: &Chart| c.id.starts_with(prefix) && small(&c.body);
        let own = (0..charts.len()).find(|i| wanted(&charts[*i]) && !out.contains(i));
        out.extend(own);
    }
    let others = (0..charts.len()).filter(|i| !out.contains(i) && small(&charts[*i].body));
    if out.is_empty() {
        out = others.collect();
    }
    out.truncate(2);
    out
}

fn small(body: &Body) -> bool {
    match body {
        Body::Ranges { rows, .. } => rows.len() <= 12,
        Body::Bars { groups, series } => groups.len() * series.len() <= 30,
        _ => true,
    }
}

pub(super) fn slug(s: &str) -> String {
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
    fn color(&self, s: &MeasuredStep) -> usize {
        let label = s.target.clone().unwrap_or_default();
        let place = self.targets.iter().position(|t| *t == label);
        place.and_then(|i| self.colors.get(i).copied()).unwrap_or(0)
    }

    /// Of one target: each name has its colour.
    fn color_of(&self, name: &str) -> usize {
        self.names.iter().position(|n| n == name).unwrap_or(0)
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
        steps: &[&MeasuredStep],
        name: impl Fn(&MeasuredStep) -> String,
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
                    let color = match self.names.iter().position(|n| *n == label) {
                        _ if self.many_targets() => self.color(s),
                        Some(place) => place,
                        None => out.len(),
                    };
                    out.push((label, color, vec![i]));
                }
            }
        }
        out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_mix_go_by_their_own_names() {
        let mut report = crate::report::Draft::new("run", "A").report;
        let mut s = MeasuredStep::example("A", "T 1", 8, 100.0);
        s.offered = Some(100.0);
        for (kind, p99_us) in [("READ", 1000.0), ("UPDATE", 2000.0)] {
            let latency = crate::measure::Latency {
                p99_us,
                ..Default::default()
            };
            s.latency.insert(kind.into(), latency);
        }
        report.steps.push(s);
        let rows = crate::sheets::steps(&report.steps).text(120);
        assert!(
            rows.contains("A: READ") && rows.contains("A: UPDATE"),
            "{rows}"
        );
        let all = of(&report);
        let chart = all.iter().find(|c| c.id.starts_with("latency-")).unwrap();
        let drawn = chart.file();
        for name in ["READ p50", "READ p99", "UPDATE p50", "UPDATE p99"] {
            assert!(drawn.contains(name), "{name}");
        }
    }

    #[test]
    fn a_report_gets_the_plots_that_its_steps_can_show() {
        let mut report = crate::report::Draft::new("study", "C-sizes").report;
        for target in ["A 1", "B 2"] {
            for records in [100.0, 600.0] {
                for connections in [1, 2, 4] {
                    let mut s = MeasuredStep::example(
                        "C.S5",
                        target,
                        connections,
                        100.0 * connections as f64,
                    );
                    s.at = Some(records);
                    s.mode = Some(format!("Test_{records}"));
                    report.steps.push(s);
                }
            }
        }
        let mut open = MeasuredStep::example("C.S5", "A 1", 4, 50.0);
        open.offered = Some(50.0);
        report.steps.push(open);
        let ids: Vec<String> = of(&report).into_iter().map(|c| c.id).collect();
        for want in [
            "connections-c-s5-test-100",
            "size-c-s5",
            "size-shape-c-s5",
            "latency-c-s5",
            "targets",
            "ratios",
        ] {
            assert!(ids.iter().any(|i| i == want), "{want} in {ids:?}");
        }
        let all = of(&report);
        let leading = first(&report, &all);
        let ids: Vec<&str> = leading.iter().map(|&i| &*all[i].id).collect();
        assert_eq!(ids, ["size-c-s5", "connections-c-s5-test-100"]);
        assert!(of(&crate::report::Draft::new("run", "x").report).is_empty());
    }
}
