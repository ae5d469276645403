//! A replica set behind the router: its members, and who its primary is.
//!
//! Invariant: what is sent to the primary is sent to who last said that he is. A command that a
//! server refused because it is none has changed nothing, so it is sent again.

use crate::upstream::{Upstream, error_of};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val};
use errors::Code;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a primary is looked for.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

/// How the router proves who it is: the connection string of a host.
pub type Access = Arc<dyn Fn(&str) -> String + Send + Sync>;

pub struct ReplicaSet {
    /// `set/host:port,…`, as it was given.
    pub address: String,
    access: Access,
    members: RwLock<Members>,
}

#[derive(Default)]
struct Members {
    all: Vec<Arc<Upstream>>,
    primary: Option<Arc<Upstream>>,
}

impl ReplicaSet {
    pub fn new(address: &str, access: Access) -> ReplicaSet {
        let hosts = address.split_once('/').map_or(address, |(_, hosts)| hosts);
        let all = hosts
            .split(',')
            .filter(|host| !host.is_empty())
            .map(|host| Arc::new(Upstream::new(host, access(host))))
            .collect();
        ReplicaSet {
            address: address.into(),
            access,
            members: RwLock::new(Members { all, primary: None }),
        }
    }

    /// The set's name, where the address gives one.
    pub fn name(&self) -> Option<&str> {
        self.address.split_once('/').map(|(name, _)| name)
    }

    pub(crate) fn primary(&self) -> Outcome<Arc<Upstream>> {
        if let Some(primary) = &self.members.read().primary {
            return Ok(primary.clone());
        }
        let began = Instant::now();
        loop {
            let why = match self.look() {
                Ok(primary) => return Ok(primary),
                Err(why) => why,
            };
            if began.elapsed() > PATIENCE {
                return Err(why);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Asks the members who is primary.
    fn look(&self) -> Outcome<Arc<Upstream>> {
        let all = self.members.read().all.clone();
        let mut why = Failure::Unreachable(format!("{} has no primary", self.address));
        for member in all {
            let hello = match member.hello() {
                Ok(hello) => hello,
                Err(e) => {
                    why = e;
                    continue;
                }
            };
            self.meet(&hello);
            if hello.get("isWritablePrimary").is_some_and(Val::truthy) {
                self.members.write().primary = Some(member.clone());
                return Ok(member);
            }
        }
        Err(why)
    }

    /// Members that a member tells of.
    fn meet(&self, hello: &DocBuf) {
        let hosts = hello.get("hosts").and_then(Val::as_array);
        let mut members = self.members.write();
        for host in hosts
            .iter()
            .flat_map(|h| h.values())
            .filter_map(Val::as_str)
        {
            if !members.all.iter().any(|m| m.host == host) {
                let member = Upstream::new(host, (self.access)(host));
                members.all.push(Arc::new(member));
            }
        }
    }

    /// The primary is another one, or gone.
    pub fn lost_primary(&self) {
        if let Some(old) = self.members.write().primary.take() {
            old.forget();
        }
    }

    /// Sends a message to the primary and gives its reply, an error reply too.
    pub(crate) fn call(&self, message: &[u8]) -> Outcome<DocBuf> {
        let began = Instant::now();
        loop {
            let reply = self.primary()?.call(message);
            match self.judge(reply) {
                Some(outcome) => return outcome,
                None if began.elapsed() > PATIENCE => {
                    return Err(Failure::Unreachable(format!(
                        "{} has no primary",
                        self.address
                    )));
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// `None`: it is to be sent again, because it came to no primary.
    pub(crate) fn judge(&self, reply: Outcome<DocBuf>) -> Option<Outcome<DocBuf>> {
        match reply {
            Ok(reply) if is_not_primary(reply.as_doc()) => {
                self.lost_primary();
                None
            }
            Ok(reply) => Some(Ok(reply)),
            Err(Failure::Unreachable(_)) => {
                // Nothing was sent.
                self.lost_primary();
                None
            }
            Err(lost) => {
                self.lost_primary();
                Some(Err(lost))
            }
        }
    }
}

fn is_not_primary(reply: Doc<'_>) -> bool {
    if reply.get("ok").is_some_and(Val::truthy) {
        return false;
    }
    error_of(reply).is_some_and(|e| {
        matches!(
            e.code,
            Code::NotWritablePrimary | Code::NotPrimaryNoSecondaryOk | Code::NotPrimaryOrSecondary
        )
    })
}
