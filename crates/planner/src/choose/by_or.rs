//! Disjunctions: the union of the scans of their branches.
//!
//! The other clauses of a conjunction are multiplied into the branches of one of its disjunctions,
//! where they may narrow the scans. Other disjunctions are multiplied in once: a third one stays
//! with the documents that come out. So does everything where the copies would be too many
//! ([`PlanningWork`](super::work::Work)). Then planning is linear in the filter.

use super::work::size;
use super::{Candidate, DEFAULT_DOCS, Planner, bits};
use crate::plan::{Access, Branch, IndexAccess};
use crate::predicate::{clauses, collect};
use query::filter::{Filter, Node};
use std::sync::Arc;

/// The most disjunctions of one conjunction that a plan is tried for (as MongoDB's
/// `internalQueryEnumerationMaxOrSolutions`).
const MAX_DISJUNCTIONS: usize = 10;
/// The steps that planning a disjunction inside a branch of another takes, for each node of it.
const WORK_PER_COPY: usize = 8;

impl Planner<'_> {
    /// A disjunction whose every branch has bounds: the union of their scans, and their merge where
    /// that gives the order.
    pub(super) fn by_or(&self, root: &Node) -> Vec<Candidate> {
        let all = clauses(root);
        let mut best: Vec<Candidate> = Vec::new();
        let mut tried = 0;
        for (i, n) in all.iter().enumerate() {
            let expressions;
            let branches = match n {
                Node::Or(branches) => branches,
                Node::Expr(e) => match e.alternatives() {
                    Some(each) => {
                        let each = each.into_iter().map(|e| Node::Expr(Arc::new(e)));
                        expressions = each.collect::<Vec<_>>();
                        &expressions
                    }
                    None => continue,
                },
                _ => continue,
            };
            if self.work.is_stopped()
                || tried == MAX_DISJUNCTIONS
                || tried > 0 && !self.work.allows(size(root))
            {
                break;
            }
            tried += 1;
            if !self.work.pass(all.len() + branches.len()) {
                break;
            }
            let others = all.iter().enumerate().filter(|(j, _)| *j != i);
            let (kept, others) = self.divided(others.map(|(_, n)| n), branches.len());
            let mut ways = self.union_of(branches, &others, kept).unwrap_or_default();
            if let Some(c) = ways.first()
                && best.first().is_none_or(|b| c.keys < b.keys)
            {
                let narrowing = bits([i].into_iter());
                ways.iter_mut().for_each(|c| c.narrowing = narrowing);
                best = ways;
            }
        }
        best
    }

    /// The other clauses: those that are tested on what comes out of the union, and those that go
    /// into each of its branches.
    fn divided<'n>(
        &self,
        others: impl Iterator<Item = &'n Node>,
        branches: usize,
    ) -> (Vec<Node>, Vec<Node>) {
        let others: Vec<&Node> = others.collect();
        let simple = |n: &&Node| !is_disjunction(n);
        let weight = |n: &&Node| size(n);
        let all: usize = others.iter().map(weight).sum();
        let of_simple: usize = others.iter().filter(|n| simple(n)).map(weight).sum();
        let multiplied = all.saturating_mul(branches).saturating_mul(WORK_PER_COPY);
        let all_fit = !self.multiplied && self.work.allows(multiplied);
        let simple_fit = self.work.allows(of_simple.saturating_mul(branches));
        // A random condition is evaluated once for a document, not once for each branch that comes to
        // it.
        others.into_iter().cloned().partition(|n| {
            let fits = if simple(&n) { simple_fit } else { all_fit };
            // Only an index can tell what a search matches.
            n.varies() || !fits && n.text().is_none()
        })
    }

    fn union_of(
        &self,
        branches: &[Node],
        others: &[Node],
        residual: Vec<Node>,
    ) -> Option<Vec<Candidate>> {
        if branches.iter().any(Node::varies) {
            return None;
        }
        let unsorted = Planner {
            sort: None,
            multiplied: self.multiplied || others.iter().any(is_disjunction),
            ..*self
        };
        let copied: usize = others.iter().map(size).sum();
        let (mut parts, mut merge, mut keys) = (Vec::new(), Vec::new(), 0.0);
        for b in branches {
            self.work.step(size(b) + copied);
            if self.work.is_stopped() {
                return None;
            }
            let mut both = vec![b.clone()];
            both.extend(others.iter().cloned());
            let root = Node::and(both);
            if matches!(root, Node::Const(false)) {
                continue;
            }
            let c = unsorted.best(&root)?;
            keys += c.keys;
            let in_order = self.sort.and_then(|_| self.in_order(&root));
            let whole = Filter::from_node(root);
            if let Some((access, residual)) = in_order {
                merge.push(Branch {
                    access,
                    residual,
                    whole: Some(whole.clone()),
                });
            }
            if !matches!(c.access, Access::Eof) {
                parts.push(Branch {
                    access: c.access,
                    residual: c.residual,
                    whole: Some(whole),
                });
            }
        }
        let make = |access, sorted| Candidate {
            residual: Filter::from_node(Node::and(residual.clone())),
            keys: f64::max(keys, 1.0),
            fetched: 1.0,
            sorted,
            known: false,
            counted: false,
            ..Candidate::of(access)
        };
        if parts.is_empty() {
            return Some(vec![make(Access::Eof, true)]);
        }
        let mut ways = vec![make(Access::Or(parts.into()), self.sort.is_none())];
        if let Some(s) = self.sort
            && merge.len() == branches.len()
        {
            ways.push(make(Access::Merge(merge.into(), s.clone()), true));
        }
        Some(ways)
    }

    /// One index scan with bounds that gives the order, for a branch.
    fn in_order(&self, root: &Node) -> Option<(Arc<IndexAccess>, Filter)> {
        let preds = collect(clauses(root), self.vars);
        self.req
            .indexes
            .iter()
            .filter(|i| {
                self.only.is_none() && i.key.wildcard().is_none() && self.usable(i, root, &preds)
            })
            .filter_map(|i| self.by_index(i, root, &preds, false))
            .filter(|c| c.sorted && c.keys < DEFAULT_DOCS)
            .min_by(|a, b| a.keys.total_cmp(&b.keys))
            .and_then(|c| match c.access {
                Access::Index(a) => Some((a, c.residual)),
                _ => None,
            })
    }
}

/// Whether it has branches that are planned one by one.
fn is_disjunction(node: &Node) -> bool {
    match node {
        Node::Or(_) => true,
        Node::Expr(e) => e.has_alternatives(),
        _ => false,
    }
}
