//! Placement of new records under sequence numbers. In a capped collection the oldest records are
//! removed first, to make room.
//!
//! Invariant: an insertion into a capped collection holds the latch [`tail_hash`] until its entry
//! is applied, and the entry has both the deletes and the puts. So insertions are serialized, the
//! bounds hold after each (an update may exceed them until the next insertion, as in MongoDB), and
//! a crash keeps both or neither.

use crate::op::{Latched, OpCtx};
use crate::records::{self, latch_hash};
use crate::write::index_changes::{IndexChanges, Versions};
use catalog::keyspace;
use catalog::numbers::{sequence_key, sequence_of};
use catalog::{Capped, Collection};
use errors::Result;
use storage::{Direction, Effect, LatchGuard};

/// The most records that one insertion removes: bounds that were lowered a lot are reached step by
/// step.
const MOST_REMOVED: usize = 20_000;
const MOST_REMOVED_BYTES: i64 = 64 << 20;

/// The keys of new records, and the deletes that make room for them.
#[derive(Default)]
pub(crate) struct Placement {
    /// The store's keys of the new records, in order.
    pub keys: Vec<Vec<u8>>,
    /// The number of leading documents that do not fit together with the later ones: they are
    /// removed at once.
    pub dropped: usize,
    /// The deletes of the oldest records.
    pub effects: Vec<Effect>,
    /// The number of records and bytes that the effects remove.
    pub records: i64,
    pub bytes: i64,
}

/// The latch of insertions into a capped collection.
pub(crate) fn tail_hash(coll: &Collection) -> u64 {
    latch_hash(&coll.record_prefix)
}

/// Places records of these sizes, and makes room for them in a capped collection. The caller holds
/// the latch of its tail. `None`: another operation has latched a record to be removed; the caller
/// releases everything and starts again.
pub(crate) fn place(
    ctx: &mut OpCtx,
    coll: &Collection,
    latches: &mut Option<LatchGuard>,
    sizes: &[usize],
) -> Result<Option<Placement>> {
    let mut placement = Placement::default();
    if let Some(capped) = &coll.capped {
        assert!(
            latches.is_some(),
            "room is made under the latch of the tail"
        );
        let oldest = oldest(ctx, coll, capped, sizes)?;
        if remove(ctx, coll, latches, &oldest.keys, &mut placement)? == Latched::Conflict {
            return Ok(None);
        }
        placement.dropped = dropped(capped, oldest.left, sizes);
    }
    // A number is never used twice, even if this insertion fails: a cursor may have read up to it.
    let waiting = ctx.engine.prepared.highest(&coll.record_prefix);
    let (newest, epoch) = (ctx.newest(), ctx.epoch());
    placement.keys = records::new_keys(&newest, waiting, epoch, coll, sizes.len())?;
    Ok(Some(placement))
}

/// The oldest records, which are removed.
#[derive(Default)]
struct Oldest {
    /// The store's keys.
    keys: Vec<Vec<u8>>,
    /// The number of records and bytes with the new documents, when no older record is left to
    /// remove.
    left: Option<(i64, i64)>,
}

/// Finds the oldest records to remove, until the new documents fit or no record is left.
fn oldest(ctx: &mut OpCtx, coll: &Collection, capped: &Capped, sizes: &[usize]) -> Result<Oldest> {
    let (records, bytes) = ctx.engine.store.counts(coll.tablet);
    let mut records = records as i64 + sizes.len() as i64;
    let mut bytes = bytes as i64 + sizes.iter().map(|n| *n as i64).sum::<i64>();
    let mut found = Oldest::default();
    if !capped.is_over(records, bytes) {
        return Ok(found);
    }
    let view = ctx.latest();
    let low = keyspace::join(&coll.record_prefix, &sequence_key(capped.tail.first()));
    let high = keyspace::prefix_end(&coll.record_prefix);
    let mut scan = view.scan(&low, &high, Direction::Forward);
    let mut found_bytes = 0;
    while capped.is_over(records, bytes)
        && found.keys.len() < MOST_REMOVED
        && found_bytes < MOST_REMOVED_BYTES
    {
        ctx.tick(1)?;
        if !scan.next()? {
            found.left = Some((records, bytes));
            break;
        }
        if found.keys.is_empty()
            && let Some(first) = sequence_of(records::own_part(scan.key()))
        {
            capped.tail.found_first(first);
        }
        let len = scan.value().len() as i64;
        found.keys.push(scan.key().to_vec());
        found_bytes += len;
        records -= 1;
        bytes -= len;
    }
    Ok(found)
}

/// Latches the oldest records and adds their deletes.
fn remove(
    ctx: &mut OpCtx,
    coll: &Collection,
    latches: &mut Option<LatchGuard>,
    oldest: &[Vec<u8>],
    placement: &mut Placement,
) -> Result<Latched> {
    let hashes: Vec<u64> = oldest.iter().map(|k| latch_hash(k)).collect();
    if hashes.is_empty() {
        return Ok(Latched::Held);
    }
    if ctx.latch_keys(latches, &hashes)? == Latched::Conflict {
        return Ok(Latched::Conflict);
    }
    // Another operation may have changed or deleted some of them before they were latched.
    let refs: Vec<&[u8]> = oldest.iter().map(|k| k.as_slice()).collect();
    let mut changes = IndexChanges::default();
    ctx.latest().get_each(&refs, |at, value| {
        let key = &oldest[at];
        let versions = Versions {
            before: Some(records::stored(coll, key, value)?),
            after: None,
            update: None,
        };
        changes.clear();
        let changed = changes.add(coll, versions)?;
        changes.effects(coll, changed, key, &mut placement.effects);
        placement.effects.push(Effect::Delete(key.clone()));
        placement.records += 1;
        placement.bytes += value.len() as i64;
        Ok(true)
    })?;
    Ok(Latched::Held)
}

/// The number of leading new documents that are removed at once, because the new ones alone are too
/// many.
fn dropped(capped: &Capped, left: Option<(i64, i64)>, sizes: &[usize]) -> usize {
    let Some((mut records, mut bytes)) = left else {
        return 0;
    };
    let mut dropped = 0;
    for size in sizes.iter().take(sizes.len().saturating_sub(1)) {
        if !capped.is_over(records, bytes) {
            break;
        }
        dropped += 1;
        records -= 1;
        bytes -= *size as i64;
    }
    dropped
}
