//! The tables of a result: steps, what they cost, figures, comparisons, sizes, shards, plans.

use crate::lang::{known, tr};
use crate::overview::Overview;
use crate::rates::{interval, reach};
use crate::report::{CheckedFigure, Limit, MeasuredStep, Report, ShardPart, SideComparison};
use crate::sheet::{Column, ColumnKind, Sheet, column, named};
use crate::study::plans::findings;
use crate::terms::{bytes, counted, figure, grouped, span};
use crate::text;
use ColumnKind::{Figure, Label, Less, Words};

/// Marks a step during which the machine was not quiet.
pub const NOISY: &str = "~";
/// Marks a step whose figure is the client's.
pub const CLIENTS: &str = "*";

/// All tables that have rows, in the order in which one reads them.
pub fn all(r: &Report) -> Vec<Sheet> {
    let mut all = vec![statements(r)];
    all.extend(choices(r));
    all.extend([
        checks(&r.checks),
        comparisons(&r.comparisons),
        steps(&r.steps),
        costs(&r.steps),
        sizes(r),
        shards(r),
    ]);
    all.retain(|s| !s.rows.is_empty());
    all
}

fn sheet(title: String, open: bool, columns: Vec<Column>, rows: Vec<Vec<String>>) -> Sheet {
    Sheet {
        title,
        open,
        columns,
        rows,
    }
}

fn us(value: Option<f64>) -> String {
    value.map_or(String::new(), |v| span((v * 1e3).max(0.0) as u64))
}

