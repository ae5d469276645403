//! Bounds of measured fields: the least and the greatest value of a field in a bucket, which say
//! whether a query may match anything in it.
//!
//! A field has them where its values in the bucket are of one kind that queries compare, and short.
//! They lie by their names in `control.min` and `control.max`, as MongoDB's do.
//!
//! Invariant: what a query compares with lies outside of a bucket's bounds only where it matches no
//! measurement of the bucket.

use crate::TimeSeriesOptions;
use bson::{Doc, DocBuf, Elem, Val, Writer, order, tag};
use std::cmp::Ordering;

/// The most bytes of a value that is a bound.
const MAX_BOUND_BYTES: usize = 64;

/// Whether queries find the value by its order among others of its kind, and by nothing else.
fn compared(v: Val<'_>) -> bool {
    v.is_number() || matches!(v.tag, tag::STRING | tag::DATE | tag::BOOL | tag::OBJECT_ID)
}

/// Whether bounds of the field can be asked for by its name.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('$') && !name.contains('.')
}

/// The least and the greatest of a field's values; `None` where they say nothing.
pub fn of_values<'a>(name: &str, values: &[Val<'a>]) -> Option<(Val<'a>, Val<'a>)> {
    let first = *values.first().filter(|_| is_plain(name))?;
    let kind = tag::rank(first.tag);
    let (mut least, mut greatest) = (first, first);
    for v in values {
        if tag::rank(v.tag) != kind || !compared(*v) || v.bytes.len() > MAX_BOUND_BYTES {
            return None;
        }
        if order::compare(*v, least) == Ordering::Less {
            least = *v;
        } else if order::compare(*v, greatest) == Ordering::Greater {
            greatest = *v;
        }
    }
    Some((least, greatest))
}

/// Whether the bounds that a bucket states hold for its measurements.
pub fn hold(options: &TimeSeriesOptions, bucket: Doc<'_>, measurements: &[DocBuf]) -> bool {
    let control = bucket.get("control").and_then(|v| v.as_doc());
    let holds = |bound: Elem<'_>, outside: Ordering| {
        let inside = |v: Val<'_>| {
            tag::rank(v.tag) == tag::rank(bound.val.tag) && order::compare(v, bound.val) != outside
        };
        let mut values = measurements.iter().filter_map(|d| d.get(bound.name));
        bound.name == options.time || compared(bound.val) && values.all(inside)
    };
    let all_hold = |name: &str, outside: Ordering| {
        let stated = control.and_then(|c| c.get(name)?.as_doc());
        stated
            .unwrap_or(Doc::EMPTY)
            .iter()
            .all(|b| holds(b, outside))
    };
    all_hold("min", Ordering::Less) && all_hold("max", Ordering::Greater)
}

/// What a conjunct of a query on a measured field asks of buckets: queries of bucket documents, of
/// which all must match. With a collation strings are not in the order of their bytes.
pub fn bucket_queries(field: Elem<'_>, collated: bool, out: &mut Vec<DocBuf>) {
    if !is_plain(field.name) {
        return;
    }
    let usable = |v: &Val<'_>| {
        let nan = v.to_f64().is_some_and(f64::is_nan);
        compared(*v) && !nan && !(collated && v.tag == tag::STRING)
    };
    // A bucket without the bound, or with one of another kind, is not passed over.
    let mut within = |least: Option<Val<'_>>, greatest: Option<Val<'_>>| {
        for (bound, beyond, v) in [("max", "$lt", least), ("min", "$gt", greatest)] {
            let Some(v) = v else { continue };
            let mut w = Writer::new();
            w.open_doc(&format!("control.{bound}.{}", field.name));
            w.open_doc("$not").val(beyond, v).close().close();
            out.push(w.finish());
        }
    };
    let operators =
        (field.val.as_doc()).filter(|d| d.first().is_some_and(|e| e.name.starts_with('$')));
    let Some(operators) = operators else {
        if usable(&field.val) {
            within(Some(field.val), Some(field.val));
        }
        return;
    };
    for e in operators {
        match e.name {
            "$in" => {
                let list = || e.val.as_array().unwrap_or(Doc::EMPTY).values();
                let by = |a: &Val<'_>, b: &Val<'_>| order::compare(*a, *b);
                if list().all(|v| usable(&v)) {
                    within(list().min_by(by), list().max_by(by));
                }
            }
            _ if !usable(&e.val) => {}
            "$eq" => within(Some(e.val), Some(e.val)),
            "$gt" | "$gte" => within(Some(e.val), None),
            "$lt" | "$lte" => within(None, Some(e.val)),
            _ => {}
        }
    }
}
