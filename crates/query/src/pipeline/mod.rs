//! Aggregation pipelines: parsed once into stages, run as a chain of operators that are pulled
//! document by document.
//!
//! * [`Pipeline::parse`] checks stages and their places with MongoDB's errors.
//! * [`Pipeline::optimized`] brings them into a better order.
//! * [`Pipeline::pushdown`] says what of its beginning a query can answer (filter, sort, skip,
//!   limit, needed fields).
//! * [`Pipeline::attach`] puts the operators of the remaining stages on top of a [`Source`].
//!
//! Operators pass on views of documents; one that builds a document keeps it in a buffer of its
//! own, so that streaming allocates nothing per document. What needs the outside (other
//! collections, writing, statistics, limits) goes through the [`PipelineHost`] that each pull
//! brings along.
//!
//! Invariant: after an error for which `is_suspension()` holds, a source may be advanced again and has
//! lost nothing. The check that fails so is made before a document is taken from anywhere.

mod bucket;
mod densify;
mod facet;
mod fill;
mod fusion;
mod fusion_run;
pub mod geo_near;
mod granularity;
mod graph_lookup;
mod group;
mod lookup;
mod lookup_batch;
mod lookup_table;
mod lookup_unwind;
mod map_reduce;
pub mod merged;
mod named;
mod narrow;
mod optimizer;
mod options;
mod parse;
mod parted;
mod partition;
pub mod per_document;
mod profile;
mod pushdown;
mod redact;
mod rows;
mod score;
pub mod search;
mod series_last;
mod series_top;
mod sort;
mod spill;
mod stage_memory;
mod stream;
mod union_with;
mod unpack;
mod unwind;
mod unwind_group;
mod window;
mod window_function;
mod window_scale;
mod window_values;
mod write;

#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod tests;

pub use lookup_table::JoinedCollection;
pub use named::{Named, collections, written};
pub use optimizer::semi_join::{JoinedValues, SemiJoin};
pub use parse::{Inside, ParseCtx, check_stage, is_stage, parse_transforms, stage_names};
pub use parted::{Part, Parted};
pub use profile::{StageCounters, StageProfiler, watched, write_common};
pub use pushdown::{GroupPushdown, Pushdown, filter_paths};
pub use rows::{RowsKind, RowsStage};
pub use search::{SearchKind, SearchStage};
pub use spill::{Merge, Runs, SpillFile, SpillTarget};
pub use stage_memory::{Share, StageMemory, held_by_stages};
pub use unpack::Unpack;
pub use write::{Matched, MergePartStep, MergeSpec, NotMatched, OutSpec};

use crate::accumulator::Accumulator;
use crate::arithmetic::{Number, Sum};
use crate::expr::{Expression, SearchMeta, Vars};
use crate::filter::Filter;
use crate::metadata::{self, Metadata};
use crate::path::FieldPath;
use crate::sort::SortPattern;
use crate::transform::Transform;
use bson::{Doc, DocBuf, MAX_DOC_BYTES, Val, Value, Writer};
use errors::{Result, err};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Database and collection; no collection for pipelines that start with documents of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    pub db: String,
    pub coll: String,
}

impl Namespace {
    pub fn new(db: &str, coll: &str) -> Namespace {
        Namespace {
            db: db.to_string(),
            coll: coll.to_string(),
        }
    }
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.db, self.coll)
    }
}

/// A stream of documents.
pub trait Source: Send {
    /// To the next document; `false` at the end (and from then on).
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool>;
    /// The document that the last `advance` reached.
    fn doc(&self) -> Doc<'_>;
    /// The metadata of that document.
    fn meta(&self) -> &Metadata {
        Metadata::NONE
    }
    /// Shows `to` the rows and single documents that it holds, always in the same order. `wanted`:
    /// [`Source::doc`] will be asked for before the next `advance`.
    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()>;
    /// The reader needs no documents any more whose `_id` is not before `low` and before `high`. They
    /// may come all the same.
    fn leave_out(&mut self, _low: Doc<'_>, _high: Doc<'_>) {}
}

