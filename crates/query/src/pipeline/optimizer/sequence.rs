//! Rules of the stages that choose documents by their place: `$sort`, `$limit`, `$skip`.

use super::super::{Op, Stage};
use super::Place;
use crate::path::FieldPath;

fn swapped(place: &Place<'_>) -> Option<Vec<Stage>> {
    Some(vec![place.second.clone(), place.first.clone()])
}

/// `$limit` and `$skip` go before what keeps number and order.
pub(super) fn limit_before_stage(place: &Place<'_>) -> Option<Vec<Stage>> {
    match &place.second.op {
        Op::Limit(_) | Op::Skip(_) if place.first.effect().one_by_one() => swapped(place),
        _ => None,
    }
}

/// A `$sort` by fields that come out as they went in goes before what keeps number and order, where
/// only such stages and filters are before it: then an index may serve it.
pub(super) fn sort_before_stage(place: &Place<'_>) -> Option<Vec<Stage>> {
    let Op::Sort(pattern, _) = &place.second.op else {
        return None;
    };
    let passes = |s: &Stage| matches!(s.op, Op::Match(_)) || s.effect().one_by_one();
    let effect = place.first.effect();
    if pattern.has_meta() || !effect.one_by_one() || !place.before.iter().all(passes) {
        return None;
    }
    let same = |path: &FieldPath| effect.keeps(path.first());
    match pattern.fields.iter().all(|f| same(&f.path)) {
        true => swapped(place),
        false => None,
    }
}
