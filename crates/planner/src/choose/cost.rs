//! What candidates cost, and the cheapest of them.
//!
//! Costs are counted in reads of one index key. The store is asked about sizes only where there is
//! a choice that is not plain: a candidate whose entries are among those of another's is the better
//! one ([`Planner::drop_wider`]), and nothing is better than a unique index that is given whole.
//!
//! Invariant: which of several indexes was made first changes nothing: what costs the same is told
//! apart by the fields that are bound, then by the index's own fields, then by its name.

use super::{Candidate, Planner};
use crate::ID_INDEX;
use crate::plan::{Access, Bounds, IndexAccess, IndexInfo};
use std::cmp::Ordering;

const FETCH: f64 = 4.0;
const SCAN: f64 = 1.0;
const SORT: f64 = 3.0;
/// Of the ranges of a candidate so many are looked at.
const ASKED_RANGES: usize = 16;

impl Candidate {
    pub(super) fn of(access: Access) -> Candidate {
        Candidate {
            access,
            ..Candidate::nothing()
        }
    }

    fn index(&self) -> Option<&IndexAccess> {
        match &self.access {
            Access::Index(a) => Some(a),
            _ => None,
        }
    }
}

impl Planner<'_> {
    /// The cheapest of some candidates.
    pub(super) fn cheapest(&self, mut all: Vec<Candidate>) -> Option<Candidate> {
        if all.len() > 1 {
            self.drop_wider(&mut all);
        }
        if all.len() <= 1 {
            return all.pop();
        }
        // Nothing that needs counting is better than at most one document.
        if let Some(i) = all.iter().position(|c| c.known && c.keys <= 1.0) {
            return Some(all.swap_remove(i));
        }
        self.estimate(&mut all);
        // No more rows come out than the most selective candidate reads.
        let rows = all.iter().map(|c| c.keys).fold(f64::MAX, f64::min);
        let costs: Vec<f64> = all.iter().map(|c| self.cost(c, rows)).collect();
        let order = |a: &usize, b: &usize| {
            let by_cost = costs.get(*a).zip(costs.get(*b));
            by_cost
                .map_or(Ordering::Equal, |(x, y)| x.total_cmp(y))
                .then_with(|| match (all.get(*a), all.get(*b)) {
                    (Some(x), Some(y)) => self.by_form(x, y),
                    _ => Ordering::Equal,
                })
        };
        let best = (0..all.len()).min_by(order)?;
        Some(all.swap_remove(best))
    }

    /// What comes first of two that cost the same.
    fn by_form(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let bound = |c: &Candidate| c.narrowing.count_ones();
        let name = |c: &Candidate| {
            let info = self.info(c);
            info.map_or((usize::MAX, ""), |i| (i.key.fields.len(), i.name.as_str()))
        };
        bound(b).cmp(&bound(a)).then_with(|| name(a).cmp(&name(b)))
    }

    fn info(&self, c: &Candidate) -> Option<&IndexInfo> {
        let index = c.index()?.index;
        self.req.indexes.iter().find(|i| i.id == index)
    }

    /// Leaves out candidates that read what another reads, and more.
    fn drop_wider(&self, all: &mut Vec<Candidate>) {
        let mut i = 0;
        while i < all.len() {
            let wider = (0..all.len()).any(|j| {
                let (Some(a), Some(b)) = (all.get(j), all.get(i)) else {
                    return false;
                };
                j != i
                    && self.within(a, b)
                    && (!self.within(b, a) || self.by_form(a, b).then(j.cmp(&i)).is_lt())
            });
            if wider {
                all.remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// Whether each entry that `a` reads stands for one that `b` reads, and `a` gives what `b`
    /// does: both bound the same leading fields, `a` perhaps more of them.
    fn within(&self, a: &Candidate, b: &Candidate) -> bool {
        let (Some(x), Some(y)) = (a.index(), b.index()) else {
            return false;
        };
        let (Some(of_a), Some(of_b)) = (self.info(a), self.info(b)) else {
            return false;
        };
        let (Bounds::Ranges(inner), Bounds::Ranges(outer)) = (&x.bounds, &y.bounds);
        let ([(low, high)], [(from, to)]) = (&inner[..], &outer[..]) else {
            return false;
        };
        if b.narrowing & !a.narrowing != 0 || b.sorted && !a.sorted || b.covered && !a.covered {
            return false;
        }
        let plain = |i: &IndexInfo| i.key.wildcard().is_none() && i.key.text().is_none();
        if !plain(of_a) || !plain(of_b) || of_a.multikey != 0 || of_b.partial.is_some() {
            return false;
        }
        if of_b.sparse && !of_a.sparse || !y.skip.is_empty() || !y.key_filter.is_empty() {
            return false;
        }
        let bound = y
            .intervals
            .iter()
            .take_while(|l| crate::interval::bounded(l));
        let bound = bound.count();
        let alike = of_a.key.fields.len() >= bound
            && of_a.key.collation() == of_b.key.collation()
            && (of_a.key.fields.iter().zip(&of_b.key.fields).take(bound))
                .all(|(f, g)| f.path == g.path && f.descending == g.descending && f.kind == g.kind);
        alike && low >= from && (to.is_empty() || !high.is_empty() && high <= to)
    }

    fn cost(&self, c: &Candidate, rows: f64) -> f64 {
        let read = match &c.access {
            Access::Records { .. } => c.keys * SCAN,
            _ if c.covered => c.keys,
            _ => c.keys + c.keys * c.fetched * FETCH,
        };
        let in_order = self.sort.is_none() || c.sorted;
        match self.req.limit {
            Some(limit) if in_order && limit > 0 => read * (limit as f64 / rows.max(1.0)).min(1.0),
            _ if in_order => read,
            _ => read + c.keys * c.fetched * SORT,
        }
    }

    /// Replaces rules of thumb by what the store tells about ranges.
    fn estimate(&self, all: &mut [Candidate]) {
        let Some(estimate) = self.req.estimate else {
            return;
        };
        for c in all.iter_mut().filter(|c| !c.known) {
            let entries = |a: &IndexAccess| {
                self.work.step(ASKED_RANGES);
                let Bounds::Ranges(ranges) = &a.bounds;
                let asked = ranges.len().min(ASKED_RANGES);
                let step = (ranges.len() / asked.max(1)).max(1);
                let some: u64 = ranges
                    .iter()
                    .step_by(step)
                    .take(asked)
                    .map(|(low, high)| estimate(a.index, low, high))
                    .sum();
                some as f64 * ranges.len() as f64 / asked.max(1) as f64
            };
            c.keys = match &c.access {
                Access::Index(a) => entries(a),
                Access::Merge(b, _) => b.iter().map(|b| entries(&b.access)).sum(),
                Access::Records { low, high, .. } => estimate(ID_INDEX, low, high) as f64,
                Access::Or(b) => b
                    .iter()
                    .map(|b| match &b.access {
                        Access::Index(a) => entries(a),
                        Access::Records { low, high, .. } => estimate(ID_INDEX, low, high) as f64,
                        Access::Ids(ids) => ids.len() as f64,
                        _ => 0.0,
                    })
                    .sum(),
                Access::Ids(_) | Access::Eof | Access::Near(_) => continue,
            }
            .max(1.0);
        }
    }
}
