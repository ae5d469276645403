//! Shards: which there are, a new one, one that is emptied.

use super::done;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::chunks::log;
use cluster_view::collections::now;
use cluster_view::metadata::{Cluster, run};
use cluster_view::{Outcome, ReplicaSet};
use errors::err;
use mover::balancer;

/// Databases that a new shard may have.
const OWN: [&str; 3] = ["local", "config", "admin"];

pub(super) fn add(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let given = command.collection();
    let cluster = &router.cluster;
    let set = cluster.outside(given);
    let hello = run(&set, "admin", doc! {"hello": 1}.as_doc())?;
    let name = shard_name(&set, given, &hello)?;
    let hosts = hello
        .get("hosts")
        .and_then(Val::as_array)
        .unwrap_or(Doc::EMPTY);
    let mut hosts: Vec<&str> = hosts.values().filter_map(Val::as_str).collect();
    hosts.sort_unstable();
    let address = format!("{name}/{}", hosts.join(","));
    let id = command.field("name").and_then(Val::as_str).unwrap_or(name);
    if let Some(shard) = shard_of_set(&cluster.shards()?, name) {
        return added_before(router, &shard, command, &address);
    }
    let databases = new_databases(cluster, &set, given)?;
    mover::settings::tell(cluster, &set)?;
    let entry =
        doc! {"_id": id, "host": &address, "state": 1, "topologyTime": Value::timestamp(now())};
    insert(router, "shards", entry)?;
    for db in &databases {
        let version = doc! {"uuid": Value::binary(4, &cluster_view::collections::uuid()), "timestamp": Value::timestamp(now()), "lastMod": 1};
        insert(
            router,
            "databases",
            doc! {"_id": db, "primary": id, "version": version},
        )?;
    }
    tell_who_it_is(router, &set, id, &address);
    log(cluster, "addShard", "", doc! {"name": id, "host": &address});
    cluster.forget_all();
    mover::transfer::join_time(cluster, id)?;
    balancer::keep_settings_sound(cluster)?;
    let mut w = Writer::new();
    w.str("shardAdded", id);
    Ok(finish(w, &[]))
}

/// The name of a replica set that may be a shard.
fn shard_name<'h>(set: &ReplicaSet, given: &str, hello: &'h DocBuf) -> Outcome<&'h str> {
    let Some(name) = hello.get("setName").and_then(Val::as_str) else {
        return Err(err!(OperationFailed, "{given} is no member of a replica set").into());
    };
    if set.name().is_some_and(|said| said != name) {
        return Err(err!(
            OperationFailed,
            "in seed list {given}, the name of the replica set is {name}"
        )
        .into());
    }
    if hello.get("msg").is_some() {
        return Err(err!(IllegalOperation, "{given} is a router").into());
    }
    if hello.get("configsvr").is_some() {
        return Err(err!(
            OperationFailed,
            "Cannot add {given} as a shard since it is a config server"
        )
        .into());
    }
    Ok(name)
}

/// The databases that a new shard brings with it; an error where the cluster has one of that name.
fn new_databases(cluster: &Cluster, set: &ReplicaSet, given: &str) -> Outcome<Vec<String>> {
    let list = doc! {"listDatabases": 1, "nameOnly": true};
    let listed = run(set, "admin", list.as_doc())?;
    let databases = listed
        .get("databases")
        .and_then(Val::as_array)
        .unwrap_or(Doc::EMPTY);
    let names = databases
        .values()
        .filter_map(|d| d.as_doc()?.get("name")?.as_str());
    let databases: Vec<String> = names
        .filter(|n| !OWN.contains(n))
        .map(str::to_string)
        .collect();
    for db in &databases {
        if let Some(other) = cluster.database(db)? {
            return Err(err!(
                OperationFailed,
                "can't add shard '{given}' because a local database '{db}' exists in another {other}"
            )
            .into());
        }
    }
    Ok(databases)
}

/// The shard that is the replica set of that name.
fn shard_of_set(shards: &[DocBuf], set: &str) -> Option<DocBuf> {
    let of = |s: &&DocBuf| {
        let host = s.get("host").and_then(Val::as_str).unwrap_or_default();
        host.split_once('/').is_some_and(|(name, _)| name == set)
    };
    shards.iter().find(of).cloned()
}

