//! `collStats`.

use super::{Sizes, sizes};
use crate::oplog_view;
use crate::request::{CommandContext, Done};
use bson::Writer;
use catalog::time_series::BucketFigures;
use catalog::{Collection, IndexState};
use errors::{Result, bail};
use front::{Args, idl};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The collection, and by what its sizes are divided.
fn arguments(args: &Args<'_>) -> Result<(String, i64)> {
    let ns = args.namespace()?;
    let mut scale = 1;
    for e in args.fields.iter().copied() {
        match e.name {
            "scale" => scale = idl::int("collStats", e)?.unwrap_or(1),
            "verbose" | "waitForLock" | "numericOnly" => {}
            _ => return Err(args.unknown(e)),
        }
    }
    if scale < 1 {
        bail!(
            BadValue,
            "BSON field 'scale' value must be >= 1, actual value '{scale}'"
        );
    }
    Ok((ns, scale))
}

/// The reply about a collection that is not there.
pub fn write_absent(args: &Args<'_>, w: &mut Writer) -> Result<()> {
    let (ns, scale) = arguments(args)?;
    w.str("ns", &ns);
    append_nothing(w, scale);
    Ok(())
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, scale) = arguments(&cx.args)?;
    let coll = cx.app.engine.catalog.get(&ns);
    let below = |c: &Arc<Collection>| c.measurements().map(|_| time_series::buckets_of(&c.ns));
    if let Some(buckets) = coll.as_ref().and_then(below) {
        cx.w.str("ns", &ns);
        let catalog = &cx.app.engine.catalog;
        match catalog.get(&buckets) {
            Some(c) => append_series(&mut cx.w, &c, &sizes(&cx.app.engine, &c), scale),
            None => append_nothing(&mut cx.w, scale),
        }
        return Ok(Done::Reply);
    }
    if coll.as_ref().is_some_and(|c| c.is_view()) {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    cx.w.str("ns", &ns);
    match coll {
        None if oplog_view::is_it(cx, &ns) => {
            oplog_view::append_stats(&mut cx.w, &cx.app.store, scale)
        }
        Some(c) => append(&mut cx.w, &c, &sizes(&cx.app.engine, &c), scale),
        None => append_nothing(&mut cx.w, scale),
    }
    Ok(Done::Reply)
}

/// The statistics of a collection that is not there.
pub fn append_nothing(w: &mut Writer, scale: i64) {
    w.i32("size", 0)
        .i32("count", 0)
        .i32("numOrphanDocs", 0)
        .i32("storageSize", 0)
        .i32("totalSize", 0);
    w.i32("nindexes", 0)
        .i32("totalIndexSize", 0)
        .open_doc("indexDetails")
        .close()
        .open_doc("indexSizes")
        .close();
    w.int("scaleFactor", scale);
}

/// The statistics of a time series, whose buckets these are.
pub fn append_series(w: &mut Writer, buckets: &Collection, s: &Sizes, scale: i64) {
    w.open_doc("timeseries")
        .str("bucketsNs", &buckets.ns)
        .int("bucketCount", s.count as i64)
        .int("avgBucketSize", s.average() as i64);
    append_bucket_figures(w, &buckets.young.figures);
    w.close();
    let mut all = Writer::new();
    append(&mut all, buckets, s, scale);
    // How many measurements there are is not known of buckets.
    for e in all.finish().as_doc() {
        if !matches!(e.name, "count" | "avgObjSize") {
            w.val(e.name, e.val);
        }
    }
}

/// Nothing is kept open here: each measurement is in a bucket on its own way to the disk, and buckets
/// are packed later, which counts as their update.
fn append_bucket_figures(w: &mut Writer, figures: &BucketFigures) {
    let number = |n: &AtomicU64| n.load(Relaxed) as i64;
    let (made, measurements) = (number(&figures.made), number(&figures.measurements));
    w.i64("numBucketInserts", made)
        .i64("numBucketUpdates", number(&figures.packed))
        .i64("numBucketsOpenedDueToMetadata", made);
    w.i64("numBucketsClosedDueToCount", number(&figures.full_by_count))
        .i64("numBucketsClosedDueToSize", number(&figures.full_by_size))
        .i64(
            "numBucketsClosedDueToTimeForward",
            number(&figures.full_by_time),
        );
    for never in [
        "numBucketsClosedDueToCachePressure",
        "numBucketsClosedDueToSchemaChange",
        "numBucketsClosedDueToTimeBackward",
        "numBucketsClosedDueToMemoryThreshold",
        "numBucketsClosedDueToReopening",
        "numBucketsArchivedDueToMemoryThreshold",
        "numBucketsArchivedDueToTimeBackward",
        "numBucketsReopened",
        "numBucketsKeptOpenDueToLargeMeasurements",
        "numBucketFetchesFailed",
        "numBucketQueriesFailed",
        "numWaits",
    ] {
        w.i64(never, 0);
    }
    w.i64("numCommits", made)
        .i64("numMeasurementsCommitted", measurements);
    if let Some(average) = measurements.checked_div(made) {
        w.i64("avgNumMeasurementsPerCommit", average);
    }
}

/// The statistics of a collection, sizes divided by `scale`: also `storageStats` of `$collStats`.
pub fn append(w: &mut Writer, c: &Collection, s: &Sizes, scale: i64) {
    let scaled = |n: u64| (n / scale.unsigned_abs().max(1)) as i64;
    w.int("size", scaled(s.data)).int("count", s.count as i64);
    if s.count > 0 {
        w.int("avgObjSize", s.average() as i64);
    }
    w.i32("numOrphanDocs", 0)
        .int("storageSize", scaled(s.storage))
        .int("freeStorageSize", 0)
        .bool("capped", c.capped.is_some());
    if let Some(capped) = &c.capped {
        w.int("max", capped.max.unwrap_or(0) as i64)
            .int("maxSize", scaled(capped.size_bytes));
    }
    w.int("nindexes", s.indexes.len() as i64);
    w.open_doc("indexDetails");
    for (name, n) in &s.indexes {
        w.open_doc(name);
        append_table(w, &format!("{}/{name}", c.ns), *n);
        w.close();
    }
    w.close().open_array("indexBuilds");
    for i in c.indexes.iter().filter(|i| i.state == IndexState::Building) {
        w.push_value(i.name());
    }
    w.close()
        .int("totalIndexSize", scaled(s.index_total()))
        .int("totalSize", scaled(s.storage + s.index_total()));
    w.open_doc("indexSizes");
    for (name, n) in &s.indexes {
        w.int(name, scaled(*n));
    }
    w.close();
    w.open_doc("wiredTiger");
    append_table(w, &c.ns, s.storage);
    w.close().int("scaleFactor", scale);
}

/// What tools read of an engine's table: its file's size, and what of that could be given back. Both are
/// of the engine's files, in bytes whatever the scale is; nothing in them waits to be used again.
fn append_table(w: &mut Writer, of: &str, bytes: u64) {
    w.open_doc("metadata").i32("formatVersion", 1).close();
    w.str("creationString", "")
        .str("type", "file")
        .str("uri", &format!("statistics:table:{of}"));
    w.open_doc("block-manager")
        .int("file size in bytes", bytes as i64)
        .i32("file bytes available for reuse", 0)
        .close();
}
