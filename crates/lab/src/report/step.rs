//! One measured run, and the sizes that it left.

use crate::connection::MongoConnection;
use crate::fault::{Fault, Result};
use crate::fleet::RunOutcome;
use crate::floor::Floor;
use crate::host::Noise;
use crate::measure::{Latency, Sample};
use crate::process::ProcessCounters;
use crate::reply;
use crate::terms::{bytes, grouped};
use bson::{Doc, Val, doc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// One measured run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredStep {
    /// What tells it from all others of the report, for a run that is resumed.
    pub key: String,
    pub name: String,
    /// The target's label, where a result holds several.
    pub target: Option<String>,
    /// What tells steps of one name apart in a plot: an insert mode, a data size, a number of shards.
    pub mode: Option<String>,
    /// The value of `mode` as a number, where it is one (records, shards, keys).
    pub at: Option<f64>,
    pub connections: usize,
    pub client_threads: usize,
    pub durability: Option<String>,
    pub operations: u64,
    pub seconds: f64,
    pub per_second: f64,
    /// CPU microseconds of the load client an operation.
    pub client_cpu_us: f64,
    /// The same of the server's process, when it runs on this machine.
    pub server_cpu_us: Option<f64>,
    /// The same of a null server under this load; the client's against it says how dear the client is.
    pub null_cpu_us: Option<f64>,
    /// Operations a second of the null server under this load.
    pub null_per_second: Option<f64>,
    /// What else the machine did meanwhile.
    pub noise: Noise,
    /// Every operation reads one record by its key: there the client has a bar.
    pub point_reads: bool,
    /// The operations are queries of the user's own, by the names that they have in the file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_queries: bool,
    /// The client had nothing to wait for, and the server had: the figure is the client's, not the server's.
    pub client_bound: bool,
    /// The share of the time in which the client's threads worked or waited for a core.
    pub client_busy: Option<f64>,
    /// The share of all cores' time that anything took.
    pub machine_busy: Option<f64>,
    /// Operations that were to be done, where a limit of time may end the step before.
    pub planned: Option<u64>,
    /// Operations of one request, whose latencies are those of the request.
    pub batch: Option<u64>,
    pub latency: BTreeMap<String, Latency>,
    pub series: Vec<Sample>,
    pub sizes: Vec<CollectionSizes>,
    /// Seconds at whose end the server was busy with something of its own (flush, compaction …).
    pub activity: BTreeMap<String, Vec<f64>>,
    /// Seconds of each group of operations in order, and how many a group has.
    pub group: u64,
    pub group_seconds: Vec<f64>,
    /// Operations a second that an open loop offered; its latencies count from when each was due.
    pub offered: Option<f64>,
    /// Of files.
    pub megabytes_per_second: Option<f64>,
    /// Bytes of records that an operation moves, where that is fixed.
    pub bytes_per_operation: Option<f64>,
    /// Bytes of a record's fields.
    pub record_bytes: Option<f64>,
    /// Of the server's processes, an operation: pages that had to be got from somewhere, and how often a thread slept.
    pub server_page_faults: Option<f64>,
    pub server_sleeps: Option<f64>,
    /// Of the time in which the server's threads were ready to run, the share that they waited for a core.
    pub server_waits: Option<f64>,
    /// Bytes of requests and of replies, an operation.
    pub sent_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    /// How late the client itself sent an open loop's requests.
    pub lag: Option<Latency>,
    /// The backlog grew: less was done than was offered.
    pub overloaded: bool,
    /// Ctrl-C came before its end: a run that is resumed does it again.
    pub interrupted: bool,
    /// Each repeat whole, in order, where it was measured several times: then `per_second` is their median, and the series
    /// are those of the repeat nearest to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<MeasuredStep>,
}

