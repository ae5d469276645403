//! Results beside each other: those of one study become one with all its targets, and all studies become one table, a row
//! for a step and a column for a target, with ratios and intervals.

use crate::measure::median_interval;
use crate::rates::interval;
use crate::report::{Report, Step, TargetInfo};
use crate::terms::{figure, grouped};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Results of one kind and name become one, their steps told apart by target; the same target twice by the time.
pub fn merge(reports: &[Report]) -> Vec<Report> {
    let mut out: Vec<Report> = Vec::new();
    for r in reports {
        let mut r = r.clone();
        let own = r.target.as_ref().map(TargetInfo::label);
        for s in &mut r.steps {
            if s.target.is_none() {
                s.target.clone_from(&own);
            }
        }
        let Some(have) = out
            .iter_mut()
            .find(|h| h.kind == r.kind && h.name == r.name)
        else {
            out.push(r);
            continue;
        };
        let taken: Vec<String> = have.steps.iter().filter_map(|s| s.target.clone()).collect();
        let stamp = r.started.clone();
        for s in &mut r.steps {
            if let Some(t) = s.target.as_mut().filter(|t| taken.contains(*t)) {
                let _ = write!(t, " ({stamp})");
            }
        }
        if have.targets.is_empty() {
            have.targets.extend(have.target.clone());
        }
        have.targets.extend(if r.targets.is_empty() {
            r.target.into_iter().collect()
        } else {
            r.targets
        });
        have.steps.extend(r.steps);
        have.checks.extend(r.checks);
        have.comparisons.extend(r.comparisons);
        have.shards.extend(r.shards);
        have.interrupted |= r.interrupted;
        for n in r.notes {
            if !have.notes.contains(&n) {
                have.notes.push(n);
            }
        }
    }
    out
}

/// In study D each number of shards is a target of its own: there the modes tell targets apart, and not rows.
pub fn modes_are_targets(r: &Report) -> bool {
    let pair = |s: &Step| (s.target.clone(), s.mode.clone());
    let pairs: BTreeSet<_> = r.steps.iter().map(pair).collect();
    let targets: BTreeSet<_> = pairs.iter().map(|(t, _)| t).collect();
    let modes: BTreeSet<_> = pairs.iter().map(|(_, m)| m).collect();
    r.name == "D-shards" && pairs.len() == targets.len() && pairs.len() == modes.len()
}

/// What a result is, for people.
pub fn title(r: &Report) -> String {
    match r.name.as_str() {
        "A-single" => "Study A: one process, tests 1 to 8".into(),
        "A-sharded" => "Study A: over shards, tests 1 to 8".into(),
        "B-keys" => "Study B: ways to insert, reads by number of keys".into(),
        "C-sizes" => "Study C: YCSB by connections and data size".into(),
        "D-shards" => "Study D: one process against shards".into(),
        "E-pains" => "Study E: flatness, spikes, restart, recovery".into(),
        "F-files" => "Study F: large files".into(),
        "canonical" => "The short study".into(),
        "bars" => "Operation by operation, against the null server".into(),
        other => format!("{} {other}", r.kind),
    }
}

/// The same in a word or two.
pub fn short_title(r: &Report) -> String {
    match (r.kind.as_str(), r.name.as_str()) {
        ("study", "canonical") => "short".into(),
        ("study", name) => name.into(),
        (kind, name) => format!("{kind} {name}"),
    }
}

/// All steps of all results: the first target is what the others are compared with.
pub struct Overview {
    pub targets: Vec<String>,
    pub rows: Vec<Row>,
}

pub struct Row {
    /// Which of the results.
    pub report: usize,
    pub study: String,
    pub step: String,
    /// One for each target; those that did not run it have none.
    pub cells: Vec<Option<Cell>>,
}

#[derive(Clone, Debug)]
pub struct Cell {
    pub text: String,
    /// What ratios are made of; none where a figure is no rate.
    rate: Option<f64>,
    interval: Option<[f64; 2]>,
}

/// The first target's rate divided by another's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub value: f64,
    pub interval: Option<[f64; 2]>,
}

/// Said of a ratio whose interval holds 1.
pub const UNDECIDED: &str = "≈";

impl Ratio {
    /// With its interval, where it has one, and a mark where that leaves open which one is faster.
    pub fn text(&self) -> String {
        match self.interval {
            Some([low, high]) => {
                let open = if self.undecided() { UNDECIDED } else { "" };
                format!("{:.2}× ({low:.2}–{high:.2}){open}", self.value)
            }
            None => format!("{:.2}×", self.value),
        }
    }

    pub fn undecided(&self) -> bool {
        self.interval
            .is_some_and(|[low, high]| low <= 1.0 && high >= 1.0)
    }
}

impl Row {
    /// The first target against that of column `i`.
    pub fn ratio(&self, i: usize) -> Option<Ratio> {
        let cell = |i: usize| self.cells.get(i)?.as_ref();
        let (first, other) = (cell(0)?, cell(i).filter(|_| i > 0)?);
        let (a, b) = (first.rate?, other.rate.filter(|r| *r > 0.0)?);
        let interval = first.interval.zip(other.interval);
        Some(Ratio {
            value: a / b,
            interval: interval.map(|(a, b)| [a[0] / b[1].max(1e-9), a[1] / b[0].max(1e-9)]),
        })
    }
}

