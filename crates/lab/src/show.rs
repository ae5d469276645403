//! Results as tables on the terminal.

use crate::fault::{Fault, Result};
use crate::measure::Latency;
use crate::overview::{Overview, merge, short_title};
use crate::rates::{UNDECIDED, interval, reach};
use crate::report::{CLIENT_BAR, Check, Comparison, Report, Shard, Step};
use crate::study::plans::told;
use crate::terms::{bytes, figure, grouped, span};
use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets};
use std::collections::{BTreeMap, BTreeSet};

/// Columns of the terminal that is written to; none where it is no terminal, and lines may be of any length.
fn terminal_width() -> Option<u16> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is a valid place for the answer.
    let known = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    Some(size.ws_col).filter(|columns| known && *columns > 0)
}

/// A table that fits into so many columns, where it has to.
fn table(header: &[&str]) -> Table {
    fitting(terminal_width(), header)
}

fn fitting(columns: Option<u16>, header: &[&str]) -> Table {
    let mut t = Table::new();
    // A line under the header and none between rows.
    t.load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.to_vec());
    if let Some(columns) = columns {
        t.set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(columns);
    }
    for (i, column) in t.column_iter_mut().enumerate() {
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    t
}

fn us(value: f64) -> String {
    span((value * 1e3).max(0.0) as u64)
}

fn optional(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |v| format!("{v:.digits$}"))
}

/// Several results: what they are, and all studies with all targets in one table.
pub fn several(reports: &[Report]) {
    for r in reports {
        let targets = match r.targets.as_slice() {
            [] => r.target.iter().map(|t| t.label()).collect(),
            all => all.iter().map(|t| t.label()).collect::<Vec<_>>(),
        };
        let cut = if r.interrupted { ", INTERRUPTED" } else { "" };
        println!(
            "{}, {}: {} on {} ({} core(s)){cut}",
            short_title(r),
            r.started,
            targets.join(", "),
            r.host.cpu,
            r.host.cores
        );
    }
    let hosts = reports.windows(2).any(|w| w[0].host.cpu != w[1].host.cpu);
    if hosts {
        println!("different machines: compare shapes, not figures");
    }
    let merged = merge(reports);
    merged.iter().for_each(choices);
    let all = Overview::of(&merged);
    if !all.targets.is_empty() || merged.iter().all(|r| r.choices.is_empty()) {
        overview(&all);
    }
}

/// A row for a step, a column for a target, and one for the first target's ratio to it.
pub fn overview(all: &Overview) {
    let Some((first, others)) = all.targets.split_first() else {
        println!("\nnothing measured");
        return;
    };
    let mut head = vec!["study", "step", first];
    for t in others {
        head.extend([t.as_str(), "×"]);
    }
    let mut t = table(&head);
    if let Some(step) = t.column_mut(1) {
        step.set_cell_alignment(CellAlignment::Left);
    }
    let mut last = None;
    for row in &all.rows {
        let study = if last == Some(row.report) {
            String::new()
        } else {
            row.study.clone()
        };
        last = Some(row.report);
        let mut cells = vec![study, row.step.clone()];
        for (i, cell) in row.cells.iter().enumerate() {
            cells.push(cell.as_ref().map_or_else(String::new, |c| c.text.clone()));
            if i > 0 {
                cells.push(row.told(i).map_or_else(String::new, |t| t.1));
            }
        }
        t.add_row(cells);
    }
    println!("\n{t}");
    if !others.is_empty() {
        println!(
            "×: the rate of {first} divided by the other's, with its 95% interval over repeats; {UNDECIDED} where one test over all rows does not decide, ? where it was measured once and nobody can tell"
        );
    }
    println!("of a step at several numbers of connections the best (@)");
}

