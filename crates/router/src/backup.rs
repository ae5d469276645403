//! `pandoBackup` at a router: a copy of every shard and of the configuration set, all of one moment.
//!
//! ```text
//! hold all against writes ─► copy, beside the data ─► let go of all ─► put in place or fetched, and read whole
//! ```
//! While all are held nothing changes anywhere: the copies of that time are one state of the cluster.
//! Moves of ranges and commits over shards are in it as far as they were, and go on when the cluster is
//! started from it, as after a loss of power. The steps behind `stage` are for one set, which `set`
//! names.
//!
//! Invariants:
//! - Whatever fails, all are let go; where this router dies, the holds end by themselves.
//! - A copy counts only where its set was held from before the last was until the copy was made: the set
//!   says so by the id of the hold.
//! - Success is said only where every copy was read whole.

use crate::fsync::sets;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{DocBuf, Val, Writer, doc};
use cluster_view::metadata::Cluster;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use std::path::Path;
use std::time::Duration;

/// How long a set stays locked whose router has died. Copies take seconds.
const HOLD_MS: i64 = 30_000;

/// Of one set: its name and its reply.
type Replies = Vec<(String, DocBuf)>;

/// The sets that are held, with the ids of the holds.
struct Held<'c> {
    cluster: &'c Cluster,
    holds: Vec<(String, i64)>,
}

impl Held<'_> {
    fn hold(&mut self, set: &str) -> Outcome<()> {
        let ask = doc! {
            "fsync": 1, "lock": true, "fsyncLockAcquisitionTimeoutMillis": 1000, "pandoHoldMillis": HOLD_MS
        };
        let reply = self.cluster.on_shard(set, "admin", ask.as_doc())?;
        let id = reply.get("pandoHold").and_then(Val::as_i64);
        let id = id.ok_or_else(|| err!(InternalError, "{set} does not say how it is locked"))?;
        self.holds.push((set.to_string(), id));
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (set, id) in self.holds.drain(..).rev() {
            let ask = doc! {"fsyncUnlock": 1, "pandoHold": id};
            // One that is not reached ends its hold by itself.
            let _ = self.cluster.on_shard(&set, "admin", ask.as_doc());
        }
    }
}

/// Holds all sets. A transaction over shards may wait on a set that is not held yet for one that is:
/// so each waits for a short time only, and all are free in between.
fn hold_all<'c>(cluster: &'c Cluster, sets: &[String]) -> Outcome<Held<'c>> {
    const TRIES: usize = 30;
    let mut tried = 0;
    loop {
        tried += 1;
        let mut held = Held {
            cluster,
            holds: Vec::new(),
        };
        match sets.iter().try_for_each(|set| held.hold(set)) {
            Err(Failure::Client(e)) if e.code == Code::LockTimeout && tried < TRIES => {
                drop(held);
                std::thread::sleep(Duration::from_millis(200));
            }
            done => return done.map(|()| held),
        }
    }
}

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let cluster = &router.cluster;
    let text = |name| command.field(name).and_then(Val::as_str);
    match (text("step"), text("set")) {
        (None, _) => in_place(cluster, text("path")),
        (Some("stage"), _) => {
            let staged = stage(cluster)?;
            let shards = cluster.shards()?;
            Ok(sets_reply(&staged, &["id", "host"], |w, set| {
                let of = |d: &&DocBuf| d.get("_id").and_then(Val::as_str) == Some(set);
                if let Some(host) = shards.iter().find(of).and_then(|d| d.get("host")) {
                    w.val("members", host);
                }
            }))
        }
        (Some("kept"), _) => {
            let word =
                |name| text(name).ok_or_else(|| err!(BadValue, "pandoBackup wants '{name}'"));
            note(cluster, word("backup")?, word("to")?)?;
            Ok(finish(Writer::new(), &[]))
        }
        (Some(_), Some(set)) => {
            let ask = command
                .without(&["lsid", "$readPreference", "set"])
                .finish();
            cluster.on_shard(set, "admin", ask.as_doc())
        }
        (Some(step), None) => Err(err!(
            BadValue,
            "at a router the step '{step}' of pandoBackup is for one set: which it is, 'set' says"
        )
        .into()),
    }
}

