//! The last hour of the process, in memory: figures of `serverStatus` every few seconds.
//!
//! Invariant: at most [`KEPT`] samples of [`FIELDS`] numbers are kept, and of slow operations what [`crate::slow`] keeps.

use crate::Shared;
use bson::{Doc, DocBuf, Val, Writer};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const EVERY: Duration = Duration::from_secs(5);
const KEPT: usize = 720;

/// How a figure is made.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// What it is now.
    Gauge,
    /// By how much it has grown a second.
    Rate,
}
use Kind::{Gauge, Rate};

/// The figures of a sample by the names that the API has for them, and where `serverStatus` has them.
const FIGURES: &[(&str, Kind, &str)] = &[
    ("insert", Rate, "opcounters.insert"),
    ("query", Rate, "opcounters.query"),
    ("update", Rate, "opcounters.update"),
    ("delete", Rate, "opcounters.delete"),
    ("getmore", Rate, "opcounters.getmore"),
    ("command", Rate, "opcounters.command"),
    ("bytesIn", Rate, "network.bytesIn"),
    ("bytesOut", Rate, "network.bytesOut"),
    ("connections", Gauge, "connections.current"),
    ("connectionsActive", Gauge, "connections.active"),
    (
        "waitingForNews",
        Gauge,
        "connections.awaitingTopologyChanges",
    ),
    (
        "waitingForEstablishment",
        Gauge,
        "connections.queuedForEstablishment",
    ),
    ("waitingForLocks", Gauge, "globalLock.currentQueue.total"),
    ("waitingForMemory", Gauge, "pandodb.inFlight.waiting"),
    ("workers", Gauge, "pandodb.loops.workers"),
    ("cpuMicros", Rate, "extra_info.user_time_us"),
    ("cpuSystemMicros", Rate, "extra_info.system_time_us"),
    ("residentMB", Gauge, "mem.resident"),
    (
        "cacheBytes",
        Gauge,
        "wiredTiger.cache.bytes currently in the cache",
    ),
    (
        "cacheMaxBytes",
        Gauge,
        "wiredTiger.cache.maximum bytes configured",
    ),
    (
        "dirtyBytes",
        Gauge,
        "wiredTiger.cache.tracked dirty bytes in the cache",
    ),
    ("stageBytes", Gauge, "pandodb.stages.bytes"),
    ("diskReads", Rate, "pandodb.loops.diskReads"),
    (
        "pendingCompactionBytes",
        Gauge,
        "pandodb.engine.pendingCompactionBytes",
    ),
    (
        "runningCompactions",
        Gauge,
        "pandodb.engine.runningCompactions",
    ),
    ("paceMillisPerMB", Gauge, "pandodb.engine.paceMillisPerMB"),
    (
        "delayedBytesPerSecond",
        Gauge,
        "pandodb.engine.delayedBytesPerSecond",
    ),
    ("writesStopped", Gauge, "pandodb.engine.writesStopped"),
    ("writesSlowedForMoves", Rate, "pandodb.writesSlowedForMoves"),
    ("locksAgainstWrites", Gauge, "pandodb.locksAgainstWrites"),
    ("moves", Gauge, "pandodb.moves.underWay"),
    ("movedBytes", Rate, "pandodb.moves.copiedBytes"),
    ("backgroundErrors", Gauge, "pandodb.engine.backgroundErrors"),
    (
        "documentsExamined",
        Rate,
        "metrics.queryExecutor.scannedObjects",
    ),
    ("documentsReturned", Rate, "metrics.document.returned"),
    ("writeConflicts", Rate, "metrics.operation.writeConflicts"),
    ("openCursors", Gauge, "metrics.cursor.open.total"),
    ("openTransactions", Gauge, "transactions.currentOpen"),
];
const CLASSES: [&str; 3] = ["reads", "writes", "commands"];
const PERCENTS: [f64; 3] = [50.0, 95.0, 99.0];
/// After the figures: latencies, then what the process adds.
const LATENCIES: usize = CLASSES.len() * PERCENTS.len();
const ADDED: [&str; 5] = [
    "diskTotalBytes",
    "diskFreeBytes",
    "lagSeconds",
    "worstLagSeconds",
    "membersDown",
];
const FIELDS: usize = FIGURES.len() + LATENCIES + ADDED.len();

