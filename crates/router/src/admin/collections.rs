//! Databases and collections that become sharded.
//!
//! Invariant: the metadata says that a collection is sharded before any shard does; until then no router
//! reads or writes it as sharded.

use super::{done, series};

use crate::databases::make_database;
use crate::request::{RoutedCommand, finish, has_collation};
use crate::state::Router;
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, doc};
use cluster_view::chunks::{Lock, MetadataChange, index_chunks, lock, log, replace};
use cluster_view::collections::new_life;
use cluster_view::collections::{entry_doc, whole_chunk};
use cluster_view::collections::{indexes_of, now, options_of, uuid, uuid_of};
use cluster_view::metadata::{Cluster, Placement, run};
use cluster_view::routing::no_database;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use mover::PendingMoves;
use mover::transfer::{SPREAD, begin, decide, fence, make_like};
use sharding::moving::DrainPatience;
use sharding::{
    Chunk, CollectionEntry, PlaceRange, RoutingTable, Series, ShardKey, Version, split,
};
use std::sync::Arc;

/// As MongoDB's.
const MAX_INITIAL_CHUNKS: i64 = 8192;

pub(super) fn enable(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let db = command.collection();
    if db.is_empty() || matches!(db, "admin" | "config" | "local") {
        return Err(err!(InvalidNamespace, "can't shard {db} database").into());
    }
    let wanted = command.field("primaryShard").and_then(Val::as_str);
    make_database(&router.cluster, db, wanted)?;
    Ok(done())
}

pub(super) fn version(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let table = super::table_of(router, command.collection())?;
    let version = table.version();
    let mut w = Writer::new();
    w.timestamp("version", version.placement)
        .oid("versionEpoch", version.epoch);
    w.timestamp("versionTimestamp", version.timestamp);
    Ok(finish(w, &[]))
}

pub(super) fn shard(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let cluster = &router.cluster;
    let Some((db, collection)) = ns.split_once('.').filter(|(_, c)| !c.is_empty()) else {
        return Err(err!(InvalidNamespace, "Invalid namespace specified '{ns}'").into());
    };
    if matches!(db, "admin" | "config" | "local") || collection.starts_with("system.") {
        return Err(err!(IllegalOperation, "can't shard the collection {ns}").into());
    }
    let Some(pattern) = command.document("key") else {
        return Err(err!(
            IDLFailedToParse,
            "BSON field 'shardCollection.key' is missing but a required field"
        )
        .into());
    };
    let key = ShardKey::parse(pattern)?;
    let unique = command.is("unique");
    if unique && key.is_hashed() {
        return Err(err!(BadValue, "hashed shard keys cannot be declared unique.").into());
    }
    make_database(cluster, db, None)?;
    if let Some(done) = series::shard(router, command, ns, pattern)? {
        return Ok(done);
    }
    // The database stays where it is meanwhile.
    let _database = lock(cluster, db)?;
    cluster.end_pending_moves_under(&_database, db)?;
    let held = lock(cluster, ns)?;
    cluster.end_pending_moves_under(&held, ns)?;
    let primary = match cluster.refresh(ns)? {
        Some(Placement::Sharded(table)) => {
            if table.key().pattern() == pattern && table.entry.unique == unique {
                return Ok(reply(ns));
            }
            return Err(err!(
                AlreadyInitialized,
                "sharding already enabled for collection {ns} with options {{ key: {}, unique: {} }}",
                table.key().pattern(),
                table.entry.unique
            )
            .into());
        }
        Some(Placement::Unsharded(unsharded)) => unsharded.shard,
        None => return Err(no_database(db)),
    };
    let given = command.own_collation();
    check_collation(given)?;
    let options = options_of(cluster, &primary, ns)?.unwrap_or_default();
    let wanted = Wanted {
        key: &key,
        unique,
        collation: own_collation(options.as_doc(), given)?,
        series: None,
    };
    let empty = prepare(router, &primary, ns, &key, unique)?;
    make_sharded(router, command, held, ns, wanted, &primary, empty)?;
    Ok(reply(ns))
}

/// Places are in the order of bytes: `shardCollection` can ask for no other.
pub(super) fn check_collation(given: Option<Doc<'_>>) -> Outcome<()> {
    match given.filter(|_| has_collation(given)) {
        None => Ok(()),
        Some(given) => Err(err!(
            BadValue,
            "The collation for shardCollection must be {{locale: 'simple'}}, but found: {given}"
        )
        .into()),
    }
}

/// The collation that a collection has by its options. To shard such a collection, the command has to
/// name the simple collation.
pub(super) fn own_collation(options: Doc<'_>, given: Option<Doc<'_>>) -> Outcome<Option<DocBuf>> {
    let own = options.get("collation").and_then(Val::as_doc);
    match (own.filter(|_| has_collation(own)), given) {
        (Some(own), None) => Err(err!(
            BadValue,
            "Collection has default collation: {own}. Must specify collation {{locale: 'simple'}}."
        )
        .into()),
        (own, _) => Ok(own.map(Doc::to_buf)),
    }
}

