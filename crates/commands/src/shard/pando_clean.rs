//! `_pandoClean`: removes the documents of a range that the shard does not own.
//!
//! ```text
//! {_pandoClean: 1, ns, range?: {low, high?}, keep?: true, turn?}     → {n: <documents removed>}
//! ```
//! Without a range: of all that may hold orphans. With `keep` it stays a range that may hold orphans. What an earlier holder of the lock has sent is
//! done before.

use super::{range, store, text, turn};
use crate::request::{CommandContext, Done};
use crate::settings::documents;
use bson::{DocBuf, Writer};
use errors::{Result, bail};
use sharding::{Ownership, PlaceRange};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let ownerships = cx.app.ownerships.clone();
    let _one = ownerships.changing.lock();
    let Some(known) = ownerships.get(ns) else {
        bail!(NamespaceNotSharded, "{ns} is not sharded here");
    };
    let later = (*known).clone().heed(turn(cx, known.turn))?;
    let known = match later.turn == known.turn {
        true => later,
        false => {
            store(cx, &later)?;
            ownerships.drain(ns);
            later
        }
    };
    let gone = match cx.args.field("range") {
        Some(_) => vec![range(cx)?],
        None => known.orphans.clone(),
    };
    cx.op.from_migrate = true;
    let mut n = 0;
    for range in &gone {
        known.check_cleans(range)?;
        n += remove(cx, &known, range)?;
    }
    if !cx.args.field("keep").is_some_and(|v| v.truthy()) {
        store(cx, &known.cleaned(&gone))?;
    }
    cx.after_commit = true;
    cx.w.i64("n", n as i64);
    Ok(Done::Reply)
}

/// Removes the documents of a range: how many there were.
fn remove(cx: &mut CommandContext<'_, '_>, known: &Ownership, range: &PlaceRange) -> Result<u64> {
    let Some((min, max)) = known.key.bounds(range) else {
        bail!(BadValue, "the range has no bounds of the shard key");
    };
    let mut w = Writer::new();
    w.doc(
        "$expr",
        known.key.within(min.as_doc(), max.as_doc()).as_doc(),
    );
    let filter = match *range == PlaceRange::all() {
        true => DocBuf::default(),
        false => w.finish(),
    };
    documents::remove(&mut cx.op, &known.ns, filter.as_doc())
}
