//! `pandoBackup` at a router: a copy of every shard and of the configuration set, all of one moment.
//!
//! ```text
//! lock all against writes ─► copy, beside the data ─► unlock all ─► put in place, and read whole
//! ```
//! While all are locked nothing changes anywhere: what is copied then is one state of the cluster.
//! Moves of ranges and commits over shards are in it as far as they were, and go on when the cluster is
//! started from it, as after a loss of power.
//!
//! Invariants:
//! - Whatever fails, the locks are taken back.
//! - Success is said only where every copy was read whole.

use crate::fsync::{lock_all, sets, unlock_all};
use crate::metadata::Cluster;
use crate::request::{Command, finish};
use crate::service_impl::Router;
use crate::{Failure, Outcome};
use bson::{DocBuf, Val, Writer, doc};
use errors::{Code, err};
use std::path::Path;
use std::time::Duration;

/// Of one set: its name and its reply.
type Replies = Vec<(String, DocBuf)>;

/// Locks all sets. A transaction over shards may wait on a set that is not locked yet for one that is:
/// so each waits for a short time only, and all are free in between.
fn lock(cluster: &Cluster, sets: &[String]) -> Outcome<()> {
    const TRIES: usize = 30;
    let ask = doc! {"fsync": 1, "lock": true, "fsyncLockAcquisitionTimeoutMillis": 1000};
    let mut tried = 0;
    loop {
        tried += 1;
        match lock_all(cluster, sets, ask.as_doc()) {
            Err(Failure::Client(e)) if e.code == Code::LockTimeout && tried < TRIES => {
                std::thread::sleep(Duration::from_millis(200));
            }
            done => return done.map(drop),
        }
    }
}

pub(crate) fn run(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let path = command.field("path").and_then(Val::as_str);
    let path = path.ok_or_else(|| err!(BadValue, "pandoBackup wants a path, as a string"))?;
    if !Path::new(path).is_absolute() {
        return Err(err!(
            BadValue,
            "the path of a backup must be absolute, not '{path}'"
        )
        .into());
    }
    let cluster = &router.cluster;
    let sets = sets(cluster)?;
    lock(cluster, &sets)?;
    let copied = step(cluster, &sets, path, "copy");
    let unlocked = unlock_all(cluster, &sets);
    let copied = copied?;
    unlocked?;
    let finished = step(cluster, &sets, path, "finish")?;
    Ok(told(path, &copied, &finished))
}

/// Has all sets do a step, at once; the first failure.
fn step(cluster: &Cluster, sets: &[String], path: &str, step: &str) -> Outcome<Replies> {
    let ask = |set: &String| -> Outcome<(String, DocBuf)> {
        let path = Path::new(path).join(set);
        let path = path.to_string_lossy();
        let ask = doc! {"pandoBackup": 1, "path": &*path, "step": step};
        match cluster.on_shard(set, "admin", ask.as_doc()) {
            Ok(reply) => Ok((set.clone(), reply)),
            Err(failure) => Err(of_set(set, failure)),
        }
    };
    let replies: Vec<Outcome<(String, DocBuf)>> = std::thread::scope(|scope| {
        let asked: Vec<_> = sets.iter().map(|set| scope.spawn(|| ask(set))).collect();
        let gone = || Err(err!(InternalError, "a thread of the backup ended").into());
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap_or_else(|_| gone()))
            .collect()
    });
    replies.into_iter().collect()
}

fn of_set(set: &str, failure: Failure) -> Failure {
    let mut e = failure.into_error();
    e.message = format!("{set}: {}", e.message);
    e.into()
}

fn told(path: &str, copied: &Replies, finished: &Replies) -> DocBuf {
    let mut w = Writer::new();
    w.str("path", path).bool("verified", true);
    w.open_doc("sets");
    for (set, reply) in finished {
        let copied = copied.iter().find(|(of, _)| of == set).map(|(_, r)| r);
        w.open_doc(set);
        for name in ["path", "host", "collections", "bytes"] {
            if let Some(v) = reply.get(name) {
                w.val(name, v);
            }
        }
        for name in ["index", "timestamp"] {
            if let Some(v) = copied.and_then(|r| r.get(name)) {
                w.val(name, v);
            }
        }
        w.close();
    }
    w.close();
    finish(w, &[])
}