/// One shard's part of a collection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ShardPart {
    /// How many shards the cluster has.
    pub of: u64,
    pub name: String,
    pub documents: u64,
    pub data_bytes: u64,
    pub storage_bytes: u64,
    pub index_bytes: u64,
    /// Bytes of each index, where the shard says so.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub indexes: BTreeMap<String, u64>,
    pub chunks: u64,
}

impl ShardPart {
    /// Rows of a table: each shard, and after those of a cluster their totals.
    pub fn rows(all: &[ShardPart]) -> Vec<[String; 7]> {
        let mut rows = Vec::new();
        for (i, shard) in all.iter().enumerate() {
            rows.push(shard.row());
            let last = all.get(i + 1).is_none_or(|next| next.of != shard.of);
            let own: Vec<&ShardPart> = all[..=i].iter().filter(|s| s.of == shard.of).collect();
            if last && own.len() > 1 {
                let sum = |of: fn(&ShardPart) -> u64| own.iter().map(|s| of(s)).sum();
                let mut indexes = BTreeMap::new();
                for (name, size) in own.iter().flat_map(|s| &s.indexes) {
                    *indexes.entry(name.clone()).or_insert(0) += size;
                }
                let total = ShardPart {
                    of: shard.of,
                    name: "all".into(),
                    documents: sum(|s| s.documents),
                    data_bytes: sum(|s| s.data_bytes),
                    storage_bytes: sum(|s| s.storage_bytes),
                    index_bytes: sum(|s| s.index_bytes),
                    indexes,
                    chunks: sum(|s| s.chunks),
                };
                rows.push(total.row());
            }
        }
        rows
    }

    fn row(&self) -> [String; 7] {
        let each: Vec<String> = self
            .indexes
            .iter()
            .map(|(name, size)| format!("{name} {}", bytes(*size)))
            .collect();
        let mut indexes = bytes(self.index_bytes);
        if each.len() > 1 {
            indexes = format!("{indexes} ({})", each.join(", "));
        }
        [
            format!("{} of {}", self.name, self.of),
            grouped(self.documents as f64),
            bytes(self.data_bytes / self.documents.max(1)),
            bytes(self.data_bytes),
            bytes(self.storage_bytes),
            indexes,
            self.chunks.to_string(),
        ]
    }
}

/// Sizes of a collection at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectionSizes {
    /// Seconds since the step began.
    pub at: f64,
    pub documents: u64,
    pub data_bytes: u64,
    pub storage_bytes: u64,
    pub index_bytes: u64,
    pub indexes: BTreeMap<String, u64>,
    pub server_resident_bytes: Option<u64>,
    /// All that the server's data folders take of the disk, its logs and other tables too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_disk_bytes: Option<u64>,
}

/// The most that the client may cost on point reads, as a share of what a null server does.
pub const CLIENT_BAR: f64 = 1.3;

impl MeasuredStep {
    /// What a null server made of the same load.
    pub fn set_floor(&mut self, floor: Option<Floor>) {
        self.null_cpu_us = floor.map(|f| f.cpu_us);
        self.null_per_second = floor.map(|f| f.per_second);
    }

    /// Megabytes of records a second.
    pub fn megabytes(&self) -> Option<f64> {
        let moved = self.bytes_per_operation.map(|b| b * self.per_second / 1e6);
        self.megabytes_per_second.or(moved)
    }

    /// How uneven the times of groups are: their standard deviation as a share of their mean.
    pub fn spread(&self) -> Option<f64> {
        let n = self.group_seconds.len() as f64;
        if n < 3.0 {
            return None;
        }
        let mean = self.group_seconds.iter().sum::<f64>() / n;
        let off = self.group_seconds.iter().map(|t| (t - mean).powi(2));
        Some((off.sum::<f64>() / (n - 1.0)).sqrt() / mean)
    }

    /// The rate of each repeat; nothing of a step that was measured once.
    pub fn rates(&self) -> Vec<f64> {
        self.repeats.iter().map(|s| s.per_second).collect()
    }

