//! Candidates and the choice among them.
//!
//! A query that an index can answer is not answered by a collection scan, as in MongoDB. Among indexes
//! the least cost wins: keys read, documents fetched, rows sorted, and how much of that a limit saves
//! when the index gives the order. Sizes are counted by the executor when there is a choice to make,
//! else they come from rules of thumb about operators
//! ([decision](../../../../docs/decisions/2026-11-27-choice-of-index.md)).

mod by_index;
mod by_or;
mod by_text;
mod chosen;
mod cost;
mod near;
mod work;

pub(crate) use by_text::reads_terms;
use chosen::Chosen;
use work::PlanningWork;
pub(crate) use work::size;

use crate::bounds::{self, FieldKind};
use crate::cells;
use crate::hint::{self, Hinted};
use crate::implied::implies;
use crate::interval::{Interval, bounded, intersect};
use crate::order;
use crate::plan::{
    Access, Bounds, Choice, Cost, Estimated, IndexAccess, IndexInfo, Plan, PlanRequest, Reads,
    id_lookup,
};
use crate::predicate::{Predicate, clauses, collect};
use crate::skip::SkipBounds;
use crate::wildcard;
use bson::{Doc, Val, key, tag};
use errors::{Result, bail, err};
use query::collation::Collation;
use query::expr::Vars;
use query::filter::{Filter, Node, Test};
use query::index_keys::{FieldKind as KeyKind, KeyField, Multikey};
use query::path::FieldPath;
use query::sort::SortPattern;
use std::sync::Arc;

/// The most ranges that several fields' points multiply to.
const MAX_RANGES: usize = 4096;
/// The most scans that are merged to give an order.
const MAX_MERGED: usize = 200;
/// What the key of a value takes beside the value's bytes, mostly.
const KEY_OVERHEAD_BYTES: usize = 8;
/// The assumed number of documents of a collection of unknown size.
const DEFAULT_DOCS: f64 = 10_000.0;

/// Another plan is tried where it may cost so many times less than the one chosen,
const WORTH_TRYING: f64 = 1.5;
/// and more than so many reads less.
const FREE_READS: f64 = 30.0;
/// Without a limit another runs beside a plan whose entries were too many to count, where it may cost up to so many times as
/// much as far as is known. Others join when the plan has read more than was thought.
const NEAR: f64 = 4.0;

/// So many plans that read more in all may join one that a limit ends.
const MOST_WIDER: usize = 2;

/// One way to answer the query.
pub(crate) struct Candidate {
    pub access: Access,
    pub residual: Filter,
    /// Gives the order asked for.
    pub sorted: bool,
    pub covered: bool,
    id_bounds: Vec<Interval>,
    /// Index keys read, and the share of them that is fetched.
    keys: f64,
    fetched: f64,
    /// Bit i: clause i of the filter narrows the reads. Later clauses have no bit.
    narrowing: u64,
    /// `keys` is no guess: no more can be read.
    known: bool,
    /// `keys` and `fetched` were counted.
    counted: bool,
}

pub(crate) struct Planner<'p> {
    pub req: &'p PlanRequest<'p>,
    pub vars: &'p Vars,
    pub sort: Option<&'p SortPattern>,
    /// Only this index may be used.
    only: Option<&'p IndexInfo>,
    work: &'p PlanningWork<'p>,
    /// The filter is a branch of a disjunction, with other disjunctions of the query multiplied in.
    multiplied: bool,
}

/// Chooses a plan. Fails when a hint or `min` and `max` do not fit.
pub fn plan(req: &PlanRequest<'_>) -> Result<Plan> {
    choose(req).map(|c| c.plan)
}

/// As [`plan`], with the plans that were not chosen.
pub fn choose(req: &PlanRequest<'_>) -> Result<Choice> {
    let work = PlanningWork::new(req);
    let choice = choose_by(req, &work);
    work.finish()?;
    choice
}

