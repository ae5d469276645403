//! Whether a scan of an index gives the order that a query asks for.

use crate::interval::{Interval, bounded};
use bson::{Value, order};
use query::collation::Collation;
use query::index_keys::{KeyField, Multikey};
use query::path::FieldPath;
use query::sort::{SortField, SortPattern};

/// `Some(reverse)` when scanning the index forward (or in reverse) over ranges that bound the given
/// intervals gives the order.
pub(crate) fn given_by(
    sort: &SortPattern,
    fields: &[KeyField],
    multikey: Multikey,
    intervals: &[Vec<Interval>],
    collation: Option<&Collation>,
    id_follows: bool,
) -> Option<bool> {
    if sort.has_meta() {
        return None;
    }
    // Another order of strings is no matter where there are none.
    if sort.collation() != collation
        && sort.fields.iter().any(|s| {
            let at = fields.iter().position(|f| f.path == s.path);
            at.and_then(|i| intervals.get(i))
                .is_none_or(|list| list.iter().any(may_hold_strings))
        })
    {
        return None;
    }
    let point = |i: usize| matches!(intervals.get(i).map(Vec::as_slice), Some([x]) if x.is_point());
    let bounded = |i: usize| intervals.get(i).is_some_and(|l| bounded(l));
    // A field bound to one value is in any order.
    let wanted: Vec<&SortField> = sort
        .fields
        .iter()
        .filter(|s| {
            !fields
                .iter()
                .enumerate()
                .any(|(i, f)| f.path == s.path && point(i) && !multikey.field(i))
        })
        .collect();
    // An array counts with its least (or greatest) element, which a bounded scan may pass over.
    let sorts_by_array = fields
        .iter()
        .enumerate()
        .any(|(i, f)| multikey.field(i) && wanted.iter().any(|s| s.path == f.path));
    if sorts_by_array && (0..fields.len()).any(|i| multikey.field(i) && bounded(i)) {
        return None;
    }
    // Behind the fields an entry has the record's key, which is that of `_id` (not in capped
    // collections).
    let id = KeyField::new(FieldPath::new("_id"), false);
    let mut keys = fields
        .iter()
        .enumerate()
        .map(|(i, f)| (point(i), f))
        // That key knows no collation.
        .chain((id_follows && sort.collation().is_none()).then_some((false, &id)));
    let mut reverse = None;
    for s in wanted {
        let f = loop {
            let (point, f) = keys.next()?;
            if f.path == s.path && f.is_ordered() {
                break f;
            }
            if !point {
                return None;
            }
        };
        let r = f.descending != s.descending;
        if *reverse.get_or_insert(r) != r {
            return None;
        }
    }
    Some(reverse.unwrap_or(false))
}

/// Strings, documents and arrays lie in one stretch of the order of types.
fn may_hold_strings(i: &Interval) -> bool {
    let (first, last): (Value, Value) = ("".into(), Value::binary(0, &[]));
    order::compare(i.high.as_val(), first.as_val()).is_ge()
        && order::compare(i.low.as_val(), last.as_val()).is_lt()
}