fn few(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |v| format!("{v:.digits$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or(String::new(), |v| format!("{:.0}%", v * 100.0))
}

/// What identifies a step: its name and operation, its target where there are several, its mode.
fn name_of(all: &[MeasuredStep], s: &MeasuredStep, kind: &str) -> [String; 3] {
    let several = all.iter().any(|o| o.target != s.target);
    let mut name = known(&s.name).to_string();
    if !kind.is_empty() {
        name = format!("{name}: {kind}");
    }
    if let Some(n) = s.batch.filter(|n| *n > 1) {
        name = text!("{0} ({1} a request)", name, counted(n));
    }
    let target = s.target.clone().filter(|_| several);
    let mode = s.mode.as_deref().filter(|m| *m != s.name);
    [
        name,
        target.unwrap_or_default(),
        mode.map_or("", known).to_string(),
    ]
}

/// Rates and latencies. Of a mixed workload each operation has a line of its own.
pub fn steps(all: &[MeasuredStep]) -> Sheet {
    let mut rows = Vec::new();
    for s in all {
        let many = s.latency.len() > 1;
        rows.push(step(all, s, s.latency.keys().next().filter(|_| !many)));
        for kind in s.latency.keys().filter(|_| many) {
            rows.push(operation(all, s, kind));
        }
    }
    let columns = vec![
        column("step", Label),
        column("target", Label),
        column("mode", Label),
        column("conns", Figure),
        column("durability", Less(5)),
        column("operations", Less(7)),
        column("ops/s", Figure),
        column("MB/s", Less(6)),
        column("spread", Less(9)),
        column("mean", Less(4)),
        column("p50", Figure),
        column("p99", Figure),
        column("p99.9", Less(2)),
        column("max", Less(3)),
        column("server µs/op", Less(1)),
        column("limit", Less(1)),
    ];
    sheet(tr("All steps").into(), false, columns, rows)
}

fn step(all: &[MeasuredStep], s: &MeasuredStep, kind: Option<&String>) -> Vec<String> {
    let mut row = name_of(all, s, "").to_vec();
    let rate = grouped(s.per_second) + &reach(s.per_second, interval(s));
    let bound = if s.client_bound { CLIENTS } else { "" };
    let noisy = if s.noise.reasons().is_some() {
        NOISY
    } else {
        ""
    };
    row.extend([
        s.connections.to_string(),
        s.durability.clone().unwrap_or_default(),
        counted(s.operations),
        format!("{rate} {bound}{noisy}").trim_end().to_string(),
        few(s.megabytes(), 1),
        percent(s.spread()),
    ]);
    row.extend(latency(s, kind));
    let limit = s.limit().map_or("", |l| match l {
        Limit::Client => tr("client"),
        Limit::Cores => tr("cores"),
        Limit::Server => tr("server"),
    });
    row.extend([few(s.server_cpu_us, 1), limit.into()]);
    row
}

fn operation(all: &[MeasuredStep], s: &MeasuredStep, kind: &String) -> Vec<String> {
    let mut row = name_of(all, s, kind).to_vec();
    let count = s.latency.get(kind).map_or(0, |l| l.count);
    let rate = grouped(count as f64 / s.seconds.max(1e-9));
    let none = String::new;
    row.extend([none(), none(), counted(count), rate, none(), none()]);
    row.extend(latency(s, Some(kind)));
    row
}

fn latency(s: &MeasuredStep, kind: Option<&String>) -> [String; 5] {
    let Some(l) = kind.and_then(|k| s.timed(k)) else {
        return Default::default();
    };
    let longest = (l.count > 0).then_some(l.max_us);
    [l.mean(), l.at(0.5), l.at(0.99), l.at(0.999), longest].map(us)
}

/// What each step cost, and what disturbed it.
fn costs(all: &[MeasuredStep]) -> Sheet {
    let rows = all.iter().map(|s| {
        let mut row = name_of(all, s, "").to_vec();
        let null = s.client_ratio().map(|_| s.client_ratio_text());
        row.extend([
            s.connections.to_string(),
            few(s.server_cpu_us, 1),
            few(Some(s.client_cpu_us).filter(|c| *c > 0.0), 1),
            percent(s.client_busy),
            percent(s.machine_busy),
            null.unwrap_or_default(),
            us(s.lag.as_ref().and_then(|l| l.at(0.99))),
            few(s.server_page_faults, 2),
            few(s.server_sleeps, 2),
            percent(s.server_waits),
            s.sent_bytes.map_or(String::new(), grouped),
            s.received_bytes.map_or(String::new(), grouped),
            s.noise.reasons().unwrap_or_default(),
        ]);
        row
    });
    let columns = vec![
        column("step", Label),
        column("target", Label),
        column("mode", Label),
        column("conns", Figure),
        column("server µs/op", Figure),
        column("client µs/op", Figure),
        column("client busy", Less(1)),
        column("cores busy", Less(2)),
        column("client against null server", Less(3)),
        column("client late, p99", Less(1)),
        column("faults/op", Less(4)),
        column("sleeps/op", Less(5)),
        column("core waits", Less(6)),
        column("bytes out/op", Less(7)),
        column("bytes in/op", Less(8)),
        column("noise", Words),
    ];
    let title = tr("CPU, waits, network and noise of all steps");
    sheet(title.into(), false, columns, rows.collect())
}

pub fn checks(list: &[CheckedFigure]) -> Sheet {
    let barred = |c: &CheckedFigure| c.at_least.or(c.at_most).is_some();
    let rows = list.iter().map(|c| {
        let bar = match (c.at_least, c.at_most) {
            (Some(b), _) => text!("at least {0}", b),
            (_, Some(b)) => text!("at most {0}", b),
            _ => String::new(),
        };
        // A figure without a bar neither passes nor fails.
        let pass = if barred(c) { verdict(c.pass) } else { "" };
        let value = format!("{} {}", figure(c.value), known(&c.unit));
        vec![
            known(&c.name).to_string(),
            value.trim_end().to_string(),
            bar,
            pass.into(),
            c.note.clone(),
        ]
    });
    let columns = vec![
        column("figure", Label),
        column("value", Figure),
        column("bar", Less(1)),
        named("", Figure),
        column("note", Words),
    ];
    let open = list.iter().any(barred);
    sheet(tr("Figures").into(), open, columns, rows.collect())
}

fn verdict(pass: bool) -> &'static str {
    if pass { tr("pass") } else { tr("FAIL") }
}

