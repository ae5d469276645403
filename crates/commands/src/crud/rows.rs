//! What pipelines ask of the server: the rows of `$collStats`, `$currentOp`, `$listSessions`,
//! `$listLocalSessions`, `$querySettings`, `$planCacheStats` and `$listClusterCatalog`.

use crate::Commands;
use crate::analysis::sampling::SAMPLES;
use crate::clock::now_millis;
use crate::connection::Connection;
use crate::crud::shape;
use crate::ddl::{list_collections, search_indexes};
use crate::diagnostic::current_op::{OperationFilter, Watch};
use crate::monitoring::latency;
use crate::monitoring::metrics::Counters;
use crate::oplog_view;
use crate::process;
use crate::request::session_of::append_session;
use crate::settings::documents;
use crate::stats::{coll_stats, sizes};
use auth::UserName;
use bson::{Doc, DocBuf, Writer, doc};
use catalog::{Collection, PlanCacheEntry};
use errors::{Result, bail};
use executor::{Engine, ServerRows};
use planner::explain::{Explain, stages};
use query::pipeline::{RowsKind, RowsStage};
use service::Client;
use session::Sessions;
use std::sync::Arc;

/// Answers the stages of one client's pipeline. Owned, since a cursor keeps it.
pub fn for_pipeline(app: &Commands, client: &Client<Connection>) -> ServerRows {
    let (engine, sessions) = (app.engine.clone(), app.sessions.clone());
    let (watch, counters) = (Watch::new(app), app.counters.clone());
    let login = app.security.enabled.then_some(&client.state.login);
    let me = login.map(|l| l.user().map(|u| u.name.to_string()));
    let own = login.map(|l| l.uid());
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
                let mut wanted = OperationFilter::from_stage(spec);
                if !spec.get("allUsers").is_some_and(|v| v.truthy()) {
                    wanted.only = me.clone().flatten();
                }
                Ok(watch.documents(wanted))
            }
            RowsKind::ListSessions | RowsKind::ListLocalSessions => {
                let owners = owners_wanted(stage.spec.as_doc(), own)?;
                Ok(list_sessions(&sessions, owners.as_deref()))
            }
            RowsKind::QuerySettings => {
                let shape = stage.spec.as_doc().get("showDebugQueryShape");
                Ok(settings.rows(shape.is_some_and(|v| v.truthy())))
            }
            RowsKind::PlanCacheStats => {
                let ns = format!("{}.{}", stage.ns.db, stage.ns.coll);
                let Some(coll) = engine.catalog.get(&ns) else {
                    bail!(50933, "collection '{ns}' does not exist");
                };
                let all = coll.plan_cache.list();
                Ok(all
                    .iter()
                    .map(|(_, e)| cached_plan(&coll, e, &host()))
                    .collect())
            }
            RowsKind::ListClusterCatalog => Ok(cluster_catalog(&engine, stage)),
            RowsKind::ListSearchIndexes => {
                let ns = stage.ns.to_string();
                search_indexes::rows(&engine, &ns, stage.spec.as_doc())
            }
            RowsKind::SampledQueries => sampled_queries(&engine, stage.spec.as_doc()),
            RowsKind::IndexStats | RowsKind::QueryStats => Ok(Vec::new()),
        }
    })
}

