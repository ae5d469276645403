//! `fsync` and `fsyncUnlock`: on all shards and the configuration set, so the whole cluster is locked.
//!
//! Invariant: where one set is not locked, none stays locked by that command.

use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::metadata::{CONFIG, Cluster};
use cluster_view::{Failure, Outcome};

/// The fields of a client's command that are for shards.
fn ask_of(command: &RoutedCommand<'_>) -> DocBuf {
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
pub(crate) fn sets(cluster: &Cluster) -> Outcome<Vec<String>> {
    let mut sets = cluster.shard_names()?;
    sets.push(CONFIG.into());
    Ok(sets)
}

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let (ask, cluster) = (ask_of(command), &router.cluster);
    let sets = sets(cluster)?;
    if command.is("lock") {
        return Ok(merged_reply(&lock_all(cluster, &sets, ask.as_doc())?));
    }
    let mut replies = Vec::new();
    for set in sets {
        let reply = cluster.on_shard(&set, "admin", ask.as_doc())?;
        replies.push((set, reply));
    }
    Ok(merged_reply(&replies))
}

/// Locks all sets against writes, or none.
fn lock_all(cluster: &Cluster, sets: &[String], ask: Doc<'_>) -> Outcome<Vec<(String, DocBuf)>> {
    let mut replies: Vec<(String, DocBuf)> = Vec::new();
    for set in sets {
        match cluster.on_shard(set, "admin", ask) {
            Ok(reply) => replies.push((set.clone(), reply)),
            Err(failure) => {
                for (set, _) in &replies {
                    let _ = unlock_one(cluster, set);
                }
                return Err(failure);
            }
        }
    }
    Ok(replies)
}

fn unlock_one(cluster: &Cluster, set: &str) -> Outcome<DocBuf> {
    cluster.on_shard(set, "admin", doc! {"fsyncUnlock": 1}.as_doc())
}

/// Unlocks all sets that can be, and tells the first failure.
fn unlock_all(cluster: &Cluster, sets: &[String]) -> Outcome<Vec<(String, DocBuf)>> {
    let mut replies = Vec::new();
    let mut failed: Option<Failure> = None;
    for set in sets.iter().rev() {
        match unlock_one(cluster, set) {
            Ok(reply) => replies.push((set.clone(), reply)),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => Ok(replies),
    }
}

pub(crate) fn unlock(router: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let sets = sets(&router.cluster)?;
    Ok(merged_reply(&unlock_all(&router.cluster, &sets)?))
}

/// What the first says, how many files all have written, and what each says.
fn merged_reply(replies: &[(String, DocBuf)]) -> DocBuf {
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