/// Makes a pipeline idle between two batches, or wakes it: is shown the documents that it holds. What
/// blocking stages have taken in is not shown; it counts in their [`Share`].
pub trait IdleVisitor {
    /// `wanted`: the document that they stand on will be asked for again.
    fn rows(&mut self, rows: &mut dyn DocumentSource, wanted: bool) -> Result<()>;
    /// A document of up to 16 MB and more; `wanted`: it will be asked for again.
    fn doc(&mut self, doc: &mut Vec<u8>, wanted: bool) -> Result<()>;
    /// Documents that come from elsewhere, and take care of themselves: `release` is called when the pipeline is left.
    fn held(&mut self, release: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _ = release;
        Ok(())
    }
}

/// [`IdleVisitor::doc`] for an owned document.
fn show_doc(doc: &mut DocBuf, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
    let mut bytes = std::mem::take(doc).into_vec();
    let shown = to.doc(&mut bytes, wanted);
    *doc = DocBuf::from_vec(bytes).unwrap_or_default();
    shown
}

/// [`Source::parts`] of an input that may have come to its end, and of which no document is asked
/// for twice.
fn show_input(input: &mut Option<Box<dyn Source>>, to: &mut dyn IdleVisitor) -> Result<()> {
    input.as_mut().map_or(Ok(()), |i| i.parts(false, to))
}

/// The rows of a collection, as the host keeps them; see [`PipelineHost::advance_rows`].
pub trait DocumentSource: Send {
    fn doc(&self) -> Doc<'_>;
    /// The metadata of that document.
    fn meta(&self) -> &Metadata {
        Metadata::NONE
    }
    /// As [`Source::leave_out`].
    fn leave_out(&mut self, _low: Doc<'_>, _high: Doc<'_>) {}
    fn as_any(&mut self) -> &mut dyn Any;
}

/// What the stages may ask of the world. One lives as long as one command (or one batch of a
/// cursor).
pub trait PipelineHost {
    /// Deadline, kill and budget: called once for each document that an operator makes or takes in.
    fn check(&mut self) -> Result<()>;

    /// Moves rows to the next one: [`DocumentSource::as_any`] gives the implementor its own type
    /// back.
    fn advance_rows(&mut self, rows: &mut dyn DocumentSource) -> Result<bool>;

    /// Has several threads run the beginning of a pipeline, each over a part of `rows`; gives what they have gathered together, and
    /// `None` where one thread has to. Of `rows` nothing was taken yet.
    fn gather_in_parts(
        &mut self,
        _: &Arc<Parted>,
        _rows: &mut dyn DocumentSource,
        _: &Arc<Vars>,
    ) -> Result<Option<Part>> {
        Ok(None)
    }

    /// Runs a pipeline over another collection (or a view; or nothing when it is missing).
    fn open(
        &mut self,
        ns: &Namespace,
        pipeline: &Pipeline,
        vars: &Arc<Vars>,
    ) -> Result<Box<dyn Source>>;

    /// The size of a collection that a stage looks values of `path` up in; `None` for a view, and
    /// where it is not known.
    fn joined_collection(
        &mut self,
        _ns: &Namespace,
        _path: &FieldPath,
    ) -> Option<JoinedCollection> {
        None
    }

    /// Replaces a collection by all that `input` gives.
    fn out(&mut self, spec: &OutSpec, input: &mut dyn Source) -> Result<()>;

    /// Merges all that `input` gives into a collection.
    fn merge(&mut self, spec: &MergeSpec, input: &mut dyn Source, vars: &Arc<Vars>) -> Result<()>;

    /// Merges what `input` gives and belongs here, until there is a document that does not. A pause is
    /// told beside it, to the opener of the pipeline. Fails if no parts were requested.
    fn merge_apart(
        &mut self,
        _: &MergeSpec,
        _: &mut dyn Source,
        _: &Arc<Vars>,
    ) -> Result<MergePartStep> {
        Err(errors::Error::internal("nothing is merged apart here").into())
    }

    /// The rows of a stage that tells about the server or a collection.
    fn rows(&mut self, stage: &RowsStage) -> Result<Vec<DocBuf>>;

    /// Bytes that one blocking stage may hold.
    fn memory_limit(&self) -> usize {
        100 << 20
    }

    /// Whether a blocking stage may go beyond that by spilling.
    fn allow_disk_use(&self) -> bool {
        true
    }

    /// What a search finds, at most `limit` documents. Where there are no search indexes it fails.
    /// `known`: the place for the metadata of all of them, if requested.
    fn search(
        &mut self,
        _: &SearchStage,
        _limit: Option<u64>,
        _known: Option<&SearchMeta>,
    ) -> Result<Box<dyn Source>> {
        Err(search::not_here().into())
    }