/// Has a collection that is ready for it be sharded from now on, and one that is `empty` be on all
/// shards.
pub(super) fn make_sharded(
    router: &Router,
    command: &RoutedCommand<'_>,
    held: Lock<'_>,
    ns: &str,
    wanted: Wanted<'_>,
    primary: &Arc<str>,
    empty: bool,
) -> Outcome<()> {
    let cluster = &router.cluster;
    let key = wanted.key;
    let parts = initial_parts(router, command, key, empty)?;
    let born = become_sharded(cluster, &held, ns, wanted, primary)?;
    let mut chunks = 1;
    if !parts.is_empty() {
        let spread = first_chunks(key, &parts, primary, &cluster.shard_names()?);
        chunks = spread.len();
        spread_out(cluster, &held, &born, &spread)?;
    }
    cluster.teach_all(ns)?;
    drop(held);
    log(
        cluster,
        "shardCollection.end",
        ns,
        doc! {"numChunks": chunks as i64},
    );
    Ok(())
}

/// How a collection is to be sharded.
pub(crate) struct Wanted<'k> {
    pub key: &'k ShardKey,
    pub unique: bool,
    /// The collection's own, unless it is the simple one.
    pub collation: Option<DocBuf>,
    /// It holds the buckets of a time series.
    pub series: Option<Series>,
}

/// The metadata of a collection that is sharded from now on. All chunks are on the shard that has the
/// collection, so a router that does not know of this yet still sends commands to the right shard.
pub(crate) fn become_sharded(
    cluster: &Cluster,
    held: &Lock<'_>,
    ns: &str,
    wanted: Wanted<'_>,
    shard: &Arc<str>,
) -> Outcome<RoutingTable> {
    let chunk = whole_chunk(wanted.key, shard);
    let before = cluster.read_table(ns)?;
    let old = before.as_ref().map(|t| Value::binary(4, &t.entry.uuid));
    let entry = CollectionEntry {
        ns: ns.into(),
        uuid: uuid_of(cluster, shard, ns)?.unwrap_or_else(uuid),
        key: wanted.key.clone(),
        unique: wanted.unique,
        unsplittable: false,
        epoch: ObjectId::generate(),
        // Another router may have begun the life of before.
        timestamp: new_life(cluster).max(before.as_ref().map_or(0, |t| t.entry.timestamp + 1)),
        collation: wanted.collation,
        series: wanted.series,
        measured: false,
    };
    index_chunks(cluster)?;
    let mut change = MetadataChange::begin(held);
    // In the place of what says where it was as a whole.
    change.remove("collections", doc! {"_id": ns});
    change.insert("collections", &[entry_doc(&entry)]);
    if let Some(uuid) = old {
        change.remove("chunks", doc! {"uuid": uuid});
    }
    change.insert("chunks", &[chunk.to_doc(&entry.uuid)]);
    change.commit()?;
    Ok(RoutingTable::new(entry, vec![chunk])?)
}

/// Gives the ranges of a collection that has no documents to all shards. One that has got some
/// meanwhile stays where it is.
fn spread_out(
    cluster: &Cluster,
    held: &Lock<'_>,
    table: &RoutingTable,
    chunks: &[Chunk],
) -> Outcome<()> {
    let ns = &table.entry.ns;
    let Some(from) = table.shards().next() else {
        return Ok(());
    };
    let named: std::collections::BTreeSet<Arc<str>> =
        chunks.iter().map(|c| c.shard.clone()).collect();
    for shard in named.iter().filter(|s| *s != from) {
        make_like(cluster, from, ns, shard, (ns, None))?;
    }
    cluster.teach_all(ns)?;
    let fields = doc! {
        "from": &**from, "to": bson::array![], "fenced": bson::array![&**from],
    };
    begin(held, ns, SPREAD, fields)?;
    let spread = || -> Outcome<()> {
        let how = (false, DrainPatience::default().now());
        fence(cluster, held, ns, from, &PlaceRange::all(), how)?;
        if cluster_view::collections::size_on(cluster, from, ns)?.1 > 0 {
            return Ok(());
        }
        let mut change = MetadataChange::begin(held);
        let old: Vec<Chunk> = table.chunks().cloned().collect();
        replace(&mut change, &table.entry.uuid, &old, chunks);
        decide(&mut change, held, ns);
        change.commit()
    };
    let done = spread();
    cluster.end_pending_moves_under(held, ns)?;
    done
}

pub(super) fn reply(ns: &str) -> DocBuf {
    let mut w = Writer::new();
    w.str("collectionsharded", ns);
    finish(w, &[])
}

fn is_unique(index: &DocBuf) -> bool {
    index.get("unique").is_some_and(Val::truthy)
}

fn fields_of(index: &DocBuf) -> Doc<'_> {
    let fields = index.get("key").and_then(Val::as_doc);
    fields.unwrap_or(Doc::EMPTY)
}

