//! Plots as SVG: lines, boxes, bars and ranges, small and of our own, since a page must stand by itself.
//!
//! Colours are CSS variables (`--s0` …), so that one drawing serves the light and the dark page; a plot as a file of its
//! own carries the variables with it. Each plot is drawn at two widths, because text that is scaled down cannot be read.
//!
//! Invariant: every text from a result is escaped; a value that is not finite is left out, never drawn.

use std::fmt::Write as _;

pub struct Chart {
    /// A file name and an anchor.
    pub id: String,
    pub title: String,
    /// What to see in it.
    pub caption: String,
    pub x: Axis,
    pub y: Axis,
    pub body: Body,
    /// What went on meanwhile: a name and its places on the x axis.
    pub events: Vec<(String, Vec<f64>)>,
}

#[derive(Clone, Debug, Default)]
pub struct Axis {
    pub label: String,
    pub log: bool,
    /// Only these values get a tick.
    pub ticks: Vec<f64>,
    pub suffix: &'static str,
}

impl Axis {
    pub fn linear(label: &str) -> Axis {
        Axis {
            label: label.into(),
            ..Axis::default()
        }
    }

    /// Logarithmic, with ticks at these values.
    pub fn log(label: &str, ticks: Vec<f64>) -> Axis {
        Axis {
            label: label.into(),
            log: true,
            ticks,
            suffix: "",
        }
    }
}

pub enum Body {
    Lines(Vec<Line>),
    Boxes(Vec<Boxed>),
    Bars {
        groups: Vec<String>,
        series: Vec<(String, Vec<f64>)>,
    },
    /// A value with its interval, in rows, against a reference line.
    Ranges {
        rows: Vec<Range>,
        reference: f64,
    },
}

#[derive(Clone, Debug, Default)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Lower and upper bound at each point's place, where known.
    pub band: Vec<(f64, f64, f64)>,
    pub dashed: bool,
    /// Which colour; lines of one target share it.
    pub color: usize,
    /// Points that are pointed out: place, value, what is said.
    pub marks: Vec<(f64, f64, String)>,
    pub dots: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Boxed {
    pub name: String,
    pub color: usize,
    /// 5%, 25%, 50%, 75%, 95%, largest.
    pub at: [f64; 6],
}

#[derive(Clone, Debug, Default)]
pub struct Range {
    pub name: String,
    pub color: usize,
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

pub const COLORS: usize = 8;

pub fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A number on an axis or in a label: `950`, `12k`, `1.5M`.
pub fn short(v: f64) -> String {
    let (n, unit) = match v.abs() {
        a if a >= 1e9 => (v / 1e9, "G"),
        a if a >= 1e6 => (v / 1e6, "M"),
        a if a >= 1e4 => (v / 1e3, "k"),
        a if a >= 1e3 => (v, ""),
        _ => (v, ""),
    };
    let digits = match n.abs() {
        a if a >= 100.0 || a == 0.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 => 2,
        a if a >= 0.1 => 2,
        _ => 3,
    };
    let mut text = format!("{n:.digits$}");
    if text.contains('.') {
        text = text.trim_end_matches('0').trim_end_matches('.').to_string();
    }
    text + unit
}

/// Round steps from `low` to `high`, about `wanted` of them.
fn steps(low: f64, high: f64, wanted: f64) -> Vec<f64> {
    let span = (high - low).max(1e-12);
    let rough = span / wanted;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|m| m * power)
        .into_iter()
        .find(|s| *s >= rough * 0.999)
        .unwrap_or(power);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last.min(first + 50))
        .map(|i| i as f64 * step)
        .collect()
}