/// As [`plan`], with the number of steps that planning took.
#[cfg(test)]
pub(crate) fn plan_counted(req: &PlanRequest<'_>) -> Result<(Plan, u64)> {
    let work = PlanningWork::new(req);
    let choice = choose_by(req, &work)?;
    Ok((choice.plan, work.done()))
}

fn choose_by(req: &PlanRequest<'_>, work: &PlanningWork<'_>) -> Result<Choice> {
    let limits = req.min.is_some() || req.max.is_some();
    if req.hint.is_none()
        && !limits
        && let Some(id) = id_lookup(req.filter)
    {
        let id = id.to_value();
        let mut plan = Plan::new(Access::Ids(vec![id.clone()]), Filter::all());
        plan.id_bounds = vec![Interval::point(id)];
        return Ok(Choice::only(plan));
    }
    let text = req.filter.text().is_some();
    if text {
        by_text::check(req)?;
    }
    let hinted = hint::resolve(req)?;
    if let Some((path, near)) = req.filter.near() {
        return near::plan(req, path, near, &hinted, work).map(Choice::only);
    }
    let sort = req.sort.filter(|s| !s.is_empty());
    let none = Vars::default();
    let p = Planner {
        req,
        vars: req.vars.unwrap_or(&none),
        sort,
        only: None,
        work,
        multiplied: false,
    };
    if limits {
        return p.between_limits(hinted).map(Choice::only);
    }
    if req.filter.is_never() {
        return Ok(Choice::only(Plan::nothing()));
    }
    let root = req.filter.root();
    if text {
        return p.plan_text(root).map(Choice::only);
    }
    if let Some(d) = &req.distinct
        && let Some(c) = p.by_distinct(d, &hinted)
    {
        return Ok(Choice::only(p.finish(c)));
    }
    match p.by_hint(hinted, root)? {
        Some(c) => Ok(Choice::only(p.finish(c))),
        None => Ok(p.choice(root)),
    }
}

impl<'p> Planner<'p> {
    fn by_hint(&self, hinted: Hinted<'p>, root: &Node) -> Result<Option<Candidate>> {
        Ok(match hinted {
            Hinted::Natural { reverse } => Some(self.scan(root, reverse, false)),
            Hinted::Id => Some(
                self.by_id(root, &collect(clauses(root), self.vars), true)
                    .unwrap_or_else(|| self.scan(root, self.scan_reversed(), true)),
            ),
            Hinted::Index(info) if info.key.wildcard().is_some() => {
                let only = Planner {
                    only: Some(info),
                    ..*self
                };
                let best = only.best(root).or_else(|| only.by_existence(info, root));
                Some(best.ok_or_else(|| {
                    err!(
                        NoQueryExecutionPlans,
                        "error processing query: {} planner returned error :: caused by :: No query solutions",
                        crate::query_text::of(self.req)
                    )
                })?)
            }
            // What a partial or sparse index leaves out stays out: the client asked for it.
            Hinted::Index(info) => {
                self.by_index(info, root, &collect(clauses(root), self.vars), true)
            }
            Hinted::Nothing => None,
        })
    }

    fn finish(&self, c: Candidate) -> Plan {
        Plan {
            access: c.access,
            residual: c.residual,
            sort: if c.sorted { None } else { self.sort.cloned() },
            covered: c.covered,
            text: self.req.filter.text().cloned(),
            id_bounds: c.id_bounds,
        }
    }

    /// By what has to be there for the filter to hold, where a wildcard index cannot be asked for
    /// the values.
    fn by_existence(&self, info: &IndexInfo, root: &Node) -> Option<Candidate> {
        let mut preds = collect(clauses(root), self.vars);
        let there: Vec<Predicate<'_>> = preds.iter().filter_map(Predicate::existence).collect();
        preds.extend(there);
        if !self.usable(info, root, &preds) {
            return None;
        }
        let each = wildcard::expansions(info, &preds);
        let each = each.iter();
        each.filter_map(|i| self.by_index(i, root, &preds, false))
            .min_by(|a, b| a.keys.total_cmp(&b.keys))
    }

