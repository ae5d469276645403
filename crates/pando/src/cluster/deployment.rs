//! The record of what `pando cluster up` has started: sets, their members, ports, processes.
//!
//! Invariant: a record that cannot be read whole is not taken.

use super::ClusterArguments;
use super::processes::{Process, end, serving, start_of};
use crate::client::ServerAddress;
use crate::peers::{self, client_uri, tls_of_client};
use bson::{Doc, DocBuf};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::TcpListener;
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

/// How far a member is in the deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    There,
    /// Of a shard that `add-shard` has begun to add.
    NewShard,
    /// `add-member` has begun to add it to its set.
    NewMember,
}

impl Stage {
    const ALL: [(&'static str, Stage); 3] = [
        ("there", Stage::There),
        ("newShard", Stage::NewShard),
        ("newMember", Stage::NewMember),
    ];

    fn named(name: &str) -> Option<Stage> {
        Stage::ALL.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)
    }

    fn name(self) -> &'static str {
        let known = Stage::ALL.iter().find(|(_, s)| *s == self);
        known.map_or("there", |(n, _)| n)
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
    pub(super) stage: Stage,
    /// `remove-shard` empties its shard.
    pub(super) leaves: bool,
    /// A command has begun to end it: what still runs of it does not stay.
    pub(super) ending: bool,
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
            stage: Stage::There,
            leaves: false,
            ending: false,
        }
    }

    pub(super) fn is_process(&mut self, (pid, started): Process) {
        (self.pid, self.started) = (pid, started);
    }

    pub(super) fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    pub(super) fn runs(&self) -> bool {
        self.pid != 0 && start_of(self.pid) == Some(self.started)
    }

    /// The reply to a command: as a member of the cluster, where there is a key.
    pub(super) fn ask(
        &self,
        access: &Access,
        db: &str,
        command: Doc<'_>,
    ) -> Result<DocBuf, String> {
        access.address(&self.host())?.ask(db, command)
    }

    /// The same of one that may be stopped.
    pub(super) fn ask_within(
        &self,
        limit: Duration,
        access: &Access,
        command: Doc<'_>,
    ) -> Result<DocBuf, String> {
        let address = access.address(&self.host())?;
        address.ask_within(limit, "admin", command)
    }
}

/// How servers are asked: the key that they share, if there is one, and what a connection string has to
/// say of encryption.
pub(super) struct Access {
    key: Option<String>,
    tls: Vec<String>,
}

impl Access {
    /// Without a login.
    pub(super) fn without_login(&self) -> Access {
        Access {
            key: None,
            tls: self.tls.clone(),
        }
    }

    fn address(&self, host: &str) -> Result<ServerAddress, String> {
        let mut address = match &self.key {
            Some(key) => peers::by_key(key, host),
            None => format!("mongodb://{host}/?"),
        };
        for option in &self.tls {
            address.push('&');
            address.push_str(option);
        }
        ServerAddress::parse(&address)
    }
}

/// The record of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Deployment {
    pub(super) members: Vec<MemberProcess>,
    pub(super) server: Vec<String>,
    /// What the first `up` was asked for: members of a set, and shards. It may be asked for again.
    pub(super) arguments: (Option<u16>, Option<u16>),
    /// How many shards were ever made: a name is given once.
    pub(super) shards_made: u16,
    /// The archive that it was made of.
    pub(super) from: Option<String>,
    /// Of a backup, whose sets are not in their places yet: the name of each in it, and its first member.
    pub(super) unsettled: Vec<(String, String)>,
}

impl Deployment {
    /// The record, and running processes that it lacks: the command that started them was killed right
    /// after.
    pub(super) fn load(dir: &Path) -> Result<Option<Deployment>, String> {
        let mut deployment = Deployment::read(dir)?;
        if let Some(deployment) = &mut deployment {
            let mut found = serving(dir);
            for member in deployment.members.iter_mut().filter(|m| !m.runs()) {
                if let Some(process) = found.remove(&member.name) {
                    member.is_process(process);
                }
            }
        }
        Ok(deployment)
    }