/// A whole report.
pub fn report(r: &Report) {
    let line = |text: &str| println!("{}", fitted(r, text));
    line(&format!("{} {} of {}", r.kind, r.name, r.started));
    if let Some(command) = r.command_line() {
        line(&format!("command {command}"));
    }
    let targets = if r.targets.is_empty() {
        r.target.as_slice()
    } else {
        &r.targets
    };
    for t in targets {
        let cache = t
            .cache_bytes
            .map_or(String::new(), |b| format!(", cache {}", bytes(b)));
        line(&format!("target {}, {}{cache}", t.label(), t.url));
    }
    line(&format!(
        "host {}, {} core(s), {} memory, load {:.1} before and {:.1} after, steal {:.1}%",
        r.host.cpu,
        r.host.cores,
        bytes(r.host.memory_bytes),
        r.conditions.load_before,
        r.conditions.load_after,
        r.conditions.steal_percent
    ));
    let settings: Vec<String> = r
        .settings
        .iter()
        // What takes many lines is for the file and the page.
        .filter(|(_, v)| !v.as_str().is_some_and(|s| s.contains('\n')))
        .map(|(k, v)| match v {
            serde_json::Value::String(s) => format!("{k} {s}"),
            other => format!("{k} {other}"),
        })
        .collect();
    if !settings.is_empty() {
        line(&settings.join(", "));
    }
    if r.interrupted {
        println!("INTERRUPTED: what was measured until then");
    }
    steps(&r.steps);
    sizes(&r.steps);
    comparisons(&r.comparisons);
    choices(r);
    checks(&r.checks);
    shards(r);
    for note in &r.notes {
        line(&format!("- {note}"));
    }
    println!();
    for sentence in crate::verdict::of(r) {
        line(&sentence.text);
    }
    if !r.steps.is_empty() || !r.choices.is_empty() {
        line(&crate::verdict::trust(r).text);
    }
}

/// A text as it stands on the terminal. Of plans everything is wrapped: queries are long.
fn fitted(r: &Report, text: &str) -> String {
    match r.choices.is_empty() {
        true => text.to_string(),
        false => told::wrapped(text, narrow()),
    }
}

/// Columns of a terminal, or fewer where this one has fewer.
fn narrow() -> usize {
    terminal_width().map_or(told::COLUMNS, |w| usize::from(w).min(told::COLUMNS))
}

/// How good the chosen plans are, and the worst of them.
fn choices(r: &Report) {
    if r.choices.is_empty() {
        return;
    }
    let heads = told::heads(r);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut t = fitting(u16::try_from(narrow()).ok(), &heads);
    for row in told::rows(r) {
        t.add_row(row);
    }
    println!("\n{t}");
    for c in r.choices.iter().filter(|c| !c.worst.is_empty()) {
        println!("\n{}", fitted(r, &format!("the worst of {}", c.target)));
        for text in told::paragraphs(c) {
            println!("{}", fitted(r, &text));
        }
    }
    println!();
}

fn shards(r: &Report) {
    if r.shards.is_empty() {
        return;
    }
    let mut t = table(&Shard::COLUMNS);
    for row in Shard::rows(&r.shards) {
        t.add_row(row);
    }
    println!("\n{t}");
}

pub fn steps(steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    let mut t = table(&[
        "step",
        "target",
        "conns",
        "durability",
        "operations",
        "seconds",
        "ops/s",
        "p50",
        "p95",
        "p99",
        "p99.9",
        "max",
        "server µs/op",
        "client µs/op",
        "× null",
    ]);
    for s in steps {
        let many = s.latency.len() > 1;
        let single = s.latency.values().next().filter(|_| !many);
        t.add_row(row(s, single));
        if many {
            for (kind, l) in &s.latency {
                let mut cells = vec![
                    format!("  {kind}"),
                    String::new(),
                    String::new(),
                    String::new(),
                ];
                cells.extend([
                    grouped(l.count as f64),
                    String::new(),
                    grouped(l.count as f64 / s.seconds.max(1e-9)),
                ]);
                cells.extend(percentiles(Some(l)));
                t.add_row(cells);
            }
        }
    }
    println!("\n{t}");
    if steps.iter().any(|s| s.repeats.len() > 1) {
        println!("ops/s of several repeats: their median, and how far its 95% interval reaches");
    }
    if let Some(why) = steps.iter().find_map(|s| s.noise.said()) {
        println!("{NOISY} noisy: {why} (the first such step)");
    }
    if steps.iter().any(|s| s.client_bound) {
        println!("* the client's core was full and the server's was not: the client's limit");
    }
    if steps.iter().any(|s| s.client_ratio().is_some()) {
        println!(
            "× null: the client's CPU an operation against that of a server that only reads and answers; ! above {CLIENT_BAR} on point reads"
        );
    }
}