    /// The cheapest plan, and the others.
    fn choice(&self, root: &Node) -> Choice {
        let mut all = self.candidates(root);
        let mut wider = Vec::new();
        if let Some(plain) = self.plain(&mut all, &mut wider) {
            let best = plain.unwrap_or_else(|| self.scan(root, self.scan_reversed(), true));
            return Choice {
                wider: self.joining(&best, wider),
                ..Choice::only(self.finish(best))
            };
        }
        let mut ranked = self.ranked(all).into_iter();
        let Some((best, cost)) = ranked.next() else {
            return Choice::only(self.finish(self.scan(root, self.scan_reversed(), true)));
        };
        // A limit ends no scan that has to be sorted.
        let sorts = self.sort.is_some() && !best.sorted;
        let limited = self.req.limit.is_some_and(|l| l > 0) && !sorts;
        let is_watched = !limited && !best.reads().exact;
        let other = |(c, of): (Candidate, Cost)| Estimated {
            rival: match is_watched {
                true => of.low < cost.high * NEAR,
                false => limited && of.low * WORTH_TRYING + FREE_READS < cost.high,
            },
            reads: c.reads(),
            cost: of,
            plan: self.finish(c),
        };
        Choice {
            estimated: Some((best.reads(), cost)),
            others: ranked.map(other).collect(),
            wider: self.joining(&best, wider),
            watch: is_watched.then(|| cost.most_reads()),
            plan: self.finish(best),
            counted: 0,
            nanos: 0,
        }
    }

    /// Those of the wider candidates that may come to their end before `best`: a limit ends them, and how soon only the
    /// documents tell.
    fn joining(&self, best: &Candidate, wider: Vec<Candidate>) -> Vec<Plan> {
        let limited = self.req.limit.is_some_and(|l| l > 0);
        if !limited || best.decides() || self.sort.is_some() && !best.sorted {
            return Vec::new();
        }
        let ordered = wider
            .into_iter()
            .filter(|c| self.sort.is_none() || c.sorted);
        ordered.take(MOST_WIDER).map(|c| self.finish(c)).collect()
    }

    /// The cheapest candidate that uses bounds or gives the order.
    fn best(&self, root: &Node) -> Option<Candidate> {
        if root.text().is_some() {
            return self.by_text(root);
        }
        self.cheapest(self.candidates(root))
    }

