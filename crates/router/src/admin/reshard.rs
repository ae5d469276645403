//! Another shard key for a collection that is sharded, or none: `reshardCollection`,
//! `unshardCollection`, and commands to the resharding that runs.

use super::done;
use crate::request::RoutedCommand;
use crate::state::Router;
use bson::{Doc, DocBuf, ObjectId, Val, Writer, doc};
use cluster_view::chunks::lock;
use cluster_view::collections::indexes_of;
use cluster_view::metadata::Cluster;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use mover::transfer;
use mover::transfer::{ReshardPlan, table_under};
use sharding::zones::Zone;
use sharding::{Place, RoutingTable, ShardKey, split};
use std::collections::BTreeMap;
use std::sync::Arc;

/// As MongoDB's.
const MOST_CHUNKS: i64 = 100_000;
/// Documents that are looked at for each range.
const SAMPLES: i64 = 20;

/// Turns a conflict of locks into MongoDB's error for a collection that is being changed.
fn busy(failure: Failure) -> Failure {
    match failure {
        Failure::Client(e) if e.code == Code::ConflictingOperationInProgress => err!(
            ReshardCollectionInProgress,
            "another operation changes the collection: {}",
            e.message
        )
        .into(),
        other => other,
    }
}

pub(super) fn reshard_collection(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let cluster = &router.cluster;
    let Some(pattern) = command.document("key") else {
        return Err(err!(
            IDLFailedToParse,
            "BSON field 'reshardCollection.key' is missing but a required field"
        )
        .into());
    };
    let key = ShardKey::parse(pattern)?;
    if command.is("unique") {
        return Err(err!(
            BadValue,
            "a collection cannot be resharded with a unique key"
        )
        .into());
    }
    let asked = command.int("numInitialChunks");
    if asked.is_some_and(|n| !(1..=MOST_CHUNKS).contains(&n)) {
        return Err(err!(
            BadValue,
            "BSON field 'numInitialChunks' value must be >= 1 and <= {MOST_CHUNKS}"
        )
        .into());
    }
    let held = lock(cluster, ns).map_err(busy)?;
    let table = sharded(cluster, &held, ns)?;
    if key == *table.key() && !command.is("forceRedistribution") {
        return Ok(done());
    }
    let tags = tags(command, ns, &key)?;
    let ranges = ranges(cluster, &table, &key, asked)?;
    let plan = ReshardPlan {
        index: index_for(cluster, &table, &key)?,
        unique: false,
        unsplittable: false,
        key,
        ranges,
        tags,
    };
    transfer::reshard(cluster, &held, table, plan)?;
    cluster.forget(ns);
    Ok(done())
}

fn sharded(
    cluster: &Cluster,
    held: &cluster_view::chunks::Lock<'_>,
    ns: &str,
) -> Outcome<Arc<RoutingTable>> {
    let table = table_under(cluster, held, ns)?;
    if table.entry.series.is_some() {
        return Err(err!(
            NotImplemented,
            "reshardCollection command cannot be called on a sharded time-series collection"
        )
        .into());
    }
    match table.entry.unsplittable {
        false => Ok(table),
        true => Err(err!(NamespaceNotSharded, "Namespace {ns} is not sharded").into()),
    }
}

pub(super) fn unshard(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let cluster = &router.cluster;
    let held = lock(cluster, ns).map_err(busy)?;
    let table = sharded(cluster, &held, ns)?;
    let to: Arc<str> = match command.field("toShard").and_then(Val::as_str) {
        Some(to) => to.into(),
        None => {
            let db = ns.split_once('.').map_or(ns, |(db, _)| db);
            let primary = cluster.database(db)?;
            primary.ok_or_else(|| cluster_view::routing::no_database(db))?
        }
    };
    cluster.shard(&to)?;
    let key = ShardKey::parse(doc! {"_id": 1}.as_doc())?;
    let plan = ReshardPlan {
        ranges: vec![(key.global_min(), key.global_max(), to)],
        key,
        unique: false,
        unsplittable: true,
        tags: Vec::new(),
        index: None,
    };
    transfer::reshard(cluster, &held, table, plan)?;
    cluster.forget(ns);
    Ok(done())
}

pub(super) fn abort(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    transfer::abort(&router.cluster, command.collection())?;
    Ok(done())
}

/// It commits as soon as it can.
pub(super) fn commit(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let filter = doc! {"_id": command.collection(), "kind": "reshard"};
    let found = router
        .cluster
        .read_config("migrations", filter.as_doc(), Doc::EMPTY)?;
    match found.is_empty() {
        false => Ok(done()),
        true => Err(err!(
            NoSuchReshardCollection,
            "Could not find in-progress resharding operation to commit"
        )
        .into()),
    }
}

