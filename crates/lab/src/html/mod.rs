//! `pando lab report`: results as one HTML page that stands by itself, and each plot as an SVG file.
//!
//! It opens with a verdict, whether to believe it and the scorecard, then at most two plots, then the tables; all else is folded. No
//! network: styles, script and the chart library (uPlot, 51 KB, MIT: it draws tens of thousands of points at once, zooms
//! and reads values off, which SVG of our own does not) are inside. The page follows the reader's light or dark setting, a
//! button overrides it; plots that are SVG are drawn at two widths so that a phone shows text at its size.
//!
//! Invariant: whatever comes from a result file is escaped; the page is written whole or not at all.

pub(crate) mod charts;
mod palette;
mod plot;
mod published;
mod scorecard;
mod tables;

use crate::fault::{Fault, Result, local};
use crate::lang::{known, tr};
use crate::output::fresh_place;
use crate::overview::{Overview, merge, short_title, title};
use crate::report::Report;
use crate::sheets;
use crate::terms::bytes;
use crate::text;
use crate::verdict::{self, Tone};
use plot::{Body, Chart, escape};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Result files; those of the same study are laid side by side, the first target is what others are compared with.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// The page (default: beside the result; of several, report.html beside the first).
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Where each plot goes as a file (default: a folder beside the page; - for none).
    #[arg(long)]
    pub svg: Option<PathBuf>,
    /// Replace a page that is there.
    #[arg(long)]
    pub force: bool,
}

/// The colours of the series, light and dark, and of everything else. They are kept apart by lightness
/// too, for colour-blind readers and for print.
const COLOR_CSS: &str = include_str!("colors.css");
const PLOT_CSS: &str = include_str!("plot.css");
const PAGE_CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const CHART_SCRIPT: &str = include_str!("chart.js");
/// uPlot 1.6.32, as npm has it; its licence is beside it and in the page.
const LIBRARY: &str = include_str!("uplot/uPlot.iife.min.js");
const LIBRARY_CSS: &str = include_str!("uplot/uPlot.min.css");
const LIBRARY_LICENCE: &str = include_str!("uplot/LICENSE");

pub fn main(args: Args) -> Result<bool> {
    let mut reports = Vec::new();
    for path in &args.results {
        reports.push(Report::read(path)?);
    }
    let out = match args.out {
        Some(out) if args.results.contains(&out) => {
            return Err(Fault::Usage(format!(
                "{}: is a result, --out names the page",
                out.display()
            )));
        }
        Some(out) => {
            fresh_place(&out, args.force)?;
            out
        }
        // The first result may have a page of its own.
        None if reports.len() > 1 => args.results[0].with_file_name("report.html"),
        None => args.results[0].with_extension("html"),
    };
    let svg = match args.svg {
        Some(dir) if dir == Path::new("-") => None,
        Some(dir) if !dir.is_dir() => {
            return Err(Fault::Usage(format!(
                "{}: there is no such folder",
                dir.display()
            )));
        }
        Some(dir) => Some(dir),
        None => Some(out.with_extension("plots")),
    };
    let plots = write(&reports, &out, svg.as_deref())?;
    println!("page: {}", out.display());
    if let Some(dir) = svg.filter(|_| plots > 0) {
        println!("{plots} plot(s): {}", dir.display());
    }
    Ok(true)
}

/// Writes the page and the plots; gives how many plots there are.
pub fn write(reports: &[Report], out: &Path, svg: Option<&Path>) -> Result<usize> {
    if let Some(dir) = svg {
        std::fs::create_dir_all(dir).map_err(local(dir.display()))?;
    }
    let merged = merge(reports);
    let mut drawn = Vec::new();
    for r in &merged {
        let mut charts = charts::of(r);
        if merged.len() > 1 {
            for c in &mut charts {
                c.id = format!("{}-{}", charts::slug(&short_title(r)), c.id);
            }
        }
        drawn.push((r, charts));
    }
    let overview = Overview::of(&merged);
    crate::report::write_whole(out, &page(&drawn, &merged, &overview))?;
    let mut plots = 0;
    for c in drawn.iter().flat_map(|(_, charts)| charts) {
        plots += 1;
        if let Some(dir) = svg {
            let name = format!("{}.svg", c.id);
            crate::report::write_whole(&dir.join(name), &c.file())?;
        }
    }
    Ok(plots)
}

