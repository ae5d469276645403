//! Databases, collections and indexes: made and changed on every shard that has a part of them.
//!
//! Invariant: a sharded collection has its indexes on each shard that has a range of it. A unique
//! index begins with the shard key, because shards do not know of each other's keys.

pub(crate) mod rename;

use crate::databases::{made_for, make_database};
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use crate::{admin, collection_uuid};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::collections::indexes_of;
use cluster_view::metadata::{CONFIG, Cluster, Placement, Unsharded, run_as_told};
use cluster_view::reply::sound;
use cluster_view::{Outcome, write_concern};
use errors::{Error, err};
use mover::PendingMoves;
use parking_lot::Mutex;
use sharding::series;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn create(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    make_database(&router.cluster, command.db, None)?;
    router.cluster.agree(&ns, |placement| match placement {
        Some(placement @ Placement::Unsharded(Unsharded { shard, .. })) => {
            router.send(command, placement, shard, &command.whole(), &[])
        }
        Some(Placement::Sharded(_)) => {
            Err(err!(NamespaceExists, "Collection {ns} already exists.").into())
        }
        None => match made_for(&router.cluster, command.db, &ns)? {
            made @ Placement::Unsharded(_) => {
                let Placement::Unsharded(Unsharded { shard, .. }) = &made else {
                    return Err(cluster_view::routing::no_database(command.db));
                };
                router.send(command, &made, shard, &command.whole(), &[])
            }
            Placement::Sharded(_) => Err(cluster_view::routing::no_database(command.db)),
        },
    })
}

/// `createIndexes`, `dropIndexes`, `collMod`.
pub(crate) fn on_all_shards(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    if command.name == "createIndexes" {
        make_database(&router.cluster, command.db, None)?;
    }
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Err(err!(NamespaceNotFound, "ns not found {ns}").into());
        };
        let table = match placement {
            Placement::Unsharded(Unsharded { shard, .. }) => {
                let sequences = command.request.sequences;
                return router.send(command, placement, shard, &command.whole(), sequences);
            }
            Placement::Sharded(table) => table,
        };
        if command.name == "createIndexes" && !table.entry.measured {
            for index in command.documents("indexes") {
                let key = index.get("key").and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
                let unique = index.get("unique").is_some_and(Val::truthy);
                if unique && !table.key().is_prefix_of(key) && key.first().is_none_or(|e| e.name != "_id") {
                    return Err(err!(
                        CannotCreateIndex,
                        "cannot create index with 'unique' option over {key} with shard key pattern {}",
                        table.key().pattern()
                    )
                    .into());
                }
            }
        }
        // The order of buckets serves a time series.
        if command.name.starts_with("drop") && !table.entry.measured {
            keep_key_index(router, command, &ns, table)?;
        }
        let each = command.whole();
        let shards: Vec<_> = table.shards().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.cluster.scatter(placement, &shards)?;
        let mut raw = Writer::new();
        for ((shard, _), reply) in shards.iter().zip(&replies) {
            let reply = sound(reply.clone())?;
            raw.doc(&router.cluster.shard(shard)?.address, reply.as_doc());
        }
        let mut w = Writer::new();
        w.doc("raw", raw.finish().as_doc());
        if let Some(first) = replies.first() {
            let own = ["ok", "writeConcernError", "$clusterTime", "operationTime"];
            for e in first.as_doc().iter().filter(|e| !own.contains(&e.name)) {
                w.val(e.name, e.val);
            }
        }
        let of_shards = shards.iter().zip(&replies);
        let named: Vec<DocBuf> = of_shards
            .map(|((shard, _), reply)| write_concern::at_shard(reply.clone(), shard))
            .collect();
        write_concern::append(&mut w, &named);
        Ok(finish(w, &replies))
    })
}

/// `convertToCapped`, `cloneCollectionAsCapped`: for collections on one shard.
pub(crate) fn capped(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let name = command.name;
    let sharded = err!(IllegalOperation, "You can't {name} a sharded collection");
    let absent = err!(NamespaceNotFound, "database {} not found", command.db);
    on_its_shard(router, command, &sharded, &absent)
}

