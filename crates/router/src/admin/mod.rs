//! Commands that change the cluster: shards, sharded collections, chunks, zones.

mod analysis;
mod balancer;
mod collections;
pub(crate) mod consistency;
mod moves;
mod placement;
mod reshard;
mod series;
mod settings;
mod shards;
mod zones;

use crate::request::{RoutedCommand, done, ranges};
use crate::state::{Handler, Router};
use bson::{Doc, DocBuf, ObjectId, Val, doc};
use cluster_view::Outcome;
use cluster_view::chunks;
use cluster_view::metadata::Placement;
use cluster_view::split_points::median;
use errors::err;
use sharding::split::{cut_chunk, join};
use sharding::{Chunk, RoutingTable};
use std::sync::Arc;

pub(crate) use analysis::follow_analyzers;
pub(crate) use moves::check_fields;
pub(crate) use settings::{check_write_block, follow as follow_settings};

pub(crate) fn handler(name: &str) -> Option<Handler> {
    Some(match name {
        "addShard" | "addshard" => shards::add,
        "listShards" => shards::list,
        "removeShard" | "removeshard" => shards::remove,
        "getShardMap" => shards::map,
        "isdbgrid" | "isDbGrid" => shards::is_router,
        "enableSharding" | "enablesharding" => collections::enable,
        "shardCollection" | "shardcollection" => collections::shard,
        "getShardVersion" => collections::version,
        "split" => split,
        "moveChunk" | "movechunk" => moves::chunk,
        "moveRange" => moves::range,
        "mergeChunks" => merge_chunks,
        "addShardToZone" => zones::add_shard,
        "removeShardFromZone" => zones::remove_shard,
        "updateZoneKeyRange" => zones::update_range,
        "balancerStart" => balancer::start,
        "balancerStop" => balancer::stop,
        "balancerStatus" => balancer::status,
        "balancerCollectionStatus" => balancer::collection_status,
        "flushRouterConfig" => flush,
        "checkMetadataConsistency" => consistency::check,
        "setAllowMigrations" => consistency::set_allow_migrations,
        "movePrimary" => placement::primary,
        "moveCollection" => placement::collection,
        "refineCollectionShardKey" => placement::refine,
        "reshardCollection" => reshard::reshard_collection,
        "unshardCollection" => reshard::unshard,
        "abortReshardCollection" => reshard::abort,
        "commitReshardCollection" => reshard::commit,
        "clearJumboFlag" => clear_jumbo,
        "analyzeShardKey" => analysis::analyze,
        "configureQueryAnalyzer" => analysis::configure,
        _ => return settings::handler(name),
    })
}

fn flush(router: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    router.cluster.forget_all();
    Ok(done())
}

/// The table of a collection that has to be sharded, as the metadata has it now.
pub(crate) fn table_of(router: &Router, ns: &str) -> Outcome<Arc<RoutingTable>> {
    match router.cluster.refresh(ns)? {
        Some(Placement::Sharded(table)) if !table.entry.measured => Ok(table),
        _ => Err(err!(NamespaceNotSharded, "Collection {ns} is not sharded").into()),
    }
}

fn array_bounds<'a>(command: &RoutedCommand<'a>) -> Option<(Doc<'a>, Doc<'a>)> {
    let bounds = command.field("bounds")?.as_array()?;
    let mut both = bounds.values().filter_map(Val::as_doc);
    Some((both.next()?, both.next()?))
}

/// The chunk that a command names by `find`, by `bounds`, or by `middle`.
fn named_chunk<'t>(command: &RoutedCommand<'_>, table: &'t RoutingTable) -> Outcome<&'t Chunk> {
    let key = table.key();
    if let Some((min, max)) = array_bounds(command) {
        let range = key.range(min, max)?;
        let whole = |c: &&Chunk| c.range(key).is_ok_and(|r| r == range);
        let found = table.chunks_in(&range).find(whole);
        return Ok(found.ok_or_else(|| err!(BadValue, "no chunk has the bounds {min} and {max}"))?);
    }
    let place = match (command.document("find"), command.document("middle")) {
        (Some(find), _) => {
            // Whatever the collection's collation is: places are in the order of bytes.
            let simple = doc! {"locale": "simple"};
            let ranges = ranges(find, None, Some(simple.as_doc()), table)?;
            let place = sharding::targeting::single_place(&ranges, key);
            place
                .ok_or_else(|| err!(ShardKeyNotFound, "no shard key found in chunk query {find}"))?
        }
        (None, Some(middle)) => key.place_of_bound(key.whole_bound(middle)?.as_doc())?,
        _ => {
            return Err(err!(
                InvalidOptions,
                "need to provide 'find', 'bounds' or 'middle'"
            )
            .into());
        }
    };
    Ok(table
        .chunk_at(&place)
        .ok_or_else(|| err!(InternalError, "a place lies in no chunk"))?)
}

fn split(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let held = chunks::lock(&router.cluster, ns)?;
    let table = table_of(router, ns)?;
    let chunk = named_chunk(command, &table)?.clone();
    let middle = match command.document("middle") {
        Some(middle) => table.key().whole_bound(middle)?,
        None => median(&router.cluster, &table, &chunk)?,
    };
    split_at(router, &held, &table, &chunk, &[middle])?;
    drop(held);
    router.cluster.refresh(ns)?;
    Ok(done())
}

/// Cuts a chunk at these bounds. Ownership does not change, so shards need not know.
pub(crate) fn split_at(
    router: &Router,
    held: &chunks::Lock<'_>,
    table: &RoutingTable,
    chunk: &Chunk,
    at: &[DocBuf],
) -> Outcome<()> {
    let cut = cut_chunk(table, chunk, at, ObjectId::generate)?;
    let mut change = chunks::MetadataChange::begin(held);
    chunks::replace(&mut change, &table.entry.uuid, &cut.old, &cut.new);
    change.commit()?;
    chunks::log(
        &router.cluster,
        "split",
        &table.entry.ns,
        doc! {"min": &chunk.min, "max": &chunk.max},
    );
    Ok(())
}

fn merge_chunks(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let Some((min, max)) = array_bounds(command) else {
        return Err(err!(FailedToParse, "need to provide 'bounds'").into());
    };
    let held = chunks::lock(&router.cluster, ns)?;
    let table = table_of(router, ns)?;
    let range = table.key().range(min, max)?;
    let joined = join(&table, &range, ObjectId::generate).map_err(|stop| {
        let e = stop.into_error();
        err!(
            IllegalOperation,
            "could not merge chunks, collection {ns} range starting at {min} and ending at {max}: {}",
            e.message
        )
    })?;
    let mut change = chunks::MetadataChange::begin(&held);
    chunks::replace(&mut change, &table.entry.uuid, &joined.old, &joined.new);
    change.commit()?;
    drop(held);
    chunks::log(&router.cluster, "merge", ns, doc! {"min": min, "max": max});
    router.cluster.refresh(ns)?;
    Ok(done())
}

/// Takes the mark from a chunk that the balancer could not cut.
fn clear_jumbo(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.collection();
    let held = chunks::lock(&router.cluster, ns)?;
    let table = table_of(router, ns)?;
    let chunk = named_chunk(command, &table)?;
    if chunk.jumbo {
        let new = Chunk {
            jumbo: false,
            ..chunk.clone()
        };
        let mut change = chunks::MetadataChange::begin(&held);
        let old = std::slice::from_ref(chunk);
        chunks::replace(&mut change, &table.entry.uuid, old, &[new]);
        change.commit()?;
    }
    drop(held);
    router.cluster.refresh(ns)?;
    Ok(done())
}