fn page(all: &[(&Report, Vec<Chart>)], merged: &[Report], overview: &Overview) -> String {
    let mut h = String::new();
    let several = all.len() > 1;
    let name = match all.first() {
        Some((r, _)) if !several || !r.statements.is_empty() => title(r),
        _ => text!("{0} studies", all.len()),
    };
    let _ = write!(
        h,
        "<!doctype html>\n<html lang=\"{}\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{} · pando lab</title><style>{LIBRARY_CSS}{COLOR_CSS}{PLOT_CSS}{PAGE_CSS}</style></head><body>\
         <header><div class=\"bar\"><span class=\"brand\">pando lab</span><button id=\"theme\" type=\"button\" aria-label=\"light or dark\">◐</button></div></header><main>",
        crate::lang::code(),
        escape(&name)
    );
    if several {
        let _ = write!(h, "<section><h1>{}</h1>", escape(&name));
        merged
            .iter()
            .for_each(|r| tables::table(&mut h, &sheets::statements(r)));
        scorecard::scorecard(&mut h, merged, overview);
        for (r, _) in all.iter().filter(|(r, _)| r.statements.is_empty()) {
            let at = anchor(r);
            let _ = write!(h, "<h2><a href=\"#{at}\">{}</a></h2>", escape(&title(r)));
            verdict(&mut h, r);
        }
        tables::table(&mut h, &sheets::overview(overview));
        h.push_str("</section>");
    }
    for (r, charts) in all
        .iter()
        .filter(|(r, _)| !several || r.statements.is_empty())
    {
        let at = anchor(r);
        if several {
            let name = escape(&title(r));
            let _ = write!(
                h,
                "<details class=\"study\" id=\"{at}\"><summary>{name}</summary>"
            );
            facts(&mut h, r);
        } else {
            let _ = write!(h, "<section id=\"{at}\"><h1>{}</h1>", escape(&title(r)));
            scorecard::scorecard(&mut h, merged, overview);
            verdict(&mut h, r);
            facts(&mut h, r);
        }
        section(&mut h, r, charts);
        h.push_str(if several { "</details>" } else { "</section>" });
    }
    let licence = LIBRARY_LICENCE.replace("*/", "");
    let _ = writeln!(
        h,
        "</main><script>/* uPlot\n{licence}\n*/\n{LIBRARY}\n{CHART_SCRIPT}\n{SCRIPT}</script></body></html>"
    );
    h
}

/// What it says, and whether to believe it.
fn verdict(h: &mut String, r: &Report) {
    h.push_str("<ul class=\"verdict\">");
    for s in verdict::of(r) {
        let class = match s.tone {
            Tone::Ahead => "ahead",
            Tone::Behind => "behind",
            Tone::Open => "open",
            Tone::Plain => "plain",
        };
        let _ = write!(h, "<li class=\"{class}\">{}</li>", escape(&s.text));
    }
    let trust = verdict::trust(r);
    let class = if trust.doubtful { "doubt" } else { "quiet" };
    let _ = write!(
        h,
        "</ul><p class=\"trust {class}\">{}</p>",
        escape(&trust.text)
    );
}

/// The run's subject, place and time.
fn facts(h: &mut String, r: &Report) {
    let side = |name: &str| r.settings.get(name).and_then(|v| v.as_str());
    if let (Some(a), Some(b), "compare") = (side("a"), side("b"), &*r.kind) {
        let (a, b) = (escape(a), escape(b));
        let _ = write!(h, "<p class=\"lead\">A: {a} · B: {b}</p>");
    }
    let _ = write!(
        h,
        "<p class=\"lead\">{}</p>",
        escape(&text!(
            "{0} · {1} · {2} cores, {3} memory · load {4} before, {5} after, steal {6}%",
            r.started.replace('T', " ").replace('Z', " UTC"),
            r.host.cpu,
            r.host.cores,
            bytes(r.host.memory_bytes),
            format!("{:.1}", r.conditions.load_before),
            format!("{:.1}", r.conditions.load_after),
            format!("{:.1}", r.conditions.steal_percent)
        ))
    );
}

/// Where a study begins on the page.
fn anchor(r: &Report) -> String {
    format!("of-{}", charts::slug(&short_title(r)))
}

fn section(h: &mut String, r: &Report, charts: &[Chart]) {
    let first = charts::first(r, charts);
    if !first.is_empty() {
        h.push_str("<div class=\"charts\">");
        first.iter().for_each(|&i| figure(h, &charts[i]));
        h.push_str("</div>");
    }
    sheets::all(r).iter().for_each(|s| tables::table(h, s));
    let rest = || (0..charts.len()).filter(|i| !first.contains(i));
    if rest().count() > 0 {
        let _ = write!(
            h,
            "<details class=\"more\"><summary>{} ({})</summary>",
            tr("All other plots"),
            rest().count()
        );
        contents(h, rest().map(|i| &charts[i]));
        h.push_str("<div class=\"charts\">");
        rest().for_each(|i| figure(h, &charts[i]));
        h.push_str("</div></details>");
    }
    targets(h, r);
    findings(h, r);
    how(h, r);
}

