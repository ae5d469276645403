//! A range on its way from one shard to another, while it is read and written
//! ([decision](../../../../docs/decisions/2026-11-25-sharding.md), "A move"), and what else is made of the
//! same steps:
//!
//! - `concurrent`: moves of one collection that are asked for at the same time;
//! - `copy`: documents on their way: snapshot, catch-up, refused documents;
//! - `recovery`: pending moves, and how any router ends them;
//! - `reshard`: a collection with another shard key;
//! - `primary`: a database with another primary shard;
//! - `leases`: the logs that are kept for it;
//! - `move_options`: what a move waits for, and until when it may take;
//! - `progress`: how far a move has come, for operators;
//! - `put`: documents on their way to recipients;
//! - `throttle`: how much movers work while others are served;
//! - `time`: the cluster's time.
//!
//! Invariant: at each moment one shard owns the range, and what it has acknowledged the next owner
//! gets. Until the metadata says so, the recipient shows nothing of it.

mod concurrent;
mod copy;
mod leases;
mod move_options;
mod primary;
mod progress;
mod put;
mod recovery;
mod reshard;
mod throttle;
mod time;

pub use concurrent::{Moving, move_concurrently};
pub use copy::make_like;
pub use move_options::MoveOptions;
pub use primary::{drop_database_metadata, move_primary};
pub use recovery::{PRIMARY, PendingMoves, RANGE};
pub use recovery::{SPREAD, begin, decide, table_under};
pub use reshard::{ReshardPlan, abort, reshard};
pub use time::{join_time, reach_time, set_time, time_before, time_of};

use bson::{Doc, DocBuf, ObjectId, Val, Writer, doc};
use cluster_view::chunks::{Lock, MetadataChange, lock_within, log, replace};
use cluster_view::metadata::{Cluster, run};
use cluster_view::write_concern::majority;
use cluster_view::{Failure, Outcome};
use copy::{CopyRoute, Donor, copy_sessions, likeness};
use errors::{Code, Error, err};
use leases::LogLeases;
use parking_lot::Mutex;
use progress::MoveProgress;
use recovery::{clean, table_now, teach_as};
use sharding::moving::{MoveStep, RangeMove, change_of_owner};
use sharding::series::check_bound;
use sharding::{Chunk, PlaceRange, RoutingTable};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Move<'c> {
    cluster: &'c Cluster,
    held: &'c Lock<'c>,
    table: Arc<RoutingTable>,
    from: Arc<str>,
    to: Arc<str>,
    min: DocBuf,
    max: DocBuf,
    range: PlaceRange,
    options: MoveOptions,
    /// What the collection was like when it was made at the recipient.
    likeness: Mutex<Vec<DocBuf>>,
}

/// Moves the range of a chunk's part, `min` to `max`, which lies in one chunk.
pub fn move_range(
    cluster: &Cluster,
    ns: &str,
    min: Doc<'_>,
    max: Doc<'_>,
    to: &str,
    options: &MoveOptions,
) -> Outcome<()> {
    cluster.shard(to)?;
    let held = lock_within(cluster, ns, options.left())?;
    move_in(options, cluster, &held, ns, min, max, to)
}

/// The same; the caller holds the collection's lock.
pub fn move_range_under(
    cluster: &Cluster,
    held: &Lock<'_>,
    ns: &str,
    min: Doc<'_>,
    max: Doc<'_>,
    to: &str,
) -> Outcome<()> {
    move_in(&MoveOptions::default(), cluster, held, ns, min, max, to)
}

fn move_in(
    options: &MoveOptions,
    cluster: &Cluster,
    held: &Lock<'_>,
    ns: &str,
    min: Doc<'_>,
    max: Doc<'_>,
    to: &str,
) -> Outcome<()> {
    let table = table_under(cluster, held, ns)?;
    if table.entry.series.is_some() {
        check_bound(min)?;
        check_bound(max)?;
    }
    let range = table.key().range(min, max)?;
    let inside: Vec<&Chunk> = table.chunks_in(&range).collect();
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
        held,
        from,
        to: to.into(),
        min: min.to_buf(),
        max: max.to_buf(),
        range,
        table,
        options: options.clone(),
        likeness: Mutex::default(),
    };
    moving.run()
}

/// A range of a collection, and the shard that it goes to.
pub struct To<'a> {
    pub min: Doc<'a>,
    pub max: Doc<'a>,
    pub shard: &'a str,
}

