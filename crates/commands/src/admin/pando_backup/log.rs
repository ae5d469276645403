//! Entries of the log, for archives elsewhere.

use super::AT;
use crate::request::CommandContext;
use bson::{Doc, Val};
use errors::{Result, bail, err};
use front::idl;
use storage::{Entry, Record, Store, pack_record, record_fingerprint};

/// Of entries in one reply, unless the first alone is longer.
const MOST_BYTES: usize = 4 << 20;

/// Tells entries behind `after`. A log that has no entry of that place, timestamp and fingerprint is another one, or was cut at its
/// beginning: CappedPositionLost. Without a timestamp any entry is right.
pub(super) fn tell(
    cx: &mut CommandContext<'_, '_>,
    after: Option<Doc<'_>>,
    reach: u64,
) -> Result<()> {
    let after = idl::required(AT, "after", after)?;
    let index = after.get("index").and_then(Val::to_i64_exact);
    let index = u64::try_from(idl::required(AT, "after.index", index)?).unwrap_or(0);
    let ts = after.get("timestamp").and_then(Val::as_timestamp);
    let print = after.get("fingerprint").and_then(Val::as_i64);
    if reach > 0 {
        go_on(cx, reach);
    }
    let print = print.map(i64::cast_unsigned);
    let packed = gather(&cx.app.store, index, ts.unwrap_or(0), print)?;
    cx.w.i64("entries", packed.entries)
        .i64("index", packed.last.0 as i64)
        .timestamp("timestamp", packed.last.1)
        .bool("more", packed.more)
        .binary("data", 0, &packed.bytes);
    Ok(())
}

/// Has an idle server's log go on past a time of the cluster: an entry without content.
fn go_on(cx: &CommandContext<'_, '_>, reach: u64) {
    let store = &cx.app.store;
    let takes_writes = cx.app.replica.as_ref().is_none_or(|r| r.is_open());
    if takes_writes && store.log_end_ts() < reach && !cx.app.engine.fsync_lock.is_closed() {
        store.advance_clock(reach);
        // A failure shows at the next write.
        let _ = store.propose(vec![Entry::noop(vec![])]);
    }
}

#[derive(Default)]
struct Packed {
    bytes: Vec<u8>,
    entries: i64,
    /// Index and timestamp of the last, or the requested ones.
    last: (u64, u64),
    /// Whether there is more at once.
    more: bool,
}

fn gather(store: &Store, after: u64, ts: u64, print: Option<u64>) -> Result<Packed> {
    let decided = store.durable_index();
    let mut packed = Packed {
        last: (after, ts),
        ..Packed::default()
    };
    let first = match ts {
        0 => after + 1,
        _ => after,
    };
    let lacks = || {
        err!(
            CappedPositionLost,
            "the log has no entry {after}: it goes from {} to {}",
            store.first_log_index(),
            store.log_end()
        )
    };
    if first < store.first_log_index() || after > store.log_end() {
        return Err(lacks().into());
    }
    let mut goes_on = ts == 0;
    let mut reader = store.read_log(first)?;
    while let Some(record) = reader.next().map_err(errors::Error::from)? {
        if record.index > decided {
            break;
        }
        if record.index == after {
            check_same(&record, ts, print)?;
            goes_on = true;
            continue;
        }
        if packed.bytes.len() >= MOST_BYTES {
            packed.more = true;
            break;
        }
        pack_record(&record, &mut packed.bytes);
        packed.entries += 1;
        packed.last = (record.index, record.ts);
    }
    match goes_on {
        true => Ok(packed),
        false => Err(lacks().into()),
    }
}

fn check_same(record: &Record<'_>, ts: u64, print: Option<u64>) -> Result<()> {
    let same = print.is_none_or(|print| print == record_fingerprint(record));
    match record.ts == ts && same {
        true => Ok(()),
        false => bail!(
            CappedPositionLost,
            "entry {} of the log is another one: this is the log of another server, or of another life of this one",
            record.index
        ),
    }
}
