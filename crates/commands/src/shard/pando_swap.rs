//! `_pandoSwap`: another collection takes a collection's place on this shard, or nothing does. Streams of
//! changes do not see it: to the cluster's clients it is the same collection.
//!
//! ```text
//! {_pandoSwap: 1, ns, with?: ns, turn}
//! ```
//! Done twice, it is done once.

use super::{store, text, turn};
use crate::ddl::changed;
use crate::request::{CommandContext, Done};
use errors::{Code, Result};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let with = cx.args.field("with").and_then(|v| v.as_str());
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    if let Some(known) = ownerships.get(ns) {
        let heard = (*known).clone().heed(turn(cx, known.turn))?;
        if heard.turn != known.turn {
            store(cx, &heard)?;
        }
    }
    let catalog = &cx.app.engine.catalog;
    let done = match with {
        Some(with) => catalog.swap(with, ns, &|| cx.op.check()),
        None => catalog.drop_unseen(ns, &|| cx.op.check()),
    };
    match done {
        Err(e) if !e.is(Code::NamespaceNotFound) => return Err(e),
        _ => {}
    }
    changed(cx);
    Ok(Done::Reply)
}
