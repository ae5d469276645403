//! `fsync` and `fsyncUnlock`: on all shards and the configuration set, so that what is locked is the
//! cluster.
//!
//! Invariant: where one set is not locked, none stays locked by that command.

use crate::metadata::{CONFIG, Cluster};
use crate::request::{Command, finish};
use crate::service_impl::Router;
use crate::{Failure, Outcome};
use bson::{DocBuf, Val, Writer, doc};

/// The fields of a client's command that are for shards.
fn ask_of(command: &Command<'_>) -> DocBuf {
    let mut w = Writer::new();
    let ours = ["$db", "lsid", "$readPreference"];
    for e in command.without(&ours).finish().as_doc() {
        if e.name != "$db" {
            w.val(e.name, e.val);
        }
    }
    w.finish()
}

/// The configuration set is the last.
fn sets(cluster: &Cluster) -> Outcome<Vec<String>> {
    let mut sets = cluster.shard_names()?;
    sets.push(CONFIG.into());
    Ok(sets)
}

pub(crate) fn run(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let ask = ask_of(command);
    let mut replies: Vec<(String, DocBuf)> = Vec::new();
    for set in sets(&router.cluster)? {
        match router.cluster.on_shard(&set, "admin", ask.as_doc()) {
            Ok(reply) => replies.push((set, reply)),
            Err(failure) => {
                if command.is("lock") {
                    for (set, _) in &replies {
                        let _ = unlock_one(&router.cluster, set);
                    }
                }
                return Err(failure);
            }
        }
    }
    Ok(told(&replies))
}

fn unlock_one(cluster: &Cluster, set: &str) -> Outcome<DocBuf> {
    cluster.on_shard(set, "admin", doc! {"fsyncUnlock": 1}.as_doc())
}

pub(crate) fn unlock(router: &Router, _: &Command<'_>) -> Outcome<DocBuf> {
    let mut replies = Vec::new();
    let mut failed: Option<Failure> = None;
    for set in sets(&router.cluster)?.into_iter().rev() {
        match unlock_one(&router.cluster, &set) {
            Ok(reply) => replies.push((set, reply)),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => Ok(told(&replies)),
    }
}

/// What the first says, how many files all have written, and what each says.
fn told(replies: &[(String, DocBuf)]) -> DocBuf {
    let files = |r: &DocBuf| r.get("numFiles").and_then(Val::to_i64_exact).unwrap_or(0);
    let mut w = Writer::new();
    let own = ["ok", "$clusterTime", "operationTime"];
    let first = replies.first().map(|(_, r)| r.as_doc());
    for e in first
        .into_iter()
        .flatten()
        .filter(|e| !own.contains(&e.name))
    {
        match e.name {
            "numFiles" => w.int("numFiles", replies.iter().map(|(_, r)| files(r)).sum()),
            name => w.val(name, e.val),
        };
    }
    w.open_doc("all");
    for (set, reply) in replies {
        w.doc(set, reply.as_doc());
    }
    w.close();
    finish(w, &[])
}