/// Both sides of comparisons.
pub fn comparisons(list: &[SideComparison]) -> Sheet {
    let between = |i: [f64; 2]| format!("{:.3}–{:.3}", i[0], i[1]);
    let rows = list.iter().map(|c| {
        let judged = c.bar_share.or(c.bar_cpu).is_some();
        let word = match (c.verdict.is_empty(), judged) {
            (false, _) => known(c.words()),
            (true, true) => verdict(c.pass),
            (true, false) => "",
        };
        vec![
            c.title.clone(),
            c.connections.to_string(),
            few(Some(c.share), 3),
            between(c.share_interval),
            few(c.bar_share, 2),
            few(c.cpu_ratio, 3),
            c.cpu_interval.map_or(String::new(), between),
            few(c.bar_cpu, 1),
            format!("{}/s", grouped(c.subject.per_second)),
            format!("{}/s", grouped(c.reference.per_second)),
            few(c.subject.cpu_us, 1),
            few(c.reference.cpu_us, 1),
            percent(Some(c.subject.client_busy)),
            word.into(),
        ]
    });
    let columns = vec![
        column("workload", Label),
        column("conns", Figure),
        column("× rate", Figure),
        column("interval", Less(1)),
        column("bar", Less(2)),
        column("× CPU", Figure),
        column("CPU interval", Less(3)),
        column("CPU bar", Less(4)),
        column("rate", Less(5)),
        column("reference", Less(6)),
        column("CPU µs", Less(7)),
        column("reference CPU µs", Less(8)),
        column("client busy", Less(9)),
        column("verdict", Words),
    ];
    sheet(tr("Both sides").into(), true, columns, rows.collect())
}

/// Sizes at the end of each step; of study A it is test 8.
fn sizes(r: &Report) -> Sheet {
    let same = |a: &MeasuredStep, b: &MeasuredStep| {
        let mode = a.mode == b.mode || a.offered.is_some();
        mode && a.name == b.name && a.target == b.target && a.at == b.at
    };
    let mut rows = Vec::new();
    for (i, s) in r.steps.iter().enumerate() {
        let Some(z) = s.sizes.last() else { continue };
        // Turns of one workload leave about the same behind: the last tells.
        if r.steps.get(i + 1).is_some_and(|next| same(next, s)) {
            continue;
        }
        let mut row = name_of(&r.steps, s, "").to_vec();
        row.extend([
            counted(z.documents),
            bytes(z.data_bytes),
            bytes(z.storage_bytes),
            bytes(z.index_bytes),
            z.server_resident_bytes.map_or(String::new(), bytes),
            z.server_disk_bytes.map_or(String::new(), bytes),
        ]);
        rows.push(row);
    }
    let columns = vec![
        column("step", Label),
        column("target", Label),
        column("mode", Label),
        column("documents", Figure),
        column("data", Figure),
        column("on disk", Figure),
        column("indexes", Figure),
        column("server memory", Less(1)),
        column("server on disk", Less(2)),
    ];
    let title = match r.name.starts_with("A-") {
        true => tr("Test 8: sizes at the end of each step"),
        false => tr("Sizes at the end of each step"),
    };
    sheet(title.into(), false, columns, rows)
}

fn shards(r: &Report) -> Sheet {
    let columns = vec![
        column("shard", Label),
        column("documents", Figure),
        column("average", Less(1)),
        column("data", Figure),
        column("on disk", Figure),
        column("chunks", Figure),
        column("indexes", Words),
    ];
    let rows = ShardPart::rows(&r.shards).into_iter().map(|row| {
        let [name, documents, average, data, disk, indexes, chunks] = row;
        vec![name, documents, average, data, disk, chunks, indexes]
    });
    sheet(tr("Shards").into(), true, columns, rows.collect())
}

/// An author's statements, each with every product.
pub fn statements(r: &Report) -> Sheet {
    let rows = r.statements.iter().map(|s| {
        vec![
            known(&s.author).to_string(),
            s.product.clone(),
            known(&s.verdict).to_string(),
            s.figure.clone(),
        ]
    });
    let columns = vec![
        column("what the author saw", Label),
        column("product", Figure),
        column("verdict", Figure),
        column("by", Words),
    ];
    sheet(
        tr("The author's statements").into(),
        true,
        columns,
        rows.collect(),
    )
}

