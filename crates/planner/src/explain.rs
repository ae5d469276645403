//! Plans as MongoDB's explain prints them (`queryPlanner.winningPlan`).
//!
//! [`stages`] gives the tree of stages; the executor may add its counts before turning it into a
//! document.

use crate::interval::Interval;
use crate::plan::{Access, Bounds, Branch, IndexAccess, IndexInfo, NearAccess, Plan};
use crate::predicate::clauses;
use bson::hex_text::{Strings, in_hex};
use bson::{DocBuf, Value, Writer, doc, tag};
use query::filter::{Filter, Node};
use query::index_keys::{FieldKind, Geospatial, Multikey};
use query::projection::Projection;
use query::sort::SortPattern;
use std::borrow::Cow;
use std::sync::Arc;

/// What beside the plan decides the stages.
#[derive(Clone, Copy)]
pub struct Explain<'a> {
    pub plan: &'a Plan,
    pub filter: &'a Filter,
    pub projection: Option<&'a Projection>,
    pub indexes: &'a [IndexInfo],
    /// The collection was made with a clustered index.
    pub clustered: bool,
    pub skip: u64,
    /// 0: none.
    pub limit: u64,
    pub count: bool,
    /// A plain read, whose index the planner chose: MongoDB has a short way for some of these.
    pub plain: bool,
}

/// A stage: its name, its own fields, and the stages it reads from.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanStage {
    pub name: &'static str,
    pub fields: DocBuf,
    pub inputs: Vec<PlanStage>,
    /// Which index it scans, or [`crate::ID_INDEX`] for records.
    pub index: Option<u32>,
}

impl PlanStage {
    fn new(name: &'static str, fields: DocBuf) -> PlanStage {
        PlanStage {
            name,
            fields,
            inputs: Vec::new(),
            index: None,
        }
    }

    fn over(self, input: PlanStage) -> PlanStage {
        self.over_all(vec![input])
    }

    fn over_all(mut self, inputs: Vec<PlanStage>) -> PlanStage {
        self.inputs = inputs;
        self
    }

    /// A `GROUP` that takes in what this plan gives: as the documents of its query are read field
    /// by field there, a projection that only leaves fields out is not part of the plan.
    pub fn grouped(mut self) -> PlanStage {
        if self.name == "PROJECTION_SIMPLE"
            && let Some(input) = self.inputs.pop()
        {
            self = input;
        }
        PlanStage::new("GROUP", doc! {}).over(self)
    }

    /// The stages by numbers from 1 on, inputs before their readers.
    pub fn number(&mut self) {
        self.number_from(1);
    }

    fn number_from(&mut self, first: i32) -> i32 {
        let next = self
            .inputs
            .iter_mut()
            .fold(first, |n, input| input.number_from(n));
        let mut w = Writer::new();
        w.i32("planNodeId", next);
        w.extend(self.fields.as_doc());
        self.fields = w.finish();
        next + 1
    }

    /// The stage and those below as a document; `more` may append fields to each.
    pub fn to_doc(&self, more: &dyn Fn(&PlanStage, &mut Writer)) -> DocBuf {
        let mut w = Writer::new();
        self.write(&mut w, more);
        w.finish()
    }

    fn write(&self, w: &mut Writer, more: &dyn Fn(&PlanStage, &mut Writer)) {
        w.str("stage", self.name);
        w.extend(self.fields.as_doc());
        more(self, w);
        match &self.inputs[..] {
            [] => {}
            [one] => {
                w.open_doc("inputStage");
                one.write(w, more);
                w.close();
            }
            all => {
                w.open_array("inputStages");
                for s in all {
                    w.open_doc("");
                    s.write(w, more);
                    w.close();
                }
                w.close();
            }
        }
    }

    /// This stage and all below, top down.
    pub fn walk<'s>(&'s self, f: &mut impl FnMut(&'s PlanStage)) {
        f(self);
        self.inputs.iter().for_each(|s| s.walk(f));
    }
}

/// The winning plan as a document.
pub fn winning_plan(e: &Explain<'_>) -> DocBuf {
    stages(e).to_doc(&|_, _| {})
}