    /// The client's CPU an operation against the null server's.
    pub fn client_ratio(&self) -> Option<f64> {
        let ratio = self.client_cpu_us / self.null_cpu_us?;
        ratio.is_finite().then_some(ratio)
    }

    /// The ratio as tables show it; past the bar with a mark.
    pub fn client_ratio_text(&self) -> String {
        match self.client_ratio() {
            Some(r) if self.point_reads && r > CLIENT_BAR => format!("{r:.2} !"),
            Some(r) => format!("{r:.2}"),
            None => "–".into(),
        }
    }

    /// `server_cpu`: CPU time of the server's process during the run.
    pub fn new(
        name: &str,
        connections: usize,
        client_threads: usize,
        outcome: &RunOutcome,
        server_cpu: Option<Duration>,
    ) -> MeasuredStep {
        let operations = outcome.operations.max(1) as f64;
        let seconds = outcome.elapsed.as_secs_f64();
        let us = |d: Duration| d.as_secs_f64() * 1e6 / operations;
        let idle = outcome.client_idle.as_secs_f64() / (seconds * client_threads as f64).max(1e-9);
        let client_busy = (1.0 - idle).clamp(0.0, 1.0);
        let machine_busy = outcome.machine.busy_share();
        MeasuredStep {
            name: name.into(),
            connections,
            client_threads,
            operations: outcome.operations,
            seconds,
            per_second: outcome.rate(),
            client_cpu_us: us(outcome.client_cpu),
            server_cpu_us: server_cpu.map(us),
            client_bound: is_the_clients(client_busy, machine_busy, outcome.client_cpu, server_cpu),
            client_busy: Some(client_busy),
            machine_busy,
            latency: outcome
                .kinds
                .iter()
                .map(|(k, h)| ((*k).to_string(), Latency::of(h)))
                .collect(),
            series: outcome.samples.clone(),
            lag: outcome.lag.as_ref().map(Latency::of),
            server_page_faults: outcome.counters.map(|c| c.page_faults as f64 / operations),
            server_sleeps: outcome.counters.map(|c| c.sleeps as f64 / operations),
            server_waits: outcome.counters.and_then(ProcessCounters::wait_share),
            sent_bytes: Some(outcome.bytes[0] as f64 / operations),
            received_bytes: Some(outcome.bytes[1] as f64 / operations),
            noise: Noise::of(
                outcome.machine,
                server_cpu.map(|server| server + outcome.client_cpu),
            ),
            interrupted: crate::fleet::interrupted(),
            ..MeasuredStep::default()
        }
    }
}