fn percentiles(l: Option<&Latency>) -> [String; 5] {
    match l {
        Some(l) => [l.p50_us, l.p95_us, l.p99_us, l.p999_us, l.max_us].map(us),
        None => std::array::from_fn(|_| String::new()),
    }
}

/// Marks a step during which the machine was not quiet.
pub const NOISY: &str = "~";

fn row(s: &Step, l: Option<&Latency>) -> Vec<String> {
    let mut mark = String::from(if s.client_bound { " *" } else { "" });
    if s.noise.said().is_some() {
        mark.push_str(&format!(" {NOISY}"));
    }
    let mut cells = vec![
        match &s.mode {
            Some(mode) => format!("{}, {mode}{mark}", s.name),
            None => format!("{}{mark}", s.name),
        },
        s.target.clone().unwrap_or_default(),
        s.connections.to_string(),
        s.durability.clone().unwrap_or_else(|| "–".into()),
        grouped(s.operations as f64),
        format!("{:.1}", s.seconds),
        format!(
            "{}{}",
            grouped(s.per_second),
            reach(s.per_second, interval(s))
        ),
    ];
    cells.extend(percentiles(l));
    cells.push(optional(s.server_cpu_us, 1));
    cells.push(format!("{:.1}", s.client_cpu_us));
    cells.push(s.client_ratio_text());
    cells
}

fn sizes(steps: &[Step]) {
    if steps.iter().all(|s| s.sizes.is_empty()) {
        return;
    }
    let several = |f: fn(&Step) -> &Option<String>| steps.iter().any(|s| f(s) != f(&steps[0]));
    let (targets, modes) = (several(|s| &s.target), several(|s| &s.mode));
    let name = |s: &Step| {
        let mode = s.mode.iter().filter(|_| modes && s.offered.is_none());
        let target = s.target.iter().filter(|_| targets);
        let parts: Vec<&str> = std::iter::once(&s.name)
            .chain(mode)
            .chain(target)
            .map(String::as_str)
            .collect();
        parts.join(", ")
    };
    let mut t = table(&[
        "sizes after",
        "documents",
        "data",
        "storage",
        "indexes",
        "server memory",
        "server on disk",
    ]);
    for (n, s) in steps.iter().enumerate() {
        // Turns of one workload leave about the same behind: the last tells.
        let same = |t: &&Step| {
            let mode = t.mode == s.mode || t.offered.is_some();
            mode && t.name == s.name && t.target == s.target && t.at == s.at
        };
        if s.sizes.len() == 1 && steps.get(n + 1).as_ref().is_some_and(same) {
            continue;
        }
        // A long series is for the file; a person wants its course.
        let every = s.sizes.len().div_ceil(10).max(1);
        for (i, z) in s.sizes.iter().enumerate() {
            if i % every != 0 && i + 1 != s.sizes.len() {
                continue;
            }
            t.add_row([
                format!("{} {:.0} s", name(s), z.at),
                grouped(z.documents as f64),
                bytes(z.data_bytes),
                bytes(z.storage_bytes),
                bytes(z.index_bytes),
                z.server_resident_bytes.map_or("–".into(), bytes),
                z.server_disk_bytes.map_or("–".into(), bytes),
            ]);
        }
    }
    println!("\n{t}");
}

fn verdict(pass: bool) -> &'static str {
    if pass { "pass" } else { "FAIL" }
}

