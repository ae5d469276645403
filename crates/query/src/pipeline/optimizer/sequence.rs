//! Rules of the stages that choose documents by their place: `$sort`, `$limit`, `$skip`.

use super::super::{Op, Stage};
use super::Place;
use super::effect::{Fields, Rows};
use crate::path::FieldPath;

/// Whether a stage makes of each document one, in the order in which they came.
fn one_by_one(stage: &Stage) -> bool {
    stage.rows() == Rows::One && stage.keeps_order()
}

fn swapped(place: &Place<'_>) -> Option<Vec<Stage>> {
    Some(vec![place.second.clone(), place.first.clone()])
}

/// `$limit` and `$skip` go before what keeps number and order.
pub(super) fn limit_before_stage(place: &Place<'_>) -> Option<Vec<Stage>> {
    match &place.second.op {
        Op::Limit(_) | Op::Skip(_) if one_by_one(place.first) => swapped(place),
        _ => None,
    }
}

/// A `$sort` by fields that come out as they went in goes before what keeps number and order, where
/// only such stages and filters are before it: then an index may serve it.
pub(super) fn sort_before_stage(place: &Place<'_>) -> Option<Vec<Stage>> {
    let Op::Sort(pattern, _) = &place.second.op else {
        return None;
    };
    let passes = |s: &Stage| matches!(s.op, Op::Match(_)) || one_by_one(s);
    if pattern.has_meta() || !one_by_one(place.first) || !place.before.iter().all(passes) {
        return None;
    }
    let fields = place.first.fields();
    let same = |path: &FieldPath| match &fields {
        Fields::Written(written) => written.iter().all(|w| w.first() != path.first()),
        Fields::Transformed(t) => t.keeps(path.first()),
        Fields::Same | Fields::Pruned | Fields::Others => false,
    };
    match pattern.fields.iter().all(|f| same(&f.path)) {
        true => swapped(place),
        false => None,
    }
}
