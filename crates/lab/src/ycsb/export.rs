//! Figures as YCSB's exporters write them: lines, JSON objects one after another, or one JSON array.

use super::Properties;
use crate::fault::{Fault, Result};
use serde_json::json;

/// `[metric], measurement, value`.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricLine {
    pub metric: String,
    pub measurement: String,
    pub value: MetricValue,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    Whole(u64),
    Real(f64),
    /// YCSB writes -1 beside a mere heading.
    Heading,
}

impl MetricLine {
    pub fn new(metric: &str, measurement: impl Into<String>, value: MetricValue) -> MetricLine {
        MetricLine {
            metric: metric.into(),
            measurement: measurement.into(),
            value,
        }
    }
}

/// A Java double always shows a fraction.
fn double(x: f64) -> String {
    if x.fract() == 0.0 {
        format!("{x:.1}")
    } else {
        x.to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exporter {
    Text,
    Json,
    JsonArray,
}

impl Exporter {
    /// By the class that `exporter` names, in either of YCSB's packages.
    pub fn of(p: &Properties) -> Result<Exporter> {
        let Some(class) = p.get("exporter") else {
            return Ok(Exporter::Text);
        };
        match class.rsplit('.').next().unwrap_or_default() {
            "TextMeasurementsExporter" => Ok(Exporter::Text),
            "JSONMeasurementsExporter" => Ok(Exporter::Json),
            "JSONArrayMeasurementsExporter" => Ok(Exporter::JsonArray),
            _ => Err(Fault::Usage(format!(
                "exporter={class} is not known (TextMeasurementsExporter, JSONMeasurementsExporter, JSONArrayMeasurementsExporter)"
            ))),
        }
    }

    pub fn text(self, entries: &[MetricLine]) -> String {
        let object = |e: &MetricLine| {
            let value = match e.value {
                MetricValue::Whole(n) => json!(n),
                MetricValue::Real(x) => json!(x),
                MetricValue::Heading => json!(-1),
            };
            let pairs = json!({"metric": e.metric, "measurement": e.measurement, "value": value});
            pairs.to_string()
        };
        match self {
            Exporter::Text => entries.iter().map(line).collect(),
            Exporter::Json => entries.iter().map(|e| object(e) + "\n").collect(),
            Exporter::JsonArray => {
                let all: Vec<String> = entries.iter().map(object).collect();
                format!("[{}]\n", all.join(",\n"))
            }
        }
    }
}

fn line(e: &MetricLine) -> String {
    let value = match e.value {
        MetricValue::Whole(n) => n.to_string(),
        MetricValue::Real(x) => double(x),
        MetricValue::Heading => "-1".into(),
    };
    format!("[{}], {}, {value}\n", e.metric, e.measurement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporters_write_the_same_figures() {
        let entries = [
            MetricLine::new("OVERALL", "RunTime(ms)", MetricValue::Whole(2000)),
            MetricLine::new("READ", "AverageLatency(us)", MetricValue::Real(50.0)),
        ];
        let mut p = Properties::default();
        let text = |p: &Properties| Exporter::of(p).unwrap().text(&entries);
        assert_eq!(
            text(&p),
            "[OVERALL], RunTime(ms), 2000\n[READ], AverageLatency(us), 50.0\n"
        );
        let name = "site.ycsb.measurements.exporter.JSONArrayMeasurementsExporter";
        p.set("exporter", name);
        let array: serde_json::Value = serde_json::from_str(&text(&p)).unwrap();
        assert_eq!(array[0]["value"], 2000);
        assert_eq!(array[1]["measurement"], "AverageLatency(us)");
        p.set(
            "exporter",
            name.replace("Array", "").replace("site.", "com.yahoo."),
        );
        let objects: Vec<serde_json::Value> = text(&p)
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(objects[1]["metric"], "READ");
        p.set("exporter", "my.Exporter");
        assert!(Exporter::of(&p).is_err());
    }
}
