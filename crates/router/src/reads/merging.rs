//! What the rest of a pipeline reads: the scratch server takes the documents of a [`Merge`] as it needs
//! them, under a collection name of its own.
//!
//! Invariant: documents are read once, by the pipeline that the merge was made for. The shards' cursors
//! end with their reader, or when it never begins to read.

use crate::merge::Merge;
use crate::request::RoutedCommand;
use crate::scratch::compute;
use crate::state::Router;
use crate::state::cursors::{CursorSource, renumber, with_ns};
use bson::{DocBuf, Writer, doc};
use cluster_view::reply::cursor_id;
use cluster_view::{Failure, Outcome};
use commands::RemoteRows;
use errors::Fallible;
use std::sync::Arc;

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
        merge.close(&router.cluster);
    }
}

/// A cursor of the scratch server.
pub(crate) struct ScratchCursor {
    pub id: i64,
    pub db: String,
    pub collection: String,
    /// What it reads of shards.
    pub merging: Option<String>,
}

impl CursorSource for ScratchCursor {
    fn more(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        ns: &str,
        id: i64,
    ) -> Outcome<(DocBuf, bool)> {
        let mut w = Writer::new();
        w.i64("getMore", self.id)
            .str("collection", &self.collection)
            .str("$db", &self.db);
        if let Some(n) = command.int("batchSize") {
            w.i64("batchSize", n);
        }
        let reply = compute(router, &w.finish())?;
        let done = cursor_id(&reply) == 0;
        if done {
            self.id = 0;
        }
        let id = if done { 0 } else { id };
        Ok((with_ns(renumber(reply, id), ns), done))
    }

    fn close(self: Box<Self>, router: &Router, _: &str) {
        if self.id != 0 {
            let command = doc! {
                "killCursors": &self.collection, "cursors": bson::array![self.id], "$db": &self.db,
            };
            let _ = compute(router, &command);
        }
        if let Some(ns) = &self.merging {
            end(router, ns);
        }
    }
}

/// The documents of the merge of that name, where there is one.
pub(crate) fn rows(router: &Arc<Router>, ns: &str) -> Option<Rows> {
    let merge = Some(router.waiting.take(ns)?);
    let router = router.clone();
    Some(Rows { router, merge })
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
            merge.close(&self.router.cluster);
        }
    }
}
