//! Results in the formats of other tools: CSV for spreadsheets and scripts, Prometheus' text for a node exporter's textfile
//! collector or a push gateway, and HdrHistogram's log, which its own tools read.

use crate::rates::interval;
use crate::report::{CheckedFigure, MeasuredStep, Report};
use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for a terminal.
    #[default]
    Table,
    /// A line for each operation of each step.
    Csv,
    /// Gauges with a label for each step.
    Prometheus,
    /// Whole histograms in nanoseconds, a line with a tag for each operation of each step.
    Hlog,
}

const COLUMNS: &str = "study,started,step,mode,target,connections,durability,operation,operations,seconds,per_second,\
    per_second_low,per_second_high,repeats,offered,mean_us,p50_us,p90_us,p95_us,p99_us,p999_us,max_us,server_cpu_us,\
    client_cpu_us,others_percent,steal_percent,noisy,client_bound,overloaded,interrupted";

/// A cell, in quotes where it must be.
fn cell(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

fn number(v: Option<f64>) -> String {
    v.filter(|v| v.is_finite())
        .map_or(String::new(), |v| v.to_string())
}

/// The steps of results as CSV with a head.
pub fn csv(reports: &[Report]) -> String {
    let mut out = format!("{COLUMNS}\n");
    for r in reports {
        let own = r.target.as_ref().map(crate::report::TargetInfo::label);
        for s in &r.steps {
            let target = s.target.clone().or(own.clone()).unwrap_or_default();
            for kind in s.latency.keys() {
                out.push_str(&row(r, s, &target, Some(kind)));
            }
            if s.latency.is_empty() {
                out.push_str(&row(r, s, &target, None));
            }
        }
    }
    out
}

fn row(r: &Report, s: &MeasuredStep, target: &str, kind: Option<&String>) -> String {
    let l = kind.and_then(|k| s.latency.get(k));
    let bound = interval(s);
    let text = |s: &Option<String>| cell(s.as_deref().unwrap_or_default());
    let mut cells = vec![
        cell(&r.name),
        r.started.clone(),
        cell(&s.name),
        text(&s.mode),
        cell(target),
        s.connections.to_string(),
        text(&s.durability),
        cell(kind.map_or("", String::as_str)),
        l.map_or(s.operations, |l| l.count).to_string(),
        s.seconds.to_string(),
        s.per_second.to_string(),
        number(bound.map(|b| b[0])),
        number(bound.map(|b| b[1])),
        s.repeats.len().max(1).to_string(),
        number(s.offered),
    ];
    let times = l.map(|l| {
        [
            l.mean_us, l.p50_us, l.p90_us, l.p95_us, l.p99_us, l.p999_us, l.max_us,
        ]
    });
    cells.extend((0..7).map(|i| number(times.map(|t| t[i]))));
    cells.extend([
        number(s.server_cpu_us),
        s.client_cpu_us.to_string(),
        number(s.noise.others_percent),
        s.noise.steal_percent.to_string(),
        s.noise.reasons().is_some().to_string(),
        s.client_bound.to_string(),
        s.overloaded.to_string(),
        s.interrupted.to_string(),
    ]);
    cells.join(",") + "\n"
}

/// The histograms of results as a log of HdrHistogram, version 1.3: a step stands in one interval, repeats one after the other.
pub fn hlog(reports: &[Report]) -> String {
    let mut out = String::from("#[Histogram log format version 1.3]\n");
    out.push_str("\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n");
    for r in reports {
        let own = r.target.as_ref().map(crate::report::TargetInfo::label);
        let mut at = 0.0;
        for s in &r.steps {
            let target = s.target.clone().or(own.clone()).unwrap_or_default();
            let each = match s.repeats.is_empty() {
                true => std::slice::from_ref(s),
                false => &s.repeats[..],
            };
            for one in each {
                for (kind, l) in one.latency.iter().filter(|(_, l)| !l.hdr.is_empty()) {
                    let load = one
                        .offered
                        .map_or(format!("@{}", one.connections), |l| format!("@{l:.0}/s"));
                    let tag = [&target, &s.name, &load, kind].map(|p| tagged(p)).join("/");
                    // Milliseconds, as its tools take the largest value to be.
                    let max = l.max_us / 1e3;
                    let _ = writeln!(
                        out,
                        "Tag={tag},{at:.3},{:.3},{max:.3},{}",
                        one.seconds, l.hdr
                    );
                }
                at += one.seconds;
            }
        }
    }
    out
}

/// A part of a tag, in which commas and blanks would end it.
fn tagged(part: &str) -> String {
    let ends = |c: char| c == ',' || c == '/' && part.len() > 1 || c.is_whitespace();
    part.replace(ends, "_")
}

/// A label's value, escaped as Prometheus wants it.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Lines of gauges, by gauge.
#[derive(Default)]
struct Gauges {
    rates: String,
    times: String,
    cpu: String,
    figures: String,
}

impl Gauges {
    fn step(&mut self, r: &Report, s: &MeasuredStep, target: &str) {
        let of = format!(
            "study=\"{}\",step=\"{}\",mode=\"{}\",target=\"{}\",connections=\"{}\",offered=\"{}\"",
            label(&r.name),
            label(&s.name),
            label(s.mode.as_deref().unwrap_or_default()),
            label(target),
            s.connections,
            number(s.offered)
        );
        let _ = writeln!(
            self.rates,
            "pando_lab_operations_per_second{{{of}}} {}",
            s.per_second
        );
        if let Some(us) = s.server_cpu_us {
            let seconds = us / 1e6;
            let _ = writeln!(self.cpu, "pando_lab_server_cpu_seconds{{{of}}} {seconds}");
        }
        for (kind, l) in &s.latency {
            let quantiles = [
                ("0.5", l.p50_us),
                ("0.9", l.p90_us),
                ("0.99", l.p99_us),
                ("0.999", l.p999_us),
                ("1", l.max_us),
            ];
            for (q, us) in quantiles {
                let _ = writeln!(
                    self.times,
                    "pando_lab_latency_seconds{{{of},operation=\"{}\",quantile=\"{q}\"}} {}",
                    label(kind),
                    us / 1e6
                );
            }
        }
    }

    fn figure(&mut self, r: &Report, c: &CheckedFigure) {
        let _ = writeln!(
            self.figures,
            "pando_lab_figure{{study=\"{}\",figure=\"{}\",unit=\"{}\"}} {}",
            label(&r.name),
            label(&c.name),
            label(&c.unit),
            c.value
        );
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for (name, help, lines) in [
            (
                "operations_per_second",
                "Operations a second of a step.",
                &self.rates,
            ),
            (
                "latency_seconds",
                "Latency of an operation of a step.",
                &self.times,
            ),
            (
                "server_cpu_seconds",
                "CPU time of the server for an operation.",
                &self.cpu,
            ),
            ("figure", "Single figures of a study.", &self.figures),
        ] {
            if !lines.is_empty() {
                let _ = write!(
                    out,
                    "# HELP pando_lab_{name} {help}\n# TYPE pando_lab_{name} gauge\n{lines}"
                );
            }
        }
        out
    }
}

/// The steps of results as gauges.
pub fn prometheus(reports: &[Report]) -> String {
    let mut gauges = Gauges::default();
    for r in reports {
        let own = r.target.as_ref().map(crate::report::TargetInfo::label);
        for s in &r.steps {
            let target = s.target.clone().or(own.clone()).unwrap_or_default();
            gauges.step(r, s, &target);
        }
        r.checks.iter().for_each(|c| gauges.figure(r, c));
    }
    gauges.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_tools_can_read_a_result() {
        let mut r = crate::report::Draft::new("run", "C.S3").report;
        let mut s = MeasuredStep::repeated("C.S3", "T \"x\", 1", 8, &[10.0, 11.0, 12.0]);
        s.latency.insert("READ".into(), Default::default());
        s.latency.insert("UPDATE".into(), Default::default());
        r.steps.push(s);
        r.checks
            .push(crate::report::CheckedFigure::figure("ready", 5.0, "ms"));
        let text = csv(std::slice::from_ref(&r));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let columns = lines[0].split(',').count();
        assert!(
            lines[1].contains("\"T \"\"x\"\", 1\",8,,READ,"),
            "{}",
            lines[1]
        );
        // The target's own comma is within quotes.
        assert_eq!(lines[1].split(',').count(), columns + 1);
        let text = prometheus(&[r]);
        assert!(
            text.contains("target=\"T \\\"x\\\", 1\",connections=\"8\""),
            "{text}"
        );
        assert!(
            text.contains("operation=\"UPDATE\",quantile=\"0.99\"} 0\n"),
            "{text}"
        );
        assert_eq!(text.matches("# TYPE").count(), 3);
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let value = line.rsplit_once("} ").unwrap().1;
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn histogram_tools_read_every_histogram_of_a_result() {
        use hdrhistogram::serialization::Deserializer;
        use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
        let mut h = crate::measure::histogram();
        (1..=100u64).for_each(|i| h.record(i * 1_000_000).unwrap());
        let mut r = crate::report::Draft::new("run", "C.S3").report;
        let mut one = MeasuredStep::example("C.S3", "Pando, 1", 8, 10.0);
        one.latency
            .insert("READ".into(), crate::measure::Latency::of(&h));
        (one.seconds, one.offered) = (2.0, Some(50.0));
        r.steps = vec![one.clone(), one];
        let text = hlog(&[r]);
        let mut read = Vec::new();
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            if let Ok(LogEntry::Interval(i)) = entry {
                use base64::Engine as _;
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(i.encoded_histogram())
                    .unwrap();
                let back: hdrhistogram::Histogram<u64> =
                    Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                assert_eq!(back.len(), 100);
                read.push((
                    i.tag().unwrap().as_str().to_string(),
                    i.start_timestamp().as_secs(),
                ));
            }
        }
        let tag = "Pando__1/C.S3/@50_s/READ".to_string();
        assert_eq!(read, [(tag.clone(), 0), (tag, 2)], "{text}");
    }
}