/// The stages of a plan.
pub fn stages(e: &Explain<'_>) -> PlanStage {
    let plan = e.plan;
    if e.count {
        return counting(e);
    }
    if let Some(s) = express(e) {
        return s;
    }
    let mut top = access(e, &plan.access, &plan.residual, plan.covered);
    if matches!(plan.access, Access::Or(_)) && matches!(e.filter.root(), Node::Or(_)) {
        top = PlanStage::new("SUBPLAN", doc! {}).over(top);
    }
    if let Some(s) = &plan.sort {
        top = sorting(s, e).over(top);
    }
    if e.skip > 0 {
        let skip = PlanStage::new("SKIP", doc! { "skipAmount": e.skip as i64 });
        // If the index decides alone, skipped documents are not fetched.
        let before_fetch = plan.sort.is_none()
            && plan.residual.is_trivial()
            && matches!(plan.access, Access::Index(_))
            && !plan.covered;
        match top.inputs.pop() {
            Some(scan) if before_fetch => top.inputs.push(skip.over(scan)),
            input => {
                top.inputs.extend(input);
                top = skip.over(top);
            }
        }
    }
    if let Some(p) = e.projection.filter(|p| !p.is_identity()) {
        let name = if plan.covered {
            "PROJECTION_COVERED"
        } else if p.is_simple() {
            "PROJECTION_SIMPLE"
        } else {
            "PROJECTION_DEFAULT"
        };
        top = PlanStage::new(name, doc! { "transformBy": p.to_doc() }).over(top);
    }
    if e.limit > 0 && plan.sort.is_none() {
        top = PlanStage::new("LIMIT", doc! { "limitAmount": e.limit as i64 }).over(top);
    }
    top
}

fn sorting(s: &SortPattern, e: &Explain<'_>) -> PlanStage {
    let mut w = Writer::new();
    w.doc("sortPattern", s.to_doc().as_doc())
        .i32("memLimit", 104_857_600);
    if e.limit > 0 {
        w.int("limitAmount", e.limit.saturating_add(e.skip) as i64);
    }
    w.str("type", "simple");
    PlanStage::new("SORT", w.finish())
}

fn counting(e: &Explain<'_>) -> PlanStage {
    let plan = e.plan;
    if e.filter.is_trivial() && plan.access.is_scan() {
        if plan.id_bounds.is_empty() {
            return PlanStage::new("RECORD_STORE_FAST_COUNT", doc! {});
        }
        if !e.clustered {
            return PlanStage::new("COUNT", doc! {}).over(count_of_all_ids());
        }
    }
    if let Access::Index(a) = &plan.access
        && plan.residual.is_trivial()
        && a.key_filter.is_empty()
        && a.skip.is_empty()
        && let Bounds::Ranges(r) = &a.bounds
        && r.len() == 1
        && !a.dedup
        && plan.text.is_none()
        && let Some(info) = described(e, a)
    {
        let mut w = Writer::new();
        let info = &*info;
        describe(info, &mut w);
        w.open_doc("indexBounds");
        for (name, low) in [("startKey", true), ("endKey", false)] {
            w.open_doc(name);
            let mut inclusive = true;
            for (f, list) in info.key.fields.iter().zip(&a.intervals) {
                let all = Interval::all();
                let i = list.first().unwrap_or(&all);
                let (v, inc) = if low != f.descending {
                    (&i.low, i.low_inclusive)
                } else {
                    (&i.high, i.high_inclusive)
                };
                inclusive &= inc;
                let strings = match info.key.collation() {
                    Some(_) => Strings::All,
                    None => Strings::Invalid,
                };
                w.val(
                    f.path.as_str(),
                    in_hex(v.as_val(), strings, "0x").0.as_val(),
                );
            }
            w.close();
            w.bool(
                if low {
                    "startKeyInclusive"
                } else {
                    "endKeyInclusive"
                },
                inclusive,
            );
        }
        w.close();
        let mut scan = PlanStage::new("COUNT_SCAN", w.finish());
        scan.index = Some(a.index);
        return PlanStage::new("COUNT", doc! {}).over(scan);
    }
    let below = access(e, &plan.access, &plan.residual, plan.covered);
    PlanStage::new("COUNT", doc! {}).over(below)
}

