//! The scorecard as the page shows it.

use super::palette;
use super::plot::escape;
use crate::lang::tr;
use crate::overview::Overview;
use crate::rates::RatioWord;
use crate::report::Report;
use crate::scorecard::{Bar, Scorecard, Workload};
use crate::text;
use std::fmt::Write as _;

/// More rows are folded.
const SHOWN: usize = 10;

/// Nothing of results that have no steps.
pub(super) fn scorecard(h: &mut String, reports: &[Report], overview: &Overview) {
    let card = Scorecard::of(reports, overview);
    if card.workloads.is_empty() {
        return;
    }
    let colors = palette::colors(&card.targets);
    h.push_str("<div class=\"text score\">");
    let _ = write!(h, "<h2>{}</h2><p class=\"keys\">", tr("Scorecard"));
    for (target, color) in card.targets.iter().zip(&colors) {
        let _ = write!(
            h,
            "<span><i class=\"swatch b{color}\"></i> {}</span>",
            escape(target)
        );
    }
    h.push_str("</p><p>");
    h.push_str(tr("Operations a second: longer is faster; a thin line is the 95% interval, as far as it reaches on the scale. p99: of the load that the row names, counted from when each operation was due; else of the closed loop. CPU: the server's, an operation."));
    if let [first, _, ..] = card.targets.as_slice() {
        h.push(' ');
        h.push_str(&escape(&text!("Whether {0} is faster is decided by one test over all rows, which names a winner among equals in one page of twenty (Holm).", first)));
    }
    h.push_str("</p>");
    let (shown, rest) = card.workloads.split_at(card.workloads.len().min(SHOWN));
    rows(h, shown, &card.targets, &colors);
    if !rest.is_empty() {
        let _ = write!(
            h,
            "<details><summary>{}</summary>",
            text!("{0} more workloads", rest.len())
        );
        rows(h, rest, &card.targets, &colors);
        h.push_str("</details>");
    }
    h.push_str("</div>");
}

fn rows(h: &mut String, workloads: &[Workload], targets: &[String], colors: &[usize]) {
    h.push_str("<ul class=\"rows\">");
    for w in workloads {
        let _ = write!(
            h,
            "<li><p class=\"what\"><b>{}</b> <small>{}</small></p>",
            escape(&w.words),
            escape(&w.place)
        );
        for ((bar, target), color) in w.bars.iter().zip(targets).zip(colors) {
            if let Some(bar) = bar {
                drawn(h, bar, target, *color);
            }
        }
        for a in w.against.iter().flatten() {
            let class = match a.word {
                RatioWord::Faster => "ahead",
                RatioWord::Slower => "behind",
                RatioWord::Open => "open",
            };
            let _ = write!(h, "<p class=\"{class}\">{}</p>", escape(&a.text));
        }
        h.push_str("</li>");
    }
    h.push_str("</ul>");
}

fn drawn(h: &mut String, bar: &Bar, target: &str, color: usize) {
    let _ = write!(
        h,
        "<div class=\"line\" title=\"{}\"><span class=\"track\"><span class=\"fill b{color}\" style=\"width:{:.2}%\"></span>",
        escape(target),
        bar.length * 100.0
    );
    if let Some([low, high]) = bar.interval {
        let _ = write!(
            h,
            "<span class=\"reach\" style=\"left:{:.2}%;width:{:.2}%\"></span>",
            low * 100.0,
            (high - low) * 100.0
        );
    }
    let _ = write!(
        h,
        "</span><span class=\"value\">{}</span><small>{}</small></div>",
        escape(&bar.text),
        escape(&bar.more())
    );
}
