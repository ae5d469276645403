//! The page's tables. At a phone's width a row is folded: its first cell is a heading, the others stand under each other
//! with the names of their columns.

use super::charts::slug;
use super::plot::escape;
use crate::measure::Latency;
use crate::overview::Overview;
use crate::rates::{UNDECIDED, Word, interval, reach};
use crate::report::{Report, Shard, Step};
use crate::study::plans::told;
use crate::terms::{self, bytes, counted, grouped, span};
use std::fmt::Write as _;

fn table(h: &mut String, name: &str, open: bool, head: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        h,
        "<details class=\"sheet\"{}><summary>{} ({})</summary>",
        if open { " open" } else { "" },
        escape(name),
        rows.len()
    );
    // A column in which nothing stands is not drawn.
    let used = |i: &usize| {
        rows.iter()
            .any(|r| r.get(*i).is_some_and(|c| !c.is_empty()))
    };
    let shown: Vec<usize> = (0..head.len()).filter(used).collect();
    tools(h, rows.len());
    h.push_str("<div class=\"scroll\"><table><thead><tr>");
    for &i in &shown {
        let class = if WORDS.contains(&head[i]) {
            " class=\"words\""
        } else {
            ""
        };
        let _ = write!(h, "<th{class}>{}</th>", escape(head[i]));
    }
    h.push_str("</tr></thead><tbody>");
    for row in &rows {
        h.push_str("<tr>");
        for &i in &shown {
            let class = if WORDS.contains(&head[i]) {
                " class=\"words\""
            } else {
                ""
            };
            cell_of(h, head[i], row.get(i).map_or("", String::as_str), class);
        }
        h.push_str("</tr>");
    }
    h.push_str("</tbody></table></div></details>");
}

/// Columns of words, which may take several lines.
const WORDS: [&str; 12] = [
    "step",
    "target",
    "mode",
    "note",
    "noise",
    "figure",
    "workload",
    "chosen over best",
    "query",
    "indexes",
    "chosen plan",
    "best plan",
];

/// What filters and, where heads are not drawn, sorts a table; a few rows need neither.
fn tools(h: &mut String, rows: usize) {
    if rows > 4 {
        h.push_str(
            "<p class=\"tools\"><input type=\"search\" placeholder=\"rows with …\" aria-label=\"show rows with these words\">\
             <select aria-label=\"sort by\"><option value=\"\">sort by</option></select><output></output></p>",
        );
    }
}

/// A cell that knows its column, for where columns are not drawn; one without a text is not drawn there.
fn cell_of(h: &mut String, column: &str, text: &str, more: &str) {
    let _ = write!(h, "<td");
    if !column.is_empty() {
        let _ = write!(h, " data-h=\"{}\"", escape(column));
    }
    let _ = write!(h, "{more}>{}</td>", escape(text));
}

/// All studies with all targets: a row for a step, a column for a target and one for the first target's ratio to it.
pub(super) fn overview(h: &mut String, all: &Overview) {
    let Some((first, others)) = all.targets.split_first() else {
        return;
    };
    h.push_str("<div class=\"text overview sheet\"><h2>All steps, all targets</h2><p>");
    h.push_str("Operations a second; of a step at several numbers of connections the best (@).");
    if !others.is_empty() {
        let _ = write!(
            h,
            " ×: the rate of {} divided by the other's, with its 95% interval over repeats; above 1 it is faster. {UNDECIDED}: not decided by one test over all rows. ?: measured once, nobody can tell.",
            escape(first)
        );
    }
    if all
        .rows
        .iter()
        .flat_map(|r| &r.cells)
        .flatten()
        .any(|c| c.text.ends_with(crate::show::NOISY))
    {
        h.push_str(" ~: the machine was not quiet meanwhile.");
    }
    h.push_str("</p>");
    tools(h, all.rows.len());
    h.push_str("<div class=\"scroll\"><table><thead><tr><th>step</th>");
    let _ = write!(h, "<th>{}</th>", escape(first));
    for t in others {
        let _ = write!(h, "<th>{}</th><th>×</th>", escape(t));
    }
    h.push_str("</tr></thead>");
    let width = 2 + 2 * others.len();
    let mut last = None;
    for row in &all.rows {
        if last != Some(row.report) {
            // One body for each study: a click on a head sorts within it.
            let end = if last.is_some() { "</tbody>" } else { "" };
            let _ = write!(
                h,
                "{end}<tbody><tr class=\"study\"><th colspan=\"{width}\"><a href=\"#{}\">{}</a></th></tr>",
                escape(&anchor(&row.study)),
                escape(&row.study)
            );
            last = Some(row.report);
        }
        let _ = write!(h, "<tr><td>{}</td>", escape(&row.step));
        for (i, target) in all.targets.iter().enumerate() {
            let text = row.cells[i].as_ref().map_or("", |c| c.text.as_str());
            cell_of(h, target, text, "");
            if i > 0 {
                let told = row.told(i);
                let class = match told.as_ref().map(|t| t.0) {
                    Some(Word::Open) => " class=\"open\"",
                    Some(Word::Slower) => " class=\"behind\"",
                    Some(Word::Faster) => " class=\"ahead\"",
                    None => "",
                };
                let text = told.map_or_else(String::new, |t| t.1);
                cell_of(h, &format!("{first} against it"), &text, class);
            }
        }
        h.push_str("</tr>");
    }
    h.push_str("</tbody></table></div></div>");
}

