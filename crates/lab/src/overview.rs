//! Results beside each other: those of one study become one with all its targets, and all studies become one table, a row
//! for a step and a column for a target, with ratios and intervals.

use crate::family;
use crate::lang::tr;
use crate::rates::{Ratio, RatioWord, UNDECIDED, interval, rates, reach};
use crate::report::{MeasuredStep, Report, TargetInfo};
use crate::terms::{figure, grouped};
use crate::text;
use crate::veto;
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
        // The same step of the same target a second time is told apart by when it was.
        let same = |a: &MeasuredStep, b: &MeasuredStep| {
            let load = (a.connections, a.at, a.offered.is_some());
            (a.target == b.target && a.name == b.name && a.mode == b.mode)
                && load == (b.connections, b.at, b.offered.is_some())
        };
        let twice = r
            .steps
            .iter()
            .filter(|s| have.steps.iter().any(|h| same(h, s)));
        let twice: Vec<Option<String>> = twice.map(|s| s.target.clone()).collect();
        let stamp = r.started.clone();
        for s in r.steps.iter_mut().filter(|s| twice.contains(&s.target)) {
            if let Some(t) = s.target.as_mut() {
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
        let mut labels = BTreeSet::new();
        have.targets
            .retain(|t| labels.insert(t.label()) || r.kind == "compare");
        have.steps.extend(r.steps);
        have.checks.extend(r.checks);
        have.comparisons.extend(r.comparisons);
        have.shards.extend(r.shards);
        for c in &mut r.choices {
            if have.choices.iter().any(|h| h.target == c.target) {
                let _ = write!(c.target, " ({stamp})");
            }
        }
        have.choices.extend(r.choices);
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
    let pair = |s: &MeasuredStep| (s.target.clone(), s.mode.clone());
    let pairs: BTreeSet<_> = r.steps.iter().map(pair).collect();
    let targets: BTreeSet<_> = pairs.iter().map(|(t, _)| t).collect();
    let modes: BTreeSet<_> = pairs.iter().map(|(_, m)| m).collect();
    r.name == "D-shards" && pairs.len() == targets.len() && pairs.len() == modes.len()
}

/// What a result is, for people.
pub fn title(r: &Report) -> String {
    match r.name.as_str() {
        "A-single" => tr("Study A: one process, tests 1 to 8").into(),
        "A-sharded" => tr("Study A: over shards, tests 1 to 8").into(),
        "A-both" => tr("Study A: one process against shards, tests 1 to 8").into(),
        "B-keys" => tr("Study B: ways to insert, reads by number of keys").into(),
        "C-sizes" => tr("Study C: YCSB by connections and data size").into(),
        "D-shards" => tr("Study D: one process against shards").into(),
        "E-pains" => tr("Study E: flatness, spikes, restart, recovery").into(),
        "F-files" => tr("Study F: large files").into(),
        "K-plans" => tr("Study K: the plan that is chosen, against the best").into(),
        "I-moves" => tr("Study I: chunks that move under load").into(),
        "L-search" => tr("Study L: full text").into(),
        "M-vectors" => tr("Study M: the nearest vectors").into(),
        "canonical" => tr("The short study").into(),
        "bars" => tr("Operation by operation, against the null server").into(),
        "A-B" if r.kind == "compare" => tr("B against A").into(),
        "trials" if r.kind == "compare" => tr("What a comparison can see here").into(),
        "seed-1" => tr("Seed 1: one process against shards").into(),
        "seed-2" => tr("Seed 2: MongoDB against MySQL").into(),
        "seed-3" => tr("Seed 3: YCSB on one big machine").into(),
        "seed-4" => tr("Seed 4: micro-sharding").into(),
        "seed-5" => tr("Seed 5: what they complained of").into(),
        other => format!("{} {other}", r.kind),
    }
}

/// The same in a word or two.
pub fn short_title(r: &Report) -> String {
    match (r.kind.as_str(), r.name.as_str()) {
        ("study", "canonical") => tr("short").into(),
        ("study", name) => name.into(),
        (kind, name) => format!("{kind} {name}"),
    }
}

/// All steps of all results: the first target is what the others are compared with.
pub struct Overview {
    pub targets: Vec<String>,
    pub rows: Vec<Row>,
    /// The first target against each other one over all rows that count, as one more hypothesis of the same test: what is a
    /// little slower everywhere need not be slower in any one row for certain.
    pub together: Vec<Option<(Ratio, RatioWord)>>,
}

/// What a step does, so that a sentence speaks of one kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Reads,
    Writes,
    Mixed,
    /// Queries of the user's own: what they do is theirs.
    Own,
    /// Figures that are no rates.
    Other,
}

