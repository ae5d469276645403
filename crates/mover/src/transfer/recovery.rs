//! The document of a pending move (`config.migrations`), and how the move ends: by its beginner, or, if
//! that one is gone, by whichever router finds it.
//!
//! ```text
//! {_id, ns: collection or database, kind, by, turn, state, from, to: […], fenced: […], …}
//! _id: `ns`; of one of several moves at once the name of its fence
//! state: moving → moved   by the change of the metadata that it was for
//!        moving → left    by a rollback, of any router; then that change cannot be made any more
//! ```
//! Invariant: that one field holds the decision, so every router that ends the move does the same. To
//! remove a fence needs no lock, and every router may do it. The lock's holder ends a rolled-back move
//! in a later turn than the one it began in, so shards refuse messages of it that are still on their
//! way.

use super::{lift, reshard};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::chunks::{Lock, MetadataChange, lock};
use cluster_view::metadata::{Cluster, Placement};
use cluster_view::write_concern::majority;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use sharding::moving::{self, EndMoveStep, MoveState};
use sharding::moving_primary::{self, EndPrimaryMoveStep};
use sharding::{DbVersion, Ownership, PlaceRange, RoutingTable, series};
use std::sync::Arc;

/// A range goes from one shard to another.
pub const RANGE: &str = "range";
/// An empty collection's ranges are given to all shards.
pub const SPREAD: &str = "spread";
/// A collection gets another shard key.
pub const RESHARD: &str = "reshard";
/// A database gets another primary shard, or is dropped.
pub const PRIMARY: &str = "home";

/// How long a shard removes documents before it is asked again.
const CLEAN_MILLIS: i64 = 1000;

/// A move that is pending, or was abandoned.
pub struct PendingMove(DocBuf);

impl PendingMove {
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Val::as_str).unwrap_or_default()
    }

    pub fn names(&self, field: &str) -> Vec<String> {
        let list = self.0.get(field).and_then(Val::as_array);
        let names = list.unwrap_or(Doc::EMPTY).values();
        names.filter_map(Val::as_str).map(str::to_string).collect()
    }

    /// The shards that it has fenced, then those that get something.
    fn sides(&self) -> Vec<String> {
        [self.names("fenced"), self.names("to")].concat()
    }

    pub fn document(&self, name: &str) -> Doc<'_> {
        self.0.get(name).and_then(Val::as_doc).unwrap_or(Doc::EMPTY)
    }

    fn turn(&self) -> i64 {
        self.0.get("turn").and_then(Val::to_i64_exact).unwrap_or(0)
    }

    /// The name of its fences.
    pub fn fence(&self) -> String {
        moving::fence_of(self.text("by"), self.turn())
    }

    fn state(&self) -> MoveState {
        MoveState::parse(self.text("state"))
    }

    pub fn is_moved(&self) -> bool {
        self.state() == MoveState::Moved
    }
}

/// Records a move that is about to begin.
pub fn begin(held: &Lock<'_>, ns: &str, kind: &str, fields: DocBuf) -> Outcome<()> {
    let id = held.of_part().unwrap_or(ns);
    let document = moving::beginning((id, ns), kind, &held.by, held.turn(), &fields);
    let mut change = MetadataChange::begin(held);
    change.insert("migrations", &[document]);
    change.commit()
}

/// Has a change of the metadata decide that the move is done; it fails if the move was rolled back.
pub fn decide(change: &mut MetadataChange<'_>, held: &Lock<'_>, ns: &str) {
    change.update(
        "migrations",
        moving::undecided(held.of_part().unwrap_or(ns), &held.by, held.turn()),
        moving::moved(),
    );
}

