//! What is told of `local.oplog.rs`, which is a view of the log and no collection of the catalog.

use crate::request::CommandContext;
use bson::{DocBuf, Writer};
use storage::Store;

/// The namespace, where there is a replica set and so an oplog.
pub fn is_it(cx: &CommandContext<'_, '_>, ns: &str) -> bool {
    ns == executor::OPLOG && cx.app.config.topology.set_name().is_some()
}

/// How many entries there are.
pub fn documents(store: &Store) -> u64 {
    (store.durable_index() + 1).saturating_sub(store.first_log_index())
}

/// Of `collStats` and `$collStats`.
pub fn append_stats(w: &mut Writer, store: &Store, scale: i64) {
    let stats = store.stats();
    let scaled = |n: u64| (n / scale.unsigned_abs().max(1)) as i64;
    let count = documents(store);
    w.int("size", scaled(stats.log_bytes))
        .int("count", count as i64);
    if let Some(average) = stats.log_bytes.checked_div(count) {
        w.int("avgObjSize", average as i64);
    }
    w.i32("numOrphanDocs", 0)
        .int("storageSize", scaled(stats.log_bytes))
        .int("freeStorageSize", 0)
        .bool("capped", true)
        .int("max", 0)
        .int("maxSize", scaled(stats.log_window.max_bytes));
    w.i32("nindexes", 0).open_doc("indexDetails").close();
    w.open_array("indexBuilds").close().i32("totalIndexSize", 0);
    w.int("totalSize", scaled(stats.log_bytes))
        .open_doc("indexSizes")
        .close();
    w.int("scaleFactor", scale);
}

/// As listCollections shows it.
pub fn describe(store: &Store, name_only: bool) -> DocBuf {
    let mut w = Writer::new();
    w.str("name", "oplog.rs").str("type", "collection");
    if !name_only {
        w.open_doc("options").bool("capped", true);
        let bytes = store.stats().log_window.max_bytes;
        w.i64("size", i64::try_from(bytes).unwrap_or(i64::MAX));
        w.bool("autoIndexId", false).close();
        w.open_doc("info").bool("readOnly", false).close();
    }
    w.finish()
}
