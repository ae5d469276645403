//! Rules that look at more than two neighbours: a filter that all pipelines of a `$facet` share, joins
//! that were done before, and stages whose result is unused.

use super::super::lookup::Lookup;
use super::super::{Op, Stage};
use super::effect::{Rows, needed};
use super::matches;
use crate::expr::ParseEnv;
use crate::filter::{Filter, Node};
use crate::transform::Transform;
use bson::{DocBuf, Val, Writer};
use memchr::memchr_iter;
use std::sync::Arc;

/// What one of so many pipelines must find is no filter that saves anything, and is long to plan.
const MOST_PARTS: usize = 256;

/// Before a `$facet` whose pipelines all begin with filters goes what one of them must find.
pub(super) fn filter_facets(stages: Vec<Stage>) -> Vec<Stage> {
    let mut out = Vec::with_capacity(stages.len());
    for mut stage in stages {
        if !stage.copied
            && let Some(filter) = common_filter(&stage)
        {
            out.push(matches::stage(filter));
            stage.copied = true;
        }
        out.push(stage);
    }
    out
}

fn common_filter(stage: &Stage) -> Option<Filter> {
    let Op::Facet(facet) = &stage.op else {
        return None;
    };
    if facet.parts.len() > MOST_PARTS {
        return None;
    }
    let (mut alternatives, mut known) = (Vec::new(), std::collections::HashSet::new());
    for (_, part) in &facet.parts {
        let Some(Op::Match(f)) = part.stages.first().map(|s| &s.op) else {
            return None;
        };
        if f.text().is_some() || !is_repeatable(f.root()) {
            return None;
        }
        if known.insert(f.to_doc().into_vec()) {
            alternatives.push(f.root().clone());
        }
    }
    Some(Filter::from_node(match alternatives.len() {
        0 => return None,
        1 => alternatives.pop()?,
        _ => Node::Or(alternatives),
    }))
}

/// Whether it may be asked twice of a document, with the same answer.
pub(super) fn is_repeatable(node: &Node) -> bool {
    match node {
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().all(is_repeatable),
        Node::Not(n) => is_repeatable(n),
        Node::Expr(e) => !e.is_random() && e.as_where().is_none(),
        Node::Const(_) | Node::Pred { .. } | Node::Schema(_) => true,
        Node::Sample(_) | Node::Text(_) => false,
    }
}

/// Stages go that make of each document one, in their order, and change nothing that is read behind
/// them.
pub(super) fn without_unused(mut stages: Vec<Stage>) -> Vec<Stage> {
    for at in (0..stages.len()).rev() {
        let (before, behind) = stages.split_at(at + 1);
        if before.last().is_some_and(|s| is_unused(s, behind)) {
            stages.remove(at);
        }
    }
    stages
}

/// Whether nothing of what a stage writes is read behind it. What computes stays: it may fail.
fn is_unused(stage: &Stage, behind: &[Stage]) -> bool {
    if matches!(&stage.op, Op::Transform(t) if !t.is_simple()) {
        return false;
    }
    let effect = stage.effect();
    let kept = |p: &String| effect.keeps(p.split('.').next().unwrap_or(""));
    effect.one_by_one() && needed(behind).is_some_and(|paths| paths.iter().all(kept))
}

/// Names in a specification by which two runs of it may give something else.
const BY_CHANCE: [&[u8]; 6] = [
    b"$rand",
    b"$sample",
    b"$where",
    b"$function",
    b"$accumulator",
    b"$_internalJs",
];

/// Whether this specification gives the same each time it is run. A text that only looks like chance
/// counts as such.
pub(in super::super) fn gives_the_same(spec: Val<'_>) -> bool {
    let begins = |at: usize| {
        let rest = spec.bytes.get(at..).unwrap_or_default();
        BY_CHANCE.iter().any(|name| rest.starts_with(name))
    };
    !memchr_iter(b'$', spec.bytes).any(begins)
}

/// A `$lookup` of the same text as an earlier one takes its result, if both the fields that it reads and
/// the result are unchanged.
pub(super) fn joined_once(mut stages: Vec<Stage>) -> Vec<Stage> {
    for at in 1..stages.len() {
        let (before, rest) = stages.split_at(at);
        if let Some(stage) = rest.first().and_then(|s| found_before(before, s)) {
            stages[at] = stage;
        }
    }
    stages
}

fn found_before(before: &[Stage], stage: &Stage) -> Option<Stage> {
    let Op::Lookup(lookup) = &stage.op else {
        return None;
    };
    let to = plain_name(lookup)?;
    let spec = without_as(stage);
    if !gives_the_same(spec.as_doc().as_val()) {
        return None;
    }
    let read = lookup.needed()?;
    let top = |path: &String| path.split('.').next().unwrap_or("").to_string();
    let same: Vec<String> = read.iter().map(top).collect();
    for (at, s) in before.iter().enumerate().rev() {
        let effect = s.effect();
        if !same.iter().all(|name| effect.keeps(name)) {
            return None;
        }
        let chooses = matches!(
            s.op,
            Op::Sort(..) | Op::Limit(_) | Op::Skip(_) | Op::Sample(_)
        );
        if let Op::Lookup(earlier) = &s.op
            && let Some(from) = plain_name(earlier)
            && without_as(s) == spec
        {
            // What it found must have come as far as here.
            let kept = |s: &Stage| s.effect().keeps(from);
            let (_, between) = before.split_at(at + 1);
            return match from != to && between.iter().all(kept) {
                true => copy_of(from, to),
                false => None,
            };
        }
        if effect.rows == Rows::Together && !chooses {
            return None;
        }
    }
    None
}

/// The name that a `$lookup` writes whole.
fn plain_name(lookup: &Lookup) -> Option<&str> {
    let name = lookup.as_.as_str();
    let plain = lookup.as_.len() == 1 && lookup.unwinding.is_none() && !name.starts_with('$');
    plain.then_some(name)
}

fn without_as(stage: &Stage) -> DocBuf {
    let mut w = Writer::new();
    let spec = stage.spec.as_val().as_doc();
    for e in spec
        .iter()
        .flat_map(|d| d.iter())
        .filter(|e| e.name != "as")
    {
        w.val(e.name, e.val);
    }
    w.finish()
}

pub(super) fn copy_of(from: &str, to: &str) -> Option<Stage> {
    let mut w = Writer::new();
    w.str(to, &format!("${from}"));
    let spec = w.finish();
    let env = ParseEnv::new();
    let transform = Transform::add_fields("$addFields", spec.as_doc(), &env).ok()?;
    let op = Op::Transform(Arc::new(transform));
    Some(Stage::new("$addFields", spec.as_doc().as_val(), op))
}
