//! Two sides of a comparison, and single figures against their bars.

use crate::measure::Latency;
use serde::{Deserialize, Serialize};

/// Two sides measured in alternating slices of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SideComparison {
    pub name: String,
    pub title: String,
    pub connections: usize,
    pub durability: Option<String>,
    pub slice_seconds: f64,
    pub subject: Side,
    /// The null server, or the same server in another mode: `reference_is` says which.
    pub reference: Side,
    pub reference_is: String,
    /// Median over pairs of slices of subject rate / reference rate, and its interval.
    pub share: f64,
    pub share_interval: [f64; 2],
    /// CPU an operation of the subject / CPU an operation of the reference.
    pub cpu_ratio: Option<f64>,
    /// Of `compare`, where the ratio is a median over pairs of slices.
    #[serde(default)]
    pub cpu_interval: Option<[f64; 2]>,
    pub bar_share: Option<f64>,
    pub bar_cpu: Option<f64>,
    pub pass: bool,
    /// Of `compare`: faster, slower or inconclusive, and by what it was decided.
    #[serde(default)]
    pub verdict: String,
    #[serde(default)]
    pub decided_by: String,
    /// All of it, servers started and records brought in included.
    #[serde(default)]
    pub took_seconds: f64,
    /// Ctrl-C came before its end: a run that is resumed does it again.
    #[serde(default)]
    pub interrupted: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Side {
    pub operations: u64,
    pub seconds: f64,
    pub per_second: f64,
    pub slices_per_second: Vec<f64>,
    /// CPU microseconds an operation of the server's process in each slice.
    #[serde(default)]
    pub slices_cpu_us: Vec<f64>,
    /// CPU microseconds an operation of the server's process, background work that a slice left behind included.
    pub cpu_us: Option<f64>,
    /// CPU microseconds an operation of the load client.
    pub client_cpu_us: f64,
    /// How much of its core the client used, 0 to 1.
    pub client_busy: f64,
    pub latency: Latency,
}

impl SideComparison {
    /// The verdict in words: what costs more CPU while its rate is as high is not called slower.
    pub fn words(&self) -> &'static str {
        match (self.verdict.as_str(), self.decided_by == "CPU") {
            ("faster", false) => "B is faster",
            ("slower", false) => "B is slower",
            ("faster", true) => "B costs less CPU",
            ("slower", true) => "B costs more CPU",
            _ => "no difference that could be told",
        }
    }
}

/// What an author said, and whether it holds for a product.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    pub author: String,
    /// The target's label.
    pub product: String,
    /// `holds`, `does not hold`, `not shown here`.
    pub verdict: String,
    /// The figure that says so, or why it is not shown.
    pub figure: String,
}

/// One figure against one bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckedFigure {
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    pub pass: bool,
    pub note: String,
    /// Its value in each repeat, where there are several; then `value` is their median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<f64>,
}

impl CheckedFigure {
    pub fn at_most(name: &str, value: f64, unit: &str, bar: f64) -> CheckedFigure {
        CheckedFigure {
            name: name.into(),
            value,
            unit: unit.into(),
            at_most: Some(bar),
            pass: value <= bar,
            ..CheckedFigure::default()
        }
    }

    pub fn at_least(name: &str, value: f64, unit: &str, bar: f64) -> CheckedFigure {
        CheckedFigure {
            name: name.into(),
            value,
            unit: unit.into(),
            at_least: Some(bar),
            pass: value >= bar,
            ..CheckedFigure::default()
        }
    }

    /// A figure without a bar.
    pub fn figure(name: &str, value: f64, unit: &str) -> CheckedFigure {
        CheckedFigure {
            name: name.into(),
            value: if value.is_finite() { value } else { 0.0 },
            unit: unit.into(),
            pass: true,
            ..CheckedFigure::default()
        }
    }

    pub fn note(mut self, note: impl Into<String>) -> CheckedFigure {
        self.note = note.into();
        self
    }
}
