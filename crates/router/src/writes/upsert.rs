//! Upserts whose filter does not say on which shard their new document belongs.
//!
//! Invariant: the document is made once, and then inserted where its
//! shard key belongs; a document of the same `_id` there is an error, never overwritten.

use crate::state::Router;
use bson::{Doc, DocBuf, Val, doc};
use cluster_view::Outcome;
use commands::OneUpdate;
use front::idl;

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
    let update = OneUpdate {
        filter: document(statement, filter)?.unwrap_or(Doc::EMPTY),
        update: statement.get(update).unwrap_or(Val::NULL),
        array_filters: statement.get("arrayFilters"),
        collation: document(statement, "collation")?,
        variables: variables.and_then(Val::as_doc),
        cluster_time: router.cluster.time(),
        scripting: router.local.config.scripting,
    };
    Ok(update.inserted()?)
}

fn document<'a>(statement: Doc<'a>, field: &str) -> Outcome<Option<Doc<'a>>> {
    let given = statement.iter().find(|e| e.name == field);
    Ok(given
        .map(|e| idl::doc("update.updates", e))
        .transpose()?
        .flatten())
}