/// A set that is a shard is added already. Its members may be others than they were: a router that knows
/// none of those that are left would not find it.
fn added_before(
    router: &Router,
    shard: &DocBuf,
    command: &RoutedCommand<'_>,
    address: &str,
) -> Outcome<DocBuf> {
    let text = |name: &str| shard.get(name).and_then(Val::as_str).unwrap_or_default();
    let (id, known) = (text("_id"), text("host"));
    let set_name = known.split_once('/').map_or(known, |(name, _)| name);
    let named = command.field("name").and_then(Val::as_str);
    // Another set that has the same name is not taken for it.
    if named.is_some_and(|name| name != id) || !have_one_in_common(known, address) {
        return Err(err!(
            IllegalOperation,
            "A shard already exists containing the replica set '{set_name}'"
        )
        .into());
    }
    if known != address {
        set(router, id, doc! {"$set": doc! {"host": address}})?;
        router.cluster.forget_all();
    }
    let mut w = Writer::new();
    w.str("shardAdded", id);
    Ok(finish(w, &[]))
}

/// Whether two addresses, `set/host:port,…`, name one member that is the same.
fn have_one_in_common(one: &str, other: &str) -> bool {
    fn members(address: &str) -> impl Iterator<Item = &str> {
        let hosts = address.split_once('/').map_or(address, |(_, hosts)| hosts);
        hosts.split(',')
    }
    members(one).any(|host| members(other).any(|o| o == host))
}

fn insert(router: &Router, collection: &str, entry: DocBuf) -> Outcome<()> {
    let insert = doc! {
        "insert": collection,
        "documents": bson::array![entry],
        "writeConcern": doc! {"w": "majority"},
    };
    let reply = router.cluster.on_config("config", insert.as_doc())?;
    match reply.get("writeErrors") {
        None => Ok(()),
        Some(errors) => Err(err!(OperationFailed, "config.{collection}: {errors}").into()),
    }
}

/// Writes its identity (name, address, configuration set) to a shard. Only clients that connect to the
/// shard directly need it.
fn tell_who_it_is(router: &Router, set: &ReplicaSet, id: &str, address: &str) {
    let identity = doc! {
        "shardName": id,
        "host": address,
        "configsvrConnectionString": router.cluster.config_address.as_str(),
    };
    let update = doc! {"q": doc! {"_id": "shardIdentity"}, "u": identity, "upsert": true};
    let command = doc! {"update": "system.version", "updates": bson::array![update]};
    if let Err(e) = run(set, "admin", command.as_doc()) {
        tracing::warn!(target: "SHARDING", shard = id, error = %e, "A shard does not know its name");
    }
}

/// With `pandoMembers` each shard says besides what its members are: see [`with_members`].
pub(super) fn list(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let shards = router.cluster.shards()?;
    let mut w = Writer::new();
    w.open_array("shards");
    if !command.field("pandoMembers").is_some_and(Val::truthy) {
        shards.iter().for_each(|shard| {
            w.push(shard.as_doc().as_val());
        });
        w.close();
        return Ok(finish(w, &[]));
    }
    let told: Vec<DocBuf> = std::thread::scope(|scope| {
        let asked: Vec<_> = shards
            .iter()
            .map(|shard| scope.spawn(|| with_members(&router.cluster, shard.as_doc())))
            .collect();
        asked.into_iter().filter_map(|a| a.join().ok()).collect()
    });
    told.iter().for_each(|shard| {
        w.push(shard.as_doc().as_val());
    });
    w.close();
    Ok(finish(w, &[]))
}

/// A shard with `members` as its `replSetGetStatus` has them, or with `error`: why it does not say.
fn with_members(cluster: &Cluster, shard: Doc<'_>) -> DocBuf {
    const MILLIS: i64 = 5_000;
    let name = shard.get("_id").and_then(Val::as_str).unwrap_or_default();
    let ask = doc! {"replSetGetStatus": 1, "maxTimeMS": MILLIS};
    let status = cluster.on_shard(name, "admin", ask.as_doc());
    let mut w = Writer::new();
    w.extend(shard);
    match status {
        Ok(status) => {
            if let Some(members) = status.get("members") {
                w.val("members", members);
            }
        }
        Err(failure) => {
            w.str("error", &failure.into_error().message);
        }
    }
    w.finish()
}

/// The shard of that name or address, which is not the last one that stays.
fn shard_to_remove<'s>(shards: &'s [DocBuf], name: &str) -> Outcome<&'s DocBuf> {
    let found = shards.iter().find(|s| {
        [s.get("_id"), s.get("host")]
            .iter()
            .flatten()
            .any(|v| v.as_str() == Some(name))
    });
    let Some(shard) = found else {
        return Err(err!(ShardNotFound, "Could not find shard named {name}").into());
    };
    let stays = |s: &DocBuf| {
        !s.get("draining").is_some_and(Val::truthy) && s.get("_id") != shard.get("_id")
    };
    if !shards.iter().any(stays) {
        return Err(err!(
            IllegalOperation,
            "Operation not allowed because it would remove the last shard"
        )
        .into());
    }
    Ok(shard)
}

