//! A target as results name it.

use crate::connection::{MongoAddress, MongoConnection};
use crate::process::disk_bytes;
use bson::{Doc, DocBuf, Writer, doc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetInfo {
    pub url: String,
    /// What tells it from another of the same product and version in one result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// PandoDB, MongoDB, MariaDB InnoDB, PostgreSQL JSONB …
    pub product: String,
    pub version: String,
    pub pid: Option<u32>,
    /// The other processes of a target that has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_pids: Vec<u32>,
    /// Where it keeps its data, when that is on this machine and can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<PathBuf>,
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
        crate::process::cpu_time_of(&self.pids())
    }

    /// Memory of all its processes and of those that they started, shared memory once; nothing where a part cannot be read.
    pub fn memory_bytes(&self) -> Option<u64> {
        let pids = self.pids();
        let of = |pid: &u32| crate::process::memory_bytes(*pid);
        (!pids.is_empty()).then(|| pids.iter().map(of).sum())?
    }

    /// What its data folders take of the disk; nothing where one of them is not known or cannot be read.
    pub fn disk_bytes(&self) -> Option<u64> {
        let known = Some(&self.data).filter(|d| !d.is_empty())?;
        let readable = known.iter().all(|dir| dir.read_dir().is_ok());
        readable.then(|| known.iter().map(|dir| disk_bytes(dir)).sum())
    }

    /// Keeps the data folder that a server of this machine names.
    pub fn keeps_data_in(&mut self, dir: Option<String>, local: bool) {
        let dir = dir.filter(|_| local).map(PathBuf::from);
        self.data.extend(dir.filter(|d| d.read_dir().is_ok()));
    }

    /// Product and version, as tables and plots name it.
    pub fn label(&self) -> String {
        let product = if self.product.is_empty() {
            &self.url
        } else {
            &self.product
        };
        let label = format!("{product} {}", self.version);
        match &self.place {
            Some(place) => format!("{} at {place}", label.trim_end()),
            None => label.trim_end().to_string(),
        }
    }
}

impl TargetInfo {
    pub fn of(target: &MongoAddress, connection: &mut MongoConnection) -> TargetInfo {
        let status = connection.try_command("admin", doc! {"serverStatus": 1}.as_doc());
        let cache_bytes = status.ok().and_then(|s| {
            let cache = s.get("wiredTiger")?.as_doc()?.get("cache")?.as_doc()?;
            u64::try_from(cache.get("maximum bytes configured")?.to_i64_exact()?).ok()
        });
        let (product, version) = connection.product();
        let mut settings = BTreeMap::new();
        if connection.is_encrypted() {
            settings.insert("tls".to_string(), "yes".to_string());
        }
        let started = started_with(connection);
        if let Some(parsed) = &started {
            flatten("", parsed.as_doc(), &mut settings);
        }
        settings.extend(parameters(connection));
        let mut info = TargetInfo {
            url: target.url.clone(),
            product,
            version,
            pid: connection.server_pid(),
            cache_bytes,
            settings,
            ..TargetInfo::default()
        };
        // A router keeps nothing: what its shards keep is not known here.
        let local = info.pid.is_some() && !connection.is_router();
        info.keeps_data_in(started.as_ref().and_then(data_folder), local);
        info
    }
}

/// What the server was started with.
fn started_with(connection: &mut MongoConnection) -> Option<DocBuf> {
    let said = connection.try_command("admin", doc! {"getCmdLineOpts": 1}.as_doc());
    Some(said.ok()?.get("parsed")?.as_doc()?.to_buf())
}

fn data_folder(started: &DocBuf) -> Option<String> {
    let storage = started.get("storage")?.as_doc()?;
    Some(storage.get("dbPath")?.as_str()?.to_string())
}

/// Parts of a configuration that say where a server is, not what work costs there.
const PLACES: [&str; 6] = [
    "config",
    "net",
    "processManagement",
    "security",
    "systemLog",
    "storage.dbPath",
];

/// A configuration as `storage.engine` = `wiredTiger`, without places and secrets.
fn flatten(within: &str, d: Doc<'_>, into: &mut BTreeMap<String, String>) {
    for e in d {
        let name = match within {
            "" => e.name.to_string(),
            _ => format!("{within}.{}", e.name),
        };
        if PLACES.contains(&&*name) {
            continue;
        }
        match e.val.as_doc() {
            Some(d) => flatten(&name, d, into),
            None => {
                let plain = e.val.as_str().map(str::to_string);
                into.insert(name, plain.unwrap_or_else(|| e.val.to_string()));
            }
        }
    }
}

/// Parameters that decide what a write costs: how often the log and the data are synced.
fn parameters(connection: &mut MongoConnection) -> BTreeMap<String, String> {
    let names = ["journalCommitInterval", "syncdelay"];
    let mut told = |name: &str| {
        let mut asked = Writer::new();
        asked.i32("getParameter", 1).i32(name, 1);
        let said = connection
            .try_command("admin", asked.finish().as_doc())
            .ok()?;
        Some((name.to_string(), said.get(name)?.to_string()))
    };
    names.into_iter().filter_map(&mut told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_told_without_places() {
        let parsed = doc! {
            "net": doc! {"port": 27017},
            "storage": doc! {"dbPath": "/data", "engine": "wiredTiger", "journal": doc! {"commitIntervalMs": 5}},
            "replication": doc! {"replSet": "rs0"},
        };
        let mut told = BTreeMap::new();
        flatten("", parsed.as_doc(), &mut told);
        let told: Vec<String> = told.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let wanted = [
            "replication.replSet=rs0",
            "storage.engine=wiredTiger",
            "storage.journal.commitIntervalMs=5",
        ];
        assert_eq!(told, wanted);
    }

    #[test]
    fn the_disk_that_a_server_takes() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("log")).unwrap();
        std::fs::write(path("log/1"), vec![1; 100_000]).unwrap();
        std::fs::write(path("data"), vec![1; 50_000]).unwrap();
        let shown = Some(dir.path().display().to_string());
        let mut info = TargetInfo::default();
        info.keeps_data_in(shown.clone(), false);
        info.keeps_data_in(Some("/nowhere".into()), true);
        assert!(info.disk_bytes().is_none());
        info.keeps_data_in(shown, true);
        assert!((150_000..300_000).contains(&info.disk_bytes().unwrap()));
    }
}
