//! The scorecard that a page opens with: a row for each workload in plain words, a bar for each target, and what one test over
//! all rows decides.
//!
//! Invariant: lengths are shares of the row's longest bar, and an interval is clipped to it.

use crate::lang::{known, tr};
use crate::overview::{Overview, Row, connections};
use crate::rates::{Ratio, RatioWord, drawn, interval};
use crate::report::{MeasuredStep, Report};
use crate::terms::{bytes, grouped, span};
use crate::text;
use std::fmt::Write as _;

pub struct Scorecard {
    pub targets: Vec<String>,
    pub workloads: Vec<Workload>,
}

/// A row.
pub struct Workload {
    /// `90% reads, 10% updates, 32 connections, 1 KB`.
    pub words: String,
    /// The study and its name for the step.
    pub place: String,
    /// One for each target that ran it.
    pub bars: Vec<Option<Bar>>,
    /// The first target against each other one.
    pub against: Vec<Option<Against>>,
}

pub struct Bar {
    pub text: String,
    /// Of the longest bar.
    pub length: f64,
    /// Of the longest bar, clipped.
    pub interval: Option<[f64; 2]>,
    pub cpu_us: Option<f64>,
    /// Under the load that all targets were offered, else of the closed loop.
    pub p99_us: Option<f64>,
    /// It did not keep up with that load.
    pub overloaded: bool,
}

pub struct Against {
    pub word: RatioWord,
    /// `2.00 times as fast as Q`, `not decided: the machine was not quiet`.
    pub text: String,
}

impl Scorecard {
    /// Of merged results, with their overview.
    pub fn of(reports: &[Report], overview: &Overview) -> Scorecard {
        // Of what was measured as the data grew the last is the workload; those before it come after all others.
        let (last, before): (Vec<&Row>, Vec<&Row>) =
            overview.rows.iter().partition(|row| is_last(reports, row));
        let rows = last.into_iter().chain(before);
        let workloads = rows.filter_map(|row| {
            let report = reports.get(row.report)?;
            workload(report, overview, row)
        });
        Scorecard {
            targets: overview.targets.clone(),
            workloads: workloads.collect(),
        }
    }
}

/// Whether no step of its name and connections was measured with more data.
fn is_last(reports: &[Report], row: &Row) -> bool {
    let Some(report) = reports.get(row.report) else {
        return true;
    };
    let steps = row.cells.iter().flatten().filter_map(|c| c.step);
    let own = steps.filter_map(|i| report.steps.get(i)).next();
    let Some((own, at)) = own.and_then(|s| Some((s, s.at?))) else {
        return true;
    };
    let alike = |s: &&MeasuredStep| s.name == own.name && s.connections == own.connections;
    report
        .steps
        .iter()
        .filter(alike)
        .all(|s| s.at.is_none_or(|a| a <= at))
}

fn workload(report: &Report, overview: &Overview, row: &Row) -> Option<Workload> {
    let step = |i: usize| report.steps.get(row.cells.get(i)?.as_ref()?.step?);
    let all: Vec<Option<&MeasuredStep>> = (0..row.cells.len()).map(step).collect();
    let named = all.iter().flatten().next()?;
    let longest = all.iter().flatten().map(|s| s.per_second);
    let longest = longest.fold(0.0, f64::max);
    let load = common_load(report, named, &all);
    let bars = all.iter().map(|s| Some(bar((*s)?, report, longest, load)));
    let against = (1..all.len()).map(|i| {
        let ratio = row.ratio(i)?;
        let other = overview.targets.get(i)?;
        let word = row.words.get(i).copied().unwrap_or(RatioWord::Open);
        let vetoes = row.vetoes.get(i).map_or(&[][..], Vec::as_slice);
        Some(Against {
            word,
            text: decision(ratio, word, vetoes, other, at_least(all[0], all[i])),
        })
    });
    // Where modes tell targets apart, that of one target is not the row's.
    let is_shared = all.iter().flatten().all(|s| s.mode == named.mode);
    let mut words = words(named, is_shared);
    if let Some(load) = load {
        words = text!(
            "{0}; p99 at {1} operations a second for all",
            words,
            grouped(load)
        );
    }
    Some(Workload {
        words,
        place: format!("{}, {}", row.study, row.step),
        bars: bars.collect(),
        against: std::iter::once(None).chain(against).collect(),
    })
}

/// Whether the faster of two was held up by the client, so that the ratio is the least that it can be.
fn at_least(a: Option<&MeasuredStep>, b: Option<&MeasuredStep>) -> bool {
    let (Some(a), Some(b)) = (a, b) else {
        return false;
    };
    let faster = if a.per_second > b.per_second { a } else { b };
    faster.client_bound
}

