//! Stages that tell of the cluster, and begin a pipeline of no collection: `$currentOp`,
//! `$shardedDataDistribution`, `$listClusterCatalog`; and which shard says what, in those that tell of
//! a collection.

use crate::listing::operations;
use crate::request::RoutedCommand;
use crate::state::Router;
use crate::targeting::pipeline::stage_of;
use crate::targeting::pipeline_context::list;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::collections::size_on;
use cluster_view::metadata::{CONFIG, Placement, all};
use errors::err;
use query::expr::ParseEnv;
use query::pipeline::{ParseCtx, Pipeline};

/// The documents that such a stage gives; `None`: it is another one.
pub(crate) fn documents(
    router: &Router,
    command: &RoutedCommand<'_>,
    stage: (&str, Val<'_>),
) -> Outcome<Option<Vec<DocBuf>>> {
    Ok(Some(match stage {
        ("$currentOp", spec) if !is_local(spec) => {
            if command.db != "admin" {
                return Err(err!(
                    InvalidNamespace,
                    "$currentOp must be run against the 'admin' database with {{aggregate: 1}}"
                )
                .into());
            }
            operations::documents(router, command, spec)?
        }
        ("$shardedDataDistribution", _) => {
            if command.db != "admin" {
                return Err(err!(
                    InvalidNamespace,
                    "$shardedDataDistribution must be run against the admin database with {{aggregate: 1}}"
                )
                .into());
            }
            distribution(router)?
        }
        ("$listClusterCatalog", spec) => {
            check(command, "$listClusterCatalog")?;
            let shards = spec.as_doc().and_then(|d| d.get("shards"));
            catalog(router, command, shards.is_some_and(Val::truthy))?
        }
        ("$listSampledQueries", spec) if command.db == "admin" => {
            let ns = spec.as_doc().and_then(|d| d.get("namespace"));
            let of = ns.map_or(doc! {}, |ns| doc! {"ns": ns.to_value()});
            sampled(router, of.as_doc())?
        }
        _ => return Ok(None),
    }))
}

/// Fails where the first stage is not as it has to be, or another one of its name is behind it.
fn check(command: &RoutedCommand<'_>, name: &str) -> Outcome<()> {
    let stages = command.stages().values().enumerate();
    let is_named = |stage: &Val<'_>| stage_of(*stage).is_some_and(|(of, _)| of == name);
    let named = list(stages.filter(|(n, s)| *n == 0 || is_named(s)).map(|s| s.1));
    let context = ParseCtx::new(command.db, None, ParseEnv::new());
    Pipeline::parse(named.as_val(), &context)?;
    Ok(())
}

/// Whether a `$currentOp` asks for the router itself only.
fn is_local(spec: Val<'_>) -> bool {
    let local = spec.as_doc().and_then(|d| d.get("localOps"));
    local.is_some_and(Val::truthy)
}

/// How much of each sharded collection each shard has.
fn distribution(router: &Router) -> Outcome<Vec<DocBuf>> {
    let cluster = &router.cluster;
    let mut found = Vec::new();
    for entry in cluster.read_config("collections", Doc::EMPTY, doc! {"_id": 1}.as_doc())? {
        let ns = entry.get("_id").and_then(Val::as_str).unwrap_or_default();
        let Some(Placement::Sharded(table)) = cluster.refresh(ns)? else {
            continue;
        };
        let mut w = Writer::new();
        w.str("ns", ns).open_array("shards");
        for shard in table.shards() {
            let (size, count) = size_on(cluster, shard, ns)?;
            w.open_doc("")
                .str("shardName", shard)
                .i64("numOrphanedDocs", 0)
                .i64("numOwnedDocuments", count as i64)
                .i64("ownedSizeBytes", size as i64)
                .i64("orphanedSizeBytes", 0)
                .close();
        }
        w.close();
        found.push(w.finish());
    }
    Ok(found)
}

/// The collections of a database, or of all at `admin`, and where they are, if that is asked for.
fn catalog(router: &Router, command: &RoutedCommand<'_>, shards: bool) -> Outcome<Vec<DocBuf>> {
    let cluster = &router.cluster;
    let wanted = match command.db {
        "admin" => doc! {},
        db => doc! {"_id": db},
    };
    let mut primaries = Vec::new();
    for database in cluster.read_config("databases", wanted.as_doc(), doc! {"_id": 1}.as_doc())? {
        let text = |name: &str| database.get(name).and_then(Val::as_str);
        if let (Some(db), Some(primary)) = (text("_id"), text("primary")) {
            primaries.push((db.to_string(), primary.to_string()));
        }
    }
    if matches!(command.db, "admin" | CONFIG) {
        primaries.push((CONFIG.into(), CONFIG.into()));
    }
    let mut found = Vec::new();
    for (db, primary) in &primaries {
        let set = cluster.shard(primary)?;
        for listed in all(&set, db, doc! {"listCollections": 1}.as_doc())? {
            let name = listed.get("name").and_then(Val::as_str).unwrap_or_default();
            let ns = format!("{db}.{name}");
            let placement = match db == CONFIG {
                true => None,
                false => cluster.placement(&ns)?,
            };
            let mut w = Writer::new();
            w.str("ns", &ns).str("db", db);
            for e in listed.as_doc().iter().filter(|e| e.name != "name") {
                w.val(e.name, e.val);
            }
            write_placement(&mut w, placement.as_ref(), primary, shards);
            found.push(w.finish());
        }
    }
    Ok(found)
}

/// Whether a collection is sharded, by what, and, if that is asked for, the shards that have it.
fn write_placement(w: &mut Writer, placement: Option<&Placement>, primary: &str, shards: bool) {
    let table = match placement {
        Some(Placement::Sharded(table)) => Some(table),
        _ => None,
    };
    w.bool("sharded", table.is_some());
    if let Some(table) = table {
        w.doc("shardKey", table.key().pattern());
    }
    if !shards {
        return;
    }
    w.open_array("shards");
    match (table, placement) {
        (Some(table), _) => table.shards().for_each(|shard| {
            w.push_value(&**shard);
        }),
        (None, Some(Placement::Unsharded(unsharded))) => {
            w.push_value(&*unsharded.shard);
        }
        (None, _) => {
            w.push_value(primary);
        }
    }
    w.close();
}

/// A shard's pipeline that tells of a collection, so that it says which shard it tells of; others as
/// they are.
pub(crate) fn naming(command: DocBuf, shard: &str) -> DocBuf {
    let stages = command.get("pipeline").and_then(Val::as_array);
    let first = stages.and_then(|s| stage_of(s.values().next()?));
    let tells = first.is_some_and(|(name, _)| matches!(name, "$collStats" | "$indexStats"));
    let Some(stages) = stages.filter(|_| tells) else {
        return command;
    };
    let mut w = Writer::with_capacity(command.as_bytes().len() + 64);
    for e in command.as_doc() {
        if e.name != "pipeline" {
            w.val(e.name, e.val);
            continue;
        }
        w.open_array("pipeline");
        let named = doc! {"$set": doc! {"shard": shard}};
        for (n, stage) in stages.values().enumerate() {
            w.push(stage);
            if n == 0 {
                w.push(named.as_doc().as_val());
            }
        }
        w.close();
    }
    w.finish()
}

/// The queries that were sampled.
pub(crate) fn sampled(router: &Router, filter: Doc<'_>) -> Outcome<Vec<DocBuf>> {
    router
        .cluster
        .read_config("sampledQueries", filter, Doc::EMPTY)
}
