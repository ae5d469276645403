//! From a sequence of stages to a better one with the same results.
//!
//! A rule looks at two neighbours, and at the stages before them, and gives the stages that replace
//! them. It asks stages what they do (`effect`), and filters what of them may move (`predicate`);
//! `matches` has the rules of `$match`, `sequence` those of `$sort`, `$limit` and `$skip`. The rules are
//! tried until none applies any more. Three look at all stages (`whole`): one before these, two behind
//! them. `semi_join` says what the other side of a join may tell before.
//!
//! Invariant: the documents that come out, and their order where one is promised, are those of the
//! stages as they were written. An error that a stage would raise for a document may be missing
//! when the document is filtered out before; no error is raised that was not before. Each rule only
//! moves a stage towards the beginning, joins two, or is applied to a stage once, so the rules come
//! to an end.
//!
//! `$_internalInhibitOptimization` changes nothing and lets nothing pass: with it between any two
//! stages a pipeline runs as it was written, which is what the tests compare with.

mod buckets;
mod effect;
mod matches;
mod predicate;
#[cfg(test)]
mod random;
pub(super) mod semi_join;
mod sequence;
#[cfg(test)]
mod tests;
pub(super) mod whole;

use super::facet::Facet;
use super::lookup::Lookup;
use super::parse::coalesce;
use super::union_with::UnionWith;
use super::{Op, Pipeline, Stage};
use errors::{Result, bail, operation};
use std::sync::Arc;

pub(super) const INHIBIT: &str = "$_internalInhibitOptimization";

/// Two neighbours, and the stages before them.
pub(super) struct Place<'a> {
    pub before: &'a [Stage],
    pub first: &'a Stage,
    pub second: &'a Stage,
}

/// The stages that replace two neighbours.
type Rule = fn(&Place<'_>) -> Option<Vec<Stage>>;

/// The rules by their names, in the order in which they are tried.
const RULES: [(&str, Rule); 14] = [
    ("match_and_match", matches::join),
    ("match_before_stage", matches::before_stage),
    ("match_before_sort", matches::before_sort),
    ("match_before_group", matches::before_group),
    ("match_before_window", matches::before_window),
    ("match_before_densify", matches::before_densify),
    ("match_into_union", matches::into_union),
    ("match_before_root", matches::before_root),
    ("match_copied_before_redact", matches::copied_before_redact),
    ("match_copied_before_group", matches::copied_before_group),
    ("match_copied_before_bucket", matches::copied_before_bucket),
    ("limit_before_stage", sequence::limit_before_stage),
    ("sort_before_stage", sequence::sort_before_stage),
    ("limit_into_union", sequence::limit_into_union),
];

/// So many times a rule is applied to one pipeline at most: a thousand stages take half a million.
const MAX_STEPS: usize = 600_000;

/// The stage that inhibits, as it is written.
pub(super) fn parse_inhibit(spec: bson::Val<'_>) -> Result<Op> {
    match spec.as_doc() {
        Some(d) if d.is_empty() => Ok(Op::Inhibit),
        _ => bail!(TypeMismatch, "{INHIBIT} must take an empty object"),
    }
}

impl Pipeline {
    /// The same results by less work.
    pub fn optimized(&self) -> Pipeline {
        self.optimized_by(&RULES)
    }

    fn optimized_by(&self, rules: &[(&str, Rule)]) -> Pipeline {
        // An operation that has to end is not optimized: the next question ends it.
        if self.optimized || self.stages.is_empty() || operation::step().is_err() {
            return self.clone();
        }
        // First the pipelines inside, whose filters a `$facet` may share.
        let inside = |s: Stage| inside(s, rules);
        let stages = self.stages.iter().cloned().map(inside).collect();
        let stages = rearranged(whole::filter_facets(stages), rules);
        let stages = coalesce(whole::without_unused(whole::joined_once(stages)));
        Pipeline {
            // Rules have put more into some of them.
            stages: stages.into_iter().map(inside).collect(),
            optimized: true,
        }
    }
}

/// The stages after all rules.
fn rearranged(mut stages: Vec<Stage>, rules: &[(&str, Rule)]) -> Vec<Stage> {
    let (mut at, mut steps) = (0, 0);
    while at + 1 < stages.len() && steps < MAX_STEPS {
        let place = Place {
            before: stages.split_at(at).0,
            first: &stages[at],
            second: &stages[at + 1],
        };
        match rules.iter().find_map(|(_, rule)| rule(&place)) {
            Some(better) => {
                stages.splice(at..at + 2, better);
                at = at.saturating_sub(1);
                steps += 1;
            }
            None => at += 1,
        }
    }
    stages
}

/// The stage with the pipelines that it runs itself optimized; a filter with its constants computed.
fn inside(mut stage: Stage, rules: &[(&str, Rule)]) -> Stage {
    let op = match &stage.op {
        Op::Match(f) => match f.with_constants() {
            Some(known) => return matches::stage(known),
            None => return stage,
        },
        Op::Lookup(l) if !l.pipeline.is_empty() => Op::Lookup(Arc::new(Lookup {
            pipeline: l.pipeline.optimized_by(rules),
            ..Lookup::clone(l)
        })),
        Op::UnionWith(u) if !u.pipeline.is_empty() => Op::UnionWith(Arc::new(UnionWith {
            from: u.from.clone(),
            pipeline: u.pipeline.optimized_by(rules),
        })),
        Op::Facet(f) => {
            let parts = f.parts.iter();
            let parts = parts.map(|(name, p)| (name.clone(), p.optimized_by(rules)));
            Op::Facet(Arc::new(Facet {
                parts: parts.collect(),
                numbered: f.numbered,
            }))
        }
        _ => return stage,
    };
    stage.op = op;
    stage
}
