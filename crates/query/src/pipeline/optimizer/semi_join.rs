//! Joins that can be turned round: the conditions on the joined side tell which documents before the
//! join are wanted at all. Where few there are found, their values of the foreign field are a filter of
//! the local one, and an index may find the documents that have them.
//!
//! ```text
//! $lookup {from: b, localField: l, foreignField: f, as: j}, $unwind: "$j", $match: {"j.x": 5}
//!
//! first   b: x = 5             few documents, their f: 1, 4, 9
//! then    $match: {l: {$in: [1, 4, 9]}}, and the stages as they were
//! ```
//! The stages stay, so that nothing has to be known of the documents that come: the filter only keeps
//! those away that would have found nothing. The executor decides whether it is worth reading the other
//! side first; here is only whether it is correct.
//!
//! Invariant: each document of which the stages give one passes the filter.

use super::super::lookup::{Lookup, equals_any};
use super::super::{Namespace, Op, Pipeline, Stage};
use super::effect::Rows;
use super::matches;
use super::predicate::{implied, wants_scalar};
use super::whole::is_repeatable;
use crate::filter::{Filter, Node, Test};
use crate::path::FieldPath;
use bson::{Doc, Value, tag};

/// A join of a pipeline that may be turned round.
pub struct SemiJoin {
    /// The collection on the other side, and the pipeline that selects its documents.
    pub from: Namespace,
    pub wanted: Pipeline,
    pub foreign: FieldPath,
    local: FieldPath,
    /// The number of the stage.
    at: usize,
}

/// The values of the foreign field, as far as they were read.
#[derive(Default)]
pub struct JoinedValues {
    values: Vec<Value>,
    bytes: usize,
}

impl JoinedValues {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what a document has at the path. `false`: its value is no filter of the other side, since it
    /// stands for a missing one there, or an array is on the way.
    pub fn add(&mut self, doc: Doc<'_>, path: &FieldPath) -> bool {
        let mut at = Some(doc.as_val());
        for part in path.parts() {
            at = at.and_then(|v| v.as_doc()?.get(part));
        }
        let Some(v) = at else {
            return false;
        };
        if matches!(v.tag, tag::NULL | tag::UNDEFINED) {
            return false;
        }
        // An array is found by its elements, and as a whole.
        let elements = v.as_array().unwrap_or(Doc::EMPTY);
        if elements
            .values()
            .any(|e| matches!(e.tag, tag::NULL | tag::UNDEFINED))
        {
            return false;
        }
        for v in elements.values().chain([v]) {
            self.bytes += v.bytes.len() + size_of::<Value>();
            self.values.push(v.to_value());
        }
        true
    }
}

impl Pipeline {
    /// The joins that may be turned round, in their order. Of an optimized pipeline.
    pub fn semi_joins(&self) -> Vec<SemiJoin> {
        let mut out = Vec::new();
        for (at, stage) in self.stages.iter().enumerate() {
            let Op::Lookup(lookup) = &stage.op else {
                continue;
            };
            let (before, behind) = (self.stages.split_at(at).0, self.stages.get(at + 1));
            out.extend(semi_join(before, lookup, behind, at));
        }
        out
    }

    /// The pipeline that sees only documents that find one of these.
    pub fn joined_with(&self, join: &SemiJoin, found: JoinedValues) -> Pipeline {
        let filter = match found.values.is_empty() {
            true => Node::Const(false),
            false => {
                let values = found.values.iter().map(Value::as_val).collect();
                equals_any(&join.local, values, None)
            }
        };
        let mut stages = self.stages.clone();
        let at = join.at.min(stages.len());
        stages.insert(at, matches::stage(Filter::from_node(filter)));
        let pipeline = Pipeline {
            stages,
            optimized: false,
        };
        pipeline.optimized()
    }
}

fn semi_join(
    before: &[Stage],
    lookup: &Lookup,
    behind: Option<&Stage>,
    at: usize,
) -> Option<SemiJoin> {
    let (local, foreign) = lookup.fields.as_ref()?;
    let from = lookup.from.clone()?;
    // Of the same documents the same is asked, whichever they are joined to.
    if !lookup.lets.is_empty() || lookup.collation.is_some() {
        return None;
    }
    // A filter of the local field goes to the beginning.
    let passes = |s: &Stage| {
        let effect = s.effect();
        let alone = effect.rows != Rows::Together || matches!(s.op, Op::Sort(_, None));
        alone && !matches!(s.op, Op::Unpack(_)) && effect.keeps(local.first())
    };
    if !before.iter().all(passes) {
        return None;
    }
    let mut asked = Vec::new();
    for stage in lookup.pipeline.stages() {
        match &stage.op {
            Op::Match(f) => asked.push(f.root().clone()),
            _ => return None,
        }
    }
    let drops = lookup.unwinding.as_ref().is_some_and(|u| !u.preserve);
    if !drops {
        // The condition on the array: that it holds such a document.
        let Op::Match(f) = &behind?.op else {
            return None;
        };
        if lookup.as_.is_dotted() {
            return None;
        }
        let of = |path: &FieldPath, test: &Test| {
            let inside = path.len() > lookup.as_.len() && path.starts_with(&lookup.as_);
            let tail = inside.then(|| path.tail(lookup.as_.len()))?;
            (wants_scalar(test) && !tail.has_index_part()).then_some(tail)
        };
        asked.push(implied(f, &of)?);
    }
    let asked = Node::and(asked);
    let filters = !matches!(asked, Node::Const(true)) && is_repeatable(&asked);
    filters.then(|| SemiJoin {
        from,
        wanted: Pipeline::from_filter(Filter::from_node(asked)),
        foreign: foreign.clone(),
        local: local.clone(),
        at,
    })
}
