//! What YCSB prints: `[OVERALL]`, a block for each operation, and the status line. Forms are those of YCSB 0.17's
//! `TextMeasurementsExporter` and `StatusThread`.

use super::Properties;
use super::export::{MetricLine, MetricValue};
use crate::fault::{Fault, Result};
use crate::fleet::RunOutcome;
use crate::host::timestamp;
use crate::measure::{Sample, Single};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How operations are reported.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// `measurementtype=hdrhistogram`, with these percentiles.
    Hdr(Vec<f64>),
    /// `measurementtype=histogram`: buckets of a millisecond, printed when wanted.
    Buckets { buckets: u64, print: bool },
    /// `measurementtype=timeseries`: the average of every so many milliseconds.
    Series { granularity: u64 },
    /// `measurementtype=raw`: every operation, to a file or among the rest, and a summary unless that is not wanted.
    Raw {
        file: Option<PathBuf>,
        summary: bool,
    },
}

impl Form {
    /// The forms that are wanted, each with what stands before an operation's name.
    pub fn all(p: &Properties) -> Result<Vec<(&'static str, Form)>> {
        let hdr = || Form::of(p, "hdrhistogram");
        Ok(match p.get("measurementtype").unwrap_or("hdrhistogram") {
            "hdrhistogram+histogram" => {
                vec![("Hdr", hdr()?), ("Bucket", Form::of(p, "histogram")?)]
            }
            "hdrhistogram+raw" => vec![("Hdr", hdr()?), ("Raw", Form::of(p, "raw")?)],
            one => vec![("", Form::of(p, one)?)],
        })
    }

    fn of(p: &Properties, name: &str) -> Result<Form> {
        match name {
            "histogram" => Ok(Form::Buckets {
                buckets: p.parse("histogram.buckets", 1000)?,
                print: p.flag("measurement.histogram.verbose", false),
            }),
            "timeseries" => {
                let granularity = p.parse("timeseries.granularity", 1000u64)?;
                if granularity == 0 || !granularity.is_multiple_of(1000) {
                    return Err(Fault::Usage(format!(
                        "timeseries.granularity={granularity}: whole seconds are kept (1000, 2000 …)"
                    )));
                }
                Ok(Form::Series { granularity })
            }
            "hdrhistogram" => {
                let list = p.get("hdrhistogram.percentiles").unwrap_or("95,99");
                let wrong =
                    || Fault::Usage(format!("hdrhistogram.percentiles={list} cannot be read"));
                let all: Option<Vec<f64>> = list
                    .split(',')
                    .map(|n| n.trim().parse().ok().filter(|n| (0.0..=100.0).contains(n)))
                    .collect();
                Ok(Form::Hdr(all.ok_or_else(wrong)?))
            }
            "raw" => {
                let file = p.get("measurement.raw.output_file");
                Ok(Form::Raw {
                    file: file.filter(|f| !f.is_empty()).map(PathBuf::from),
                    summary: !p.flag("measurement.raw.no_summary", false),
                })
            }
            other => Err(Fault::Usage(format!(
                "measurementtype={other} is not known"
            ))),
        }
    }
}

/// From when latencies count: `measurement.interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasurementInterval {
    /// From when an operation was sent.
    Op,
    /// From when it was due.
    Intended,
    Both,
}

impl MeasurementInterval {
    pub fn of(p: &Properties) -> Result<MeasurementInterval> {
        match p.get("measurement.interval").unwrap_or("op") {
            "op" => Ok(MeasurementInterval::Op),
            "intended" => Ok(MeasurementInterval::Intended),
            "both" => Ok(MeasurementInterval::Both),
            other => Err(Fault::Usage(format!(
                "measurement.interval={other} is not known (op, intended, both)"
            ))),
        }
    }
}

/// All that is printed at the end.
pub struct Measurements<'a> {
    pub outcome: &'a RunOutcome,
    pub elapsed: Duration,
    pub forms: &'a [(&'static str, Form)],
    pub interval: MeasurementInterval,
    pub series: &'a AveragesOverTime,
    /// The kinds of operation by number, for raw output.
    pub names: &'static [&'static str],
}