/// Numbers that are not known are NaN.
struct Sample {
    at_millis: i64,
    values: [f32; FIELDS],
}

/// Buckets by their lower bound, and how many operations fell into each since the start.
type Buckets = Vec<(f64, f64)>;

/// What rates are made of.
struct Counts {
    at_millis: i64,
    raw: Vec<f64>,
    buckets: [Buckets; 3],
}

#[derive(Default)]
struct Kept {
    samples: VecDeque<Sample>,
    last: Option<Counts>,
}

#[derive(Default)]
pub struct SampledHour(Mutex<Kept>);

/// Takes samples until the console stops.
pub fn run(shared: &Arc<Shared>) {
    for turn in 0_u64.. {
        {
            let Some(_entered) = shared.enter() else {
                return;
            };
            sample(shared);
            shared.shapes.read_log();
            shared.sessions.tidy();
            if turn == 1 {
                shared.start.keep();
            }
        }
        if !shared.pause(EVERY) {
            return;
        }
    }
}

fn sample(shared: &Shared) {
    let mut w = Writer::new();
    w.i32("serverStatus", 1).str("$db", "admin");
    // Sections that are large, and have nothing that is shown.
    for section in [
        "repl",
        "electionMetrics",
        "catalogStats",
        "transportSecurity",
    ] {
        w.i32(section, 0);
    }
    w.open_doc("opLatencies").bool("histograms", true).close();
    let Ok(status) = (shared.process.ask)(w.finish().as_doc()) else {
        return;
    };
    let mut w = Writer::new();
    w.i32("replSetGetStatus", 1).str("$db", "admin");
    let set = (shared.process.ask)(w.finish().as_doc()).ok();
    let lags = set.map(|set| {
        let lags = lag_seconds(set.as_doc(), Doc::EMPTY);
        // Few members lag, so the configuration is seldom needed to see which of them are delayed on
        // purpose.
        match lags.iter().take(2).flatten().any(|lag| *lag > 1.0) {
            true => lag_seconds(set.as_doc(), configuration(shared).as_doc()),
            false => lags,
        }
    });
    let [lag, worst, down] = lags.unwrap_or([None; 3]);
    let disk = (shared.process.disk)();
    let [total, free] = match disk {
        Some((total, free)) => [total as f64, free as f64],
        None => [f64::NAN; 2],
    };
    let [lag, worst, down] = [lag, worst, down].map(|v| v.unwrap_or(f64::NAN));
    let added = [total, free, lag, worst, down];
    shared.history.add(now_millis(), status.as_doc(), added);
}

/// The configuration of the set, or an empty document.
fn configuration(shared: &Shared) -> DocBuf {
    let mut w = Writer::new();
    w.i32("replSetGetConfig", 1).str("$db", "admin");
    let reply = (shared.process.ask)(w.finish().as_doc()).ok();
    let config = reply.as_ref().and_then(|r| r.get("config")?.as_doc());
    config.unwrap_or(Doc::EMPTY).to_buf()
}

pub fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

/// How far this member is behind its primary, how far the last of those that are reached is, and how many are not. By how much
/// a member is to be behind (`config`) does not count.
fn lag_seconds(set: Doc<'_>, config: Doc<'_>) -> [Option<f64>; 3] {
    let members = set.get("members").and_then(Val::as_array);
    let members = members.unwrap_or(Doc::EMPTY);
    let all = || members.values().filter_map(Val::as_doc);
    let number = |m: Doc<'_>, name: &str| m.get(name).and_then(Val::to_f64);
    let date = |m: Doc<'_>| m.get("optimeDate").and_then(Val::as_date);
    let down = all().filter(|m| number(*m, "health") == Some(0.0)).count();
    let primary = all().find(|m| number(*m, "state") == Some(1.0));
    let configured = config.get("members").and_then(Val::as_array);
    let configured = configured.unwrap_or(Doc::EMPTY);
    let delay = |m: Doc<'_>| {
        let is_it = |c: &Doc<'_>| number(*c, "_id") == number(m, "_id");
        let found = configured.values().filter_map(Val::as_doc).find(is_it);
        found.and_then(|c| number(c, "secondaryDelaySecs"))
    };
    let behind = |m: Doc<'_>| {
        let behind = date(primary?)?.saturating_sub(date(m)?) as f64 / 1000.0;
        Some((behind - delay(m).unwrap_or(0.0)).max(0.0))
    };
    let own = all().find(|m| m.get("self").is_some_and(Val::truthy));
    // A secondary: others have no such time, or do not follow.
    let follow = all().filter(|m| number(*m, "state") == Some(2.0));
    let worst = follow.filter_map(behind).reduce(f64::max);
    [own.and_then(behind), worst, Some(down as f64)]
}