/// Where a study begins on the page.
pub(super) fn anchor(study: &str) -> String {
    format!("of-{}", slug(study))
}

/// How good the chosen plans are, and the worst of them.
pub(super) fn choices(h: &mut String, r: &Report) {
    if r.choices.is_empty() {
        return;
    }
    let heads = told::heads(r);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    table(h, "Percentiles", true, &heads, told::rows(r));
    table(h, "The worst", true, &told::WORST, told::worst(r));
}

pub(super) fn checks(h: &mut String, r: &Report) {
    let barred = r.checks.iter().any(|c| c.at_least.or(c.at_most).is_some());
    let rows = r.checks.iter().map(|c| {
        let bar = match (c.at_least, c.at_most) {
            (Some(b), _) => format!("at least {b}"),
            (_, Some(b)) => format!("at most {b}"),
            _ => String::new(),
        };
        let value = format!("{} {}", terms::figure(c.value), c.unit);
        let verdict = match (bar.as_str(), c.pass) {
            ("", _) => "",
            (_, true) => "pass",
            (_, false) => "FAIL",
        };
        vec![c.name.clone(), value, bar, verdict.into(), c.note.clone()]
    });
    table(
        h,
        "Figures",
        barred,
        &["figure", "value", "bar", "", "note"],
        rows.collect(),
    );
}

/// The sides of comparisons, in the words of the terminal.
pub(super) fn comparisons(h: &mut String, r: &Report) {
    let between = |i: [f64; 2]| format!("{:.3}–{:.3}", i[0], i[1]);
    let number = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.3}"));
    let rows = r.comparisons.iter().map(|c| {
        let judged = c.bar_share.or(c.bar_cpu).is_some();
        let word = match (c.verdict.is_empty(), judged) {
            (false, _) => c.words().to_string(),
            (true, true) => String::from(if c.pass { "pass" } else { "FAIL" }),
            (true, false) => String::new(),
        };
        vec![
            c.title.clone(),
            c.connections.to_string(),
            word,
            format!("{:.3}", c.share),
            between(c.share_interval),
            number(c.bar_share),
            number(c.cpu_ratio),
            c.cpu_interval.map_or(String::new(), between),
            number(c.bar_cpu),
            format!("{}/s", grouped(c.subject.per_second)),
            format!("{}/s", grouped(c.reference.per_second)),
        ]
    });
    let head = [
        "workload",
        "conns",
        "",
        "× rate",
        "interval",
        "bar",
        "× CPU",
        "CPU interval",
        "CPU bar",
        "rate",
        "reference",
    ];
    table(h, "Both sides", true, &head, rows.collect());
}

pub(super) fn steps(h: &mut String, r: &Report, open: bool) {
    let rows = r.steps.iter().flat_map(|s| step_rows(r, s));
    let head = [
        "step",
        "target",
        "mode",
        "conns",
        "durability",
        "operations",
        "ops/s",
        "MB/s",
        "spread",
        "p50",
        "p99",
        "p99.9",
        "max",
    ];
    table(h, "All steps", open, &head, rows.collect());
    costs(h, r);
}