/// Refuses a shard key under which the shards could not keep a field unique.
fn check_unique_indexes(ns: &str, indexes: &[DocBuf], key: &ShardKey) -> Outcome<()> {
    for index in indexes.iter().filter(|i| is_unique(i)) {
        let fields = fields_of(index);
        let by_id = fields.first().is_some_and(|e| e.name == "_id");
        if !by_id && !key.is_prefix_of(fields) {
            return Err(err!(
                InvalidOptions,
                "can't shard collection '{ns}' with unique index on {fields} and proposed shard key {}. Uniqueness can't be maintained unless shard key is a prefix",
                key.pattern()
            )
            .into());
        }
    }
    Ok(())
}

/// Whether an index finds the documents of a range of the shard key.
fn serves(index: &DocBuf, key: &ShardKey, unique: bool) -> bool {
    let plain = !["sparse", "partialFilterExpression", "collation"]
        .iter()
        .any(|o| index.get(o).is_some_and(Val::truthy));
    let only = is_unique(index) || !unique;
    let by_id = index.get("name").and_then(Val::as_str) == Some("_id_");
    // Ids are in the order of their bytes, whatever the collation.
    (plain && only || by_id) && key.is_prefix_of(fields_of(index))
}

/// The description of an index for a shard key.
fn index_for(key: &ShardKey, unique: bool) -> DocBuf {
    let fields = key.fields().iter();
    let name: Vec<String> = fields
        .map(|f| format!("{}_{}", f.path, if f.hashed { "hashed" } else { "1" }))
        .collect();
    let mut index = Writer::new();
    index.doc("key", key.pattern()).str("name", &name.join("_"));
    // Places are in the order of bytes.
    index.value("collation", doc! {"locale": "simple"});
    if unique {
        index.bool("unique", true);
    }
    index.finish()
}

/// The collection with an index for the shard key on a shard; whether it has no documents.
fn prepare(
    router: &Router,
    shard: &Arc<str>,
    ns: &str,
    key: &ShardKey,
    unique: bool,
) -> Outcome<bool> {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let set = router.cluster.shard(shard)?;
    let majority = doc! {"w": "majority"};
    match run(
        &set,
        db,
        doc! {"create": collection, "writeConcern": &majority}.as_doc(),
    ) {
        Err(Failure::Client(e)) if e.code == Code::NamespaceExists => {}
        other => drop(other?),
    }
    let (_, count) = cluster_view::collections::size_on(&router.cluster, shard, ns)?;
    let indexes = indexes_of(&router.cluster, shard, ns)?;
    check_unique_indexes(ns, &indexes, key)?;
    if indexes.iter().any(|i| serves(i, key, unique)) {
        return Ok(count == 0);
    }
    if count > 0 {
        return Err(err!(
            InvalidOptions,
            "Please create an index that starts with the proposed shard key before sharding the collection"
        )
        .into());
    }
    let create = doc! {
        "createIndexes": collection,
        "indexes": bson::array![index_for(key, unique)],
        "writeConcern": majority,
    };
    run(&set, db, create.as_doc())?;
    Ok(count == 0)
}

/// Where a new collection is cut.
fn initial_parts(
    router: &Router,
    command: &RoutedCommand<'_>,
    key: &ShardKey,
    empty: bool,
) -> Outcome<Vec<DocBuf>> {
    let asked = command.int("numInitialChunks");
    if asked.is_some_and(|n| !(0..=MAX_INITIAL_CHUNKS).contains(&n)) {
        return Err(err!(
            InvalidOptions,
            "numInitialChunks cannot be more than {MAX_INITIAL_CHUNKS}"
        )
        .into());
    }
    if asked.is_some_and(|n| n > 0) && (!key.is_hashed() || !empty) {
        return Err(err!(
            InvalidOptions,
            "When the shard key is not hashed, or the collection is not empty, numInitialChunks is not supported"
        )
        .into());
    }
    if !empty {
        return Ok(Vec::new());
    }
    let many = match asked.filter(|n| *n > 0) {
        Some(n) => n as u32,
        None => router.cluster.shard_names()?.len() as u32,
    };
    Ok(split::initial(key, many))
}

/// The parts on all shards in turn.
fn first_chunks(
    key: &ShardKey,
    parts: &[DocBuf],
    primary: &Arc<str>,
    shards: &[String],
) -> Vec<Chunk> {
    let (min, max) = (key.global_min(), key.global_max());
    let bounds: Vec<&DocBuf> = std::iter::once(&min)
        .chain(parts)
        .chain(std::iter::once(&max))
        .collect();
    let mut order: Vec<Arc<str>> = vec![primary.clone()];
    let others = shards.iter().filter(|s| s.as_str() != &**primary);
    order.extend(others.map(|s| Arc::from(s.as_str())));
    let since = now();
    let many = bounds.len() - 1;
    bounds
        .windows(2)
        .enumerate()
        .map(|(i, w)| Chunk {
            id: ObjectId::generate(),
            min: w[0].clone(),
            max: w[1].clone(),
            shard: order[i * order.len() / many.max(1)].clone(),
            lastmod: Version::placement_of(2, i as u32),
            jumbo: false,
            since,
            turn: 0,
        })
        .collect()
}
