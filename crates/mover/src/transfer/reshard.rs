//! A collection with another shard key, or on other shards as a whole: its documents go to a collection
//! beside it, on the shards that are to have them, while it is read and written. Then all its shards are
//! fenced, the metadata begins another life of it, and on each shard the one takes the other's place.
//!
//! Invariant: until every shard has heard of the new life, none serves it, old or new: the fences are
//! firm. Any holder of the lock can end a decided one.

use super::PendingMoves;
use super::copy::{CopyRoute, Donor, copy_sessions, make_like};
use super::leases::LogLeases;
use super::progress::MoveProgress;
use super::recovery::{PendingMove, RESHARD, begin, decide, teach_as};
use super::{fence, lift, reach_time, time_of};
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, doc};
use cluster_view::chunks::{Lock, MetadataChange, log};
use cluster_view::collections::{entry_doc, new_life};
use cluster_view::metadata::Cluster;
use cluster_view::write_concern::majority;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use sharding::moving::DrainPatience;
use sharding::{Chunk, CollectionEntry, PlaceRange, RoutingTable, ShardKey, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Fences that have stood this long are removed, and the resharding fails.
const FENCES: Duration = Duration::from_secs(3);

/// What a collection is to become.
pub struct ReshardPlan {
    pub key: ShardKey,
    pub unique: bool,
    pub unsplittable: bool,
    /// Bounds, and the shard of each range.
    pub ranges: Vec<(DocBuf, DocBuf, Arc<str>)>,
    /// Zones of the new key, in the place of those of the old one.
    pub tags: Vec<DocBuf>,
    /// The index that the new key needs, where no index serves it.
    pub index: Option<DocBuf>,
}

struct Reshard<'c> {
    cluster: &'c Cluster,
    held: &'c Lock<'c>,
    old: Arc<RoutingTable>,
    new: RoutingTable,
    plan: ReshardPlan,
    beside: String,
    /// Shards that get a part, and the one that has the database.
    recipients: Vec<Arc<str>>,
    /// These and the ones that give.
    all: Vec<Arc<str>>,
}

/// Runs to the end.
pub fn reshard(
    cluster: &Cluster,
    held: &Lock<'_>,
    old: Arc<RoutingTable>,
    plan: ReshardPlan,
) -> Outcome<()> {
    let ns = old.entry.ns.clone();
    let (db, _) = ns.split_once('.').unwrap_or((&ns, ""));
    let uuid = cluster_view::collections::uuid();
    let entry = CollectionEntry {
        ns: ns.clone(),
        uuid,
        key: plan.key.clone(),
        unique: plan.unique,
        unsplittable: plan.unsplittable,
        epoch: ObjectId::generate(),
        timestamp: new_life(cluster).max(old.entry.timestamp + 1),
        collation: old.entry.collation.clone(),
        series: None,
        measured: false,
    };
    let chunk = |(i, (min, max, shard)): (usize, &(DocBuf, DocBuf, Arc<str>))| Chunk {
        id: ObjectId::generate(),
        min: min.clone(),
        max: max.clone(),
        shard: shard.clone(),
        lastmod: Version::placement_of(1, i as u32),
        jumbo: false,
        since: cluster_view::collections::now(),
        turn: 0,
    };
    let chunks = plan.ranges.iter().enumerate().map(chunk).collect();
    let new = RoutingTable::new(entry, chunks)?;
    let mut recipients: BTreeSet<Arc<str>> = new.shards().cloned().collect();
    recipients.extend(cluster.database(db)?);
    let mut all = recipients.clone();
    all.extend(old.shards().cloned());
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    let work = Reshard {
        cluster,
        held,
        old,
        new,
        plan,
        beside: format!("{db}.resharding.{hex}"),
        recipients: recipients.into_iter().collect(),
        all: all.into_iter().collect(),
    };
    work.run()
}

fn names(shards: &[Arc<str>]) -> Value {
    let mut w = Writer::new_array();
    shards.iter().for_each(|s| {
        w.push_value(&**s);
    });
    w.finish_array()
}

