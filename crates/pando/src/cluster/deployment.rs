//! The record of what `pando cluster up` has started: sets, their members, ports, processes.
//!
//! Invariant: a record that cannot be read whole is not taken.

use super::Asked;
use crate::client::ServerAddress;
use crate::peers::{self, client_uri, tls_of_client};
use bson::{Doc, DocBuf};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

const RECORD: &str = "cluster.json";
/// The name of a set that is alone.
pub(super) const SET: &str = "rs0";

/// What the members of a set, or the router, are started as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Plain,
    Config,
    Shard,
    Router,
}

impl Role {
    const ALL: [(&'static str, Role); 4] = [
        ("plain", Role::Plain),
        ("config", Role::Config),
        ("shard", Role::Shard),
        ("router", Role::Router),
    ];

    pub(super) fn named(name: &str) -> Option<Role> {
        Role::ALL.iter().find(|(n, _)| *n == name).map(|(_, r)| *r)
    }

    pub(super) fn name(self) -> &'static str {
        let known = Role::ALL.iter().find(|(_, r)| *r == self);
        known.map_or("plain", |(n, _)| n)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberProcess {
    pub(super) name: String,
    pub(super) set: String,
    pub(super) role: Role,
    pub(super) port: u16,
    pub(super) pid: u32,
    /// The moment of its start, as the kernel counts it.
    pub(super) started: u64,
}

impl MemberProcess {
    /// One that does not run yet.
    pub(super) fn planned(set: &str, role: Role, number: usize, port: u16) -> MemberProcess {
        MemberProcess {
            name: format!("{set}-{number}"),
            set: set.into(),
            role,
            port,
            pid: 0,
            started: 0,
        }
    }

    pub(super) fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    pub(super) fn runs(&self) -> bool {
        self.pid != 0 && start_of(self.pid) == Some(self.started)
    }

    /// The process that has the member's directory open, though the record does not know it.
    pub(super) fn left_running(&self, dir: &Path) -> Option<MemberProcess> {
        let own = dir.join(&self.name);
        let lock = fs::read_to_string(own.join("pando.lock")).ok()?;
        let pid = lock.trim().parse().ok()?;
        let started = start_of(pid)?;
        // The number in the file may be of a process that came later.
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let own = own.as_os_str().as_bytes();
        words.split(|b| *b == 0).find(|word| *word == own)?;
        Some(MemberProcess {
            pid,
            started,
            ..self.clone()
        })
    }

    /// The reply to a command: as a member of the cluster, where there is a key.
    pub(super) fn ask(
        &self,
        key: Option<&str>,
        db: &str,
        command: Doc<'_>,
    ) -> Result<DocBuf, String> {
        self.address(key)?.ask(db, command)
    }

    /// The same of one that may be stopped.
    pub(super) fn ask_within(
        &self,
        limit: Duration,
        key: Option<&str>,
        command: Doc<'_>,
    ) -> Result<DocBuf, String> {
        self.address(key)?.ask_within(limit, "admin", command)
    }

    fn address(&self, key: Option<&str>) -> Result<ServerAddress, String> {
        let address = match key {
            Some(key) => peers::by_key(key, &self.host()),
            None => format!("mongodb://{}/", self.host()),
        };
        ServerAddress::parse(&address)
    }
}

/// A replica set as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deployment {
    pub(super) members: Vec<MemberProcess>,
    pub(super) server: Vec<String>,
}

impl Deployment {
    pub(super) fn load(dir: &Path) -> Result<Option<Deployment>, String> {
        let path = dir.join(RECORD);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
        };
        let record = serde_json::from_str(&text).ok();
        let loaded = record.and_then(|v| Deployment::from_json(&v));
        loaded
            .map(Some)
            .ok_or_else(|| format!("{} is damaged", path.display()))
    }

