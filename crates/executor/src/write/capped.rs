//! Where new records go in a collection whose records lie under numbers. In a capped one, room is made for them first: the
//! oldest records are removed.
//!
//! Invariant: whoever makes room holds the latch [`tail_hash`] until his entry is applied, and the entry holds the deletes as
//! well as the puts. So insertions into one capped collection come one after another, its bounds hold after each (an update
//! may grow a document beyond them until the next insertion, as in MongoDB), and a crash sees both or neither.

use crate::op::{Latched, OpCtx};
use crate::records::{self, latch_hash};
use crate::write::index_changes::{IndexChanges, Versions};
use catalog::keyspace;
use catalog::numbers::{sequence_key, sequence_of};
use catalog::{Capped, Collection};
use errors::Result;
use storage::{Direction, Effect, LatchGuard};

/// No more than this goes in one step: bounds that were made much smaller are reached little by little.
const MOST_REMOVED: usize = 20_000;
const MOST_REMOVED_BYTES: i64 = 64 << 20;

/// Where new records go, and what is removed for them.
#[derive(Default)]
pub(crate) struct Placement {
    /// The store's keys of the new records, in order.
    pub keys: Vec<Vec<u8>>,
    /// So many of the first ones do not even fit together with those after them: they are inserted and gone at once.
    pub dropped: usize,
    /// The deletes of the oldest records.
    pub effects: Vec<Effect>,
    /// Records and bytes that the effects remove.
    pub records: i64,
    pub bytes: i64,
}

/// The latch of those who insert into a capped collection.
pub(crate) fn tail_hash(coll: &Collection) -> u64 {
    latch_hash(&coll.record_prefix)
}

/// Says where records of these sizes go, and makes room for them where the collection is capped. The caller holds the latch
/// of its tail. `None`: a record that is to go is latched by another; let go of everything and start again.
pub(crate) fn place(
    ctx: &mut OpCtx,
    coll: &Collection,
    latches: &mut Option<LatchGuard>,
    sizes: &[usize],
) -> Result<Option<Placement>> {
    let mut placement = Placement::default();
    if let Some(capped) = &coll.capped {
        let oldest = oldest(ctx, coll, capped, sizes)?;
        if remove(ctx, coll, latches, &oldest.keys, &mut placement)? == Latched::Conflict {
            return Ok(None);
        }
        placement.dropped = dropped(capped, oldest.left, sizes);
    }
    // A number is not given twice, even if nothing comes of this insertion: a cursor may have read up to it.
    placement.keys = records::new_keys(&ctx.newest(), coll, sizes.len())?;
    Ok(Some(placement))
}

/// The oldest records, which go.
#[derive(Default)]
struct Oldest {
    /// The store's keys.
    keys: Vec<Vec<u8>>,
    /// Records and bytes that there will be with the new documents, when nothing older is left to remove.
    left: Option<(i64, i64)>,
}

/// Finds the oldest records, until the new documents fit or nothing is left to remove.
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
    // Another may have changed or deleted some of them before they were latched.
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

/// How many of the first new documents go at once, where they are too much even without any older ones.
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
