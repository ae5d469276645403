//! Results on the terminal: what they say, the scorecard, tables.

use crate::fault::{Fault, Result};
use crate::lang::tr;
use crate::overview::{Overview, merge, short_title, title};
use crate::rates::{RatioWord, UNDECIDED, interval};
use crate::report::Report;
use crate::scorecard::{Bar, Scorecard, Workload};
use crate::sheet::{ColumnKind, Sheet, cells, clipped, column, padded, width, wrapped};
use crate::sheets;
use crate::terms::bytes;
use crate::text;
use std::collections::{BTreeMap, BTreeSet};

fn line(text: &str) {
    println!("{}", wrapped(text, width()));
}

pub fn print(sheet: &Sheet) {
    if !sheet.rows.is_empty() {
        println!("\n{}", sheet.text(width()));
    }
}

/// Several results: what they are, and all studies with all targets beside each other.
pub fn several(reports: &[Report]) {
    for r in reports {
        let targets = targets(r).iter().map(|t| t.label()).collect::<Vec<_>>();
        let name = short_title(r);
        line(&text!(
            "{0}, {1}: {2} on {3} ({4} cores)",
            name,
            r.started,
            targets.join(", "),
            r.host.cpu,
            r.host.cores
        ));
        cut(r);
    }
    if reports.windows(2).any(|w| w[0].host.cpu != w[1].host.cpu) {
        line(tr("different machines: compare shapes, not figures"));
    }
    let merged = merge(reports);
    let overview = Overview::of(&merged);
    for r in &merged {
        if !r.choices.is_empty() {
            one(r);
        }
    }
    scorecard(&merged, &overview);
    print(&sheets::overview(&overview));
    verdicts(&merged);
}

fn targets(r: &Report) -> &[crate::report::TargetInfo] {
    match r.targets.as_slice() {
        [] => r.target.as_slice(),
        all => all,
    }
}

fn cut(r: &Report) {
    if r.interrupted {
        line(tr("INTERRUPTED: what was measured until then"));
    }
}

/// A whole report.
pub fn report(r: &Report) {
    line(&format!("{}, {}", title(r), r.started));
    if let Some(command) = r.command_line() {
        line(&text!("command {0}", command));
    }
    for t in targets(r) {
        let cache = t.cache_bytes.map(|b| text!(", cache {0}", bytes(b)));
        let cache = cache.unwrap_or_default();
        line(&text!("target {0}, {1}{2}", t.label(), t.url, cache));
    }
    line(&text!(
        "host {0}, {1} cores, {2} memory, load {3} before and {4} after, steal {5}%",
        r.host.cpu,
        r.host.cores,
        bytes(r.host.memory_bytes),
        format!("{:.1}", r.conditions.load_before),
        format!("{:.1}", r.conditions.load_after),
        format!("{:.1}", r.conditions.steal_percent)
    ));
    // What takes many lines is for the file and the page.
    let long = |v: &serde_json::Value| v.as_str().is_some_and(|s| s.contains('\n'));
    let settings = r.settings.iter().filter(|(_, v)| !long(v));
    let settings: Vec<String> = settings
        .map(|(k, v)| {
            format!(
                "{k} {}",
                v.as_str().map_or_else(|| v.to_string(), String::from)
            )
        })
        .collect();
    if !settings.is_empty() {
        line(&settings.join(", "));
    }
    cut(r);
    let merged = merge(std::slice::from_ref(r));
    scorecard(&merged, &Overview::of(&merged));
    one(r);
    for note in &r.notes {
        line(&format!("- {note}"));
    }
    println!();
    verdicts(&merged);
}

/// Tables of a result, and what their marks mean.
fn one(r: &Report) {
    sheets::all(r).iter().for_each(print);
    println!();
    sheets::marks(r).iter().for_each(|m| line(m));
}

fn verdicts(reports: &[Report]) {
    for r in reports {
        for sentence in crate::verdict::of(r) {
            line(&sentence.text);
        }
        if !r.steps.is_empty() || !r.choices.is_empty() {
            line(&crate::verdict::trust(r).text);
        }
    }
}

/// A row of each workload, as the page has it.
fn scorecard(reports: &[Report], overview: &Overview) {
    let card = Scorecard::of(reports, overview);
    if !card.workloads.is_empty() {
        println!("\n{}", drawn(&card, width()));
    }
}

fn drawn(card: &Scorecard, columns: usize) -> String {
    let name = |t: &String| cells(t);
    let names = card
        .targets
        .iter()
        .map(name)
        .max()
        .unwrap_or(0)
        .min(columns / 3);
    let mut lines = Vec::new();
    for w in &card.workloads {
        lines.push(wrapped(&format!("{} ({})", w.words, w.place), columns));
        workload(&mut lines, card, w, names, columns);
    }
    lines.join("\n")
}