    /// What a stage holds counts there.
    fn share(&self) -> Share {
        Share::default()
    }

    /// Called when a stage needs memory that others hold: lets a moment pass in which they may give
    /// some back.
    fn wait_for_memory(&mut self) -> Result<()> {
        self.check()
    }

    /// A new temporary file for spilling.
    fn spill(&mut self) -> Result<Box<dyn SpillFile>>;

    /// How many stages are being advanced inside of one another right now; starts at 0. See
    /// [`nested`].
    fn under_way(&mut self) -> &mut usize;

    /// The counters, when the pipeline is explained.
    fn watch(&mut self) -> Option<&mut StageProfiler> {
        None
    }
}

/// A parsed pipeline. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    pub(crate) stages: Vec<Stage>,
    /// It came from [`Pipeline::optimized`].
    optimized: bool,
}

/// One stage; `$sortByCount` and the like are already the stages that they stand for.
#[derive(Clone, Debug)]
pub struct Stage {
    pub name: &'static str,
    /// The specification as it was written.
    spec: Arc<Value>,
    pub(crate) op: Op,
    /// What follows from the filter behind it was asked before it.
    copied: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Match(Arc<Filter>),
    Transform(Arc<Transform>),
    Group(Arc<group::Group>),
    Sort(Arc<SortPattern>, Option<u64>),
    Limit(u64),
    Skip(u64),
    Unwind(Arc<unwind::Unwind>),
    Sample(u64),
    Count(Arc<str>),
    Lookup(Arc<lookup::Lookup>),
    Facet(Arc<facet::Facet>),
    UnionWith(Arc<union_with::UnionWith>),
    Fusion(Arc<fusion::Fusion>),
    Score(Arc<score::Score>),
    GraphLookup(Arc<graph_lookup::GraphLookup>),
    Redact(Arc<Expression>),
    Documents(Arc<Expression>),
    BucketAuto(Arc<bucket::BucketAuto>),
    Densify(Arc<densify::Densify>),
    Window(Arc<window::Window>),
    Out(Arc<OutSpec>),
    Merge(Arc<MergeSpec>),
    Rows(Arc<RowsStage>),
    Search(Arc<search::SearchStage>),
    GeoNear(Arc<geo_near::GeoNear>),
    Merged(Arc<merged::Merged>),
    Unpack(Arc<unpack::Unpack>),
    /// Lets everything through, and no rule of the optimizer past it.
    Inhibit,
}

impl Stage {
    pub(crate) fn new(name: &'static str, spec: Val<'_>, op: Op) -> Stage {
        Stage {
            name,
            spec: Arc::new(spec.to_value()),
            op,
            copied: false,
        }
    }

    /// What comes of `n` documents where only their number matters: `$count`, and a `$group` of all
    /// that counts them, which is how drivers count. `None` for every other stage.
    pub fn counted(&self, n: u64) -> Option<Vec<DocBuf>> {
        let total = i64::try_from(n).unwrap_or(i64::MAX);
        let mut w = Writer::new();
        match &self.op {
            Op::Count(name) => {
                w.int(name, total);
            }
            Op::Group(group) if group.fields.iter().all(|f| f.spec.counts()) => {
                w.val("_id", group.id.constant()?.as_val());
                match group.part {
                    group::GroupPhase::Whole => {
                        for field in &group.fields {
                            w.int(&field.name, total);
                        }
                    }
                    group::GroupPhase::First => {
                        let states: Vec<_> = group.fields.iter().map(|_| counted(total)).collect();
                        group::write_states(&states, &mut w);
                    }
                    group::GroupPhase::Last => return None,
                }
            }
            _ => return None,
        }
        // Of nothing there is no group.
        Some(if n == 0 { vec![] } else { vec![w.finish()] })
    }
}

/// The state of what counts documents, after so many.
fn counted(n: i64) -> Accumulator {
    let mut state = Accumulator::Sum(Sum::default());
    let n = Number::int_or_long(n).to_value();
    // A number is always taken.
    let _ = state.take(Some(n.as_val()));
    state
}

impl Pipeline {
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// The pipeline that filters only.
    pub fn from_filter(filter: Filter) -> Pipeline {
        Pipeline::default().after(filter)
    }