/// An interval that bounds something.
fn known([low, high]: [f64; 2]) -> Option<[f64; 2]> {
    (low.is_finite() && high > low).then_some([low, high])
}

impl Overview {
    /// Of results that are merged.
    pub fn of(reports: &[Report]) -> Overview {
        let mut all = Overview {
            targets: Vec::new(),
            rows: Vec::new(),
        };
        for (n, r) in reports.iter().enumerate() {
            all.steps(n, r);
            all.comparisons(n, r);
            all.checks(n, r);
        }
        let width = all.targets.len();
        for row in &mut all.rows {
            row.cells.resize(width, None);
        }
        all
    }

    fn column(&mut self, label: &str) -> usize {
        match self.targets.iter().position(|t| t == label) {
            Some(i) => i,
            None => {
                self.targets.push(label.to_string());
                self.targets.len() - 1
            }
        }
    }

    fn put(&mut self, (n, r): (usize, &Report), step: &str, target: &str, cell: Cell) {
        let column = self.column(target);
        let at = self
            .rows
            .iter()
            .position(|row| row.report == n && row.step == step);
        let at = at.unwrap_or_else(|| {
            self.rows.push(Row {
                report: n,
                study: short_title(r),
                step: step.to_string(),
                cells: Vec::new(),
            });
            self.rows.len() - 1
        });
        let cells = &mut self.rows[at].cells;
        if cells.len() <= column {
            cells.resize(column + 1, None);
        }
        cells[column] = Some(cell);
    }

    /// Closed loops: of a step at many numbers of connections the best.
    fn steps(&mut self, n: usize, r: &Report) {
        let closed = || r.steps.iter().filter(|s| s.offered.is_none());
        let by_target = modes_are_targets(r);
        let alike = |a: &Step, b: &Step| {
            a.name == b.name && (by_target || a.mode == b.mode) && a.durability == b.durability
        };
        let mut done: Vec<&Step> = Vec::new();
        for s in closed() {
            if done.iter().any(|d| alike(d, s)) {
                continue;
            }
            done.push(s);
            let all: Vec<&Step> = closed().filter(|o| alike(o, s)).collect();
            let many = all.iter().any(|o| o.connections != s.connections);
            let mut name = s.name.clone();
            if let Some(mode) = s.mode.as_ref().filter(|m| **m != s.name && !by_target) {
                let _ = write!(name, ", {mode}");
            }
            let other = |o: &Step| o.name == s.name && o.mode == s.mode && !alike(o, s);
            if let Some(d) = s.durability.as_ref().filter(|_| closed().any(other)) {
                let _ = write!(name, ", {d}");
            }
            if many {
                name.push_str(", best");
            } else {
                let _ = write!(name, " @{}", s.connections);
            }
            let mut targets: Vec<&str> = Vec::new();
            for o in &all {
                let target = o.target.as_deref().unwrap_or("–");
                if targets.contains(&target) {
                    continue;
                }
                targets.push(target);
                let own = all
                    .iter()
                    .filter(|o| o.target.as_deref().unwrap_or("–") == target);
                let best = own.max_by(|a, b| a.per_second.total_cmp(&b.per_second));
                if let Some(best) = best {
                    self.put((n, r), &name, target, rate(best, many));
                }
            }
        }
    }

    /// Of the bars, what the target did; of two sides, both where they are different targets.
    fn comparisons(&mut self, n: usize, r: &Report) {
        let label = |t: Option<&TargetInfo>| t.map_or_else(|| "–".to_string(), TargetInfo::label);
        let two = r.kind == "compare";
        let (a, b) = (label(r.targets.first()), label(r.targets.get(1)));
        if two && a == b {
            return;
        }
        let subject = if two { b } else { label(r.target.as_ref()) };
        for c in &r.comparisons {
            let name = format!("{} @{}", c.title, c.connections);
            let cell = |side: &crate::report::Side| Cell {
                text: format!("{}/s", grouped(side.per_second)),
                rate: Some(side.per_second),
                interval: Some(&side.slices_per_second)
                    .filter(|s| s.len() >= 3)
                    .and_then(|s| known(median_interval(s))),
            };
            self.put((n, r), &name, &subject, cell(&c.subject));
            if two {
                self.put((n, r), &name, &a, cell(&c.reference));
            }
        }
    }

    /// Single figures, where it is clear whose they are. Peaks and knees stand among the steps.
    fn checks(&mut self, n: usize, r: &Report) {
        let [target] = r.targets.as_slice() else {
            return;
        };
        let target = target.label();
        let repeated = |name: &str| name.ends_with(": peak") || name.ends_with(": knee");
        for c in r.checks.iter().filter(|c| !repeated(&c.name)) {
            let verdict = match c.at_least.or(c.at_most) {
                Some(_) if !c.pass => " FAIL",
                _ => "",
            };
            let own = format!("{target}: ");
            let name = c.name.strip_prefix(&own).unwrap_or(&c.name);
            let text = format!("{} {}{verdict}", figure(c.value), c.unit);
            let cell = Cell {
                text: text.replace("  ", " ").trim_end().to_string(),
                rate: None,
                interval: None,
            };
            self.put((n, r), name, &target, cell);
        }
    }
}

