//! Where whole collections and databases are: `movePrimary`, `moveCollection`, and another shard key
//! for the same places: `refineCollectionShardKey`.

use super::done;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, ObjectId, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::chunks::{Lock, MetadataChange, lock, replace};
use cluster_view::collections::entry_doc;
use cluster_view::collections::new_life;
use cluster_view::collections::{indexes_of, listed};
use cluster_view::metadata::{Cluster, Placement};
use errors::err;
use mover::PendingMoves;
use mover::track::track;
use mover::transfer::{move_primary, move_range_under, table_under};
use sharding::{Chunk, CollectionEntry, RoutingTable, ShardKey, series};

fn text<'a>(command: &RoutedCommand<'a>, names: &[&str]) -> Outcome<&'a str> {
    let found = names.iter().find_map(|name| command.field(name)?.as_str());
    Ok(found.filter(|s| !s.is_empty()).ok_or_else(|| {
        err!(
            IDLFailedToParse,
            "BSON field '{}.{}' is missing but a required field",
            command.name,
            names.first().unwrap_or(&"")
        )
    })?)
}

pub(super) fn primary(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let db = command.collection();
    if db.is_empty() || db.contains('.') {
        return Err(err!(InvalidNamespace, "invalid database name: '{db}'").into());
    }
    if matches!(db, "admin" | "config" | "local") {
        return Err(err!(InvalidOptions, "Can't move primary for {db} database").into());
    }
    let to = text(command, &["to", "toShard"])?;
    router.cluster.shard(to)?;
    move_primary(&router.cluster, db, to)?;
    router.cluster.forget_database(db);
    Ok(done())
}

pub(super) fn collection(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let cluster = &router.cluster;
    let Some((db, _)) = ns.split_once('.') else {
        return Err(err!(InvalidNamespace, "Invalid namespace specified '{ns}'").into());
    };
    let to = text(command, &["toShard"])?;
    cluster.shard(to)?;
    let database = lock(cluster, db)?;
    cluster.end_pending_moves_under(&database, db)?;
    let held = lock(cluster, ns)?;
    cluster.end_pending_moves_under(&held, ns)?;
    let unsharded = match cluster.refresh(ns)? {
        Some(Placement::Unsharded(unsharded)) => unsharded,
        Some(Placement::Sharded(_)) => {
            return Err(err!(
                NamespaceNotFound,
                "MoveCollection can only be called on an unsharded collection."
            )
            .into());
        }
        None => return Err(cluster_view::routing::no_database(db)),
    };
    let moved = movable(cluster, ns, &unsharded.shard)?;
    let of_buckets = match moved == ns {
        true => None,
        false => Some(lock(cluster, &moved)?),
    };
    let held = of_buckets.as_ref().unwrap_or(&held);
    cluster.end_pending_moves_under(held, &moved)?;
    let table = track(cluster, (held, &database), &moved, &unsharded.shard)?;
    drop(database);
    let (min, max) = (table.key().global_min(), table.key().global_max());
    move_range_under(cluster, held, &moved, min.as_doc(), max.as_doc(), to)?;
    cluster.forget(ns);
    Ok(done())
}

/// The collection of documents that is to be moved: of a time series that of its buckets.
fn movable(cluster: &Cluster, ns: &str, shard: &str) -> Outcome<String> {
    let found = listed(cluster, shard, ns)?;
    match found.as_ref().and_then(|d| d.get("type")?.as_str()) {
        None => Err(err!(NamespaceNotFound, "Namespace {ns} not found").into()),
        Some("collection") => Ok(ns.into()),
        Some("timeseries") => Ok(series::buckets_of(ns)),
        Some("view") => Err(err!(
            CommandNotSupportedOnView,
            "Can't move view {ns} to another shard"
        )
        .into()),
        Some(kind) => Err(err!(InvalidOptions, "Can't move {ns}, which is a {kind}").into()),
    }
}