/// A row of `$planCacheStats`.
fn cached_plan(coll: &Collection, e: &PlanCacheEntry, host: &str) -> DocBuf {
    let sort = e.sort.as_ref().map(|s| s.to_doc());
    let projection = e.projection.as_ref().map(|p| p.to_doc());
    let (sort, projection) = (
        sort.as_ref().map(|d| d.as_doc()),
        projection.as_ref().map(|d| d.as_doc()),
    );
    let collation = e.filter.root().collation();
    let hash = shape::plan_cache_hash(&e.filter, sort, projection, collation.as_ref(), &[]);
    let filter = e.filter.to_doc();
    let tree = stages(&Explain {
        plan: &e.plan,
        filter: &e.filter,
        projection: e.projection.as_ref(),
        indexes: &coll.usable,
        clustered: coll.option("clusteredIndex").is_some(),
        skip: 0,
        limit: 0,
        count: false,
        plain: false,
    });
    let mut w = Writer::new();
    w.str("version", "1")
        .str("queryHash", &hash)
        .str("planCacheShapeHash", &hash)
        .str("planCacheKey", &hash)
        .bool("isActive", true)
        .int("works", e.works as i64)
        .str("worksType", "works");
    let created = e.created.duration_since(std::time::UNIX_EPOCH);
    w.date(
        "timeOfCreation",
        created.map_or(0, |d| d.as_millis() as i64),
    );
    w.open_doc("createdFromQuery")
        .doc("query", filter.as_doc())
        .doc("sort", sort.unwrap_or(Doc::EMPTY))
        .doc("projection", projection.unwrap_or(Doc::EMPTY))
        .close();
    w.doc("cachedPlan", tree.to_doc(&|_, _| {}).as_doc())
        .bool("indexFilterSet", false)
        .int(
            "estimatedSizeBytes",
            (2 * filter.as_bytes().len() + 512) as i64,
        )
        .str("host", host);
    w.finish()
}

/// The queries that were sampled, of all collections or of one.
fn sampled_queries(engine: &Arc<Engine>, spec: Doc<'_>) -> Result<Vec<DocBuf>> {
    let filter = match spec.get("namespace") {
        Some(ns) => doc! {"ns": ns.to_value()},
        None => doc! {},
    };
    let mut found = Vec::new();
    documents::each(engine, SAMPLES, filter.as_doc(), |d| {
        found.push(d.to_buf());
        Ok(true)
    })?;
    Ok(found)
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
    let mut coll = engine.catalog.get(&ns);
    let series = coll.as_ref().is_some_and(|c| c.measurements().is_some());
    if series {
        coll = engine.catalog.get(&time_series::buckets_of(&ns));
    }
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
        oplog_view::append_stats(&mut w, &engine.store, 1);
        w.close();
    }
    if let Some(c) = &coll {
        let s = sizes(engine, c);
        if let Some(d) = wanted("storageStats") {
            let scale = d
                .get("scale")
                .and_then(front::idl::whole)
                .unwrap_or(1)
                .clamp(1, i64::from(i32::MAX));
            w.open_doc("storageStats");
            match series {
                true => coll_stats::append_series(&mut w, c, &s, scale),
                false => coll_stats::append(&mut w, c, &s, scale),
            }
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

/// The sessions of `owners`; all sessions without them.
fn list_sessions(sessions: &Sessions, owners: Option<&[[u8; 32]]>) -> Vec<DocBuf> {
    let mut rows = Vec::new();
    for (lsid, idle_seconds) in sessions.list() {
        if owners.is_some_and(|all| !all.contains(&lsid.uid)) {
            continue;
        }
        let mut w = Writer::new();
        append_session(&mut w, "_id", &lsid);
        w.date("lastUse", now_millis() - idle_seconds * 1000);
        rows.push(w.finish());
    }
    rows
}

/// Whose sessions a stage asks for: those of users that it names, its client's own, or all (`None`).
fn owners_wanted(spec: Doc<'_>, own: Option<[u8; 32]>) -> Result<Option<Vec<[u8; 32]>>> {
    if spec.get("allUsers").is_some_and(|v| v.truthy()) {
        return Ok(None);
    }
    let users = spec.get("users").and_then(|v| v.as_array());
    let named = users.filter(|l| !l.is_empty()).map(|list| {
        let digests = list.values().map(|v| Ok(UserName::parse(v, "")?.digest()));
        digests.collect::<Result<Vec<_>>>()
    });
    Ok(named.transpose()?.or(own.map(|uid| vec![uid])))
}

/// Whether a pipeline asks for what only a worker sees: the operation itself among those that run.
pub fn needs_worker(pipeline: Doc<'_>) -> bool {
    pipeline
        .values()
        .next()
        .and_then(|v| v.as_doc())
        .is_some_and(|d| d.contains("$currentOp"))
}