    fn read(dir: &Path) -> Result<Option<Deployment>, String> {
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
                stage: match m.get("stage") {
                    None => Stage::There,
                    Some(stage) => Stage::named(stage.as_str()?)?,
                },
                leaves: m.get("leaves").and_then(Value::as_bool) == Some(true),
                ending: m.get("ending").and_then(Value::as_bool) == Some(true),
            })
        });
        let server = record.get("serverOptions")?.as_array()?.iter();
        let small = |field: &str| u16::try_from(record.get(field)?.as_u64()?).ok();
        let mut deployment = Deployment {
            members: members.collect::<Option<_>>()?,
            server: server
                .map(|v| Some(v.as_str()?.into()))
                .collect::<Option<_>>()?,
            arguments: (small("askedReplicas"), small("askedShards")),
            shards_made: 0,
            from: record.get("from").and_then(Value::as_str).map(String::from),
            unsettled: match record.get("unsettled") {
                None => Vec::new(),
                Some(pairs) => serde_json::from_value(pairs.clone()).ok()?,
            },
        };
        let numbers = deployment.members.iter().filter_map(shard_number);
        let behind = numbers.max().map_or(0, |n| n.saturating_add(1));
        deployment.shards_made = small("shardsMade").unwrap_or(0).max(behind);
        Some(deployment)
    }

    pub(super) fn to_json(&self) -> Value {
        let sets: Vec<Value> = self
            .sets()
            .iter()
            .map(|members| {
                let first = members[0];
                let each = members.iter().map(|m| {
                    json!({
                        "name": m.name, "port": m.port, "pid": m.pid, "started": m.started,
                        "stage": m.stage.name(), "leaves": m.leaves, "ending": m.ending,
                    })
                });
                let each: Vec<Value> = each.collect();
                json!({ "name": first.set, "role": first.role.name(), "members": each })
            })
            .collect();
        let (replicas, shards) = self.arguments;
        json!({
            "sets": sets,
            "serverOptions": self.server,
            "askedReplicas": replicas,
            "askedShards": shards,
            "shardsMade": self.shards_made,
            "from": self.from,
            "unsettled": self.unsettled,
        })
    }

    /// What the servers prove to each other that they are members by, if they do.
    fn key(&self) -> Result<Option<String>, String> {
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

    pub(super) fn access(&self) -> Result<Access, String> {
        let mut tls = self.tls();
        if !tls.is_empty() {
            // Servers may ask their clients for a certificate too: theirs is one.
            for (option, word) in [
                ("tlsCertificateKeyFile", "--tlsCertificateKeyFile"),
                (
                    "tlsCertificateKeyFilePassword",
                    "--tlsCertificateKeyFilePassword",
                ),
            ] {
                let given = self.option(word).map(peers::escape);
                tls.extend(given.map(|value| format!("{option}={value}")));
            }
        }
        Ok(Access {
            key: self.key()?,
            tls,
        })
    }

    /// What the servers were given for an option.
    fn option(&self, name: &str) -> Option<&str> {
        let at = self.server.iter().position(|w| w == name);
        let given = at
            .and_then(|at| self.server.get(at + 1))
            .map(String::as_str);
        let prefix = format!("{name}=");
        given.or_else(|| self.server.iter().find_map(|w| w.strip_prefix(&*prefix)))
    }

    /// Whether no server has made anything yet.
    pub(super) fn is_untouched(&self, dir: &Path) -> bool {
        let mut members = self.members.iter();
        self.unsettled.is_empty() && !members.any(|m| m.runs() || dir.join(&m.name).exists())
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

    /// Ends the members that are of a kind, and says how many ran. It is recorded first: a server takes
    /// its time to end, and another command meanwhile does not take it for one that serves.
    pub(super) fn end(
        &mut self,
        dir: &Path,
        which: impl Fn(&MemberProcess) -> bool,
    ) -> Result<usize, String> {
        for member in &mut self.members {
            member.ending |= member.runs() && which(member);
        }
        self.save(dir)?;
        let ending: Vec<&MemberProcess> = self.members.iter().filter(|m| m.ending).collect();
        let ended = end(&ending)?;
        for member in &mut self.members {
            member.ending = false;
        }
        self.save(dir)?;
        Ok(ended)
    }

    /// The shards that the router is to know, as it is told them.
    pub(super) fn shards_that_stay(&self) -> Vec<String> {
        let sets = self.sets();
        let stay = sets
            .iter()
            .filter(|s| s[0].role == Role::Shard && !s[0].leaves);
        stay.map(|s| format!("{}/{}", s[0].set, hosts(s.iter().copied())))
            .collect()
    }

    /// The first free port behind those of the deployment.
    pub(super) fn next_port(&self) -> Result<u16, String> {
        let last = self.members.iter().map(|m| m.port).max();
        let mut ports = last.map_or(27017, |last| last.saturating_add(1))..=u16::MAX;
        // Others may have taken those that follow.
        ports
            .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
            .ok_or("no port above those of the others is free".into())
    }

    /// How far a server's port is behind the first one.
    pub(super) fn behind_first(&self, port: u16) -> u16 {
        let first = self.members.iter().map(|m| m.port).min();
        port.saturating_sub(first.unwrap_or(port))
    }

    /// The connection string for clients, with a database or none.
    pub(super) fn uri(&self, database: &str) -> String {
        let mut options = self.tls();
        let hosts = match self.router() {
            Some(router) => router.host(),
            None => {
                let set = self.members.first().map_or(SET, |m| &m.set);
                options.insert(0, format!("replicaSet={set}"));
                hosts(self.members.iter())
            }
        };
        client_uri(&hosts, database, &options)
    }

    /// What a connection string has to say of encryption.
    fn tls(&self) -> Vec<String> {
        match self.option("--tlsMode") {
            Some("requireTLS") => tls_of_client(self.option("--tlsCAFile").map(Path::new)),
            _ => Vec::new(),
        }
    }

    /// Members of a set, or sets of such a cluster: what `up` is asked for is there, or was when it was
    /// made.
    pub(super) fn is_as_asked(&self, arguments: &ClusterArguments) -> bool {
        if (arguments.replicas, arguments.shards) == self.arguments {
            return true;
        }
        let sets = self.sets();
        let shards = sets.iter().filter(|s| s[0].role == Role::Shard).count();
        let replicas = sets
            .iter()
            .find(|s| s[0].role != Role::Router)
            .map_or(0, Vec::len);
        let same = |arguments: Option<u16>, there: usize| {
            arguments.is_none_or(|n| usize::from(n) == there)
        };
        same(arguments.replicas, replicas) && same(arguments.shards, shards)
    }
}

/// The number of a shard, by its name.
fn shard_number(member: &MemberProcess) -> Option<u16> {
    let shard = member.role == Role::Shard;
    shard.then_some(())?;
    member.set.strip_prefix('s')?.parse().ok()
}

pub(super) fn hosts<'m>(members: impl Iterator<Item = &'m MemberProcess>) -> String {
    members
        .map(MemberProcess::host)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_another_process_of_the_number_is_not_ours() {
        let pid = std::process::id();
        let own = MemberProcess {
            pid,
            started: start_of(pid).unwrap(),
            stage: Stage::NewMember,
            ..MemberProcess::planned(SET, Role::Plain, 0, 1)
        };
        assert!(own.runs());
        let other = MemberProcess {
            started: own.started + 1,
            ..own.clone()
        };
        assert!(!other.runs());
        let deployment = Deployment {
            members: vec![own, other],
            server: vec!["--quiet".into()],
            arguments: (Some(3), None),
            shards_made: 7,
            from: Some("/backups".into()),
            unsettled: vec![("s0".into(), "s0-0".into())],
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Deployment::load(dir.path()), Ok(None));
        deployment.save(dir.path()).unwrap();
        assert_eq!(Deployment::load(dir.path()), Ok(Some(deployment)));
    }

    #[test]
    fn a_record_of_an_earlier_release_is_read() {
        let member = json!({"name": "s2-0", "port": 5, "pid": 0, "started": 0});
        let set = json!({"name": "s2", "role": "shard", "members": [member]});
        let record = json!({"sets": [set], "serverOptions": []});
        let read = Deployment::from_json(&record).unwrap();
        assert_eq!((read.shards_made, read.arguments), (3, (None, None)));
        assert_eq!(read.members[0].stage, Stage::There);
    }

    #[test]
    fn a_figures_port_is_as_far_behind_as_the_servers() {
        let at = |port| MemberProcess::planned("s0", Role::Shard, 0, port);
        let deployment = Deployment {
            members: vec![at(27018), at(27017), at(27030)],
            ..Deployment::default()
        };
        assert_eq!(deployment.behind_first(27030), 13);
        assert_eq!(deployment.behind_first(27017), 0);
    }
}
