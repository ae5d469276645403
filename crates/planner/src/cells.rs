//! Indexes of shapes: which predicates they serve, and the cells that those allow.
//!
//! Invariant: such an index has an entry for a document only where that has a shape, so that it serves no query that does not
//! ask for one.

use crate::interval::Interval;
use crate::plan::IndexInfo;
use crate::predicate::Predicate;
use bson::Value;
use geo::sphere;
use query::filter::{GeoTest, Test};
use query::index_keys::{FieldKind, Geospatial, KeyField};

/// The test of shapes that a predicate makes of a field.
fn test_of<'p>(p: &'p Predicate<'_>, f: &KeyField) -> Option<&'p GeoTest> {
    match p.test {
        Test::Geo(g) if *p.path == f.path && !p.negated && p.compared.is_none() => Some(g),
        _ => None,
    }
}

fn ranges(kind: &Geospatial, test: &GeoTest) -> Option<Vec<(i64, i64)>> {
    match kind {
        Geospatial::Sphere { .. } => sphere::ranges(&test.region),
        Geospatial::Plane(grid) => match test.predicate {
            geo::Predicate::Within => grid.ranges(&test.region),
            geo::Predicate::Intersects => None,
        },
    }
}

/// Whether an index may be used at all: for one of shapes, whether one is asked for on the right kind of surface.
pub(crate) fn serves(info: &IndexInfo, preds: &[Predicate<'_>]) -> bool {
    let Some(kind) = info.key.geospatial() else {
        return true;
    };
    let on_surface = |g: &GeoTest| match kind {
        Geospatial::Sphere { .. } => g.region.is_on_sphere(),
        Geospatial::Plane(_) => g.predicate == geo::Predicate::Within,
    };
    let fields = info.key.fields.iter();
    let mut cells = fields.filter(|f| f.kind == FieldKind::Cells);
    cells.any(|f| preds.iter().filter_map(|p| test_of(p, f)).any(on_surface))
}

/// The cells that the predicates on a field allow. A document has several: what holds for one need not for another, so that one
/// predicate bounds, the one with the fewest ranges.
pub(crate) fn bounds(
    preds: &[Predicate<'_>],
    f: &KeyField,
    info: &IndexInfo,
) -> (Vec<Interval>, Vec<(usize, bool)>) {
    let all = || (vec![Interval::all()], Vec::new());
    let Some(kind) = info.key.geospatial() else {
        return all();
    };
    let each = preds
        .iter()
        .filter_map(|p| Some((p.clause, ranges(kind, test_of(p, f)?)?)));
    let Some((clause, best)) = each.min_by_key(|(_, ranges)| ranges.len()) else {
        return all();
    };
    let interval =
        |(low, high): (i64, i64)| Interval::new(Value::from(low), true, Value::from(high), true);
    (
        best.into_iter().map(interval).collect(),
        vec![(clause, false)],
    )
}
