//! The configuration of a replica set, as MongoDB's clients and operators write and read it.
//!
//! Pure: [`parse`](Config::parse) reads the document, [`check`] says whether it may start a set or
//! follow another, [`write_concern`] says when a write has reached the members that were asked for. Its
//! fields are MongoDB's, with MongoDB's errors; COMPAT.md names what is refused beyond that.
//!
//! Invariant: a `Config` that was parsed and written out again reads as the same `Config`.

mod check;
mod host;
mod parse;
mod write_concern;

pub use host::Host;
pub use write_concern::{Reached, UnsatisfiableConcern, Wanted};

use bson::{DocBuf, ObjectId, Writer};

/// The most members of a set, and the most of them that vote.
pub const MAX_MEMBERS: usize = 50;
pub const MAX_VOTING_MEMBERS: usize = 7;

/// The term of a configuration that no primary has made yet (`replSetInitiate`).
pub const INITIAL_TERM: i64 = 0;
/// The term of a configuration that was forced: none.
pub const NO_TERM: i64 = -1;

/// A replica set's configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The set's name (`_id`).
    pub name: String,
    pub version: i64,
    /// The term of the primary that made it; [`NO_TERM`] where it was forced.
    pub term: i64,
    pub members: Vec<MemberConfig>,
    /// The set keeps the metadata of a cluster.
    pub config_server: bool,
    /// A majority write without `j` waits for the disks of the majority.
    pub majority_journal_default: bool,
    pub settings: SetSettings,
}

/// One member of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberConfig {
    pub id: i32,
    pub host: Host,
    /// Votes and holds no data.
    pub arbiter_only: bool,
    pub build_indexes: bool,
    /// Clients are not told of it.
    pub hidden: bool,
    /// 0: never primary. Among those that may be, the highest is preferred.
    pub priority: f64,
    /// Names and values, in the order given.
    pub tags: Vec<(String, String)>,
    /// How far behind the primary it is to stay, in seconds.
    pub delay_secs: i64,
    pub votes: bool,
}

/// Settings of the whole set; times as they are named.
#[derive(Clone, Debug, PartialEq)]
pub struct SetSettings {
    pub chaining_allowed: bool,
    pub heartbeat_interval_ms: i64,
    pub heartbeat_timeout_secs: i64,
    pub election_timeout_ms: i64,
    /// -1: as long as it takes.
    pub catch_up_timeout_ms: i64,
    /// -1: never.
    pub catch_up_takeover_delay_ms: i64,
    /// Write concerns by name (`getLastErrorModes`): of each tag, how many different values.
    pub modes: Vec<WriteConcernMode>,
    pub replica_set_id: Option<ObjectId>,
}

/// A write concern by name: a write must be on members that have, of each tag named, so many
/// different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteConcernMode {
    pub name: String,
    pub tags: Vec<(String, i32)>,
}

impl Default for SetSettings {
    fn default() -> SetSettings {
        SetSettings {
            chaining_allowed: true,
            heartbeat_interval_ms: 2000,
            heartbeat_timeout_secs: 10,
            election_timeout_ms: 10_000,
            catch_up_timeout_ms: -1,
            catch_up_takeover_delay_ms: 30_000,
            modes: Vec::new(),
            replica_set_id: None,
        }
    }
}

impl MemberConfig {
    /// A member as one is added that says nothing but its number and its host.
    pub fn new(id: i32, host: Host) -> MemberConfig {
        MemberConfig {
            id,
            host,
            arbiter_only: false,
            build_indexes: true,
            hidden: false,
            priority: 1.0,
            tags: Vec::new(),
            delay_secs: 0,
            votes: true,
        }
    }

    /// It may become primary.
    pub fn is_electable(&self) -> bool {
        !self.arbiter_only && self.priority > 0.0
    }

    pub fn holds_data(&self) -> bool {
        !self.arbiter_only
    }

    /// What `hello` lists among `hosts`, where it is not hidden; others are `passives` or
    /// `arbiters`.
    pub fn is_host(&self) -> bool {
        !self.hidden && self.is_electable()
    }

    pub fn is_passive(&self) -> bool {
        !self.hidden && self.holds_data() && !self.is_electable()
    }
}

