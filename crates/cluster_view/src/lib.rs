//! What a process knows of the cluster that it belongs to, and how it speaks with it: connections,
//! primaries, metadata, versions, locks on metadata.
//!
//! - [`upstream`], [`replica_set`], [`read_preference`]: connections, which member is primary, which
//!   member answers; [`reply`]: what replies say;
//! - [`metadata`]: what the configuration set says, as far as it was needed; [`chunks`]: locks and
//!   changes of it; [`collections`]: collections as shards have them;
//! - [`routing`], [`refresh`]: versions, and the refresh when this process or a shard knows too little;
//! - [`operation_time`]: until when an operation may take;
//! - [`write_concern`]: what shards say of a write concern, as one;
//! - [`split_points`]: where chunks are cut.
//!
//! Invariant: what is forgotten here can be had again from the configuration set.

pub mod chunks;
pub mod collections;
pub mod metadata;
pub mod operation_time;
pub mod read_preference;
pub mod refresh;
pub mod replica_set;
pub mod reply;
pub mod routing;
pub mod split_points;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod upstream;
pub mod write_concern;

pub use metadata::Cluster;
pub use replica_set::{ConnectionStrings, ReplicaSet};

use errors::{Code, Error, Stop};

/// Why something was not done by a server behind the router.
#[derive(Debug)]
pub enum Failure {
    /// What the client is told.
    Client(Error),
    /// Nothing was sent.
    Unreachable(String),
    /// It is unknown whether the command ran.
    Lost(String),
    /// A shard did nothing, because one of the two knows too little.
    Stale(Box<Stale>),
    /// There is nothing to say yet: the request is to be run again then.
    NotYet(std::time::Instant),
}

/// What a shard says that refuses a version.
#[derive(Clone, Debug)]
pub struct Stale {
    pub shard: String,
    /// Of which collection, or database, it speaks.
    pub name: String,
    /// It is to be asked again in a moment.
    pub fenced: bool,
    /// It was the version of the database.
    pub of_database: bool,
    /// The life of the collection that the shard knows.
    pub life: Option<u64>,
}

pub type Outcome<T> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Client(e)
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Failure {
        Failure::Client(stop.into_error())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Client(e) => e.fmt(f),
            Failure::Unreachable(why) | Failure::Lost(why) => f.write_str(why),
            Failure::Stale(stale) => write!(f, "{} and the router differ", stale.shard),
            Failure::NotYet(_) => f.write_str("there is nothing yet"),
        }
    }
}

impl Failure {
    /// The error that a client gets.
    pub fn into_error(self) -> Error {
        match self {
            Failure::Client(e) => e,
            Failure::Unreachable(why) | Failure::Lost(why) => {
                Error::new(Code::HostUnreachable, why).with_label("RetryableWriteError")
            }
            Failure::NotYet(_) => Error::internal("what waits for news was not run again"),
            Failure::Stale(stale) => Error::new(
                match stale.of_database {
                    true => Code::StaleDbVersion,
                    false => Code::StaleConfig,
                },
                format!(
                    "the router and the shard {} do not come to agree",
                    stale.shard
                ),
            ),
        }
    }
}
