//! What there is: databases, collections, indexes and their figures, over all shards.

use crate::access;
use crate::cursors;
use crate::pipeline_parts::Parts;
use crate::request::{RoutedCommand, finish, own};
use crate::router::Router;
use crate::scratch::{check_arguments, compute_for};
use crate::small_side::Joins;
use crate::{aggregate, find, views};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::{CONFIG, Placement, Unsharded, all};
use cluster_view::reply::sound;
use cluster_view::upstream::with_fields;
use errors::err;
use service::Request;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Databases that each shard has of its own.
const OWN: [&str; 3] = ["local", "config", "admin"];

pub(crate) fn list_databases(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    check_arguments(router, command, &[])?;
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
    // Also where there is no database.
    check_arguments(router, command, &[])?;
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

/// What a version of the API does not allow of what the shards have.
pub(crate) fn validate_metadata(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    check_arguments(router, command, &[])?;
    let ask = command.without(&["lsid", "$readPreference"]).finish();
    let mut seen = BTreeSet::new();
    let mut w = Writer::new();
    w.open_array("apiVersionErrors");
    for shard in router.cluster.shard_names()? {
        let set = router.cluster.shard(&shard)?;
        let reply = sound(set.call(&cluster_view::upstream::message(ask.as_doc(), &[]))?)?;
        let found = reply.get("apiVersionErrors").and_then(Val::as_array);
        for e in found.unwrap_or(Doc::EMPTY).values() {
            // A sharded collection has its indexes on several.
            if seen.insert(e.as_doc().map(|d| d.to_buf().into_vec())) {
                w.push(e);
            }
        }
    }
    w.close();
    Ok(finish(w, &[]))
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

/// Adds up numbers of the same name.
fn sum(replies: &[(Arc<str>, DocBuf)], names: &[&str], w: &mut Writer) {
    for name in names {
        let values = replies.iter().filter_map(|(_, r)| r.get(name)?.to_f64());
        let total: f64 = values.sum();
        w.int(name, total as i64);
    }
}

pub(crate) fn db_stats(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let mut replies = Vec::new();
    for shard in router.cluster.shard_names()? {
        let set = router.cluster.shard(&shard)?;
        let reply = set.call(&cluster_view::upstream::message(
            command.whole().as_doc(),
            &[],
        ))?;
        replies.push((Arc::from(shard), sound(reply)?));
    }
    let mut w = Writer::new();
    w.str("db", command.db);
    let names = [
        "collections",
        "views",
        "objects",
        "dataSize",
        "storageSize",
        "freeStorageSize",
        "indexes",
        "indexSize",
        "indexFreeStorageSize",
        "totalSize",
        "totalFreeStorageSize",
        "fsUsedSize",
        "fsTotalSize",
    ];
    w.open_doc("raw");
    for (shard, reply) in &replies {
        w.doc(shard, reply.as_doc());
    }
    w.close();
    for name in names {
        // Of the type that the shards have told, where they have told it.
        match replies.iter().find_map(|(_, r)| r.get(name)) {
            Some(v) if v.as_i64().is_some() => w.i64(name, total(&replies, name) as i64),
            Some(_) => w.f64(name, total(&replies, name)),
            None => &mut w,
        };
    }
    write_average(&mut w, &replies, "objects");
    write_scale(&mut w, &replies);
    Ok(finish(w, &[]))
}

fn total(replies: &[(Arc<str>, DocBuf)], name: &str) -> f64 {
    replies
        .iter()
        .filter_map(|(_, r)| r.get(name)?.to_f64())
        .sum()
}

/// Of averages, since sizes are divided by the scale, and cut off.
fn write_average(w: &mut Writer, replies: &[(Arc<str>, DocBuf)], count: &str) {
    let number = |r: &DocBuf, name: &str| r.get(name).and_then(Val::to_f64).unwrap_or(0.0);
    let bytes = replies
        .iter()
        .map(|(_, r)| number(r, "avgObjSize") * number(r, count));
    let documents = total(replies, count);
    let average = match documents > 0.0 {
        true => bytes.sum::<f64>() / documents,
        false => 0.0,
    };
    w.f64("avgObjSize", average);
}

/// By what the sizes are divided, as the shards say.
fn write_scale(w: &mut Writer, replies: &[(Arc<str>, DocBuf)]) {
    if let Some(scale) = replies.iter().find_map(|(_, r)| r.get("scaleFactor")) {
        w.val("scaleFactor", scale);
    }
}

/// What `collStats` tells of all shards together, beside sums.
fn write_merged_stats(w: &mut Writer, by_shard: &[(Arc<str>, DocBuf)]) {
    let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
    for (_, reply) in by_shard {
        let indexes = reply.get("indexSizes").and_then(Val::as_doc);
        for e in indexes.unwrap_or(Doc::EMPTY) {
            *sizes.entry(e.name).or_default() += e.val.to_f64().unwrap_or(0.0);
        }
    }
    w.open_doc("indexSizes");
    for (name, bytes) in sizes {
        w.int(name, bytes as i64);
    }
    w.close().bool("capped", false);
    write_average(w, by_shard, "count");
    write_scale(w, by_shard);
}

/// `collStats`, `dataSize`, `validate`.
pub(crate) fn of_collection(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let name = match command.name {
        "dataSize" | "datasize" => "dataSize",
        "validate" => "validate",
        _ => "collStats",
    };
    let ns = match name {
        "dataSize" => command.collection().to_string(),
        _ => command.namespace()?,
    };
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            // As a server that has nothing.
            return compute_for(router, command.user.clone(), &command.whole());
        };
        let shards: Vec<Arc<str>> = match placement {
            Placement::Unsharded(Unsharded { shard, .. }) => vec![shard.clone()],
            Placement::Sharded(table) => table.shards().cloned().collect(),
        };
        let each = command.whole();
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.cluster.scatter(placement, &commands)?;
        if let (Placement::Unsharded(Unsharded { shard, .. }), Some(reply)) =
            (placement, replies.first())
        {
            let mut w = Writer::new();
            w.extend(sound(reply.clone())?.as_doc());
            match name {
                "collStats" => w.bool("sharded", false).str("primary", shard),
                "validate" => w.open_doc("raw").doc(shard, reply.as_doc()).close(),
                _ => &mut w,
            };
            return Ok(w.finish());
        }
        let mut by_shard = Vec::new();
        for (shard, reply) in shards.iter().zip(replies) {
            by_shard.push((shard.clone(), sound(reply)?));
        }
        let mut w = Writer::new();
        if name != "validate" {
            w.bool("sharded", true).str("ns", &ns);
        }
        match name {
            "dataSize" => sum(&by_shard, &["size", "numObjects", "millis"], &mut w),
            "validate" => {
                let valid = by_shard
                    .iter()
                    .all(|(_, r)| r.get("valid").is_some_and(Val::truthy));
                w.bool("valid", valid);
            }
            _ => {
                let names = [
                    "count",
                    "size",
                    "storageSize",
                    "totalIndexSize",
                    "totalSize",
                    "numOrphanDocs",
                ];
                sum(&by_shard, &names, &mut w);
                write_merged_stats(&mut w, &by_shard);
                let indexes = by_shard.first().and_then(|(_, r)| r.get("nindexes"));
                w.val("nindexes", indexes.unwrap_or(Val::NULL));
                w.i64(
                    "nchunks",
                    match placement {
                        Placement::Sharded(table) => table.len() as i64,
                        Placement::Unsharded(_) => 1,
                    },
                );
            }
        }
        w.open_doc(if name == "validate" { "raw" } else { "shards" });
        for (shard, reply) in &by_shard {
            w.doc(shard, reply.as_doc());
        }
        w.close();
        Ok(finish(w, &[]))
    })
}

