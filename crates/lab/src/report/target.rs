//! A target as results name it.

use crate::connection::{Address, Connection};
use crate::process::disk_bytes;
use bson::doc;
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
    pub fn of(target: &Address, connection: &mut Connection) -> TargetInfo {
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
        info.keeps_data_in(data_folder(connection), local);
        info
    }
}

/// What the server was told of its place.
fn data_folder(connection: &mut Connection) -> Option<String> {
    let said = connection.try_command("admin", doc! {"getCmdLineOpts": 1}.as_doc());
    let said = said.ok()?;
    let storage = said.get("parsed")?.as_doc()?.get("storage")?.as_doc()?;
    Some(storage.get("dbPath")?.as_str()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

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
