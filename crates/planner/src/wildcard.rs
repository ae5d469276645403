//! Wildcard indexes as the planner uses them: as the index of one path at a time.
//!
//! Such an index has entries only for documents that have a value on the path, so it answers
//! predicates that fail without one; and it has none for documents and arrays themselves, so it
//! answers none about those. That a field is there shows in entries on its path or on a longer one.
//! A compound wildcard index has at least one entry for every document, so that its other fields
//! may be used alone.

use crate::interval::{Interval, union};
use crate::plan::IndexInfo;
use crate::predicate::{Predicate, excludes_missing};
use bson::{Val, Value, tag};
use query::filter::Test;
use query::index_keys::{FieldKind, KeyField};
use query::path::FieldPath;

/// What a query wants of the path that a wildcard index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathUse {
    Nothing,
    /// That something is there.
    Existence,
    /// Certain values.
    Value,
}

/// The path that stands for all paths.
const ANY: &str = "$_path";

/// The wildcard index as an index of each path that the predicates ask for; a compound one also as
/// that of no path.
pub(crate) fn expansions(info: &IndexInfo, preds: &[Predicate<'_>]) -> Vec<IndexInfo> {
    let Some(w) = info.key.wildcard() else {
        return Vec::new();
    };
    let mut paths: Vec<&FieldPath> = Vec::new();
    for p in preds {
        let path = &*p.path;
        if w.covers(path)
            && !path.has_index_part()
            && !paths.contains(&path)
            && path_use(preds, path) != PathUse::Nothing
        {
            paths.push(path);
        }
    }
    let mut out: Vec<IndexInfo> = paths.into_iter().map(|p| as_path(info, p)).collect();
    if out.is_empty() && w.is_compound() {
        out.push(as_path(info, &FieldPath::new(ANY)));
    }
    out
}

/// The index of one path.
pub(crate) fn as_path(info: &IndexInfo, path: &FieldPath) -> IndexInfo {
    IndexInfo {
        key: info.key.for_path((path.as_str() != ANY).then_some(path)),
        ..info.clone()
    }
}

/// The path of an index that [`as_path`] made.
pub(crate) fn path_of(info: &IndexInfo) -> Option<FieldPath> {
    let f = info
        .key
        .fields
        .iter()
        .find(|f| f.kind == FieldKind::Wildcard)?;
    Some(match f.path.last() {
        "$**" => FieldPath::new(ANY),
        _ => f.path.clone(),
    })
}

/// Whether the value of field `i` is bound to one path (fields that are no wildcard's are).
pub(crate) fn holds_one_path(fields: &[KeyField], intervals: &[Vec<Interval>], i: usize) -> bool {
    match fields.get(i) {
        Some(f) if f.kind == FieldKind::Wildcard => {
            let path = i.checked_sub(1).and_then(|p| intervals.get(p));
            matches!(path.map(Vec::as_slice), Some([p]) if p.is_point())
        }
        _ => true,
    }
}

pub(crate) fn path_use(preds: &[Predicate<'_>], path: &FieldPath) -> PathUse {
    let mut out = PathUse::Nothing;
    for p in preds.iter().filter(|p| *p.path == *path) {
        if bounds_value(p) {
            return PathUse::Value;
        }
        if existence(p).is_some() {
            out = PathUse::Existence;
        }
    }
    out
}

/// Whether a predicate is about being there; whether entries alone decide it.
fn existence(p: &Predicate<'_>) -> Option<bool> {
    match p.test {
        Test::Exists if !p.negated => Some(p.whole),
        // `a.b` is not null in `{a: []}` either, which has no entry there.
        Test::Eq(v) if p.negated && v.tag() == tag::NULL && !p.path.is_dotted() => Some(false),
        _ => None,
    }
}

/// Whether a predicate holds only for documents with an entry that lies in its bounds.
pub(crate) fn bounds_value(p: &Predicate<'_>) -> bool {
    !p.negated && excludes_missing(p.test) && of_scalars(p.test)
}

/// Whether the bounds of such a predicate may decide it: a document with fields that no query
/// reaches looks empty.
pub(crate) fn decides(p: &Predicate<'_>) -> bool {
    !matches!(p.test, Test::Eq(v) if v.tag() == tag::DOCUMENT)
}

/// Holds for values that are neither documents nor arrays, and for no others.
fn of_scalars(test: &Test) -> bool {
    let scalar = |v: &Value| !matches!(v.tag(), tag::DOCUMENT | tag::ARRAY);
    match test {
        // An empty document or array is a value of its own.
        Test::Eq(v) => scalar(v) || v.as_val().as_container().is_some_and(|d| d.is_empty()),
        Test::In(l) => l.values.iter().all(scalar),
        Test::Lt(v) | Test::Lte(v) | Test::Gt(v) | Test::Gte(v) => {
            scalar(v) && !matches!(v.tag(), tag::MIN_KEY | tag::MAX_KEY)
        }
        Test::Type(set) => !set.contains(tag::DOCUMENT) && !set.contains(tag::ARRAY),
        Test::Regex(_) | Test::Mod { .. } => true,
        Test::Collated(c) => of_scalars(&c.source),
        _ => false,
    }
}

/// The paths whose entries are wanted, for the path field `at`; which clauses that decides.
pub(crate) fn path_bounds(
    preds: &[Predicate<'_>],
    fields: &[KeyField],
    at: usize,
) -> (Vec<Interval>, Vec<(usize, bool)>) {
    let any = || {
        union(vec![
            Interval::point(Val::MIN_KEY.into()),
            Interval::new("".into(), true, bson::doc! {}.into(), false),
        ])
    };
    let Some(path) = fields.get(at + 1).map(|f| &f.path) else {
        return (any(), Vec::new());
    };
    let own = Interval::point(path.as_str().into());
    match path_use(preds, path) {
        PathUse::Value => (vec![own], Vec::new()),
        PathUse::Existence => {
            let below = Interval::new(
                format!("{path}.").into(),
                true,
                format!("{path}/").into(),
                false,
            );
            let exact = preds
                .iter()
                .filter(|p| *p.path == *path)
                .filter_map(|p| Some((p.clause, existence(p)?)))
                .collect();
            (union(vec![own, below]), exact)
        }
        PathUse::Nothing => (any(), Vec::new()),
    }
}
