//! A range on its way to another shard: the mover's steps, the document of the pending move, and how any
//! router ends it.
//!
//! ```text
//! both sides know the table ─► the recipient expects the range ─► copy ─► come near ─► fence ─► finish
//!     ─► the metadata changes (moving → moved)                                  └─ too long, or any step fails
//! end: moving → left, unless it is moved ─► both sides are told ─► fences ─► who does not own it removes it
//! ```
//! Invariant: the document's `state` alone holds the decision. So the mover, the next holder of the lock
//! and a router that waits may all end the same move, and do the same.
//!
//! Several ranges of a collection may move at once, under one lock, while no two of these moves have a
//! shard in common. Each has a turn of the lock and a document of its own, so that a shard, which knows
//! the turn of one of them, refuses messages of earlier ones.

use crate::chunk::ReplacedChunks;
use crate::{Chunk, RoutingTable, Version};
use bson::{DocBuf, ObjectId, Writer, doc};
use errors::{Result, err};
use std::sync::Arc;
use std::time::Duration;

/// A fence that has stood this long is removed, and the move fails.
pub const FENCE: Duration = Duration::from_millis(2000);

/// How long a fence waits for the writes in flight when it is raised, one time after the other. Routers'
/// new writes wait for it meanwhile, and go on for as long in between.
const DRAINS_MILLIS: [u64; 6] = [500, 500, 500, 750, 1000, 1000];

/// How long the mover goes on asking for a fence, while writes stay open for too long.
#[derive(Clone, Debug, Default)]
pub struct DrainPatience {
    refused: usize,
}

impl DrainPatience {
    /// For the fence that is asked for now.
    pub fn now(&self) -> Duration {
        Duration::from_millis(DRAINS_MILLIS[self.refused.min(DRAINS_MILLIS.len() - 1)])
    }

    /// That was too short. How long writes go on until the fence is asked for again; `None`: no more.
    pub fn refused(&mut self) -> Option<Duration> {
        let pause = self.now();
        self.refused += 1;
        (self.refused < DRAINS_MILLIS.len()).then_some(pause)
    }
}

/// What the mover does, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    TellDonor,
    TellRecipient,
    /// The collection and its indexes at the recipient.
    MakeLike,
    /// The range among what the recipient hides.
    Expect,
    /// What a move of before has left there is removed.
    Clear,
    /// From here on the donor's log tells which documents change.
    Mark,
    Copy,
    CopyOutcomes,
    ComeNear,
    Fence,
    /// In any order, since routers wait: the last changes, the last outcomes, and that what the recipient
    /// writes from now on is later than all that the donor has written.
    Finish,
    ChangeOwner,
}

const STEPS: [MoveStep; 12] = [
    MoveStep::TellDonor,
    MoveStep::TellRecipient,
    MoveStep::MakeLike,
    MoveStep::Expect,
    MoveStep::Clear,
    MoveStep::Mark,
    MoveStep::Copy,
    MoveStep::CopyOutcomes,
    MoveStep::ComeNear,
    MoveStep::Fence,
    MoveStep::Finish,
    MoveStep::ChangeOwner,
];

/// The mover's steps, from the recorded document until the owner has changed or a step fails. Either way
/// it is to be ended then.
#[derive(Clone, Debug, Default)]
pub struct RangeMove {
    at: usize,
    /// The step at `at` was given out.
    begun: bool,
    /// When the fence was asked for.
    fenced: Option<Duration>,
    drains: DrainPatience,
}

impl RangeMove {
    pub fn new() -> RangeMove {
        RangeMove::default()
    }

    /// The next step; `None` at the end. `now`: of any clock that does not stand.
    pub fn step(&mut self, now: Duration) -> Result<Option<MoveStep>> {
        let step = STEPS.get(self.at).copied();
        match step {
            Some(MoveStep::Fence) => self.fenced = Some(now),
            Some(MoveStep::ChangeOwner) if self.fenced.is_none() => {
                panic!("the owner changes behind a fence");
            }
            Some(MoveStep::ChangeOwner) if self.fence_stands(now) > FENCE => {
                return Err(
                    err!(ExceededTimeLimit, "the last changes took too long to copy").into(),
                );
            }
            _ => {}
        }
        self.begun = step.is_some();
        Ok(step)
    }

    /// The step that was given out last is done.
    pub fn done(&mut self) {
        let begun = std::mem::take(&mut self.begun);
        assert!(begun, "a step that is done was begun");
        self.at += 1;
    }

    /// How long the fence that is asked for waits.
    pub fn drain(&self) -> Duration {
        self.drains.now()
    }

    /// Writes were open for longer than the fence has waited: whether it is asked for again, and
    /// after which pause.
    pub fn writes_were_open(&mut self) -> Option<Duration> {
        self.drains.refused()
    }