/// Moves ranges of one collection at once. One that has a shard in common with an earlier one fails; the
/// others do not fail with it.
pub fn move_ranges(
    cluster: &Cluster,
    ns: &str,
    ranges: &[To<'_>],
    options: &MoveOptions,
) -> Outcome<Vec<Outcome<()>>> {
    let held = lock_within(cluster, ns, options.left())?;
    let table = table_under(cluster, &held, ns)?;
    let mut busy: BTreeSet<String> = BTreeSet::new();
    let mut part = |range: &To<'_>| {
        let place = table.key().place_of_bound(range.min)?;
        let from = table.chunk_at(&place).map_or("", |chunk| &*chunk.shard);
        let pair = [from.to_string(), range.shard.to_string()];
        if pair.iter().any(|shard| busy.contains(shard)) {
            return Err(err!(
                ConflictingOperationInProgress,
                "{from} or {} takes part in another move",
                range.shard
            )
            .into());
        }
        busy.extend(pair);
        held.part()
    };
    let parts: Vec<Outcome<Lock<'_>>> = ranges.iter().map(&mut part).collect();
    let run = |part: Outcome<Lock<'_>>, range: &To<'_>| {
        let (min, max) = (range.min, range.max);
        move_in(options, cluster, &part?, ns, min, max, range.shard)
    };
    Ok(std::thread::scope(|threads| {
        let both = parts.into_iter().zip(ranges);
        let moves: Vec<_> = both
            .map(|(p, r)| threads.spawn(move || run(p, r)))
            .collect();
        let panicked = |_| Err(err!(InternalError, "a move has panicked").into());
        let ended = moves.into_iter().map(|m| m.join().unwrap_or_else(panicked));
        ended.collect()
    }))
}

