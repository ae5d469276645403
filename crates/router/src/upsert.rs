//! Upserts whose filter does not say on which shard their new document belongs.
//!
//! Invariant: the document is made once, by the rules of a server, and then inserted where its
//! shard key belongs; a document of the same `_id` there is an error, never overwritten.

use crate::router::Router;
use crate::scratch::{Scratch, compute};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use errors::err;

/// A filter that no document passes.
pub(crate) fn nothing() -> DocBuf {
    doc! {"$nor": bson::array![doc! {}]}
}

/// What an upsert inserts where its filter, in the field `filter`, finds nothing. `update` is the
/// field of what it does.
pub(crate) fn new_document(
    router: &Router,
    statement: Doc<'_>,
    filter: &str,
    update: &str,
    variables: Option<Val<'_>>,
) -> Outcome<DocBuf> {
    let scratch = Scratch::new(router, "admin");
    let mut w = Writer::new();
    w.str("findAndModify", scratch.name())
        .val("query", statement.get(filter).unwrap_or(Val::NULL))
        .val("update", statement.get(update).unwrap_or(Val::NULL))
        .bool("upsert", true)
        .bool("new", true);
    for name in ["arrayFilters", "collation"] {
        if let Some(v) = statement.get(name) {
            w.val(name, v);
        }
    }
    if let Some(v) = variables {
        w.val("let", v);
    }
    w.str("$db", "admin");
    let reply = compute(router, &w.finish())?;
    let made = reply.get("value").and_then(Val::as_doc).map(|d| d.to_buf());
    Ok(made.ok_or_else(|| err!(InternalError, "an upsert has made no document"))?)
}