/// Averages over time, by kind of operation: what `timeseries` prints.
#[derive(Debug, Default)]
pub struct AveragesOverTime(BTreeMap<&'static str, BTreeMap<u64, (u64, f64)>>);

impl AveragesOverTime {
    /// `granularity` in milliseconds; a second belongs to the unit that it began in.
    pub fn sample(&mut self, s: &Sample, granularity: u64) {
        let began = ((s.at - s.seconds).max(0.0) * 1e3).round() as u64;
        // Seconds come a few milliseconds late, never early.
        let unit = began / granularity.max(1) * granularity;
        for (kind, h) in s.kinds.iter().filter(|(_, h)| !h.is_empty()) {
            let units = self.0.entry(kind).or_default();
            let (count, sum) = units.entry(unit).or_default();
            *count += h.len();
            *sum += h.mean() / 1e3 * h.len() as f64;
        }
    }

    /// The part of a second that the run ended with, which no sample shows: what the whole has beside the samples.
    pub fn end(&mut self, outcome: &RunOutcome, granularity: u64) {
        let granularity = granularity.max(1);
        let last = outcome.elapsed.as_millis() as u64 / granularity * granularity;
        for (kind, h) in &outcome.kinds {
            let units = self.0.entry(kind).or_default();
            let (seen, seen_sum) = units
                .values()
                .fold((0, 0.0), |(n, sum), (count, part)| (n + count, sum + part));
            if h.len() > seen {
                let (count, sum) = units.entry(last).or_default();
                *count += h.len() - seen;
                *sum += (h.mean() / 1e3 * h.len() as f64 - seen_sum).max(0.0);
            }
        }
    }
}

/// 95 → `95th`, 99.9 → `99.9`, as YCSB has it.
fn ordinal(p: f64) -> String {
    if p.fract() != 0.0 {
        return p.to_string();
    }
    let n = p as u64;
    let suffix = match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

impl Measurements<'_> {
    /// What the exporter writes, in YCSB's order.
    pub fn entries(&self) -> Vec<MetricLine> {
        let ms = self.elapsed.as_millis().max(1);
        let rate = self.outcome.operations as f64 * 1000.0 / ms as f64;
        let mut all = vec![
            MetricLine::new("OVERALL", "RunTime(ms)", MetricValue::Whole(ms as u64)),
            MetricLine::new("OVERALL", "Throughput(ops/sec)", MetricValue::Real(rate)),
        ];
        // A closed loop sends when it is due.
        let open = !self.outcome.served.is_empty();
        let sent = if open {
            &self.outcome.served
        } else {
            &self.outcome.kinds
        };
        if self.interval != MeasurementInterval::Intended {
            self.kinds(&mut all, sent, "", false);
        }
        match self.interval {
            MeasurementInterval::Op => {}
            MeasurementInterval::Intended => self.kinds(&mut all, &self.outcome.kinds, "", true),
            MeasurementInterval::Both => {
                self.kinds(&mut all, &self.outcome.kinds, "Intended-", true)
            }
        }
        all
    }

    fn kinds(
        &self,
        all: &mut Vec<MetricLine>,
        kinds: &[(&'static str, Histogram<u64>)],
        prefix: &str,
        intended: bool,
    ) {
        for (kind, h) in kinds {
            for (before, form) in self.forms {
                let name = format!("{before}{prefix}{kind}");
                match form {
                    Form::Raw { summary, .. } => self.raw(all, &name, kind, *summary, intended),
                    _ => self.block(all, &name, form, kind, h),
                }
            }
            let name = format!("{}{prefix}{kind}", self.forms.first().map_or("", |f| f.0));
            all.push(MetricLine::new(
                &name,
                "Return=OK",
                MetricValue::Whole(h.len()),
            ));
        }
    }

    fn block(
        &self,
        all: &mut Vec<MetricLine>,
        name: &str,
        form: &Form,
        kind: &str,
        h: &Histogram<u64>,
    ) {
        let mut put = |what: &str, value: MetricValue| all.push(MetricLine::new(name, what, value));
        let us = |ns: u64| MetricValue::Whole(ns / 1000);
        put("Operations", MetricValue::Whole(h.len()));
        put("AverageLatency(us)", MetricValue::Real(h.mean() / 1000.0));
        put("MinLatency(us)", us(h.min()));
        put("MaxLatency(us)", us(h.max()));
        let percentiles = match form {
            Form::Hdr(list) => list.as_slice(),
            Form::Buckets { .. } => &[95.0, 99.0],
            // YCSB's series have none.
            _ => &[],
        };
        for p in percentiles {
            let what = format!("{}PercentileLatency(us)", ordinal(*p));
            put(&what, us(h.value_at_percentile(*p)));
        }
        match form {
            Form::Series { .. } => {
                for (at, (count, sum)) in self.series.0.get(kind).into_iter().flatten() {
                    let average = sum / (*count).max(1) as f64;
                    put(&at.to_string(), MetricValue::Real(average));
                }
            }
            Form::Buckets {
                buckets,
                print: true,
            } => {
                let mut counts = vec![0u64; usize::try_from(*buckets).unwrap_or(1000) + 1];
                for v in h.iter_recorded() {
                    let ms = v.value_iterated_to() / 1_000_000;
                    counts[ms.min(*buckets) as usize] += v.count_at_value();
                }
                let last = counts.pop().unwrap_or(0);
                for (ms, n) in counts.iter().enumerate() {
                    put(&ms.to_string(), MetricValue::Whole(*n));
                }
                put(&format!(">{buckets}"), MetricValue::Whole(last));
            }
            _ => {}
        }
    }

    /// Times in microseconds of the operations of a kind, with the milliseconds at which they ended.
    fn singles(&self, kind: &str, intended: bool) -> Vec<(u64, u64)> {
        let own = self.outcome.singles.iter();
        let own = own.filter(|s| self.names.get(usize::from(s.kind)) == Some(&kind));
        let took = |s: &Single| {
            if intended {
                s.took
            } else {
                s.took.saturating_sub(s.late)
            }
        };
        let mut all: Vec<(u64, u64)> = own.map(|s| (s.at_ms, took(s).as_micros() as u64)).collect();
        all.sort_unstable();
        all
    }

    /// The summary of raw output: exact percentiles.
    fn raw(
        &self,
        all: &mut Vec<MetricLine>,
        name: &str,
        kind: &str,
        summary: bool,
        intended: bool,
    ) {
        let mut us: Vec<u64> = self.singles(kind, intended).iter().map(|s| s.1).collect();
        us.sort_unstable();
        let total = us.len();
        all.push(MetricLine::new(
            name,
            "Total Operations",
            MetricValue::Whole(total as u64),
        ));
        let (Some(first), Some(last), true) = (us.first(), us.last(), summary) else {
            return;
        };
        let heading = "Below is a summary of latency in microseconds:";
        all.push(MetricLine::new(name, heading, MetricValue::Heading));
        let mean = us.iter().sum::<u64>() as f64 / total as f64;
        all.push(MetricLine::new(name, "Average", MetricValue::Real(mean)));
        all.push(MetricLine::new(name, "Min", MetricValue::Whole(*first)));
        all.push(MetricLine::new(name, "Max", MetricValue::Whole(*last)));
        for p in [1.0, 5.0, 50.0, 90.0, 95.0, 99.0, 99.9, 99.99] {
            let at = (total as f64 * p / 100.0) as usize;
            let value = us[at.min(total - 1)];
            all.push(MetricLine::new(
                name,
                format!("p{p}"),
                MetricValue::Whole(value),
            ));
        }
    }

    /// Every operation, as raw output lists them; the file that they belong into, if it is not the output.
    pub fn raw_lines(&self) -> Option<(Option<&Path>, String)> {
        let raw = self.forms.iter().find_map(|(before, form)| match form {
            Form::Raw { file, .. } => Some((*before, file.as_deref())),
            _ => None,
        });
        let (before, file) = raw?;
        let mut text = String::new();
        let sides: &[(&str, bool)] = match self.interval {
            MeasurementInterval::Op => &[("", false)],
            MeasurementInterval::Intended => &[("", true)],
            MeasurementInterval::Both => &[("", false), ("Intended-", true)],
        };
        for (prefix, intended) in sides {
            for (kind, _) in &self.outcome.kinds {
                let name = format!("{before}{prefix}{kind}");
                text.push_str(&format!(
                    "{name} latency raw data: op, timestamp(ms), latency(us)\n"
                ));
                for (at, us) in self.singles(kind, *intended) {
                    text.push_str(&format!("{name},{at},{us}\n"));
                }
            }
        }
        Some((file, text))
    }
}

/// The line of `-s`, at intervals.
pub struct StatusLine {
    wanted: bool,
    label: String,
    every: Duration,
    goal: u64,
    started: Instant,
    said: Instant,
    said_operations: u64,
    operations: u64,
    /// Since the last line, and since the start.
    kinds: Vec<(&'static str, Histogram<u64>)>,
    seen: Vec<(&'static str, Histogram<u64>)>,
}

fn add(to: &mut Vec<(&'static str, Histogram<u64>)>, kind: &'static str, more: &Histogram<u64>) {
    match to.iter_mut().find(|(k, _)| *k == kind) {
        // Same bounds.
        Some((_, all)) => drop(all.add(more)),
        None => to.push((kind, more.clone())),
    }
}

impl StatusLine {
    pub fn new(wanted: bool, label: &str, every: Duration, goal: u64) -> StatusLine {
        let now = Instant::now();
        let status = StatusLine {
            wanted,
            label: label.to_string(),
            every,
            goal,
            started: now,
            said: now,
            said_operations: 0,
            operations: 0,
            kinds: Vec::new(),
            seen: Vec::new(),
        };
        if wanted {
            eprintln!("{}", status.line(0.0));
        }
        status
    }

    pub fn sample(&mut self, s: &Sample) {
        self.operations += s.operations;
        for (kind, h) in &s.kinds {
            add(&mut self.kinds, kind, h);
            add(&mut self.seen, kind, h);
        }
        if self.said.elapsed() >= self.every {
            self.say();
        }
    }

    /// The last line, with the part of an interval that no sample showed.
    pub fn end(&mut self, outcome: &RunOutcome) {
        self.rest(outcome);
        self.say();
    }

    fn rest(&mut self, outcome: &RunOutcome) {
        self.operations = outcome.operations;
        for (kind, h) in &outcome.kinds {
            let mut rest = h.clone();
            if let Some((_, seen)) = self.seen.iter().find(|(k, _)| k == kind) {
                // The seconds shown are part of the whole.
                let _ = rest.subtract(seen);
            }
            add(&mut self.kinds, kind, &rest);
        }
        self.kinds.retain(|(_, h)| !h.is_empty());
    }

    fn say(&mut self) {
        if self.wanted {
            let span = self.said.elapsed().as_secs_f64().max(1e-9);
            eprintln!(
                "{}",
                self.line((self.operations - self.said_operations) as f64 / span)
            );
        }
        self.said = Instant::now();
        self.said_operations = self.operations;
        self.kinds.clear();
    }

    fn line(&self, rate: f64) -> String {
        let clock = SystemTime::now();
        let since = clock.duration_since(SystemTime::UNIX_EPOCH);
        let ms = since.map_or(0, |d| d.subsec_millis());
        let now = timestamp(clock)
            .replace('T', " ")
            .replace('Z', &format!(":{ms:03}"));
        let elapsed = self.started.elapsed().as_secs_f64();
        let mut line = format!(
            "{}{now} {} sec: {} operations; ",
            self.label, elapsed as u64, self.operations
        );
        if rate > 0.0 {
            line.push_str(&format!("{rate:.2} current ops/sec; "));
        }
        if self.goal != u64::MAX && self.operations < self.goal {
            let overall = self.operations as f64 / elapsed.max(1e-9);
            let left = if overall > 0.0 {
                (self.goal.saturating_sub(self.operations)) as f64 / overall
            } else {
                0.0
            };
            line.push_str(&format!(
                "est completion in {} ",
                remaining(left.ceil() as u64)
            ));
        }
        for (kind, h) in &self.kinds {
            let us = |q: f64| h.value_at_percentile(q) / 1000;
            line.push_str(&format!(
                "[{kind}: Count={}, Max={}, Min={}, Avg={:.2}, 90={}, 99={}, 99.9={}, 99.99={}] ",
                h.len(),
                h.max() / 1000,
                h.min() / 1000,
                h.mean() / 1000.0,
                us(90.0),
                us(99.0),
                us(99.9),
                us(99.99)
            ));
        }
        line.trim_end().to_string()
    }
}

/// The two largest units, as YCSB says it.
fn remaining(seconds: u64) -> String {
    let (d, h, m, s) = (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    );
    let unit = |n: u64, name: &str| format!("{n} {name}{}", if n == 1 { "" } else { "s" });
    match (d, h, m) {
        (1.., _, _) => format!("{} {}", unit(d, "day"), unit(h, "hour")),
        (0, 1.., _) => format!("{} {}", unit(h, "hour"), unit(m, "minute")),
        (0, 0, 1..) => unit(m + 1, "minute"),
        _ => unit(s.max(1), "second"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::histogram;
    use crate::ycsb::export::Exporter;

    fn outcome() -> RunOutcome {
        let mut h = histogram();
        for us in 1..=100u64 {
            h.record(us * 100_000).unwrap();
        }
        RunOutcome {
            operations: 100,
            requests: 100,
            elapsed: Duration::from_millis(2000),
            kinds: vec![("READ", h)],
            samples: Vec::new(),
            client_cpu: Duration::ZERO,
            client_idle: Duration::ZERO,
            bytes: [0; 2],
            lag: None,
            machine: Default::default(),
            counters: None,
            served: Vec::new(),
            singles: Vec::new(),
        }
    }

    #[test]
    fn the_text_is_that_of_ycsb() {
        let outcome = outcome();
        let mut series = AveragesOverTime::default();
        for second in 0..3u8 {
            let sample = Sample {
                at: f64::from(second) + 1.004,
                seconds: 1.0,
                kinds: vec![("READ", outcome.kinds[0].1.clone())],
                ..Sample::default()
            };
            series.sample(&sample, 2000);
        }
        let text = |form: Form| {
            let entries = Measurements {
                outcome: &outcome,
                elapsed: outcome.elapsed,
                forms: &[("", form)],
                interval: MeasurementInterval::Op,
                series: &series,
                names: &["READ"],
            }
            .entries();
            Exporter::Text.text(&entries)
        };
        let hdr = text(Form::Hdr(vec![50.0, 95.0, 99.9]));
        let lines: Vec<&str> = hdr.lines().collect();
        assert_eq!(lines[0], "[OVERALL], RunTime(ms), 2000");
        assert_eq!(lines[1], "[OVERALL], Throughput(ops/sec), 50.0");
        assert_eq!(lines[2], "[READ], Operations, 100");
        assert!(
            lines[3].starts_with("[READ], AverageLatency(us), 50"),
            "{}",
            lines[3]
        );
        assert!(
            lines[6].starts_with("[READ], 50thPercentileLatency(us), 50"),
            "{}",
            lines[6]
        );
        assert!(lines[8].starts_with("[READ], 99.9PercentileLatency(us), "));
        assert_eq!(lines[9], "[READ], Return=OK, 100");
        // The time of closing connections is not measured, so nothing is said of it.
        assert_eq!(lines.len(), 10, "{hdr}");
        let series = text(Form::Series { granularity: 2000 });
        let units: Vec<&str> = series
            .lines()
            .filter(|l| l.starts_with("[READ], 0, 50") || l.starts_with("[READ], 2000, 50"))
            .collect();
        assert_eq!(units.len(), 2, "{series}");
        assert!(!series.contains("Percentile"));
        let buckets = text(Form::Buckets {
            buckets: 5,
            print: true,
        });
        for line in ["[READ], 1, 10", "[READ], >5, 51"] {
            assert!(buckets.lines().any(|l| l == line), "{buckets}");
        }
    }

    #[test]
    fn latencies_count_from_the_sending_or_from_when_due() {
        let mut outcome = outcome();
        let mut h = histogram();
        h.record_n(7_000, 100).unwrap();
        outcome.served = vec![("READ", h)];
        outcome.singles = vec![Single {
            kind: 0,
            at_ms: 5,
            took: Duration::from_micros(30),
            late: Duration::from_micros(20),
        }];
        let mut p = Properties::default();
        p.set("measurementtype", "hdrhistogram+raw");
        let series = AveragesOverTime::default();
        let mut text = |interval: &str| {
            p.set("measurement.interval", interval);
            let forms = Form::all(&p).unwrap();
            let all = Measurements {
                outcome: &outcome,
                elapsed: outcome.elapsed,
                forms: &forms,
                interval: MeasurementInterval::of(&p).unwrap(),
                series: &series,
                names: &["READ"],
            };
            let (file, raw) = all.raw_lines().unwrap();
            assert!(file.is_none());
            Exporter::Text.text(&all.entries()) + &raw
        };
        let op = text("op");
        assert!(op.contains("[HdrREAD], MaxLatency(us), 7\n"), "{op}");
        assert!(
            op.contains("RawREAD,5,10\n") && op.contains("[RawREAD], p99.99, 10"),
            "{op}"
        );
        let intended = text("intended");
        assert!(intended.contains("RawREAD,5,30\n") && !intended.contains("Intended-"));
        assert!(!intended.contains("[HdrREAD], MaxLatency(us), 7\n"));
        let both = text("both");
        assert!(both.contains("[HdrREAD], MaxLatency(us), 7\n"));
        assert!(
            both.contains("[HdrIntended-READ], Operations, 100"),
            "{both}"
        );
        p.set("measurement.interval", "sometimes");
        assert!(MeasurementInterval::of(&p).is_err());
    }

    #[test]
    fn forms_and_words() {
        assert_eq!(
            ordinal(1.0) + &ordinal(12.0) + &ordinal(23.0),
            "1st12th23rd"
        );
        assert_eq!(remaining(0), "1 second");
        assert_eq!(remaining(59), "59 seconds");
        assert_eq!(remaining(60), "2 minutes");
        assert_eq!(remaining(90_000), "1 day 1 hour");
        let mut p = Properties::default();
        p.set("measurementtype", "histogram");
        let of = |p: &Properties| Form::all(p).map(|mut f| f.remove(0).1);
        assert_eq!(
            of(&p).unwrap(),
            Form::Buckets {
                buckets: 1000,
                print: false
            }
        );
        p.set("measurementtype", "timeseries");
        assert_eq!(of(&p).unwrap(), Form::Series { granularity: 1000 });
        p.set("timeseries.granularity", "250");
        assert!(of(&p).is_err());
        p.set("measurementtype", "hdrhistogram");
        p.set("hdrhistogram.percentiles", "50,x");
        assert!(of(&p).is_err());
        p.set("measurementtype", "nosuch");
        assert!(of(&p).is_err());
    }

    #[test]
    fn a_status_line_counts() {
        let mut s = StatusLine::new(false, "", Duration::from_secs(10), 200);
        let sample = Sample {
            operations: 100,
            kinds: outcome().kinds,
            ..Sample::default()
        };
        s.sample(&sample);
        let line = s.line(10.0);
        assert!(
            line.contains("100 operations; 10.00 current ops/sec; est completion in"),
            "{line}"
        );
        assert!(line.contains("[READ: Count=100, Max="), "{line}");
        // Fifty more in the part of a second at the end.
        let mut whole = outcome();
        whole.operations = 150;
        for us in 1..=50u64 {
            whole.kinds[0].1.record(us * 100_000).unwrap();
        }
        s.goal = 150;
        s.kinds.clear();
        s.rest(&whole);
        let line = s.line(5.0);
        assert!(
            line.contains("150 operations; 5.00 current ops/sec; [READ: Count=50, "),
            "{line}"
        );
    }
}