impl MeasuredStep {
    /// The repeats of one step as one: its rate is their median, histograms are merged, CPU is weighted by operations; the
    /// series are those of the repeat nearest to the median, and all of each stays beside.
    pub fn merged(repeats: Vec<MeasuredStep>) -> Result<Option<MeasuredStep>> {
        let rates: Vec<f64> = repeats.iter().map(|s| s.per_second).collect();
        let middle = crate::measure::median(&rates);
        let off = |s: &&MeasuredStep| (s.per_second - middle).abs();
        let nearest = repeats.iter().min_by(|a, b| off(a).total_cmp(&off(b)));
        let Some(nearest) = nearest else {
            return Ok(None);
        };
        if repeats.len() == 1 {
            return Ok(repeats.into_iter().next());
        }
        let mut all = MeasuredStep {
            per_second: middle,
            operations: repeats.iter().map(|s| s.operations).sum(),
            seconds: repeats.iter().map(|s| s.seconds).sum(),
            client_bound: repeats.iter().any(|s| s.client_bound),
            interrupted: repeats.iter().any(|s| s.interrupted),
            overloaded: repeats.iter().any(|s| s.overloaded),
            latency: merged_latency(&repeats)?,
            ..nearest.clone()
        };
        let mean = |of: fn(&MeasuredStep) -> Option<f64>| {
            let parts = repeats.iter().map(|s| Some(of(s)? * s.operations as f64));
            Some(parts.sum::<Option<f64>>()? / all.operations.max(1) as f64)
        };
        let (client, server) = (mean(|s| Some(s.client_cpu_us)), mean(|s| s.server_cpu_us));
        let files: Vec<f64> = repeats
            .iter()
            .filter_map(|s| s.megabytes_per_second)
            .collect();
        let floors: Vec<f64> = repeats.iter().filter_map(|s| s.null_cpu_us).collect();
        (all.client_cpu_us, all.server_cpu_us) = (client.unwrap_or_default(), server);
        let known = |v: f64| v.is_finite().then_some(v);
        all.megabytes_per_second = known(crate::measure::median(&files));
        all.null_cpu_us = known(crate::measure::median(&floors));
        let late = repeats.iter().filter_map(|s| s.lag.as_ref());
        all.lag = late.max_by(|a, b| a.p99_us.total_cmp(&b.p99_us)).cloned();
        let best = repeats.iter().filter_map(|s| s.null_per_second);
        let best = best.fold(0.0, f64::max);
        for s in &repeats {
            let behind = s.null_per_second.map(|r| (1.0 - r / best) * 100.0);
            all.noise = all.noise.worse(Noise {
                null_behind_percent: behind.filter(|p| p.is_finite()),
                ..s.noise
            });
        }
        all.repeats = repeats;
        Ok(Some(all))
    }
}

/// Client threads that are idle less than this are at their limit.
const FULL: f64 = 0.95;
/// Cores of which more than this is taken are full.
const CORES_FULL: f64 = 0.93;

/// Whether a figure is the client's. Its threads had nothing to wait for; and either there were cores to spare, so that the server
/// waited for requests, or the two shared full cores and the client took most of them.
fn is_the_clients(
    busy: f64,
    machine: Option<f64>,
    client: Duration,
    server: Option<Duration>,
) -> bool {
    let cores_full = machine.is_some_and(|m| m > CORES_FULL);
    let most = server.is_none_or(|s| client > s);
    busy > FULL && (!cores_full || most)
}

/// What kept a step from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Client,
    /// The machine's, which client and server share.
    Cores,
    /// What the server waits for: its locks, its disk, or too few requests at a time.
    Server,
}

impl MeasuredStep {
    /// Who limits a closed loop; an open one is limited by its load.
    pub fn limit(&self) -> Option<Limit> {
        // What others took of the cores neither side limited.
        let quiet = self.noise.reasons().is_none();
        match () {
            _ if self.client_bound => Some(Limit::Client),
            _ if !quiet => None,
            _ if self.machine_busy.is_none() => None,
            _ if self.offered.is_some() && !self.overloaded => None,
            _ if self.machine_busy > Some(CORES_FULL) => Some(Limit::Cores),
            _ => Some(Limit::Server),
        }
    }

    /// The latency of a kind of operation; none of writes that nothing was waited for.
    pub fn timed(&self, kind: &str) -> Option<&Latency> {
        let reads = matches!(kind, "READ" | "SCAN") || kind.starts_with("read");
        let waits = reads || self.durability.as_deref() != Some("unack");
        self.latency.get(kind).filter(|_| waits)
    }

    /// The worst p99 of its kinds of operations, in microseconds.
    pub fn worst_p99(&self) -> Option<f64> {
        let all = self.latency.keys().filter_map(|k| self.timed(k));
        all.filter_map(|l| l.at(0.99)).max_by(f64::total_cmp)
    }

    /// Of inserts the rate of each second, at the records that were there when it ended.
    pub fn by_records(&self) -> Vec<(f64, f64)> {
        let own = self.operations as f64 / self.repeats.len().max(1) as f64;
        // What a step of a load found; a test that stands alone began with nothing.
        let mut there = self.at.map_or(0.0, |end| end - own).max(0.0);
        let mut points = Vec::new();
        for second in &self.series {
            there += second.operations as f64;
            if second.seconds > 0.3 {
                points.push((there, second.operations as f64 / second.seconds));
            }
        }
        points
    }
}

