//! Rules that bring a `$match`, or what of it can go, towards the beginning.

#[cfg(test)]
use super::super::Pipeline;
use super::super::union_with::UnionWith;
use super::super::{Op, Stage};
use super::Place;
use super::buckets::Buckets;
use super::effect::{Fields, Rows};
use super::predicate::{
    Split, StageEffect, conjuncts, heeds_order_only, implied, missing_is_null, wants_scalar,
};
use crate::expr::{Expression, Key};
use crate::filter::{Filter, Node, Test, TypeSet};
use crate::path::FieldPath;
use bson::{DocBuf, Writer, tag};
use std::sync::Arc;

/// The stage for a filter.
pub(super) fn stage(filter: Filter) -> Stage {
    let spec = filter.to_doc();
    let spec = spec.as_doc().as_val();
    Stage::new("$match", spec, Op::Match(Arc::new(filter)))
}

/// The filter of the second of two stages. One with `$text` stays where it is.
fn filter<'a>(place: &Place<'a>) -> Option<&'a Arc<Filter>> {
    match &place.second.op {
        Op::Match(f) if f.text().is_none() => Some(f),
        _ => None,
    }
}

/// What moves, the stage, and what stays.
fn around(place: &Place<'_>, split: Split) -> Vec<Stage> {
    let whole = split.rest.is_empty() && !split.renamed;
    let moved = match whole {
        true => place.second.clone(),
        false => stage(Filter::from_node(Node::and(split.moved))),
    };
    let mut out = vec![moved, place.first.clone()];
    if !split.rest.is_empty() {
        out.push(stage(Filter::from_node(Node::and(split.rest))));
    }
    out
}

/// Two filters are one. `$text` stays alone, as the stage that finds documents.
pub(super) fn join(place: &Place<'_>) -> Option<Vec<Stage>> {
    let Op::Match(first) = &place.first.op else {
        return None;
    };
    let second = filter(place)?;
    if first.text().is_some() {
        return None;
    }
    let both = vec![first.root().clone(), second.root().clone()];
    Some(vec![stage(Filter::from_node(Node::and(both)))])
}

/// Before a stage that works on each document alone goes what speaks of fields that it leaves as
/// they are, or that it only gives other names. `$expr` goes only where each document is kept: of
/// one that the stage drops it would not have been asked.
pub(super) fn before_stage(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let effect = place.first.effect();
    let (rows, fields) = (effect.rows, &effect.fields);
    let alone = matches!(fields, Fields::Written(_) | Fields::Transformed(_));
    if rows == Rows::Together || !alone {
        return None;
    }
    let path = |path: &FieldPath, _: &Test| match fields {
        Fields::Written(written) => {
            let other = |w: &&FieldPath| w.first() != path.first();
            written.iter().all(other).then(|| path.clone())
        }
        Fields::Transformed(t) => t.source_of(path),
        Fields::Same | Fields::Pruned | Fields::Others => None,
    };
    let expr = |e: &Expression| {
        let paths = e.needed_paths().filter(|_| rows == Rows::One);
        let top = |p: &String| effect.keeps(p.split('.').next().unwrap_or(""));
        paths.is_some_and(|paths| paths.iter().all(top))
    };
    let passage = StageEffect {
        path: &path,
        expr: &expr,
        whole: false,
    };
    Some(around(place, Split::of(filter, &passage)?))
}

/// Before a `$sort` goes all, unless that keeps only so many.
pub(super) fn before_sort(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Sort(_, None) = &place.first.op else {
        return None;
    };
    let passage = StageEffect {
        path: &|path, _| Some(path.clone()),
        expr: &|_| true,
        whole: true,
    };
    Some(around(place, Split::of(filter, &passage)?))
}

/// The field that a test of a key is a test of. All documents with one key have to pass together,
/// and as the key does.
fn of_key(key: &Key, path: &FieldPath, test: &Test) -> Option<FieldPath> {
    if !heeds_order_only(test) {
        return None;
    }
    match key {
        Key::Value(field) => {
            let same = !path.is_empty() || missing_is_null(test);
            let plain = !field.is_dotted() && same;
            plain.then(|| field.join(path))
        }
        Key::Document(fields) => {
            let (_, field) = fields.iter().find(|(name, _)| &**name == path.first())?;
            (!field.is_dotted()).then(|| field.join(&path.tail(1)))
        }
    }
}

/// Before a `$group` goes what speaks of `_id`, where that is a field or a document of fields. A
/// field that is missing is null in a group's `_id`, but missing inside of a document.
pub(super) fn before_group(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Group(group) = &place.first.op else {
        return None;
    };
    let key = group.id.key()?;
    let passage = StageEffect {
        path: &|path, test| match path.first() {
            "_id" => of_key(&key, &path.tail(1), test),
            _ => None,
        },
        expr: &|_| false,
        whole: false,
    };
    Some(around(place, Split::of(filter, &passage)?))
}

/// What follows from a test of a group's `_id` that is a dotted path. Where an array is on the way
/// the `_id` is the array of what its documents hold, so only tests of single values are followed
/// there, and the filter stays.
pub(super) fn copied_before_group(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Group(group) = &place.first.op else {
        return None;
    };
    let key = group.id.key()?;
    let of = |path: &FieldPath, test: &Test| {
        let field = match (&key, path.first()) {
            (Key::Value(field), "_id") if path.len() == 1 => field,
            (Key::Document(fields), "_id") if path.len() == 2 => {
                let (_, field) = fields.iter().find(|(name, _)| &**name == path.part(1))?;
                field
            }
            _ => return None,
        };
        let follows = heeds_order_only(test) && wants_scalar(test);
        (follows && !field.has_index_part()).then(|| field.clone())
    };
    copied(place, implied(filter, &of)?)
}

