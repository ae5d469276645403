//! Databases that are not there yet: made on a shard when something is to be put into them.

use bson::{Doc, DocBuf, Val, Value, doc};
use cluster_view::Outcome;
use cluster_view::collections::uuid;
use cluster_view::metadata::{Cluster, Placement};
use errors::err;
use std::sync::Arc;

/// The shard that has the fewest databases.
fn least_used<'n, 's>(shards: &'n [&'s str], databases: &[DocBuf]) -> Option<&'n &'s str> {
    shards.iter().min_by_key(|shard| {
        let primaries = databases.iter().filter_map(|d| d.get("primary")?.as_str());
        primaries.filter(|primary| primary == *shard).count()
    })
}

/// Makes a database, on the shard that was named or on the one that has the fewest databases.
pub(crate) fn make_database(
    cluster: &Cluster,
    db: &str,
    wanted: Option<&str>,
) -> Outcome<Arc<str>> {
    if let Some(primary) = cluster.database(db)? {
        return Ok(primary);
    }
    let shards = cluster.shards()?;
    let names = shards
        .iter()
        .filter(|s| !s.get("draining").is_some_and(Val::truthy));
    let names: Vec<&str> = names.filter_map(|s| s.get("_id")?.as_str()).collect();
    let databases = cluster.read_config("databases", Doc::EMPTY, Doc::EMPTY)?;
    let names_of = |d: &DocBuf| Some(d.get("_id")?.as_str()?.to_string());
    let alike = |other: &String| other.eq_ignore_ascii_case(db) && other != db;
    if let Some(other) = databases.iter().filter_map(names_of).find(alike) {
        return Err(err!(
            DatabaseDifferCase,
            "db already exists with different case already have: [{other}] trying to create [{db}]"
        )
        .into());
    }
    let shard = match wanted {
        Some(wanted) => {
            let named = names.iter().find(|n| **n == wanted);
            named.ok_or_else(|| err!(ShardNotFound, "Could not find shard: {wanted}"))?
        }
        None => least_used(&names, &databases).ok_or_else(|| {
            err!(
                ShardNotFound,
                "Database {db} could not be created :: caused by :: No shards found"
            )
        })?,
    };
    let entry = doc! {
        "_id": db,
        "primary": *shard,
        "version": doc! {
            "uuid": Value::binary(4, &uuid()),
            "timestamp": Value::timestamp(cluster_view::collections::new_life(cluster)),
            "lastMod": 1,
        },
    };
    let insert = doc! {
        "insert": "databases",
        "documents": bson::array![entry],
        "writeConcern": doc! {"w": "majority"},
    };
    let reply = cluster.on_config("config", insert.as_doc())?;
    let _ = reply; // If another router was first, its document is read now.
    cluster.forget_database(db);
    let made = cluster.database(db)?;
    made.ok_or_else(|| err!(NamespaceNotFound, "database {db} was removed").into())
}

/// Where a collection is whose database is made for it.
pub(crate) fn made_for(cluster: &Cluster, db: &str, ns: &str) -> Outcome<Placement> {
    make_database(cluster, db, None)?;
    let made = cluster.refresh(ns)?;
    made.ok_or_else(|| cluster_view::routing::no_database(db))
}