    /// The candidates that use bounds or give the order.
    fn candidates(&self, root: &Node) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = Vec::with_capacity(2);
        let preds = collect(clauses(root), self.vars);
        let indexes = match self.only {
            Some(info) => std::slice::from_ref(info),
            None => {
                all.extend(self.by_id(root, &preds, false));
                self.req.indexes
            }
        };
        self.work.step(preds.len() + indexes.len());
        for info in indexes {
            if !self.work.pass(preds.len()) {
                break;
            }
            if info.key.wildcard().is_some() {
                if self.usable(info, root, &preds) {
                    let each = wildcard::expansions(info, &preds);
                    let each = each.iter();
                    all.extend(each.filter_map(|i| self.by_index(i, root, &preds, false)));
                }
                continue;
            }
            // Most indexes of a collection have nothing to do with a query: they must cost nothing.
            let concerned = |f: &KeyField| preds.iter().any(|p| *p.path == f.path);
            if self.sort.is_none() && !info.key.fields.first().is_some_and(concerned) {
                continue;
            }
            if self.usable(info, root, &preds) {
                all.extend(self.by_index(info, root, &preds, false));
            }
        }
        let goes_on = !self.work.is_stopped() && self.work.pass(preds.len());
        if goes_on && (all.is_empty() || !matches!(root, Node::Pred { .. })) {
            all.extend(self.by_or(root));
        }
        all
    }

    /// The order that a collection scan gives, if any: that of `_id`.
    fn id_order(&self) -> Option<bool> {
        if !self.req.clustered {
            return None;
        }
        let fields = [KeyField::new(FieldPath::new("_id"), false)];
        order::given_by(self.sort?, &fields, Multikey(0), &[], None, true)
    }

    fn scan_reversed(&self) -> bool {
        self.id_order().unwrap_or(false)
    }

    /// A collection scan. `free`: its direction is ours to choose, so that it may give an order.
    fn scan(&self, root: &Node, reverse: bool, free: bool) -> Candidate {
        let is_whole = std::ptr::eq(root, self.req.filter.root());
        Candidate {
            access: Access::scan(reverse),
            residual: match is_whole {
                true => self.req.filter.clone(),
                false => Filter::from_node(root.clone()),
            },
            sorted: self.sort.is_none() || (free && self.id_order().is_some()),
            covered: false,
            id_bounds: Vec::new(),
            keys: DEFAULT_DOCS,
            fetched: 1.0,
            narrowing: 0,
            known: false,
            counted: false,
        }
    }

    /// By `_id`: the records themselves are in its order.
    fn by_id(&self, root: &Node, preds: &[Predicate<'_>], hinted: bool) -> Option<Candidate> {
        let about_id = preds.iter().any(|p| p.path.is_id());
        if !self.req.clustered || (!about_id && !hinted && self.sort.is_none()) {
            return None;
        }
        let all = clauses(root);
        let mut done = vec![false; all.len()];
        let ordered = self.id_order();
        let list = match id_bounds(preds, &mut done) {
            Some(l) if bounded(&l) => l,
            _ if hinted => vec![Interval::all()],
            // Nothing to say about `_id` but its order.
            _ => {
                ordered?;
                vec![Interval::all()]
            }
        };
        if list.is_empty() {
            return Some(Candidate {
                id_bounds: list,
                ..Candidate::nothing()
            });
        }
        let narrowing = bits(preds.iter().filter(|p| p.path.is_id()).map(|p| p.clause));
        let reverse = ordered.unwrap_or(false);
        let sorted = self.sort.is_none() || ordered.is_some();
        if list.iter().all(Interval::is_point) {
            let mut ids: Vec<_> = list.iter().map(|i| i.low.clone()).collect();
            if reverse {
                ids.reverse();
            }
            return Some(Candidate {
                keys: ids.len() as f64,
                access: Access::Ids(ids),
                residual: rest(all, &done),
                sorted,
                covered: false,
                id_bounds: list,
                fetched: 1.0,
                narrowing,
                known: true,
                counted: true,
            });
        }
        // One range over all intervals; what lies between them is tested.
        let hull = hull(&list);
        if list.len() > 1 {
            done.iter_mut().for_each(|d| *d = false);
        }
        let (low, high) = if hull.is_all() {
            (Vec::new(), Vec::new())
        } else {
            hull.range(&[], false)
        };
        Some(Candidate {
            keys: DEFAULT_DOCS * share(&list),
            access: Access::Records { low, high, reverse },
            residual: rest(all, &done),
            sorted,
            covered: false,
            id_bounds: if hull.is_all() { Vec::new() } else { list },
            fetched: 1.0,
            narrowing,
            known: false,
            counted: false,
        })
    }

    /// Ready, visible, and holding every document that can match.
    pub(crate) fn usable(&self, info: &IndexInfo, root: &Node, preds: &[Predicate<'_>]) -> bool {
        if !info.ready || info.hidden || !cells::serves(info, preds) {
            return false;
        }
        // It has nothing to tell of documents without terms.
        if info.key.text().is_some() && root.text().is_none() {
            return false;
        }
        if let Some(partial) = &info.partial
            && !implies(root, partial.root())
        {
            return false;
        }
        if !info.sparse {
            return true;
        }
        // What `$expr` sees as one array may be elements that have no entry.
        let multikey = Multikey(info.multikey);
        let held = |p: &Predicate<'_>| {
            let fields = info.key.fields.iter().enumerate();
            fields
                .filter(|(_, f)| f.path == *p.path)
                .any(|(i, _)| p.compared.is_none() || !multikey.field(i))
        };
        preds.iter().any(|p| p.implies_exists() && held(p))
    }

    fn given_by(
        &self,
        info: &IndexInfo,
        sort: &SortPattern,
        intervals: &[Vec<Interval>],
    ) -> Option<bool> {
        let multikey = Multikey(info.multikey);
        order::given_by(
            sort,
            &info.key.fields,
            multikey,
            intervals,
            info.key.collation(),
            self.req.clustered,
        )
    }

    /// Whether the index's entries hold all that the result needs.
    fn covers(
        &self,
        info: &IndexInfo,
        preds: &[Predicate<'_>],
        residual: &Filter,
        sorted: bool,
    ) -> bool {
        if self.req.count && residual.is_trivial() {
            return true;
        }
        // Sort keys do not give their strings back.
        if info.key.collation().is_some() {
            return false;
        }
        let Some(projection) = self.req.projection.filter(|p| !p.needs_match_index()) else {
            return false;
        };
        let multikey = Multikey(info.multikey);
        let has = |path: &str| {
            info.key.fields.iter().enumerate().any(|(i, f)| {
                f.path.as_str() == path
                    && f.is_ordered()
                    && !multikey.field(i)
                    && !f.path.has_index_part()
                    // A document that lacks `a.b` may or may not have `a`: only the record tells.
                    && (!f.path.is_dotted()
                        || preds.iter().any(|p| *p.path == f.path && p.implies_exists()))
            })
        };
        // The cheapest question first: most plans fail one of them.
        paths_of(residual.root(), &mut |p| has(p.as_str()))
            && (sorted
                || self
                    .sort
                    .is_none_or(|s| s.fields.iter().all(|f| has(f.path.as_str()))))
            && projection
                .needed_fields()
                .is_some_and(|needed| needed.iter().all(|n| has(n)))
    }

    /// `min` and `max`: one range of the hinted index, everything else tested.
    fn between_limits(&self, hinted: Hinted<'_>) -> Result<Plan> {
        let id = [KeyField::new(FieldPath::new("_id"), false)];
        let (fields, info): (&[KeyField], Option<&IndexInfo>) = match hinted {
            Hinted::Id => (&id, None),
            Hinted::Index(i) => (&i.key.fields, Some(i)),
            Hinted::Nothing => bail!(
                51173,
                "When using min()/max() a hint of which index to use must be provided"
            ),
            Hinted::Natural { .. } => {
                return Err(err!(BadValue, "min and max are incompatible with $natural").into());
            }
        };
        let names: Vec<&str> = fields.iter().map(|f| f.path.as_str()).collect();
        hint::check_limits(self.req, &names)?;
        let collation = info.and_then(|i| i.key.collation());
        let encode = |d: Option<Doc<'_>>| {
            let mut k = Vec::new();
            for (e, f) in d.unwrap_or(Doc::EMPTY).iter().zip(fields) {
                Collation::with(collation, e.val, |v| {
                    key::encode(v, f.descending, &mut k, None)
                });
            }
            k
        };
        let (low, high) = (encode(self.req.min), encode(self.req.max));
        if !high.is_empty() && low >= high {
            bail!(51175, "min must be less than max");
        }
        let reverse;
        let given;
        let access = match info {
            None => {
                given = self.id_order();
                reverse = given.unwrap_or(false);
                Access::Records { low, high, reverse }
            }
            Some(i) => {
                let multikey = Multikey(i.multikey);
                given = match self.sort {
                    Some(s) if !multikey.any() => self.given_by(i, s, &[]),
                    _ => None,
                };
                reverse = given.unwrap_or(false);
                Access::Index(Arc::new(IndexAccess {
                    index: i.id,
                    bounds: Bounds::Ranges(vec![(low, high)]),
                    reverse,
                    skip: SkipBounds::default(),
                    distinct: None,
                    key_filter: Vec::new(),
                    dedup: multikey.any(),
                    intervals: vec![Vec::new(); fields.len()],
                    wildcard: None,
                }))
            }
        };
        let mut plan = Plan::new(access, self.req.filter.clone());
        plan.sort = match self.sort {
            Some(s) if given.is_none() => Some(s.clone()),
            _ => None,
        };
        Ok(plan)
    }
}

