//! Rules of the stages that choose documents by their place: `$sort`, `$limit`, `$skip`.

use super::super::union_with::UnionWith;
use super::super::{Op, Stage};
use super::Place;
use super::matches::show_union;
use crate::path::FieldPath;
use bson::Value;
use std::sync::Arc;

/// A side of a `$unionWith` keeps no more than this: its documents are sorted again behind it.
const MOST_KEPT: u64 = 10_000;

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

/// Behind `$unionWith` only the first ones are wanted, of all or in some order: of each side these
/// are enough. What chooses stays behind the stage. It is done once for a stage, and not where the
/// side before it is as short already.
pub(super) fn limit_into_union(place: &Place<'_>) -> Option<Vec<Stage>> {
    let Op::UnionWith(union) = &place.first.op else {
        return None;
    };
    let (sort, most) = match &place.second.op {
        Op::Sort(by, Some(n)) if !by.has_meta() => (Some(place.second), *n),
        Op::Limit(n) => (None, *n),
        _ => return None,
    };
    let short = |s: &Stage| matches!(s.op, Op::Limit(n) if n <= most);
    if place.first.copied || most > MOST_KEPT || place.before.last().is_some_and(short) {
        return None;
    }
    let limit = Value::from(i64::try_from(most).ok()?);
    let limit = Stage::new("$limit", limit.as_val(), Op::Limit(most));
    let chosen = || sort.cloned().into_iter().chain([limit.clone()]);
    let mut pipeline = union.pipeline.clone();
    pipeline.optimized = false;
    pipeline.stages.extend(chosen());
    let union = UnionWith {
        from: union.from.clone(),
        pipeline,
    };
    let shown = show_union(&union);
    let op = Op::UnionWith(Arc::new(union));
    let mut first = Stage::new(place.first.name, shown.as_doc().as_val(), op);
    first.copied = true;
    let mut out: Vec<Stage> = chosen().collect();
    out.extend([first, place.second.clone()]);
    Some(out)
}