/// So much of bounds, or of a filter, is shown of a stage: a plan has to fit into one reply, where it
/// stands twice.
const SHOWN_BYTES: usize = 1 << 20;

fn filter_fields(f: &Filter) -> DocBuf {
    if f.is_trivial() {
        return doc! {};
    }
    match f.to_doc() {
        filter if filter.as_bytes().len() > SHOWN_BYTES => {
            doc! { "warning": "'filter' has been omitted due to BSON size limit" }
        }
        filter => doc! { "filter": filter },
    }
}

/// What `write` writes as the bounds of a scan.
fn index_bounds(w: &mut Writer, write: impl FnOnce(&mut Writer)) {
    let mut bounds = Writer::new();
    write(&mut bounds);
    let bounds = bounds.finish();
    if bounds.as_bytes().len() > SHOWN_BYTES {
        w.str(
            "warning",
            "index bounds omitted due to BSON size limit for explain",
        );
    } else {
        w.doc("indexBounds", bounds.as_doc());
    }
}

/// The stage of a read that finds at most one document by one key: by `_id`, or by an index on the
/// only field that the filter asks for, where that index is unique or one document is all that is
/// wanted.
fn express(e: &Explain<'_>) -> Option<PlanStage> {
    let plan = e.plan;
    if !plan.residual.is_trivial() || e.skip > 0 {
        return None;
    }
    let (name, index, key, index_name) = match &plan.access {
        Access::Ids(ids) if ids.len() == 1 => {
            let name = if e.clustered {
                "EXPRESS_CLUSTERED_IXSCAN"
            } else {
                "EXPRESS_IXSCAN"
            };
            (name, crate::ID_INDEX, "{ _id: 1 }".to_string(), "_id_")
        }
        Access::Index(scan) if e.plain && plan.sort.is_none() && has_one_exact_key(e.filter) => {
            let index = e.indexes.iter().find(|i| i.id == scan.index)?;
            let one = index.unique && index.key.fields.len() == 1;
            if index.multikey != 0 || !(one || e.limit == 1) {
                return None;
            }
            let key = bson::shell::doc(index.key.as_doc());
            ("EXPRESS_IXSCAN", index.id, key, index.name.as_str())
        }
        _ => return None,
    };
    let mut w = Writer::new();
    w.str("keyPattern", &key).str("indexName", index_name);
    if let Some(p) = e.projection.filter(|p| !p.is_identity()) {
        w.doc("projection", p.to_doc().as_doc())
            .bool("projectionCovered", plan.covered);
    }
    let mut s = PlanStage::new(name, w.finish());
    s.index = Some(index);
    Some(s)
}

/// A filter that is one equality with a value whose index keys are exactly those of the documents
/// that match.
fn has_one_exact_key(filter: &Filter) -> bool {
    let inexact = |v: &bson::Val<'_>| {
        matches!(
            v.tag,
            tag::ARRAY | tag::NULL | tag::UNDEFINED | tag::REGEX | tag::DB_POINTER
        )
    };
    match filter.nothing_but_equalities().as_deref() {
        Some([(_, v)]) => !inexact(v),
        _ => false,
    }
}

