//! The page's tables. At a phone's width a row is folded: its first cell is a heading, the others stand under each other
//! with the names of their columns.

use super::charts::slug;
use super::plot::escape;
use crate::measure::Latency;
use crate::overview::{Overview, UNDECIDED};
use crate::report::{Report, Shard};
use crate::terms::{self, bytes, grouped, span};
use std::fmt::Write as _;

fn table(h: &mut String, name: &str, open: bool, head: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        h,
        "<details{}><summary>{} ({})</summary><div class=\"scroll\"><table><thead><tr>",
        if open { " open" } else { "" },
        escape(name),
        rows.len()
    );
    for c in head {
        let _ = write!(h, "<th>{}</th>", escape(c));
    }
    h.push_str("</tr></thead><tbody>");
    for row in rows {
        h.push_str("<tr>");
        for (cell, column) in row.iter().zip(head) {
            cell_of(h, column, cell, "");
        }
        h.push_str("</tr>");
    }
    h.push_str("</tbody></table></div></details>");
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
    h.push_str("<div class=\"text overview\"><h2>All studies, all targets</h2><p>");
    h.push_str("Operations a second; of a step at several numbers of connections the best (@).");
    if !others.is_empty() {
        let _ = write!(
            h,
            " ×: the rate of {} divided by the other's, with its interval; above 1 it is faster. {UNDECIDED}: the interval holds 1, neither is faster. Without an interval the step was too short for one.",
            escape(first)
        );
    }
    h.push_str("</p><div class=\"scroll\"><table><thead><tr><th>step</th>");
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
                let ratio = row.ratio(i);
                let class = match &ratio {
                    Some(r) if r.undecided() => " class=\"open\"",
                    Some(r) if r.value < 1.0 => " class=\"behind\"",
                    _ => "",
                };
                let text = ratio.map_or_else(String::new, |r| r.text());
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

pub(super) fn checks(h: &mut String, r: &Report) {
    let rows = r.checks.iter().map(|c| {
        let bar = match (c.at_least, c.at_most) {
            (Some(b), _) => format!("at least {b}"),
            (_, Some(b)) => format!("at most {b}"),
            _ => "–".into(),
        };
        let value = format!("{} {}", terms::figure(c.value), c.unit);
        let verdict = match (bar.as_str(), c.pass) {
            ("–", _) => "",
            (_, true) => "pass",
            (_, false) => "FAIL",
        };
        vec![c.name.clone(), value, bar, verdict.into(), c.note.clone()]
    });
    table(
        h,
        "Figures",
        true,
        &["figure", "value", "bar", "", "note"],
        rows.collect(),
    );
}

pub(super) fn steps(h: &mut String, r: &Report) {
    let us = |v: f64| span((v * 1e3).max(0.0) as u64);
    let percentiles = |l: Option<&Latency>| match l {
        Some(l) => [l.p50_us, l.p99_us, l.p999_us, l.max_us].map(us),
        None => Default::default(),
    };
    let rows = r.steps.iter().flat_map(|s| {
        let many = s.latency.len() > 1;
        let mut row = vec![
            s.name.clone(),
            s.target.clone().unwrap_or_default(),
            s.mode.clone().unwrap_or_default(),
            s.connections.to_string(),
            s.durability.clone().unwrap_or_else(|| "–".into()),
            grouped(s.operations as f64),
            format!(
                "{}{}",
                grouped(s.per_second),
                if s.client_bound { " *" } else { "" }
            ),
        ];
        row.extend(percentiles(s.latency.values().next().filter(|_| !many)));
        row.push(s.server_cpu_us.map_or("–".into(), |c| format!("{c:.1}")));
        row.push(format!("{:.1}", s.client_cpu_us));
        row.push(s.client_ratio_text());
        // Of a mixed workload each operation has a line of its own, under its own name.
        let kinds = s.latency.iter().filter(move |_| many);
        let kinds = kinds.map(move |(kind, l)| {
            let mut row = vec![
                format!("{}: {kind}", s.name),
                s.target.clone().unwrap_or_default(),
                s.mode.clone().unwrap_or_default(),
                s.connections.to_string(),
                String::new(),
                grouped(l.count as f64),
                grouped(l.count as f64 / s.seconds.max(1e-9)),
            ];
            row.extend(percentiles(Some(l)));
            row.resize(14, String::new());
            row
        });
        std::iter::once(row).chain(kinds).collect::<Vec<_>>()
    });
    let head = [
        "step",
        "target",
        "mode",
        "conns",
        "durability",
        "operations",
        "ops/s",
        "p50",
        "p99",
        "p99.9",
        "max",
        "server CPU µs/op",
        "client CPU µs/op",
        "× null server",
    ];
    table(h, "All steps", r.steps.len() <= 12, &head, rows.collect());
}

pub(super) fn sizes(h: &mut String, r: &Report) {
    let rows = r.steps.iter().filter_map(|s| {
        let z = s.sizes.last()?;
        Some(vec![
            s.name.clone(),
            s.target.clone().unwrap_or_default(),
            s.mode.clone().unwrap_or_default(),
            grouped(z.documents as f64),
            bytes(z.data_bytes),
            bytes(z.storage_bytes),
            bytes(z.index_bytes),
            z.server_resident_bytes.map_or("–".into(), bytes),
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
        ],
        rows.collect(),
    );
}

pub(super) fn shards(h: &mut String, r: &Report) {
    let rows = r.shards.iter().map(|s| s.row().to_vec()).collect();
    table(h, "Shards", true, &Shard::COLUMNS, rows);
}