/// What one test over all rows says of a ratio.
fn decision(
    ratio: Ratio,
    word: RatioWord,
    vetoes: &[&'static str],
    other: &str,
    least: bool,
) -> String {
    let times = |v: f64| match v {
        v if v >= 9.95 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    };
    let (up, down) = (times(ratio.value), times(1.0 / ratio.value));
    match word {
        RatioWord::Faster if least => text!("at least {0} times as fast as {1}", up, other),
        RatioWord::Faster => text!("{0} times as fast as {1}", up, other),
        RatioWord::Slower if least => text!("{0} is at least {1} times as fast", other, down),
        RatioWord::Slower => text!("{0} is {1} times as fast", other, down),
        RatioWord::Open if !vetoes.is_empty() => {
            let why: Vec<&str> = vetoes.iter().map(|v| known(v)).collect();
            text!("against {0} not decided: {1}", other, why.join(", "))
        }
        RatioWord::Open if ratio.interval.is_none() => {
            text!("against {0} not decided: measured once", other)
        }
        RatioWord::Open => text!("against {0} not decided: chance explains it", other),
    }
}

fn bar(s: &MeasuredStep, report: &Report, longest: f64, load: Option<f64>) -> Bar {
    let share = |v: f64| (v / longest).clamp(0.0, 1.0);
    let open = load.and_then(|l| {
        let mut loops = open_loops(report, s);
        Some(loops.find(|(o, _)| is_same_load(*o, l))?.1)
    });
    let reach = interval(s).map(|i| drawn(s.per_second, i).map(share));
    let text = match s.megabytes_per_second {
        Some(mb) => format!("{} MB/s", grouped(mb)),
        None => format!("{}/s", grouped(s.per_second)),
    };
    Bar {
        text,
        length: share(s.per_second),
        interval: reach,
        cpu_us: s.server_cpu_us,
        p99_us: load.map_or_else(|| s.worst_p99(), |_| open.and_then(MeasuredStep::worst_p99)),
        overloaded: open.is_some_and(|o| o.overloaded),
    }
}

/// The open loops of a workload on a target.
fn open_loops<'r>(
    report: &'r Report,
    s: &'r MeasuredStep,
) -> impl Iterator<Item = (f64, &'r MeasuredStep)> {
    let own = move |o: &&MeasuredStep| o.name == s.name && o.target == s.target;
    let all = report.steps.iter().filter(own);
    all.filter_map(|o| Some((o.offered?, o)))
}

/// Loads that differ by less are the same load.
fn is_same_load(a: f64, b: f64) -> bool {
    (a - b).abs() <= a.max(b) * 0.01
}

/// The greatest load that all targets were offered.
fn common_load(
    report: &Report,
    named: &MeasuredStep,
    all: &[Option<&MeasuredStep>],
) -> Option<f64> {
    let everybody = |load: f64| {
        let mut steps = all.iter().flatten();
        steps.all(|s| open_loops(report, s).any(|(l, _)| is_same_load(l, load)))
    };
    let loads = open_loops(report, named).map(|(load, _)| load);
    loads.filter(|l| everybody(*l)).max_by(f64::total_cmp)
}

impl Bar {
    /// `p99 1.9 ms · 31 µs CPU`.
    pub fn more(&self) -> String {
        let mut all = Vec::new();
        match self.p99_us {
            _ if self.overloaded => all.push(tr("overloaded").to_string()),
            Some(us) => all.push(format!("p99 {}", span((us * 1e3) as u64))),
            None => {}
        }
        if let Some(cpu) = self.cpu_us {
            all.push(format!("{cpu:.0} µs CPU"));
        }
        all.join(" · ")
    }
}

/// A workload in plain words: what its operations are, from how many connections, of which size.
fn words(s: &MeasuredStep, with_mode: bool) -> String {
    let all: u64 = s.latency.values().map(|l| l.count).sum();
    let mut kinds: Vec<(&str, u64)> = s.latency.iter().map(|(k, l)| (&**k, l.count)).collect();
    kinds.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let of = |kind: &str| plural(kind).map_or_else(|| kind.to_lowercase(), String::from);
    let mut text = match kinds.as_slice() {
        [] => known(&s.name).to_string(),
        // The name says more than that it was an operation.
        [(kind, _)] => plural(kind).map_or_else(|| known(&s.name).to_string(), String::from),
        several => {
            let share = |n: u64| (n as f64 * 100.0 / all.max(1) as f64).round();
            let parts = several.iter().filter(|k| share(k.1) >= 1.0);
            let parts = parts.map(|(k, n)| format!("{:.0}% {}", share(*n), of(k)));
            parts.collect::<Vec<_>>().join(tr(", "))
        }
    };
    if let Some(mode) = (s.mode.as_ref()).filter(|m| with_mode && **m != s.name) {
        let _ = write!(text, "{}{}", tr(", "), known(mode));
    }
    let _ = write!(text, "{}{}", tr(", "), connections(s.connections));
    if let Some(size) = s.bytes_per_operation.or(s.record_bytes) {
        let size = match size {
            1000.0..10_000.0 => format!("{} KB", (size / 100.0).round() / 10.0),
            other => bytes(other as u64),
        };
        let _ = write!(text, "{}{size}", tr(", "));
    }
    text
}