fn access(e: &Explain<'_>, a: &Access, residual: &Filter, covered: bool) -> PlanStage {
    let fetch = |input: PlanStage| fetched(residual, input);
    match a {
        Access::Eof => PlanStage::new("EOF", doc! {}),
        Access::Records { reverse, .. } if a.is_scan() && e.plan.id_bounds.is_empty() => {
            let mut w = Writer::new();
            w.extend(filter_fields(residual).as_doc());
            w.str("direction", direction(*reverse));
            let mut s = PlanStage::new("COLLSCAN", w.finish());
            s.index = Some(crate::ID_INDEX);
            s
        }
        Access::Records { low, high, reverse } => {
            let bounds = if e.plan.id_bounds.is_empty() {
                vec![decoded(low, high)]
            } else {
                e.plan.id_bounds.clone()
            };
            if e.clustered {
                return clustered_scan(&bounds, residual, *reverse);
            }
            fetch(id_scan(&bounds, *reverse))
        }
        Access::Ids(ids) => {
            let bounds: Vec<Interval> = ids.iter().cloned().map(Interval::point).collect();
            if e.clustered {
                return clustered_scan(&bounds, residual, false);
            }
            fetch(id_scan(&bounds, false))
        }
        Access::Index(i) if e.plan.text.is_some() && crate::choose::reads_terms(a, e.indexes) => {
            text_match(e, i, residual)
        }
        Access::Index(i) => {
            let scan = index_scan(e, i);
            if covered { scan } else { fetch(scan) }
        }
        Access::Or(branches) => union(e, branches, residual),
        Access::Near(n) => {
            let near = near_scan(e, n);
            if residual.is_trivial() {
                near
            } else {
                fetch(near)
            }
        }
        Access::Merge(branches, sort) => {
            let merge = PlanStage::new("SORT_MERGE", doc! { "sortPattern": sort.to_doc() });
            merged(e, merge, branches, residual)
        }
    }
}

fn fetched(residual: &Filter, input: PlanStage) -> PlanStage {
    PlanStage::new("FETCH", filter_fields(residual)).over(input)
}

/// The branches of an `$or`: of keys alone, if no branch tests documents.
fn union(e: &Explain<'_>, branches: &[Branch<Access>], residual: &Filter) -> PlanStage {
    let bare = branches
        .iter()
        .all(|b| b.residual.is_trivial() && matches!(b.access, Access::Index(_)));
    if bare {
        let scan = |b: &Branch<Access>| match &b.access {
            Access::Index(i) => Some(index_scan(e, i)),
            _ => None,
        };
        let inputs = branches.iter().filter_map(scan).collect();
        return fetched(residual, PlanStage::new("OR", doc! {}).over_all(inputs));
    }
    let inputs = branches
        .iter()
        .map(|b| access(e, &b.access, &b.residual, false))
        .collect();
    let or = PlanStage::new("OR", doc! {}).over_all(inputs);
    if residual.is_trivial() {
        or
    } else {
        fetched(residual, or)
    }
}

/// Parts of an index whose entries are merged in the order of a sort.
fn merged(
    e: &Explain<'_>,
    merge: PlanStage,
    branches: &[Branch<Arc<IndexAccess>>],
    residual: &Filter,
) -> PlanStage {
    if branches.iter().all(|b| b.residual.is_trivial()) {
        let inputs = branches.iter().map(|b| index_scan(e, &b.access)).collect();
        return fetched(residual, merge.over_all(inputs));
    }
    let inputs = branches
        .iter()
        .map(|b| fetched(&b.residual, index_scan(e, &b.access)))
        .collect();
    let merge = merge.over_all(inputs);
    if residual.is_trivial() {
        merge
    } else {
        fetched(residual, merge)
    }
}

