//! What replies of servers say: errors, cursors, batches.

use crate::Outcome;
use crate::metadata::{hear, timed};
use crate::replica_set::ReplicaSet;
use crate::upstream::{error_of, message};
use crate::write_concern::acknowledged;
use bson::{Doc, DocBuf, Val};

/// A reply, or the error that it tells.
pub fn sound(reply: DocBuf) -> Outcome<DocBuf> {
    match error_of(reply.as_doc()) {
        Some(e) => Err(e.into()),
        None => Ok(reply),
    }
}

/// The cursor that a reply has opened or goes on with; 0 is none.
pub fn cursor_id(reply: &DocBuf) -> i64 {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    cursor
        .and_then(|c| c.get("id")?.to_i64_exact())
        .unwrap_or(0)
}

/// The documents of a reply that has opened a cursor, or goes on with one.
pub fn batch_of(reply: &DocBuf) -> impl Iterator<Item = Doc<'_>> {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let batch = cursor.and_then(|c| c.get("firstBatch").or(c.get("nextBatch")));
    let batch = batch.and_then(Val::as_array).unwrap_or(Doc::EMPTY);
    batch.values().filter_map(Val::as_doc)
}

/// Sends a command with one sequence of documents to a set's primary; an error reply is an error, and
/// so is one that was not acknowledged.
pub fn own_message(
    set: &ReplicaSet,
    body: DocBuf,
    name: &str,
    documents: &[u8],
) -> Outcome<DocBuf> {
    let sequence = wire::Sequence { name, documents };
    let body = timed(set, &body);
    let reply = set.call(&message(body.as_doc(), &[sequence]))?;
    hear(set, &reply);
    acknowledged(sound(reply)?)
}
