//! From values to places on the sheet.

use super::Axis;

/// Round steps from `low` to `high`, about `wanted` of them.
pub(super) fn steps(low: f64, high: f64, wanted: f64) -> Vec<f64> {
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
pub(super) struct Map {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) log: bool,
}

impl Map {
    pub(super) fn at(&self, v: f64) -> f64 {
        let f = |v: f64| if self.log { v.max(1e-9).ln() } else { v };
        let span = f(self.high) - f(self.low);
        let share = if span.abs() < 1e-12 {
            0.5
        } else {
            (f(v) - f(self.low)) / span
        };
        self.from + share * (self.to - self.from)
    }

    pub(super) fn ticks(&self, axis: &Axis, wanted: f64) -> Vec<f64> {
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
