//! The one schema of results, versioned: what was measured, on what, under which conditions, with whole histograms.
//!
//! ```text
//! Report  schema, kind, name, started, seconds, lab, host, conditions, target, settings, interrupted
//!   steps[]        one measured run: rate, CPU of both sides, latency by kind of operation, series by second, sizes
//!   comparisons[]  two sides in interleaved slices: shares, CPU ratio, the bar for each
//!   checks[]       one figure against one bar
//! ```
//! A reader refuses another schema version: figures are compared only when they mean the same.

use crate::connection::{Address, Connection};
use crate::fault::{Fault, Result, local};
use crate::fleet::{self, Outcome};
use crate::host::{Conditions, Host, Watch, timestamp};
use crate::measure::{Latency, Sample};
use crate::reply;
use bson::{Val, doc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

pub const SCHEMA: &str = "pando-lab/1";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// `run`, `study`, `bench` or `calibrate`.
    pub kind: String,
    pub name: String,
    /// UTC.
    pub started: String,
    pub seconds: f64,
    pub lab_version: String,
    pub host: Host,
    pub conditions: Conditions,
    pub target: Option<TargetInfo>,
    /// All targets, where there are several.
    #[serde(default)]
    pub targets: Vec<TargetInfo>,
    /// The shards of a cluster at the end.
    #[serde(default)]
    pub shards: Vec<Shard>,
    /// What a reader must know: definitions that we chose, what was skipped and why.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What the user or the study set: records, durability, payload, seeds …
    pub settings: Map<String, Json>,
    pub steps: Vec<Step>,
    pub comparisons: Vec<Comparison>,
    pub checks: Vec<Check>,
    /// Ended by Ctrl-C: what was measured until then.
    pub interrupted: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetInfo {
    pub url: String,
    /// PandoDB, MongoDB, MariaDB InnoDB, PostgreSQL JSONB …
    pub product: String,
    pub version: String,
    pub pid: Option<u32>,
    /// The other processes of a target that has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_pids: Vec<u32>,
    /// How the laboratory started it, when it did.
    pub command: Vec<String>,
    /// The core it was bound to.
    pub core: Option<usize>,
    /// The cache that it reports, in bytes.
    pub cache_bytes: Option<u64>,
    /// What else decides what a write or a read costs there, as the target says it.
    pub settings: BTreeMap<String, String>,
}

impl TargetInfo {
    /// Its processes, when all of them run on this machine.
    pub fn pids(&self) -> Vec<u32> {
        self.pid
            .into_iter()
            .chain(self.more_pids.iter().copied())
            .collect()
    }

    /// CPU time of all its processes.
    pub fn cpu_time(&self) -> Option<Duration> {
        let mut all = crate::process::cpu_time(self.pid?)?;
        for pid in &self.more_pids {
            all += crate::process::cpu_time(*pid)?;
        }
        Some(all)
    }

    /// Resident memory of all its processes.
    pub fn resident_bytes(&self) -> Option<u64> {
        let of = crate::process::resident_bytes;
        let more = self.more_pids.iter().map(|p| of(*p));
        Some(of(self.pid?)? + more.sum::<Option<u64>>()?)
    }

    /// Product and version, as tables and plots name it.
    pub fn label(&self) -> String {
        let product = if self.product.is_empty() {
            &self.url
        } else {
            &self.product
        };
        format!("{product} {}", self.version).trim_end().to_string()
    }
}

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
    pub chunks: u64,
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

/// Two sides measured in alternating slices of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Comparison {
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

/// One figure against one bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    pub pass: bool,
    pub note: String,
}

impl Check {
    pub fn at_most(name: &str, value: f64, unit: &str, bar: f64) -> Check {
        Check {
            name: name.into(),
            value,
            unit: unit.into(),
            at_most: Some(bar),
            pass: value <= bar,
            ..Check::default()
        }
    }

    pub fn at_least(name: &str, value: f64, unit: &str, bar: f64) -> Check {
        Check {
            name: name.into(),
            value,
            unit: unit.into(),
            at_least: Some(bar),
            pass: value >= bar,
            ..Check::default()
        }
    }

    /// A figure without a bar.
    pub fn figure(name: &str, value: f64, unit: &str) -> Check {
        Check {
            name: name.into(),
            value: if value.is_finite() { value } else { 0.0 },
            unit: unit.into(),
            pass: true,
            ..Check::default()
        }
    }

    pub fn note(mut self, note: impl Into<String>) -> Check {
        self.note = note.into();
        self
    }
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
            all.sizes = s.sizes;
        }
        all.per_second = crate::measure::median(&rates);
        Ok(Some(all))
    }
}

impl TargetInfo {
    pub fn of(target: &Address, connection: &mut Connection) -> TargetInfo {
        let status = connection.try_command("admin", doc! {"serverStatus": 1}.as_doc());
        let cache_bytes = status.ok().and_then(|s| {
            let cache = s.get("wiredTiger")?.as_doc()?.get("cache")?.as_doc()?;
            u64::try_from(cache.get("maximum bytes configured")?.to_i64_exact()?).ok()
        });
        let (product, version) = connection.product();
        TargetInfo {
            url: target.url.clone(),
            product,
            version,
            pid: connection.server_pid(),
            cache_bytes,
            ..TargetInfo::default()
        }
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
            indexes: indexes
                .into_iter()
                .flat_map(|d| d.iter())
                .map(|e| (e.name.to_string(), e.val.to_f64().unwrap_or(0.0) as u64))
                .collect(),
            server_resident_bytes: None,
        })
    }
}