/// A command about a collection that is on one shard; the errors of others.
fn on_its_shard(
    router: &Router,
    command: &RoutedCommand<'_>,
    sharded: &Error,
    absent: &Error,
) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    router.cluster.agree(&ns, |placement| match placement {
        Some(placement @ Placement::Unsharded(Unsharded { shard, .. })) => {
            router.send(command, placement, shard, &command.whole(), &[])
        }
        Some(Placement::Sharded(_)) => Err(sharded.clone().into()),
        None => Err(absent.clone().into()),
    })
}

/// A command about a collection that each of its shards answers in the same way.
pub(crate) fn where_it_is(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Ok(router.local.reply_about_nothing(&command.args()?)?);
        };
        let shards: Vec<Arc<str>> = match placement {
            Placement::Unsharded(Unsharded { shard, .. }) => vec![shard.clone()],
            Placement::Sharded(table) => table.shards().cloned().collect(),
        };
        let whole = command.whole();
        let all: Vec<_> = shards.into_iter().map(|s| (s, whole.clone())).collect();
        let mut first = None;
        for reply in router.cluster.scatter(placement, &all)? {
            let reply = sound(reply)?;
            first.get_or_insert(reply);
        }
        first.ok_or_else(|| err!(InternalError, "a collection is on no shard").into())
    })
}

/// Fails where `dropIndexes` would take the last index that the shard key needs.
fn keep_key_index(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    table: &sharding::RoutingTable,
) -> Outcome<()> {
    let given = command.field("index").unwrap_or(Val::NULL);
    if given.as_str() == Some("*") {
        return Err(err!(
            CannotDropShardKeyIndex,
            "Cannot drop the only compatible index for this collection's shard key"
        )
        .into());
    }
    let names: Vec<&str> = given
        .as_str()
        .into_iter()
        .chain(
            given
                .as_array()
                .into_iter()
                .flat_map(|a| a.values().filter_map(Val::as_str)),
        )
        .collect();
    let dropped = |index: &DocBuf| {
        let name = index.get("name").and_then(Val::as_str).unwrap_or("");
        let key = index.get("key").and_then(Val::as_doc);
        names.contains(&name) || given.as_doc().is_some_and(|g| key == Some(g))
    };
    let serves = |index: &&DocBuf| {
        let key = index.get("key").and_then(Val::as_doc);
        key.is_some_and(|key| table.key().is_prefix_of(key))
    };
    let Some(shard) = table.shards().next() else {
        return Ok(());
    };
    let indexes = indexes_of(&router.cluster, shard, ns)?;
    let left = indexes.iter().filter(serves).any(|i| !dropped(i));
    match left {
        true => Ok(()),
        false => Err(err!(
            CannotDropShardKeyIndex,
            "Cannot drop the only compatible index for this collection's shard key"
        )
        .into()),
    }
}

pub(crate) fn drop_collection(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    admin::check_write_block(router, command)?;
    let ns = command.namespace()?;
    let cluster = &router.cluster;
    match cluster.refresh(&ns)? {
        None => {
            collection_uuid::check(cluster, &ns, command.field("collectionUUID"))?;
            Ok(finish(Writer::new(), &[]))
        }
        Some(Placement::Unsharded(Unsharded { table: None, .. })) => cluster.agree(&ns, |now| {
            let Some(
                now @ Placement::Unsharded(Unsharded {
                    shard, table: None, ..
                }),
            ) = now
            else {
                return Err(err!(ConflictingOperationInProgress, "{ns} is being sharded").into());
            };
            cluster.send(now, shard, command.whole().as_doc(), &[])
        }),
        Some(_) => {
            collection_uuid::check(cluster, &ns, command.field("collectionUUID"))?;
            let replies = drop_sharded(
                cluster,
                &ns,
                crate::transactions::client_concern::at_least_majority(command),
            )?;
            let mut w = Writer::new();
            w.str("ns", &ns);
            write_concern::append(&mut w, &replies);
            Ok(finish(w, &[]))
        }
    }
}