/// One axis mapped to pixels.
struct Map {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Map {
    fn at(&self, v: f64) -> f64 {
        let f = |v: f64| if self.log { v.max(1e-9).ln() } else { v };
        let span = f(self.high) - f(self.low);
        let share = if span.abs() < 1e-12 {
            0.5
        } else {
            (f(v) - f(self.low)) / span
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self, axis: &Axis, wanted: f64) -> Vec<f64> {
        if !axis.ticks.is_empty() {
            let inside = |t: &&f64| **t >= self.low * 0.999 && **t <= self.high * 1.001;
            return axis.ticks.iter().filter(inside).copied().collect();
        }
        if !self.log {
            return steps(self.low, self.high, wanted);
        }
        let decades =
            (self.low.log10().floor() as i32..=self.high.log10().ceil() as i32).collect::<Vec<_>>();
        let fine: &[f64] = if decades.len() <= 3 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        decades
            .iter()
            .flat_map(|d| fine.iter().map(move |m| m * 10f64.powi(*d)))
            .filter(|v| *v >= self.low * 0.999 && *v <= self.high * 1.001)
            .collect()
    }
}

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

const FONT: f64 = 12.0;
/// About the width of a character of the page's font.
const CHARACTER: f64 = 6.5;

fn text_width(s: &str) -> f64 {
    s.chars().count() as f64 * CHARACTER
}

struct Canvas {
    out: String,
    width: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Canvas {
    /// The names of what is drawn, in rows above the plot; gives where the plot may begin.
    fn legend(&mut self, names: &[(String, usize, bool)]) {
        let (mut x, mut y) = (2.0, 14.0);
        for (name, color, dashed) in names {
            let w = text_width(name) + 32.0;
            if x + w > self.width && x > 2.0 {
                x = 2.0;
                y += 18.0;
            }
            let dash = if *dashed {
                " stroke-dasharray=\"4 3\""
            } else {
                ""
            };
            let color = color % COLORS;
            let _ = write!(
                self.out,
                "<line x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"line s{color}\"{dash}/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                x + 16.0,
                y - 4.0,
                y - 4.0,
                x + 21.0,
                escape(name)
            );
            x += w;
        }
        self.top = if names.is_empty() { 14.0 } else { y + 16.0 };
    }

    fn y_axis(&mut self, map: &Map, axis: &Axis) {
        for t in map.ticks(axis, 5.0) {
            let y = map.at(t);
            let _ = write!(
                self.out,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"end\">{}{}</text>",
                self.left,
                self.right,
                self.left - 6.0,
                y + 4.0,
                short(t),
                axis.suffix
            );
        }
        let _ = write!(
            self.out,
            "<text x=\"2\" y=\"{:.1}\" class=\"axis\">{}</text>",
            self.top - 11.0,
            escape(&axis.label)
        );
    }

    fn x_axis(&mut self, map: &Map, axis: &Axis) {
        let wanted = (self.right - self.left) / 90.0;
        let mut last = f64::NEG_INFINITY;
        for t in map.ticks(axis, wanted) {
            let x = map.at(t);
            let label = format!("{}{}", short(t), axis.suffix);
            let w = text_width(&label);
            if x - w / 2.0 < last + 6.0 {
                continue;
            }
            last = x + w / 2.0;
            let _ = write!(
                self.out,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"base\"/><text x=\"{x:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"middle\">{label}</text>",
                self.bottom,
                self.bottom + 4.0,
                self.bottom + 18.0,
            );
        }
        self.x_label(&axis.label, 34.0);
    }

    fn x_label(&mut self, label: &str, below: f64) {
        let _ = write!(
            self.out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"base\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"axis\" text-anchor=\"end\">{}</text>",
            self.left,
            self.right,
            self.bottom,
            self.bottom,
            self.right,
            self.bottom + below,
            escape(label)
        );
    }
}

/// Where a series of values begins and ends; nothing finite is no range.
fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|v| v.is_finite()).fold(None, |b, v| match b {
        None => Some((v, v)),
        Some((low, high)) => Some((low.min(v), high.max(v))),
    })
}

impl Chart {
    /// The plot at a width, without the page's colours.
    pub fn svg(&self, width: f64) -> String {
        let height = if width < 400.0 { 270.0 } else { 310.0 };
        let mut c = Canvas {
            out: String::new(),
            width,
            left: 52.0,
            right: width - 12.0,
            top: 14.0,
            bottom: height - 40.0,
        };
        let height = match &self.body {
            Body::Lines(lines) => self.lines(&mut c, lines, height),
            Body::Boxes(boxes) => self.boxes(&mut c, boxes, height),
            Body::Bars { groups, series } => self.bars(&mut c, groups, series, height),
            Body::Ranges { rows, reference } => self.ranges(&mut c, rows, *reference),
        };
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\" xmlns=\"http://www.w3.org/2000/svg\" font-size=\"{FONT}\">{}</svg>",
            escape(&self.title),
            c.out
        )
    }

