//! Plots: lines as data for the page's chart library, and everything as SVG of our own: boxes, bars and ranges, which
//! that library has not, and each plot as a file.
//!
//! Colours are CSS variables (`--s0` …), so that one drawing serves the light and the dark page; a plot as a file of its
//! own carries the variables with it. Each plot is drawn at two widths, because text that is scaled down cannot be read.
//!
//! Invariant: every text from a result is escaped; a value that is not finite is left out, never drawn.

mod canvas;
mod data;
mod lines;
mod rows;
mod scale;

use canvas::Canvas;
use canvas::FONT;
use scale::Map;

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
    /// A value x stands for a share of 1 - 1/x, and is named so: 100 is 99%.
    pub shares: bool,
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
            ..Axis::default()
        }
    }

    /// Of percentiles, each decade ten times as rare as the one before.
    pub fn shares(label: &str) -> Axis {
        Axis {
            shares: true,
            ..Axis::log(label, (0..7).map(|n| 10f64.powi(n)).collect())
        }
    }

    /// A value as the axis names it.
    fn named(&self, v: f64) -> String {
        match self.shares {
            true => share(v),
            false => format!("{}{}", short(v), self.suffix),
        }
    }
}

/// `99.9%` of 1000: as many nines as the value tells apart.
fn share(x: f64) -> String {
    let percent = 100.0 - 100.0 / x.max(1.0);
    let digits = (x.max(1.0).log10() - 2.0).ceil().clamp(0.0, 6.0) as usize;
    format!("{percent:.digits$}%")
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
    /// Marked points: place, value, words.
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
}

#[cfg(test)]
mod tests {
    use super::lines::thin;
    use super::scale::steps;
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
