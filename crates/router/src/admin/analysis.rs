//! `analyzeShardKey` and `configureQueryAnalyzer` over shards. The router samples what it is asked,
//! and writes it to the configuration set.

use crate::listing::{lists, stats};
use crate::reads::aggregate;
use crate::reads::cluster_stages::sampled;
use crate::reads::cursors::get_more;
use crate::request::{RoutedCommand, finish, own};
use crate::state::{Handler, Router};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::metadata::{CONFIG, Placement, all};
use cluster_view::{Failure, Outcome};
use commands::analysis::configure_query_analyzer::Configuration;
use commands::analysis::{AnalyzeRequest, Analyzed, Size};
use errors::{Fallible, err};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often samples are written.
const WRITE: Duration = Duration::from_secs(2);
/// How often a router reads what to sample, as MongoDB's routers do.
const ASK: Duration = Duration::from_secs(10);

struct OfCluster<'a> {
    router: &'a Router,
    ns: &'a str,
}

/// A collection, as its database lists it, if its keys can be analyzed.
fn listed(router: &Router, ns: &str) -> Outcome<DocBuf> {
    let (db, coll) = ns.split_once('.').unwrap_or((ns, ""));
    let list = doc! {"listCollections": 1, "filter": doc! {"name": coll}, "$db": db};
    let reply = own(router, &list, lists::list_collections)?;
    let Some(found) = cluster_view::reply::batch_of(&reply).next() else {
        return Err(err!(NamespaceNotFound, "The namespace does not exist: {ns}").into());
    };
    match found.get("type").and_then(Val::as_str) {
        Some("view") => Err(err!(
            CommandNotSupportedOnView,
            "Operation not supported for a view"
        )
        .into()),
        Some("timeseries") => Err(err!(
            IllegalOperation,
            "Operation not supported for a timeseries collection"
        )
        .into()),
        _ => Ok(found.to_buf()),
    }
}

fn check_database(command: &RoutedCommand<'_>) -> Outcome<()> {
    match command.db {
        "admin" => Ok(()),
        _ => Err(err!(
            Unauthorized,
            "{} may only be run against the admin database.",
            command.name
        )
        .into()),
    }
}

pub(super) fn analyze(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    check_database(command)?;
    let request = AnalyzeRequest::parse(command.body)?;
    listed(router, &request.ns)?;
    let ns = &request.ns;
    let answer = request.answer(&mut OfCluster { router, ns })?;
    let mut w = Writer::new();
    w.extend(answer.as_doc());
    Ok(finish(w, &[]))
}

impl OfCluster<'_> {
    fn about(&self, name: &str, run: Handler) -> Fallible<DocBuf> {
        let (db, coll) = self.ns.split_once('.').unwrap_or((self.ns, ""));
        let mut w = Writer::new();
        w.str(name, coll).str("$db", db);
        own(self.router, &w.finish(), run).map_err(Failure::into_error)
    }

    fn pipeline(&self, stages: &[DocBuf]) -> DocBuf {
        let (db, coll) = self.ns.split_once('.').unwrap_or((self.ns, ""));
        let mut w = Writer::new();
        w.str("aggregate", coll).open_array("pipeline");
        stages.iter().for_each(|s| {
            w.push(s.as_doc().as_val());
        });
        w.close()
            .value("cursor", doc! {})
            .bool("allowDiskUse", true);
        w.value("collation", doc! {"locale": "simple"})
            .str("$db", db);
        w.finish()
    }
}