    /// The plot as a file: with its title and its colours for light and dark.
    pub fn file(&self) -> String {
        let inner = self.svg(640.0);
        let style = format!(
            "<style>svg{{font-family:system-ui,sans-serif;background:var(--card)}}{}{}</style>",
            super::COLOR_CSS,
            super::PLOT_CSS
        );
        inner.replacen(
            '>',
            &format!("><title>{}</title>{style}", escape(&self.title)),
            1,
        )
    }

    fn y_map(&self, c: &Canvas, low: f64, high: f64) -> Map {
        let (low, high) = if self.y.log {
            (low.max(1e-9) * 0.8, high.max(1e-9) * 1.25)
        } else {
            // Rates and sizes begin at nothing: half a scale exaggerates.
            (low.min(0.0), if high > 0.0 { high * 1.08 } else { 1.0 })
        };
        Map {
            low,
            high,
            from: c.bottom,
            to: c.top,
            log: self.y.log,
        }
    }

    fn lines(&self, c: &mut Canvas, lines: &[Line], height: f64) -> f64 {
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
        for l in lines {
            let color = l.color % COLORS;
            if l.band.len() > 1 {
                let mut path = String::new();
                let forth = l.band.iter().map(|b| (b.0, b.2));
                let back = l.band.iter().rev().map(|b| (b.0, b.1));
                for (i, (px, py)) in forth.chain(back).enumerate() {
                    let _ = write!(
                        path,
                        "{}{:.1} {:.1}",
                        if i == 0 { "M" } else { "L" },
                        x.at(px),
                        y.at(py)
                    );
                }
                let _ = write!(c.out, "<path d=\"{path}Z\" class=\"band f{color}\"/>");
            }
            let mut path = String::new();
            for (px, py) in thin(&l.points, 900).iter().filter(|p| p.1.is_finite()) {
                let _ = write!(
                    path,
                    "{}{:.1} {:.1}",
                    if path.is_empty() { "M" } else { "L" },
                    x.at(*px),
                    y.at(*py)
                );
            }
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
            if l.dots {
                for (px, py) in l.points.iter().filter(|p| p.1.is_finite()) {
                    let _ = write!(
                        c.out,
                        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" class=\"f{color} dot\"><title>{}: {}{} → {}{}</title></circle>",
                        x.at(*px),
                        y.at(*py),
                        escape(&l.name),
                        short(*px),
                        self.x.suffix,
                        short(*py),
                        self.y.suffix
                    );
                }
            }
        }
        for (row, (what, places)) in self.events.iter().enumerate() {
            let py = c.bottom - 5.0 - 9.0 * row as f64;
            let color = (lines.len() + row + 1) % COLORS;
            for px in places.iter().filter(|p| **p >= x0 && **p <= x.high) {
                let _ = write!(
                    c.out,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"7\" class=\"f{color}\"><title>{} at {} s</title></rect>",
                    x.at(*px) - 1.5,
                    py - 3.5,
                    escape(what),
                    short(*px)
                );
            }
        }
        // What is pointed out lies above all lines, its words kept inside.
        let mut said: Vec<(f64, f64)> = Vec::new();
        for l in lines {
            let color = l.color % COLORS;
            for (px, py, what) in l.marks.iter().filter(|m| m.1.is_finite()) {
                let (cx, cy) = (x.at(*px), y.at(*py));
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
        height
    }

    fn boxes(&self, c: &mut Canvas, boxes: &[Boxed], height: f64) -> f64 {
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
                escape(&b.name),
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

    fn bars(
        &self,
        c: &mut Canvas,
        groups: &[String],
        series: &[(String, Vec<f64>)],
        _height: f64,
    ) -> f64 {
        let names: Vec<_> = series
            .iter()
            .enumerate()
            .map(|(i, s)| (s.0.clone(), i, false))
            .collect();
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
                escape(group)
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
                    i % COLORS,
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

    fn ranges(&self, c: &mut Canvas, rows: &[Range], reference: f64) -> f64 {
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
                "<g><title>{0}: {1} ({2}–{3})</title><text x=\"{4:.1}\" y=\"{5:.1}\">{0}</text>\
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
                self.x.suffix
            );
        }
        c.x_axis(&x, &self.x);
        last + 40.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (v, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (1.5, "1.5"),
            (950.0, "950"),
            (5000.0, "5000"),
            (12_345.0, "12.3k"),
            (250_000.0, "250k"),
            (1_500_000.0, "1.5M"),
        ] {
            assert_eq!(short(v), text);
        }
        assert_eq!(steps(0.0, 10.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn a_thinned_line_keeps_its_spikes() {
        let points: Vec<(f64, f64)> = (0..10_000)
            .map(|i| {
                (
                    f64::from(i),
                    if i == 5001 {
                        0.0
                    } else {
                        100.0 + f64::from(i % 3)
                    },
                )
            })
            .collect();
        let thinned = thin(&points, 300);
        assert!(thinned.len() <= 320, "{}", thinned.len());
        assert!(thinned.contains(&(5001.0, 0.0)));
    }

    #[test]
    fn text_cannot_break_out_and_strange_values_are_left_out() {
        let chart = |body| Chart {
            id: "x".into(),
            title: "<a> & \"b\"".into(),
            caption: String::new(),
            x: Axis::linear("x"),
            y: Axis::linear("y"),
            body,
            events: vec![("flush <".into(), vec![1.0, 3.0])],
        };
        let line = Line {
            name: "</svg><script>".into(),
            points: vec![
                (1.0, 2.0),
                (2.0, f64::NAN),
                (3.0, f64::INFINITY),
                (4.0, 1.0),
            ],
            dots: true,
            marks: vec![(1.0, 2.0, "peak: <b>".into())],
            ..Line::default()
        };
        let bodies = [
            Body::Lines(vec![line]),
            Body::Lines(Vec::new()),
            Body::Boxes(vec![Boxed {
                name: "<i>".into(),
                color: 9,
                at: [1.0, 2.0, 3.0, 4.0, 5.0, 90.0],
            }]),
            Body::Boxes(Vec::new()),
            Body::Bars {
                groups: vec!["<g>".into()],
                series: vec![("a".into(), vec![f64::NAN]), ("b".into(), vec![3.0])],
            },
            Body::Ranges {
                rows: vec![Range {
                    name: "r".into(),
                    color: 0,
                    value: 1.0,
                    low: 0.9,
                    high: 1.2,
                }],
                reference: 1.0,
            },
            Body::Ranges {
                rows: Vec::new(),
                reference: 1.0,
            },
        ];
        for body in bodies {
            let c = chart(body);
            for svg in [c.svg(340.0), c.svg(560.0), c.file()] {
                assert!(
                    !svg.contains("<script") && !svg.contains("<b>") && !svg.contains("<g>e"),
                    "{svg}"
                );
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            }
        }
    }
}