impl MeasuredStep {
    /// What several processes measured of one load at the same time, as one step. Percentiles of a second are those of the worst.
    pub fn together(parts: Vec<MeasuredStep>) -> Result<MeasuredStep> {
        let Some(first) = parts.first() else {
            return Err(Fault::Local("no agent measured anything".into()));
        };
        let operations: u64 = parts.iter().map(|s| s.operations).sum();
        let seconds = parts.iter().map(|s| s.seconds).fold(0.0, f64::max);
        let cpu: f64 = parts
            .iter()
            .map(|s| s.client_cpu_us * s.operations as f64)
            .sum();
        let offered: Option<Vec<f64>> = parts.iter().map(|s| s.offered).collect();
        let late = parts.iter().filter_map(|s| s.lag.as_ref());
        let busy = parts.iter().filter_map(|s| s.client_busy);
        let busy = busy.max_by(f64::total_cmp);
        Ok(MeasuredStep {
            connections: parts.iter().map(|s| s.connections).sum(),
            client_threads: parts.iter().map(|s| s.client_threads).sum(),
            operations,
            seconds,
            per_second: operations as f64 / seconds.max(1e-9),
            client_cpu_us: cpu / operations.max(1) as f64,
            client_busy: busy,
            client_bound: parts.iter().any(|s| s.client_bound),
            overloaded: parts.iter().any(|s| s.overloaded),
            interrupted: parts.iter().any(|s| s.interrupted),
            offered: offered.map(|all| all.iter().sum()),
            latency: merged_latency(&parts)?,
            lag: late.max_by(|a, b| a.p99_us.total_cmp(&b.p99_us)).cloned(),
            series: added(&parts),
            ..first.clone()
        })
    }
}

/// Seconds of several processes that began together, one with the other.
fn added(parts: &[MeasuredStep]) -> Vec<Sample> {
    let mut all: Vec<Sample> = Vec::new();
    for part in parts {
        for (i, s) in part.series.iter().enumerate() {
            let Some(sum) = all.get_mut(i) else {
                all.push(s.clone());
                continue;
            };
            sum.operations += s.operations;
            sum.seconds = sum.seconds.max(s.seconds);
            sum.p50_us = sum.p50_us.max(s.p50_us);
            sum.p99_us = sum.p99_us.max(s.p99_us);
            sum.p999_us = sum.p999_us.max(s.p999_us);
            sum.max_us = sum.max_us.max(s.max_us);
        }
    }
    all
}

/// Histograms by kind, those of all repeats together.
fn merged_latency(repeats: &[MeasuredStep]) -> Result<BTreeMap<String, Latency>> {
    let mut all = BTreeMap::new();
    for (kind, latency) in repeats.iter().flat_map(|s| &s.latency) {
        let one = latency.histogram()?;
        match all.get_mut(kind) {
            None => drop(all.insert(kind.clone(), one)),
            Some(have) => hdrhistogram::Histogram::add(have, one)
                .map_err(|e| Fault::Local(format!("merging histograms: {e}")))?,
        }
    }
    Ok(all
        .iter()
        .map(|(k, h)| (k.clone(), Latency::of(h)))
        .collect())
}

