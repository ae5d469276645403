//! The lock of a collection or of a database, as a document of `config.locks`: its holder may change the
//! chunks.
//!
//! ```text
//! {_id: collection or database, by, at, turn, state, when, wanted?: when another has asked for it}
//! ```
//! `state` is 2 while it is held, since `when`: `sh.status()` shows these as collections with active migrations.
//! The document stays when the collection or the database is dropped. A shard that was not reached then
//! keeps the greatest `turn` that it has heard of; the holders of a lock that began anew at one would be
//! refused there as earlier ones.
//!
//! Invariant: `turn` grows with each holder, with each move that a holder rolls back, and with each of
//! several moves at once; so a late message shows by its turn that it is of an earlier one. A lock that
//! was not renewed for [`LEFT`] is abandoned; its holder's next change fails, because it names the
//! holder.

use bson::{DocBuf, Value, doc};
use std::time::Duration;

/// A lock whose holder has not renewed it for this long is abandoned.
pub const LEFT: Duration = Duration::from_secs(10);
pub const RENEW: Duration = Duration::from_secs(2);

/// Query and update that take it, with an upsert: a duplicate key says that another has it.
pub fn take(name: &str, by: &str, now_millis: i64) -> (DocBuf, DocBuf) {
    let late = Value::date(now_millis - LEFT.as_millis() as i64);
    let query = doc! {"_id": name, "at": doc! {"$lt": late}};
    let update = doc! {
        "$set": doc! {"by": by, "at": Value::date(now_millis), "state": 2, "when": Value::date(now_millis)},
        "$inc": doc! {"turn": 1_i64},
        "$unset": doc! {"wanted": 1},
    };
    (query, update)
}

/// The filter that finds it while `by` holds it.
pub fn held(name: &str, by: &str) -> DocBuf {
    doc! {"_id": name, "by": by}
}

pub fn renewed(now_millis: i64) -> DocBuf {
    doc! {"$set": doc! {"at": Value::date(now_millis)}}
}

/// Its holder goes on as the next one.
pub fn next_turn(now_millis: i64) -> DocBuf {
    doc! {"$set": doc! {"at": Value::date(now_millis)}, "$inc": doc! {"turn": 1_i64}}
}

/// Another command waits for it: its holder pauses no more.
pub fn wanted(now_millis: i64) -> DocBuf {
    doc! {"$set": doc! {"wanted": Value::date(now_millis)}}
}

/// The document stays, and with it the number of holders.
pub fn freed() -> DocBuf {
    doc! {"$set": doc! {"by": "", "at": Value::date(0), "state": 0}}
}
