//! Chunks of collections that are not sharded, which say where these are.

use bson::{ObjectId, doc};
use cluster_view::Outcome;
use cluster_view::chunks::{Lock, MetadataChange, index_chunks};
use cluster_view::collections::{entry_doc, new_life, options_of, uuid, uuid_of, whole_chunk};
use cluster_view::metadata::Cluster;
use sharding::{CollectionEntry, RoutingTable, Series, ShardKey, series};
use std::sync::Arc;

/// Says of a collection that is not sharded where it is, by a chunk of its own. No document moves, so a
/// router that does not know of this yet still sends commands to the right shard. It fails if one of the
/// two locks is lost, the collection's or the database's: without them the collection may be on another
/// shard by now.
pub fn track(
    cluster: &Cluster,
    (held, database): (&Lock<'_>, &Lock<'_>),
    ns: &str,
    shard: &Arc<str>,
) -> Outcome<RoutingTable> {
    if let Some(table) = cluster.read_table(ns)? {
        return Ok(table);
    }
    let key = ShardKey::parse(doc! {"_id": 1}.as_doc())?;
    let chunk = whole_chunk(&key, shard);
    let entry = CollectionEntry {
        ns: ns.into(),
        uuid: uuid_of(cluster, shard, ns)?.unwrap_or_else(uuid),
        unique: false,
        unsplittable: true,
        epoch: ObjectId::generate(),
        timestamp: new_life(cluster),
        collation: None,
        series: series_on(cluster, shard, ns, &key)?,
        measured: false,
        key,
    };
    index_chunks(cluster)?;
    let mut change = MetadataChange::begin(held);
    change.holding(database);
    change.insert("collections", &[entry_doc(&entry)]);
    change.insert("chunks", &[chunk.to_doc(&entry.uuid)]);
    change.commit()?;
    Ok(RoutingTable::new(entry, vec![chunk])?)
}

/// The measurements of a collection of buckets, as a shard has them.
fn series_on(cluster: &Cluster, shard: &str, ns: &str, key: &ShardKey) -> Outcome<Option<Series>> {
    let Some(shown) = series::measurements_of(ns) else {
        return Ok(None);
    };
    let options = options_of(cluster, shard, &shown)?;
    let told = options.as_ref().and_then(|o| o.get("timeseries")?.as_doc());
    Ok(told.and_then(|told| Series::new(told, key)))
}