    /// The pipeline that gives the measurements of buckets.
    pub fn of_measurements(unpack: Unpack) -> Pipeline {
        Pipeline {
            stages: vec![unpack.stage()],
            optimized: false,
        }
    }

    /// What it begins with, where it reads the buckets of a time series.
    pub(crate) fn unpack(&self) -> Option<&Arc<Unpack>> {
        match self.stages.first().map(|s| &s.op) {
            Some(Op::Unpack(u)) => Some(u),
            _ => None,
        }
    }

    /// This pipeline behind a filter.
    pub fn after(&self, filter: Filter) -> Pipeline {
        let spec = filter.to_doc();
        let mut stages = Vec::with_capacity(self.stages.len() + 1);
        stages.push(Stage::new(
            "$match",
            spec.as_doc().as_val(),
            Op::Match(Arc::new(filter)),
        ));
        stages.extend_from_slice(&self.stages);
        // A filter at the beginning has nowhere to go.
        Pipeline {
            stages,
            optimized: self.optimized,
        }
    }

    /// This pipeline, then `more`: how a view's pipeline precedes that of a query.
    pub fn then(&self, more: &Pipeline) -> Pipeline {
        let mut stages = self.stages.clone();
        stages.extend_from_slice(&more.stages);
        Pipeline {
            stages: parse::coalesce(stages),
            optimized: false,
        }
    }

    /// The `$geoNear` that it begins with.
    pub fn geo_near(&self) -> Option<&geo_near::GeoNear> {
        match self.stages.first().map(|s| &s.op) {
            Some(Op::GeoNear(g)) => Some(g),
            _ => None,
        }
    }

    /// A `$geoNear` elsewhere than at the beginning: behind the stages of a view.
    pub fn misplaces_geo_near(&self) -> bool {
        let mut rest = self.stages.iter().skip(1);
        rest.any(|s| matches!(s.op, Op::GeoNear(_)))
    }

    /// The same with another `$geoNear` at its beginning.
    pub fn with_geo_near(&self, g: geo_near::GeoNear) -> Pipeline {
        let mut out = self.clone();
        if let Some(first) = out.stages.first_mut() {
            first.op = Op::GeoNear(Arc::new(g));
        }
        out
    }

    /// Whether a stage from number `from` on is a `$match` with `$text`, which no index can answer there.
    pub fn searches_text(&self, from: usize) -> bool {
        let mut stages = self.stages.iter().skip(from);
        stages.any(|s| matches!(&s.op, Op::Match(f) if f.text().is_some()))
    }

    /// Whether a stage from number `from` on asks for `$meta` of that name.
    pub fn asks_for(&self, from: usize, name: &str) -> bool {
        let mut stages = self.stages.iter().skip(from);
        stages.any(|s| metadata::asks_for(s.spec.as_val(), name))
    }

    /// The first stage makes documents itself: no collection is read.
    pub fn makes_input(&self) -> bool {
        matches!(
            self.stages.first().map(|s| &s.op),
            Some(Op::Documents(_) | Op::Rows(_) | Op::Fusion(_) | Op::Search(_))
        )
    }

    /// The last stage writes.
    pub fn writes(&self) -> bool {
        matches!(
            self.stages.last().map(|s| &s.op),
            Some(Op::Out(_) | Op::Merge(_))
        )
    }

    /// The same pipeline where the server has a part of the target of its `$merge` only.
    pub fn merging_apart(mut self) -> Pipeline {
        if let Some(Op::Merge(spec)) = self.stages.last_mut().map(|s| &mut s.op) {
            *spec = Arc::new(spec.apart());
        }
        self
    }

    /// The `$merge` at its end.
    pub fn merge(&self) -> Option<&MergeSpec> {
        match self.stages.last().map(|s| &s.op) {
            Some(Op::Merge(m)) => Some(m),
            _ => None,
        }
    }

    /// Where the last stage writes to.
    pub fn target(&self) -> Option<&Namespace> {
        match self.stages.last().map(|s| &s.op) {
            Some(Op::Out(o)) => Some(&o.target),
            Some(Op::Merge(m)) => Some(&m.target),
            _ => None,
        }
    }