/// What each step cost, and what disturbed it.
fn costs(h: &mut String, r: &Report) {
    let few = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.2}"));
    let rows = r.steps.iter().map(|s| {
        let mut row = name_of(r, s, "");
        row.extend([
            s.server_cpu_us.map_or(String::new(), |c| format!("{c:.1}")),
            format!("{:.1}", s.client_cpu_us),
            s.client_ratio()
                .map_or(String::new(), |_| s.client_ratio_text()),
            few(s.server_page_faults),
            few(s.server_sleeps),
            s.server_waits
                .map_or(String::new(), |w| format!("{:.0}%", w * 100.0)),
            s.sent_bytes.map_or(String::new(), grouped),
            s.received_bytes.map_or(String::new(), grouped),
            s.noise.said().unwrap_or_default(),
        ]);
        row
    });
    let head = [
        "step",
        "target",
        "mode",
        "conns",
        "server µs/op",
        "client µs/op",
        "× null",
        "faults/op",
        "sleeps/op",
        "core waits",
        "bytes out/op",
        "bytes in/op",
        "noise",
    ];
    table(
        h,
        "CPU, waits, network and noise of all steps",
        false,
        &head,
        rows.collect(),
    );
}

/// The cells that identify a step; a cell that is the same in all rows is left out.
fn name_of(r: &Report, s: &Step, kind: &str) -> Vec<String> {
    let several = r.steps.iter().any(|o| o.target != s.target);
    let kind = match kind {
        "" => String::new(),
        kind => format!(": {kind}"),
    };
    vec![
        format!("{}{kind}", s.name),
        s.target.clone().filter(|_| several).unwrap_or_default(),
        s.mode.clone().unwrap_or_default(),
        s.connections.to_string(),
    ]
}

/// A step, and of a mixed workload each operation in a line of its own, under its own name.
fn step_rows(r: &Report, s: &Step) -> Vec<Vec<String>> {
    let us = |v: f64| span((v * 1e3).max(0.0) as u64);
    let percentiles = |l: Option<&Latency>| match l {
        Some(l) => [l.p50_us, l.p99_us, l.p999_us, l.max_us].map(us),
        None => Default::default(),
    };
    let many = s.latency.len() > 1;
    let mut row = name_of(r, s, "");
    let bound = if s.client_bound { " *" } else { "" };
    let noisy = if s.noise.said().is_some() { " ~" } else { "" };
    let rate = grouped(s.per_second) + &reach(s.per_second, interval(s));
    row.extend([
        s.durability.clone().unwrap_or_default(),
        counted(s.operations),
        format!("{rate}{bound}{noisy}"),
        s.megabytes().map_or(String::new(), |mb| format!("{mb:.1}")),
        s.spread()
            .map_or(String::new(), |v| format!("{:.0}%", v * 100.0)),
    ]);
    row.extend(percentiles(s.latency.values().next().filter(|_| !many)));
    let mut rows = vec![row];
    for (kind, l) in s.latency.iter().filter(|_| many) {
        let mut row = name_of(r, s, kind);
        row.extend([
            String::new(),
            counted(l.count),
            grouped(l.count as f64 / s.seconds.max(1e-9)),
            String::new(),
            String::new(),
        ]);
        row.extend(percentiles(Some(l)));
        rows.push(row);
    }
    rows
}

pub(super) fn sizes(h: &mut String, r: &Report) {
    let rows = r.steps.iter().filter_map(|s| {
        let z = s.sizes.last()?;
        Some(vec![
            s.name.clone(),
            s.target.clone().unwrap_or_default(),
            s.mode.clone().unwrap_or_default(),
            counted(z.documents),
            bytes(z.data_bytes),
            bytes(z.storage_bytes),
            bytes(z.index_bytes),
            z.server_resident_bytes.map_or("–".into(), bytes),
            z.server_disk_bytes.map_or("–".into(), bytes),
        ])
    });
    table(
        h,
        "Sizes at the end of each step",
        false,
        &[
            "step",
            "target",
            "mode",
            "documents",
            "data",
            "on disk",
            "indexes",
            "server memory",
            "server on disk",
        ],
        rows.collect(),
    );
}

pub(super) fn shards(h: &mut String, r: &Report) {
    let rows = Shard::rows(&r.shards).iter().map(|s| s.to_vec()).collect();
    table(h, "Shards", false, &Shard::COLUMNS, rows);
}
