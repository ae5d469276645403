//! What pipelines join: the part of a pipeline that runs here reads other collections through the router,
//! as a client would.
//!
//! Invariant: a foreign collection is read where the metadata says that it is, in the transaction or the
//! snapshot of the pipeline ([`within`]). One batch of it is held, and its cursor ends with its reader.

use crate::listing::{lists, stats};
use crate::reads::cursors::{get_more, kill};
use crate::reads::{aggregate, find};
use crate::request::own;
use crate::state::{Handler, Router};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Failure;
use cluster_view::upstream::with_fields;
use commands::{HeldDocuments, RemoteCollections, RemoteRows, Share};
use errors::{Code, Fallible, Stop, err};
use query::path::FieldPath;
use query::pipeline::{self, Namespace};
use std::sync::{Arc, Weak};

pub(crate) struct RouterJoins(pub Weak<Router>);

/// What says of which transaction a statement is.
const SESSION: [&str; 3] = ["lsid", "txnNumber", "autocommit"];

fn session_of(query: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    for e in query.iter().filter(|e| SESSION.contains(&e.name)) {
        w.val(e.name, e.val);
    }
    w.finish()
}

impl RemoteCollections for RouterJoins {
    fn find(&self, ns: &Namespace, query: Doc<'_>) -> Fallible<Box<dyn RemoteRows>> {
        let Some(router) = self.0.upgrade() else {
            return Err(err!(ShutdownInProgress, "the router stops"));
        };
        let mut w = Writer::new();
        w.str("find", &ns.coll).extend(query).str("$db", &ns.db);
        let reply = own(&*router, &w.finish(), find::find).map_err(Failure::into_error)?;
        let session = session_of(query);
        Ok(Box::new(Rows::of(&router, ns, &reply, session)))
    }

    fn aggregate(
        &self,
        ns: &Namespace,
        stages: &[DocBuf],
        options: Doc<'_>,
    ) -> Fallible<Box<dyn RemoteRows>> {
        let Some(router) = self.0.upgrade() else {
            return Err(err!(ShutdownInProgress, "the router stops"));
        };
        let mut w = Writer::new();
        w.str("aggregate", &ns.coll).open_array("pipeline");
        stages.iter().for_each(|s| {
            w.push(s.as_doc().as_val());
        });
        w.close().value("cursor", doc! {});
        w.extend(options).str("$db", &ns.db);
        let reply = own(&*router, &w.finish(), aggregate::run).map_err(Failure::into_error)?;
        let session = session_of(options);
        Ok(Box::new(Rows::of(&router, ns, &reply, session)))
    }

    fn size(&self, ns: &Namespace, path: &FieldPath) -> Option<pipeline::JoinedCollection> {
        let router = self.0.upgrade()?;
        let about = |name: &str, run: Handler| {
            let mut w = Writer::new();
            w.str(name, &ns.coll).str("$db", &ns.db);
            own(&*router, &w.finish(), run)
        };
        let stats = match about("collStats", stats::of_collection) {
            Err(Failure::Client(e)) if e.code == Code::NamespaceNotFound => DocBuf::new(),
            stats => stats.ok()?,
        };
        let number = |name: &str| stats.get(name).and_then(Val::to_f64).unwrap_or(0.0) as u64;
        let indexes = about("listIndexes", lists::list_indexes).ok();
        let cursor = indexes
            .as_ref()
            .and_then(|reply| reply.get("cursor")?.as_doc());
        let batch = cursor.and_then(|c| c.get("firstBatch")?.as_array());
        let serves = |index: Doc<'_>| {
            let key = index.get("key").and_then(Val::as_doc);
            let first = key.and_then(|k| k.first().map(|e| e.name == path.as_str()));
            first == Some(true)
        };
        let mut all = batch.into_iter().flat_map(|b| b.values());
        Some(pipeline::JoinedCollection {
            documents: number("count"),
            bytes: number("size"),
            indexed: path.is_id() || all.any(|i| i.as_doc().is_some_and(serves)),
            remote: true,
        })
    }

    fn time(&self) -> u64 {
        self.0.upgrade().map_or(0, |router| router.cluster.time())
    }
}

/// All that a cursor of the router gives, batch by batch.
pub(crate) struct Rows {
    router: Arc<Router>,
    db: String,
    collection: String,
    held: HeldDocuments<()>,
    share: Share,
    /// Of whose transaction it is a part.
    session: DocBuf,
    /// 0: there is no more.
    id: i64,
}

impl Rows {
    /// Of the reply that has opened it.
    fn of(router: &Arc<Router>, ns: &Namespace, reply: &DocBuf, session: DocBuf) -> Rows {
        let mut rows = Rows {
            router: router.clone(),
            db: ns.db.clone(),
            collection: ns.coll.clone(),
            held: HeldDocuments::default(),
            share: router.local.cursor_memory().share(),
            session,
            id: 0,
        };
        rows.take(reply);
        rows
    }

    fn take(&mut self, reply: &DocBuf) {
        self.id = cluster_view::reply::cursor_id(reply);
        for d in cluster_view::reply::batch_of(reply) {
            self.held.push((), d.to_buf());
        }
    }
}

impl RemoteRows for Rows {
    fn next(&mut self) -> Fallible<Option<DocBuf>> {
        while self.held.is_empty() && self.id != 0 {
            // An error ends the cursor.
            let id = std::mem::take(&mut self.id);
            let more = doc! {"getMore": id, "collection": &self.collection, "$db": &self.db};
            let more = with_fields(more.as_doc(), self.session.as_doc());
            let reply = own(&*self.router, &more, get_more).map_err(Failure::into_error)?;
            self.take(&reply);
        }
        let next = self.held.pop().map_err(Stop::into_error)?;
        Ok(next.map(|(_, doc)| doc))
    }

    fn release(&mut self) -> Fallible<()> {
        let memory = self.router.local.cursor_memory();
        self.share.release();
        let kept = self.held.release(&memory, &mut self.share, 0);
        kept.map(drop).map_err(Stop::into_error)
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if self.id != 0 {
            let command = doc! {
                "killCursors": &self.collection, "cursors": bson::array![self.id], "$db": &self.db,
            };
            let _ = own(&*self.router, &command, kill);
        }
    }
}
