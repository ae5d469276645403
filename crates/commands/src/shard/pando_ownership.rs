//! `_pandoOwnership`: a router tells a shard what the metadata says of its part of a collection.
//!
//! ```text
//! {_pandoOwnership: 1, ownership: {_id: ns, key, version, seen, owned, orphans}, turn?, by?}
//! {_pandoOwnership: 1, drop: ns, life?: <timestamp>}     the collection is not sharded
//! ```
//! Only a newer state is learned, and only the state of that life forgotten. `by` names a firm fence,
//! which this removes.

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
        let ns = &*cx.app.ownership_key(ns).name;
        let life = cx.args.field("life").and_then(|v| v.as_timestamp());
        if !Ownership::forgets(ownerships.get(ns).as_deref(), life) {
            return Ok(Done::Reply);
        }
        documents::remove(&mut cx.op, OWNERSHIP, doc! {"_id": ns}.as_doc())?;
        cx.after_commit = true;
        return Ok(Done::Reply);
    }
    let told = Ownership::parse(document(cx, "ownership")?)?;
    let by = cx.args.field("by").and_then(|v| v.as_str());
    let turn = cx.args.field("turn").and_then(|v| v.to_i64_exact());
    let turn = turn.map(|turn| turn as u64);
    let known = ownerships.get(&told.ns);
    let learned = Ownership::learn_in_turn(known.as_deref(), &told, by, turn)?;
    match &learned {
        Some(new) if known.as_deref() != Some(new) => store(cx, new)?,
        // A majority may not have it yet.
        Some(_) => cx.op.last_index = cx.app.store.last_index(),
        None => {}
    }
    cx.w.bool("learned", learned.is_some());
    Ok(Done::Reply)
}
