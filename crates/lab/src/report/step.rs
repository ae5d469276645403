//! One measured run, and the sizes that it left.

use crate::connection::Connection;
use crate::fault::{Fault, Result};
use crate::fleet::Outcome;
use crate::measure::{Latency, Sample};
use crate::reply;
use crate::terms::{bytes, grouped};
use bson::{Doc, Val, doc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// One measured run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
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
    /// Every operation reads one record by its key: there the client has a bar.
    pub point_reads: bool,
    /// The client's core was full and the server's was not: the figure is the client's, not the server's.
    pub client_bound: bool,
    pub latency: BTreeMap<String, Latency>,
    pub series: Vec<Sample>,
    pub sizes: Vec<Sizes>,
    /// Seconds at whose end the server was busy with something of its own (flush, compaction …).
    pub activity: BTreeMap<String, Vec<f64>>,
    /// Seconds of each group of operations in order, and how many a group has.
    pub group: u64,
    pub group_seconds: Vec<f64>,
    /// Operations a second that an open loop offered; its latencies count from when each was due.
    pub offered: Option<f64>,
    /// Of files.
    pub megabytes_per_second: Option<f64>,
    /// How late an open loop's requests were sent.
    pub lag: Option<Latency>,
    /// The backlog grew: less was done than was offered.
    pub overloaded: bool,
    /// Ctrl-C came before its end: a run that is resumed does it again.
    pub interrupted: bool,
}

/// One shard's part of a collection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shard {
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

impl Shard {
    /// What a table says of it.
    pub const COLUMNS: [&str; 6] = ["shard", "documents", "data", "on disk", "indexes", "chunks"];

    pub fn row(&self) -> [String; 6] {
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
pub struct Sizes {
    /// Seconds since the step began.
    pub at: f64,
    pub documents: u64,
    pub data_bytes: u64,
    pub storage_bytes: u64,
    pub index_bytes: u64,
    pub indexes: BTreeMap<String, u64>,
    pub server_resident_bytes: Option<u64>,
}

/// The most that the client may cost on point reads, as a share of what a null server does.
pub const CLIENT_BAR: f64 = 1.3;

impl Step {
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
        outcome: &Outcome,
        server_cpu: Option<Duration>,
    ) -> Step {
        let operations = outcome.operations.max(1) as f64;
        let seconds = outcome.elapsed.as_secs_f64();
        let us = |d: Duration| d.as_secs_f64() * 1e6 / operations;
        let client_full = outcome.client_cpu.as_secs_f64() > 0.95 * seconds * client_threads as f64;
        let cores = crate::process::online_cores();
        let server_idle = server_cpu.is_some_and(|c| {
            c.as_secs_f64() < 0.9 * seconds * cores.saturating_sub(client_threads).max(1) as f64
        });
        Step {
            name: name.into(),
            connections,
            client_threads,
            operations: outcome.operations,
            seconds,
            per_second: outcome.rate(),
            client_cpu_us: us(outcome.client_cpu),
            server_cpu_us: server_cpu.map(us),
            client_bound: client_full && server_idle,
            latency: outcome
                .kinds
                .iter()
                .map(|(k, h)| ((*k).to_string(), Latency::of(h)))
                .collect(),
            series: outcome.samples.clone(),
            lag: outcome.lag.as_ref().map(Latency::of),
            interrupted: crate::fleet::interrupted(),
            ..Step::default()
        }
    }
}

impl Step {
    /// Several turns of one step: rates by their median, histograms merged, the series one after the other.
    pub fn merged(steps: Vec<Step>) -> Result<Option<Step>> {
        let rates: Vec<f64> = steps.iter().map(|s| s.per_second).collect();
        let mut turns = steps.into_iter();
        let Some(mut all) = turns.next() else {
            return Ok(None);
        };
        let weighted = |a: f64, n: u64, b: f64, m: u64| {
            (a * n as f64 + b * m as f64) / ((n + m).max(1)) as f64
        };
        for s in turns {
            let (n, m) = (all.operations, s.operations);
            all.client_cpu_us = weighted(all.client_cpu_us, n, s.client_cpu_us, m);
            let both = all.server_cpu_us.zip(s.server_cpu_us);
            all.null_cpu_us = all.null_cpu_us.or(s.null_cpu_us);
            all.server_cpu_us = both.map(|(a, b)| weighted(a, n, b, m));
            for (kind, l) in &s.latency {
                let mut h = l.histogram()?;
                if let Some(have) = all.latency.get(kind) {
                    h.add(have.histogram()?)
                        .map_err(|e| Fault::Local(format!("merging histograms: {e}")))?;
                }
                all.latency.insert(kind.clone(), Latency::of(&h));
            }
            let start = all.seconds;
            all.series.extend(s.series.into_iter().map(|x| Sample {
                at: x.at + start,
                ..x
            }));
            all.operations += m;
            all.seconds += s.seconds;
            all.client_bound |= s.client_bound;
            all.interrupted |= s.interrupted;
            all.sizes = s.sizes;
        }
        all.per_second = crate::measure::median(&rates);
        Ok(Some(all))
    }
}

impl Sizes {
    /// What `collStats` says now.
    pub fn of(connection: &mut Connection, db: &str, collection: &str, at: f64) -> Result<Sizes> {
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
        Ok(Sizes {
            at,
            documents: number("count"),
            data_bytes: number("size"),
            storage_bytes: number("storageSize"),
            index_bytes: number("totalIndexSize"),
            indexes: indexes.map(sizes_of).unwrap_or_default(),
            server_resident_bytes: None,
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
impl Step {
    /// Ten seconds at one rate.
    pub fn example(name: &str, target: &str, connections: usize, rate: f64) -> Step {
        Step {
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
            ..Step::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_says_how_large_each_index_is() {
        let mut shard = Shard {
            of: 3,
            name: "shard1".into(),
            index_bytes: 5_000_000,
            indexes: sizes_of(doc! {"_id_": 2_000_000, "Number_1": 3e6}.as_doc()),
            ..Shard::default()
        };
        let row = shard.row();
        assert_eq!(row[0], "shard1 of 3");
        assert_eq!(row[4], "5.0 MB (Number_1 3.0 MB, _id_ 2.0 MB)");
        shard.indexes.clear();
        assert_eq!(shard.row()[4], "5.0 MB");
    }
}