/// Of a shard that is gone nothing is wanted any more.
fn unless_gone(done: Outcome<()>) -> Outcome<()> {
    match done {
        Err(Failure::Client(e))
            if matches!(e.code, Code::ShardNotFound | Code::NamespaceNotSharded) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Moves that are under way, and how they end.
pub trait PendingMoves {
    /// Ends pending moves of a collection or a database that their mover has abandoned.
    fn end_pending_moves(&self, ns: &str) -> Outcome<()>;

    /// Ends pending moves: they are rolled back if the metadata was not changed, and otherwise told to
    /// the shards. A part of the lock ends its own.
    fn end_pending_moves_under(&self, held: &Lock<'_>, ns: &str) -> Outcome<()>;

    /// Takes back what a holder of the lock has under way, unless it is done. Either way that does not
    /// change any more.
    fn settle(&self, held: &Lock<'_>, ns: &str) -> Outcome<()>;

    /// Takes away the fence of a shard that holds routers up, without ending what it was raised for, if
    /// that was not done; tells the shards, if it was.
    fn release_fence(&self, name: &str, shard: &str) -> Outcome<()>;
}

impl PendingMoves for Cluster {
    fn end_pending_moves(&self, ns: &str) -> Outcome<()> {
        let held = lock(self, ns)?;
        self.end_pending_moves_under(&held, ns)
    }

    fn end_pending_moves_under(&self, held: &Lock<'_>, ns: &str) -> Outcome<()> {
        for pending in decided(self, &moving::under_way(ns, held.of_part()))? {
            if !pending.is_moved() && pending.turn() == held.turn() {
                held.take_turn()?;
            }
            match pending.text("kind") {
                RESHARD => reshard::end(self, held, ns, &pending)?,
                PRIMARY => end_primary_change(self, Some(held), ns, &pending)?,
                SPREAD => end_spread(self, ns, &pending, Some(held))?,
                _ => end_range(self, Some(held), ns, &pending)?,
            }
            let mut change = MetadataChange::begin(held);
            change.remove("migrations", doc! {"_id": pending.text("_id")});
            change.commit()?;
        }
        Ok(())
    }

    fn settle(&self, held: &Lock<'_>, ns: &str) -> Outcome<()> {
        decided(self, &moving::under_way(ns, held.of_part())).map(drop)
    }

    fn release_fence(&self, name: &str, shard: &str) -> Outcome<()> {
        let buckets = series::buckets_of(name);
        // Ranges that move between other shards go on.
        let there = |ns: &str| decided(self, &moving::under_way_at(ns, shard));
        let (name, found) = match (there(name)?, buckets == name) {
            // Of a time series the buckets are what moves.
            (found, false) if found.is_empty() => (buckets.as_str(), there(&buckets)?),
            (found, _) => (name, found),
        };
        found
            .iter()
            .try_for_each(|pending| release(self, name, pending))
    }
}

/// Lets routers go on that a pending move holds up.
fn release(cluster: &Cluster, name: &str, pending: &PendingMove) -> Outcome<()> {
    match pending.text("kind") {
        RESHARD if pending.is_moved() => cluster.end_pending_moves(name),
        RESHARD => lift_all(cluster, name, pending, None),
        PRIMARY => end_primary_change(cluster, None, name, pending),
        SPREAD => end_spread(cluster, name, pending, None),
        _ => end_range(cluster, None, name, pending),
    }
}

/// The pending moves that match, each in a final state.
fn decided(cluster: &Cluster, filter: &DocBuf) -> Outcome<Vec<PendingMove>> {
    loop {
        let found = cluster.read_config("migrations", filter.as_doc(), Doc::EMPTY)?;
        let found: Vec<PendingMove> = found.into_iter().map(PendingMove).collect();
        let mut undecided = found
            .iter()
            .filter(|pending| pending.state() == MoveState::Moving);
        let Some(pending) = undecided.next() else {
            return Ok(found);
        };
        let q = moving::undecided(pending.text("_id"), pending.text("by"), pending.turn());
        let u = moving::rolled_back();
        let update = doc! {
            "update": "migrations",
            "updates": bson::array![doc! {"q": q, "u": u}],
            "writeConcern": majority(),
        };
        cluster.on_config("config", update.as_doc())?;
    }
}

fn lift_all(cluster: &Cluster, ns: &str, pending: &PendingMove, turn: Option<i64>) -> Outcome<()> {
    for shard in pending.names("fenced") {
        unless_gone(lift(cluster, &shard, ns, &pending.fence(), turn))?;
    }
    Ok(())
}

/// Tells both sides of a range's move what the metadata says.
fn tell_range(
    cluster: &Cluster,
    ns: &str,
    pending: &PendingMove,
    turn: Option<i64>,
) -> Outcome<Option<RoutingTable>> {
    let Some(table) = cluster.read_table(ns)? else {
        return Ok(None);
    };
    // At once: routers wait for the one, and go to the other then.
    let tell = |shard: &String| unless_gone(teach_as(cluster, &table, shard, turn, None));
    let sides = pending.sides();
    std::thread::scope(|threads| {
        let all: Vec<_> = sides.iter().map(|s| threads.spawn(|| tell(s))).collect();
        let panicked = |_| Err(err!(InternalError, "the end of a move has panicked").into());
        let told: Vec<Outcome<()>> = all
            .into_iter()
            .map(|one| one.join().unwrap_or_else(panicked))
            .collect();
        told.into_iter().collect::<Outcome<()>>()
    })?;
    cluster.take_over(ns, Some(table.clone()))?;
    Ok(Some(table))
}

/// Ends a range's move, but for its document; without the lock what holds routers up.
fn end_range(
    cluster: &Cluster,
    held: Option<&Lock<'_>>,
    ns: &str,
    pending: &PendingMove,
) -> Outcome<()> {
    let turn = held.map(|held| held.turn());
    let mut table = None;
    for step in moving::ending(pending.is_moved(), held.is_some()) {
        match step {
            EndMoveStep::Tell => {
                table = tell_range(cluster, ns, pending, turn)?;
                // The collection is dropped.
                if table.is_none() {
                    return Ok(());
                }
            }
            EndMoveStep::Lift => lift_all(cluster, ns, pending, turn)?,
            EndMoveStep::Clean => {
                if let Some(held) = held {
                    clean_range(held, ns, pending, table.as_ref())?;
                }
            }
        }
    }
    Ok(())
}

fn clean_range(
    held: &Lock<'_>,
    ns: &str,
    pending: &PendingMove,
    table: Option<&RoutingTable>,
) -> Outcome<()> {
    let range = PlaceRange::parse(pending.document("range"))?;
    let owner = table.and_then(|t| t.chunk_at(&range.low));
    let sides = pending.sides();
    for side in moving::without_the_range(&sides, owner) {
        unless_gone(clean(held, side, doc! {"ns": ns, "range": range.to_doc()}))?;
    }
    Ok(())
}

fn end_spread(
    cluster: &Cluster,
    ns: &str,
    pending: &PendingMove,
    held: Option<&Lock<'_>>,
) -> Outcome<()> {
    let turn = held.map(|held| held.turn());
    if pending.is_moved()
        && let Some(table) = cluster.read_table(ns)?
    {
        for shard in cluster.shard_names()? {
            unless_gone(teach_as(cluster, &table, &shard, turn, None))?;
        }
        cluster.forget(ns);
    }
    lift_all(cluster, ns, pending, turn)?;
    let Some(held) = held.filter(|_| pending.is_moved()) else {
        return Ok(());
    };
    // All orphans go from the shard whose ranges were given away.
    for shard in pending.names("fenced") {
        unless_gone(clean(held, &shard, doc! {"ns": ns}))?;
    }
    Ok(())
}

/// Ends the change of a database's primary, but for its document; without the lock what holds routers
/// up.
fn end_primary_change(
    cluster: &Cluster,
    held: Option<&Lock<'_>>,
    db: &str,
    pending: &PendingMove,
) -> Outcome<()> {
    let database_primary = cluster.refresh_database_primary(db)?;
    let began = DbVersion::parse(pending.document("version"))?;
    let (version, primary) = match &database_primary {
        Some(database_primary) => (
            database_primary.version.unwrap_or(began.next()),
            &*database_primary.shard,
        ),
        // It is dropped.
        None => (began.next(), ""),
    };
    let turn = held.map(Lock::turn);
    let sides = pending.sides();
    for step in moving_primary::ending(pending.is_moved(), held.is_some()) {
        for side in &sides {
            unless_gone(match step {
                EndPrimaryMoveStep::Tell => {
                    cluster.teach_database_primary(db, version, primary, side, turn)
                }
                EndPrimaryMoveStep::Lift => lift_database_fence(cluster, db, pending, side, turn),
                EndPrimaryMoveStep::ForgetViews if side == primary => Ok(()),
                EndPrimaryMoveStep::ForgetViews => forget_views(cluster, db, side, turn),
            })?;
        }
    }
    cluster.forget_database(db);
    Ok(())
}

fn lift_database_fence(
    cluster: &Cluster,
    db: &str,
    pending: &PendingMove,
    shard: &str,
    turn: Option<i64>,
) -> Outcome<()> {
    let by = pending.fence();
    cluster.run_pando_home(shard, doc! {"lift": db, "by": by}, turn)
}

/// The views of a database that a shard has, which is not its primary.
pub(super) fn forget_views(
    cluster: &Cluster,
    db: &str,
    shard: &str,
    turn: Option<i64>,
) -> Outcome<()> {
    cluster.run_pando_home(shard, doc! {"forgetViews": db}, turn)
}

/// Removes documents that a shard does not own: of a range, or all. It hurries where another waits for
/// the lock.
pub(super) fn clean(held: &Lock<'_>, shard: &str, which: DocBuf) -> Outcome<()> {
    loop {
        let mut w = Writer::new();
        w.i32("_pandoClean", 1).extend(which.as_doc());
        w.i64("turn", held.turn())
            .i64("millis", CLEAN_MILLIS)
            .bool("hurries", held.is_awaited())
            .doc("writeConcern", majority().as_doc());
        let reply = held.cluster.on_shard(shard, "admin", w.finish().as_doc())?;
        if !reply.get("more").is_some_and(Val::truthy) {
            return Ok(());
        }
    }
}

/// Tells a shard a table, under the lock in `turn`, and removes a firm fence of `by`.
pub(super) fn teach_as(
    cluster: &Cluster,
    table: &RoutingTable,
    shard: &str,
    turn: Option<i64>,
    by: Option<&str>,
) -> Outcome<()> {
    let mut w = Writer::new();
    w.i32("_pandoOwnership", 1);
    w.doc("ownership", Ownership::of(table, shard).to_doc().as_doc());
    if let Some(turn) = turn {
        w.i64("turn", turn);
    }
    if let Some(by) = by {
        w.str("by", by);
    }
    w.doc("writeConcern", majority().as_doc());
    cluster
        .on_shard(shard, "admin", w.finish().as_doc())
        .map(drop)
}

/// The table of a collection as the metadata has it; the caller holds its lock.
pub fn table_under(cluster: &Cluster, held: &Lock<'_>, ns: &str) -> Outcome<Arc<RoutingTable>> {
    cluster.end_pending_moves_under(held, ns)?;
    table_now(cluster, ns)
}

/// The same without pending moves.
pub(super) fn table_now(cluster: &Cluster, ns: &str) -> Outcome<Arc<RoutingTable>> {
    match cluster.refresh(ns)?.as_ref().and_then(Placement::table) {
        Some(table) if !table.entry.measured => Ok(table.clone()),
        _ => Err(err!(NamespaceNotSharded, "Collection {ns} is not sharded").into()),
    }
}