    /// How long routers have waited.
    pub fn fence_stands(&self, now: Duration) -> Duration {
        self.fenced
            .map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

/// The steps that end a decided move of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndMoveStep {
    /// Both sides hear what the metadata says.
    Tell,
    /// The fence goes, where it stands still.
    Lift,
    /// Shards that do not own the range remove its documents.
    Clean,
}

/// The steps, in this order; then the lock's holder removes the document of the pending move. A router
/// without the lock only lets routers go on.
pub fn ending(moved: bool, holds_lock: bool) -> &'static [EndMoveStep] {
    match (holds_lock, moved) {
        (true, _) => &[EndMoveStep::Tell, EndMoveStep::Lift, EndMoveStep::Clean],
        (false, true) => &[EndMoveStep::Tell],
        (false, false) => &[EndMoveStep::Lift],
    }
}

/// The sides of a move that do not have its range in the end.
pub fn without_the_range<'s>(
    sides: &'s [String],
    owner: Option<&'s Chunk>,
) -> impl Iterator<Item = &'s String> {
    let owner = owner.map(|chunk| &*chunk.shard);
    sides
        .iter()
        .filter(move |side| Some(side.as_str()) != owner)
}

/// The state of a pending move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// Not decided: it is rolled back first ([`rolled_back`]), and looked at again.
    Moving,
    Moved,
    RolledBack,
}

impl MoveState {
    pub fn parse(state: &str) -> MoveState {
        match state {
            "moving" => MoveState::Moving,
            "moved" => MoveState::Moved,
            _ => MoveState::RolledBack,
        }
    }
}

/// The document of what begins at a collection or a database. `id`: its name, or of one of several
/// moves at once that of its fence.
pub fn beginning(
    (id, name): (&str, &str),
    kind: &str,
    by: &str,
    turn: i64,
    fields: &DocBuf,
) -> DocBuf {
    let mut w = Writer::new();
    w.str("_id", id).str("ns", name);
    w.str("kind", kind).str("by", by);
    w.i64("turn", turn).str("state", "moving");
    w.extend(fields.as_doc());
    w.finish()
}

/// The filter that finds it while it is not decided.
pub fn undecided(id: &str, by: &str, turn: i64) -> DocBuf {
    doc! {"_id": id, "by": by, "turn": turn, "state": "moving"}
}

/// The filter for the pending moves of a collection or a database: all, or that one.
pub fn under_way(name: &str, id: Option<&str>) -> DocBuf {
    match id {
        Some(id) => doc! {"_id": id, "ns": name},
        None => doc! {"ns": name},
    }
}

/// The filter that finds what may hold routers up at a shard: all but the moves of ranges between
/// others. `to` and `fenced`: names, or lists of them.
pub fn under_way_at(name: &str, shard: &str) -> DocBuf {
    let others = doc! {"kind": doc! {"$ne": "range"}};
    let sides = [
        doc! {"fenced": shard},
        doc! {"from": shard},
        doc! {"to": shard},
    ];
    let [fenced, from, to] = sides;
    doc! {"ns": name, "$or": bson::array![others, fenced, from, to]}
}

/// The name of its fence: no other move has the same, of the same holder of the lock neither.
pub fn fence_of(by: &str, turn: i64) -> String {
    format!("{by}.{turn}")
}

/// It is done: made with the change of the metadata that it was for.
pub fn moved() -> DocBuf {
    doc! {"$set": doc! {"state": "moved"}}
}

/// It is rolled back: that change cannot be made any more.
pub fn rolled_back() -> DocBuf {
    doc! {"$set": doc! {"state": "left"}}
}

/// The chunks when the range from `min` to `max`, which lies in one chunk, has got to `to`. The donor
/// gets a new version too, by a chunk that it keeps.
pub fn change_of_owner(
    table: &RoutingTable,
    (min, max): (&DocBuf, &DocBuf),
    to: &Arc<str>,
    since: u64,
    mut id: impl FnMut() -> ObjectId,
) -> Result<ReplacedChunks> {
    let key = table.key();
    let place = |bound: &DocBuf| key.place_of_bound(bound.as_doc());
    let Some(old) = table.chunk_at(&place(min)?).cloned() else {
        return Err(err!(InternalError, "the range lies in no chunk").into());
    };
    let major = table.version().major() + 1;
    let mut new = vec![Chunk {
        id: id(),
        min: min.clone(),
        max: max.clone(),
        shard: to.clone(),
        lastmod: Version::placement_of(major, 0),
        jumbo: false,
        since,
        turn: 0,
    }];
    for (min, max) in [(&old.min, min), (max, &old.max)] {
        if place(min)? != place(max)? {
            new.push(Chunk {
                id: id(),
                min: min.clone(),
                max: max.clone(),
                lastmod: Version::placement_of(major, new.len() as u32),
                ..old.clone()
            });
        }
    }
    let mut removed = vec![old.clone()];
    let kept = || table.chunk_of(&old.shard, |c| c.id != old.id);
    if let (1, Some(kept)) = (new.len(), kept()) {
        new.push(Chunk {
            lastmod: Version::placement_of(major, 1),
            ..kept.clone()
        });
        removed.push(kept.clone());
    }
    assert!(
        new.iter()
            .all(|c| Version::placement_of(major, 0) <= c.lastmod),
        "a change of owner raises the version of both sides"
    );
    Ok(ReplacedChunks { old: removed, new })
}