fn plural(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "READ" | "read" => tr("reads"),
        "INSERT" | "insert" => tr("inserts"),
        "UPDATE" | "update" => tr("updates"),
        "DELETE" | "delete" => tr("deletes"),
        "SCAN" => tr("scans of ranges"),
        "READ-MODIFY-WRITE" => tr("reads with an update"),
        "UPLOAD" => tr("files stored"),
        "DOWNLOAD" => tr("files read"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Latency;
    use crate::report::{Draft, TargetInfo};

    fn count(n: u64) -> Latency {
        Latency {
            count: n,
            p99_us: 1900.0,
            ..Latency::default()
        }
    }

    fn report(steps: Vec<MeasuredStep>) -> Report {
        let mut d = Draft::new("sweep", "C.S4");
        for name in ["P", "Q"] {
            d.add_target(TargetInfo {
                product: name.into(),
                ..TargetInfo::default()
            });
        }
        d.report.steps = steps;
        d.report
    }

    fn step(target: &str, rates: &[f64]) -> MeasuredStep {
        let mut s = MeasuredStep::repeated("C.S4", target, 32, rates);
        s.latency.clear();
        s.latency.insert("READ".into(), count(900));
        s.latency.insert("UPDATE".into(), count(100));
        s.record_bytes = Some(1000.0);
        s.server_cpu_us = Some(31.0);
        s
    }

    fn open(target: &str, load: f64) -> MeasuredStep {
        MeasuredStep {
            offered: Some(load),
            ..step(target, &[load])
        }
    }

    fn card(steps: Vec<MeasuredStep>) -> Scorecard {
        let all = [report(steps)];
        let overview = Overview::of(&all);
        Scorecard::of(&all, &overview)
    }

    #[test]
    fn a_workload_is_told_in_plain_words_with_bars_and_one_decision() {
        let card = card(vec![
            step("P", &[200.0, 201.0, 199.0]),
            step("Q", &[100.0, 100.5, 99.5]),
            open("P", 50.0),
            open("P", 90.0),
            open("Q", 50.0),
        ]);
        assert_eq!(card.targets, ["P", "Q"]);
        let row = &card.workloads[0];
        assert_eq!(
            (card.workloads.len(), row.words.as_str()),
            (
                1,
                "90% reads, 10% updates, 32 connections, 1 KB; p99 at 50.0 operations a second for all"
            )
        );
        let bars: Vec<&Bar> = row.bars.iter().flatten().collect();
        assert_eq!((bars[0].length, bars[1].length), (1.0, 0.5));
        let [low, high] = bars[0].interval.unwrap();
        assert!(low > 0.9 && high <= 1.0, "{low} {high}");
        // 90 a second was offered to one of them only.
        assert_eq!(bars[0].more(), "p99 1.90 ms · 31 µs CPU");
        let against = row.against[1].as_ref().unwrap();
        assert_eq!(
            (against.word, against.text.as_str()),
            (RatioWord::Faster, "2.00 times as fast as Q")
        );
    }

    #[test]
    fn a_mode_that_tells_targets_apart_is_not_in_the_words_of_their_row() {
        let of = |target: &str, mode: &str| MeasuredStep {
            mode: Some(mode.into()),
            ..step(target, &[100.0])
        };
        let words = |steps| {
            let mut report = report(steps);
            report.name = "D-shards".into();
            let all = [report];
            let card = Scorecard::of(&all, &Overview::of(&all));
            (
                card.workloads[0].bars.len(),
                card.workloads[0].words.clone(),
            )
        };
        let (bars, row) = words(vec![of("P", "1 shard"), of("Q", "2 shards")]);
        assert!(bars == 2 && !row.contains("shard"), "{row}");
        let (_, row) = words(vec![of("P", "key given"), of("Q", "key given")]);
        assert!(row.contains("key given"), "{row}");
    }

    #[test]
    fn the_last_of_what_was_measured_as_data_grew_comes_first() {
        let at = |at: f64| MeasuredStep {
            mode: Some(format!("of {at}")),
            at: Some(at),
            ..step("P", &[100.0])
        };
        let card = card(vec![
            at(1000.0),
            at(3000.0),
            at(2000.0),
            step("P", &[100.0]),
        ]);
        let words: Vec<&str> = card.workloads.iter().map(|w| &*w.words).collect();
        let has = |i: usize, part: &str| words[i].contains(part);
        assert!(
            has(0, "of 3000") && has(2, "of 1000") && has(3, "of 2000"),
            "{words:?}"
        );
    }

    #[test]
    fn what_is_not_to_be_believed_decides_nothing_and_says_why() {
        let noisy = || {
            let mut s = step("Q", &[100.0, 100.5, 99.5]);
            s.noise.others_percent = Some(40.0);
            s
        };
        let card = card(vec![step("P", &[200.0, 201.0, 199.0]), noisy()]);
        let against = card.workloads[0].against[1].as_ref().unwrap();
        assert_eq!(against.word, RatioWord::Open);
        assert_eq!(
            against.text,
            "against Q not decided: the machine was not quiet"
        );
    }
}
