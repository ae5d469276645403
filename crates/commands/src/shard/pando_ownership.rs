//! `_pandoOwnership`: a router tells a shard what the metadata says of its part of a collection.
//!
//! ```text
//! {_pandoOwnership: 1, ownership: {_id: ns, key, version, seen, owned, orphans}}
//! {_pandoOwnership: 1, drop: ns}                    the collection is not sharded
//! ```
//! Only what is newer is learned.

use super::{OWNERSHIP, document, store};
use crate::request::{CommandContext, Done};
use crate::settings::documents;
use bson::doc;
use errors::Result;
use sharding::Ownership;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    if let Some(ns) = cx.args.field("drop").and_then(|v| v.as_str()) {
        documents::remove(&mut cx.op, OWNERSHIP, doc! {"_id": ns}.as_doc())?;
        cx.after_commit = true;
        return Ok(Done::Reply);
    }
    let told = Ownership::parse(document(cx, "ownership")?)?;
    let known = ownerships.get(&told.ns);
    let learned = Ownership::learn(known.as_deref(), &told);
    if let Some(learned) = &learned {
        store(cx, learned)?;
    }
    cx.w.bool("learned", learned.is_some());
    Ok(Done::Reply)
}