fn workload(lines: &mut Vec<String>, card: &Scorecard, w: &Workload, names: usize, columns: usize) {
    let bars: Vec<(&String, &Bar)> = card
        .targets
        .iter()
        .zip(&w.bars)
        .filter_map(|(t, b)| Some((t, b.as_ref()?)))
        .collect();
    let value = bars.iter().map(|(_, b)| cells(&b.text)).max().unwrap_or(0);
    let more = bars
        .iter()
        .map(|(_, b)| cells(&b.more()))
        .max()
        .unwrap_or(0);
    let room = columns.saturating_sub(2 + names + 2 + 2 + value);
    // The rest of the line is for the bar; without room for one there is none.
    let (bar, more) = match room.checked_sub(more + 2) {
        Some(n) if n >= 4 => (n.min(30), true),
        _ => (room.min(30), false),
    };
    for (target, b) in bars {
        let full = ((b.length * bar as f64).round() as usize).clamp(1, bar.max(1));
        let drawn = "█".repeat(full.min(bar));
        let more = if more { b.more() } else { String::new() };
        let text = format!(
            "  {}  {}  {}  {more}",
            padded(&clipped(target, names), names, false),
            padded(&drawn, bar, false),
            padded(&b.text, value, true)
        );
        lines.push(clipped(text.trim_end(), columns));
    }
    for a in w.against.iter().flatten() {
        let mark = match a.word {
            RatioWord::Faster => "+",
            RatioWord::Slower => "-",
            RatioWord::Open => "·",
        };
        lines.push(wrapped(&format!("  {mark} {}", a.text), columns));
    }
}

/// Every figure of `before` that `after` has too, side by side, and whether their intervals part them. Results of different
/// work are refused.
pub fn diff(before: &Report, after: &Report) -> Result<()> {
    same_work(before, after)?;
    for (mark, r) in [("before", before), ("after", after)] {
        let version = r.target.as_ref().map_or("–", |t| &t.version);
        line(&format!(
            "{mark}: {} {} of {}, version {version}, {}",
            r.kind, r.name, r.started, r.host.cpu
        ));
    }
    if before.host.cpu != after.host.cpu {
        line(tr("different machines: compare shapes, not figures"));
    }
    let (old, new) = (figures(before), figures(after));
    let both = old
        .iter()
        .filter_map(|(name, a)| Some((name, a, new.get(name)?)));
    let rows = both.map(|(name, a, b)| {
        let figures = [a.value, b.value, b.value / a.value].map(|v| format!("{v:.3}"));
        let mut row = vec![name.clone()];
        row.extend(figures);
        row.push(difference(a, b).into());
        row
    });
    print(&Sheet {
        title: String::new(),
        open: true,
        columns: vec![
            column("figure", ColumnKind::Label),
            column("before", ColumnKind::Figure),
            column("after", ColumnKind::Figure),
            column("after/before", ColumnKind::Figure),
            column("difference", ColumnKind::Figure),
        ],
        rows: rows.collect(),
    });
    line(&text!(
        "difference: higher or lower where the 95% intervals over the repeats of both do not meet, {0} where they do; nothing where a figure was measured once",
        UNDECIDED
    ));
    let missing = |have: &BTreeMap<String, Figure>, other: &BTreeMap<String, Figure>| {
        have.keys().filter(|k| !other.contains_key(*k)).count()
    };
    let (gone, fresh) = (missing(&old, &new), missing(&new, &old));
    if gone + fresh > 0 {
        line(&text!(
            "{0} figures only before, {1} only after",
            gone,
            fresh
        ));
    }
    Ok(())
}

/// Settings of the length of measuring, not of the work.
const MEASURING: [&str; 4] = ["rounds", "repeats", "seconds_a_point", "seconds_a_turn"];

/// Refuses two results whose figures mean different things.
fn same_work(before: &Report, after: &Report) -> Result<()> {
    let refuse = |what: &str, a: String, b: String| {
        Err(Fault::Usage(format!(
            "the results are of different work: {what} {a} before and {b} after"
        )))
    };
    let what = |r: &Report| format!("{} {}", r.kind, r.name);
    if what(before) != what(after) {
        return refuse("the command", what(before), what(after));
    }
    let names: BTreeSet<&String> = before
        .settings
        .keys()
        .chain(after.settings.keys())
        .collect();
    for name in names {
        let of = |r: &Report| {
            r.settings
                .get(name)
                .map_or("nothing".into(), ToString::to_string)
        };
        if !MEASURING.contains(&name.as_str()) && of(before) != of(after) {
            return refuse(name, of(before), of(after));
        }
    }
    Ok(())
}

/// A figure, and its interval where one is known.
struct Figure {
    value: f64,
    interval: Option<[f64; 2]>,
}

fn difference(before: &Figure, after: &Figure) -> &'static str {
    match (before.interval, after.interval) {
        (Some(a), Some(b)) if b[0] > a[1] => "higher",
        (Some(a), Some(b)) if b[1] < a[0] => "lower",
        (Some(_), Some(_)) => UNDECIDED,
        _ => "",
    }
}

