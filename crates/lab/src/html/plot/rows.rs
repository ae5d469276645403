//! Values in rows: boxes, bars, ranges against a reference.

use super::super::palette;
use super::canvas::Canvas;
use super::scale::Map;
use super::{Boxed, COLORS, Chart, Range, bounds, escape, short};
use std::fmt::Write as _;

impl Chart {
    pub(super) fn boxes(&self, c: &mut Canvas, boxes: &[Boxed], height: f64) -> f64 {
        // Lying boxes: names are long, and a phone is narrow.
        let row = 34.0;
        let (first, last) = (14.0, 14.0 + row * boxes.len() as f64);
        c.left = 12.0;
        c.bottom = last;
        let Some((low, high)) = bounds(boxes.iter().flat_map(|b| b.at)) else {
            return height;
        };
        let x = Map {
            low: if self.x.log { low.max(1e-9) * 0.9 } else { 0.0 },
            high: high * 1.1,
            from: c.left,
            to: c.right,
            log: self.x.log,
        };
        for t in x.ticks(&self.x, 6.0) {
            let px = x.at(t);
            let _ = write!(
                c.out,
                "<line x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{first:.1}\" y2=\"{last:.1}\" class=\"grid\"/>"
            );
        }
        for (i, b) in boxes.iter().enumerate() {
            let color = b.color % COLORS;
            let top = first + row * i as f64;
            let (mid, p) = (top + 24.0, b.at.map(|v| x.at(v)));
            let said = format!(
                "{}: 5% {}, 25% {}, median {}, 75% {}, 95% {}, longest {}{}",
                b.name,
                short(b.at[0]),
                short(b.at[1]),
                short(b.at[2]),
                short(b.at[3]),
                short(b.at[4]),
                short(b.at[5]),
                self.x.suffix
            );
            let _ = write!(
                c.out,
                "<g><title>{}</title><text x=\"{:.1}\" y=\"{:.1}\">{}</text>\
                 <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{mid:.1}\" y2=\"{mid:.1}\" class=\"line s{color}\"/>\
                 <rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"10\" rx=\"2\" class=\"f{color}\"/>\
                 <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"median\"/>\
                 <circle cx=\"{:.1}\" cy=\"{mid:.1}\" r=\"3\" class=\"mark s{color}\"/></g>",
                escape(&said),
                c.left,
                top + 13.0,
                escape(&c.fitted(&b.name)),
                p[0],
                p[4],
                p[1],
                mid - 5.0,
                (p[3] - p[1]).max(2.0),
                p[2],
                p[2],
                mid - 6.0,
                mid + 6.0,
                p[5]
            );
        }
        c.x_axis(&x, &self.x);
        last + 40.0
    }

    pub(super) fn bars(
        &self,
        c: &mut Canvas,
        groups: &[String],
        series: &[(String, Vec<f64>)],
        _height: f64,
    ) -> f64 {
        let labels: Vec<String> = series.iter().map(|s| s.0.clone()).collect();
        let colors = palette::of_series(&labels);
        let named = labels.into_iter().zip(&colors);
        let names: Vec<_> = named.map(|(name, c)| (name, *c, false)).collect();
        c.legend(if series.len() > 1 { &names } else { &[] });
        c.left = 12.0;
        let bar = 13.0;
        let high = bounds(series.iter().flat_map(|s| s.1.iter().copied())).map_or(1.0, |b| b.1);
        let x = Map {
            low: 0.0,
            high: high.max(1e-9),
            from: c.left,
            to: c.right - 56.0,
            log: false,
        };
        let mut y = c.top;
        for (g, group) in groups.iter().enumerate() {
            let _ = write!(
                c.out,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                c.left,
                y + 10.0,
                escape(&c.fitted(group))
            );
            y += 16.0;
            for (i, (name, values)) in series.iter().enumerate() {
                let Some(v) = values.get(g).copied().filter(|v| v.is_finite()) else {
                    continue;
                };
                let _ = write!(
                    c.out,
                    "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" class=\"f{}\"><title>{}: {}{}</title></rect><text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\">{}{}</text>",
                    x.from,
                    (x.at(v) - x.from).max(1.0),
                    bar - 2.0,
                    colors.get(i).map_or(i, |c| *c) % COLORS,
                    escape(name),
                    short(v),
                    self.x.suffix,
                    x.at(v) + 5.0,
                    y + 9.5,
                    short(v),
                    self.x.suffix
                );
                y += bar;
            }
            y += 7.0;
        }
        c.bottom = y;
        c.x_label(&self.x.label, 16.0);
        y + 24.0
    }

    pub(super) fn ranges(&self, c: &mut Canvas, rows: &[Range], reference: f64) -> f64 {
        let row = 34.0;
        let (first, last) = (10.0, 10.0 + row * rows.len() as f64);
        c.left = 12.0;
        c.bottom = last;
        let all = rows.iter().flat_map(|r| [r.low, r.high, r.value]);
        let Some((low, high)) = bounds(all.chain([reference])) else {
            return last;
        };
        let x = Map {
            low: if self.x.log {
                low.max(1e-6) * 0.9
            } else {
                low.min(reference) * 0.95
            },
            high: high * 1.1,
            from: c.left + 4.0,
            to: c.right - 44.0,
            log: self.x.log,
        };
        for t in x.ticks(&self.x, 5.0) {
            let px = x.at(t);
            let _ = write!(
                c.out,
                "<line x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{first:.1}\" y2=\"{last:.1}\" class=\"grid\"/>"
            );
        }
        let r = x.at(reference);
        let _ = write!(
            c.out,
            "<line x1=\"{r:.1}\" x2=\"{r:.1}\" y1=\"{first:.1}\" y2=\"{last:.1}\" class=\"reference\"/>"
        );
        for (i, range) in rows.iter().enumerate() {
            let color = range.color % COLORS;
            let top = first + row * i as f64;
            let mid = top + 24.0;
            let _ = write!(
                c.out,
                "<g><title>{0}: {1} ({2}–{3})</title><text x=\"{4:.1}\" y=\"{5:.1}\">{12}</text>\
                 <line x1=\"{6:.1}\" x2=\"{7:.1}\" y1=\"{mid:.1}\" y2=\"{mid:.1}\" class=\"line s{color}\"/>\
                 <circle cx=\"{8:.1}\" cy=\"{mid:.1}\" r=\"4.5\" class=\"f{color} dot\"/>\
                 <text x=\"{9:.1}\" y=\"{10:.1}\" class=\"tick\">{1}{11}</text></g>",
                escape(&range.name),
                short(range.value),
                short(range.low),
                short(range.high),
                c.left,
                top + 13.0,
                x.at(range.low),
                x.at(range.high),
                x.at(range.value),
                x.at(range.high).max(x.at(range.value)) + 8.0,
                mid + 4.0,
                self.x.suffix,
                escape(&c.fitted(&range.name))
            );
        }
        c.x_axis(&x, &self.x);
        last + 40.0
    }
}