/// The zones of the new key.
fn tags(command: &RoutedCommand<'_>, ns: &str, key: &ShardKey) -> Outcome<Vec<DocBuf>> {
    let mut tags = Vec::new();
    for zone in command.documents("zones") {
        let name = ["zone", "tag"].iter().find_map(|f| zone.get(f)?.as_str());
        let mut w = Writer::new();
        w.oid("_id", ObjectId::generate()).str("ns", ns);
        w.str("tag", name.unwrap_or_default());
        for bound in ["min", "max"] {
            let given = zone.get(bound).and_then(Val::as_doc);
            w.doc(
                bound,
                key.whole_bound(given.unwrap_or(Doc::EMPTY))?.as_doc(),
            );
        }
        let tag = w.finish();
        Zone::parse(tag.as_doc(), key)?;
        tags.push(tag);
    }
    Ok(tags)
}

/// The index that a new key needs where none serves it.
fn index_for(cluster: &Cluster, table: &RoutingTable, key: &ShardKey) -> Outcome<Option<DocBuf>> {
    let Some(shard) = table.shards().next() else {
        return Ok(None);
    };
    let serves = |i: &DocBuf| {
        let plain = !["sparse", "partialFilterExpression", "collation"]
            .iter()
            .any(|o| i.get(o).is_some_and(Val::truthy));
        let fields = i.get("key").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
        plain && key.is_prefix_of(fields)
    };
    let indexes = indexes_of(cluster, shard, &table.entry.ns)?;
    for index in indexes
        .iter()
        .filter(|i| i.get("unique").is_some_and(Val::truthy))
    {
        let fields = index.get("key").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
        let by_id = fields.first().is_some_and(|e| e.name == "_id");
        if !by_id && !key.is_prefix_of(fields) {
            return Err(err!(
                InvalidOptions,
                "can't shard collection with unique index on {fields} and proposed shard key {}. Uniqueness can't be maintained unless shard key is a prefix",
                key.pattern()
            )
            .into());
        }
    }
    if indexes.iter().any(serves) {
        return Ok(None);
    }
    let name: Vec<String> = key
        .fields()
        .iter()
        .map(|f| format!("{}_{}", f.path, if f.hashed { "hashed" } else { "1" }))
        .collect();
    Ok(Some(
        doc! {"key": key.pattern().to_buf(), "name": name.join("_")},
    ))
}

/// Ranges of the new key that have about as many documents each, on all shards in turn.
fn ranges(
    cluster: &Cluster,
    table: &RoutingTable,
    key: &ShardKey,
    asked: Option<i64>,
) -> Outcome<Vec<(DocBuf, DocBuf, Arc<str>)>> {
    let shards = cluster.shards()?;
    let staying = shards
        .iter()
        .filter(|s| !s.get("draining").is_some_and(Val::truthy));
    let shards: Vec<Arc<str>> = staying
        .filter_map(|s| Some(Arc::from(s.get("_id")?.as_str()?)))
        .collect();
    let many = asked.unwrap_or(shards.len() as i64).max(1);
    let mut split_points = split::initial(key, u32::try_from(many).unwrap_or(u32::MAX));
    if split_points.is_empty() && many > 1 {
        split_points = sampled(cluster, table, key, many)?;
        if asked.is_some() && (split_points.len() as i64) < many - 1 {
            return Err(errors::Error::coded(
                4952606,
                format!(
                    "The shard key provided does not have enough cardinality to make the required number of chunks of {many}, it can only make {} chunks",
                    split_points.len() + 1
                ),
            )
            .into());
        }
    }
    let mut bounds = vec![key.global_min()];
    bounds.extend(split_points);
    bounds.push(key.global_max());
    let all = bounds.len() - 1;
    let at = |i: usize| shards[i * shards.len() / all].clone();
    Ok(bounds
        .windows(2)
        .enumerate()
        .map(|(i, w)| (w[0].clone(), w[1].clone(), at(i)))
        .collect())
}

/// Bounds at equal distances among the keys of some documents.
fn sampled(
    cluster: &Cluster,
    table: &RoutingTable,
    key: &ShardKey,
    many: i64,
) -> Outcome<Vec<DocBuf>> {
    let (db, collection) = table.entry.ns.split_once('.').unwrap_or_default();
    let size = many.saturating_mul(SAMPLES).max(1000);
    let mut project = Writer::new();
    for name in key.names() {
        project.i32(name, 1);
    }
    let pipeline = bson::array![
        doc! {"$sample": doc! {"size": size}},
        doc! {"$project": project.finish()}
    ];
    let command = doc! {"aggregate": collection, "pipeline": pipeline, "cursor": doc! {}};
    let mut found: BTreeMap<Place, DocBuf> = BTreeMap::new();
    for shard in table.shards() {
        let docs = cluster_view::metadata::all(&*cluster.shard(shard)?, db, command.as_doc())?;
        for d in &docs {
            found.insert(key.place_of(d.as_doc())?, key.bound_at(d.as_doc())?);
        }
    }
    let bounds: Vec<DocBuf> = found.into_values().collect();
    let many = usize::try_from(many).unwrap_or(1).min(bounds.len().max(1));
    Ok((1..many)
        .map(|i| bounds[i * bounds.len() / many].clone())
        .collect())
}