    /// Collections that are read beside the one the pipeline runs on.
    pub fn reads(&self) -> Vec<Namespace> {
        let mut out = Vec::new();
        self.collect_reads(&mut out);
        out.sort();
        out.dedup();
        out
    }

    fn collect_reads(&self, out: &mut Vec<Namespace>) {
        for s in &self.stages {
            match &s.op {
                Op::Lookup(l) => {
                    out.extend(l.from.clone());
                    l.pipeline.collect_reads(out);
                }
                Op::UnionWith(u) => {
                    out.extend(u.from.clone());
                    u.pipeline.collect_reads(out);
                }
                Op::GraphLookup(g) => out.push(g.from.clone()),
                Op::Fusion(f) => out.push(f.from.clone()),
                Op::Facet(f) => f.parts.iter().for_each(|(_, p)| p.collect_reads(out)),
                _ => {}
            }
        }
    }

    /// Whether a stage, here or further inside, asks for a search index.
    pub fn searches(&self) -> bool {
        self.stages.iter().any(|s| match &s.op {
            Op::Search(_) => true,
            Op::Rows(r) => r.kind == RowsKind::ListSearchIndexes,
            Op::Lookup(l) => l.pipeline.searches(),
            Op::UnionWith(u) => u.pipeline.searches(),
            Op::Facet(f) => f.parts.iter().any(|(_, p)| p.searches()),
            Op::Fusion(f) => f.parts.iter().any(|p| p.pipeline.searches()),
            _ => false,
        })
    }

    /// Collections whose documents `$rankFusion` or `$scoreFusion` ranks, here or further inside.
    pub fn fuses(&self) -> Vec<&Namespace> {
        let mut out = Vec::new();
        self.collect_fused(&mut out);
        out
    }

