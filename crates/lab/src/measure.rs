//! Latency histograms and rates. Histograms are merged, percentiles never averaged.

use crate::fault::{Fault, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Nanoseconds, three significant digits, 1 µs to 1,000 s.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 1_000_000_000_000, 3)
        .unwrap_or_else(|e| unreachable!("constant bounds: {e}"))
}

/// Operations that must lie beyond a percentile.
pub const BEYOND: f64 = 5.0;

/// A histogram as it stands in a result: percentiles to read, and all of it to merge and compare later.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// HdrHistogram V2, deflated, base64; values are nanoseconds.
    pub hdr: String,
}

impl Latency {
    pub fn of(h: &Histogram<u64>) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |q: f64| us(h.value_at_quantile(q));
        let mut bytes = Vec::new();
        let hdr = match V2DeflateSerializer::new().serialize(h, &mut bytes) {
            Ok(_) => STANDARD.encode(&bytes),
            Err(_) => String::new(),
        };
        if h.is_empty() {
            return Latency::default();
        }
        Latency {
            count: h.len(),
            mean_us: h.mean() / 1e3,
            min_us: us(h.min()),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(h.max()),
            hdr,
        }
    }

    /// The latency, in microseconds, that this share of the operations did not exceed; none where fewer than five took longer: of
    /// five operations there is no p99.9.
    pub fn at(&self, share: f64) -> Option<f64> {
        // The rounding of a share such as 0.999 must not decide.
        let beyond = (self.count as f64 * (1.0 - share) * 1e6).round() / 1e6;
        if beyond < BEYOND {
            return None;
        }
        Some(match share {
            0.5 => self.p50_us,
            0.9 => self.p90_us,
            0.95 => self.p95_us,
            0.99 => self.p99_us,
            0.999 => self.p999_us,
            other => self.histogram().ok()?.value_at_quantile(other) as f64 / 1e3,
        })
    }

    /// The mean, in microseconds.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean_us)
    }

    /// The whole histogram again.
    pub fn histogram(&self) -> Result<Histogram<u64>> {
        if self.hdr.is_empty() {
            return Ok(histogram());
        }
        let bad = |e: String| Fault::Local(format!("histogram in the result file: {e}"));
        let bytes = STANDARD.decode(&self.hdr).map_err(|e| bad(e.to_string()))?;
        Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|e| bad(e.to_string()))
    }
}

/// One interval (a second) of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start, at the interval's end.
    pub at: f64,
    /// Length of the interval in seconds.
    pub seconds: f64,
    pub operations: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Kind by kind, for the running display; a result keeps the whole run's histograms instead.
    #[serde(skip)]
    pub kinds: Vec<(&'static str, Histogram<u64>)>,
}

/// What one lane did since its last tick.
pub struct Tick {
    pub operations: u64,
    /// By kind of request, the empty ones left out.
    pub latencies: Vec<(u8, Histogram<u64>)>,
}

/// One operation by itself, as YCSB's raw output has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single {
    pub kind: u8,
    /// Milliseconds since 1970 at its end.
    pub at_ms: u64,
    /// From when it was due.
    pub took: Duration,
    /// How late it was sent: the rest of `took` is what the server took.
    pub late: Duration,
}

/// One lane's record: histograms by kind of operation for the whole run, and the interval since the last tick.
pub struct Recorder {
    totals: Vec<Histogram<u64>>,
    interval: Vec<Histogram<u64>>,
    interval_operations: u64,
    pub operations: u64,
    pub requests: u64,
    /// Histograms kept beside: of open loops times from the sending on.
    served: Vec<Histogram<u64>>,
    singles: Option<Vec<Single>>,
}

impl Recorder {
    /// Keeps times from the sending on beside those from when an operation was due; `singles`: each operation too.
    pub fn detailed(kinds: usize, open: bool, singles: bool) -> Recorder {
        let served = if open { kinds } else { 0 };
        Recorder {
            served: (0..served).map(|_| histogram()).collect(),
            singles: singles.then(Vec::new),
            ..Recorder::new(kinds)
        }
    }