/// What each shard would do. A view is read as the pipeline over what lies below it, step by step
/// where that is a view itself, as a read of it is.
pub(crate) fn explain(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let Some(inner) = command.document("explain") else {
        return Err(err!(BadValue, "explain needs a command").into());
    };
    let asked = with_fields(inner, doc! {"$db": command.db}.as_doc());
    let request = Request::own(asked.as_doc());
    let read = RoutedCommand::of(&request)?;
    let Some(below) = views::below_defined(router, &read)? else {
        return explain_stored(router, command, &read);
    };
    let mut w = Writer::new();
    w.open_doc("explain");
    for e in below.as_doc().iter().filter(|e| e.name != "$db") {
        w.val(e.name, e.val);
    }
    w.close();
    for e in command.body.iter().skip(1) {
        w.val(e.name, e.val);
    }
    own(router, &w.finish(), explain)
}

/// Where an explained command looks for documents.
fn filter_of<'a>(inner: &RoutedCommand<'a>) -> Doc<'a> {
    let first_of = |statements: &str| {
        let all = inner.body.get(statements)?.as_array()?;
        all.values().next()?.as_doc()?.get("q")?.as_doc()
    };
    let name = inner.body.first().map_or("", |e| e.name);
    let filter = match name {
        "find" => inner.document("filter"),
        "update" => first_of("updates"),
        "delete" => first_of("deletes"),
        _ => inner.document("query"),
    };
    filter.unwrap_or(Doc::EMPTY)
}

