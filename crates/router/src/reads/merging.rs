//! The part of a pipeline that runs here: the stages behind those that shards have run, over the documents
//! of a [`Merge`], or a pipeline that begins with documents of its own.
//!
//! Invariant: documents are read as the stages need them, and the shards' cursors end with the pipeline.

use crate::merge::Merge;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use crate::state::cursors::CursorSource;
use bson::{DocBuf, Writer};
use cluster_view::metadata::Cluster;
use cluster_view::{Failure, Outcome};
use commands::{CursorMemory, RemoteRows, RouterCursor, RouterPipeline};
use errors::Fallible;
use parking_lot::Mutex;
use std::sync::Arc;

/// The reply with the first batch of stages that run here. `merge`: what they read, if that is given;
/// `replies`: of the shards that had a part in it.
pub(crate) fn first_batch(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    stages: RouterPipeline<'_>,
    merge: Option<Merge>,
    replies: &[DocBuf],
) -> Outcome<DocBuf> {
    let merge = merge.map(|merge| Arc::new(Mutex::new(merge)));
    let rows = merge.clone().map(|merge| {
        let rows = Rows {
            cluster: router.cluster.clone(),
            memory: router.local.cursor_memory(),
            merge,
        };
        Box::new(rows) as Box<dyn RemoteRows>
    });
    let mut ended = true;
    let complete = |mut w: Writer, more: Option<RouterCursor>| {
        ended = more.is_none();
        let id = more.map_or(0, |pipeline| {
            let merge = merge.clone();
            router.cursors.add(ns, Box::new(Kept { pipeline, merge }))
        });
        w.i64("id", id).str("ns", ns).close();
        finish(w, replies)
    };
    let reply = (router.local).open_pipeline(&command.step()?, stages, rows, complete);
    if let Some(merge) = merge.filter(|_| ended) {
        merge.lock().close(&router.cluster);
    }
    Ok(reply?)
}

/// A pipeline between two batches, and what it reads.
struct Kept {
    pipeline: RouterCursor,
    merge: Option<Arc<Mutex<Merge>>>,
}

impl CursorSource for Kept {
    fn more(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        ns: &str,
        id: i64,
    ) -> Outcome<(DocBuf, bool)> {
        let most = command.more();
        let most = most.map(i64::unsigned_abs);
        let complete = |mut w: Writer, done| {
            w.i64("id", if done { 0 } else { id }).str("ns", ns).close();
            finish(w, &[])
        };
        Ok((router.local).next_batch(&command.step()?, &mut self.pipeline, most, complete)?)
    }

    fn close(self: Box<Self>, router: &Router, _: &str) {
        if let Some(merge) = &self.merge {
            merge.lock().close(&router.cluster);
        }
    }
}

/// The documents of a merge.
struct Rows {
    cluster: Arc<Cluster>,
    memory: CursorMemory,
    merge: Arc<Mutex<Merge>>,
}

impl RemoteRows for Rows {
    fn next(&mut self) -> Fallible<Option<DocBuf>> {
        let next = self.merge.lock().next_document(&self.cluster);
        next.map_err(Failure::into_error)
    }

    fn release(&mut self) -> Fallible<()> {
        let released = self.merge.lock().release(&self.memory);
        released.map_err(Failure::into_error)
    }
}
