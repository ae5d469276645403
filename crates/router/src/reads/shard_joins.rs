//! What a shard joins that other shards have: its part of a pipeline reads it where the metadata says
//! that it is, as a router would.
//!
//! Invariants:
//! - A read carries what this process believes of the collection's place, and is done again until
//!   the shards agree.
//! - At most half of a server's workers wait for other shards: the others answer what those ask,
//!   also where two shards join each other's collections. A read beyond that is refused, and the
//!   router does the join itself.

use crate::merge::Merge;
use crate::reads::find::Scattered;
use crate::reads::views;
use crate::request::RoutedCommand;
use crate::targeting::targets;
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::metadata::Cluster;
use cluster_view::replica_set::ConnectionStrings;
use cluster_view::upstream::account_to;
use cluster_view::{Failure, Outcome, operation_time};
use commands::{ClusterReads, Commands, CursorMemory, RemoteCollections, RemoteRows};
use errors::{Fallible, bail, err};
use mover::Moving;
use parking_lot::Mutex;
use query::path::FieldPath;
use query::pipeline::{JoinedCollection, Namespace};
use service::Request;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The clusters that a server reads as one of their shards: one, unless it was added to another.
pub struct ShardJoins {
    access: ConnectionStrings,
    known: Mutex<Option<(String, Arc<Cluster>)>>,
    waits: Waits,
    memory: CursorMemory,
}

impl ShardJoins {
    /// `workers`: how many threads of the server may wait at a time. Long replies of other shards count as
    /// those that this server sends do.
    pub fn new(access: ConnectionStrings, workers: usize, server: &Commands) -> ShardJoins {
        account_to(&server.control);
        ShardJoins {
            access,
            known: Mutex::default(),
            waits: Waits::of(workers),
            memory: server.cursor_memory(),
        }
    }
}

impl ClusterReads for ShardJoins {
    fn of(&self, config: &str) -> Arc<dyn RemoteCollections> {
        let mut known = self.known.lock();
        let cluster = match &*known {
            Some((address, cluster)) if address == config => cluster.clone(),
            _ => {
                let cluster = Arc::new(Cluster::new(
                    config,
                    self.access.clone(),
                    Box::<Moving>::default(),
                ));
                *known = Some((config.into(), cluster.clone()));
                cluster
            }
        };
        Arc::new(Collections {
            cluster,
            waits: self.waits.clone(),
            memory: self.memory.clone(),
        })
    }
}

/// Threads that wait for other shards.
#[derive(Clone)]
struct Waits {
    now: Arc<AtomicUsize>,
    most: usize,
}

impl Waits {
    /// Of so many threads.
    fn of(workers: usize) -> Waits {
        Waits {
            now: Arc::default(),
            most: (workers / 2).max(1),
        }
    }

    /// Runs a read, which ends when this thread's operation has to.
    fn read<T>(&self, read: impl FnOnce() -> Outcome<T>) -> Fallible<T> {
        struct Ends<'a>(&'a AtomicUsize);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        errors::operation::ask()?;
        let before = self.now.fetch_add(1, Ordering::Relaxed);
        let _ends = Ends(&self.now);
        if before >= self.most {
            bail!(
                TemporarilyUnavailable,
                "{before} reads of other shards are under way on this one"
            );
        }
        operation_time::within(errors::operation::deadline(), read).map_err(Failure::into_error)
    }
}

struct Collections {
    cluster: Arc<Cluster>,
    waits: Waits,
    memory: CursorMemory,
}

impl RemoteCollections for Collections {
    fn find(&self, ns: &Namespace, query: Doc<'_>) -> Fallible<Box<dyn RemoteRows>> {
        let merge = self.waits.read(|| opened(&self.cluster, ns, query))?;
        Ok(Box::new(Rows {
            cluster: self.cluster.clone(),
            waits: self.waits.clone(),
            memory: self.memory.clone(),
            merge,
        }))
    }

    fn aggregate(&self, ns: &Namespace, _: &[DocBuf], _: Doc<'_>) -> Fallible<Box<dyn RemoteRows>> {
        Err(err!(
            InternalError,
            "a router has left a pipeline over {ns} to a shard"
        ))
    }

    fn size(&self, _: &Namespace, _: &FieldPath) -> Option<JoinedCollection> {
        None
    }

    fn time(&self) -> u64 {
        self.cluster.time()
    }
}

/// The cursors of a find; `None` where there is no such database.
fn opened(cluster: &Cluster, ns: &Namespace, query: Doc<'_>) -> Outcome<Option<Merge>> {
    let mut w = Writer::new();
    w.str("find", &ns.coll).extend(query);
    if let Some(end) = operation_time::end() {
        let left = end.saturating_duration_since(Instant::now()).as_millis();
        w.i64("maxTimeMS", i64::try_from(left).unwrap_or(i64::MAX).max(1));
    }
    w.str("$db", &ns.db);
    let body = w.finish();
    let request = Request::own(body.as_doc());
    let command = RoutedCommand::of(&request)?;
    let filter = query.get("filter").and_then(Val::as_doc);
    let ns = ns.to_string();
    cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Ok(None);
        };
        let shards = targets(&command, placement, filter.unwrap_or(Doc::EMPTY))?;
        let Some(scattered) = Scattered::of(&command, placement, &ns)? else {
            return Err(err!(InternalError, "a join does not go by a score").into());
        };
        let each = |shard: &Arc<str>| (shard.clone(), scattered.each.clone());
        let commands: Vec<_> = shards.iter().map(each).collect();
        let replies = cluster.scatter(placement, &commands)?;
        if replies.iter().any(|r| views::resolved_view(r).is_some()) {
            // The router looks below it.
            return Err(err!(CommandNotSupportedOnView, "{ns} is a view now").into());
        }
        scattered.merged(&shards, &replies).map(Some)
    })
}

/// What the cursors give, batch by batch.
struct Rows {
    cluster: Arc<Cluster>,
    waits: Waits,
    memory: CursorMemory,
    merge: Option<Merge>,
}

impl RemoteRows for Rows {
    fn next(&mut self) -> Fallible<Option<DocBuf>> {
        let Some(merge) = &mut self.merge else {
            return Ok(None);
        };
        match merge.has_to_ask() {
            true => self.waits.read(|| merge.next_document(&self.cluster)),
            false => merge
                .next_document(&self.cluster)
                .map_err(Failure::into_error),
        }
    }

    fn release(&mut self) -> Fallible<()> {
        let Some(merge) = &mut self.merge else {
            return Ok(());
        };
        merge.release(&self.memory).map_err(Failure::into_error)
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Some(merge) = self.merge.take() {
            merge.close(&self.cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::Code;

    #[test]
    fn half_of_the_workers_may_wait() {
        let waits = Waits::of(4);
        let one =
            |inner: &dyn Fn() -> Fallible<()>| waits.read(|| inner().map_err(Failure::Client));
        let third = || one(&|| Ok(()));
        let both = one(&|| one(&|| Ok(())));
        assert!(both.is_ok());
        let refused = one(&|| one(&third)).unwrap_err();
        assert_eq!(refused.code, Code::TemporarilyUnavailable);
        // Those that have ended count no more, also where one was refused.
        assert_eq!(waits.now.load(Ordering::Relaxed), 0);
        assert!(third().is_ok());
    }
}