impl Move<'_> {
    fn ns(&self) -> &str {
        &self.table.entry.ns
    }

    fn details(&self) -> DocBuf {
        doc! {"min": &self.min, "max": &self.max, "from": &*self.from, "to": &*self.to}
    }

    fn run(&self) -> Outcome<()> {
        log(self.cluster, "moveChunk.start", self.ns(), self.details());
        self.write_down()?;
        let done = self.transfer();
        self.cluster.moves.ended(done.is_ok());
        // What the metadata says decides: it may have been changed where that failed.
        let ended = self.cluster.end_pending_moves_under(self.held, self.ns());
        match done {
            Ok(()) => {
                ended?;
                log(self.cluster, "moveChunk.commit", self.ns(), self.details());
                Ok(())
            }
            Err(e) => {
                if let Err(left) = ended {
                    tracing::warn!(target: "SHARDING", ns = self.ns(), error = %left, "A move is left behind");
                }
                log(self.cluster, "moveChunk.error", self.ns(), self.details());
                Err(e)
            }
        }
    }

    /// The document of the pending move.
    fn write_down(&self) -> Outcome<()> {
        let fields = doc! {
            "from": &*self.from,
            "to": bson::array![&*self.to],
            "fenced": bson::array![&*self.from],
            "range": self.range.to_doc(),
            "min": &self.min,
            "max": &self.max,
        };
        begin(self.held, self.ns(), RANGE, fields)
    }

    fn transfer(&self) -> Outcome<()> {
        let place = |d: Doc<'_>| -> Outcome<Option<Arc<str>>> {
            let inside = self.range.contains(&self.table.key().place_of(d)?);
            Ok(inside.then(|| self.to.clone()))
        };
        let route = CopyRoute {
            cluster: self.cluster,
            held: self.held,
            ns: self.ns(),
            life: self.table.version(),
            into: self.ns().into(),
            range: Some(self.range.clone()),
            recipients: vec![self.to.clone()],
            place: &place,
            leases: LogLeases::default(),
            progress: MoveProgress::new(self.cluster),
        };
        let mut donor = None;
        let mut steps = RangeMove::new();
        let began = Instant::now();
        while let Some(step) = steps.step(began.elapsed())? {
            self.options.check()?;
            match self.step(step, &route, &mut donor, steps.drain()) {
                Err(Failure::Client(e))
                    if step == MoveStep::Fence && e.code == Code::LockTimeout =>
                {
                    self.wait_for_writes(e, &mut steps, &mut donor)?
                }
                done => {
                    done?;
                    steps.done();
                }
            }
        }
        let millis = steps.fence_stands(began.elapsed()).as_millis() as u64;
        tracing::debug!(target: "SHARDING", ns = self.ns(), millis, "A range has another owner");
        Ok(())
    }

    /// Writes were open for too long for the fence: it waits its turn, and the copy stays near.
    fn wait_for_writes(
        &self,
        refusal: Error,
        steps: &mut RangeMove,
        donor: &mut Option<Donor<'_>>,
    ) -> Outcome<()> {
        match steps.writes_were_open() {
            Some(pause) if !self.held.is_awaited() => std::thread::sleep(pause),
            _ => return Err(refusal.into()),
        }
        donor.as_mut().map_or(Ok(()), Donor::come_near)
    }

    fn step<'w>(
        &self,
        step: MoveStep,
        route: &'w CopyRoute<'w>,
        donor: &mut Option<Donor<'w>>,
        drain: Duration,
    ) -> Outcome<()> {
        let turn = Some(self.held.turn());
        let tell = |shard: &str| teach_as(self.cluster, &self.table, shard, turn, None);
        match step {
            MoveStep::TellDonor => tell(&self.from),
            MoveStep::TellRecipient => tell(&self.to),
            MoveStep::MakeLike => self.make_like(),
            MoveStep::Expect => self.expect(),
            MoveStep::Clear => self.clear(),
            MoveStep::Mark => {
                let begun = Donor::begin(route, &self.from, self.filter())?;
                *donor = Some(begun.with_options(&self.options).by(self.limits()?));
                Ok(())
            }
            MoveStep::Copy => donor.as_mut().map_or(Ok(()), Donor::copy),
            MoveStep::ComeNear => donor.as_mut().map_or(Ok(()), Donor::come_near),
            MoveStep::Finish => self.finish(donor.as_mut()),
            MoveStep::CopyOutcomes => copy_sessions(self.cluster, &self.from, &self.to),
            MoveStep::Fence => fence(
                self.cluster,
                self.held,
                self.ns(),
                &self.from,
                &self.range,
                (false, drain),
            ),
            MoveStep::ChangeOwner => self.commit(),
        }
    }

    fn make_like(&self) -> Outcome<()> {
        let (cluster, ns) = (self.cluster, self.ns());
        *self.likeness.lock() = likeness(cluster, &self.from, ns)?;
        make_like(cluster, &self.from, ns, &self.to, (ns, None))
    }

    /// The last round, and all else that is to be done behind the fence, at once: clients wait.
    fn finish(&self, donor: Option<&mut Donor<'_>>) -> Outcome<()> {
        std::thread::scope(|threads| {
            let others = [
                threads.spawn(|| self.check_like()),
                threads.spawn(|| copy_sessions(self.cluster, &self.from, &self.to)),
                threads.spawn(|| self.pass_time()),
            ];
            let mut finished = donor.map_or(Ok(()), Donor::finish);
            for other in others {
                let panicked =
                    |_| Err(err!(InternalError, "the end of a move has panicked").into());
                finished = finished.and(other.join().unwrap_or_else(panicked));
            }
            finished
        })
    }

    /// Fails if indexes or options have changed since the collection was made at the recipient, which
    /// does not know of the change. Behind the fence they do not change.
    fn check_like(&self) -> Outcome<()> {
        let now = likeness(self.cluster, &self.from, self.ns())?;
        match now == *self.likeness.lock() {
            true => Ok(()),
            false => Err(err!(
                ConflictingOperationInProgress,
                "indexes or options of {} have changed while a range of it was moved",
                self.ns()
            )
            .into()),
        }
    }

    fn expect(&self) -> Outcome<()> {
        let receive = doc! {
            "_pandoReceive": 1,
            "ns": self.ns(),
            "key": self.table.key().pattern(),
            "version": self.table.version().to_doc(),
            "range": self.range.to_doc(),
            "turn": self.held.turn(),
            "writeConcern": majority(),
        };
        let to = self.cluster.shard(&self.to)?;
        run(&to, "admin", receive.as_doc()).map(drop)
    }

    fn clear(&self) -> Outcome<()> {
        let range = doc! {"ns": self.ns(), "range": self.range.to_doc(), "keep": true};
        clean(self.held, &self.to, range)
    }

    /// The range within an index of the donor that begins with the shard key; empty where there is
    /// none, or all goes.
    fn limits(&self) -> Outcome<DocBuf> {
        let mut w = Writer::new();
        if self.range == PlaceRange::all() {
            return Ok(w.finish());
        }
        let has_all = |index: &DocBuf| {
            let lacks = ["sparse", "hidden", "clustered"];
            let lacks = lacks.iter().any(|o| index.get(o).is_some_and(Val::truthy));
            let other = ["partialFilterExpression", "collation"];
            !lacks && !other.iter().any(|o| index.as_doc().contains(o))
        };
        let (min, max) = (self.min.as_doc(), self.max.as_doc());
        let indexes = cluster_view::collections::indexes_of(self.cluster, &self.from, self.ns())?;
        let found = indexes.iter().filter(|i| has_all(i)).find_map(|index| {
            let key = index.get("key").and_then(Val::as_doc)?;
            let name = index.get("name").and_then(Val::as_str)?;
            Some((name, self.table.key().limits(key, min, max)?))
        });
        if let Some((name, (low, high))) = found {
            w.str("hint", name).doc("min", low.as_doc());
            if let Some(high) = high {
                w.doc("max", high.as_doc());
            }
        }
        Ok(w.finish())
    }

    /// A filter for the range.
    fn filter(&self) -> DocBuf {
        within(
            &self.table,
            &self.range,
            self.min.as_doc(),
            self.max.as_doc(),
        )
    }

    /// What the recipient writes from now on is later than all that the donor has written.
    fn pass_time(&self) -> Outcome<()> {
        let time = time_of(self.cluster, &self.from)?;
        reach_time(self.cluster, &self.to, time)
    }

    /// Changes the owner in the metadata. What moves at once does so one after the other, each by the
    /// table that the other has made.
    fn commit(&self) -> Outcome<()> {
        if self.held.of_part().is_none() {
            return self.commit_by(&self.table);
        }
        self.held.decide(
            || self.commit_by(&*table_now(self.cluster, self.ns())?),
            || self.cluster.settle(self.held, self.ns()),
        )
    }

    fn commit_by(&self, table: &RoutingTable) -> Outcome<()> {
        let owner = change_of_owner(
            table,
            (&self.min, &self.max),
            &self.to,
            cluster_view::collections::now(),
            ObjectId::generate,
        )?;
        let mut change = MetadataChange::begin(self.held);
        replace(&mut change, &self.table.entry.uuid, &owner.old, &owner.new);
        decide(&mut change, self.held, self.ns());
        change.commit()
    }
}

