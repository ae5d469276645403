//! Lines with bands, dots, marks and events.

use super::canvas::{Canvas, text_width};
use super::scale::Map;
use super::{COLORS, Chart, Line, bounds, escape, short};
use std::fmt::Write as _;

/// Keeps the shape of a long line: of each bucket the first, the lowest and the highest point.
pub fn thin(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let bucket = points.len().div_ceil(most / 3);
    let mut out = Vec::new();
    for part in points.chunks(bucket) {
        let by = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut keep: Vec<(f64, f64)> =
            [part.first(), part.iter().min_by(by), part.iter().max_by(by)]
                .into_iter()
                .flatten()
                .copied()
                .collect();
        keep.sort_by(|a, b| a.0.total_cmp(&b.0));
        keep.dedup();
        out.extend(keep);
    }
    out
}

impl Chart {
    pub(super) fn lines(&self, c: &mut Canvas, lines: &[Line], height: f64) -> f64 {
        let mut names: Vec<_> = lines
            .iter()
            .map(|l| (l.name.clone(), l.color, l.dashed))
            .collect();
        for (row, (what, _)) in self.events.iter().enumerate() {
            names.push((format!("{what} under way"), lines.len() + row + 1, false));
        }
        c.legend(&names);
        c.top += 19.0;
        c.bottom += c.top - 49.0;
        let height = height + c.top - 49.0;
        let points = || lines.iter().flat_map(|l| l.points.iter());
        let Some((x0, x1)) = bounds(points().map(|p| p.0)) else {
            return height;
        };
        let bands = lines.iter().flat_map(|l| l.band.iter().map(|b| b.2));
        let (y0, y1) = bounds(points().map(|p| p.1).chain(bands)).unwrap_or((0.0, 1.0));
        let x = Map {
            low: x0,
            high: if x1 > x0 { x1 } else { x0 + 1.0 },
            from: c.left,
            to: c.right,
            log: self.x.log,
        };
        let y = self.y_map(c, y0, y1);
        c.y_axis(&y, &self.y);
        c.x_axis(&x, &self.x);
        let plane = Plane { x, y };
        for l in lines {
            plane.line(self, c, l);
        }
        for (row, (what, places)) in self.events.iter().enumerate() {
            let color = (lines.len() + row + 1) % COLORS;
            plane.events(c, row, color, what, places);
        }
        // Marks lie above all lines, their words kept inside.
        let mut said: Vec<(f64, f64)> = Vec::new();
        for l in lines {
            plane.marks(c, l, &mut said);
        }
        height
    }
}

/// Both axes mapped to pixels.
struct Plane {
    x: Map,
    y: Map,
}

impl Plane {
    /// `M` and `L` to each of the points.
    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (px, py) in points {
            let step = if path.is_empty() { "M" } else { "L" };
            let _ = write!(path, "{step}{:.1} {:.1}", self.x.at(px), self.y.at(py));
        }
        path
    }

    fn line(&self, chart: &Chart, c: &mut Canvas, l: &Line) {
        let color = l.color % COLORS;
        if l.band.len() > 1 {
            let forth = l.band.iter().map(|b| (b.0, b.2));
            let back = l.band.iter().rev().map(|b| (b.0, b.1));
            let path = self.path(forth.chain(back));
            let _ = write!(c.out, "<path d=\"{path}Z\" class=\"band f{color}\"/>");
        }
        let drawn = thin(&l.points, 900);
        let path = self.path(drawn.into_iter().filter(|p| p.1.is_finite()));
        let dash = if l.dashed {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        let fine = if l.points.len() > 150 { " fine" } else { "" };
        let _ = write!(
            c.out,
            "<path d=\"{path}\" class=\"line s{color}{fine}\"{dash}/>"
        );
        for (px, py) in l.points.iter().filter(|p| l.dots && p.1.is_finite()) {
            let _ = write!(
                c.out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" class=\"f{color} dot\"><title>{}: {}{} → {}{}</title></circle>",
                self.x.at(*px),
                self.y.at(*py),
                escape(&l.name),
                short(*px),
                chart.x.suffix,
                short(*py),
                chart.y.suffix
            );
        }
    }

    /// Blocks at the foot.
    fn events(&self, c: &mut Canvas, row: usize, color: usize, what: &str, places: &[f64]) {
        let py = c.bottom - 5.0 - 9.0 * row as f64;
        let inside = |p: &&f64| **p >= self.x.low && **p <= self.x.high;
        for px in places.iter().filter(inside) {
            let _ = write!(
                c.out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"7\" class=\"f{color}\"><title>{} at {} s</title></rect>",
                self.x.at(*px) - 1.5,
                py - 3.5,
                escape(what),
                short(*px)
            );
        }
    }

    /// Rings with a word each; `said` is where words stand already.
    fn marks(&self, c: &mut Canvas, l: &Line, said: &mut Vec<(f64, f64)>) {
        let color = l.color % COLORS;
        for (px, py, what) in l.marks.iter().filter(|m| m.1.is_finite()) {
            let (cx, cy) = (self.x.at(*px), self.y.at(*py));
            let _ = write!(
                c.out,
                "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4.5\" class=\"mark s{color}\"><title>{}</title></circle>",
                escape(what)
            );
            let short_text = what.split(": ").next().unwrap_or_default();
            let half = text_width(short_text) / 2.0;
            let tx = cx.clamp(c.left + half, c.right - half);
            let ty = if cy - 10.0 < c.top + 4.0 {
                cy + 18.0
            } else {
                cy - 9.0
            };
            let free = said
                .iter()
                .all(|(ox, oy)| (ox - tx).abs() > half * 2.0 || (oy - ty).abs() > 13.0);
            if free && !short_text.is_empty() {
                said.push((tx, ty));
                let _ = write!(
                    c.out,
                    "<text x=\"{tx:.1}\" y=\"{ty:.1}\" class=\"note\" text-anchor=\"middle\">{}</text>",
                    escape(short_text)
                );
            }
        }
    }
}