/// The documents that a text index finds, by terms, with their scores where these are asked for.
fn text_match(e: &Explain<'_>, a: &IndexAccess, residual: &Filter) -> PlanStage {
    let mut w = Writer::new();
    let info = e.indexes.iter().find(|i| i.id == a.index);
    w.open_doc("indexPrefix");
    let fields = info.map_or(&[][..], |i| &i.key.fields);
    for (f, list) in fields.iter().zip(&a.intervals) {
        match list.first() {
            Some(i) if f.kind == FieldKind::Ordered => {
                w.val(f.path.as_str(), i.low.as_val());
            }
            _ => break,
        }
    }
    w.close();
    w.str("indexName", info.map_or("", |i| &i.name));
    if let Some(m) = e.plan.text.as_ref().and_then(|t| t.matcher.as_ref()) {
        let p = &m.parsed;
        let list = |w: &mut Writer, name: &str, words: &mut dyn Iterator<Item = &String>| {
            w.open_array(name);
            words.for_each(|word| {
                w.push_value(word.as_str());
            });
            w.close();
        };
        w.open_doc("parsedTextQuery");
        list(&mut w, "terms", &mut p.terms.iter());
        list(&mut w, "negatedTerms", &mut p.negated_terms.iter());
        list(&mut w, "phrases", &mut p.phrases.iter());
        list(&mut w, "negatedPhrases", &mut p.negated_phrases.iter());
        w.close();
        w.i32("textIndexVersion", m.index.version as i32);
    }
    let scored = e.plan.sort.as_ref().is_some_and(SortPattern::by_text_score)
        || e.projection
            .is_some_and(|p| p.asks_for("textScore") || p.asks_for("score"));
    let below = match scored {
        true => PlanStage::new("TEXT_OR", doc! {}),
        false => PlanStage::new("FETCH", doc! {}),
    };
    let found = PlanStage::new("TEXT_MATCH", w.finish()).over(below.over(index_scan(e, a)));
    let others = clauses(residual.root()).iter();
    let others = others.filter(|n| !matches!(n, Node::Text(_))).cloned();
    let rest = Filter::from_node(Node::and(others.collect()));
    match rest.is_trivial() {
        true => found,
        false => PlanStage::new("FETCH", filter_fields(&rest)).over(found),
    }
}

fn direction(reverse: bool) -> &'static str {
    if reverse { "backward" } else { "forward" }
}

fn decoded(low: &[u8], high: &[u8]) -> Interval {
    let value = |k: &[u8], otherwise: Value| {
        bson::key::Decoder::new(k, &[])
            .field(false)
            .flatten()
            .unwrap_or(otherwise)
    };
    Interval::new(
        value(low, bson::Val::MIN_KEY.into()),
        true,
        value(high, bson::Val::MAX_KEY.into()),
        false,
    )
}

/// A range of a collection that a clustered index orders: the records themselves are read.
fn clustered_scan(bounds: &[Interval], residual: &Filter, reverse: bool) -> PlanStage {
    let mut w = Writer::new();
    w.extend(filter_fields(residual).as_doc());
    w.str("direction", direction(reverse));
    if let (Some(first), Some(last)) = (bounds.first(), bounds.last()) {
        w.val("minRecord", first.low.as_val())
            .val("maxRecord", last.high.as_val());
    }
    let mut s = PlanStage::new("CLUSTERED_IXSCAN", w.finish());
    s.index = Some(crate::ID_INDEX);
    s
}

/// What a count by all of `_id_` scans.
fn count_of_all_ids() -> PlanStage {
    let mut w = describe_ids();
    w.open_doc("indexBounds")
        .doc("startKey", doc! { "_id": bson::Val::MIN_KEY }.as_doc())
        .bool("startKeyInclusive", true)
        .doc("endKey", doc! { "_id": bson::Val::MAX_KEY }.as_doc())
        .bool("endKeyInclusive", true)
        .close();
    let mut s = PlanStage::new("COUNT_SCAN", w.finish());
    s.index = Some(crate::ID_INDEX);
    s
}

fn describe_ids() -> Writer {
    let mut w = Writer::new();
    w.doc("keyPattern", doc! { "_id": 1 }.as_doc())
        .str("indexName", "_id_")
        .bool("isMultiKey", false)
        .value("multiKeyPaths", doc! { "_id": Value::array(doc! {}) })
        .bool("isUnique", true)
        .bool("isSparse", false)
        .bool("isPartial", false)
        .i32("indexVersion", 2);
    w
}

fn id_scan(bounds: &[Interval], reverse: bool) -> PlanStage {
    let mut w = describe_ids();
    w.str("direction", direction(reverse));
    index_bounds(&mut w, |w| texts(w, "_id", bounds, (reverse, false)));
    let mut s = PlanStage::new("IXSCAN", w.finish());
    s.index = Some(crate::ID_INDEX);
    s
}

/// The index of a scan; a wildcard index as that of its path.
fn described<'e>(e: &Explain<'e>, a: &IndexAccess) -> Option<Cow<'e, IndexInfo>> {
    let info = e.indexes.iter().find(|i| i.id == a.index)?;
    Some(match &a.wildcard {
        None => Cow::Borrowed(info),
        Some(path) => Cow::Owned(crate::wildcard::as_path(info, path)),
    })
}

