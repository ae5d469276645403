//! A range on its way from one shard to another, while it is read and written
//! ([decision](../../../docs/decisions/2026-11-25-sharding.md), "A move").
//!
//! Invariant: at each moment one shard owns the range, and what it has acknowledged the next owner
//! gets. Until the metadata says so, the receiver shows nothing of it.

use crate::chunks::{Change, Lock, lock, log, replace};
use crate::metadata::{Cluster, Placement, each, run};
use crate::request::own_message;
use crate::{Failure, Outcome, ReplicaSet, ddl};
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, doc};
use errors::{Code, err};
use sharding::{Chunk, PlaceRange, RoutingTable, Version};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Documents of one insert at the receiver, in bytes.
const PUT_BYTES: usize = 4 << 20;
/// The fence is raised when a round of the catch-up had no more documents than this.
const FEW: usize = 200;
const MOST_ROUNDS: usize = 50;
/// A fence that has stood so long is taken away, and the move fails.
const FENCE: Duration = Duration::from_millis(2000);

struct Move<'c> {
    cluster: &'c Cluster,
    held: &'c Lock<'c>,
    table: RoutingTable,
    from: Arc<str>,
    to: Arc<str>,
    min: DocBuf,
    max: DocBuf,
    range: PlaceRange,
    by: String,
}

fn majority() -> DocBuf {
    doc! {"w": "majority"}
}

/// Moves the range of a chunk's part, `min` to `max`, which lies in one chunk.
pub(crate) fn move_range(
    cluster: &Cluster,
    ns: &str,
    min: Doc<'_>,
    max: Doc<'_>,
    to: &str,
) -> Outcome<()> {
    cluster.shard(to)?;
    let held = lock(cluster, ns)?;
    cluster.end_left_moves_under(&held, ns)?;
    let Some(table) = cluster.read_table(ns)? else {
        return Err(err!(NamespaceNotSharded, "Collection {ns} is not sharded").into());
    };
    let range = table.key().range(min, max)?;
    let inside: Vec<&Chunk> = table.chunks_in(&range).map(|(_, c)| c).collect();
    let [chunk] = inside.as_slice() else {
        return Err(err!(
            CommandFailed,
            "the range from {min} to {max} does not lie in one chunk"
        )
        .into());
    };
    if *chunk.shard == *to {
        return Ok(());
    }
    let from = chunk.shard.clone();
    let moving = Move {
        cluster,
        held: &held,
        from,
        to: to.into(),
        min: min.to_buf(),
        max: max.to_buf(),
        range,
        by: held.by.clone(),
        table,
    };
    moving.run(&held)
}

