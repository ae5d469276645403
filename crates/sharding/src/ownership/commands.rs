//! What a shard makes of the commands of routers and movers (`_pandoOwnership`, `_pandoFence`,
//! `_pandoReceive`, `_pandoClean`, and the documents of a move): from what it knows to what it knows
//! then, or the refusal. The new state is stored before the reply.

use super::{Fence, Ownership};
use crate::{PlaceRange, cut};
use errors::{Result, bail};

impl Ownership {
    /// The state after a router, or the holder `turn` of the collection's lock, has told the metadata.
    /// `None` when it is nothing new. `by` names the fence that this removes, a firm one too.
    pub fn learn_in_turn(
        known: Option<&Ownership>,
        told: &Ownership,
        by: Option<&str>,
        turn: Option<u64>,
    ) -> Result<Option<Ownership>> {
        let raised_by = |k: &Ownership| k.fence.as_ref().is_some_and(|f| Some(&*f.by) == by);
        let open = match known {
            Some(known) if raised_by(known) => Some(known.without_fence()),
            known => known.cloned(),
        };
        let learned = Ownership::learn(open.as_ref(), told);
        let Some(turn) = turn else {
            return Ok(learned);
        };
        let base = learned.or(open).unwrap_or_else(|| told.clone());
        base.heed(turn).map(Some)
    }

    /// Whether a shard forgets a collection that is said to be sharded no more: only the `life` that
    /// has ended, where one is named.
    pub fn forgets(known: Option<&Ownership>, life: Option<u64>) -> bool {
        life.is_none_or(|life| known.is_some_and(|k| k.version.timestamp == life))
    }

    pub fn without_fence(&self) -> Ownership {
        Ownership {
            fence: None,
            ..self.clone()
        }
    }

    /// The fence of another mover under the same turn of the lock, or a later one.
    fn fence_of_another(&self, by: &str, turn: u64) -> Option<&Fence> {
        let fence = self.fence.as_ref()?;
        (fence.by != by && turn <= self.turn).then_some(fence)
    }

    /// With a fence. One that an earlier holder of the lock has raised gives way.
    pub fn with_fence(&self, fence: Fence, turn: u64) -> Result<Ownership> {
        let heard = self.clone().heed(turn)?;
        if let Some(other) = self.fence_of_another(&fence.by, turn) {
            bail!(
                ConflictingOperationInProgress,
                "{} is fenced by {}",
                self.ns,
                other.by
            );
        }
        Ok(Ownership {
            fence: Some(fence),
            ..heard
        })
    }

    /// Without the fence of `by`; `None` where it is another's.
    pub fn lifted(&self, by: &str, turn: u64) -> Result<Option<Ownership>> {
        let heard = self.clone().heed(turn)?;
        Ok(match self.fence_of_another(by, turn) {
            Some(_) => None,
            None => Some(heard.without_fence()),
        })
    }

    /// Before the documents of a range come in. Without a `turn` it is that of the last holder.
    pub fn expecting(
        known: Option<&Ownership>,
        nothing: Ownership,
        incoming: PlaceRange,
        turn: Option<u64>,
    ) -> Result<Ownership> {
        let version = nothing.version;
        let known = match known {
            Some(known) if known.version.is_same_life(&version) => known.clone(),
            Some(known) if known.version.is_newer(&version) => {
                bail!(StaleConfig, "{} has been sharded anew", nothing.ns)
            }
            _ => nothing,
        };
        let turn = turn.unwrap_or(known.turn);
        Ok(known.heed(turn)?.receive(incoming))
    }

    /// Fails where the shard owns a part of a range whose documents are to be removed.
    pub fn check_cleans(&self, gone: &PlaceRange) -> Result<()> {
        let gone = std::slice::from_ref(gone);
        if cut(gone, &self.owned) != gone {
            bail!(IllegalOperation, "the shard owns a part of the range");
        }
        Ok(())
    }

    /// Whether a read whose version was compared when `admitted` was known may go on with a view of
    /// when `now` was: no range has gone since, none is behind a fence, whose new owner may serve
    /// already, and none that it would have to hide has come.
    pub fn still_serves(admitted: Option<&Ownership>, now: Option<&Ownership>) -> bool {
        match (admitted, now) {
            (None, None) => true,
            (Some(admitted), Some(now)) => {
                now.fence.is_none()
                    && admitted.version.is_same_life(&now.version)
                    && admitted.version.major() == now.version.major()
                    && cut(&now.orphans, &admitted.orphans).is_empty()
            }
            _ => false,
        }
    }