    /// The longest operation so far; zero before the first.
    pub fn longest(&self) -> Duration {
        let longest = self.totals.iter().map(Histogram::max).max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    /// The same request as recorded, for the histograms kept beside.
    #[inline]
    pub fn detail(&mut self, kind: u8, took: Duration, late: Duration) {
        if let Some(h) = self.served.get_mut(usize::from(kind)) {
            let ns = took.saturating_sub(late).as_nanos();
            h.saturating_record(u64::try_from(ns).unwrap_or(u64::MAX));
        }
        if let Some(singles) = &mut self.singles {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            singles.push(Single {
                kind,
                at_ms: now.as_millis() as u64,
                took,
                late,
            });
        }
    }

    pub fn take_singles(&mut self) -> Vec<Single> {
        self.singles.take().unwrap_or_default()
    }

    /// Times from the sending on, of an open loop.
    pub fn take_served(&mut self) -> Vec<Histogram<u64>> {
        std::mem::take(&mut self.served)
    }

    pub fn new(kinds: usize) -> Recorder {
        Recorder {
            totals: (0..kinds).map(|_| histogram()).collect(),
            interval: (0..kinds).map(|_| histogram()).collect(),
            interval_operations: 0,
            operations: 0,
            requests: 0,
            served: Vec::new(),
            singles: None,
        }
    }

    #[inline]
    pub fn request(&mut self, kind: u8, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(h) = self.totals.get_mut(usize::from(kind)) {
            h.saturating_record(ns);
        }
        if let Some(h) = self.interval.get_mut(usize::from(kind)) {
            h.saturating_record(ns);
        }
        self.requests += 1;
    }

    /// A span that covers requests already recorded (read-modify-write).
    #[inline]
    pub fn whole(&mut self, kind: u8, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(h) = self.totals.get_mut(usize::from(kind)) {
            h.saturating_record(ns);
        }
    }

    #[inline]
    pub fn done(&mut self, operations: u32) {
        self.operations += u64::from(operations);
        self.interval_operations += u64::from(operations);
    }

    pub fn tick(&mut self) -> Tick {
        let tick = Tick {
            operations: std::mem::take(&mut self.interval_operations),
            latencies: (0..)
                .zip(&self.interval)
                .filter(|(_, h)| !h.is_empty())
                .map(|(kind, h)| (kind, h.clone()))
                .collect(),
        };
        for h in self.interval.iter_mut().filter(|h| !h.is_empty()) {
            h.reset();
        }
        tick
    }

    pub fn into_totals(self) -> Vec<Histogram<u64>> {
        self.totals
    }
}

/// The middle value; of two middles their mean. NaN when there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut v: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    v.sort_by(f64::total_cmp);
    match (v.len(), v.len() / 2) {
        (0, _) => f64::NAN,
        (n, m) if n % 2 == 1 => v[m],
        (_, m) => f64::midpoint(v[m - 1], v[m]),
    }
}

/// An interval that holds the true median with about 95% confidence, from order statistics (sign test); with fewer than
/// six values, their range.
pub fn median_interval(values: &[f64]) -> [f64; 2] {
    let mut v: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    if n == 0 {
        return [f64::NAN, f64::NAN];
    }
    let reach = 1.96 * (n as f64).sqrt() / 2.0;
    let low = ((n as f64 / 2.0 - reach).floor().max(0.0)) as usize;
    let high = (n - 1).saturating_sub(low);
    [v[low.min(n - 1)], v[high.max(low.min(n - 1))]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_keeps_its_histogram() {
        let mut r = Recorder::new(2);
        for us in 1..=1000u64 {
            r.request(0, Duration::from_micros(us));
            r.done(2);
        }
        r.whole(1, Duration::from_millis(7));
        assert_eq!((r.operations, r.requests), (2000, 1000));
        let tick = r.tick();
        assert_eq!((tick.operations, tick.latencies[0].1.len()), (2000, 1000));
        assert_eq!(r.tick().operations, 0);
        let totals = r.into_totals();
        let l = Latency::of(&totals[0]);
        assert_eq!(l.count, 1000);
        assert!((l.p50_us - 500.0).abs() < 2.0 && (l.p99_us - 990.0).abs() < 3.0);
        let again = l.histogram().unwrap();
        assert_eq!(again.len(), 1000);
        assert_eq!(
            again.value_at_quantile(0.9),
            totals[0].value_at_quantile(0.9)
        );
        assert_eq!(totals[1].len(), 1);
        assert_eq!(Latency::of(&histogram()).count, 0);
        // Of a thousand operations five lie beyond p99.5 and none are enough for p99.9.
        assert_eq!((l.at(0.99), l.at(0.999)), (Some(l.p99_us), None));
        assert!(l.at(0.995).is_some() && Latency::default().at(0.5).is_none());
        let broken = Latency {
            hdr: "!".into(),
            ..Latency::default()
        };
        assert!(broken.histogram().is_err());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(median_interval(&[1.0, 2.0, 3.0]), [1.0, 3.0]);
        let hundred: Vec<f64> = (0..100).map(f64::from).collect();
        let [low, high] = median_interval(&hundred);
        assert!((38.0..42.0).contains(&low) && (58.0..62.0).contains(&high));
    }
}