impl Reshard<'_> {
    fn ns(&self) -> &str {
        &self.old.entry.ns
    }

    fn run(&self) -> Outcome<()> {
        let fields = doc! {
            "to": names(&self.recipients),
            "fenced": names(&self.all),
            "beside": &self.beside,
            "key": self.plan.key.pattern(),
        };
        begin(self.held, self.ns(), RESHARD, fields)?;
        log(
            self.cluster,
            "reshardCollection.start",
            self.ns(),
            doc! {"key": self.plan.key.pattern()},
        );
        let done = self.steps();
        self.cluster.moves.ended(done.is_ok());
        let ended = self.cluster.end_pending_moves_under(self.held, self.ns());
        if let Err(e) = &ended {
            tracing::warn!(target: "SHARDING", ns = self.ns(), error = %e, "A resharding is left behind");
        }
        done?;
        ended?;
        log(
            self.cluster,
            "reshardCollection.end",
            self.ns(),
            DocBuf::default(),
        );
        Ok(())
    }

    fn steps(&self) -> Outcome<()> {
        self.prepare()?;
        let owners: Vec<(Arc<str>, Vec<PlaceRange>)> = self
            .old
            .shards()
            .map(|s| (s.clone(), self.old.owned_by(s)))
            .collect();
        let place = |d: Doc<'_>| -> Outcome<Option<Arc<str>>> {
            let place = self.new.key().place_of(d)?;
            Ok(self.new.chunk_at(&place).map(|c| c.shard.clone()))
        };
        let route = CopyRoute {
            cluster: self.cluster,
            held: self.held,
            ns: self.ns(),
            life: self.old.version(),
            into: self.beside.clone(),
            range: None,
            recipients: self.recipients.clone(),
            place: &place,
            leases: LogLeases::default(),
            progress: MoveProgress::new(self.cluster),
        };
        let mut donors = Vec::new();
        for (shard, owned) in &owners {
            donors.push(Donor::begin(&route, shard, self.mine(owned))?);
        }
        for donor in &mut donors {
            donor.copy()?;
            self.still_wanted()?;
        }
        self.copy_all_sessions()?;
        for donor in &mut donors {
            donor.come_near()?;
        }
        // Those that came first have waited for the last.
        for donor in &mut donors {
            donor.come_near()?;
        }
        self.still_wanted()?;
        let raised = self.fence_all(&mut donors)?;
        for donor in &mut donors {
            donor.finish()?;
        }
        self.copy_all_sessions()?;
        let mut latest = 0;
        for (donor, _) in &owners {
            latest = latest.max(time_of(self.cluster, donor)?);
        }
        for recipient in &self.recipients {
            reach_time(self.cluster, recipient, latest)?;
        }
        if raised.elapsed() > FENCES {
            return Err(err!(
                ReshardingCriticalSectionTimeout,
                "the last changes took too long to copy"
            )
            .into());
        }
        self.commit()
    }

    /// Raises the fences of all shards, and says when. Where writes are open for too long at one,
    /// those of the others are taken away, and it waits its turn.
    fn fence_all(&self, donors: &mut [Donor<'_>]) -> Outcome<Instant> {
        let mut drains = DrainPatience::default();
        loop {
            let raised = Instant::now();
            let how = (true, drains.now());
            let (held, ns, all) = (self.held, self.ns(), PlaceRange::all());
            let raise = |shard: &Arc<str>| fence(self.cluster, held, ns, shard, &all, how);
            match self.all.iter().try_for_each(raise) {
                Err(Failure::Client(e)) if e.code == Code::LockTimeout => {
                    let Some(pause) = drains.refused() else {
                        return Err(e.into());
                    };
                    for shard in &self.all {
                        lift(self.cluster, shard, ns, &held.fence(), Some(held.turn()))?;
                    }
                    std::thread::sleep(pause);
                }
                done => return done.map(|()| raised),
            }
            for donor in &mut *donors {
                donor.come_near()?;
            }
            self.still_wanted()?;
        }
    }

    /// The filter for what a donor has, where others give too.
    fn mine(&self, owned: &[PlaceRange]) -> DocBuf {
        if self.old.shards().len() == 1 {
            return DocBuf::default();
        }
        let key = self.old.key();
        let mut w = Writer::new();
        w.open_array("$or");
        for range in owned {
            let Some((min, max)) = key.bounds(range) else {
                continue;
            };
            let within = key.within(min.as_doc(), max.as_doc());
            w.push(doc! {"$expr": within}.as_doc().as_val());
        }
        w.finish()
    }

    /// Fails if another command has rolled it back.
    fn still_wanted(&self) -> Outcome<()> {
        let filter = doc! {"_id": self.ns(), "by": &self.held.by, "state": "moving"};
        let found = self
            .cluster
            .read_config("migrations", filter.as_doc(), Doc::EMPTY)?;
        match found.is_empty() {
            false => Ok(()),
            true => Err(err!(ReshardCollectionAborted, "aborted").into()),
        }
    }

    fn copy_all_sessions(&self) -> Outcome<()> {
        for donor in self.old.shards() {
            for recipient in self.recipients.iter().filter(|t| *t != donor) {
                copy_sessions(self.cluster, donor, recipient)?;
            }
        }
        Ok(())
    }

    /// Every shard with a part learns of it, and the temporary collections are made.
    fn prepare(&self) -> Outcome<()> {
        let turn = Some(self.held.turn());
        for shard in &self.all {
            teach_as(self.cluster, &self.old, shard, turn, None)?;
        }
        let Some(donor) = self.old.shards().next() else {
            return Err(err!(InternalError, "a collection without chunks").into());
        };
        let (db, beside) = self.beside.split_once('.').unwrap_or_default();
        for recipient in &self.recipients {
            let named = (&*self.beside, Some(self.new.entry.uuid));
            make_like(self.cluster, donor, self.ns(), recipient, named)?;
            if let Some(index) = &self.plan.index {
                let create = doc! {
                    "createIndexes": beside,
                    "indexes": bson::array![index.clone()],
                    "writeConcern": majority(),
                    "mayBypassWriteBlocking": true,
                };
                self.cluster.on_shard(recipient, db, create.as_doc())?;
            }
        }
        Ok(())
    }

    fn commit(&self) -> Outcome<()> {
        let ns = self.ns();
        let chunks: Vec<DocBuf> = self
            .new
            .chunks()
            .map(|c| c.to_doc(&self.new.entry.uuid))
            .collect();
        let mut change = MetadataChange::begin(self.held);
        change.remove("collections", doc! {"_id": ns});
        change.insert("collections", &[entry_doc(&self.new.entry)]);
        let old = Value::binary(4, &self.old.entry.uuid);
        change.remove("chunks", doc! {"uuid": old});
        change.insert("chunks", &chunks);
        change.remove("tags", doc! {"ns": ns});
        change.insert("tags", &self.plan.tags);
        decide(&mut change, self.held, ns);
        match change.commit() {
            Err(Failure::Client(e)) if e.code == Code::ConflictingOperationInProgress => {
                Err(err!(ReshardCollectionAborted, "aborted").into())
            }
            other => other,
        }
    }
}