fn targets(h: &mut String, r: &Report) {
    let list: Vec<_> = if r.targets.is_empty() {
        r.target.iter().collect()
    } else {
        r.targets.iter().collect()
    };
    if list.is_empty() {
        return;
    }
    let title = tr("Targets and their settings");
    let _ = write!(
        h,
        "<details><summary>{title}</summary><ul class=\"targets\">"
    );
    let labels: Vec<String> = list.iter().map(|t| t.label()).collect();
    let colors = palette::colors(&labels);
    for (t, color) in list.iter().zip(colors) {
        let cache = t.cache_bytes.map_or(String::new(), |b| {
            format!(" · {}", text!("cache {0}", bytes(b)))
        });
        let settings: Vec<String> = t
            .settings
            .iter()
            .map(|(k, v)| format!("{k} = {v}"))
            .collect();
        let _ = write!(
            h,
            "<li><span class=\"swatch b{color}\"></span><span><b>{}</b>{cache}<br><small>{}</small>",
            escape(&t.label()),
            escape(&t.url),
        );
        if !settings.is_empty() {
            let list = escape(&settings.join(", "));
            let _ = write!(h, "<br><small>{list}</small>");
        }
        h.push_str("</span></li>");
    }
    h.push_str("</ul></details>");
}

fn contents<'a>(h: &mut String, charts: impl Iterator<Item = &'a Chart>) {
    h.push_str("<ul class=\"nav\">");
    for c in charts {
        let _ = write!(h, "<li><a href=\"#{}\">{}</a></li>", c.id, escape(&c.title));
    }
    h.push_str("</ul>");
}

fn figure(h: &mut String, c: &Chart) {
    let tall = matches!(
        &c.body,
        Body::Boxes(_) | Body::Ranges { .. } | Body::Bars { .. }
    );
    let _ = write!(
        h,
        "<figure id=\"{}\"{}><figcaption><h3>{}</h3><p>{}</p></figcaption>",
        c.id,
        if tall { " class=\"tall\"" } else { "" },
        escape(&c.title),
        escape(&c.caption)
    );
    let _ = match c.data() {
        Some(data) => write!(
            h,
            "<p class=\"axes\"><span>{}{}</span><span>{}</span></p><div class=\"plot\"><script type=\"application/json\">{data}</script></div>",
            escape(&c.y.label),
            if c.y.label.ends_with(',') {
                c.y.suffix
            } else {
                ""
            },
            events(c)
        ),
        None => write!(
            h,
            "<div class=\"wide\">{}</div><div class=\"narrow\">{}</div>",
            c.svg(540.0),
            c.svg(336.0)
        ),
    };
    h.push_str("</figure>");
}

/// What the blocks at a plot's foot are.
fn events(c: &Chart) -> String {
    let Body::Lines(lines) = &c.body else {
        return String::new();
    };
    let one = |(row, (what, _)): (usize, &(String, Vec<f64>))| {
        let color = (lines.len() + row + 1) % plot::COLORS;
        format!("<i class=\"swatch b{color}\"></i> {} ", escape(what))
    };
    c.events.iter().enumerate().map(one).collect()
}

fn findings(h: &mut String, r: &Report) {
    let list = published::findings(&r.name);
    if list.is_empty() {
        return;
    }
    let title = tr("What the published study saw");
    let _ = write!(h, "<details class=\"text\"><summary>{title}</summary><ul>");
    for f in list {
        let _ = write!(h, "<li>{}</li>", escape(known(f)));
    }
    h.push_str("</ul></details>");
}

