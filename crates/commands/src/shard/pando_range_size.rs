//! `_pandoRangeSize`: about how much lies in a range, for the progress of a move.
//!
//! ```text
//! {_pandoRangeSize: 1, ns, hint?: <name of an index>, min?, max?}      → {documents: <long>, bytes: <long>}
//! ```
//! `min` and `max` are bounds of the index, whose entries are counted; without them all of the collection
//! counts. `bytes`: as many documents of the collection's mean size.

use super::text;
use crate::request::{CommandContext, Done};
use bson::{Doc, Val};
use errors::Result;
use executor::ReadRequest;
use planner::Hint;
use query::filter::Filter;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let Some(coll) = cx.app.engine.catalog.get(ns) else {
        cx.w.i64("documents", 0).i64("bytes", 0);
        return Ok(Done::Reply);
    };
    let (count, data) = cx.app.engine.store.counts(coll.tablet);
    let bound = |name: &str| cx.args.field(name).and_then(Val::as_doc);
    let (min, max) = (bound("min"), bound("max"));
    let hint = cx.args.field("hint").and_then(Val::as_str);
    let documents = match (min, max, hint) {
        (None, None, _) | (_, _, None) => count,
        (min, max, Some(name)) => {
            let filter = Filter::parse(Doc::EMPTY, &query::expr::ParseEnv::new())?;
            let range = ReadRequest {
                hint: Some(Hint::Name(name.into())),
                min,
                max,
                ..ReadRequest::new(&filter)
            };
            executor::count(&mut cx.op, ns, &range, 0, 0)?
        }
    };
    let bytes = u128::from(data) * u128::from(documents) / u128::from(count.max(1));
    cx.w.i64("documents", i64::try_from(documents).unwrap_or(i64::MAX))
        .i64("bytes", i64::try_from(bytes).unwrap_or(i64::MAX));
    Ok(Done::Reply)
}