/// All single figures of a report by name.
fn figures(r: &Report) -> BTreeMap<String, Figure> {
    let mut all = BTreeMap::new();
    let mut put = |name: String, value: f64, interval: Option<[f64; 2]>| {
        // One that is a point bounds nothing.
        let interval = interval.filter(|[low, high]| high > low);
        all.insert(name, Figure { value, interval });
    };
    for s in &r.steps {
        let mut name = format!("{} @{}", s.name, s.connections);
        for part in [&s.mode, &s.target].into_iter().flatten() {
            name.push_str(&format!(", {part}"));
        }
        put(format!("{name} ops/s"), s.per_second, interval(s));
        if let Some(cpu) = s.server_cpu_us {
            put(format!("{name} server CPU µs"), cpu, None);
        }
        for (kind, l) in &s.latency {
            put(format!("{name} {kind} p50 µs"), l.p50_us, None);
            put(format!("{name} {kind} p99 µs"), l.p99_us, None);
        }
    }
    for c in &r.comparisons {
        let interval = Some(c.share_interval);
        put(format!("{} share", c.name), c.share, interval);
        if let Some(ratio) = c.cpu_ratio {
            put(format!("{} CPU ratio", c.name), ratio, c.cpu_interval);
        }
        if let Some(cpu) = c.subject.cpu_us {
            put(format!("{} CPU µs", c.name), cpu, None);
        }
    }
    for c in &r.checks {
        put(format!("{} {}", c.name, c.unit), c.value, None);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CheckedFigure, MeasuredStep, SideComparison};

    #[test]
    fn figures_of_both_reports_have_the_same_names() {
        let mut r = crate::report::Draft::new("bench", "all").report;
        r.comparisons.push(SideComparison {
            name: "point-read".into(),
            share: 0.7,
            cpu_ratio: Some(1.4),
            ..SideComparison::default()
        });
        r.checks
            .push(CheckedFigure::at_most("ready", 20.0, "ms", 300.0));
        r.steps.push(MeasuredStep {
            name: "run".into(),
            connections: 4,
            per_second: 10.0,
            ..MeasuredStep::default()
        });
        let names: Vec<String> = figures(&r).into_keys().collect();
        assert_eq!(
            names,
            [
                "point-read CPU ratio",
                "point-read share",
                "ready ms",
                "run @4 ops/s"
            ]
        );
        report(&r);
        several(&[r.clone(), r.clone()]);
        diff(&r, &r).unwrap();
    }

    #[test]
    fn different_work_is_refused_and_a_difference_needs_intervals_apart() {
        let mut a = crate::report::Draft::new("run", "C.S5").report;
        a.settings.insert("records".into(), 1000.into());
        a.settings.insert("rounds".into(), 3.into());
        let mut b = a.clone();
        b.settings.insert("rounds".into(), 5.into());
        assert!(diff(&a, &b).is_ok());
        b.settings.insert("records".into(), 2000.into());
        let fault = diff(&a, &b).unwrap_err().to_string();
        assert!(
            fault.contains("records 1000 before and 2000 after"),
            "{fault}"
        );
        b = crate::report::Draft::new("run", "C.S4").report;
        assert!(diff(&a, &b).is_err());

        let figure = |low: f64, high: f64| Figure {
            value: low,
            interval: Some([low, high]),
        };
        let bare = Figure {
            value: 1.0,
            interval: None,
        };
        assert_eq!(difference(&figure(1.0, 2.0), &figure(2.1, 3.0)), "higher");
        assert_eq!(difference(&figure(1.0, 2.0), &figure(0.1, 0.9)), "lower");
        assert_eq!(difference(&figure(1.0, 2.0), &figure(1.5, 3.0)), UNDECIDED);
        assert_eq!(difference(&figure(1.0, 2.0), &bare), "");
    }

    #[test]
    fn the_scorecard_fits_a_terminal() {
        let mut d = crate::report::Draft::new("sweep", "C.S4");
        for name in [
            "PandoDB 0.1.0 at a-host-with-a-long-name:27017",
            "MariaDB InnoDB 10.11.14",
        ] {
            d.add_target(crate::report::TargetInfo {
                product: name.into(),
                ..Default::default()
            });
            let mut s = MeasuredStep::repeated("C.S4", name, 32, &[12_345.0, 12_300.0, 12_400.0]);
            s.server_cpu_us = Some(31.0);
            d.report.steps.push(s);
        }
        let all = [d.report];
        let card = Scorecard::of(&all, &Overview::of(&all));
        for columns in [60, 80, 120] {
            let text = drawn(&card, columns);
            assert!(text.lines().all(|l| cells(l) <= columns), "{text}");
            assert!(text.contains("12,345/s") && text.contains('█'), "{text}");
        }
    }
}