fn how(h: &mut String, r: &Report) {
    let title = tr("How it was measured");
    let _ = write!(h, "<details class=\"text\"><summary>{title}</summary><ul>");
    for n in r.notes.iter().chain(&sheets::marks(r)) {
        let _ = write!(h, "<li>{}</li>", escape(known(n)));
    }
    for n in [
        tr(
            "Closed loop unless a rate is named: each connection has one request under way; figures are throughput and service time. Open loop: response time from the moment at which a request was due.",
        ),
        tr(
            "Several repeats: targets take turns, a figure is the median, ± how far its 95% interval over the repeats reaches (Student's t on logarithms); one test over all rows decides which target is faster (Holm).",
        ),
        tr(
            "Percentiles stand where at least five operations lie beyond them; of writes that nothing was waited for there are none, and of batches they are those of a whole request.",
        ),
        tr(
            "Not quiet (~): other processes took more than 8% of the cores during the step, more than 3% of the time was stolen, or the null server itself was more than 20% slower than at its best.",
        ),
        tr(
            "Spread: the standard deviation of the time of every 1,000 operations, as a share of their mean. Faults and sleeps: page faults of the server's processes, and how often one of their threads waited for something, an operation. Core waits: of the time in which the server's threads were ready to run, the share that they waited for a core. Bytes: of requests (out) and replies (in), as the client counts them.",
        ),
        tr(
            "Every reply is checked and counted, a sample compared with what it must be; an error ends a run without a result.",
        ),
        tr(
            "Client against null server: the load client's CPU an operation against that of a server that only reads and answers the same load. An exclamation mark: above 1.3 on point reads.",
        ),
        tr(
            "Client late: how long after a request was due, and a connection idle, the client itself sent it.",
        ),
        tr(
            "Client and server shared this machine unless the settings say otherwise: compare ratios and shapes.",
        ),
    ] {
        let _ = write!(h, "<li>{}</li>", escape(n));
    }
    let long = |v: &serde_json::Value| v.as_str().is_some_and(|s| s.contains('\n'));
    for (name, text) in r.settings.iter().filter(|(_, v)| long(v)) {
        let text = escape(text.as_str().unwrap_or_default());
        let _ = write!(h, "<li>{}:<pre>{text}</pre></li>", escape(name));
    }
    let settings: Vec<String> = r
        .settings
        .iter()
        .filter(|(_, v)| !long(v))
        .map(|(k, v)| {
            format!(
                "{k} {}",
                v.as_str().map_or_else(|| v.to_string(), String::from)
            )
        })
        .collect();
    if let Some(line) = r.command_line() {
        let _ = write!(
            h,
            "<li>{}: <code>{}</code></li>",
            tr("Command"),
            escape(&line)
        );
    }
    let _ = write!(
        h,
        "<li>{}: {}.</li><li>{}</li></ul></details>",
        tr("Settings"),
        escape(&settings.join(", ")),
        escape(&text!(
            "pando lab {0}, schema {1}, {2} s in all. Plots of lines are drawn by uPlot 1.6.32 (MIT).",
            r.lab_version,
            r.schema,
            format!("{:.0}", r.seconds)
        ))
    );
}

/// A page beside its result, for commands that end with one.
pub fn beside(report: &Report, out: &Path) -> Result<PathBuf> {
    if out.as_os_str().is_empty() {
        return Err(Fault::Usage("no place for the page".into()));
    }
    let page = out.with_extension("html");
    write(std::slice::from_ref(report), &page, None)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Draft, MeasuredStep, TargetInfo};

    fn report(target: &str) -> Report {
        let mut d = Draft::new("study", "B-keys");
        d.add_target(TargetInfo {
            product: target.into(),
            url: "mongodb://<b>".into(),
            ..TargetInfo::default()
        });
        d.note("<script>alert(1)</script>");
        d.report.steps.push(MeasuredStep {
            name: "insert".into(),
            mode: Some("key given".into()),
            target: Some(target.into()),
            per_second: 100.0,
            group: 1000,
            group_seconds: (0..60).map(|i| 0.01 + f64::from(i % 7) / 1e3).collect(),
            ..MeasuredStep::default()
        });
        d.report
    }

    #[test]
    fn a_page_stands_by_itself_and_nothing_breaks_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("page.html");
        let plots = write(
            &[report("A"), report("B")],
            &out,
            Some(&dir.path().join("plots")),
        )
        .unwrap();
        let page = std::fs::read_to_string(&out).unwrap();
        assert!(plots >= 3);
        assert_eq!(
            std::fs::read_dir(dir.path().join("plots")).unwrap().count(),
            plots
        );
        assert!(!page.contains("alert(1)</script>") && !page.contains("<b>\""));
        assert_eq!(page.matches("<script>").count(), 1);
        assert!(
            page.contains("Permission is hereby granted"),
            "the library's licence"
        );
        for outside in ["http://", "https://", "@import", "url("] {
            let own = page.replace("http://www.w3.org/2000/svg", "");
            let own = own.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "");
            assert!(!own.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("name=\"viewport\""));
    }

    #[test]
    fn results_of_one_study_are_laid_side_by_side() {
        let merged = merge(&[report("A"), report("B"), report("A")]);
        assert_eq!(merged.len(), 1);
        let targets: Vec<&str> = merged[0]
            .steps
            .iter()
            .filter_map(|s| s.target.as_deref())
            .collect();
        assert!(targets[2].starts_with("A ("), "{targets:?}");
        assert_eq!(merged[0].notes.len(), 1);
    }
}