impl Candidate {
    fn reads(&self) -> Reads {
        Reads {
            keys: self.keys,
            given: self.keys * self.fetched,
            exact: self.known || self.counted,
        }
    }

    /// No document can match.
    fn nothing() -> Candidate {
        Candidate {
            access: Access::Eof,
            residual: Filter::all(),
            sorted: true,
            covered: false,
            id_bounds: Vec::new(),
            keys: 0.0,
            fetched: 0.0,
            narrowing: 0,
            known: true,
            counted: true,
        }
    }
}

/// A set of clauses; those behind the 64th are left out.
fn bits(clauses: impl Iterator<Item = usize>) -> u64 {
    clauses.fold(0, |set, i| {
        set | u32::try_from(i).map_or(0, |i| 1u64.checked_shl(i).unwrap_or(0))
    })
}

/// The clauses that are not done, as a filter.
fn rest(all: &[Node], done: &[bool]) -> Filter {
    let left: Vec<Node> = all
        .iter()
        .zip(done)
        .filter(|(_, d)| !**d)
        .map(|(n, _)| n.clone())
        .collect();
    Filter::from_node(Node::and(left))
}

/// A key shows null for a missing field: only tests that do not tell them apart can be made on it.
fn decided_by_key(test: &Test) -> bool {
    !matches!(
        test,
        Test::Size(_) | Test::ElemMatchObject(_) | Test::ElemMatchValue(_)
    ) && test.matches(None) == test.matches(Some(Val::NULL))
}