impl Config {
    /// The configuration of a set whose one member is at `host`, as `replSetInitiate` without a
    /// document makes it.
    pub fn of_one(name: &str, host: Host, replica_set_id: ObjectId) -> Config {
        Config {
            name: name.to_string(),
            version: 1,
            term: INITIAL_TERM,
            members: vec![MemberConfig::new(0, host)],
            config_server: false,
            majority_journal_default: true,
            settings: SetSettings {
                replica_set_id: Some(replica_set_id),
                ..SetSettings::default()
            },
        }
    }

    pub fn member(&self, id: i32) -> Option<&MemberConfig> {
        self.members.iter().find(|m| m.id == id)
    }

    pub fn member_at(&self, host: &Host) -> Option<&MemberConfig> {
        self.members.iter().find(|m| m.host == *host)
    }

    pub fn voters(&self) -> impl Iterator<Item = &MemberConfig> {
        self.members.iter().filter(|m| m.votes)
    }

    /// How many votes elect a primary.
    pub fn majority_vote_count(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    pub fn writable_voters(&self) -> usize {
        self.voters().filter(|m| m.holds_data()).count()
    }

    /// How many voting members with data have a write that is majority-committed.
    pub fn write_majority_count(&self) -> usize {
        self.majority_vote_count().min(self.writable_voters())
    }

    /// `{version: 1, term: 0}`, as messages name a configuration.
    pub fn version_and_term(&self) -> String {
        match self.term {
            NO_TERM => format!("{{version: {}}}", self.version),
            term => format!("{{version: {}, term: {term}}}", self.version),
        }
    }

    /// The document, as `replSetGetConfig` gives it and `local.system.replset` keeps it.
    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("_id", &self.name).int("version", self.version);
        if self.term != NO_TERM {
            w.i64("term", self.term);
        }
        w.open_array("members");
        for member in &self.members {
            w.open_doc("");
            member.append(&mut w);
            w.close();
        }
        w.close();
        if self.config_server {
            w.bool("configsvr", true);
        }
        w.i64("protocolVersion", 1).bool(
            "writeConcernMajorityJournalDefault",
            self.majority_journal_default,
        );
        w.open_doc("settings");
        self.settings.append(&mut w);
        w.close();
        w.finish()
    }
}

impl MemberConfig {
    fn append(&self, w: &mut Writer) {
        w.i32("_id", self.id)
            .str("host", &self.host.to_string())
            .bool("arbiterOnly", self.arbiter_only)
            .bool("buildIndexes", self.build_indexes)
            .bool("hidden", self.hidden);
        match self.priority.fract() == 0.0 {
            // Shells and tools compare it with whole numbers.
            true => w.i32("priority", self.priority as i32),
            false => w.f64("priority", self.priority),
        };
        self.append_tags("tags", w);
        w.i64("secondaryDelaySecs", self.delay_secs)
            .i32("votes", i32::from(self.votes));
    }

    /// Appends its tags as a document.
    pub fn append_tags(&self, name: &str, w: &mut Writer) {
        w.open_doc(name);
        for (tag, value) in &self.tags {
            w.str(tag, value);
        }
        w.close();
    }
}

impl SetSettings {
    fn append(&self, w: &mut Writer) {
        w.bool("chainingAllowed", self.chaining_allowed)
            .int("heartbeatIntervalMillis", self.heartbeat_interval_ms)
            .int("heartbeatTimeoutSecs", self.heartbeat_timeout_secs)
            .int("electionTimeoutMillis", self.election_timeout_ms)
            .int("catchUpTimeoutMillis", self.catch_up_timeout_ms)
            .int(
                "catchUpTakeoverDelayMillis",
                self.catch_up_takeover_delay_ms,
            );
        w.open_doc("getLastErrorModes");
        for mode in &self.modes {
            w.open_doc(&mode.name);
            for (tag, count) in &mode.tags {
                w.i32(tag, *count);
            }
            w.close();
        }
        w.close();
        w.open_doc("getLastErrorDefaults")
            .i32("w", 1)
            .i32("wtimeout", 0)
            .close();
        if let Some(id) = self.replica_set_id {
            w.oid("replicaSetId", id);
        }
    }
}

#[cfg(test)]
mod tests;
