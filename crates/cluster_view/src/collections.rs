//! Collections as shards have them: indexes, options, sizes, search indexes; and what the metadata says
//! of a new one.

use crate::metadata::{Cluster, all, run};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, doc};
use errors::{Code, err};
use sharding::{Chunk, CollectionEntry, ShardKey, Version};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

pub fn uuid() -> [u8; 16] {
    let mut id: [u8; 16] = rand::random();
    id[6] = id[6] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    id
}

/// A BSON timestamp of now, later each time. Behind its seconds are nanoseconds, so that what another
/// router makes afterwards is later too.
pub fn now() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.map_or(0, |d| d.as_secs() << 32 | u64::from(d.subsec_nanos()));
    let after = |last: u64| Some(now.max(last + 1));
    match LAST.fetch_update(Relaxed, Relaxed, after) {
        Ok(last) | Err(last) => now.max(last + 1),
    }
}

pub fn indexes_of(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<Vec<DocBuf>> {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let found = all(
        &*cluster.shard(shard)?,
        db,
        doc! {"listIndexes": collection}.as_doc(),
    );
    match found {
        Err(Failure::Client(e)) if e.code == Code::NamespaceNotFound => Ok(Vec::new()),
        other => other,
    }
}

/// A shard's collection, or view, as it lists it.
pub fn listed(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<Option<DocBuf>> {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let list = doc! {"listCollections": 1, "filter": doc! {"name": collection}};
    let found = all(&*cluster.shard(shard)?, db, list.as_doc())?;
    Ok(found.into_iter().next())
}

/// The UUID of a shard's collection.
pub fn uuid_of(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<Option<[u8; 16]>> {
    let listed = listed(cluster, shard, ns)?;
    Ok(listed.and_then(|d| {
        let info = d.get("info")?.as_doc()?;
        info.get("uuid")?.as_binary()?.1.try_into().ok()
    }))
}

/// The options of a shard's collection.
pub fn options_of(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<Option<DocBuf>> {
    let listed = listed(cluster, shard, ns)?;
    Ok(listed.and_then(|d| Some(d.get("options")?.as_doc()?.to_buf())))
}

/// How many bytes a shard has of a collection.
pub fn size_on(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<(u64, u64)> {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let set = cluster.shard(shard)?;
    match run(&set, db, doc! {"collStats": collection}.as_doc()) {
        Ok(reply) => {
            let number = |name: &str| reply.get(name).and_then(Val::to_f64).unwrap_or(0.0) as u64;
            Ok((number("size"), number("count")))
        }
        Err(Failure::Client(e)) if e.code == Code::NamespaceNotFound => Ok((0, 0)),
        Err(e) => Err(e),
    }
}

/// How many bytes a shard has of each of the collections, in their order.
pub fn sizes_on(cluster: &Cluster, shard: &str, names: &[&str]) -> Outcome<Vec<u64>> {
    // A message of this many names stays below the limit of a document.
    const AT_ONCE: usize = 10_000;
    let set = cluster.shard(shard)?;
    let mut sizes = Vec::with_capacity(names.len());
    for part in names.chunks(AT_ONCE) {
        let mut w = Writer::new();
        w.i32("_pandoSizes", 1).open_array("collections");
        for ns in part {
            w.push_value(*ns);
        }
        w.close();
        let reply = run(&set, "admin", w.finish().as_doc())?;
        let bytes = reply.get("bytes").and_then(Val::as_array);
        let bytes = bytes.unwrap_or(Doc::EMPTY).values();
        sizes.extend(bytes.map(|v| v.to_f64().unwrap_or(0.0) as u64));
    }
    match sizes.len() == names.len() {
        true => Ok(sizes),
        false => Err(err!(
            InternalError,
            "shard {shard} told other sizes than it was asked for"
        )
        .into()),
    }
}

/// The collections of which a shard has more than `above` bytes, with how many; sharded or not. `None`: the
/// shard is of a release that tells of named collections only.
pub fn large_on(cluster: &Cluster, shard: &str, above: u64) -> Outcome<Option<Vec<(String, u64)>>> {
    let set = cluster.shard(shard)?;
    let (mut large, mut after) = (Vec::new(), String::new());
    loop {
        let ask = doc! {
            "_pandoSizes": 1, "collections": bson::array![],
            "above": i64::try_from(above).unwrap_or(i64::MAX), "after": after.as_str(),
        };
        let reply = run(&set, "admin", ask.as_doc())?;
        let Some(told) = reply.get("large").and_then(Val::as_array) else {
            return Ok(None);
        };
        let of = |d: Doc<'_>| {
            Some((
                d.get("ns")?.as_str()?.to_string(),
                d.get("bytes")?.to_f64()?,
            ))
        };
        let told = told.values().filter_map(|v| of(v.as_doc()?));
        large.extend(told.map(|(ns, bytes)| (ns, bytes as u64)));
        match large.last() {
            Some((last, _)) if reply.get("more").is_some_and(Val::truthy) && *last > after => {
                after = last.clone();
            }
            _ => return Ok(Some(large)),
        }
    }
}

/// The definitions that a shard has of a collection: `{id, name, type, version, definition}`.
pub fn search_definitions(cluster: &Cluster, shard: &str, ns: &str) -> Outcome<Vec<DocBuf>> {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let ask = doc! {
        "aggregate": collection,
        "pipeline": bson::array![doc! {"$listSearchIndexes": doc! {}}],
        "cursor": doc! {},
    };
    let rows = all(&*cluster.shard(shard)?, db, ask.as_doc())?;
    let definition = |row: &DocBuf| {
        let mut w = Writer::new();
        for (name, told) in [
            ("id", "id"),
            ("name", "name"),
            ("type", "type"),
            ("version", "latestVersion"),
            ("definition", "latestDefinition"),
        ] {
            w.val(name, row.get(told).unwrap_or(Val::NULL));
        }
        w.finish()
    };
    Ok(rows.iter().map(definition).collect())
}

/// Gives a shard the definitions that another one has.
pub fn copy_search_definitions(
    cluster: &Cluster,
    (from, ns): (&str, &str),
    (to, into): (&str, &str),
) -> Outcome<()> {
    let there = search_definitions(cluster, from, ns)?;
    if there.is_empty() && search_definitions(cluster, to, into)?.is_empty() {
        return Ok(());
    }
    let (db, collection) = into.split_once('.').unwrap_or((into, ""));
    let mut w = Writer::new();
    w.str("createSearchIndexes", collection)
        .open_array("indexes")
        .close()
        .open_array("pandoLike");
    there.iter().for_each(|d| {
        w.push(d.as_doc().as_val());
    });
    w.close()
        .doc("writeConcern", doc! {"w": "majority"}.as_doc())
        .bool("mayBypassWriteBlocking", true);
    run(&*cluster.shard(to)?, db, w.finish().as_doc())?;
    Ok(())
}

/// A timestamp for a new life of a collection, or of a database: later than what shards have told of,
/// and than each that was given before.
pub fn new_life(cluster: &Cluster) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let at_least = now().max(cluster.time() + 1);
    let after = |last: u64| Some(at_least.max(last + 1));
    match LAST.fetch_update(Relaxed, Relaxed, after) {
        Ok(last) | Err(last) => at_least.max(last + 1),
    }
}

/// The first chunk of a collection: all of it, on one shard.
pub fn whole_chunk(key: &ShardKey, shard: &Arc<str>) -> Chunk {
    Chunk {
        id: ObjectId::generate(),
        min: key.global_min(),
        max: key.global_max(),
        shard: shard.clone(),
        lastmod: Version::placement_of(1, 0),
        jumbo: false,
        since: now(),
        turn: 0,
    }
}

/// A document of `config.collections`.
pub fn entry_doc(entry: &CollectionEntry) -> DocBuf {
    let mut w = Writer::new();
    w.str("_id", &entry.ns).oid("lastmodEpoch", entry.epoch);
    w.value(
        "lastmod",
        Value::date((entry.timestamp >> 32) as i64 * 1000),
    );
    w.timestamp("timestamp", entry.timestamp)
        .binary("uuid", 4, &entry.uuid)
        .doc("key", entry.key.pattern())
        .bool("unique", entry.unique)
        .bool("noBalance", false);
    if let Some(series) = &entry.series {
        w.doc("timeseriesFields", series.options());
    }
    if let Some(collation) = &entry.collation {
        w.doc("defaultCollation", collation.as_doc());
    }
    if entry.unsplittable {
        w.bool("unsplittable", true);
    }
    w.finish()
}

/// Whether an entry of `config.collections` says that no range may move.
pub fn forbids_moves(entry: Doc<'_>) -> bool {
    entry.get("permitMigrations").is_some_and(|v| !v.truthy())
}
