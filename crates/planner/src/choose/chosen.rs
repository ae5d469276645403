//! The bounds of each field of an index, out of the predicates of a query.
//!
//! Invariant: every document that matches has, in the bounds of each field, an entry of its own.
//! A field of an array has many: two predicates on it may hold for two of its elements, so only one
//! of them bounds it, unless both are about one element.

use super::{by_text, share};
use crate::bounds::{self, FieldKind};
use crate::cells;
use crate::interval::{Interval, bounded, intersect};
use crate::plan::IndexInfo;
use crate::predicate::Predicate;
use crate::wildcard;
use query::collation::Collation;
use query::index_keys::{FieldKind as KeyKind, KeyField, Multikey};
use text::Matcher;

/// The bounds of each field of an index.
pub(super) struct Chosen {
    /// Empty lists only where nothing can match; fields without bounds have all values.
    pub intervals: Vec<Vec<Interval>>,
    /// For each field the clauses that went into its bounds, and whether the bounds decide them.
    pub exact: Vec<Vec<(usize, bool)>>,
}

/// The bounds of one field, and the clauses that went into them, as in [`Chosen`].
type FieldBounds = (Vec<Interval>, Vec<(usize, bool)>);

impl Chosen {
    /// `text`: the clause that is a `$text`, for its index.
    pub fn of(
        preds: &[Predicate<'_>],
        info: &IndexInfo,
        text: Option<(usize, &Matcher)>,
    ) -> Chosen {
        let fields = &info.key.fields;
        let mut chooser = Chooser {
            preds,
            info,
            arrays: Vec::new(),
        };
        let (mut intervals, mut exact) = (
            Vec::with_capacity(fields.len()),
            Vec::with_capacity(fields.len()),
        );
        for (i, f) in fields.iter().enumerate() {
            let (list, clauses) = match f.kind {
                KeyKind::Ordered | KeyKind::Wildcard => chooser.by_value(i, f),
                KeyKind::Hashed => hashed(preds, f, info.key.collation()),
                KeyKind::Cells => cells::bounds(preds, f, info),
                KeyKind::WildcardPath => wildcard::path_bounds(preds, fields, i),
                KeyKind::Term => text.map_or_else(unbounded, by_text::bounds),
                KeyKind::Score => unbounded(),
            };
            intervals.push(list);
            exact.push(clauses);
        }
        Chosen { intervals, exact }
    }
}

fn unbounded() -> FieldBounds {
    (vec![Interval::all()], Vec::new())
}

/// Chooses the bounds of one field after the other.
struct Chooser<'c, 'd> {
    preds: &'c [Predicate<'d>],
    info: &'c IndexInfo,
    /// The earlier fields that are arrays and have bounds, each with the clause that bounds it, if
    /// that is about one element.
    arrays: Vec<(usize, Option<usize>)>,
}

impl<'c, 'd> Chooser<'c, 'd> {
    /// The bounds of a field whose keys are in the order of its values.
    fn by_value(&mut self, i: usize, f: &KeyField) -> FieldBounds {
        let kind = FieldKind {
            multikey: Multikey(self.info.multikey).field(i),
            dotted: f.path.is_dotted(),
            indexed: f.path.has_index_part(),
            sparse: self.info.sparse,
            collation: self.info.key.collation(),
        };
        let bounding = self.bounding(f);
        if kind.multikey {
            self.by_one(i, f, kind, &bounding)
        } else {
            by_all(f, kind, &bounding)
        }
    }

    /// The predicates that may bound a field.
    fn bounding(&self, f: &KeyField) -> Vec<&'c Predicate<'d>> {
        let here = self.preds.iter().filter(|p| *p.path == f.path);
        if f.kind == KeyKind::Ordered {
            return here.collect();
        }
        match wildcard::path_use(self.preds, &f.path) {
            wildcard::PathUse::Value => here.filter(|p| wildcard::bounds_value(p)).collect(),
            _ => Vec::new(),
        }
    }

    /// The bounds of an array: those of the narrowest predicate that may bound it, with the others
    /// on the same value.
    fn by_one(
        &mut self,
        i: usize,
        f: &KeyField,
        kind: FieldKind<'_>,
        bounding: &[&Predicate<'d>],
    ) -> FieldBounds {
        let fields = &self.info.key.fields;
        let shared: Vec<Option<usize>> = (self.arrays.iter())
            .filter(|(j, _)| fields[*j].path.first() == f.path.first())
            .map(|(_, clause)| *clause)
            .collect();
        let best = (bounding.iter())
            .filter(|p| shared.iter().all(|c| *c == Some(p.clause) && p.element))
            .filter_map(|p| Some((p, bounds::of(p, kind)?)))
            .filter(|(_, b)| bounded(&b.intervals))
            .min_by(|(_, a), (_, b)| share(&a.intervals).total_cmp(&share(&b.intervals)));
        let Some((p, best)) = best else {
            return unbounded();
        };
        self.arrays.push((i, p.element.then_some(p.clause)));
        let mut list = best.intervals;
        if p.same_value {
            let together = (self.preds.iter())
                .filter(|q| q.same_value && q.clause == p.clause && *q.path == f.path);
            for b in together.filter_map(|q| bounds::of(q, kind)) {
                list = intersect(&list, &b.intervals);
            }
        }
        (list, vec![(p.clause, best.exact && is_sure(f, p))])
    }
}

/// The bounds of a field that is no array: those of all predicates together.
fn by_all(f: &KeyField, kind: FieldKind<'_>, bounding: &[&Predicate<'_>]) -> FieldBounds {
    let mut list: Option<Vec<Interval>> = None;
    let mut exact = Vec::new();
    for p in bounding {
        let Some(b) = bounds::of(p, kind) else {
            continue;
        };
        list = Some(match list {
            Some(list) => intersect(&list, &b.intervals),
            None => b.intervals,
        });
        exact.push((p.clause, b.exact && is_sure(f, p)));
    }
    (list.unwrap_or_else(|| vec![Interval::all()]), exact)
}

/// Whether bounds can decide a predicate on the field at all.
fn is_sure(f: &KeyField, p: &Predicate<'_>) -> bool {
    f.kind == KeyKind::Ordered || wildcard::decides(p)
}

/// The hashes that the predicates on a hashed field allow.
fn hashed(preds: &[Predicate<'_>], f: &KeyField, collation: Option<&Collation>) -> FieldBounds {
    let mut list = vec![Interval::all()];
    let mut exact = Vec::new();
    for p in preds.iter().filter(|p| *p.path == f.path) {
        if let Some(b) = bounds::hashed(p, collation) {
            list = intersect(&list, &b.intervals);
            exact.push((p.clause, b.exact));
        }
    }
    (list, exact)
}
