//! What a shard's part of a pipeline joins: collections that other shards have, or have parts of, are
//! read as a router would read them, where the router that sent the part says so (`joinsElsewhere`).
//!
//! Invariant: only a member of the cluster says it, and the configuration set that is asked is the
//! one that this shard was added under.

use super::identity::identity;
use crate::request::CommandContext;
use crate::security::authorize;
use bson::{Doc, DocBuf, Val};
use errors::{Fallible, Result, bail};
use executor::{ReadRemotely, RemoteCollections, RemoteRows};
use query::path::FieldPath;
use query::pipeline::{JoinedCollection, Namespace};
use std::sync::Arc;

/// Reads collections of a cluster.
pub trait ClusterReads: Send + Sync {
    /// Those of the cluster that has this configuration set (`SET/HOST:PORT,…`).
    fn of(&self, config: &str) -> Arc<dyn RemoteCollections>;
}

/// `joins`: what the router knows of the collections, `[{ns, path, documents, bytes, indexed}]`.
/// Unauthorized where the client is no member; ShardingStateNotInitialized where this is no shard.
pub(crate) fn read_by(cx: &CommandContext<'_, '_>, joins: Doc<'_>) -> Result<ReadRemotely> {
    if cx.app.security.enabled && !authorize::is_member(cx.client) {
        bail!(
            Unauthorized,
            "joinsElsewhere is for routers, which log in as members of the cluster"
        );
    }
    let known = identity(cx)?;
    let config = known
        .as_ref()
        .and_then(|k| k.get("configsvrConnectionString")?.as_str());
    let (Some(reads), Some(config)) = (cx.app.cluster_reads.get(), config) else {
        bail!(
            ShardingStateNotInitialized,
            "This server was not added to a cluster, whose collections it could join"
        );
    };
    Ok(ReadRemotely {
        collections: Arc::new(Known {
            collections: reads.of(config),
            sizes: joins.to_buf(),
        }),
        collation: None,
        within: DocBuf::new(),
    })
}

/// Collections whose sizes the router has told.
struct Known {
    collections: Arc<dyn RemoteCollections>,
    sizes: DocBuf,
}

impl RemoteCollections for Known {
    fn find(&self, ns: &Namespace, query: Doc<'_>) -> Fallible<Box<dyn RemoteRows>> {
        self.collections.find(ns, query)
    }

    fn aggregate(
        &self,
        ns: &Namespace,
        stages: &[DocBuf],
        options: Doc<'_>,
    ) -> Fallible<Box<dyn RemoteRows>> {
        self.collections.aggregate(ns, stages, options)
    }

    fn size(&self, ns: &Namespace, path: &FieldPath) -> Option<JoinedCollection> {
        let name = ns.to_string();
        let all = self.sizes.as_doc().values().filter_map(Val::as_doc);
        let is = |d: &Doc<'_>, field: &str, v: &str| d.get(field).and_then(Val::as_str) == Some(v);
        let mut of_it = all.filter(|d| is(d, "ns", &name)).peekable();
        let number = |d: &Doc<'_>, field: &str| d.get(field).and_then(Val::to_i64_exact);
        let first = *of_it.peek()?;
        Some(JoinedCollection {
            documents: number(&first, "documents")?.unsigned_abs(),
            bytes: number(&first, "bytes")?.unsigned_abs(),
            indexed: of_it.any(|d| {
                is(&d, "path", path.as_str()) && d.get("indexed").is_some_and(Val::truthy)
            }),
            remote: true,
        })
    }

    fn time(&self) -> u64 {
        self.collections.time()
    }
}
