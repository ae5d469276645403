//! How long operations took, in the buckets of MongoDB's histogram: `serverStatus.opLatencies` and
//! `$collStats.latencyStats`.
//!
//! Invariant: a bucket takes memory only once something fell into it.

use bson::Writer;

/// What latencies are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyClass {
    Reads,
    Writes,
    Commands,
}

/// How replies name them; transactions come after.
pub const CLASSES: [(&str, LatencyClass); 3] = [
    ("reads", LatencyClass::Reads),
    ("writes", LatencyClass::Writes),
    ("commands", LatencyClass::Commands),
];

/// The class that a command's time is counted in.
pub fn class_of(command: &str) -> LatencyClass {
    match command {
        "find" | "getMore" | "aggregate" | "count" | "distinct" => LatencyClass::Reads,
        "insert" | "update" | "delete" | "findAndModify" | "bulkWrite" => LatencyClass::Writes,
        _ => LatencyClass::Commands,
    }
}

/// The last bucket: from 2^40 microseconds on.
const LAST: u32 = 50;
/// From 2^11 to 2^21 microseconds there are two buckets for each power of two.
const FINE: u32 = 11;
const COARSE: u32 = 21;

fn bucket(micros: u64) -> u32 {
    let Some(power) = micros.checked_ilog2() else {
        return 0;
    };
    let half = u32::from(power > 0 && micros >> (power - 1) & 1 == 1);
    match power {
        _ if power < FINE => power,
        _ if power < COARSE => FINE + (power - FINE) * 2 + half,
        _ => (FINE + (COARSE - FINE) * 2 + (power - COARSE)).min(LAST),
    }
}

/// The least number of microseconds that falls into a bucket.
fn lower_bound(bucket: u32) -> u64 {
    let fine = 2 * (COARSE - FINE);
    match bucket {
        0 => 0,
        b if b < FINE => 1 << b,
        b if b < FINE + fine => {
            let power = FINE + (b - FINE) / 2;
            (1 << power) + u64::from((b - FINE) % 2) * (1 << (power - 1))
        }
        b => 1 << (COARSE + (b.min(LAST) - FINE - fine)),
    }
}

/// The operations of one class.
#[derive(Clone, Debug, Default)]
pub struct ClassLatency {
    pub micros: u64,
    pub ops: u64,
    /// Bucket and how many fell into it, in no order.
    buckets: Vec<(u32, u64)>,
}

impl ClassLatency {
    /// Counts `ops` operations that took `micros` together.
    pub fn add(&mut self, micros: u64, ops: u64) {
        let Some(each) = micros.checked_div(ops) else {
            return;
        };
        self.micros += micros;
        self.ops += ops;
        self.fell(bucket(each), ops);
    }

    fn fell(&mut self, bucket: u32, ops: u64) {
        match self.buckets.iter_mut().find(|(b, _)| *b == bucket) {
            Some((_, n)) => *n += ops,
            None => self.buckets.push((bucket, ops)),
        }
    }

    pub fn merge(&mut self, other: &ClassLatency) {
        self.micros += other.micros;
        self.ops += other.ops;
        for (b, n) in &other.buckets {
            self.fell(*b, *n);
        }
    }

    fn write(&self, name: &str, histogram: bool, w: &mut Writer) {
        w.open_doc(name);
        if histogram {
            let mut buckets = self.buckets.clone();
            buckets.sort_unstable();
            w.open_array("histogram");
            for (b, n) in buckets {
                w.open_doc("")
                    .i64("micros", lower_bound(b) as i64)
                    .i64("count", n as i64)
                    .close();
            }
            w.close();
        }
        w.i64("latency", self.micros as i64)
            .i64("ops", self.ops as i64)
            .i64("queryableEncryptionLatencyMicros", 0)
            .close();
    }
}

/// Writes the classes and, with nothing in it, that of transactions.
pub fn write(latencies: &[ClassLatency; 3], histograms: bool, w: &mut Writer) {
    for (name, class) in CLASSES {
        latencies[class as usize].write(name, histograms, w);
    }
    ClassLatency::default().write("transactions", histograms, w);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_mongodbs() {
        let bounds: Vec<u64> = (0..=LAST).map(lower_bound).collect();
        assert_eq!(bounds[..5], [0, 2, 4, 8, 16]);
        assert_eq!(bounds[10..17], [1024, 2048, 3072, 4096, 6144, 8192, 12288]);
        assert_eq!(bounds[30..33], [1_572_864, 2_097_152, 4_194_304]);
        assert_eq!(bounds.last(), Some(&(1 << 40)));
        assert!(bounds.is_sorted());
        for (b, low) in bounds.iter().enumerate() {
            assert_eq!(bucket(*low), b as u32, "{low}");
            if *low > 0 {
                assert_eq!(bucket(low - 1), b as u32 - 1, "below {low}");
            }
        }
        assert_eq!((bucket(1), bucket(u64::MAX)), (0, LAST));
    }

    #[test]
    fn sums() {
        let (mut a, mut b) = (ClassLatency::default(), ClassLatency::default());
        a.add(100, 1);
        a.add(0, 0);
        b.add(5000, 2);
        a.merge(&b);
        assert_eq!((a.micros, a.ops), (5100, 3));
        let mut w = Writer::new();
        a.write("reads", true, &mut w);
        let text = bson::json::val_to_string(w.finish().as_doc().as_val());
        assert!(text.contains("64") && text.contains("2048"), "{text}");
    }
}