impl Class {
    /// By the names of the operations; where a study has no such names, writes have a durability.
    pub fn of(s: &MeasuredStep) -> Class {
        if s.own_queries {
            return Class::Own;
        }
        let reads = |k: &String| match k.as_str() {
            "READ" | "SCAN" | "DOWNLOAD" | "CHUNK-READ" => true,
            "operation" => s.durability.is_none(),
            other => other.starts_with("read") || other.starts_with("range"),
        };
        let all: Vec<bool> = s.latency.keys().map(reads).collect();
        match (all.iter().any(|r| *r), all.iter().all(|r| *r)) {
            (true, true) => Class::Reads,
            (true, false) => Class::Mixed,
            (false, _) => Class::Writes,
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Class::Reads => tr("reads"),
            Class::Writes => tr("writes"),
            Class::Mixed => tr("mixed work"),
            Class::Own => tr("queries"),
            Class::Other => tr("figures"),
        }
    }
}

pub struct Row {
    /// Which of the results.
    pub report: usize,
    pub study: String,
    pub step: String,
    pub class: Class,
    /// One for each target; those that did not run it have none.
    pub cells: Vec<Option<Cell>>,
    /// What one test over all rows decides of the first target against each other one.
    pub words: Vec<RatioWord>,
    /// Why nothing is decided of them, whatever the figures are.
    pub vetoes: Vec<Vec<&'static str>>,
}

#[derive(Clone, Debug)]
pub struct Cell {
    pub text: String,
    /// What ratios are made of: the rate of each repeat; none where a figure is no rate.
    rates: Vec<f64>,
    /// CPU microseconds an operation of the server.
    pub cpu_us: Option<f64>,
    /// Its place among the report's steps, where it is a step.
    pub step: Option<usize>,
}

impl Row {
    /// The first target against that of column `i`.
    pub fn ratio(&self, i: usize) -> Option<Ratio> {
        let cell = |i: usize| self.cells.get(i)?.as_ref();
        let (first, other) = (cell(0)?, cell(i).filter(|_| i > 0)?);
        Ratio::of(&first.rates, &other.rates)
    }

    /// The ratio with its interval, and a mark where it is not decided.
    pub fn ratio_text(&self, i: usize) -> Option<(RatioWord, String)> {
        let ratio = self.ratio(i)?;
        let word = self.words.get(i).copied().unwrap_or(RatioWord::Open);
        let open = word == RatioWord::Open && ratio.interval.is_some();
        let mark = if open { UNDECIDED } else { "" };
        Some((word, format!("{}{mark}", ratio.text())))
    }

    /// The first target's CPU an operation against the other's.
    pub fn cpu_ratio(&self, i: usize) -> Option<f64> {
        let cpu = |i: usize| self.cells.get(i)?.as_ref()?.cpu_us;
        let ratio = cpu(0)? / cpu(i).filter(|c| i > 0 && *c > 0.0)?;
        ratio.is_finite().then_some(ratio)
    }
}

