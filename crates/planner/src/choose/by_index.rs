//! The way to a query's documents by one index: what its bounds decide, what its keys can be asked,
//! and whether it gives the order.
//!
//! Invariant: a clause is left out of the residual filter only where the bounds, the keys' tests or
//! what the index holds decide it for every document.

use super::{
    Candidate, Chosen, DEFAULT_DOCS, IndexRanges, MAX_MERGED, Planner, bits, by_text,
    decided_by_key, ranges, rest, share,
};
use crate::implied::implies;
use crate::interval::{Interval, bounded};
use crate::plan::{Access, Bounds, Branch, IndexAccess, IndexInfo};
use crate::predicate::{Predicate, clauses};
use crate::wildcard;
use query::collation::Collation;
use query::filter::{Filter, Node, Test};
use query::index_keys::{KeyField, Multikey};
use query::path::FieldPath;
use query::sort::SortPattern;
use std::sync::Arc;

impl Planner<'_> {
    pub(crate) fn by_index(
        &self,
        info: &IndexInfo,
        root: &Node,
        preds: &[Predicate<'_>],
        hinted: bool,
    ) -> Option<Candidate> {
        let all = clauses(root);
        let fields = &info.key.fields;
        let (chosen, spread) = self.bounds_and_ranges(info, all, preds)?;
        if chosen.intervals.iter().any(Vec::is_empty) {
            return Some(Candidate::nothing());
        }
        let mut done = decided_by_bounds(all, info, &chosen);
        let existing = decided_by_existence(info, preds, &mut done);
        let used = spread.used;
        let given = self
            .sort
            .and_then(|s| self.given_by(info, s, &chosen.intervals));
        let merged = match (given, self.sort) {
            (None, Some(s)) => self.merged_order(s, info, &chosen.intervals, used),
            _ => None,
        };
        if used == 0 && given.is_none() && !hinted && !existing {
            return None;
        }
        let set = |done: &[bool]| bits((0..done.len()).filter(|i| done[*i]));
        let by_bounds = set(&done);
        let key_filter = key_filter(info, preds, &chosen.intervals, &mut done);
        let narrowing = narrowing(&chosen) | set(&done) & !by_bounds;
        let known = info.unique && used == fields.len() && all_points(&chosen.intervals);
        let residual = rest(all, &done);
        if !self.work.pass(spread.ranges.len()) {
            return None;
        }
        let sorted = self.sort.is_none() || given.is_some() || merged.is_some();
        let one_path =
            (0..fields.len()).all(|i| wildcard::holds_one_path(fields, &chosen.intervals, i));
        let covered = merged.is_none() && one_path && self.covers(info, preds, &residual, sorted);
        let (keys, fetched) = estimates(info, &chosen.intervals, &spread, key_filter.len());
        let keys = match known {
            true => spread.ranges.len() as f64,
            false => keys,
        };
        let multikey = Multikey(info.multikey);
        let dedup =
            !one_path || multikey.any() && !self.one_key_each(fields, multikey, &chosen.intervals);
        let access = |spread: IndexRanges, reverse: bool, intervals| IndexAccess {
            index: info.id,
            bounds: Bounds::Ranges(spread.ranges),
            reverse,
            skip: spread.skip,
            distinct: None,
            key_filter: key_filter.clone(),
            dedup,
            intervals,
            wildcard: wildcard::path_of(info),
        };
        let (access, residual) = match (merged, self.sort) {
            (Some((parts, reverse)), Some(s)) => {
                let branch = |mut intervals: Vec<Vec<Interval>>| {
                    let spread = ranges(fields, &mut intervals);
                    Branch {
                        access: Arc::new(access(spread, reverse, intervals)),
                        residual: residual.clone(),
                        // A document has one key, which differs from those of the other parts.
                        whole: None,
                    }
                };
                let branches = parts.into_iter().map(branch).collect();
                (Access::Merge(branches, s.clone()), Filter::all())
            }
            _ => {
                let access = access(spread, given.unwrap_or(false), chosen.intervals);
                (Access::Index(Arc::new(access)), residual)
            }
        };
        Some(Candidate {
            access,
            residual,
            sorted,
            covered,
            id_bounds: Vec::new(),
            keys,
            fetched,
            narrowing,
            known,
            counted: false,
        })
    }

    /// The bounds of an index's fields, and the ranges of the entries inside them. `None`: the index
    /// does not serve, or planning is to end.
    fn bounds_and_ranges(
        &self,
        info: &IndexInfo,
        all: &[Node],
        preds: &[Predicate<'_>],
    ) -> Option<(Chosen, IndexRanges)> {
        let fields = &info.key.fields;
        self.work.step(preds.len() * fields.len());
        let text = (info.key.text()).and_then(|_| by_text::clause(all));
        let mut chosen = Chosen::of(preds, info, text);
        if let Some((_, matcher)) = text {
            self.keep_rarest(info, matcher, &mut chosen)?;
        }
        if !self.work.pass(preds.iter().map(|p| values(p.test)).sum()) {
            return None;
        }
        let spread = ranges(fields, &mut chosen.intervals);
        self.work
            .pass(spread.ranges.len())
            .then_some((chosen, spread))
    }

    /// Every array field is bound to a single value, so that a document comes once.
    fn one_key_each(
        &self,
        fields: &[KeyField],
        multikey: Multikey,
        intervals: &[Vec<Interval>],
    ) -> bool {
        (0..fields.len()).all(|i| {
            !multikey.field(i)
                || matches!(intervals.get(i).map(Vec::as_slice), Some([x]) if x.is_point())
        })
    }

    /// The order by merging scans, one for each combination of leading points: the intervals of
    /// each, and the direction.
    fn merged_order(
        &self,
        sort: &SortPattern,
        info: &IndexInfo,
        intervals: &[Vec<Interval>],
        used: usize,
    ) -> Option<(Vec<Vec<Vec<Interval>>>, bool)> {
        if info.multikey != 0 {
            return None;
        }
        let mut parts: Vec<Vec<Vec<Interval>>> = vec![intervals.to_vec()];
        for i in 0..used {
            if !intervals[i].iter().all(Interval::is_point)
                || parts.len() * intervals[i].len() > MAX_MERGED
            {
                break;
            }
            parts = parts
                .into_iter()
                .flat_map(|p| {
                    intervals[i].iter().map(move |x| {
                        let mut p = p.clone();
                        p[i] = vec![x.clone()];
                        p
                    })
                })
                .collect();
            // The last combination stands for all: they differ in values only.
            let reverse = self.given_by(info, sort, parts.first()?);
            if let Some(reverse) = reverse
                && parts.len() > 1
            {
                return Some((parts, reverse));
            }
        }
        None
    }
}

/// The clauses that went into bounds.
fn narrowing(chosen: &Chosen) -> u64 {
    let fields = chosen.exact.iter().zip(&chosen.intervals);
    let bounding = fields.filter(|(_, list)| bounded(list));
    bits(bounding.flat_map(|(clauses, _)| clauses.iter().map(|(i, _)| *i)))
}

/// A unique index has at most one entry for each combination: nulls too, as they are values to it.
fn all_points(intervals: &[Vec<Interval>]) -> bool {
    intervals.iter().flatten().all(Interval::is_point)
}

/// Which clauses hold of every document within the bounds, and of every document that a partial
/// index has.
fn decided_by_bounds(all: &[Node], info: &IndexInfo, chosen: &Chosen) -> Vec<bool> {
    let mut done = vec![false; all.len()];
    for (exact, list) in chosen.exact.iter().zip(&chosen.intervals) {
        if bounded(list) {
            for (clause, decided) in exact {
                done[*clause] |= *decided;
            }
        }
    }
    if let Some(partial) = &info.partial {
        for (n, d) in all.iter().zip(done.iter_mut()) {
            *d |= implies(partial.root(), n);
        }
    }
    done
}

/// A sparse index of one field holds just the documents that have it: whether a clause asks for
/// nothing else, which is then decided.
fn decided_by_existence(info: &IndexInfo, preds: &[Predicate<'_>], done: &mut [bool]) -> bool {
    let [field] = info.key.fields.as_slice() else {
        return false;
    };
    let mut any = false;
    if info.sparse && !field.path.has_index_part() {
        for p in preds.iter().filter(|p| *p.path == field.path) {
            if matches!(p.test, Test::Exists) && !p.negated && p.whole {
                done[p.clause] = true;
                any = true;
            }
        }
    }
    any
}

/// Tests that a key alone decides, by field, for clauses that are not decided yet.
pub(super) fn key_filter(
    info: &IndexInfo,
    preds: &[Predicate<'_>],
    intervals: &[Vec<Interval>],
    done: &mut [bool],
) -> Vec<(usize, Filter)> {
    let (fields, multikey) = (&info.key.fields, Multikey(info.multikey));
    let mut tests = Vec::new();
    for (i, f) in fields.iter().enumerate() {
        if multikey.field(i)
            || f.path.has_index_part()
            || !f.is_ordered()
            || !wildcard::holds_one_path(fields, intervals, i)
        {
            continue;
        }
        for p in preds.iter().filter(|p| *p.path == f.path && p.whole) {
            if done[p.clause] || !decided_by_key(p.test) {
                continue;
            }
            let Some(test) = test_of_key(p.test, info.key.collation()) else {
                continue;
            };
            done[p.clause] = true;
            let node = Node::Pred {
                path: FieldPath::empty(),
                test: test.clone(),
            };
            let node = if p.negated {
                Node::Not(Box::new(node))
            } else {
                node
            };
            tests.push((i, Filter::from_node(node)));
        }
    }
    tests
}

/// The test as it is made of a value in a key: keys of an index with a collation hold folded
/// strings.
fn test_of_key<'t>(test: &'t Test, collation: Option<&Collation>) -> Option<&'t Test> {
    match (test, collation) {
        (Test::Collated(c), Some(own)) if c.collation == *own => match &c.source {
            Test::In(l) if !l.regexes.is_empty() => None,
            _ => Some(&c.folded),
        },
        (_, Some(_)) => None,
        (t, None) => Some(t),
    }
}

/// How many keys are read, and the share of them whose documents are fetched, by rules of thumb.
fn estimates(
    info: &IndexInfo,
    intervals: &[Vec<Interval>],
    spread: &IndexRanges,
    key_tests: usize,
) -> (f64, f64) {
    let used = spread.used;
    let mut keys = DEFAULT_DOCS;
    for list in intervals.iter().take(used) {
        keys *= share(list);
    }
    if info.unique && used == info.key.fields.len() {
        keys = keys.min(spread.ranges.len() as f64);
    }
    let tests = intervals.iter().skip(used).filter(|l| bounded(l)).count() + key_tests;
    (keys.max(1.0), 0.3f64.powi(tests as i32))
}

/// What a test compares with, in values.
fn values(test: &Test) -> usize {
    match test {
        Test::In(list) => list.values.len() + list.regexes.len(),
        Test::Collated(c) => values(&c.folded),
        _ => 1,
    }
}