impl SampledHour {
    fn add(&self, at_millis: i64, status: Doc<'_>, added: [f64; ADDED.len()]) {
        let counts = Counts {
            at_millis,
            raw: FIGURES
                .iter()
                .map(|(_, _, path)| number(status, path))
                .collect(),
            buckets: CLASSES.map(|class| buckets(status, class)),
        };
        let mut kept = self.0.lock();
        let mut values = [f32::NAN; FIELDS];
        let mut slots = values.iter_mut();
        for (i, (_, kind, _)) in FIGURES.iter().enumerate() {
            let value = match kind {
                Gauge => counts.raw.get(i).copied(),
                Rate => kept.last.as_ref().and_then(|last| rate(last, &counts, i)),
            };
            set(&mut slots, value);
        }
        for (class, buckets) in counts.buckets.iter().enumerate() {
            let before = kept.last.as_ref().and_then(|last| last.buckets.get(class));
            for percent in PERCENTS {
                set(
                    &mut slots,
                    before.and_then(|b| percentile(b, buckets, percent)),
                );
            }
        }
        added.iter().for_each(|v| set(&mut slots, Some(*v)));
        kept.last = Some(counts);
        if kept.samples.len() >= KEPT {
            kept.samples.pop_front();
        }
        kept.samples.push_back(Sample { at_millis, values });
        assert!(kept.samples.len() <= KEPT, "an hour is kept, and no more");
    }

    /// The samples after a moment, by column.
    pub fn json(&self, after_millis: i64) -> Value {
        let kept = self.0.lock();
        let newer = || kept.samples.iter().filter(|s| s.at_millis > after_millis);
        let at: Vec<i64> = newer().map(|s| s.at_millis).collect();
        let mut series = Map::new();
        for (i, name) in names().enumerate() {
            let column = newer().map(|s| match s.values.get(i) {
                Some(v) if v.is_finite() => json!(rounded(f64::from(*v))),
                _ => Value::Null,
            });
            series.insert(name, column.collect());
        }
        json!({"everySeconds": EVERY.as_secs(), "at": at, "series": series})
    }
}

fn set<'a>(slots: &mut impl Iterator<Item = &'a mut f32>, value: Option<f64>) {
    let slot = slots.next();
    assert!(slot.is_some(), "a sample has a slot for each field");
    if let (Some(slot), Some(value)) = (slot, value) {
        *slot = value as f32;
    }
}

fn names() -> impl Iterator<Item = String> {
    let figures = FIGURES.iter().map(|(name, _, _)| (*name).to_string());
    let latencies = CLASSES.iter().flat_map(|class| {
        let class = class.trim_end_matches('s');
        PERCENTS.map(|p| format!("{class}MicrosP{p:.0}"))
    });
    figures.chain(latencies).chain(ADDED.map(String::from))
}

/// Three digits are enough to be drawn.
fn rounded(v: f64) -> f64 {
    match v.abs() >= 1000.0 {
        true => v.round(),
        false => (v * 1000.0).round() / 1000.0,
    }
}

fn number(d: Doc<'_>, path: &str) -> f64 {
    let mut at = d.as_val();
    for name in path.split('.') {
        match at.as_doc().and_then(|d| d.get(name)) {
            Some(v) => at = v,
            None => return f64::NAN,
        }
    }
    match at.as_bool() {
        Some(b) => f64::from(u8::from(b)),
        None => at.to_f64().unwrap_or(f64::NAN),
    }
}

fn rate(last: &Counts, now: &Counts, i: usize) -> Option<f64> {
    let seconds = (now.at_millis - last.at_millis) as f64 / 1000.0;
    let grown = now.raw.get(i)? - last.raw.get(i)?;
    (seconds > 0.0).then_some((grown / seconds).max(0.0))
}