/// Whether `f` holds for every path that a filter reads (`false` when it reads the whole document).
fn paths_of(node: &Node, f: &mut impl FnMut(&FieldPath) -> bool) -> bool {
    match node {
        Node::Const(_) | Node::Sample(_) => true,
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().all(|n| paths_of(n, f)),
        Node::Not(n) => paths_of(n, f),
        Node::Pred { path, .. } => f(path),
        Node::Expr(e) => e
            .needed_paths()
            .is_some_and(|p| p.iter().all(|p| f(&FieldPath::new(p)))),
        Node::Schema(_) | Node::Text(_) => false,
    }
}

/// The bounds of `_id`, if there are any; marks the clauses that they decide as done.
fn id_bounds(preds: &[Predicate<'_>], done: &mut [bool]) -> Option<Vec<Interval>> {
    let kind = FieldKind {
        multikey: false,
        dotted: false,
        indexed: false,
        sparse: false,
        collation: None,
    };
    let mut list: Option<Vec<Interval>> = None;
    for p in preds.iter().filter(|p| p.path.is_id()) {
        let Some(b) = bounds::of(p, kind) else {
            continue;
        };
        list = Some(match list {
            Some(l) => intersect(&l, &b.intervals),
            None => b.intervals,
        });
        done[p.clause] |= b.exact;
    }
    list
}

/// The interval from the first of a list to the last.
fn hull(list: &[Interval]) -> Interval {
    match (list.first(), list.last()) {
        (Some(a), Some(b)) => Interval::new(
            a.low.clone(),
            a.low_inclusive,
            b.high.clone(),
            b.high_inclusive,
        ),
        _ => Interval::all(),
    }
}

/// What part of the values a list of intervals is thought to hold.
fn share(list: &[Interval]) -> f64 {
    let one = |i: &Interval| {
        if i.is_point() {
            return 0.005;
        }
        if i.is_all() {
            return 1.0;
        }
        let open = |v: &bson::Value| {
            let v = v.as_val();
            v.to_f64().is_some_and(|f| !f.is_finite())
                || matches!(v.tag, tag::MIN_KEY | tag::MAX_KEY)
                || matches!(v.as_date(), Some(i64::MIN | i64::MAX))
        };
        if open(&i.low) || open(&i.high) || i.low.tag() != i.high.tag() {
            0.2
        } else {
            0.03
        }
    };
    list.iter().map(one).sum::<f64>().min(1.0)
}

struct IndexRanges {
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many leading fields the ranges bound.
    used: usize,
    /// What bounds the others.
    skip: SkipBounds,
}

/// The byte ranges of the entries inside the intervals: points multiply, the first field with more
/// than points ends them, and the fields behind it are for the scan to test. Those of wildcard
/// indexes are not: their intervals are set to all values.
fn ranges(fields: &[KeyField], intervals: &mut [Vec<Interval>]) -> IndexRanges {
    let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
    let mut used = 0;
    let mut wide = None;
    for (i, f) in fields.iter().enumerate() {
        let list = &intervals[i];
        // Most bounds are one value, which needs no products.
        if let [point] = &list[..]
            && point.is_point()
        {
            used = i + 1;
            for p in &mut prefixes {
                let v = point.low.as_val();
                p.reserve(v.bytes.len() + KEY_OVERHEAD_BYTES);
                key::encode(v, f.descending, p, None);
            }
            continue;
        }
        if !bounded(list) || prefixes.len() > 1 && prefixes.len() * list.len() > MAX_RANGES {
            break;
        }
        used = i + 1;
        if !list.iter().all(Interval::is_point) {
            wide = Some(i);
            break;
        }
        let keys = |p: &Vec<u8>| {
            let prefix = p.clone();
            key_order(list, f.descending).map(move |i| {
                let mut k = prefix.clone();
                key::encode(i.low.as_val(), f.descending, &mut k, None);
                k
            })
        };
        prefixes = prefixes.iter().flat_map(keys).collect();
    }
    let behind = intervals.iter_mut().skip(used);
    if behind.len() > 0 && fields.iter().any(|f| !of_one_path(f)) {
        behind
            .filter(|list| bounded(list))
            .for_each(|list| *list = vec![Interval::all()]);
    }
    let skip = SkipBounds::of(fields, intervals, used);
    let ranges = match wide.and_then(|i| Some((fields.get(i)?, intervals.get(i)?))) {
        Some((f, list)) => {
            let each = |p: &Vec<u8>| {
                let p = p.clone();
                let skip = &skip;
                key_order(list, f.descending).map(move |i| within(i, &p, f.descending, skip, used))
            };
            prefixes.iter().flat_map(each).collect()
        }
        None => prefixes
            .into_iter()
            .map(|p| {
                let end = key::successor(&p).unwrap_or_default();
                (p, end)
            })
            .collect(),
    };
    IndexRanges { ranges, used, skip }
}

fn of_one_path(f: &KeyField) -> bool {
    !matches!(f.kind, KeyKind::Wildcard | KeyKind::WildcardPath)
}

/// Intervals in the order of a field's keys.
fn key_order(list: &[Interval], descending: bool) -> impl Iterator<Item = &Interval> {
    let n = list.len();
    (0..n).filter_map(move |i| list.get(if descending { n - 1 - i } else { i }))
}

/// The byte range behind `prefix` of an interval of the field before `next`, whose ends the bounds
/// of later fields narrow.
fn within(
    i: &Interval,
    prefix: &[u8],
    descending: bool,
    skip: &SkipBounds,
    next: usize,
) -> (Vec<u8>, Vec<u8>) {
    let (mut low, mut high) = i.range(prefix, descending);
    if skip.is_empty() {
        return (low, high);
    }
    let (starts, ends, last) = if descending {
        (i.high_inclusive, i.low_inclusive, &i.low)
    } else {
        (i.low_inclusive, i.high_inclusive, &i.high)
    };
    if starts {
        skip.append_starts(next, &mut low);
    }
    if ends && skip.bounds_end(next) {
        high.clear();
        high.extend_from_slice(prefix);
        key::encode(last.as_val(), descending, &mut high, None);
        skip.append_ends(next, &mut high);
    }
    (low, high)
}