impl Analyzed for OfCluster<'_> {
    fn indexes(&mut self) -> Fallible<Vec<DocBuf>> {
        let reply = self.about("listIndexes", lists::list_indexes)?;
        Ok(cluster_view::reply::batch_of(&reply)
            .map(Doc::to_buf)
            .collect())
    }

    fn size(&mut self) -> Fallible<Size> {
        let stats = self.about("collStats", stats::of_collection)?;
        let number = |name: &str| stats.get(name).and_then(Val::to_f64);
        let sharded = stats.get("sharded").is_some_and(Val::truthy);
        Ok(Size {
            documents: number("count").unwrap_or(0.0) as u64,
            bytes: number("size").unwrap_or(0.0) as u64,
            orphans: sharded.then(|| number("numOrphanDocs").unwrap_or(0.0) as u64),
            clustered: stats.get("clustered").is_some_and(Val::truthy),
        })
    }

    fn aggregate(&mut self, stages: &[DocBuf]) -> Fallible<Vec<DocBuf>> {
        let (db, coll) = self.ns.split_once('.').unwrap_or((self.ns, ""));
        let run = || -> Outcome<Vec<DocBuf>> {
            let mut reply = own(self.router, &self.pipeline(stages), aggregate::run)?;
            let mut found = Vec::new();
            loop {
                found.extend(cluster_view::reply::batch_of(&reply).map(Doc::to_buf));
                let id = cluster_view::reply::cursor_id(&reply);
                if id == 0 {
                    return Ok(found);
                }
                let more = doc! {"getMore": id, "collection": coll, "$db": db};
                reply = own(self.router, &more, get_more)?;
            }
        };
        run().map_err(Failure::into_error)
    }

    fn in_order(&mut self, stages: &[DocBuf]) -> Fallible<Vec<DocBuf>> {
        let (db, _) = self.ns.split_once('.').unwrap_or((self.ns, ""));
        let run = || -> Outcome<Vec<DocBuf>> {
            let cluster = &self.router.cluster;
            let shard = match cluster.placement(self.ns)? {
                Some(Placement::Unsharded(unsharded)) => Some(unsharded.shard),
                Some(Placement::Sharded(table)) => table.shards().next().cloned(),
                None => None,
            };
            let Some(shard) = shard else {
                return Ok(Vec::new());
            };
            let mut w = Writer::new();
            let body = self.pipeline(stages);
            for e in body.as_doc().iter().filter(|e| e.name != "$db") {
                w.val(e.name, e.val);
            }
            all(&*cluster.shard(&shard)?, db, w.finish().as_doc())
        };
        run().map_err(Failure::into_error)
    }

    fn samples(&mut self) -> Fallible<Vec<DocBuf>> {
        let of = doc! {"ns": self.ns};
        sampled(self.router, of.as_doc()).map_err(Failure::into_error)
    }
}

pub(super) fn configure(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    check_database(command)?;
    let asked = Configuration::parse(command.body)?;
    let listed = listed(router, &asked.ns)?;
    let info = listed.get("info").and_then(Val::as_doc);
    let uuid = info.and_then(|i| i.get("uuid")).unwrap_or(Val::NULL);
    let by_ns = doc! {"_id": &asked.ns};
    let cluster = &router.cluster;
    let before = cluster.read_config("queryAnalyzers", by_ns.as_doc(), Doc::EMPTY)?;
    let before = before.first();
    let mut stored = Writer::new();
    stored.str("_id", &asked.ns);
    stored.extend(asked.stored(uuid, before).as_doc());
    let stored = stored.finish();
    let update = doc! {"q": by_ns, "u": &stored, "upsert": true};
    let update = doc! {
        "update": "queryAnalyzers", "updates": bson::array![update],
        "writeConcern": doc! {"w": "majority"},
    };
    cluster.on_config(CONFIG, update.as_doc())?;
    router.local.samplers.configure(stored.as_doc());
    let mut w = Writer::new();
    w.extend(asked.reply(before).as_doc());
    Ok(finish(w, &[]))
}

/// Samples as the configuration set says, and writes the samples, until the router ends.
pub(crate) fn follow_analyzers(router: &Arc<Router>) -> std::io::Result<()> {
    let router = Arc::downgrade(router);
    let run = move || {
        let mut asked: Option<Instant> = None;
        while write_samples(&router, &mut asked).is_some() {
            std::thread::sleep(WRITE);
        }
    };
    let begun = std::thread::Builder::new()
        .name("sampling".into())
        .spawn(run);
    begun.map(drop)
}

fn write_samples(router: &Weak<Router>, asked: &mut Option<Instant>) -> Option<()> {
    let router = router.upgrade()?;
    let samplers = &router.local.samplers;
    if asked.is_none_or(|at| at.elapsed() > ASK) {
        *asked = Some(Instant::now());
        let found = router
            .cluster
            .read_config("queryAnalyzers", Doc::EMPTY, Doc::EMPTY);
        for d in found.unwrap_or_default() {
            samplers.configure(d.as_doc());
        }
    }
    for some in samplers.take().chunks(100) {
        let mut w = Writer::new();
        w.str("insert", "sampledQueries")
            .bool("ordered", false)
            .open_array("documents");
        some.iter().for_each(|d| {
            w.push(d.as_doc().as_val());
        });
        w.close();
        if let Err(e) = router.cluster.on_config(CONFIG, w.finish().as_doc()) {
            tracing::warn!(target: "SHARDING", error = %e, "Sampled queries could not be written");
        }
    }
    Some(())
}
