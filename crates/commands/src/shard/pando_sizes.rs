//! `_pandoSizes`: how much a shard has of collections, for a round of the balancer: of the named ones, and
//! of all that are large.
//!
//! ```text
//! {_pandoSizes: 1, collections: [<ns>, …]}      → {bytes: [<long>, …]}, in their order
//! {_pandoSizes: 1, collections: [], above: <long>, after?: <ns>}
//!                                               → {bytes: [], large: [{ns, bytes}, …], more?: true}, by name
//! ```
//! A collection that is not here has 0 bytes. A reply tells of [`AT_ONCE`] large collections at most; `more`
//! says that others follow behind the last one.

use crate::request::{CommandContext, Done};
use bson::{Val, doc};
use catalog::Collection;
use errors::{Result, err};
use std::sync::Arc;

/// So many names and sizes stay below the limit of a document.
const AT_ONCE: usize = 10_000;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let names = cx.args.field("collections").and_then(Val::as_array);
    let names = names.ok_or_else(|| err!(FailedToParse, "collections is an array of names"))?;
    let engine = &cx.app.engine;
    let catalog = engine.catalog.snapshot();
    let bytes_of = |c: &Arc<Collection>| engine.store.counts(c.tablet).1;
    cx.w.open_array("bytes");
    for ns in names.values() {
        let coll = ns.as_str().and_then(|ns| catalog.get(ns));
        let bytes = coll.map_or(0, bytes_of);
        cx.w.push_value(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
    cx.w.close();
    let Some(above) = cx.args.field("above").and_then(Val::to_i64_exact) else {
        return Ok(Done::Reply);
    };
    let after = cx.args.field("after").and_then(Val::as_str).unwrap_or("");
    let sized = catalog.all().map(|c| (c, bytes_of(c)));
    let mut large = sized
        .filter(|(c, bytes)| *c.ns > *after && *bytes > above.max(0).unsigned_abs())
        .peekable();
    cx.w.open_array("large");
    for (c, bytes) in large.by_ref().take(AT_ONCE) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        cx.w.push(doc! {"ns": &*c.ns, "bytes": bytes}.as_doc().as_val());
    }
    cx.w.close();
    if large.peek().is_some() {
        cx.w.bool("more", true);
    }
    Ok(Done::Reply)
}