/// Begins to empty a shard, says how far that is, or takes it out when it is empty.
pub(super) fn remove(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let name = command.collection();
    let cluster = &router.cluster;
    let shards = cluster.shards()?;
    let shard = shard_to_remove(&shards, name)?;
    let id = shard.get("_id").and_then(Val::as_str).unwrap_or_default();
    let databases = cluster.read_config("databases", doc! {"primary": id}.as_doc(), Doc::EMPTY)?;
    let chunks = cluster.read_config("chunks", doc! {"shard": id}.as_doc(), Doc::EMPTY)?;
    // Pending moves end first: later they would not find this shard to tell it.
    let any = bson::array![doc! {"from": id}, doc! {"to": id}, doc! {"fenced": id}];
    let busy = cluster.read_config("migrations", doc! {"$or": any}.as_doc(), Doc::EMPTY)?;
    let mut w = Writer::new();
    if !shard.get("draining").is_some_and(Val::truthy) {
        set(router, id, doc! {"$set": doc! {"draining": true}})?;
        balancer::wake();
        w.str("msg", "draining started successfully")
            .str("state", "started")
            .str("shard", id);
    } else if databases.is_empty() && chunks.is_empty() && busy.is_empty() {
        let delete = doc! {
            "delete": "shards",
            "deletes": bson::array![doc! {"q": doc! {"_id": id}, "limit": 1}],
            "writeConcern": doc! {"w": "majority"},
        };
        cluster.on_config("config", delete.as_doc())?;
        cluster.forget_all();
        log(cluster, "removeShard", "", doc! {"shard": id});
        w.str("msg", "removeshard completed successfully")
            .str("state", "completed")
            .str("shard", id);
        return Ok(finish(w, &[]));
    } else {
        w.str("msg", "draining ongoing").str("state", "ongoing");
        w.open_doc("remaining").i64("chunks", chunks.len() as i64);
        w.i64("dbs", databases.len() as i64)
            .i64("jumboChunks", 0)
            .close();
    }
    w.str(
        "note",
        "you need to call moveCollection or drop these databases",
    );
    w.open_array("dbsToMove");
    for db in databases.iter().filter_map(|d| d.get("_id")?.as_str()) {
        w.push_value(db);
    }
    w.close().open_array("collectionsToMove");
    let whole = doc! {"unsplittable": true};
    for entry in cluster.read_config("collections", whole.as_doc(), Doc::EMPTY)? {
        let here = chunks.iter().any(|c| c.get("uuid") == entry.get("uuid"));
        if let (true, Some(ns)) = (here, entry.get("_id")) {
            w.push(ns);
        }
    }
    w.close();
    Ok(finish(w, &[]))
}

/// Changes a shard's document.
pub(super) fn set(router: &Router, shard: &str, update: DocBuf) -> Outcome<()> {
    let update = doc! {
        "update": "shards",
        "updates": bson::array![doc! {"q": doc! {"_id": shard}, "u": update}],
        "writeConcern": doc! {"w": "majority"},
    };
    let reply = router.cluster.on_config("config", update.as_doc())?;
    match reply.get("n").and_then(Val::to_i64_exact) {
        Some(1) => Ok(()),
        _ => Err(err!(ShardNotFound, "shard {shard} does not exist").into()),
    }
}

pub(super) fn map(router: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    let shards = router.cluster.shards()?;
    let all = shards
        .iter()
        .filter_map(|s| Some((s.get("_id")?.as_str()?, s.get("host")?.as_str()?)));
    let config = &router.cluster.config_address;
    w.open_doc("map").str("config", config);
    for (id, host) in all.clone() {
        w.str(id, host);
    }
    w.close().open_doc("hosts");
    let with_config = all.chain(std::iter::once(("config", config.as_str())));
    for (id, address) in with_config.clone() {
        let hosts = address.split_once('/').map_or(address, |(_, h)| h);
        for host in hosts.split(',') {
            w.str(host, id);
        }
    }
    w.close().open_doc("connStrings");
    for (id, address) in with_config {
        w.str(address, id);
    }
    w.close();
    Ok(finish(w, &[]))
}

pub(super) fn is_router(_: &Router, _: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    w.i32("isdbgrid", 1).extend(done().as_doc());
    Ok(w.finish())
}