impl Move<'_> {
    fn ns(&self) -> &str {
        &self.table.entry.ns
    }

    fn parts(&self) -> (&str, &str) {
        self.ns().split_once('.').unwrap_or((self.ns(), ""))
    }

    fn details(&self) -> DocBuf {
        doc! {"min": &self.min, "max": &self.max, "from": &*self.from, "to": &*self.to}
    }

    fn run(&self, held: &Lock<'_>) -> Outcome<()> {
        log(self.cluster, "moveChunk.start", self.ns(), self.details());
        let entry = doc! {
            "_id": self.ns(),
            "by": &self.by,
            "from": &*self.from,
            "to": &*self.to,
            "range": self.range.to_doc(),
            "min": &self.min,
            "max": &self.max,
        };
        let mut change = Change::begin(held)?;
        change.insert("migrations", &[entry])?;
        change.commit()?;
        match self.transfer(held) {
            Ok(()) => {}
            Err(e) => {
                // What the metadata says decides: it may have been changed.
                if let Err(left) = self.cluster.end_left_moves_under(held, self.ns()) {
                    tracing::warn!(target: "SHARDING", ns = self.ns(), error = %left, "A move is left behind");
                }
                log(self.cluster, "moveChunk.error", self.ns(), self.details());
                return Err(e);
            }
        }
        self.cluster.end_left_moves_under(held, self.ns())?;
        log(self.cluster, "moveChunk.commit", self.ns(), self.details());
        Ok(())
    }

    fn transfer(&self, held: &Lock<'_>) -> Outcome<()> {
        self.prepare()?;
        let changes = doc! {"_pandoChanges": 1, "ns": self.ns()};
        let mut after = self.up_to(&self.cluster.on_shard(
            &self.from,
            "admin",
            changes.as_doc(),
        )?)?;
        self.copy()?;
        for round in 0..MOST_ROUNDS {
            self.held.renew()?;
            let (touched, up_to) = self.catch_up(after)?;
            after = up_to;
            if touched <= FEW {
                break;
            }
            if round + 1 == MOST_ROUNDS {
                return Err(err!(
                    OperationFailed,
                    "the range is written faster than it is copied"
                )
                .into());
            }
        }
        let fence = doc! {
            "_pandoFence": 1,
            "ns": self.ns(),
            "range": self.range.to_doc(),
            "by": &self.by,
            "writeConcern": majority(),
        };
        let raised = Instant::now();
        self.cluster.on_shard(&self.from, "admin", fence.as_doc())?;
        self.catch_up(after)?;
        self.copy_sessions()?;
        self.pass_time()?;
        if raised.elapsed() > FENCE {
            return Err(err!(ExceededTimeLimit, "the last changes took too long to copy").into());
        }
        self.commit(held)
    }

    fn up_to(&self, reply: &DocBuf) -> Outcome<i64> {
        let up_to = reply.get("upTo").and_then(Val::to_i64_exact);
        Ok(up_to.ok_or_else(|| {
            err!(
                InternalError,
                "{} does not say where its log ends",
                self.from
            )
        })?)
    }

    /// Collection, indexes and orphan range at the receiver, and nothing in that.
    fn prepare(&self) -> Outcome<()> {
        let (db, collection) = self.parts();
        let to = self.cluster.shard(&self.to)?;
        self.cluster.teach(
            self.ns(),
            Some(&Placement::Sharded(Arc::new(self.table.clone()))),
            &self.to,
        )?;
        match run(
            &to,
            db,
            doc! {"create": collection, "writeConcern": majority()}.as_doc(),
        ) {
            Err(Failure::Client(e)) if e.code == Code::NamespaceExists => {}
            other => drop(other?),
        }
        let indexes = ddl::indexes_of(self.cluster, &self.from, self.ns())?;
        let mut w = Writer::new();
        w.str("createIndexes", collection).open_array("indexes");
        let mut any = false;
        for index in &indexes {
            let name = index.get("name").and_then(Val::as_str);
            if name != Some("_id_") {
                w.push(index.as_doc().as_val());
                any = true;
            }
        }
        w.close().doc("writeConcern", majority().as_doc());
        if any {
            run(&to, db, w.finish().as_doc())?;
        }
        let receive = doc! {
            "_pandoReceive": 1,
            "ns": self.ns(),
            "key": self.table.key().pattern(),
            "version": self.table.version().to_doc(),
            "range": self.range.to_doc(),
            "writeConcern": majority(),
        };
        run(&to, "admin", receive.as_doc())?;
        // Left by a move of before.
        run(&to, "admin", self.clean().as_doc())?;
        Ok(())
    }

    fn clean(&self) -> DocBuf {
        doc! {
            "_pandoClean": 1,
            "ns": self.ns(),
            "range": self.range.to_doc(),
            "keep": true,
            "writeConcern": majority(),
        }
    }

    /// A filter for the range that the index of the shard key serves.
    fn filter(&self) -> DocBuf {
        let mut w = Writer::new();
        let within = self
            .table
            .key()
            .within(self.min.as_doc(), self.max.as_doc());
        w.doc("$expr", within.as_doc());
        w.finish()
    }

    fn copy(&self) -> Outcome<()> {
        let (db, collection) = self.parts();
        let find = doc! {"find": collection, "filter": self.filter(), "noCursorTimeout": true};
        let from = self.cluster.shard(&self.from)?;
        let mut put = Put::new(self);
        each(&from, db, find.as_doc(), |d| put.add(d))?;
        put.flush()
    }

    /// One round: how many documents were touched, and up to where the log was read.
    fn catch_up(&self, after: i64) -> Outcome<(usize, i64)> {
        let (mut after, mut touched) = (after, 0);
        loop {
            let ask = doc! {"_pandoChanges": 1, "ns": self.ns(), "after": after};
            let reply = self.cluster.on_shard(&self.from, "admin", ask.as_doc())?;
            let ids = reply
                .get("ids")
                .and_then(Val::as_array)
                .unwrap_or(Doc::EMPTY);
            let ids: Vec<Value> = ids.values().map(|v| v.to_value()).collect();
            for part in ids.chunks(1000) {
                touched += self.renew(part)?;
            }
            after = self.up_to(&reply)?;
            if !reply.get("more").is_some_and(Val::truthy) {
                return Ok((touched, after));
            }
        }
    }

    /// Puts the newest state of documents: those of the range, and no others.
    fn renew(&self, ids: &[Value]) -> Outcome<usize> {
        let (db, collection) = self.parts();
        let mut list = Writer::new_array();
        ids.iter().for_each(|id| {
            list.push(id.as_val());
        });
        let by_id = doc! {"_id": doc! {"$in": list.finish_array()}};
        let find = doc! {"find": collection, "filter": &by_id};
        let from = self.cluster.shard(&self.from)?;
        let to = self.cluster.shard(&self.to)?;
        // Whatever of these has the receiver in the range is put anew.
        let both = doc! {"$and": bson::array![by_id, self.filter()]};
        let delete = doc! {
            "delete": collection,
            "deletes": bson::array![doc! {"q": both, "limit": 0}],
            "fromMigrate": true,
        };
        run(&to, db, delete.as_doc())?;
        let mut put = Put::new(self);
        let mut n = 0;
        each(&from, db, find.as_doc(), |d| {
            let place = self.table.key().place_of(d)?;
            if self.range.contains(&place) {
                n += 1;
                put.add(d)?;
            }
            Ok(())
        })?;
        put.flush()?;
        Ok(n.max(usize::from(!ids.is_empty())))
    }

    /// What is known of retryable writes: a retry of one goes to the receiver from now on.
    fn copy_sessions(&self) -> Outcome<()> {
        let (from, to) = (
            self.cluster.shard(&self.from)?,
            self.cluster.shard(&self.to)?,
        );
        let mut after = None;
        loop {
            let mut w = Writer::new();
            w.i32("_pandoSessions", 1);
            if let Some(after) = &after {
                let after: &Value = after;
                w.val("after", after.as_val());
            }
            let reply = run(&from, "admin", w.finish().as_doc())?;
            let records = reply
                .get("records")
                .and_then(Val::as_array)
                .unwrap_or(Doc::EMPTY);
            if !records.is_empty() {
                let mut w = Writer::new();
                w.i32("_pandoSessions", 1)
                    .val("put", records.as_array_val());
                w.doc("writeConcern", majority().as_doc());
                run(&to, "admin", w.finish().as_doc())?;
            }
            match reply.get("next").map(|v| v.to_value()) {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// What the receiver writes from now on is later than all that the giver has written.
    fn pass_time(&self) -> Outcome<()> {
        let time = time_of(self.cluster, &self.from)?;
        reach_time(self.cluster, &self.to, time)
    }

    /// Changes the owner in the metadata.
    fn commit(&self, held: &Lock<'_>) -> Outcome<()> {
        let Some(old) = self.table.chunk_at(&self.range.low).cloned() else {
            return Err(err!(InternalError, "the range lies in no chunk").into());
        };
        let major = self.table.version().major() + 1;
        let mut minor = 0;
        let mut next = || {
            minor += 1;
            Version::placement_of(major, minor - 1)
        };
        let mut new = vec![Chunk {
            id: ObjectId::generate(),
            min: self.min.clone(),
            max: self.max.clone(),
            shard: self.to.clone(),
            lastmod: next(),
            jumbo: false,
            since: ddl::now(),
        }];
        let mut rest = |min: &DocBuf, max: &DocBuf| {
            if min != max {
                new.push(Chunk {
                    id: ObjectId::generate(),
                    min: min.clone(),
                    max: max.clone(),
                    lastmod: next(),
                    ..old.clone()
                });
            }
        };
        rest(&old.min, &self.min);
        rest(&self.max, &old.max);
        let mut removed = vec![old.clone()];
        // The giver gets a new version too, by a chunk that it keeps.
        let kept = self
            .table
            .chunks()
            .iter()
            .find(|c| c.shard == self.from && c.id != old.id);
        if let (1, Some(kept)) = (new.len(), kept) {
            new.push(Chunk {
                lastmod: Version::placement_of(major, 1),
                ..kept.clone()
            });
            removed.push(kept.clone());
        }
        let mut change = Change::begin(held)?;
        replace(&mut change, &self.table.entry.uuid, &removed, &new)?;
        change.commit()
    }
}

/// Documents on their way to the receiver, some at a time.
struct Put<'m> {
    moving: &'m Move<'m>,
    docs: Vec<DocBuf>,
    bytes: usize,
}

impl<'m> Put<'m> {
    fn new(moving: &'m Move<'m>) -> Put<'m> {
        Put {
            moving,
            docs: Vec::new(),
            bytes: 0,
        }
    }

    fn add(&mut self, d: Doc<'_>) -> Outcome<()> {
        self.bytes += d.len();
        self.docs.push(d.to_buf());
        match self.bytes > PUT_BYTES || self.docs.len() >= 1000 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Outcome<()> {
        if self.docs.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        self.moving.held.renew()?;
        let (db, collection) = self.moving.parts();
        let mut w = Writer::new();
        w.str("insert", collection)
            .bool("ordered", false)
            .bool("bypassDocumentValidation", true)
            .bool("fromMigrate", true);
        w.str("$db", db);
        let mut documents = Vec::new();
        self.docs
            .drain(..)
            .for_each(|d| documents.extend_from_slice(d.as_bytes()));
        let reply = own_message(
            &*self.moving.cluster.shard(&self.moving.to)?,
            w.finish(),
            "documents",
            &documents,
        )?;
        let errors = reply
            .get("writeErrors")
            .and_then(Val::as_array)
            .unwrap_or(Doc::EMPTY);
        for e in errors.values().filter_map(Val::as_doc) {
            let code = e.get("code").and_then(Val::to_i64_exact);
            if code != Some(i64::from(Code::DuplicateKey.0)) {
                return Err(err!(
                    OperationFailed,
                    "the receiver does not take a document: {e}"
                )
                .into());
            }
        }
        Ok(())
    }
}

impl Cluster {
    /// Ends moves of a collection whose mover is gone.
    pub(crate) fn end_left_moves(&self, ns: &str) -> Outcome<()> {
        let held = lock(self, ns)?;
        self.end_left_moves_under(&held, ns)
    }

    /// Ends what the document of a move says is under way: it is taken back where the metadata was
    /// not changed, and told to both sides where it was.
    pub(crate) fn end_left_moves_under(&self, held: &Lock<'_>, ns: &str) -> Outcome<()> {
        let found = self.read_config("migrations", doc! {"_id": ns}.as_doc(), Doc::EMPTY)?;
        let Some(entry) = found.first() else {
            return Ok(());
        };
        let text = |name: &str| entry.get(name).and_then(Val::as_str).unwrap_or_default();
        let range = entry
            .get("range")
            .and_then(Val::as_doc)
            .unwrap_or(Doc::EMPTY);
        let (from, to) = (text("from"), text("to"));
        let clean = doc! {
            "_pandoClean": 1, "ns": ns, "range": range, "writeConcern": majority(),
        };
        if let Some(table) = self.read_table(ns)? {
            let range = PlaceRange::parse(range)?;
            let owner = table.chunk_at(&range.low).map(|c| c.shard.clone());
            let placement = Placement::Sharded(Arc::new(table));
            self.teach(ns, Some(&placement), from)?;
            self.teach(ns, Some(&placement), to)?;
            self.refresh(ns)?;
            let lift = doc! {
                "_pandoFence": 1, "ns": ns, "by": text("by"), "lift": true, "writeConcern": majority(),
            };
            self.on_shard(from, "admin", lift.as_doc())?;
            let cleaned = if owner.as_deref() == Some(to) {
                from
            } else {
                to
            };
            self.on_shard(cleaned, "admin", clean.as_doc())?;
        }
        let mut change = Change::begin(held)?;
        change.remove("migrations", doc! {"_id": ns})?;
        change.commit()
    }
}

/// The timestamp of the last entry of a shard's log.
pub(crate) fn time_of(cluster: &Cluster, shard: &str) -> Outcome<u64> {
    let reply = cluster.on_shard(shard, "admin", doc! {"_pandoTime": 1}.as_doc())?;
    let time = reply.get("time").and_then(Val::as_timestamp);
    Ok(time.ok_or_else(|| err!(InternalError, "{shard} does not say what time it is"))?)
}

/// Returns when the log of a shard has come to a time: all that it writes then is later.
pub(crate) fn reach_time(cluster: &Cluster, shard: &str, time: u64) -> Outcome<()> {
    set_time(&*cluster.shard(shard)?, time)
}

pub(crate) fn set_time(set: &ReplicaSet, time: u64) -> Outcome<()> {
    let mut w = Writer::new();
    w.i32("_pandoTime", 1).timestamp("atLeast", time);
    w.doc("writeConcern", majority().as_doc());
    run(set, "admin", w.finish().as_doc())?;
    Ok(())
}

/// Brings a shard that is new to the time of the others.
pub(crate) fn join_time(cluster: &Cluster, shard: &str) -> Outcome<()> {
    let mut latest = 0;
    for name in cluster.shard_names()? {
        latest = latest.max(time_of(cluster, &name)?);
    }
    reach_time(cluster, shard, latest)
}
