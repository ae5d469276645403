//! `listDatabases`, `listCollections`, `listIndexes`: what the shards have, as one.

use crate::access;
use crate::request::{RoutedCommand, finish};
use crate::state::{Router, cursors};
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::Outcome;
use cluster_view::metadata::{CONFIG, Placement, Unsharded, all};
use errors::err;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Databases that each shard has of its own.
const OWN: [&str; 3] = ["local", "config", "admin"];

pub(crate) fn list_databases(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let cluster = &router.cluster;
    let mut w = Writer::new();
    w.i32("listDatabases", 1);
    // `filter` and `nameOnly` go to each shard as they are.
    for name in ["filter", "nameOnly"] {
        if let Some(v) = command.field(name) {
            w.val(name, v);
        }
    }
    let ask = w.finish();
    let mut found: BTreeMap<String, (i64, bool, Vec<(String, i64)>)> = BTreeMap::new();
    let mut shards = cluster.shard_names()?;
    shards.push(CONFIG.into());
    for shard in &shards {
        let reply = cluster.on_shard(shard, "admin", ask.as_doc())?;
        let list = reply
            .get("databases")
            .and_then(Val::as_array)
            .unwrap_or(Doc::EMPTY);
        for d in list.values().filter_map(Val::as_doc) {
            let name = d.get("name").and_then(Val::as_str).unwrap_or_default();
            if name == "local" || OWN.contains(&name) != (shard == CONFIG) {
                continue;
            }
            let size = d.get("sizeOnDisk").and_then(Val::to_i64_exact).unwrap_or(0);
            let empty = d.get("empty").is_none_or(Val::truthy);
            let entry = found.entry(name.into()).or_insert((0, true, Vec::new()));
            entry.0 += size;
            entry.1 &= empty;
            entry.2.push((shard.clone(), size));
        }
    }
    let mut w = Writer::new();
    let mut total = 0;
    w.open_array("databases");
    for name in access::seen_databases(command, found.keys()) {
        let Some((size, empty, by_shard)) = found.get(name) else {
            continue;
        };
        let mut d = Writer::new();
        d.str("name", name);
        if !command.is("nameOnly") {
            d.i64("sizeOnDisk", *size)
                .bool("empty", *empty)
                .open_doc("shards");
            by_shard.iter().for_each(|(shard, size)| {
                d.i64(shard, *size);
            });
            d.close();
        }
        total += size;
        w.push(d.finish().as_doc().as_val());
    }
    w.close();
    if !command.is("nameOnly") {
        w.i64("totalSize", total).i64("totalSizeMb", total >> 20);
    }
    Ok(finish(w, &[]))
}

/// The collections of a database: the shard that is its primary knows all.
pub(crate) fn list_collections(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = format!("{}.$cmd.listCollections", command.db);
    let whole = command.whole();
    if OWN.contains(&command.db) {
        let message = cluster_view::upstream::message(whole.as_doc(), &[]);
        let reply = router.cluster.shard(CONFIG)?.call(&message)?;
        return Ok(cursors::adopt(router, &ns, &CONFIG.into(), reply));
    }
    router.cluster.agree_database(command.db, |primary| {
        let Some(primary) = primary else {
            let mut w = Writer::new();
            w.open_doc("cursor").i64("id", 0).str("ns", &ns);
            w.open_array("firstBatch").close().close();
            return Ok(finish(w, &[]));
        };
        let placement = Placement::Unsharded(Unsharded::on_primary(primary));
        if command.user.is_some() && command.is("authorizedCollections") {
            let mut ask = Writer::new();
            let left_out = ["$db", "authorizedCollections", "cursor"];
            for e in command.body.iter().filter(|e| !left_out.contains(&e.name)) {
                ask.val(e.name, e.val);
            }
            let set = router.cluster.shard(&primary.shard)?;
            let all = all(&set, command.db, ask.finish().as_doc())?;
            return Ok(access::seen_collections(command, &ns, &all));
        }
        let reply = router
            .cluster
            .send(&placement, &primary.shard, whole.as_doc(), &[])?;
        Ok(cursors::adopt(router, &ns, &primary.shard, reply))
    })
}

pub(crate) fn list_indexes(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    router.cluster.agree(&ns, |placement| {
        let shard = match placement {
            Some(placement) => some_shard(placement),
            None => None,
        };
        let (Some(placement), Some(shard)) = (placement, shard) else {
            return Err(err!(NamespaceNotFound, "ns does not exist: {ns}").into());
        };
        let whole = command.whole();
        let reply = router
            .cluster
            .send(placement, &shard, whole.as_doc(), &[])?;
        Ok(cursors::adopt(router, &ns, &shard, reply))
    })
}

fn some_shard(placement: &Placement) -> Option<Arc<str>> {
    match placement {
        Placement::Unsharded(Unsharded { shard, .. }) => Some(shard.clone()),
        Placement::Sharded(table) => table.shards().next().cloned(),
    }
}
