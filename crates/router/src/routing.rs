//! Versions on the way to a shard, and what is done when one of the two knows too little.
//!
//! Invariant: a shard that refuses a version has changed nothing, so the same is sent again when
//! both agree. Nobody waits for ever.

use crate::metadata::{Cluster, Placement};
use crate::replica_set::{Asked, Member, ReplicaSet};
use crate::upstream::{Line, error_of, message, with_fields};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::{Code, err};
use sharding::{Ownership, Version};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a router and a shard may differ, or a fence may stand.
const PATIENCE: Duration = Duration::from_secs(30);
const FENCE_PAUSE: Duration = Duration::from_millis(4);
/// A fence that stands so long was left by a mover that is gone.
const FENCE_LEFT: Duration = Duration::from_secs(5);

/// The version that a shard is told.
pub(crate) fn version_for(placement: &Placement, shard: &str) -> Version {
    match placement {
        Placement::Whole(_) => Version::UNSHARDED,
        Placement::Sharded(table) => table.version_of(shard),
    }
}

/// A reply, or why there is none that counts.
pub(crate) fn judge(shard: &str, reply: DocBuf) -> Outcome<DocBuf> {
    let Some(e) = error_of(reply.as_doc()) else {
        return Ok(reply);
    };
    if e.code == Code::StaleConfig {
        return Err(Failure::Stale {
            shard: shard.into(),
            fenced: reply.get("fenced").is_some_and(Val::truthy),
        });
    }
    // The reply is handed on as the shard made it.
    Ok(reply)
}

impl Cluster {
    /// Runs `attempt` with what is known of a collection until router and shards agree. `None` where
    /// the database does not exist.
    pub(crate) fn agree<T>(
        &self,
        ns: &str,
        mut attempt: impl FnMut(Option<&Placement>) -> Outcome<T>,
    ) -> Outcome<T> {
        let began = Instant::now();
        let mut fenced_since = None;
        let mut taught = false;
        let mut placement = self.placement(ns)?;
        loop {
            let failure = match attempt(placement.as_ref()) {
                Err(failure @ Failure::Stale { .. }) => failure,
                other => return other,
            };
            let Failure::Stale { shard, fenced } = &failure else {
                return Err(failure);
            };
            if began.elapsed() > PATIENCE {
                return Err(failure);
            }
            let before = placement.as_ref().map(|p| version_for(p, shard));
            if *fenced {
                std::thread::sleep(FENCE_PAUSE);
                let since = *fenced_since.get_or_insert_with(Instant::now);
                if since.elapsed() > FENCE_LEFT {
                    self.end_left_moves(ns)?;
                    fenced_since = None;
                }
            }
            placement = self.refresh(ns)?;
            let now = placement.as_ref().map(|p| version_for(p, shard));
            if !fenced && before == now {
                if taught {
                    // A secondary has yet to apply what its primary has learned.
                    std::thread::sleep(FENCE_PAUSE);
                }
                self.teach(ns, placement.as_ref(), shard)?;
                taught = true;
            }
        }
    }

    /// Tells a shard what the metadata says.
    pub(crate) fn teach(
        &self,
        ns: &str,
        placement: Option<&Placement>,
        shard: &str,
    ) -> Outcome<()> {
        let concern = doc! {"w": "majority"};
        let command = match placement {
            Some(Placement::Sharded(table)) => doc! {
                "_pandoOwnership": 1,
                "ownership": Ownership::of(table, shard).to_doc(),
                "writeConcern": concern,
            },
            _ => doc! {"_pandoOwnership": 1, "drop": ns, "writeConcern": concern},
        };
        self.on_shard(shard, "admin", command.as_doc())?;
        Ok(())
    }

    /// Tells every shard.
    pub(crate) fn teach_all(&self, ns: &str) -> Outcome<()> {
        let placement = self.refresh(ns)?;
        for shard in self.shard_names()? {
            self.teach(ns, placement.as_ref(), &shard)?;
        }
        Ok(())
    }

    /// Sends commands to shards at once, each with its version, and gives their replies in the same
    /// order. One that is stale makes all stale: nothing of them may count.
    pub(crate) fn scatter(
        &self,
        placement: &Placement,
        commands: &[(Arc<str>, DocBuf)],
    ) -> Outcome<Vec<DocBuf>> {
        let whole: Vec<(Arc<str>, DocBuf)> = commands
            .iter()
            .map(|(shard, c)| {
                let versioned = self.versioned(placement, shard, c.as_doc());
                (shard.clone(), versioned)
            })
            .collect();
        let mut replies = Vec::with_capacity(commands.len());
        let mut failure = None;
        for ((shard, _), reply) in whole.iter().zip(self.together(&whole)) {
            match reply.and_then(|reply| self.judge(shard, reply)) {
                Ok(reply) => replies.push(reply),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        match failure {
            None => Ok(replies),
            Some(e) => Err(e),
        }
    }

    /// Sends commands to shards at once as they are, and gives the reply of each in the same order.
    /// All replies are read, so that their connections can be used again.
    pub(crate) fn together(&self, commands: &[(Arc<str>, DocBuf)]) -> Vec<Outcome<DocBuf>> {
        let mut under_way = Vec::with_capacity(commands.len());
        for (shard, command) in commands {
            let message = message(command.as_doc(), &[]);
            let sent = self.shard(shard).and_then(|set| {
                let member = set.choose(&Asked::of(&message)?)?;
                let line = member.upstream.send(&message);
                Ok((set, member, line))
            });
            under_way.push((message, sent));
        }
        let receive = |(message, sent): (Vec<u8>, Outcome<_>)| {
            let (set, member, line): (Arc<ReplicaSet>, Arc<Member>, Outcome<Line>) = sent?;
            let reply = line.and_then(|line| member.upstream.receive(line));
            match set.judge(&Asked::of(&message)?, &member, reply) {
                Some(reply) => reply,
                None => set.call(&message),
            }
        };
        under_way.into_iter().map(receive).collect()
    }

    /// Sends one command with its version to one shard.
    pub(crate) fn send(
        &self,
        placement: &Placement,
        shard: &str,
        command: Doc<'_>,
        sequences: &[wire::Sequence<'_>],
    ) -> Outcome<DocBuf> {
        let body = self.versioned(placement, shard, command);
        let reply = self
            .shard(shard)?
            .call(&message(body.as_doc(), sequences))?;
        self.judge(shard, reply)
    }

    fn judge(&self, shard: &str, reply: DocBuf) -> Outcome<DocBuf> {
        self.note_time(reply.as_doc());
        judge(shard, reply)
    }

    /// A command with what the router believes, and with the cluster's time: what the shard writes
    /// for it is later than what was seen before.
    fn versioned(&self, placement: &Placement, shard: &str, command: Doc<'_>) -> DocBuf {
        let version = version_for(placement, shard);
        let mut fields = Writer::new();
        fields.doc("shardVersion", version.to_doc().as_doc());
        self.say_time(&mut fields);
        with_fields(command, fields.finish().as_doc())
    }

    /// Adds the cluster's time to a command.
    pub(crate) fn say_time(&self, w: &mut Writer) {
        let time = self.time();
        if time > 0 {
            w.open_doc("$clusterTime")
                .timestamp("clusterTime", time)
                .close();
        }
    }
}

/// The error of a command that needs a database which is not there.
pub(crate) fn no_database(db: &str) -> Failure {
    Failure::Client(err!(NamespaceNotFound, "database {db} not found"))
}