/// Sends it with what the router believes, as the command itself goes: a shard hides what it does
/// not own, and refuses what it knows better.
fn explain_stored(
    router: &Router,
    command: &RoutedCommand<'_>,
    inner: &RoutedCommand<'_>,
) -> Outcome<DocBuf> {
    let ns = format!("{}.{}", command.db, inner.collection());
    let is_pipeline = inner.body.first().is_some_and(|e| e.name == "aggregate");
    let stages = inner.field("pipeline").and_then(Val::as_array);
    let stages = stages.filter(|_| is_pipeline).unwrap_or(Doc::EMPTY);
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return compute_for(router, command.user.clone(), &command.whole());
        };
        let shards = match is_pipeline {
            true => aggregate::pipeline_targets(inner, inner.body, placement, stages)?,
            false => find::targets(inner, placement, filter_of(inner))?,
        };
        let whole = command.whole();
        let is_whole_on = |shard: &Arc<str>| {
            let mut others = Vec::new();
            aggregate::joined_collections(command.db, stages, &mut others);
            aggregate::are_all_on(router, shard, &others)
        };
        if let (Placement::Unsharded(_), [shard]) = (placement, shards.as_slice())
            && is_whole_on(shard)?
        {
            return router.cluster.send(placement, shard, whole.as_doc(), &[]);
        }
        if is_pipeline {
            let own = placement.table().and_then(|t| t.entry.collation.as_ref());
            let collation = inner.document("collation").or(own.map(DocBuf::as_doc));
            return explain_pipeline(router, command, inner.body, collation, (placement, &shards));
        }
        let to_each: Vec<_> = shards.iter().map(|s| (s.clone(), whole.clone())).collect();
        let replies = router.cluster.scatter(placement, &to_each)?;
        let mut explained = Vec::new();
        for (shard, reply) in shards.iter().zip(replies) {
            explained.push((shard.clone(), sound(reply)?));
        }
        explained_together(router, &explained)
    })
}

/// One explanation of a command that several shards explain.
fn explained_together(router: &Router, explained: &[(Arc<str>, DocBuf)]) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    let stage = match explained.len() {
        1 => "SINGLE_SHARD",
        _ => "SHARD_MERGE",
    };
    w.open_doc("queryPlanner")
        .open_doc("winningPlan")
        .str("stage", stage);
    w.open_array("shards");
    for (shard, reply) in explained {
        let mut one = Writer::new();
        one.str("shardName", shard)
            .str("connectionString", &router.cluster.shard(shard)?.address);
        if let Some(planner) = reply.get("queryPlanner").and_then(Val::as_doc) {
            one.extend(planner);
        }
        w.push(one.finish().as_doc().as_val());
    }
    w.close().close().close();
    let stats: Vec<_> = explained
        .iter()
        .filter_map(|(s, r)| Some((s.clone(), r.get("executionStats")?.as_doc()?.to_buf())))
        .collect();
    if !stats.is_empty() {
        w.open_doc("executionStats");
        let names = ["nReturned", "totalKeysExamined", "totalDocsExamined"];
        sum(&stats, &names, &mut w);
        w.open_doc("executionStages")
            .str("stage", stage)
            .open_array("shards");
        for (shard, s) in &stats {
            let mut one = Writer::new();
            one.str("shardName", shard).extend(s.as_doc());
            w.push(one.finish().as_doc().as_val());
        }
        w.close().close().close();
    }
    Ok(finish(w, &[]))
}

/// Each shard's plan for a pipeline, and the router's part.
fn explain_pipeline(
    router: &Router,
    command: &RoutedCommand<'_>,
    inner: Doc<'_>,
    collation: Option<Doc<'_>>,
    (placement, shards): (&Placement, &[Arc<str>]),
) -> Outcome<DocBuf> {
    let stages = inner.get("pipeline").and_then(Val::as_array);
    let stages = stages.unwrap_or(Doc::EMPTY);
    let context = aggregate::pipeline_context(command.db, inner, collation)?;
    let joins = Joins::of(router, command, &context);
    let mut others = Vec::new();
    aggregate::joined_collections(command.db, stages, &mut others);
    let is_split = match shards {
        [shard] => aggregate::fuses(stages) || !aggregate::are_all_on(router, shard, &others)?,
        _ => true,
    };
    let (each, rest) = match is_split {
        true => Parts::of(&context, stages, &|name, spec| joins.join(name, spec))?.shown(),
        false => (stages.as_array_val().to_value(), Val::NULL.to_value()),
    };
    let mut run = Writer::new();
    for e in inner {
        match e.name {
            "pipeline" => run.val("pipeline", each.as_val()),
            name => run.val(name, e.val),
        };
    }
    if let Some(joins) = joins.remote_joins().filter(|_| is_split) {
        run.val("joinsElsewhere", joins.as_val());
    }
    let mut body = Writer::new();
    body.doc("explain", run.finish().as_doc())
        .extend(command.without(&["explain"]).finish().as_doc());
    let body = body.finish();
    let mut w = Writer::new();
    match is_split {
        true => {
            w.str("mergeType", "router").open_doc("splitPipeline");
            w.val("shardsPart", each.as_val())
                .val("mergerPart", rest.as_val())
                .close();
        }
        false => _ = w.null("splitPipeline"),
    }
    w.open_doc("shards");
    let to_each: Vec<_> = shards.iter().map(|s| (s.clone(), body.clone())).collect();
    let replies = router.cluster.scatter(placement, &to_each)?;
    for (shard, reply) in shards.iter().zip(replies) {
        let reply = sound(reply)?;
        let mut one = Writer::new();
        one.str("host", &router.cluster.shard(shard)?.address);
        let own = [
            "ok",
            "$clusterTime",
            "operationTime",
            "serverInfo",
            "command",
        ];
        for e in reply.as_doc().iter().filter(|e| !own.contains(&e.name)) {
            one.val(e.name, e.val);
        }
        w.doc(shard, one.finish().as_doc());
    }
    w.close();
    Ok(finish(w, &[]))
}
