//! What pipelines ask of the server: the rows of `$collStats`, `$currentOp`, `$listSessions`,
//! `$listLocalSessions`, `$querySettings`, `$planCacheStats` and `$listClusterCatalog`.

use super::{coll_stats, sizes};
use crate::Commands;
use crate::clock::now_millis;
use crate::ddl::list_collections;
use crate::diagnostic::current_op::{Wanted, Watch};
use crate::diagnostic::process;
use crate::monitoring::latency;
use crate::monitoring::metrics::Counters;
use crate::replication::oplog;
use crate::request::CommandContext;
use crate::security::authorize;
use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};
use executor::{Engine, ServerRows};
use query::pipeline::{RowsKind, RowsStage};
use session::Sessions;
use std::sync::Arc;

/// Answers the stages of one pipeline. Owned, since a cursor keeps it.
pub fn for_pipeline(cx: &CommandContext<'_, '_>) -> ServerRows {
    let app: &Commands = cx.app;
    let (engine, sessions) = (app.engine.clone(), app.sessions.clone());
    let (watch, counters) = (Watch::new(app), app.counters.clone());
    let me = app.security.enabled.then(|| authorize::name(cx));
    let (port, settings) = (app.config.port, app.query_settings.clone());
    Arc::new(move |stage: &RowsStage| {
        let host = || format!("{}:{port}", process::host_name());
        match stage.kind {
            RowsKind::CollStats => {
                coll_stats_row(&engine, &counters, stage, &host()).map(|d| vec![d])
            }
            RowsKind::CurrentOp => {
                if stage.ns.db != "admin" {
                    bail!(
                        InvalidNamespace,
                        "$currentOp must be run against the 'admin' database with {{aggregate: 1}}"
                    );
                }
                let spec = stage.spec.as_doc();
                let mut wanted = Wanted::from_stage(spec);
                if !spec.get("allUsers").is_some_and(|v| v.truthy()) {
                    wanted.only = me.clone().flatten();
                }
                Ok(watch.documents(wanted))
            }
            RowsKind::ListSessions | RowsKind::ListLocalSessions => {
                if names_users(stage.spec.as_doc()) {
                    return Ok(Vec::new());
                }
                Ok(list_sessions(&sessions))
            }
            RowsKind::QuerySettings => {
                let shape = stage.spec.as_doc().get("showDebugQueryShape");
                Ok(settings.rows(shape.is_some_and(|v| v.truthy())))
            }
            RowsKind::PlanCacheStats => {
                let ns = format!("{}.{}", stage.ns.db, stage.ns.coll);
                if engine.catalog.get(&ns).is_none() {
                    bail!(50933, "collection '{ns}' does not exist");
                }
                Ok(Vec::new())
            }
            RowsKind::ListClusterCatalog => Ok(cluster_catalog(&engine, stage)),
            RowsKind::IndexStats => Ok(Vec::new()),
        }
    })
}

fn coll_stats_row(
    engine: &Engine,
    counters: &Counters,
    stage: &RowsStage,
    host: &str,
) -> Result<DocBuf> {
    let ns = format!("{}.{}", stage.ns.db, stage.ns.coll);
    let spec = stage.spec.as_doc();
    let wanted = |name: &str| spec.get(name).and_then(|v| v.as_doc());
    let coll = engine.catalog.get(&ns);
    for name in ["storageStats", "count", "queryExecStats"] {
        if wanted(name).is_none() {
            continue;
        }
        match &coll {
            None if ns == executor::OPLOG => {}
            None => bail!(
                NamespaceNotFound,
                "Unable to retrieve {name} in $collStats stage :: caused by :: Collection [{ns}] not found."
            ),
            Some(c) if c.is_view() => bail!(
                CommandNotSupportedOnView,
                "{ns} is a view, not a collection"
            ),
            Some(_) => {}
        }
    }
    let spent = counters.namespace(&stage.ns.db, &stage.ns.coll);
    let mut w = Writer::with_capacity(256);
    w.str("ns", &ns)
        .str("host", host)
        .date("localTime", now_millis());
    if let Some(d) = wanted("latencyStats") {
        let histograms = d.get("histograms").is_some_and(|v| v.truthy());
        w.open_doc("latencyStats");
        latency::write(&spent.latencies, histograms, &mut w);
        w.close();
    }
    if coll.is_none() && ns == executor::OPLOG && wanted("storageStats").is_some() {
        w.open_doc("storageStats");
        oplog::append_stats(&mut w, &engine.store, 1);
        w.close();
    }
    if let Some(c) = &coll {
        let s = sizes(engine, c);
        if let Some(d) = wanted("storageStats") {
            let scale = d
                .get("scale")
                .and_then(crate::request::idl::whole)
                .unwrap_or(1)
                .clamp(1, i64::from(i32::MAX));
            w.open_doc("storageStats");
            coll_stats::append(&mut w, c, &s, scale);
            w.close();
        }
        if wanted("count").is_some() {
            w.int("count", s.count as i64);
        }
        if wanted("queryExecStats").is_some() {
            w.open_doc("queryExecStats")
                .open_doc("collectionScans")
                .i64("total", spent.scans as i64)
                .i64("nonTailable", spent.scans as i64)
                .close()
                .close();
        }
    }
    Ok(w.finish())
}

/// The collections of a database, of all for `admin`.
fn cluster_catalog(engine: &Engine, stage: &RowsStage) -> Vec<DocBuf> {
    let (snapshot, db) = (engine.catalog.snapshot(), stage.ns.db.as_str());
    let databases = match db {
        "admin" => snapshot.databases(),
        _ => vec![db.to_string()],
    };
    let shards = stage.spec.get("shards").is_some_and(|v| v.truthy());
    let mut rows = Vec::new();
    for db in &databases {
        for c in snapshot.of_db(db) {
            let mut w = Writer::with_capacity(256);
            w.str("ns", &c.ns).str("db", db);
            for e in list_collections::describe(c, false).as_doc() {
                if e.name != "name" {
                    w.val(e.name, e.val);
                }
            }
            w.bool("sharded", false);
            if shards {
                w.open_array("shards").close();
            }
            rows.push(w.finish());
        }
    }
    rows
}

/// Whether only the sessions of some users are asked for: there are no users but nobody.
fn names_users(spec: Doc<'_>) -> bool {
    let users = spec.get("users").and_then(|v| v.as_array());
    let mut users = users
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|v| v.as_doc())
        .peekable();
    let nobody = |u: Doc<'_>| u.get("user").and_then(|v| v.as_str()) == Some("");
    users.peek().is_some() && !users.any(nobody)
}

fn list_sessions(sessions: &Sessions) -> Vec<DocBuf> {
    // The digest of nobody's name: there are no users.
    let nobody = [
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9,
        0x24, 0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52,
        0xb8, 0x55,
    ];
    let mut rows = Vec::new();
    for (id, idle_seconds) in sessions.list() {
        let mut w = Writer::new();
        w.open_doc("_id")
            .binary("id", 4, &id)
            .binary("uid", 0, &nobody)
            .close();
        w.date("lastUse", now_millis() - idle_seconds * 1000);
        rows.push(w.finish());
    }
    rows
}

/// Whether a pipeline asks for what only a worker sees: the operation itself among those that run.
pub fn needs_worker(pipeline: Doc<'_>) -> bool {
    pipeline
        .values()
        .next()
        .and_then(|v| v.as_doc())
        .is_some_and(|d| d.contains("$currentOp"))
}