    fn collect_fused<'a>(&'a self, out: &mut Vec<&'a Namespace>) {
        for s in &self.stages {
            match &s.op {
                Op::Lookup(l) => l.pipeline.collect_fused(out),
                Op::UnionWith(u) => u.pipeline.collect_fused(out),
                Op::Facet(f) => f.parts.iter().for_each(|(_, p)| p.collect_fused(out)),
                Op::Fusion(f) => out.push(&f.from),
                _ => {}
            }
        }
    }

    /// The stages from number `from` on, on top of `source`.
    pub fn attach(
        &self,
        from: usize,
        source: Box<dyn Source>,
        vars: &Arc<Vars>,
    ) -> Box<dyn Source> {
        let builds = |s: &Stage| {
            !matches!(
                s.op,
                Op::Match(_)
                    | Op::Sort(..)
                    | Op::Limit(_)
                    | Op::Skip(_)
                    | Op::Sample(_)
                    | Op::Out(_)
                    | Op::Merge(_)
                    | Op::Inhibit
            )
        };
        let built = self.stages.iter().skip(from).any(builds);
        let near = |s: &Stage| matches!(&s.op, Op::Merged(m) if m.found.near);
        let meta = self.stages.iter().any(near) || self.geo_near().is_some_and(|g| g.meta);
        let mut out = self.attached(from..self.stages.len(), source, vars, built, meta);
        if built && !self.writes() {
            out = Box::new(stream::Checked { input: out });
        }
        match self.stages.len().saturating_sub(from) {
            ..=FEW_STAGES => out,
            stages => nested(out, stages),
        }
    }

    /// The stages from number `from` on and before number `end` on top of `source`.
    fn attach_before(
        &self,
        from: usize,
        end: usize,
        source: Box<dyn Source>,
        vars: &Arc<Vars>,
    ) -> Box<dyn Source> {
        let out = self.attached(from..end, source, vars, false, false);
        match end - from {
            ..=FEW_STAGES => out,
            stages => nested(out, stages),
        }
    }

    fn attached(
        &self,
        range: Range<usize>,
        source: Box<dyn Source>,
        vars: &Arc<Vars>,
        built: bool,
        mut meta: bool,
    ) -> Box<dyn Source> {
        let stages = self.stages.get(..range.end).unwrap_or_default();
        let known = self.search_meta();
        let behind_search;
        let vars = match &known {
            Some(known) => {
                behind_search = Arc::new(vars.behind_search(known.clone()));
                &behind_search
            }
            None => vars,
        };
        let mut out = self.narrowed(range.start, source, false);
        let mut next = range.start;
        // Of each `$unionWith` that another one repeats: the stage, and what it finds.
        let mut unions: Vec<(usize, union_with::Found)> = Vec::new();
        while let Some(s) = stages.get(next) {
            let at = next;
            next += 1;
            if let Some((map, group)) = map_reduce::fused(stages.split_at(at).1) {
                out = Box::new(map_reduce::Run::new(out, map, group, vars.clone()));
                next = at + map_reduce::STAGES;
                continue;
            }
            if let Some(fused) = unwind_group::fused(stages.split_at(at).1) {
                out = Box::new(unwind_group::Run::new(out, fused, vars.clone()));
                next = at + unwind_group::STAGES;
                continue;
            }
            if let Op::Unpack(u) = &s.op {
                let behind = self.stages.split_at(at + 1).1;
                let needed = self.needed(at + 1);
                if let Some(fused) = series_top::fused(u, behind) {
                    next += fused.stages;
                    let (spec, vars) = (u.clone(), vars.clone());
                    out = Box::new(series_top::Run::new(out, spec, behind, fused, needed, vars));
                    continue;
                }
                out = u.attach(out, behind, needed);
                continue;
            }
            if let Op::Lookup(l) = &s.op {
                let read = l.read_of_joined(self.needed(at + 1).as_ref());
                out = l.attach(out, vars.clone(), read);
                continue;
            }
            if let Op::UnionWith(u) = &s.op {
                let found = self.found_of_union(at, &mut unions);
                let (spec, vars) = (u.clone(), vars.clone());
                out = Box::new(union_with::Run::new(out, spec, vars, found));
                continue;
            }
            if let Op::Search(stage) = &s.op {
                let limit = search::wanted(self.stages.split_at(at + 1).1);
                out = Box::new(search::Run::new(stage.clone(), limit, known.clone()));
                continue;
            }
            if built && matches!(s.op, Op::Out(_) | Op::Merge(_)) {
                out = Box::new(stream::DepthCheck { input: out });
            }
            let ends = matches!(s.op, Op::Out(_) | Op::Merge(_));
            if ends && std::mem::take(&mut meta) {
                out = Box::new(geo_near::StripFields::new(out));
            }
            out = s.op.attach(out, vars);
        }
        if meta {
            out = Box::new(geo_near::StripFields::new(out));
        }
        out
    }

    /// Where `$$SEARCH_META` of this pipeline is kept; `None` where no stage reads it.
    fn search_meta(&self) -> Option<Arc<SearchMeta>> {
        // At a router the documents come before the metadata of all.
        self.stages.iter().find_map(|stage| match &stage.op {
            Op::Search(s) if s.asks.meta => Some(Arc::default()),
            Op::Merged(m) => Some(Arc::new(SearchMeta::from(m.search_meta.clone()?))),
            _ => None,
        })
    }

    /// What the `$unionWith` at a place shares with those of the same text; `None` where it has none.
    fn found_of_union(
        &self,
        at: usize,
        unions: &mut Vec<(usize, union_with::Found)>,
    ) -> Option<union_with::Found> {
        let stage = self.stages.get(at)?;
        let same = |other: usize| {
            let other = self.stages.get(other);
            other.is_some_and(|o| union_with::is_same(o, stage))
        };
        if let Some((_, found)) = unions.iter().find(|(other, _)| same(*other)) {
            return Some(found.clone());
        }
        let repeated = (at + 1..self.stages.len()).any(same);
        repeated.then(|| {
            let found = union_with::Found::default();
            unions.push((at, found.clone()));
            found
        })
    }

    /// The whole pipeline of [`Pipeline::makes_input`], or one over no documents.
    pub fn run_alone(&self, vars: &Arc<Vars>) -> Box<dyn Source> {
        self.attach(0, Box::new(stream::Empty), vars)
    }
}

/// A pipeline with no more stages than these is not counted.
const FEW_STAGES: usize = 50;
/// The most stages that are advanced inside of one another: of one pipeline (a view on a view may
/// be long), and of those that its stages run in turn. Each takes some of the stack of its thread.
const MAX_UNDER_WAY: usize = 2500;

/// `source` as so many stages in whatever is under way: refused when it would be too many.
pub fn nested(source: Box<dyn Source>, stages: usize) -> Box<dyn Source> {
    Box::new(stream::Nested {
        input: source,
        stages,
    })
}

