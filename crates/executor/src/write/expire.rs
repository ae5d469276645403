//! Expiry: deletes one batch of documents that a TTL index, or a clustered collection, says have
//! expired.
//!
//! Invariant: the index only proposes. The newest version of the document decides, under its latch:
//! it must still have a date before the limit in that index. So a partial index never expires what
//! it leaves out, and of an array the earliest date counts.

use crate::op::OpCtx;
use crate::records;
use crate::write::locked::LockedCollection;
use crate::write::record_write::{Decision, RecordWrite};
use bson::{Value, key};
use catalog::keyspace;
use catalog::{Collection, Index, IndexState};
use errors::Result;
use query::index_keys::KeySet;
use std::sync::Arc;
use storage::Direction;

/// The outcome of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    pub deleted: u64,
    /// No expired document is left.
    pub done: bool,
}

/// Deletes up to `most` documents of `started` whose date is before `before_millis`: the date in
/// the field of the index with this name, or `_id` without one. Ends early, as done, when the
/// collection or the index is gone or has become another.
pub fn expire(
    ctx: &mut OpCtx,
    started: &Collection,
    index: Option<&str>,
    before_millis: i64,
    most: usize,
) -> Result<Expired> {
    let over = Expired {
        deleted: 0,
        done: true,
    };
    let Some(target) = LockedCollection::existing(ctx, &started.ns)? else {
        return Ok(over);
    };
    let coll = target.coll.clone();
    let index = match index {
        None if !coll.is_numbered() => None,
        None => return Ok(over),
        Some(name) => match coll.index_named(name) {
            Some(i) if i.state == IndexState::Ready && i.info.key.fields.len() == 1 => {
                Some(i.clone())
            }
            _ => return Ok(over),
        },
    };
    if coll.uuid != started.uuid {
        return Ok(over);
    }
    let (low, high) = dates_before(index.as_deref(), before_millis);
    let found = old_records(ctx, &coll, index.as_deref(), (&low, &high), most)?;
    let done = found.len() < most;
    let mut keys = KeySet::default();
    let mut write = RecordWrite::of_records(ctx, target, &found)?;
    let is_old = |k: &[u8]| k >= low.as_slice() && k < high.as_slice();
    let staged = write.change_each(ctx, &found, |_, _, doc| {
        if let Some(index) = &index {
            records::keys_of(index, doc, &mut keys)?;
            if !keys.iter().any(|(k, _)| is_old(k)) {
                return Ok(Decision::Skip);
            }
        }
        Ok(Decision::Delete)
    })?;
    let deleted = staged.map_or(0, |staged| staged.changed);
    write.commit_unrecorded(ctx)?;
    Ok(Expired { deleted, done })
}

/// The range `[low, high)` of index keys (or record keys) that are dates before a moment.
fn dates_before(index: Option<&Index>, before_millis: i64) -> (Vec<u8>, Vec<u8>) {
    let descending = index
        .and_then(|i| i.info.key.fields.first())
        .is_some_and(|f| f.descending);
    let encode = |millis: i64| {
        let mut k = Vec::with_capacity(10);
        key::encode(Value::date(millis).as_val(), descending, &mut k, None);
        k
    };
    // Without one the range would have no bound, and all documents would expire.
    let successor = |date: &[u8]| key::successor(date).expect("a date's key begins with its type");
    let (first, end) = (encode(i64::MIN), encode(before_millis));
    match descending {
        false => (first, end),
        // Descending: the range begins after the limit and ends with the oldest date.
        true => (successor(&end), successor(&first)),
    }
}

/// The keys of up to `most` records in the range, each once.
fn old_records(
    ctx: &mut OpCtx,
    coll: &Arc<Collection>,
    index: Option<&Index>,
    (low, high): (&[u8], &[u8]),
    most: usize,
) -> Result<Vec<Vec<u8>>> {
    let prefix = index.map_or(&coll.record_prefix, |i| &i.prefix);
    let view = ctx.latest();
    let mut scan = view.scan(
        &keyspace::join(prefix, low),
        &keyspace::join(prefix, high),
        Direction::Forward,
    );
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    while found.len() < most && scan.next()? {
        ctx.tick(1)?;
        let record_key = match index {
            None => scan.key().to_vec(),
            Some(i) => {
                let rest = records::own_part(scan.key());
                let descending = i.info.key.fields.first().is_some_and(|f| f.descending);
                let n =
                    key::field_len(rest, descending).ok_or_else(|| records::damaged_entry(i))?;
                let (record, _) = records::key_and_types(i, rest, n, scan.value())?;
                coll.record_key(record)
            }
        };
        if seen.insert(record_key.clone()) {
            found.push(record_key);
        }
    }
    Ok(found)
}
