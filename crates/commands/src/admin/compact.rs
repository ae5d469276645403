//! `compact`: has the engine rewrite a collection, so that deleted documents take no space.

use crate::request::{CommandContext, Done};
use crate::stats::sizes;
use catalog::keyspace;
use errors::{Result, Stop, bail};
use front::idl;

/// Less than this is not worth a file's rewriting: WiredTiger leaves files below it alone.
const LEAST_BYTES: u64 = 1 << 20;

/// Bytes freed as MongoDB tells them.
fn reported(freed: u64) -> i64 {
    if freed < LEAST_BYTES { 0 } else { freed as i64 }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let mut dry = false;
    for e in cx.args.fields.clone() {
        match e.name {
            "force" => drop(idl::boolean("compact", e)?),
            "freeSpaceTargetMB" => drop(idl::int_from("compact", e, 1)?),
            "dryRun" => dry = idl::safe_bool("compact", e)?.unwrap_or(false),
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let Some(coll) = cx.app.engine.catalog.get(&ns) else {
        bail!(NamespaceNotFound, "collection does not exist")
    };
    if coll.is_view() {
        bail!(CommandNotSupportedOnView, "can't compact a view");
    }
    if dry {
        // The engine notices deletes only as it merges: the bytes on disk beyond the documents' own are
        // the least that a rewrite gives back.
        let s = sizes(&cx.app.engine, &coll);
        cx.w.int(
            "estimatedBytesFreed",
            reported(s.storage.saturating_sub(s.data)),
        );
        return Ok(Done::Reply);
    }
    let before = sizes(&cx.app.engine, &coll);
    let (low, high) = keyspace::tablet_range(coll.tablet);
    cx.app
        .store
        .compact(&low, &high, &mut || cx.op.check().map_err(Stop::into_error))?;
    let after = sizes(&cx.app.engine, &coll);
    let freed =
        (before.storage + before.index_total()).saturating_sub(after.storage + after.index_total());
    cx.w.int("bytesFreed", reported(freed));
    Ok(Done::Reply)
}