/// Has all sets make their copies in directories of their machines.
fn in_place(cluster: &Cluster, path: Option<&str>) -> Outcome<DocBuf> {
    let path = path.ok_or_else(|| err!(BadValue, "pandoBackup wants a path, as a string"))?;
    if !Path::new(path).is_absolute() {
        return Err(err!(
            BadValue,
            "the path of a backup must be absolute, not '{path}'"
        )
        .into());
    }
    let staged = stage(cluster)?;
    let finished = at_once(&staged, |(set, reply)| {
        let place = Path::new(path).join(set);
        let id = reply.get("id").and_then(Val::as_str).unwrap_or("");
        let ask =
            doc! {"pandoBackup": 1, "path": &*place.to_string_lossy(), "step": "finish", "id": id};
        ask_set(cluster, set, &ask)
    });
    if finished.is_err() {
        release(cluster, &staged);
    }
    let finished = finished?;
    if let Err(e) = note(cluster, "", path) {
        tracing::warn!(target: "SHARDING", error = %e, "The cluster is not told of a backup");
    }
    let fields = ["path", "host", "collections", "bytes"];
    let by_set = sets_reply(&finished, &fields, |w, set| {
        let staged = staged.iter().find(|(of, _)| of == set).map(|(_, r)| r);
        for name in ["index", "timestamp"] {
            if let Some(v) = staged.and_then(|r| r.get(name)) {
                w.val(name, v);
            }
        }
    });
    let mut w = Writer::new();
    w.str("path", path).bool("verified", true);
    w.extend(by_set.as_doc());
    Ok(w.finish())
}

/// Has the configuration set know that there is a backup.
fn note(cluster: &Cluster, backup: &str, to: &str) -> Outcome<()> {
    let noted = commands::last_backup::document(backup, to);
    let update = doc! {"q": doc! {"_id": commands::last_backup::ID}, "u": noted, "upsert": true};
    let update = doc! {
        "update": "settings", "updates": bson::array![update], "writeConcern": doc! {"w": "majority"},
    };
    cluster.on_config("config", update.as_doc()).map(drop)
}

/// Copies of all sets as of one moment, beside their data.
fn stage(cluster: &Cluster) -> Outcome<Replies> {
    let sets = sets(cluster)?;
    let held = hold_all(cluster, &sets)?;
    // Where one fails, what others have made goes with the next backup.
    at_once(&held.holds, |(set, hold)| {
        let ask = doc! {"pandoBackup": 1, "step": "stage", "hold": *hold};
        ask_set(cluster, set, &ask)
    })
}

fn release(cluster: &Cluster, staged: &Replies) {
    for (set, reply) in staged {
        let id = reply.get("id").and_then(Val::as_str).unwrap_or("");
        let ask = doc! {"pandoBackup": 1, "step": "release", "id": id};
        // One that was put in its place is not there any more.
        let _ = cluster.on_shard(set, "admin", ask.as_doc());
    }
}

fn ask_set(cluster: &Cluster, set: &str, ask: &DocBuf) -> Outcome<(String, DocBuf)> {
    match cluster.on_shard(set, "admin", ask.as_doc()) {
        Ok(reply) => Ok((set.to_string(), reply)),
        Err(failure) => {
            let mut e = failure.into_error();
            e.message = format!("{set}: {}", e.message);
            Err(e.into())
        }
    }
}

/// Asks all sets at once; the first failure.
fn at_once<T: Sync>(
    sets: &[T],
    ask: impl Fn(&T) -> Outcome<(String, DocBuf)> + Sync,
) -> Outcome<Replies> {
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

/// What the sets have said, as far as it is asked for, and what `more` adds.
fn sets_reply(replies: &Replies, fields: &[&str], more: impl Fn(&mut Writer, &str)) -> DocBuf {
    let mut w = Writer::new();
    w.open_doc("sets");
    for (set, reply) in replies {
        w.open_doc(set);
        for name in fields {
            if let Some(v) = reply.get(name) {
                w.val(name, v);
            }
        }
        more(&mut w, set);
        w.close();
    }
    w.close();
    finish(w, &[])
}