/// A filter for the documents between two bounds; none for all.
fn within(table: &RoutingTable, range: &PlaceRange, min: Doc<'_>, max: Doc<'_>) -> DocBuf {
    if *range == PlaceRange::all() {
        return DocBuf::default();
    }
    let mut w = Writer::new();
    w.doc("$expr", table.key().within(min, max).as_doc());
    w.finish()
}

/// From here on routers wait with a collection at a shard; what it has acknowledged is in its log.
/// Writes in flight are waited for as long as `drain` says.
pub fn fence(
    cluster: &Cluster,
    held: &Lock<'_>,
    ns: &str,
    shard: &str,
    range: &PlaceRange,
    (firm, drain): (bool, Duration),
) -> Outcome<()> {
    let drain = i64::try_from(drain.as_millis()).unwrap_or(i64::MAX);
    let fence = doc! {
        "_pandoFence": 1,
        "ns": ns,
        "range": range.to_doc(),
        "by": held.fence(),
        "turn": held.turn(),
        "firm": firm,
        "drain": drain,
        "writeConcern": majority(),
    };
    cluster.on_shard(shard, "admin", fence.as_doc()).map(drop)
}

/// Takes the fence of `by` away.
fn lift(cluster: &Cluster, shard: &str, ns: &str, by: &str, turn: Option<i64>) -> Outcome<()> {
    let mut w = Writer::new();
    w.i32("_pandoFence", 1).str("ns", ns).str("by", by);
    w.bool("lift", true);
    if let Some(turn) = turn {
        w.i64("turn", turn);
    }
    w.doc("writeConcern", majority().as_doc());
    match cluster.on_shard(shard, "admin", w.finish().as_doc()) {
        Err(Failure::Client(e)) if e.code == Code::NamespaceNotSharded => Ok(()),
        other => other.map(drop),
    }
}