fn buckets(status: Doc<'_>, class: &str) -> Buckets {
    let latencies = status.get("opLatencies").and_then(Val::as_doc);
    let class = latencies.and_then(|l| l.get(class)?.as_doc());
    let histogram = class.and_then(|c| c.get("histogram")?.as_array());
    let of = |b: Doc<'_>| Some((b.get("micros")?.to_f64()?, b.get("count")?.to_f64()?));
    let all = histogram.unwrap_or(Doc::EMPTY).values();
    let mut all: Buckets = all.filter_map(|v| of(v.as_doc()?)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// The lower bound of the bucket with that percentile of the counts added between two samples.
fn percentile(before: &Buckets, now: &Buckets, percent: f64) -> Option<f64> {
    let had = |bound: f64| {
        let found = before.iter().find(|(b, _)| *b == bound);
        found.map_or(0.0, |(_, n)| *n)
    };
    let added: Vec<(f64, f64)> = now
        .iter()
        .map(|(bound, n)| (*bound, (n - had(*bound)).max(0.0)))
        .collect();
    let total: f64 = added.iter().map(|(_, n)| n).sum();
    let mut left = total * percent / 100.0;
    for (bound, n) in &added {
        left -= n;
        if left <= 0.0 && *n > 0.0 {
            return Some(*bound);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    fn status(inserts: i64, slow: i64) -> bson::DocBuf {
        let histogram = array![
            doc! {"micros": 4, "count": inserts},
            doc! {"micros": 4096, "count": slow}
        ];
        doc! {
            "opcounters": doc! {"insert": inserts},
            "connections": doc! {"current": 7},
            "opLatencies": doc! {"writes": doc! {"histogram": histogram}},
        }
    }

    #[test]
    fn rates_gauges_and_percentiles() {
        let history = SampledHour::default();
        let with = |lag: f64| [1.0, 2.0, lag, 0.0, 0.0];
        history.add(1_000, status(10, 0).as_doc(), with(f64::NAN));
        history.add(6_000, status(60, 10).as_doc(), with(3.0));
        let all = history.json(0);
        assert_eq!(all["at"], json!([1000, 6000]));
        let series = &all["series"];
        assert_eq!(series["insert"], json!([null, 10.0]));
        assert_eq!(series["connections"], json!([7.0, 7.0]));
        assert_eq!(series["writeMicrosP50"], json!([null, 4.0]));
        assert_eq!(series["writeMicrosP95"], json!([null, 4096.0]));
        assert_eq!(series["readMicrosP50"], json!([null, null]));
        assert_eq!(series["lagSeconds"], json!([null, 3.0]));
        assert_eq!(history.json(1_000)["at"], json!([6000]));
        // A server that has started again counts from nothing.
        history.add(11_000, status(0, 0).as_doc(), with(3.0));
        assert_eq!(history.json(6_000)["series"]["insert"], json!([0.0]));
    }

    #[test]
    fn an_hour_is_kept() {
        let history = SampledHour::default();
        for n in 0..KEPT + 10 {
            history.add(n as i64, status(0, 0).as_doc(), [0.0; 5]);
        }
        assert_eq!(history.json(-1)["at"].as_array().unwrap().len(), KEPT);
    }

    #[test]
    fn lag_is_counted_from_the_primary() {
        let member = |state: i32, own: bool, at: i64| {
            let health = if state == 8 { 0.0 } else { 1.0 };
            doc! {"_id": at as i32, "state": state, "self": own, "health": health, "optimeDate": bson::Value::date(at)}
        };
        let set = doc! {"members": array![
            member(1, false, 9000), member(2, true, 5500), member(2, false, 1000), member(8, false, 0)
        ]};
        let of = |set: &DocBuf| lag_seconds(set.as_doc(), Doc::EMPTY);
        assert_eq!(of(&set), [Some(3.5), Some(8.0), Some(1.0)]);
        // One that is to be behind.
        let config = doc! {"members": array![doc! {"_id": 1000, "secondaryDelaySecs": 7}]};
        let lags = lag_seconds(set.as_doc(), config.as_doc());
        assert_eq!(lags, [Some(3.5), Some(3.5), Some(1.0)]);
        let set = doc! {"members": array![member(2, true, 5500)]};
        assert_eq!(of(&set), [None, None, Some(0.0)]);
    }
}
