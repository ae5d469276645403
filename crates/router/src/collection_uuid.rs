//! `collectionUUID`: whether a collection is the one that a client means.

use crate::Outcome;
use bson::{Val, doc};
use cluster_view::metadata::{Cluster, all};
use commands::uuid_mismatch;

/// Fails where the collection of that name has another UUID than the one given, if one is. The error
/// tells which collection of the database has it.
pub(crate) fn check(cluster: &Cluster, ns: &str, uuid: Option<Val<'_>>) -> Outcome<()> {
    let Some(uuid) = uuid.filter(|v| !v.is_nullish()) else {
        return Ok(());
    };
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let mut actual = None;
    if let Some(primary) = cluster.database(db)? {
        let list = doc! {"listCollections": 1, "filter": doc! {"info.uuid": uuid.to_value()}};
        let found = all(&*cluster.shard(&primary)?, db, list.as_doc())?;
        let name = found.first().and_then(|d| d.get("name")?.as_str());
        actual = name.map(str::to_string);
    }
    if actual.as_deref() == Some(collection) {
        return Ok(());
    }
    Err(uuid_mismatch(ns, uuid, actual.as_deref()).into())
}
