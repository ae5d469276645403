//! What candidates cost, and the cheapest of them.
//!
//! Costs are counted in reads of one index key. The store is asked about sizes only where there is
//! a choice that is not plain: a candidate whose entries are among those of another's is the better
//! one ([`Planner::part_wider`]), and nothing is better than a unique index that is given whole.
//!
//! Without a limit a scan goes to its end, and its cost is known when its entries are counted. With
//! one it ends where enough documents have matched. Where the documents decide, how soon that is
//! lies between two ends: all of the entries match, or only the last ones do.
//!
//! Invariant: which of several indexes was made first changes nothing: what costs the same is told
//! apart by the fields that are bound, then by the index's own fields, then by its name.

use super::{Candidate, Planner};
use crate::plan::{Access, Bounds, Cost, IndexAccess, IndexInfo};
use query::index_keys::{FieldKind, Multikey};
use std::cmp::Ordering;

const FETCH: f64 = 4.0;
const SCAN: f64 = 1.0;
const SORT: f64 = 1.0;
/// The share of what the most selective candidate gives that is thought to match.
const MATCHING: f64 = 0.5;
/// The most candidates whose entries are counted: those that narrow most.
const MOST_COUNTED: usize = 16;
/// The steps of planning that counting the entries of a candidate stands for.
const STEPS_OF_COUNT: usize = 16;
/// Up to this many results a sort reads few documents, if the index has the sort fields (`top_k` of the
/// executor).
const MOST_NARROW: u64 = 8 << 10;

impl Candidate {
    pub(super) fn of(access: Access) -> Candidate {
        Candidate {
            access,
            ..Candidate::nothing()
        }
    }

    /// What it reads is among the results, whatever the documents hold.
    pub(super) fn decides(&self) -> bool {
        self.residual.is_trivial() && !matches!(self.access, Access::Or(_) | Access::Merge(..))
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
        match self.plain(&mut all, &mut Vec::new()) {
            Some(one) => one,
            None => self.ranked(all).into_iter().next().map(|(c, _)| c),
        }
    }

    /// The candidate that is the best whatever the sizes are; `None`: they have to be known. What reads more than another goes
    /// to `wider`.
    pub(super) fn plain(
        &self,
        all: &mut Vec<Candidate>,
        wider: &mut Vec<Candidate>,
    ) -> Option<Option<Candidate>> {
        if all.len() > 1 {
            self.part_wider(all, wider);
        }
        if all.len() <= 1 {
            return Some(all.pop());
        }
        // Nothing that needs counting is better than at most one document.
        let one = all.iter().position(|c| c.known && c.keys <= 1.0)?;
        Some(Some(all.swap_remove(one)))
    }

    /// The candidates with their costs, the cheapest first.
    pub(super) fn ranked(&self, mut all: Vec<Candidate>) -> Vec<(Candidate, Cost)> {
        self.estimate(&mut all);
        let rows = self.rows(&all);
        let cost = |c: Candidate| {
            let cost = self.cost(&c, rows);
            (c, cost)
        };
        let mut all: Vec<(Candidate, Cost)> = all.into_iter().map(cost).collect();
        all.sort_by(|(a, x), (b, y)| {
            let by_cost = x.likely.total_cmp(&y.likely);
            by_cost.then_with(|| self.by_form(a, b))
        });
        all
    }

    /// How many documents match: no more than the most selective candidate gives, and just as many
    /// as one gives that decides all.
    fn rows(&self, all: &[Candidate]) -> f64 {
        let given = |c: &Candidate| c.keys * c.fetched;
        let least = |some: &mut dyn Iterator<Item = f64>| some.fold(f64::MAX, f64::min);
        let decided = least(&mut all.iter().filter(|c| c.decides()).map(given));
        let most = least(&mut all.iter().map(given));
        decided.min(most * MATCHING)
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

    /// Parts from the rest the candidates that read what another reads, and more.
    fn part_wider(&self, all: &mut Vec<Candidate>, wider: &mut Vec<Candidate>) {
        let mut i = 0;
        while i < all.len() {
            let is_wider = (0..all.len()).any(|j| {
                let (Some(a), Some(b)) = (all.get(j), all.get(i)) else {
                    return false;
                };
                j != i
                    && self.within(a, b)
                    && (!self.within(b, a) || self.by_form(a, b).then(j.cmp(&i)).is_lt())
            });
            if is_wider {
                wider.push(all.remove(i));
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

    fn cost(&self, c: &Candidate, rows: f64) -> Cost {
        let given = c.keys * c.fetched;
        let read = |fetched: f64| match &c.access {
            Access::Records { .. } => c.keys * SCAN,
            _ if c.covered => c.keys,
            _ => c.keys + fetched * FETCH,
        };
        // An estimate may be off by a factor of two.
        let doubt = if c.known || c.counted { 1.0 } else { 2.0 };
        let same = |cost: f64| Cost {
            low: cost / doubt,
            likely: cost,
            high: cost * doubt,
        };
        let limit = self.req.limit.filter(|l| *l > 0);
        if self.sort.is_some() && !c.sorted {
            let all = read(given) + given * SORT;
            return match limit.filter(|l| *l <= MOST_NARROW && self.tells_order(c)) {
                Some(l) => Cost {
                    low: (read(given.min(l as f64)) + given * SORT) / doubt,
                    ..same(all)
                },
                None => same(all),
            };
        }
        let all = read(given);
        let Some(limit) = limit else {
            return same(all);
        };
        let share = |of: f64| all * (limit as f64 / of.max(1.0)).min(1.0);
        Cost {
            low: share(given) / doubt,
            likely: share(if c.decides() { given } else { rows }),
            high: if c.decides() { share(given) } else { all } * doubt,
        }
    }

    /// Whether the entries have the sort fields first.
    fn tells_order(&self, c: &Candidate) -> bool {
        let (Some(a), Some(info)) = (c.index(), self.info(c)) else {
            return false;
        };
        let first = self.sort.and_then(|s| s.fields.first());
        let mut fields = info.key.fields.iter().enumerate();
        !c.covered
            && !a.dedup
            && first.is_some_and(|s| {
                fields.any(|(i, f)| {
                    f.path == s.path
                        && f.kind == FieldKind::Ordered
                        && !Multikey(info.multikey).field(i)
                })
            })
    }

    /// Replaces rules of thumb by counts.
    fn estimate(&self, all: &mut [Candidate]) {
        let Some(estimate) = self.req.estimate else {
            return;
        };
        let mut asked: Vec<usize> = (0..all.len()).collect();
        asked.retain(|i| all.get(*i).is_some_and(|c| !c.known));
        let narrowing = |i: &usize| all.get(*i).map_or(0, |c| c.narrowing.count_ones());
        asked.sort_by_key(|i| std::cmp::Reverse(narrowing(i)));
        asked.truncate(MOST_COUNTED);
        self.work.step(asked.len() * STEPS_OF_COUNT);
        let accesses: Vec<&Access> = asked
            .iter()
            .filter_map(|i| all.get(*i).map(|c| &c.access))
            .collect();
        for (i, reads) in asked.iter().zip(estimate(&accesses)) {
            let Some(c) = all.get_mut(*i) else { continue };
            c.keys = reads.keys.max(reads.given).max(1.0);
            c.fetched = reads.given / c.keys;
            c.counted = reads.exact;
        }
    }
}