/// A report in the making: it watches the machine from here on.
pub struct Draft {
    pub report: Report,
    watch: Watch,
    began: Instant,
    stamp: String,
}

impl Draft {
    pub fn new(kind: &str, name: &str) -> Draft {
        let started = timestamp(SystemTime::now());
        Draft {
            stamp: started.replace([':', '-'], ""),
            report: Report {
                schema: SCHEMA.into(),
                kind: kind.into(),
                name: name.into(),
                started,
                seconds: 0.0,
                lab_version: env!("CARGO_PKG_VERSION").into(),
                host: Host::current(),
                conditions: Conditions::default(),
                target: None,
                targets: Vec::new(),
                shards: Vec::new(),
                notes: Vec::new(),
                settings: Map::new(),
                steps: Vec::new(),
                comparisons: Vec::new(),
                checks: Vec::new(),
                interrupted: false,
            },
            watch: Watch::start(),
            began: Instant::now(),
        }
    }

    /// The load average when it began.
    pub fn load(&self) -> f64 {
        self.watch.load()
    }

    pub fn set(&mut self, name: &str, value: impl Into<Json>) {
        self.report.settings.insert(name.into(), value.into());
    }

    /// One more target; the first is *the* target of the report.
    pub fn add_target(&mut self, info: TargetInfo) {
        self.report.target.get_or_insert_with(|| info.clone());
        self.report.targets.push(info);
    }

    /// Whether the step of this key is done.
    pub fn has(&self, key: &str) -> bool {
        self.report.steps.iter().any(|s| s.key == key)
    }

    pub fn push(&mut self, key: &str, mut step: Step) {
        step.key = key.to_string();
        self.report.steps.push(step);
    }

    /// Takes a step back that has to be done again.
    pub fn forget(&mut self, key: &str) {
        self.report.steps.retain(|s| s.key != key);
    }

    /// What a reader must know.
    pub fn note(&mut self, note: impl Into<String>) {
        self.report.notes.push(note.into());
    }

    /// Ends the watch, writes the file and says where it is. A path of `-` writes nothing.
    pub fn finish(self, out: Option<&Path>) -> Result<Report> {
        Ok(self.finish_at(out)?.0)
    }

    /// The same, and where the file is.
    pub fn finish_at(mut self, out: Option<&Path>) -> Result<(Report, Option<PathBuf>)> {
        self.report.conditions = self.watch.end();
        self.report.seconds = self.began.elapsed().as_secs_f64();
        self.report.interrupted = fleet::interrupted();
        let path = match out {
            Some(p) if p == Path::new("-") => return Ok((self.report, None)),
            Some(p) => p.to_path_buf(),
            None => {
                crate::terms::default_result_path(&self.report.kind, &self.report.name, &self.stamp)
            }
        };
        self.report.write(&path)?;
        println!("results: {}", path.display());
        Ok((self.report, Some(path)))
    }
}

/// Writes a text so that the file is whole or not there.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(local(dir.display()))?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        Fault::Local(format!("{}: {e}", path.display()))
    })
}

impl Report {
    /// Writes a file beside the place and renames it, so that a file is whole or not there.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Fault::Local(format!("writing {}: {e}", path.display())))?;
        write_whole(path, &(text + "\n"))
    }

    pub fn read(path: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(path).map_err(local(path.display()))?;
        let not = |why: String| Fault::Usage(format!("{}: {why}", path.display()));
        let json: Json =
            serde_json::from_str(&text).map_err(|e| not(format!("not a result file ({e})")))?;
        match json.get("schema").and_then(Json::as_str) {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(not(format!(
                    "written in schema {other}; this program reads {SCHEMA}"
                )));
            }
            None => return Err(not("not a result file of this laboratory".into())),
        }
        serde_json::from_value(json).map_err(|e| not(format!("damaged ({e})")))
    }

    /// Whether everything that has a bar reached it.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.pass) && self.comparisons.iter().all(|c| c.pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back_and_other_schemas_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/result.json");
        let mut draft = Draft::new("run", "C.S5");
        draft.set("records", 1000);
        let check = Check::at_most("ready", 200.0, "ms", 300.0);
        draft.report.checks.push(check);
        let report = draft.finish(Some(&path)).unwrap();
        assert!(report.passed());
        let again = Report::read(&path).unwrap();
        assert_eq!(again.settings["records"], 1000);
        assert_eq!(again.checks[0].at_most, Some(300.0));

        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(SCHEMA, "pando-lab/99")).unwrap();
        let fault = Report::read(&path).unwrap_err();
        assert!(fault.to_string().contains("schema pando-lab/99"));
        std::fs::write(&path, "{}").unwrap();
        assert!(Report::read(&path).is_err());
        std::fs::write(&path, "[").unwrap();
        assert!(Report::read(&path).is_err());
    }

    #[test]
    fn bars_are_inclusive() {
        assert!(Check::at_least("a", 0.95, "", 0.95).pass);
        assert!(!Check::at_least("a", 0.94, "", 0.95).pass);
        assert!(!Check::at_most("a", f64::NAN, "", 1.0).pass);
    }
}
