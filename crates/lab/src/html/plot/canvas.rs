//! The sheet that a plot is drawn on: its legend, its axes.

use super::scale::Map;
use super::{Axis, COLORS, escape};
use crate::sheet::clipped;
use std::fmt::Write as _;

pub(super) const FONT: f64 = 12.0;
/// About the width of a character of the page's font.
const CHARACTER: f64 = 6.5;

pub(super) fn text_width(s: &str) -> f64 {
    s.chars().count() as f64 * CHARACTER
}

pub(super) struct Canvas {
    pub(super) out: String,
    pub(super) width: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Canvas {
    /// As much of a row's name as has room; the whole of it is in the row's title.
    pub(super) fn fitted(&self, name: &str) -> String {
        let room = (self.width - self.left - 4.0) / CHARACTER;
        clipped(name, room as usize)
    }

    /// The names of the drawn series, in rows above the plot; gives where the plot may begin.
    pub(super) fn legend(&mut self, names: &[(String, usize, bool)]) {
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

    pub(super) fn y_axis(&mut self, map: &Map, axis: &Axis) {
        for t in map.ticks(axis, 5.0) {
            let y = map.at(t);
            let _ = write!(
                self.out,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"end\">{}</text>",
                self.left,
                self.right,
                self.left - 6.0,
                y + 4.0,
                axis.named(t)
            );
        }
        let _ = write!(
            self.out,
            "<text x=\"2\" y=\"{:.1}\" class=\"axis\">{}</text>",
            self.top - 11.0,
            escape(&axis.label)
        );
    }

    pub(super) fn x_axis(&mut self, map: &Map, axis: &Axis) {
        let wanted = (self.right - self.left) / 90.0;
        let mut last = f64::NEG_INFINITY;
        for t in map.ticks(axis, wanted) {
            let x = map.at(t);
            let label = axis.named(t);
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

    pub(super) fn x_label(&mut self, label: &str, below: f64) {
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
