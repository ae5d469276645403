//! `checkMetadataConsistency`: whether chunks and indexes are as the metadata needs them; and
//! `setAllowMigrations`, which keeps ranges where they are.

use super::done;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::collections::forbids_moves;
use cluster_view::collections::indexes_of;
use errors::err;
use sharding::RoutingTable;

pub(super) fn check(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let wanted = match (command.collection(), command.db) {
        ("", "admin") => None,
        ("", db) => Some(format!("{db}.")),
        (collection, db) => Some(format!("{db}.{collection}")),
    };
    let asked = |ns: &str| match &wanted {
        None => true,
        Some(all) if all.ends_with('.') => ns.starts_with(all),
        Some(one) => ns == one,
    };
    let cluster = &router.cluster;
    let mut w = Writer::new();
    w.open_doc("cursor").i64("id", 0);
    w.str("ns", &format!("{}.$cmd.aggregate", command.db));
    w.open_array("firstBatch");
    for entry in cluster.read_config("collections", Doc::EMPTY, doc! {"_id": 1}.as_doc())? {
        let ns = entry.get("_id").and_then(Val::as_str).unwrap_or_default();
        if !asked(ns) {
            continue;
        }
        match cluster.read_table(ns) {
            Ok(Some(table)) => missing_indexes(router, ns, &table, &mut w)?,
            Ok(None) => {}
            Err(e) => {
                let why = e.to_string();
                inconsistent(&mut w, "CorruptedChunkHistory", ns, "config", &why);
            }
        }
    }
    w.close().close();
    Ok(finish(w, &[]))
}

/// Shards that have a range, and no index by which it could be found.
fn missing_indexes(router: &Router, ns: &str, table: &RoutingTable, w: &mut Writer) -> Outcome<()> {
    for shard in table.shards() {
        let indexes = indexes_of(&router.cluster, shard, ns)?;
        let serves = |index: &DocBuf| {
            let key = index.get("key").and_then(Val::as_doc);
            key.is_some_and(|key| table.key().is_prefix_of(key))
        };
        if !indexes.iter().any(serves) {
            let why = format!("no index for the shard key {}", table.key().pattern());
            inconsistent(w, "MissingShardKeyIndex", ns, shard, &why);
        }
    }
    Ok(())
}

fn inconsistent(w: &mut Writer, kind: &str, ns: &str, shard: &str, why: &str) {
    let details = doc! {"namespace": ns, "shard": shard};
    let found = doc! {"type": kind, "description": why, "details": details};
    w.push(found.as_doc().as_val());
}

/// Fails if moves of the collection's ranges are forbidden.
pub(crate) fn check_moves_are_allowed(router: &Router, ns: &str) -> Outcome<()> {
    let cluster = &router.cluster;
    let found = cluster.read_config("collections", doc! {"_id": ns}.as_doc(), Doc::EMPTY)?;
    match found.first().is_some_and(|d| forbids_moves(d.as_doc())) {
        true => Err(err!(
            ConflictingOperationInProgress,
            "Collection {ns} is undergoing changes so moveChunk is not allowed."
        )
        .into()),
        false => Ok(()),
    }
}

pub(super) fn set_allow_migrations(
    router: &Router,
    command: &RoutedCommand<'_>,
) -> Outcome<DocBuf> {
    let ns = command.collection();
    super::table_of(router, ns)?;
    let update = match command.field("allowMigrations").is_some_and(Val::truthy) {
        true => doc! {"$unset": doc! {"permitMigrations": 1}},
        false => doc! {"$set": doc! {"permitMigrations": false}},
    };
    let update = doc! {
        "update": "collections",
        "updates": bson::array![doc! {"q": doc! {"_id": ns}, "u": update}],
        "writeConcern": doc! {"w": "majority"},
    };
    router.cluster.on_config("config", update.as_doc())?;
    Ok(done())
}