/// A bound under the longer key: the added fields are MinKey, in the last bound MaxKey.
fn longer(key: &ShardKey, bound: &DocBuf) -> DocBuf {
    let last = bound
        .as_doc()
        .iter()
        .all(|e| e.val.tag == bson::tag::MAX_KEY);
    let mut w = Writer::new();
    w.extend(bound.as_doc());
    for name in key.names().skip(bound.as_doc().count()) {
        w.val(name, if last { Val::MAX_KEY } else { Val::MIN_KEY });
    }
    w.finish()
}

/// Adds fields to the end of a collection's shard key. All documents stay where they are.
pub(super) fn refine(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let cluster = &router.cluster;
    let Some(pattern) = command.document("key") else {
        return Err(err!(
            IDLFailedToParse,
            "BSON field 'refineCollectionShardKey.key' is missing but a required field"
        )
        .into());
    };
    let key = ShardKey::parse(pattern)?;
    let held = lock(cluster, ns)?;
    let table = table_under(cluster, &held, ns)?;
    if table.entry.unsplittable {
        return Err(err!(NamespaceNotSharded, "{ns} is not sharded").into());
    }
    if table.entry.series.is_some() {
        return Err(err!(
            NotImplemented,
            "the shard key of a time series is not refined: {ns}"
        )
        .into());
    }
    if key == *table.key() {
        return Ok(done());
    }
    if !table.key().is_prefix_of(pattern) || table.key().is_hashed() != key.is_hashed() {
        return Err(err!(
            InvalidOptions,
            "refineCollectionShardKey shard key {pattern} does not extend the current shard key {}",
            table.key().pattern()
        )
        .into());
    }
    for shard in table.shards() {
        check_index(cluster, shard, ns, &key, table.entry.unique)?;
    }
    refine_to(cluster, &held, &table, key)?;
    cluster.teach_all(ns)?;
    Ok(finish(Writer::new(), &[]))
}

fn check_index(
    cluster: &Cluster,
    shard: &str,
    ns: &str,
    key: &ShardKey,
    unique: bool,
) -> Outcome<()> {
    let serves = |i: &DocBuf| {
        let plain = !["sparse", "partialFilterExpression", "collation"]
            .iter()
            .any(|o| i.get(o).is_some_and(Val::truthy));
        let only = i.get("unique").is_some_and(Val::truthy) || !unique;
        let fields = i.get("key").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
        plain && only && key.is_prefix_of(fields)
    };
    match indexes_of(cluster, shard, ns)?.iter().any(serves) {
        true => Ok(()),
        false => Err(err!(
            InvalidOptions,
            "Please create an index that starts with the proposed shard key before refining the shard key"
        )
        .into()),
    }
}

fn refine_to(
    cluster: &Cluster,
    held: &Lock<'_>,
    table: &RoutingTable,
    key: ShardKey,
) -> Outcome<()> {
    let entry = CollectionEntry {
        key: key.clone(),
        epoch: ObjectId::generate(),
        timestamp: new_life(cluster).max(table.entry.timestamp + 1),
        ..table.entry.clone()
    };
    let new: Vec<Chunk> = table
        .chunks()
        .map(|c| Chunk {
            min: longer(&key, &c.min),
            max: longer(&key, &c.max),
            ..c.clone()
        })
        .collect();
    let ns = &entry.ns;
    let tags = cluster.read_config("tags", doc! {"ns": ns.as_str()}.as_doc(), Doc::EMPTY)?;
    let mut change = MetadataChange::begin(held);
    change.remove("collections", doc! {"_id": ns.as_str()});
    change.insert("collections", &[entry_doc(&entry)]);
    let old: Vec<Chunk> = table.chunks().cloned().collect();
    replace(&mut change, &entry.uuid, &old, &new);
    for tag in tags {
        let bound = |name: &str| tag.get(name).and_then(Val::as_doc).map(Doc::to_buf);
        if let (Some(id), Some(min), Some(max)) = (tag.get("_id"), bound("min"), bound("max")) {
            let set = doc! {"min": longer(&key, &min), "max": longer(&key, &max)};
            change.update("tags", doc! {"_id": id.to_value()}, doc! {"$set": set});
        }
    }
    change.commit()
}