pub fn comparisons(list: &[Comparison]) {
    if list.is_empty() {
        return;
    }
    let mut t = table(&[
        "operation",
        "conns",
        "ops/s",
        "reference ops/s",
        "share",
        "interval",
        "bar",
        "CPU µs",
        "ref. CPU µs",
        "ratio",
        "bar",
        "client µs",
        "client core",
        "",
    ]);
    for c in list {
        t.add_row([
            c.title.clone(),
            c.connections.to_string(),
            grouped(c.subject.per_second),
            grouped(c.reference.per_second),
            format!("{:.3}", c.share),
            format!("{:.3}–{:.3}", c.share_interval[0], c.share_interval[1]),
            optional(c.bar_share, 2),
            optional(c.subject.cpu_us, 1),
            optional(c.reference.cpu_us, 1),
            match c.cpu_interval {
                Some([low, high]) => {
                    format!("{} ({low:.3}–{high:.3})", optional(c.cpu_ratio, 3))
                }
                None => optional(c.cpu_ratio, 2),
            },
            optional(c.bar_cpu, 1),
            format!("{:.1}", c.subject.client_cpu_us),
            format!(
                "{:.0}% / {:.0}%",
                c.subject.client_busy * 100.0,
                c.reference.client_busy * 100.0
            ),
            if c.verdict.is_empty() {
                verdict(c.pass).into()
            } else {
                c.words().into()
            },
        ]);
    }
    println!("\n{t}");
}

pub fn checks(list: &[Check]) {
    if list.is_empty() {
        return;
    }
    let mut t = table(&["figure", "value", "bar", "", "note"]);
    for c in list {
        let bar = match (c.at_least, c.at_most) {
            (Some(b), _) => format!("≥ {b}"),
            (_, Some(b)) => format!("≤ {b}"),
            _ => "–".into(),
        };
        let value = format!("{} {}", figure(c.value), c.unit);
        t.add_row([
            c.name.clone(),
            value,
            bar,
            // A figure without a bar neither passes nor fails.
            if c.at_least.or(c.at_most).is_some() {
                verdict(c.pass).into()
            } else {
                String::new()
            },
            c.note.clone(),
        ]);
    }
    println!("\n{t}");
}

/// Every figure of `before` that `after` has too, side by side, and whether their intervals part them. Results of different
/// work are refused.
pub fn diff(before: &Report, after: &Report) -> Result<()> {
    same_work(before, after)?;
    for (mark, r) in [("before", before), ("after", after)] {
        let version = r.target.as_ref().map_or("–", |t| &t.version);
        println!(
            "{mark}: {} {} of {}, version {version}, {}",
            r.kind, r.name, r.started, r.host.cpu
        );
    }
    if before.host.cpu != after.host.cpu {
        println!("different machines: compare shapes, not figures");
    }
    let mut t = table(&["figure", "before", "after", "after/before", "difference"]);
    let (old, new) = (figures(before), figures(after));
    for (name, a) in &old {
        let Some(b) = new.get(name) else { continue };
        t.add_row([
            name.clone(),
            format!("{:.3}", a.value),
            format!("{:.3}", b.value),
            format!("{:.3}", b.value / a.value),
            difference(a, b).into(),
        ]);
    }
    println!("\n{t}");
    println!(
        "difference: higher or lower where the 95% intervals over the repeats of both do not meet, {UNDECIDED} where they do; nothing where a figure was measured once"
    );
    let missing = |have: &BTreeMap<String, Figure>, other: &BTreeMap<String, Figure>| {
        have.keys().filter(|k| !other.contains_key(*k)).count()
    };
    let (gone, fresh) = (missing(&old, &new), missing(&new, &old));
    if gone + fresh > 0 {
        println!("{gone} figure(s) only before, {fresh} only after");
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

    #[test]
    fn figures_of_both_reports_have_the_same_names() {
        let mut r = crate::report::Draft::new("bench", "all").report;
        r.comparisons.push(Comparison {
            name: "point-read".into(),
            share: 0.7,
            cpu_ratio: Some(1.4),
            ..Comparison::default()
        });
        r.checks.push(Check::at_most("ready", 20.0, "ms", 300.0));
        r.steps.push(Step {
            name: "run".into(),
            connections: 4,
            per_second: 10.0,
            ..Step::default()
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
        diff(&r, &r).unwrap();
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let row = [
            "a step with a long name, in words",
            "PandoDB 0.1.0 with a long label",
            "123,456",
        ];
        for (columns, most) in [(Some(60), 60), (None, 200)] {
            let mut t = fitting(columns, &["step", "target", "ops/s"]);
            t.add_row(row);
            let widest = t.to_string().lines().map(|l| l.chars().count()).max();
            assert!(widest.is_some_and(|w| w <= most), "{t}");
            assert_eq!(t.to_string().lines().count() > 3, columns.is_some(), "{t}");
        }
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
}
