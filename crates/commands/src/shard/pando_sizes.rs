//! `_pandoSizes`: how much a shard has of each of many collections, for a round of the balancer.
//!
//! ```text
//! {_pandoSizes: 1, collections: [<ns>, …]}      → {bytes: [<long>, …]}, in their order
//! ```
//! A collection that is not here has 0 bytes.

use crate::request::{CommandContext, Done};
use bson::Val;
use errors::{Result, err};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let names = cx.args.field("collections").and_then(Val::as_array);
    let names = names.ok_or_else(|| err!(FailedToParse, "collections is an array of names"))?;
    let engine = &cx.app.engine;
    let catalog = engine.catalog.snapshot();
    cx.w.open_array("bytes");
    for ns in names.values() {
        let coll = ns.as_str().and_then(|ns| catalog.get(ns));
        let bytes = coll.map_or(0, |c| engine.store.counts(c.tablet).1);
        cx.w.push_value(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
    cx.w.close();
    Ok(Done::Reply)
}