impl CollectionSizes {
    /// What `collStats` says now.
    pub fn of(
        connection: &mut MongoConnection,
        db: &str,
        collection: &str,
        at: f64,
    ) -> Result<CollectionSizes> {
        let stats = connection.command(db, doc! {"collStats": collection}.as_doc())?;
        let number = |name: &str| {
            let n = stats.get(name).and_then(Val::to_f64).unwrap_or(0.0);
            n.max(0.0) as u64
        };
        if reply::int(stats.as_doc(), "count").is_none() {
            return Err(Fault::Check(format!(
                "no count in {}",
                reply::brief(stats.as_doc())
            )));
        }
        let indexes = stats.get("indexSizes").and_then(Val::as_doc);
        Ok(CollectionSizes {
            at,
            documents: number("count"),
            data_bytes: number("size"),
            storage_bytes: number("storageSize"),
            index_bytes: number("totalIndexSize"),
            indexes: indexes.map(sizes_of).unwrap_or_default(),
            ..CollectionSizes::default()
        })
    }
}

/// The numbers of `indexSizes`.
pub fn sizes_of(indexes: Doc<'_>) -> BTreeMap<String, u64> {
    indexes
        .iter()
        .map(|e| (e.name.to_string(), e.val.to_f64().unwrap_or(0.0) as u64))
        .collect()
}

#[cfg(test)]
impl MeasuredStep {
    /// Ten seconds at one rate.
    pub fn example(name: &str, target: &str, connections: usize, rate: f64) -> MeasuredStep {
        MeasuredStep {
            name: name.into(),
            target: Some(target.into()),
            connections,
            per_second: rate,
            series: (1..=10)
                .map(|at| Sample {
                    at: f64::from(at),
                    seconds: 1.0,
                    operations: rate as u64,
                    ..Sample::default()
                })
                .collect(),
            ..MeasuredStep::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_become_one_step_and_stay_beside_it() {
        let one = |rate: f64, null: f64| MeasuredStep {
            operations: 100,
            null_per_second: Some(null),
            server_cpu_us: Some(rate / 10.0),
            latency: [("READ".to_string(), {
                let mut h = crate::measure::histogram();
                h.saturating_record(rate as u64 * 1000);
                Latency::of(&h)
            })]
            .into(),
            ..MeasuredStep::example("s", "t", 1, rate)
        };
        let all = MeasuredStep::merged(vec![
            one(90.0, 1000.0),
            one(100.0, 1000.0),
            one(50.0, 600.0),
        ]);
        let all = all.unwrap().unwrap();
        assert_eq!((all.per_second, all.operations), (90.0, 300));
        assert_eq!(all.series[0].operations, 90);
        assert_eq!(all.latency["READ"].count, 3);
        assert_eq!(all.server_cpu_us, Some(8.0));
        assert_eq!(all.rates(), [90.0, 100.0, 50.0]);
        assert!(
            all.noise
                .reasons()
                .unwrap()
                .contains("null server itself was 40% slower")
        );
        // One alone is itself.
        let alone = MeasuredStep::merged(vec![one(7.0, 1.0)]).unwrap().unwrap();
        assert!(alone.repeats.is_empty() && alone.per_second == 7.0);
        assert!(MeasuredStep::merged(Vec::new()).unwrap().is_none());
    }

    #[test]
    fn a_shard_says_how_large_each_index_is() {
        let mut shard = ShardPart {
            of: 3,
            name: "shard1".into(),
            index_bytes: 5_000_000,
            indexes: sizes_of(doc! {"_id_": 2_000_000, "Number_1": 3e6}.as_doc()),
            ..ShardPart::default()
        };
        let row = shard.row();
        assert_eq!(row[0], "shard1 of 3");
        assert_eq!(row[5], "5.0 MB (Number_1 3.0 MB, _id_ 2.0 MB)");
        (shard.documents, shard.data_bytes) = (100, 100_000);
        let all = ShardPart::rows(&[shard.clone(), shard.clone(), shard.clone()]);
        assert_eq!(all.len(), 4);
        assert_eq!(all[3][..4], ["all of 3", "300", "1000 B", "300.0 KB"]);
        assert_eq!(all[3][5], "15.0 MB (Number_1 9.0 MB, _id_ 6.0 MB)");
        shard.indexes.clear();
        assert_eq!(shard.row()[5], "5.0 MB");
    }
}