/// Runs a command that drops something on all shards, last on the one that has the database: it
/// tells change streams, at a time that is later than what the others have written. All wait for a
/// majority, that one for `concern`, if there is one. The replies, which name their shards.
fn on_all_home_last(
    cluster: &Cluster,
    db: &str,
    command: Doc<'_>,
    concern: Option<Doc<'_>>,
) -> Outcome<Vec<DocBuf>> {
    let primary = cluster.database(db)?;
    let is_primary = |shard: &str| primary.as_deref() == Some(shard);
    let mut shards = cluster.shard_names()?;
    shards.sort_by_key(|shard| is_primary(shard));
    let mut replies = Vec::new();
    for shard in &shards {
        let mut own = None;
        if is_primary(shard) {
            mover::transfer::join_time(cluster, shard)?;
            own = concern;
        }
        let majority = doc! {"w": "majority"};
        let mut w = Writer::new();
        w.extend(command)
            .doc("writeConcern", own.unwrap_or(majority.as_doc()));
        let reply = run_as_told(&*cluster.shard(shard)?, db, w.finish().as_doc())?;
        replies.push(write_concern::at_shard(reply, shard));
    }
    Ok(replies)
}

/// Removes a collection that has chunks: first from the metadata, so that routers send nothing to it any
/// more.
fn drop_sharded(cluster: &Cluster, ns: &str, concern: Option<Doc<'_>>) -> Outcome<Vec<DocBuf>> {
    // Of a time series the buckets are what has chunks, and the whole goes.
    let shown = series::measurements_of(ns).unwrap_or_else(|| ns.into());
    let Some(table) = cluster.read_table(ns)? else {
        return Ok(Vec::new());
    };
    let ns = table.entry.ns.as_str();
    let held = cluster_view::chunks::lock(cluster, ns)?;
    cluster.end_pending_moves_under(&held, ns)?;
    let Some(table) = cluster.read_table(ns)? else {
        return Ok(Vec::new());
    };
    let uuid = Value::binary(4, &table.entry.uuid);
    let mut change = cluster_view::chunks::MetadataChange::begin(&held);
    change.remove("collections", doc! {"_id": ns});
    change.remove("chunks", doc! {"uuid": uuid});
    change.remove("tags", doc! {"ns": ns});
    change.commit()?;
    cluster.forget(ns);
    cluster.forget(&shown);
    let (db, collection) = shown.split_once('.').unwrap_or((&shown, ""));
    // Once the metadata says that it is gone there is no way back, whether writes are blocked or not.
    let command = doc! {"drop": collection, "mayBypassWriteBlocking": true};
    let replies = on_all_home_last(cluster, db, command.as_doc(), concern)?;
    for shard in cluster.shard_names()? {
        cluster.teach(ns, None, &shard, Some(table.entry.timestamp))?;
    }
    Ok(replies)
}

/// Drops collections that have chunks, several at once: each waits for majorities most of its time. Ends at the first
/// failure.
fn drop_all_sharded(cluster: &Cluster, names: &[&str]) -> Outcome<()> {
    const AT_ONCE: usize = 8;
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while failure.lock().is_none() {
            let Some(ns) = names.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if let Err(e) = drop_sharded(cluster, ns, None) {
                failure.lock().get_or_insert(e);
            }
        }
    };
    std::thread::scope(|threads| {
        // This thread is one of them.
        (1..AT_ONCE.min(names.len())).for_each(|_| drop(threads.spawn(work)));
        work();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

pub(crate) fn drop_database(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let cluster = &router.cluster;
    let db = command.db;
    if matches!(db, "admin" | CONFIG) {
        return Err(err!(IllegalOperation, "Cannot drop the {db} database").into());
    }
    admin::check_write_block(router, command)?;
    let prefix = doc! {"_id": doc! {"$regex": format!("^{}\\.", escape(db))}};
    let entries = cluster.read_config("collections", prefix.as_doc(), Doc::EMPTY)?;
    let names = entries.iter().filter_map(|e| e.get("_id")?.as_str());
    drop_all_sharded(cluster, &names.collect::<Vec<_>>())?;
    let concern = crate::transactions::client_concern::at_least_majority(command);
    let mut replies = Vec::new();
    mover::transfer::drop_database_metadata(cluster, db, || {
        let command = doc! {"dropDatabase": 1, "mayBypassWriteBlocking": true};
        replies = on_all_home_last(cluster, db, command.as_doc(), concern)?;
        Ok(())
    })?;
    cluster.forget_database(db);
    let mut w = Writer::new();
    write_concern::append(&mut w, &replies);
    Ok(finish(w, &[]))
}

fn escape(db: &str) -> String {
    let special = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    db.chars()
        .flat_map(|c| special(c).then_some('\\').into_iter().chain([c]))
        .collect()
}