fn describe(info: &IndexInfo, w: &mut Writer) {
    let multikey = Multikey(info.multikey);
    w.doc("keyPattern", info.key.as_doc())
        .str("indexName", &info.name);
    if let Some(c) = info.key.collation() {
        w.doc("collation", c.spec());
    }
    w.bool("isMultiKey", multikey.any())
        .open_doc("multiKeyPaths");
    for (i, f) in info.key.fields.iter().enumerate() {
        w.open_array(f.path.as_str());
        if multikey.field(i) {
            w.push_value(f.path.as_str());
        }
        w.close();
    }
    w.close()
        .bool("isUnique", info.unique)
        .bool(
            "isSparse",
            info.sparse || info.key.wildcard().is_some_and(|w| !w.is_compound()),
        )
        .bool("isPartial", info.partial.is_some())
        .i32("indexVersion", 2);
}

fn index_scan(e: &Explain<'_>, a: &IndexAccess) -> PlanStage {
    let mut w = Writer::new();
    let Some(info) = described(e, a) else {
        return PlanStage::new("IXSCAN", doc! {});
    };
    let info = &*info;
    if !a.key_filter.is_empty() {
        w.doc("filter", key_filter(info, a).to_doc().as_doc());
    }
    describe(info, &mut w);
    w.str("direction", direction(a.reverse));
    index_bounds(&mut w, |w| {
        let collated = info.key.collation().is_some();
        for (f, list) in info.key.fields.iter().zip(&a.intervals) {
            let backward = a.reverse != f.descending;
            texts(w, f.path.as_str(), list, (backward, collated));
        }
    });
    let name = match a.distinct {
        Some(_) => "DISTINCT_SCAN",
        None => "IXSCAN",
    };
    let mut s = PlanStage::new(name, w.finish());
    s.index = Some(a.index);
    s
}

/// A search for the nearest documents; how far it goes shows in the examined counts.
fn near_scan(e: &Explain<'_>, n: &NearAccess) -> PlanStage {
    let info = e.indexes.iter().find(|i| i.id == n.index);
    let kind = info.and_then(|i| i.key.geospatial());
    let name = match kind {
        Some(Geospatial::Plane(_)) => "GEO_NEAR_2D",
        _ => "GEO_NEAR_2DSPHERE",
    };
    let mut w = Writer::new();
    if let Some(info) = info {
        w.doc("keyPattern", info.key.as_doc())
            .str("indexName", &info.name)
            .i32("indexVersion", 2);
    }
    let mut s = PlanStage::new(name, w.finish());
    s.index = Some(n.index);
    s
}

/// Intervals as explain prints them; `collated`: strings are keys of a collation.
fn texts(w: &mut Writer, name: &str, list: &[Interval], (reverse, collated): (bool, bool)) {
    w.open_array(name);
    let all = [Interval::all()];
    let list = if list.is_empty() { &all } else { list };
    let mut push = |i: &Interval| {
        // More is not shown.
        if w.len() <= SHOWN_BYTES {
            w.push_value(i.to_text(reverse, collated));
        }
    };
    if reverse {
        list.iter().rev().for_each(&mut push);
    } else {
        list.iter().for_each(&mut push);
    }
    w.close();
}

/// The tests on key fields with the names of the fields.
fn key_filter(info: &IndexInfo, a: &IndexAccess) -> Filter {
    let named = |path: &query::path::FieldPath, n: &Node| match n {
        Node::Pred { test, .. } => Node::Pred {
            path: path.clone(),
            test: test.clone(),
        },
        n => n.clone(),
    };
    let nodes = a
        .key_filter
        .iter()
        .filter_map(|(i, f)| {
            let path = &info.key.fields.get(*i)?.path;
            Some(match f.root() {
                Node::Not(n) => Node::Not(Box::new(named(path, n))),
                n => named(path, n),
            })
        })
        .collect();
    Filter::from_node(Node::and(nodes))
}
