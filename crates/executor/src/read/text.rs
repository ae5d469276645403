//! `$text` and the text index of the collection that is read.

use bson::Doc;
use catalog::Collection;
use catalog::keyspace;
use errors::{Result, Stop, Suspension, bail};
use planner::Plan;
use query::filter::Filter;
use query::metadata::Metadata;
use std::borrow::Cow;
use std::cell::Cell;
use storage::View;

/// The filter with its `$text`, if any, for the index of the collection. A collection that is not there has none.
pub fn bound<'f>(filter: &'f Filter, coll: Option<&Collection>) -> Result<Cow<'f, Filter>> {
    let Some(text) = filter.text().filter(|t| t.matcher.is_none()) else {
        return Ok(Cow::Borrowed(filter));
    };
    let indexes = coll.map_or(&[][..], |c| &c.usable);
    let Some(index) = indexes.iter().find_map(|i| i.key.text()) else {
        bail!(IndexNotFound, "text index required for $text query");
    };
    debug_assert!(text.matcher.is_none());
    filter.bind_text(index).map(Cow::Owned)
}

/// The metadata of a document that the plan found.
pub(crate) fn metadata(plan: &Plan, doc: Doc<'_>) -> Metadata {
    let matcher = plan.text.as_ref().and_then(|t| t.matcher.as_ref());
    Metadata {
        text_score: matcher.map(|m| m.score(doc)),
        ..Metadata::default()
    }
}

/// Up to so many entries of each range are counted before the engine is asked how long the ranges are.
const COUNTED: usize = 1 << 16;
/// As many on a thread that must not block.
const COUNTED_INLINE: usize = 256;

/// Which of several ranges of an index holds the fewest entries: all are read in step until one ends. `lacks`: why that was
/// not found out.
pub(crate) fn fewest(
    view: &View,
    coll: &Collection,
    id: u32,
    ranges: &[(Vec<u8>, Vec<u8>)],
    size: &dyn Fn(&[u8], &[u8]) -> u64,
    lacks: &Cell<Option<Stop>>,
) -> usize {
    let Some(index) = coll.index(id) else {
        return 0;
    };
    let whole: Vec<_> = ranges
        .iter()
        .map(|(low, high)| {
            let high = match high.is_empty() {
                true => keyspace::prefix_end(&index.prefix),
                false => keyspace::join(&index.prefix, high),
            };
            (keyspace::join(&index.prefix, low), high)
        })
        .collect();
    let forward = storage::Direction::Forward;
    let mut scans: Vec<_> = whole
        .iter()
        .map(|(low, high)| view.scan(low, high, forward))
        .collect();
    for n in 0..COUNTED {
        if n == COUNTED_INLINE && view.is_cached_only() {
            lacks.set(Some(Suspension::Worker.into()));
            return 0;
        }
        for (i, scan) in scans.iter_mut().enumerate() {
            match scan.next() {
                Ok(true) => {}
                Ok(false) => return i,
                Err(e) => {
                    lacks.set(Some(e));
                    return 0;
                }
            }
        }
    }
    let each = whole.iter().enumerate();
    let least = each.min_by_key(|(_, (low, high))| size(low, high));
    least.map_or(0, |(i, _)| i)
}
