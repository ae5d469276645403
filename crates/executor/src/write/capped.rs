//! Making room in a capped collection: which of its oldest records go for the new ones that come, and where those lie.
//!
//! Invariant: whoever makes room holds the latch [`tail_hash`] until his entry is applied, and the entry holds the deletes as
//! well as the puts. So insertions into one capped collection come one after another, its bounds hold after each (an update
//! may grow a document beyond them until the next insertion, as in MongoDB), and a crash sees both or neither.

use crate::op::OpCtx;
use crate::records::{self, latch_hash};
use bson::Doc;
use catalog::keyspace::{self, PREFIX};
use catalog::numbers::{sequence_key, sequence_of};
use catalog::{Capped, Collection};
use errors::{Error, Result};
use query::index_keys::KeySet;
use storage::{Direction, Effect, LatchGuard, View};

/// No more than this goes in one step: bounds that were made much smaller are reached little by little.
const MOST_REMOVED: usize = 20_000;
const MOST_REMOVED_BYTES: i64 = 64 << 20;

/// What is done for new documents beside putting them.
#[derive(Default)]
pub(crate) struct CappedRoom {
    /// The store's keys of the new records, in order.
    pub keys: Vec<Vec<u8>>,
    /// So many of the first ones do not even fit together with those after them: they are inserted and gone at once.
    pub dropped: usize,
    pub effects: Vec<Effect>,
    /// Records and bytes that the effects remove.
    pub records: i64,
    pub bytes: i64,
}

/// The latch of those who insert into a capped collection.
pub(crate) fn tail_hash(coll: &Collection) -> u64 {
    latch_hash(&coll.record_prefix)
}

/// Says where documents of these sizes go in a collection whose records lie under numbers; in a capped one room is made for them.
/// `None`: as [`make_room`].
pub(crate) fn place(
    ctx: &mut OpCtx,
    coll: &Collection,
    latches: &mut LatchGuard,
    sizes: &[usize],
) -> Result<Option<CappedRoom>> {
    if coll.capped.is_some() {
        return make_room(ctx, coll, latches, sizes);
    }
    Ok(Some(CappedRoom {
        keys: records::new_keys(&ctx.latest(), coll, sizes.len())?,
        ..CappedRoom::default()
    }))
}

/// Makes room for documents of these sizes. The caller holds the latch of the tail. `None`: a record that is to go is latched
/// by another; let go of everything and start again.
fn make_room(
    ctx: &mut OpCtx,
    coll: &Collection,
    latches: &mut LatchGuard,
    sizes: &[usize],
) -> Result<Option<CappedRoom>> {
    let Some(capped) = &coll.capped else {
        return Err(Error::internal("room is made in capped collections only"));
    };
    let view = ctx.latest();
    let mut room = CappedRoom::default();
    let Some(left) = remove_oldest(ctx, &view, coll, capped, latches, sizes, &mut room)? else {
        return Ok(None);
    };
    // What is still too much is the new documents themselves.
    let (mut records, mut bytes) = left;
    for size in sizes.iter().take(sizes.len().saturating_sub(1)) {
        if !capped.is_over(records, bytes) {
            break;
        }
        room.dropped += 1;
        records -= 1;
        bytes -= *size as i64;
    }
    // A number is not given twice, even if nothing comes of this insertion: a cursor may have read up to it.
    room.keys = records::new_keys(&view, coll, sizes.len())?;
    Ok(Some(room))
}

/// Adds the deletes of the oldest records, until the new documents fit or there is nothing left to remove. Gives what records
/// and bytes there will be with the new documents (zero where bounds hold or more is left for the next time).
fn remove_oldest(
    ctx: &mut OpCtx,
    view: &View,
    coll: &Collection,
    capped: &Capped,
    latches: &mut LatchGuard,
    sizes: &[usize],
    room: &mut CappedRoom,
) -> Result<Option<(i64, i64)>> {
    let (records, bytes) = ctx.engine.store.counts(coll.tablet);
    let mut records = records as i64 + sizes.len() as i64;
    let mut bytes = bytes as i64 + sizes.iter().map(|n| *n as i64).sum::<i64>();
    if !capped.is_over(records, bytes) {
        return Ok(Some((0, 0)));
    }
    let tail = &capped.tail;
    let low = keyspace::join(&coll.record_prefix, &sequence_key(tail.first()));
    let high = keyspace::prefix_end(&coll.record_prefix);
    let mut scan = view.scan(&low, &high, Direction::Forward);
    let (mut oldest, mut oldest_bytes): (Vec<Vec<u8>>, i64) = (Vec::new(), 0);
    let mut exhausted = false;
    while capped.is_over(records, bytes)
        && oldest.len() < MOST_REMOVED
        && oldest_bytes < MOST_REMOVED_BYTES
    {
        ctx.tick(1)?;
        if !scan.next()? {
            exhausted = true;
            break;
        }
        if oldest.is_empty()
            && let Some(first) = scan.key().get(PREFIX..).and_then(sequence_of)
        {
            tail.found_first(first);
        }
        let len = scan.value().len() as i64;
        oldest.push(scan.key().to_vec());
        oldest_bytes += len;
        records -= 1;
        bytes -= len;
    }
    drop(scan);
    let hashes: Vec<u64> = oldest.iter().map(|k| latch_hash(k)).collect();
    if !ctx.latch_more(latches, &hashes)? {
        return Ok(None);
    }
    // Another may have changed or deleted some of them before they were latched.
    let view = ctx.latest();
    let refs: Vec<&[u8]> = oldest.iter().map(|k| k.as_slice()).collect();
    let mut keys = KeySet::default();
    view.get_each(&refs, |at, value| {
        let doc = Doc::new(value)
            .ok_or_else(|| Error::internal(format!("a record of {} is damaged", coll.ns)))?;
        room.records += 1;
        room.bytes += value.len() as i64;
        let key = oldest[at].clone();
        records::delete_effects(coll, key, doc, &mut keys, &mut room.effects)?;
        Ok(true)
    })?;
    Ok(Some(if exhausted { (records, bytes) } else { (0, 0) }))
}