impl Overview {
    /// Of results that are merged.
    pub fn of(reports: &[Report]) -> Overview {
        let mut all = Overview {
            targets: Vec::new(),
            rows: Vec::new(),
            together: Vec::new(),
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
        all.decide(reports);
        all
    }

    /// One test over all rows and targets; a vetoed row is neither tested nor decided.
    fn decide(&mut self, reports: &[Report]) {
        let width = self.targets.len();
        for row in &mut self.rows {
            row.words = vec![RatioWord::Open; width];
            row.vetoes = (0..width).map(|i| vetoes(row, i, reports)).collect();
        }
        let mut places = Vec::new();
        let mut ratios = Vec::new();
        for (n, row) in self.rows.iter().enumerate() {
            for i in 1..width {
                let ratio = row.ratio(i).filter(|_| row.vetoes[i].is_empty());
                if let Some(ratio) = ratio {
                    places.push((n, i));
                    ratios.push(ratio);
                }
            }
        }
        let together: Vec<Option<Ratio>> = (0..width).map(|i| self.over_rows(i)).collect();
        ratios.extend(together.iter().flatten().copied());
        let mut words = family::decided(&ratios).into_iter();
        for (n, i) in places {
            self.rows[n].words[i] = words.next().unwrap_or(RatioWord::Open);
        }
        let decided = together
            .into_iter()
            .map(|ratio| Some((ratio?, words.next()?)));
        self.together = decided.collect();
    }

    /// The ratio to a target in each repeat, the geometric mean over the rows that nothing forbids to count; of at least two rows
    /// that were measured equally often.
    fn over_rows(&self, i: usize) -> Option<Ratio> {
        let counts = |row: &&Row| i > 0 && row.vetoes.get(i).is_some_and(Vec::is_empty);
        let rates = |row: &Row| {
            let (a, b) = (row.cells.first()?.as_ref()?, row.cells.get(i)?.as_ref()?);
            let pairs = a.rates.iter().zip(&b.rates);
            let same = a.rates.len() == b.rates.len() && a.rates.len() > 1;
            same.then(|| pairs.map(|(a, b)| (a / b).ln()).collect::<Vec<f64>>())
        };
        let all: Vec<Vec<f64>> = self.rows.iter().filter(counts).filter_map(rates).collect();
        let repeats = all.first().map(Vec::len)?;
        if all.len() < 2 || all.iter().any(|r| r.len() != repeats) {
            return None;
        }
        let mean = |n: usize| all.iter().map(|r| r[n]).sum::<f64>() / all.len() as f64;
        let ratios: Vec<f64> = (0..repeats).map(|n| mean(n).exp()).collect();
        Ratio::of(&ratios, &vec![1.0; repeats])
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

    fn put(
        &mut self,
        (n, r): (usize, &Report),
        (step, class): (&str, Class),
        target: &str,
        cell: Cell,
    ) {
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
                class,
                cells: Vec::new(),
                words: Vec::new(),
                vetoes: Vec::new(),
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
        let alike = |a: &MeasuredStep, b: &MeasuredStep| {
            a.name == b.name && (by_target || a.mode == b.mode) && a.durability == b.durability
        };
        let mut done: Vec<&MeasuredStep> = Vec::new();
        for s in closed() {
            if done.iter().any(|d| alike(d, s)) {
                continue;
            }
            done.push(s);
            let all: Vec<&MeasuredStep> = closed().filter(|o| alike(o, s)).collect();
            let many = all.iter().any(|o| o.connections != s.connections);
            let mut name = s.name.clone();
            if let Some(mode) = s.mode.as_ref().filter(|m| **m != s.name && !by_target) {
                let _ = write!(name, ", {mode}");
            }
            let other = |o: &MeasuredStep| o.name == s.name && o.mode == s.mode && !alike(o, s);
            if let Some(d) = s.durability.as_ref().filter(|_| closed().any(other)) {
                let _ = write!(name, ", {d}");
            }
            if many {
                name.push_str(tr(", best"));
            } else {
                let _ = write!(name, ", {}", connections(s.connections));
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
                    let step = r.steps.iter().position(|s| std::ptr::eq(s, *best));
                    let cell = Cell {
                        step,
                        ..rate(best, many)
                    };
                    self.put((n, r), (&name, Class::of(best)), target, cell);
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
            let name = format!("{}, {}", c.title, connections(c.connections));
            // Slices are paired, as repeats are.
            let cell = |side: &crate::report::Side| Cell {
                text: format!("{}/s", grouped(side.per_second)),
                rates: match side.slices_per_second.is_empty() {
                    true => vec![side.per_second],
                    false => side.slices_per_second.clone(),
                },
                cpu_us: side.cpu_us,
                step: None,
            };
            let what = (name.as_str(), Class::Other);
            self.put((n, r), what, &subject, cell(&c.subject));
            if two {
                self.put((n, r), what, &a, cell(&c.reference));
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
                rates: Vec::new(),
                cpu_us: None,
                step: None,
            };
            self.put((n, r), (name, Class::Other), &target, cell);
        }
    }
}

fn rate(s: &MeasuredStep, many: bool) -> Cell {
    let mut text = match s.megabytes_per_second {
        Some(mb) => format!("{} MB/s", grouped(mb)),
        None => format!("{}/s", grouped(s.per_second)),
    };
    text.push_str(&reach(s.per_second, interval(s)));
    if many {
        let _ = write!(text, " ({})", connections(s.connections));
    }
    if s.client_bound {
        text.push_str(" *");
    }
    if s.noise.reasons().is_some() {
        let _ = write!(text, " {}", crate::sheets::NOISY);
    }
    if s.interrupted {
        text.push_str(tr(" (cut short)"));
    }
    Cell {
        text,
        rates: rates(s),
        cpu_us: s.server_cpu_us,
        step: None,
    }
}

/// `8 connections`.
pub fn connections(n: usize) -> String {
    match n {
        1 => tr("1 connection").into(),
        n => text!("{0} connections", n),
    }
}

/// Why the first target and another are not to be compared in a row.
fn vetoes(row: &Row, i: usize, reports: &[Report]) -> Vec<&'static str> {
    let report = reports.get(row.report);
    let step = |i: usize| {
        let cell = row.cells.get(i)?.as_ref()?;
        report?.steps.get(cell.step?)
    };
    let (Some(a), Some(b)) = (step(0), step(i).filter(|_| i > 0)) else {
        return Vec::new();
    };
    let info = |s: &MeasuredStep| {
        let label = s.target.as_deref();
        let mut targets = report?.targets.iter();
        targets.find(|t| Some(&*t.label()) == label).cloned()
    };
    veto::of(a, b, info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::RatioWord;
    use crate::report::{CheckedFigure, Draft};

    fn step(name: &str, target: &str, connections: usize, rate: f64) -> MeasuredStep {
        MeasuredStep::repeated(
            name,
            target,
            connections,
            &[0.99, 1.0, 1.01].map(|r| r * rate),
        )
    }

    fn report(kind: &str, name: &str, steps: Vec<MeasuredStep>) -> Report {
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
                MeasuredStep {
                    offered: Some(50.0),
                    ..step("C.S5", "A", 8, 50.0)
                },
            ],
        );
        sweep.checks = vec![
            CheckedFigure::figure("A, C.S5: peak", 8.0, "connections"),
            CheckedFigure::at_most("ready", 400.0, "ms", 300.0),
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
                ("B-keys", "insert, key given, 1 connection"),
                ("sweep C.S5", "C.S5, best"),
                ("sweep C.S5", "ready")
            ]
        );
        let ratio = all.rows[0].ratio(1).unwrap();
        assert_eq!(ratio.value, 2.0);
        assert_eq!(ratio.text(), "2.00× (2.00–2.00)");
        assert_eq!(
            all.rows[0].ratio_text(1),
            Some((RatioWord::Faster, "2.00× (2.00–2.00)".into()))
        );
        assert_eq!(all.rows[0].ratio_text(2).unwrap().0, RatioWord::Open);
        assert!(all.rows[0].ratio(0).is_none() && all.rows[1].ratio(1).is_none());
        let best = all.rows[1].cells[0].as_ref().unwrap();
        assert_eq!(best.text, "400/s ±2.5% (8 connections)");
        let ready = all.rows[2].cells[0].as_ref().unwrap();
        assert_eq!(ready.text, "400 ms FAIL");
        assert!(all.rows.iter().all(|r| r.cells.len() == 3));
    }

    #[test]
    fn shards_are_beside_one_process() {
        let of = |target: &str, shards: &str, rate: f64| MeasuredStep {
            mode: Some(shards.into()),
            ..step("D.S1 load", target, 32, rate)
        };
        let steps = vec![of("P", "1 shard", 100.0), of("2 × P", "2 shards", 200.0)];
        let d = report("study", "D-shards", steps.clone());
        let all = Overview::of(std::slice::from_ref(&d));
        assert_eq!(
            (all.rows.len(), all.rows[0].step.as_str()),
            (1, "D.S1 load, 32 connections")
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