/// Ends a pending resharding: the temporary collections replace the old ones, or are dropped.
pub(super) fn end(
    cluster: &Cluster,
    held: &Lock<'_>,
    ns: &str,
    pending: &PendingMove,
) -> Outcome<()> {
    let (by, beside) = (&pending.fence(), pending.text("beside"));
    let recipients = pending.names("to");
    if !pending.is_moved() {
        for shard in pending.names("fenced") {
            lift(cluster, &shard, ns, by, Some(held.turn()))?;
            let gone = doc! {"_pandoSwap": 1, "ns": beside, "writeConcern": majority()};
            cluster.on_shard(&shard, "admin", gone.as_doc())?;
        }
        return Ok(());
    }
    let Some(table) = cluster.read_table(ns)? else {
        return Ok(());
    };
    for shard in pending.names("fenced") {
        let mut w = Writer::new();
        w.i32("_pandoSwap", 1)
            .str("ns", ns)
            .i64("turn", held.turn());
        if recipients.contains(&shard) {
            w.str("with", beside);
        }
        w.doc("writeConcern", majority().as_doc());
        cluster.on_shard(&shard, "admin", w.finish().as_doc())?;
    }
    for shard in pending.names("fenced") {
        teach_as(cluster, &table, &shard, Some(held.turn()), Some(by))?;
    }
    cluster.forget(ns);
    Ok(())
}

/// Rolls back a collection's pending resharding, if it is not decided.
pub fn abort(cluster: &Cluster, ns: &str) -> Outcome<()> {
    let filter = doc! {"_id": ns, "kind": RESHARD};
    let found = cluster.read_config("migrations", filter.as_doc(), Doc::EMPTY)?;
    let Some(found) = found.first() else {
        return Err(err!(
            NoSuchReshardCollection,
            "Could not find in-progress resharding operation to abort"
        )
        .into());
    };
    let by = found.get("by").and_then(Val::as_str).unwrap_or_default();
    let q = doc! {"_id": ns, "by": by, "state": "moving"};
    let updates = bson::array![doc! {"q": q, "u": doc! {"$set": doc! {"state": "left"}}}];
    let update = doc! {"update": "migrations", "updates": updates, "writeConcern": majority()};
    let reply = cluster.on_config("config", update.as_doc())?;
    match reply.get("n").and_then(Val::to_i64_exact) {
        Some(1) => cluster.end_pending_moves(ns),
        _ => Err(err!(
            ReshardCollectionCommitted,
            "Can't abort resharding operation after the decision is made"
        )
        .into()),
    }
}
