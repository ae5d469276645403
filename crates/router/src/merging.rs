//! What the rest of a pipeline reads: the scratch server takes the documents of a [`Merge`] as it needs
//! them, under a collection name of its own.
//!
//! Invariant: documents are read once, by the pipeline that the merge was made for. The shards' cursors
//! end with their reader, or when it never begins to read.

use crate::cursors;
use crate::cursors::Source;
use crate::merge::Merge;
use crate::router::Router;
use bson::{DocBuf, Writer, doc};
use cluster_view::Failure;
use commands::RemoteRows;
use errors::Fallible;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Merges that wait for their pipeline to read them, by namespace, and since when. A cursor whose client
/// asks for no more is forgotten after a while, and its merge with it.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<String, (Instant, Merge)>>);

impl Waiting {
    fn put(&self, ns: &str, merge: Merge) {
        let mut waiting = self.0.lock();
        waiting.retain(|_, (since, _)| since.elapsed() <= cursors::IDLE);
        waiting.insert(ns.into(), (Instant::now(), merge));
    }

    fn take(&self, ns: &str) -> Option<Merge> {
        Some(self.0.lock().remove(ns)?.1)
    }

    /// The documents of the merge of that name, where there is one.
    pub fn rows(&self, router: &Arc<Router>, ns: &str) -> Option<Rows> {
        let merge = Some(self.take(ns)?);
        let router = router.clone();
        Some(Rows { router, merge })
    }
}

/// A merge until its pipeline has a cursor.
pub(crate) struct Merging<'r> {
    router: &'r Router,
    ns: String,
    kept: bool,
}

impl<'r> Merging<'r> {
    /// `db`: that of the command, which names in its stages are of.
    pub fn new(router: &'r Router, db: &str, merge: Merge) -> Merging<'r> {
        let ns = format!("{db}.merging${:032x}", rand::random::<u128>());
        router.waiting.put(&ns, merge);
        Merging {
            router,
            ns,
            kept: false,
        }
    }

    /// The stages that give the documents; the last keeps the optimizer from changing what is requested
    /// of shards.
    pub fn write_source(&self, stages: &mut Writer) {
        let name = self.ns.split_once('.').map_or("", |(_, name)| name);
        for stage in [
            doc! {"$documents": bson::array![]},
            doc! {"$unionWith": doc! {"coll": name}},
            doc! {"$_internalInhibitOptimization": doc! {}},
        ] {
            stages.push(stage.as_doc().as_val());
        }
    }

    /// From here on a cursor of the router keeps it.
    pub fn keep(mut self) -> String {
        self.kept = true;
        self.ns.clone()
    }
}

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        if !self.kept {
            end(self.router, &self.ns);
        }
    }
}

/// Ends a merge that was not read.
pub(crate) fn end(router: &Router, ns: &str) {
    if let Some(merge) = router.waiting.take(ns) {
        close(router, merge);
    }
}

fn close(router: &Router, merge: Merge) {
    let ns = merge.ns.clone();
    cursors::close(router, &ns, Source::Merge(Box::new(merge)));
}

/// The documents of a merge.
pub(crate) struct Rows {
    router: Arc<Router>,
    merge: Option<Merge>,
}

impl RemoteRows for Rows {
    fn next(&mut self) -> Fallible<Option<DocBuf>> {
        match &mut self.merge {
            Some(merge) => merge
                .next_document(&self.router.cluster)
                .map_err(Failure::into_error),
            None => Ok(None),
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Some(merge) = self.merge.take() {
            close(&self.router, merge);
        }
    }
}