    pub(super) fn from_json(record: &Value) -> Option<Deployment> {
        let sets = record.get("sets")?.as_array()?;
        let each = sets.iter().flat_map(|set| {
            let members = set.get("members").and_then(Value::as_array);
            members.into_iter().flatten().map(move |m| (set, m))
        });
        let members = each.map(|(set, m)| {
            let number = |field: &str| m.get(field)?.as_u64();
            Some(MemberProcess {
                name: m.get("name")?.as_str()?.into(),
                set: set.get("name")?.as_str()?.into(),
                role: match set.get("role") {
                    None => Role::Plain,
                    Some(role) => Role::named(role.as_str()?)?,
                },
                port: u16::try_from(number("port")?).ok()?,
                pid: u32::try_from(number("pid")?).ok()?,
                started: number("started")?,
            })
        });
        let server = record.get("serverOptions")?.as_array()?.iter();
        Some(Deployment {
            members: members.collect::<Option<_>>()?,
            server: server
                .map(|v| Some(v.as_str()?.into()))
                .collect::<Option<_>>()?,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        let sets: Vec<Value> = self
            .sets()
            .iter()
            .map(|members| {
                let first = members[0];
                let each = members.iter().map(|m| {
                    json!({ "name": m.name, "port": m.port, "pid": m.pid, "started": m.started })
                });
                let each: Vec<Value> = each.collect();
                json!({ "name": first.set, "role": first.role.name(), "members": each })
            })
            .collect();
        json!({ "sets": sets, "serverOptions": self.server })
    }

    /// What the servers prove to each other that they are members by, if they do.
    pub(super) fn key(&self) -> Result<Option<String>, String> {
        let mut words = self.server.iter();
        while let Some(word) = words.next() {
            let file = match word.strip_prefix("--keyFile") {
                Some("") => words.next().map(String::as_str),
                Some(given) => given.strip_prefix('='),
                None => continue,
            };
            let Some(file) = file else { continue };
            let text = fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"))?;
            let keys = auth::key_file::parse(&text).map_err(|why| format!("{file}: {why}"))?;
            return Ok(keys.into_iter().next());
        }
        Ok(None)
    }

    /// The members of each set, in the order of their ports.
    pub(super) fn sets(&self) -> Vec<Vec<&MemberProcess>> {
        let mut sets: Vec<Vec<&MemberProcess>> = Vec::new();
        for member in &self.members {
            match sets.iter_mut().find(|s| s[0].set == member.set) {
                Some(set) => set.push(member),
                None => sets.push(vec![member]),
            }
        }
        sets
    }

    pub(super) fn router(&self) -> Option<&MemberProcess> {
        self.members.iter().find(|m| m.role == Role::Router)
    }

    /// `set/host:port,…` of the members of that role.
    pub(super) fn addresses(&self, role: Role) -> Vec<String> {
        let sets = self.sets();
        let of = sets.iter().filter(|s| s[0].role == role);
        of.map(|s| format!("{}/{}", s[0].set, hosts(s.iter().copied())))
            .collect()
    }

    pub(super) fn save(&self, dir: &Path) -> Result<(), String> {
        let (path, draft) = (dir.join(RECORD), dir.join("cluster.json.new"));
        let text = format!("{:#}\n", self.to_json());
        // A loss of power leaves the record of before or this one.
        fs::write(&draft, text)
            .and_then(|()| File::open(&draft)?.sync_all())
            .and_then(|()| fs::rename(&draft, &path))
            .and_then(|()| File::open(dir)?.sync_all())
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    /// The connection string for clients, with a database or none.
    pub(super) fn uri(&self, database: &str) -> String {
        let mut options = self.tls();
        let hosts = match self.router() {
            Some(router) => router.host(),
            None => {
                options.insert(0, format!("replicaSet={SET}"));
                hosts(self.members.iter())
            }
        };
        client_uri(&hosts, database, &options)
    }

    /// What a connection string has to say of encryption.
    fn tls(&self) -> Vec<String> {
        let option = |name: &str| {
            let at = self.server.iter().position(|w| w == name);
            let given = at
                .and_then(|at| self.server.get(at + 1))
                .map(String::as_str);
            let prefix = format!("{name}=");
            given.or_else(|| self.server.iter().find_map(|w| w.strip_prefix(&*prefix)))
        };
        match option("--tlsMode") {
            Some("requireTLS") => tls_of_client(option("--tlsCAFile").map(Path::new)),
            _ => Vec::new(),
        }
    }

    /// Members of a set, or sets of such a cluster: what `up` was asked for.
    pub(super) fn is_as_asked(&self, asked: &Asked) -> bool {
        let sets = self.sets();
        let shards = sets.iter().filter(|s| s[0].role == Role::Shard).count();
        let replicas = sets
            .iter()
            .find(|s| s[0].role != Role::Router)
            .map_or(0, Vec::len);
        let same = |asked: Option<u16>, there: usize| asked.is_none_or(|n| usize::from(n) == there);
        same(asked.replicas, replicas) && same(asked.shards, shards)
    }
}

pub(super) fn hosts<'m>(members: impl Iterator<Item = &'m MemberProcess>) -> String {
    members
        .map(MemberProcess::host)
        .collect::<Vec<_>>()
        .join(",")
}

/// When a process began, in ticks since the machine did; `None` where there is no such process.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, spaces too.
    let after = stat.rsplit_once(')')?.1;
    let mut fields = after.split_ascii_whitespace();
    // A process that has ended and was not waited for is none.
    let state = fields.next()?;
    (state != "Z").then_some(())?;
    fields.nth(18)?.parse().ok()
}