    /// Whether a snapshot taken when `before` was known is read rightly under `now`: the shard has the
    /// same ranges, and the orphans of that time, which the snapshot may hold, are still hidden.
    pub fn reads_the_past(before: Option<&Ownership>, now: &Ownership) -> bool {
        before.is_some_and(|before| {
            before.version.epoch == now.version.epoch
                && before.version.major() == now.version.major()
                && cut(&before.orphans, &now.orphans).is_empty()
        })
    }

    /// Whether the shard takes documents from a mover: it is the last holder of the lock that the shard
    /// knows, in this life of the collection, and its range, if it has one, is expected.
    pub fn takes_from(
        known: Option<&Ownership>,
        life: u64,
        turn: u64,
        range: Option<&PlaceRange>,
    ) -> bool {
        let expected = |k: &Ownership| range.is_none() || k.incoming.as_ref() == range;
        known.is_some_and(|k| k.version.timestamp == life && k.turn == turn && expected(k))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardKey, Version};
    use bson::{ObjectId, doc};

    fn range(low: u8, high: u8) -> PlaceRange {
        PlaceRange {
            low: vec![low],
            high: Some(vec![high]),
        }
    }

    fn nothing(major: u32) -> Ownership {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let version = Version {
            epoch: ObjectId([1; 12]),
            timestamp: 5,
            placement: Version::placement_of(major, 0),
        };
        Ownership {
            version,
            ..Ownership::nothing("d.c", key, version)
        }
    }

    /// A snapshot that holds documents of a move that failed does not show them when they are removed.
    #[test]
    fn what_is_cleaned_was_hidden() {
        let before = nothing(2);
        let expecting = before.clone().receive(range(3, 5));
        let reads = |a: &Ownership, b: &Ownership| Ownership::reads_the_past(Some(a), b);
        assert!(reads(&before, &expecting) && reads(&expecting, &expecting));
        let cleaned = expecting.clone().cleaned(&[range(3, 5)]);
        assert!(!reads(&expecting, &cleaned));
        assert!(!reads(&before, &nothing(3)));
        assert!(!Ownership::reads_the_past(None, &before));
        let serves = |a: &Ownership, b: &Ownership| Ownership::still_serves(Some(a), Some(b));
        assert!(serves(&before, &before) && serves(&expecting, &cleaned));
        assert!(!serves(&before, &expecting) && !serves(&before, &nothing(3)));
    }

    /// A later holder of the lock replaces an earlier one's fence; another mover's is refused.
    #[test]
    fn fences_of_others() {
        let fence = |by: &str| Fence {
            by: by.into(),
            range: range(3, 5),
            firm: false,
        };
        let fenced = nothing(2).with_fence(fence("m"), 7).unwrap();
        // Its new owner may serve before this shard is told.
        let before = nothing(2);
        assert!(!Ownership::still_serves(Some(&before), Some(&fenced)));
        assert!(fenced.with_fence(fence("n"), 7).is_err());
        assert!(fenced.with_fence(fence("m"), 6).is_err());
        assert_eq!(fenced.with_fence(fence("n"), 8).unwrap().turn, 8);
        assert_eq!(fenced.lifted("n", 7).unwrap(), None);
        assert_eq!(fenced.lifted("m", 7).unwrap().unwrap().fence, None);
        assert!(fenced.lifted("n", 8).unwrap().unwrap().fence.is_none());
        assert!(Ownership::takes_from(Some(&fenced), 5, 7, None));
        assert!(!Ownership::takes_from(Some(&fenced), 5, 8, None));
    }

    /// A late message of an ended move is refused, although the lock has had no other holder since.
    #[test]
    fn what_comes_after_the_end_of_its_move_is_refused() {
        let range = range(3, 5);
        let takes = |k: &Ownership| Ownership::takes_from(Some(k), 5, 7, Some(&range));
        let expecting = |turn| {
            let before = nothing(2);
            Ownership::expecting(Some(&before), nothing(2), range.clone(), Some(turn)).unwrap()
        };
        let known = expecting(7);
        assert!(takes(&known) && !takes(&expecting(8)) && !takes(&nothing(2)));
        assert_eq!(Ownership::parse(known.to_doc().as_doc()).unwrap(), known);
        assert!(!takes(&known.clone().closed(std::slice::from_ref(&range))));
        assert!(!takes(&known.clone().heed(8).unwrap()));
        let told = Ownership {
            seen: Version::placement_of(3, 0),
            ..nothing(3)
        };
        let split = Ownership::learn(Some(&known), &told).unwrap();
        assert!(takes(&split), "it has not come yet");
        let told = Ownership {
            owned: vec![range.clone()],
            ..told
        };
        assert!(!takes(&Ownership::learn(Some(&known), &told).unwrap()));
    }
}