fn rate(s: &Step, many: bool) -> Cell {
    let mut text = match s.megabytes_per_second {
        Some(mb) => format!("{} MB/s", grouped(mb)),
        None => format!("{}/s", grouped(s.per_second)),
    };
    if many {
        let _ = write!(text, " @{}", s.connections);
    }
    if s.client_bound {
        text.push_str(" *");
    }
    if s.interrupted {
        text.push_str(" (cut short)");
    }
    Cell {
        text,
        rate: Some(s.per_second),
        interval: known(interval(s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Sample;
    use crate::report::{Check, Draft};

    fn step(name: &str, target: &str, connections: usize, rate: f64) -> Step {
        let sample = |i: u64| Sample {
            seconds: 1.0,
            operations: (rate * (0.9 + 0.02 * (i % 11) as f64)) as u64,
            ..Sample::default()
        };
        Step {
            series: (0..22).map(sample).collect(),
            ..Step::example(name, target, connections, rate)
        }
    }

    fn report(kind: &str, name: &str, steps: Vec<Step>) -> Report {
        let mut draft = Draft::new(kind, name);
        draft.add_target(TargetInfo {
            product: steps[0].target.clone().unwrap_or_default(),
            ..TargetInfo::default()
        });
        draft.report.steps = steps;
        draft.report
    }

    #[test]
    fn all_studies_are_one_table() {
        let b = |target: &str, rate: f64| {
            let mut s = step("insert", target, 1, rate);
            s.mode = Some("key given".into());
            report("study", "B-keys", vec![s])
        };
        let mut sweep = report(
            "sweep",
            "C.S5",
            vec![
                step("C.S5", "A", 1, 100.0),
                step("C.S5", "A", 8, 400.0),
                step("C.S5", "A", 64, 300.0),
                Step {
                    offered: Some(50.0),
                    ..step("C.S5", "A", 8, 50.0)
                },
            ],
        );
        sweep.checks = vec![
            Check::figure("A, C.S5: peak", 8.0, "connections"),
            Check::at_most("ready", 400.0, "ms", 300.0),
        ];
        let merged = merge(&[b("A", 1000.0), sweep, b("B", 500.0), b("C", 1000.0)]);
        assert_eq!(merged.len(), 2);
        let all = Overview::of(&merged);
        assert_eq!(all.targets, ["A", "B", "C"]);
        let rows: Vec<(&str, &str)> = all
            .rows
            .iter()
            .map(|r| (r.study.as_str(), r.step.as_str()))
            .collect();
        assert_eq!(
            rows,
            [
                ("B-keys", "insert, key given @1"),
                ("sweep C.S5", "C.S5, best"),
                ("sweep C.S5", "ready")
            ]
        );
        let ratio = all.rows[0].ratio(1).unwrap();
        assert_eq!(ratio.value, 2.0);
        assert!(
            !ratio.undecided() && ratio.text().starts_with("2.00× (1."),
            "{}",
            ratio.text()
        );
        assert!(all.rows[0].ratio(2).unwrap().undecided());
        assert!(all.rows[0].ratio(0).is_none() && all.rows[1].ratio(1).is_none());
        let best = all.rows[1].cells[0].as_ref().unwrap();
        assert_eq!(best.text, "400/s @8");
        let ready = all.rows[2].cells[0].as_ref().unwrap();
        assert_eq!(ready.text, "400 ms FAIL");
        assert!(all.rows.iter().all(|r| r.cells.len() == 3));
    }

    #[test]
    fn shards_are_beside_one_process() {
        let of = |target: &str, shards: &str, rate: f64| Step {
            mode: Some(shards.into()),
            ..step("D.S1 load", target, 32, rate)
        };
        let steps = vec![
            of("P", "1 shard(s)", 100.0),
            of("2 × P", "2 shard(s)", 200.0),
        ];
        let d = report("study", "D-shards", steps.clone());
        let all = Overview::of(std::slice::from_ref(&d));
        assert_eq!(
            (all.rows.len(), all.rows[0].step.as_str()),
            (1, "D.S1 load @32")
        );
        assert_eq!(all.rows[0].ratio(1).unwrap().value, 0.5);
        let has = |r: &Report, id: &str| crate::html::charts::of(r).iter().any(|c| c.id == id);
        assert!(has(&d, "targets") && has(&d, "ratios"));
        // Two insert modes are two things wherever they ran, and nothing is beside them.
        let b = report("study", "B-keys", steps);
        assert_eq!(Overview::of(std::slice::from_ref(&b)).rows.len(), 2);
        assert!(!has(&b, "targets") && !has(&b, "ratios"));
    }
}
