//! The way to a query's documents by `$text`: there is one, through the collection's text index.
//!
//! Its bounds are equalities for all fields before the terms, and the terms. A document that has a
//! phrase has each of its words, so of a phrase's words the rarest alone is looked for.
//!
//! Invariant: whatever matches is in the bounds, but for what the index has other words of: a phrase
//! whose first or last word is cut short, or is in another language than the search.

use super::{Candidate, Chosen, Planner, ranges};
use crate::interval::Interval;
use crate::plan::{Access, Hint, IndexInfo, Plan, PlanRequest};
use crate::predicate::{clauses, collect};
use bson::Value;
use errors::{Result, bail};
use query::filter::Node;
use query::index_keys::FieldKind as KeyKind;
use std::collections::BTreeSet;
use text::{Matcher, term_key};

/// Of so many terms of phrases the rarest is looked for.
const MOST_COUNTED: usize = 64;

/// Refuses what MongoDB allows no `$text` beside.
pub(super) fn check(req: &PlanRequest<'_>) -> Result<()> {
    if req.filter.near().is_some() {
        bail!(BadValue, "text and geoNear not allowed in same query");
    }
    match req.hint {
        None | Some(Hint::Among(_)) => Ok(()),
        Some(Hint::Natural { .. }) => bail!(
            BadValue,
            "text expression not allowed with $natural sort order or hint"
        ),
        Some(_) => bail!(BadValue, "text and hint not allowed in same query"),
    }
}

/// The clause that is `$text`, bound to its index.
pub(super) fn clause(all: &[Node]) -> Option<(usize, &Matcher)> {
    all.iter().enumerate().find_map(|(i, n)| match n {
        Node::Text(t) => Some((i, t.matcher.as_ref()?)),
        _ => None,
    })
}

/// The terms that are looked for, and whether having one of them is all that is asked.
pub(super) fn bounds((at, m): (usize, &Matcher)) -> (Vec<Interval>, Vec<(usize, bool)>) {
    let phrases: BTreeSet<&String> = m.parsed.phrase_terms.iter().flatten().collect();
    let terms = match phrases.is_empty() {
        true => m.parsed.bounds.iter().collect(),
        false => phrases,
    };
    let key = |t: &String| Value::from(&*term_key(t, m.index.version));
    let mut keys: Vec<Value> = terms.into_iter().map(key).collect();
    keys.sort_by(|a, b| bson::order::compare(a.as_val(), b.as_val()));
    let points = keys.into_iter().map(Interval::point).collect();
    (points, vec![(at, m.is_by_terms())])
}

impl Planner<'_> {
    pub(super) fn plan_text(&self, root: &Node) -> Result<Plan> {
        let chosen = self.best(root);
        let Some(c) = chosen.filter(|c| !c.access.is_scan()) else {
            let why = match clauses(root).iter().any(|n| matches!(n, Node::Text(_))) {
                true => {
                    "failed to use text index to satisfy $text query (if text index is compound, are equality \
                     predicates given for all prefix fields?)"
                }
                false => {
                    "Failed to produce a solution for TEXT under OR - other non-TEXT clauses under OR have to be \
                     indexed as well."
                }
            };
            bail!(
                NoQueryExecutionPlans,
                "error processing query: {} planner returned error :: caused by :: {why}",
                crate::query_text::of(self.req)
            );
        };
        Ok(self.finish(c))
    }

    /// A candidate for a filter that has a `$text` somewhere.
    pub(super) fn by_text(&self, root: &Node) -> Option<Candidate> {
        let all = clauses(root);
        if !all.iter().any(|n| matches!(n, Node::Text(_))) {
            return self.cheapest(self.by_or(root));
        }
        let info = self.req.indexes.iter().find(|i| i.key.text().is_some())?;
        let preds = collect(all, self.vars);
        match self.usable(info, root, &preds) {
            true => self.by_index(info, root, &preds, true),
            false => None,
        }
    }

    /// Leaves of a phrase's terms the one that is in the fewest documents. `None`: the fields before the terms are not bound.
    pub(super) fn keep_rarest(
        &self,
        info: &IndexInfo,
        m: &Matcher,
        chosen: &mut Chosen,
    ) -> Option<()> {
        let fields = &info.key.fields;
        let at = fields.iter().position(|f| f.kind == KeyKind::Term)?;
        let is_point = |l: &Vec<Interval>| matches!(&l[..], [one] if one.is_point());
        if !chosen.intervals.iter().take(at).all(is_point) {
            return None;
        }
        let several = chosen.intervals.get(at).is_some_and(|l| l.len() > 1);
        if several && m.parsed.phrase_terms.iter().any(|p| !p.is_empty()) {
            // Each range is counted by a scan of its own.
            if let Some(list) = chosen.intervals.get_mut(at) {
                list.truncate(MOST_COUNTED);
            }
            let ranges = ranges(fields, &mut chosen.intervals.clone()).ranges;
            let rarest = self.req.fewest.map_or(0, |f| f(info.id, &ranges));
            let list = chosen.intervals.get_mut(at)?;
            let one = list.get(rarest).or(list.first())?.clone();
            *list = vec![one];
        }
        Some(())
    }
}

/// Whether an access reads a text index.
pub(crate) fn reads_terms(access: &Access, indexes: &[IndexInfo]) -> bool {
    match access {
        Access::Index(a) => (indexes.iter()).any(|i| i.id == a.index && i.key.text().is_some()),
        _ => false,
    }
}
