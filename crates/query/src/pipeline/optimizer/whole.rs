//! Rules that look at more than two neighbours: a filter that all pipelines of a `$facet` share,
//! and stages whose result nobody uses.

use super::super::{Op, Stage};
use super::effect::needed;
use super::matches;
use crate::filter::{Filter, Node};

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
fn is_repeatable(node: &Node) -> bool {
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