/// How good the chosen plans are, and the worst of them.
fn choices(r: &Report) -> Vec<Sheet> {
    if r.choices.is_empty() {
        return Vec::new();
    }
    let heads = findings::heads(r);
    let columns = heads.iter().enumerate().map(|(i, head)| match i {
        0 => named(known(head), Label),
        _ => named(head, Figure),
    });
    let worst = findings::WORST.iter().map(|head| {
        let kind = match *head {
            "times" | "reads" | "least reads" => Figure,
            "target" => Label,
            "documents" | "collection, query" => Less(1),
            _ => Words,
        };
        named(known(head), kind)
    });
    vec![
        sheet(
            tr("Percentiles").into(),
            true,
            columns.collect(),
            findings::rows(r),
        ),
        sheet(
            tr("The worst").into(),
            true,
            worst.collect(),
            findings::worst(r),
        ),
    ]
}

/// All steps with all targets: a row for a step, a column for a target, and one for the first target's ratio to it.
pub fn overview(all: &Overview) -> Sheet {
    let several = all.rows.iter().any(|r| r.report != all.rows[0].report);
    let mut columns = vec![column("study", Label), column("step", Label)];
    for (i, target) in all.targets.iter().enumerate() {
        columns.push(named(target, Figure));
        if i > 0 {
            columns.push(named("×", Figure));
        }
    }
    let rows = all.rows.iter().map(|row| {
        let study = if several {
            row.study.clone()
        } else {
            String::new()
        };
        let mut cells = vec![study, row.step.clone()];
        for (i, cell) in row.cells.iter().enumerate() {
            cells.push(cell.as_ref().map_or_else(String::new, |c| c.text.clone()));
            if i > 0 {
                cells.push(row.ratio_text(i).map_or_else(String::new, |t| t.1));
            }
        }
        cells
    });
    let title = tr("All steps, all targets");
    sheet(title.into(), false, columns, rows.collect())
}

/// What marks in tables mean, of those that stand there.
pub fn marks(r: &Report) -> Vec<String> {
    let any = |of: &dyn Fn(&MeasuredStep) -> bool| r.steps.iter().any(of);
    let mut all = Vec::new();
    if any(&|s| s.repeats.len() > 1) {
        all.push(
            tr("±: how far the 95% interval over the repeats reaches from their median; ±?: farther than ten times").into(),
        );
    }
    if let Some(why) = r.steps.iter().find_map(|s| s.noise.reasons()) {
        all.push(text!("~ not quiet: {0} (the first such step)", why));
    }
    if any(&|s| s.client_bound) {
        all.push(tr("* the client's limit: it had nothing to wait for, and the server had").into());
    }
    if any(&|s| s.limit().is_some()) {
        all.push(tr("limit: what kept a step from being faster: the client, the machine's cores, or what the server waits for").into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Latency;

    #[test]
    fn latencies_that_are_none_are_not_shown() {
        let latency = |count: u64| Latency {
            count,
            p50_us: 100.0,
            p99_us: 900.0,
            p999_us: 950.0,
            max_us: 990.0,
            ..Latency::default()
        };
        let mut s = MeasuredStep::example("insert", "P", 1, 100.0);
        let shown = |s: &MeasuredStep| {
            let sheet = steps(std::slice::from_ref(s));
            let at = |head: &str| sheet.columns.iter().position(|c| c.head == head).unwrap();
            ["p50", "p99", "p99.9", "max"].map(|h| sheet.cell(0, at(h)).to_string())
        };
        s.latency.insert("INSERT".into(), latency(5000));
        assert!(shown(&s).iter().all(|c| !c.is_empty()));
        // Of five operations there are no percentiles.
        s.latency.insert("INSERT".into(), latency(5));
        assert_eq!(shown(&s).map(|c| c.is_empty()), [true, true, true, false]);
        // Nothing is waited for.
        s.latency.insert("INSERT".into(), latency(5000));
        s.durability = Some("unack".into());
        assert!(shown(&s).iter().all(String::is_empty));
        s.durability = Some("w1".into());
        s.batch = Some(1000);
        assert!(steps(&[s]).cell(0, 0).contains("(1,000 a request)"));
    }
}