/// A source over the rows of a collection.
pub fn over_rows(rows: Box<dyn DocumentSource>) -> Box<dyn Source> {
    Box::new(stream::Leaf { rows })
}

/// A source over documents at hand.
pub fn over_docs(docs: Vec<DocBuf>) -> Box<dyn Source> {
    Box::new(stream::Docs::new(docs))
}

impl Op {
    fn attach(&self, input: Box<dyn Source>, vars: &Arc<Vars>) -> Box<dyn Source> {
        let vars = vars.clone();
        match self {
            Op::Match(f) => Box::new(stream::Match::new(input, f.clone(), vars)),
            Op::Transform(t) => Box::new(stream::Map::new(input, t.clone(), vars)),
            Op::Group(g) => Box::new(group::Run::new(input, g.clone(), vars)),
            Op::Sort(p, limit) => {
                Box::new(sort::Run::new(input, sort::Order::By(p.clone()), *limit))
            }
            Op::Limit(n) => Box::new(stream::Limit { input, left: *n }),
            Op::Skip(n) => Box::new(stream::Skip { input, left: *n }),
            Op::Unwind(u) => Box::new(unwind::Run::new(input, u.clone())),
            Op::Sample(n) => Box::new(sort::Run::new(input, sort::Order::Random, Some(*n))),
            Op::Count(name) => Box::new(stream::Count::new(input, name.clone())),
            Op::Lookup(l) => l.attach(input, vars, None),
            Op::Facet(f) => Box::new(facet::Run::new(input, f, &vars)),
            Op::UnionWith(u) => Box::new(union_with::Run::new(input, u.clone(), vars, None)),
            Op::Fusion(f) => f.attach(&vars),
            Op::Score(s) => s.attach(input, vars),
            Op::GraphLookup(g) => g.attach(input, vars),
            Op::Redact(e) => Box::new(redact::Run::new(input, e.clone(), vars)),
            Op::Documents(e) => Box::new(rows::Documents::new(e.clone(), vars)),
            Op::BucketAuto(b) => Box::new(bucket::Run::new(input, b.clone(), vars)),
            Op::Densify(d) => Box::new(densify::Run::new(input, d.clone())),
            Op::Window(w) => Box::new(window::Run::new(input, w.clone(), vars)),
            Op::Out(o) => Box::new(write::Out::new(input, o.clone())),
            Op::Merge(m) if m.is_apart() => {
                Box::new(write::MergeApart::new(input, m.clone(), vars))
            }
            Op::Merge(m) => Box::new(write::Merge::new(input, m.clone(), vars)),
            Op::Rows(r) => Box::new(rows::Run::new(r.clone())),
            Op::Search(s) => Box::new(search::Run::new(s.clone(), None, None)),
            Op::GeoNear(g) => Box::new(geo_near::Run::new(input, g.clone())),
            Op::Merged(m) => Box::new(merged::Run::new(input, m.found)),
            Op::Unpack(u) => Box::new(unpack::Run::new(input, u.clone(), &[], None)),
            Op::Inhibit => input,
        }
    }
}

/// The largest document that a pipeline gives: a stored one and what the server itself adds.
const MAX_OUTPUT_BYTES: usize = MAX_DOC_BYTES + 16 * 1024;

/// Refuses a document that could not be sent. Between stages documents may be larger.
#[inline]
pub fn check_size(bytes: usize) -> Result<()> {
    if bytes > MAX_OUTPUT_BYTES {
        return Err(err!(
            BSONObjectTooLarge,
            "BSONObj size: {bytes} (0x{bytes:X}) is invalid. Size must be between 0 and {MAX_OUTPUT_BYTES}(16MB)"
        ).into());
    }
    Ok(())
}

/// A state that cannot be spilled, since it is one value, holds too much.
pub(crate) fn unspillable(what: &str, limit: usize) -> errors::Error {
    err!(
        ExceededMemoryLimit,
        "{what} used too much memory and cannot spill to disk. Memory limit: {limit} bytes"
    )
}

/// A blocking stage holds too much.
pub(crate) fn too_much_memory(stage: &str, limit: usize) -> errors::Error {
    err!(
        QueryExceededMemoryLimitNoDiskUseAllowed,
        "Exceeded memory limit for {stage}: used more than {limit} bytes, but did not opt in to external sorting. Pass \
         allowDiskUse:true to opt in."
    )
}