/// Before `$setWindowFields` goes what speaks of the fields that it makes partitions by: whole
/// partitions pass or do not. A missing field is in the partition of null.
pub(super) fn before_window(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Window(window) = &place.first.op else {
        return None;
    };
    let key = window.partition()?.key()?;
    let path = |path: &FieldPath, test: &Test| {
        let partition = |field: &FieldPath| !field.is_dotted() && path.starts_with(field);
        let by = match &key {
            Key::Value(field) => partition(field),
            Key::Document(fields) => fields.iter().any(|(_, f)| partition(f)),
        };
        let other = window.written().all(|w| w.first() != path.first());
        let together = heeds_order_only(test) && missing_is_null(test);
        (by && other && together).then(|| path.clone())
    };
    let passage = StageEffect {
        path: &path,
        expr: &|_| false,
        whole: false,
    };
    Some(around(place, Split::of(filter, &passage)?))
}

/// Before `$densify` goes what speaks of the fields that it makes partitions by, unless it fills up
/// to what all partitions have.
pub(super) fn before_densify(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Densify(densify) = &place.first.op else {
        return None;
    };
    let path = |path: &FieldPath, test: &Test| {
        let together = heeds_order_only(test) && missing_is_null(test);
        (together && densify.is_by_itself(path)).then(|| path.clone())
    };
    let passage = StageEffect {
        path: &path,
        expr: &|_| false,
        whole: false,
    };
    Some(around(place, Split::of(filter, &passage)?))
}

/// What follows from a test of the `_id` of a `$bucket`: that its field lies between the bounds of
/// one of the buckets that pass.
pub(super) fn copied_before_bucket(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Group(group) = &place.first.op else {
        return None;
    };
    let bucket = Buckets::of(place.first, group.collation().is_some())?;
    let mut within = Vec::new();
    for test in conjuncts(filter).iter().filter_map(|n| match n {
        Node::Pred { path, test } if path.is_id() => Some(test),
        _ => None,
    }) {
        within.extend(bucket.within(test));
    }
    match within.is_empty() {
        true => None,
        false => copied(place, Node::and(within)),
    }
}

/// A filter behind `$unionWith` goes to both sides.
pub(super) fn into_union(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::UnionWith(union) = &place.first.op else {
        return None;
    };
    let passage = StageEffect {
        path: &|path, _| Some(path.clone()),
        expr: &|_| true,
        whole: true,
    };
    let split = Split::of(filter, &passage)?;
    let mut out = around(place, split);
    let moved = out.first()?.clone();
    let mut pipeline = union.pipeline.clone();
    pipeline.optimized = false;
    pipeline.stages.push(moved);
    let union = UnionWith {
        from: union.from.clone(),
        pipeline,
    };
    let shown = show_union(&union);
    let op = Op::UnionWith(Arc::new(union));
    let mut stage = Stage::new(place.first.name, shown.as_doc().as_val(), op);
    stage.copied = place.first.copied;
    *out.get_mut(1)? = stage;
    Some(out)
}

pub(super) fn show_union(union: &UnionWith) -> DocBuf {
    let mut w = Writer::new();
    if let Some(from) = &union.from {
        w.str("coll", &from.coll);
    }
    w.open_array("pipeline");
    for s in union.pipeline.written() {
        w.push(s.as_doc().as_val());
    }
    w.close();
    w.finish()
}

/// Conditions on the fields of the document that becomes the root go before the stage. Of a document
/// without such a document the stage raises an error, so those go on.
pub(super) fn before_root(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Op::Transform(t) = &place.first.op else {
        return None;
    };
    let root = t.root_field()?;
    let of = |path: &FieldPath, _: &Test| Some(root.join(path));
    let passage = StageEffect {
        path: &of,
        expr: &|_| false,
        whole: false,
    };
    let split = Split::of(filter, &passage)?;
    let is = |type_: u8| Node::Pred {
        path: root.clone(),
        test: Test::Type(TypeSet::of(&[type_])),
    };
    let passes = vec![
        Node::and(split.moved),
        Node::Not(Box::new(is(tag::DOCUMENT))),
        is(tag::ARRAY),
    ];
    let mut out = vec![
        stage(Filter::from_node(Node::Or(passes))),
        place.first.clone(),
    ];
    if !split.rest.is_empty() {
        out.push(stage(Filter::from_node(Node::and(split.rest))));
    }
    Some(out)
}

/// A condition on single values holds before `$redact` if it holds behind it: that only takes documents
/// away, with all inside of them. Positions in arrays move, so a path must have none.
pub(super) fn copied_before_redact(place: &Place<'_>) -> Option<Vec<Stage>> {
    let filter = filter(place)?;
    let Fields::Pruned = place.first.effect().fields else {
        return None;
    };
    let of = |path: &FieldPath, test: &Test| {
        (wants_scalar(test) && !path.has_index_part()).then(|| path.clone())
    };
    copied(place, implied(filter, &of)?)
}

/// A condition before a stage whose filter stays behind it; once for each stage.
fn copied(place: &Place<'_>, condition: Node) -> Option<Vec<Stage>> {
    if place.first.copied {
        return None;
    }
    let mut first = place.first.clone();
    first.copied = true;
    Some(vec![
        stage(Filter::from_node(condition)),
        first,
        place.second.clone(),
    ])
}

#[cfg(test)]
impl Pipeline {
    /// The filter that it begins with, for tests.
    pub(super) fn first_filter(&self) -> Option<DocBuf> {
        match self.stages.first().map(|s| &s.op) {
            Some(Op::Match(f)) => Some(f.to_doc()),
            _ => None,
        }
    }
}
