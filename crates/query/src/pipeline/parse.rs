//! Stage names, the places where each may stand, and their specifications.

use super::geo_near::GeoNear;
use super::group::Group;
use super::lookup_unwind;
use super::rows::{RowsKind, RowsStage};
use super::search::{SearchKind, SearchMetaFields, SearchStage};
use super::{
    Namespace, Op, Pipeline, Stage, bucket, densify, facet, fill, fusion, graph_lookup, lookup,
    merged, named, optimizer, redact, score, union_with, unwind, window, write,
};
use crate::arithmetic::decimal;
use crate::expr::{Expression, ParseEnv, SearchMetaAccess};
use crate::filter::Filter;
use crate::metadata::Available;
use crate::sort::SortPattern;
use crate::transform::Transform;
use bson::{Doc, Val, Writer, tag};
use errors::{Result, bail, err, operation};
use std::sync::Arc;

/// The most stages of one pipeline, and the deepest nesting of pipelines.
const MAX_STAGES: usize = 1000;
/// Of a router's part of a pipeline one stage may have become two.
const MORE_AT_ROUTER: usize = 1;
const MAX_NESTING: u32 = 20;

/// What a pipeline is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    Nothing,
    Facet,
    Lookup,
    UnionWith,
    /// A pipeline whose first stages have run elsewhere: these are the others.
    Rest,
}

/// Where a pipeline stands.
#[derive(Clone)]
pub struct ParseCtx {
    pub db: String,
    /// The collection it runs on; `None` for `{aggregate: 1}`.
    pub coll: Option<String>,
    pub env: ParseEnv,
    inside: Inside,
    /// Somewhere inside a `$facet`.
    in_facet: bool,
    depth: u32,
}

impl ParseCtx {
    pub fn new(db: &str, coll: Option<&str>, env: ParseEnv) -> ParseCtx {
        ParseCtx {
            db: db.to_string(),
            coll: coll.map(str::to_string),
            env: (env.allow_where(false)).with_search_meta(SearchMetaAccess::NoSearch),
            inside: Inside::Nothing,
            in_facet: false,
            depth: 0,
        }
    }

    /// The same for the stages behind those that others have run.
    pub fn of_rest(self) -> ParseCtx {
        ParseCtx {
            inside: Inside::Rest,
            ..self
        }
    }

    /// Whether its stages stand behind others, which have run elsewhere.
    pub fn is_rest(&self) -> bool {
        self.inside == Inside::Rest
    }

    pub(super) fn inside(
        &self,
        inside: Inside,
        from: Option<&Namespace>,
        env: ParseEnv,
    ) -> ParseCtx {
        let search_meta = match inside {
            // Its pipelines are as stages of the one around it.
            Inside::Facet => env.search_meta(),
            _ => SearchMetaAccess::NoSearch,
        };
        ParseCtx {
            db: self.db.clone(),
            coll: match inside {
                Inside::Facet => self.coll.clone(),
                _ => from.map(|n| n.coll.clone()),
            },
            env: env
                .with_available(Available::default())
                .with_search_meta(search_meta),
            inside,
            in_facet: self.in_facet || inside == Inside::Facet,
            depth: self.depth + 1,
        }
    }
}

/// Stages that MongoDB has and this server knows only by name.
const UNSUPPORTED: &[&str] = &[
    "$changeStream",
    "$changeStreamSplitLargeEvent",
    "$listCatalog",
    "$searchBeta",
    "$shardedDataDistribution",
];

const SUPPORTED: &[&str] = &[
    "$addFields",
    "$bucket",
    "$bucketAuto",
    "$collStats",
    "$count",
    "$currentOp",
    "$densify",
    "$documents",
    "$facet",
    "$fill",
    "$geoNear",
    "$graphLookup",
    "$group",
    "$indexStats",
    "$limit",
    "$listClusterCatalog",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$listSessions",
    "$lookup",
    "$match",
    "$merge",
    "$out",
    "$planCacheStats",
    "$project",
    "$querySettings",
    "$queryStats",
    "$rankFusion",
    "$redact",
    "$replaceRoot",
    "$replaceWith",
    "$sample",
    "$score",
    "$scoreFusion",
    "$search",
    "$searchMeta",
    "$set",
    "$setWindowFields",
    "$skip",
    "$sort",
    "$sortByCount",
    "$unionWith",
    "$unset",
    "$unwind",
    "$vectorSearch",
];

/// The stages that run here.
pub fn stage_names() -> impl Iterator<Item = &'static str> {
    SUPPORTED.iter().copied()
}

/// Whether MongoDB has a stage of that name.
pub fn is_stage(name: &str) -> bool {
    SUPPORTED.contains(&name) || UNSUPPORTED.contains(&name)
}

fn must_be_first(name: &str) -> bool {
    matches!(
        name,
        "$changeStream"
            | "$collStats"
            | "$currentOp"
            | "$documents"
            | "$indexStats"
            | "$listClusterCatalog"
            | "$listLocalSessions"
            | "$listSampledQueries"
            | "$listSearchIndexes"
            | "$listSessions"
            | "$planCacheStats"
            | "$querySettings"
            | "$queryStats"
            | "$search"
            | "$searchMeta"
            | "$shardedDataDistribution"
            | "$vectorSearch"
    )
}

/// Runs without a collection, on `{aggregate: 1}`.
fn is_collectionless(name: &str) -> bool {
    matches!(
        name,
        "$changeStream"
            | "$currentOp"
            | "$documents"
            | "$listClusterCatalog"
            | "$listLocalSessions"
            | "$listSampledQueries"
            | "$querySettings"
            | "$queryStats"
            | "$shardedDataDistribution"
    )
}

/// What the parsing of a stage counts: about a microsecond, before what it counts itself.
const STEPS_OF_STAGE: usize = 16;

impl Pipeline {
    /// Parses an array of stages.
    pub fn parse(stages: Val<'_>, ctx: &ParseCtx) -> Result<Pipeline> {
        let written = named::written(stages)?;
        let list = stages.as_array().unwrap_or(Doc::EMPTY);
        if ctx.depth > MAX_NESTING {
            bail!(
                MaxSubPipelineDepthExceeded,
                "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_NESTING}"
            );
        }
        let n = list.count();
        let is_rest = ctx.is_rest();
        let more = if is_rest { MORE_AT_ROUTER } else { 0 };
        if n > MAX_STAGES + more {
            bail!(
                7749501,
                "Pipeline length must be no longer than {MAX_STAGES} stages"
            );
        }
        let mut out = Vec::with_capacity(n);
        let mut known = Known::at_begin(ctx);
        for e in written {
            let e = e?;
            operation::steps(STEPS_OF_STAGE)?;
            check_inside(e.name, ctx)?;
            let is_first = out.is_empty() && !is_rest;
            if !is_first && UNSUPPORTED.contains(&e.name) && must_be_first(e.name) {
                bail!(
                    40602,
                    "{} is only valid as the first stage in a pipeline",
                    e.name
                );
            }
            let by_text = e.name == "$match" && e.val.as_doc().is_some_and(has_text);
            if by_text && (!is_first || ctx.inside == Inside::Facet) {
                bail!(
                    17313,
                    "$match with $text is only allowed as the first pipeline stage"
                );
            }
            if e.name == "$geoNear" {
                // What lets everything through is as if it were not there.
                out.retain(|s: &Stage| !matches!(&s.op, Op::Match(f) if f.is_trivial()));
                if is_rest || !out.is_empty() {
                    bail!(40603, "$geoNear was not the first stage in the pipeline.");
                }
            }
            if fusion::is_fusion(e.name) && !is_first {
                return Err(fusion::not_first(e.name).into());
            }
            match known.within(ctx) {
                Some(ctx) => parse_stage(e.name, e.val, &ctx, &mut out)?,
                None => parse_stage(e.name, e.val, ctx, &mut out)?,
            }
            known.pass(e.name, by_text, out.last());
        }
        check_places(list, ctx)?;
        if known.near {
            note_meta(list, &mut out);
        }
        if let Some(Op::Search(s)) = out.first_mut().map(|s| &mut s.op) {
            Arc::make_mut(s).asks = SearchMetaFields::of(list.values().skip(1));
        }
        Ok(Pipeline {
            stages: coalesce(out),
            optimized: false,
        })
    }
}

/// Which metadata the documents have between two stages.
#[derive(Default)]
struct Known {
    /// How far they are from a point.
    near: bool,
    metadata: Available,
    search_meta: SearchMetaAccess,
}

impl Known {
    fn at_begin(ctx: &ParseCtx) -> Known {
        Known {
            search_meta: ctx.env.search_meta(),
            ..Known::default()
        }
    }

    /// `ctx` where this is known; `None`: it is the same.
    fn within(&self, ctx: &ParseCtx) -> Option<ParseCtx> {
        let more = self.near
            || self.metadata != Available::default()
            || self.search_meta != ctx.env.search_meta();
        more.then(|| ParseCtx {
            env: (ctx.env.clone())
                .with_near(self.near || ctx.env.has_near())
                .with_available(self.metadata)
                .with_search_meta(self.search_meta),
            ..ctx.clone()
        })
    }

    /// Behind a stage: the documents that `$text` found, or that a stage has scored, keep their
    /// scores until one makes others of them.
    fn pass(&mut self, name: &str, by_text: bool, stage: Option<&Stage>) {
        if makes_others(name) {
            self.metadata = Available::default();
        }
        self.near |= name == "$geoNear";
        self.metadata.text_score |= by_text;
        self.pass_search(stage);
        match stage.map(|s| &s.op) {
            Some(Op::Fusion(f)) => {
                self.metadata = Available {
                    score: true,
                    score_details: f.details,
                    ..Available::default()
                }
            }
            Some(Op::Merged(m)) => {
                let found = m.found;
                self.near |= found.near;
                self.metadata.text_score |= found.text;
                self.metadata.search_score |= found.search || found.vector;
                self.metadata.score_details |= found.details;
            }
            Some(Op::Search(s)) => {
                self.metadata = Available {
                    search_score: true,
                    score_details: s.gives_details(),
                    ..Available::default()
                }
            }
            Some(Op::Score(s)) => {
                self.metadata.score = true;
                self.metadata.score_details = s.gives_details();
            }
            _ => {}
        }
    }

    /// `$$SEARCH_META` belongs to one pipeline, and not to what stands behind another one in it.
    fn pass_search(&mut self, stage: Option<&Stage>) {
        match stage.map(|s| &s.op) {
            Some(Op::Search(s)) if s.kind != SearchKind::Vector => {
                self.search_meta = SearchMetaAccess::Known;
            }
            Some(Op::Merged(m)) if m.found.search => self.search_meta = SearchMetaAccess::Known,
            Some(Op::UnionWith(_)) => self.search_meta = SearchMetaAccess::BehindPipeline,
            Some(Op::Lookup(l)) if !l.pipeline.stages.is_empty() => {
                self.search_meta = SearchMetaAccess::BehindPipeline;
            }
            _ => {}
        }
    }
}

/// Whether a stage behind `$geoNear` may ask how far a document is.
fn note_meta(list: Doc<'_>, stages: &mut [Stage]) {
    let mut rest = list.values().skip(1);
    let asks = rest.any(|s| memchr::memmem::find(s.bytes, b"geoNear").is_some());
    if let Some(Op::GeoNear(g)) = stages.first_mut().map(|s| &mut s.op).filter(|_| asks) {
        Arc::make_mut(g).meta = true;
    }
}

/// `$sort` then `$limit` (with `$skip` between): the sort keeps only as many as are wanted.
/// `$lookup` then `$unwind` of its array: one stage.
pub(super) fn coalesce(mut stages: Vec<Stage>) -> Vec<Stage> {
    for i in 0..stages.len() {
        if !matches!(stages[i].op, Op::Sort(_, None)) {
            continue;
        }
        let mut skip = 0u64;
        let mut wanted = None;
        for s in &stages[i + 1..] {
            match s.op {
                Op::Skip(n) => skip = skip.saturating_add(n),
                Op::Limit(n) => {
                    wanted = Some(skip.saturating_add(n));
                    break;
                }
                _ => break,
            }
        }
        if let Op::Sort(_, limit) = &mut stages[i].op {
            *limit = wanted;
        }
    }
    lookup_unwind::coalesce(stages)
}

/// Whether a query has `$text` where it can be.
pub(super) fn has_text(q: Doc<'_>) -> bool {
    q.iter().any(|e| match e.name {
        "$text" => true,
        "$and" | "$or" => {
            let list = e.val.as_array().unwrap_or(Doc::EMPTY);
            list.values().any(|q| q.as_doc().is_some_and(has_text))
        }
        _ => false,
    })
}

/// Stages that make documents of several others.
fn makes_others(stage: &str) -> bool {
    matches!(
        stage,
        "$group" | "$bucket" | "$bucketAuto" | "$count" | "$sortByCount" | "$facet"
    )
}

fn name_of(stage: Val<'_>) -> &str {
    stage.as_doc().and_then(Doc::first).map_or("", |e| e.name)
}

/// Stages that a nested pipeline may not hold.
fn check_inside(name: &str, ctx: &ParseCtx) -> Result<()> {
    if name == "$listClusterCatalog" && ctx.coll.is_some() {
        bail!(
            9621301,
            "The $listClusterCatalog stage cannot run on a collection: use {{aggregate: 1}}"
        );
    }
    let writes = matches!(name, "$out" | "$merge");
    match ctx.inside {
        Inside::Lookup if writes => bail!(
            51047,
            "{name} is not allowed within a $lookup's sub-pipeline"
        ),
        Inside::Lookup if name == "$vectorSearch" => bail!(
            51047,
            "{name} is not allowed within a $lookup's sub-pipeline"
        ),
        Inside::UnionWith if writes => bail!(
            31441,
            "{name} is not allowed within a $unionWith's sub-pipeline"
        ),
        Inside::Lookup if name == "$changeStream" => bail!(
            40573,
            "{name} is only valid as the first stage in a pipeline."
        ),
        _ => {}
    }
    let whole = matches!(
        name,
        "$facet"
            | "$geoNear"
            | "$collStats"
            | "$indexStats"
            | "$planCacheStats"
            | "$search"
            | "$searchBeta"
            | "$searchMeta"
            | "$vectorSearch"
    );
    let direct = writes
        || (must_be_first(name) && name != "$listSessions")
        || matches!(name, "$changeStreamSplitLargeEvent" | "$listCatalog");
    if ctx.in_facet && (whole || ctx.inside == Inside::Facet && direct) {
        bail!(
            40600,
            "{name} is not allowed to be used within a $facet stage"
        );
    }
    Ok(())
}

fn check_collectionless(first: &str) -> Result<()> {
    if !is_collectionless(first) {
        bail!(
            InvalidNamespace,
            "{{aggregate: 1}} is not valid for '{first}'; a collection is required."
        );
    }
    Ok(())
}

fn check_places(list: Doc<'_>, ctx: &ParseCtx) -> Result<()> {
    let n = list.count();
    let nowhere = ctx.coll.is_none() && ctx.inside == Inside::Nothing;
    for (i, v) in list.values().enumerate() {
        let name = name_of(v);
        // Whatever else is wrong: the first stage wants a collection.
        if i == 1 && name == "$listClusterCatalog" && nowhere {
            let first = list.values().next().map_or("", name_of);
            check_collectionless(first)?;
        }
        if (i > 0 || ctx.is_rest()) && must_be_first(name) {
            bail!(
                40602,
                "{name} is only valid as the first stage in a pipeline"
            );
        }
        if i + 1 < n && matches!(name, "$out" | "$merge") {
            bail!(40601, "{name} can only be the final stage in the pipeline");
        }
    }
    let first = list.values().next().map_or("", name_of);
    match &ctx.coll {
        Some(_)
            if is_collectionless(first)
                && ctx.inside != Inside::Facet
                && first != "$changeStream" =>
        {
            match first {
                "$documents" => bail!(
                    InvalidNamespace,
                    "'$documents' can only be run with {{aggregate: 1}}"
                ),
                "$listLocalSessions" => bail!(
                    InvalidNamespace,
                    "$listLocalSessions must be run against the database with {{aggregate: 1}}, not a collection"
                ),
                _ => bail!(
                    InvalidNamespace,
                    "{first} must be run against the 'admin' database with {{aggregate: 1}}"
                ),
            }
        }
        None if ctx.inside == Inside::Nothing && !is_collectionless(first) => {
            check_collectionless(first)
        }
        None if ctx.inside == Inside::Nothing && first == "$currentOp" && ctx.db != "admin" => {
            bail!(
                InvalidNamespace,
                "$currentOp must be run against the 'admin' database with {{aggregate: 1}}"
            )
        }
        _ => Ok(()),
    }
}

/// The stages that turn one document into one: `None` for another stage.
pub fn parse_transform(name: &str, spec: Val<'_>, env: &ParseEnv) -> Result<Option<Transform>> {
    Ok(Some(match name {
        "$project" => match spec.as_doc() {
            Some(d) => Transform::project(d, env)?,
            None => bail!(15969, "$project specification must be an object"),
        },
        "$addFields" | "$set" => match spec.as_doc() {
            Some(d) => Transform::add_fields(name, d, env)?,
            None => bail!(
                40272,
                "{name} specification stage must be an object, got {}",
                spec.type_name()
            ),
        },
        "$unset" => Transform::unset(spec)?,
        "$replaceRoot" => Transform::replace_root(spec, env)?,
        "$replaceWith" => Transform::replace_with(spec, env)?,
        "$fill" if fill::only_values(spec) => fill::values(spec, env)?,
        _ => return Ok(None),
    }))
}

/// A pipeline of an update, or of `$merge`: only stages that change one document.
pub fn parse_transforms(stages: Doc<'_>, env: &ParseEnv) -> Result<Vec<Transform>> {
    let env = &env.with_late_errors();
    stages
        .values()
        .map(|s| {
            let e = named::stage(s)?;
            match parse_transform(e.name, e.val, env)? {
                Some(t) => Ok(t),
                None if is_stage(e.name) => Err(err!(
                    InvalidOptions,
                    "{} is not allowed to be used within an update",
                    e.name
                )
                .into()),
                None => Err(unrecognized(e.name).into()),
            }
        })
        .collect()
}

/// Refuses a name that is no stage's.
pub fn check_stage(name: &str) -> Result<()> {
    match is_stage(name) {
        true => Ok(()),
        false => Err(unrecognized(name).into()),
    }
}

fn unrecognized(name: &str) -> errors::Error {
    err!(40324, "Unrecognized pipeline stage name: '{name}'")
}

fn parse_stage(name: &str, spec: Val<'_>, ctx: &ParseCtx, out: &mut Vec<Stage>) -> Result<()> {
    if name == merged::STAGE {
        let merged = Arc::new(merged::Merged::parse(spec)?);
        out.push(Stage::new(merged::STAGE, spec, Op::Merged(merged)));
        return Ok(());
    }
    if name == optimizer::INHIBIT {
        let op = optimizer::parse_inhibit(spec)?;
        out.push(Stage::new(optimizer::INHIBIT, spec, op));
        return Ok(());
    }
    let Some(&name) = SUPPORTED.iter().find(|n| **n == name) else {
        return Err(unrecognized(name).into());
    };
    super::options::check_unique(name, spec)?;
    if let Some(t) = parse_transform(name, spec, &ctx.env)? {
        out.push(Stage::new(name, spec, Op::Transform(Arc::new(t))));
        return Ok(());
    }
    let ns = || Namespace::new(&ctx.db, ctx.coll.as_deref().unwrap_or(""));
    let rows = |kind| {
        Ok::<_, errors::Stop>(Op::Rows(Arc::new(RowsStage::parse(
            name,
            kind,
            spec,
            ns(),
        )?)))
    };
    let op = match name {
        "$geoNear" => Op::GeoNear(Arc::new(GeoNear::parse(spec, &ctx.env)?)),
        "$match" => {
            let env = ctx.env.clone().allow_text(true);
            Op::Match(Arc::new(parse_match(spec, &env)?))
        }
        "$group" => Op::Group(Arc::new(Group::parse(spec, &ctx.env)?)),
        "$sort" => parse_sort(spec, ctx)?,
        "$limit" => Op::Limit(whole(name, 5107201, "limit", spec).and_then(|n| {
            if n == 0 {
                bail!(15958, "the limit must be positive");
            }
            Ok(n)
        })?),
        "$skip" => Op::Skip(whole(name, 5107200, "skip", spec)?),
        "$unwind" => Op::Unwind(Arc::new(unwind::Unwind::parse(spec)?)),
        "$count" => Op::Count(Arc::from(parse_count(spec)?)),
        "$sortByCount" => return sort_by_count(spec, ctx, out),
        "$bucket" => {
            out.extend(bucket::bucket(spec, ctx)?);
            return Ok(());
        }
        "$bucketAuto" => Op::BucketAuto(Arc::new(bucket::BucketAuto::parse(spec, ctx)?)),
        "$sample" => Op::Sample(parse_sample(spec)?),
        "$lookup" => Op::Lookup(Arc::new(lookup::Lookup::parse(spec, ctx)?)),
        "$unionWith" => Op::UnionWith(Arc::new(union_with::UnionWith::parse(spec, ctx)?)),
        "$graphLookup" => Op::GraphLookup(Arc::new(graph_lookup::GraphLookup::parse(spec, ctx)?)),
        "$rankFusion" | "$scoreFusion" => {
            Op::Fusion(Arc::new(fusion::Fusion::parse(name, spec, ctx)?))
        }
        "$score" => Op::Score(Arc::new(score::Score::parse(spec, &ctx.env)?)),
        "$setWindowFields" => Op::Window(Arc::new(window::Window::parse(spec, &ctx.env)?)),
        "$fill" => {
            out.extend(fill::parse(spec, ctx)?);
            return Ok(());
        }
        "$densify" => Op::Densify(Arc::new(densify::Densify::parse(spec, &ctx.env)?)),
        "$facet" => Op::Facet(Arc::new(facet::Facet::parse(spec, ctx)?)),
        "$redact" => Op::Redact(Arc::new(redact::parse(spec, &ctx.env)?)),
        "$documents" => Op::Documents(Arc::new(Expression::parse(spec, &ctx.env)?)),
        "$out" => Op::Out(Arc::new(write::OutSpec::parse(spec, ctx)?)),
        "$merge" => Op::Merge(Arc::new(write::MergeSpec::parse(spec, ctx)?)),
        "$collStats" => rows(RowsKind::CollStats)?,
        "$indexStats" => rows(RowsKind::IndexStats)?,
        "$currentOp" => rows(RowsKind::CurrentOp)?,
        "$listSessions" => {
            if (ctx.db.as_str(), ctx.coll.as_deref()) != ("config", Some("system.sessions")) {
                bail!(
                    InvalidNamespace,
                    "$listSessions may only be run against config.system.sessions"
                );
            }
            rows(RowsKind::ListSessions)?
        }
        "$search" | "$searchMeta" | "$vectorSearch" => {
            Op::Search(Arc::new(SearchStage::parse(name, spec, ns())?))
        }
        "$listSearchIndexes" => rows(RowsKind::ListSearchIndexes)?,
        "$listLocalSessions" => rows(RowsKind::ListLocalSessions)?,
        "$planCacheStats" => rows(RowsKind::PlanCacheStats)?,
        "$querySettings" => rows(RowsKind::QuerySettings)?,
        "$queryStats" => rows(RowsKind::QueryStats)?,
        "$listSampledQueries" => rows(RowsKind::SampledQueries)?,
        "$listClusterCatalog" => rows(RowsKind::ListClusterCatalog)?,
        _ => return Err(unrecognized(name).into()),
    };
    out.push(Stage::new(name, spec, op));
    Ok(())
}

pub(super) fn parse_match(spec: Val<'_>, env: &ParseEnv) -> Result<Filter> {
    let Some(d) = spec.as_doc() else {
        bail!(15959, "the match filter must be an expression in an object");
    };
    check_match(d)?;
    Filter::parse(d, env)
}

/// Operators of find that a pipeline refuses.
fn check_match(d: Doc<'_>) -> Result<()> {
    for e in d.iter() {
        match e.name {
            "$where" => bail!(BadValue, "$where is not allowed in this context"),
            "$and" | "$or" | "$nor" => {
                for q in e.val.as_array().unwrap_or(Doc::EMPTY).values() {
                    check_match(q.as_doc().unwrap_or(Doc::EMPTY))?;
                }
            }
            _ => {
                if let Some(ops) = e.val.as_doc()
                    && ops
                        .iter()
                        .any(|o| matches!(o.name, "$near" | "$nearSphere" | "$geoNear"))
                {
                    return Err(crate::filter::near_not_allowed().into());
                }
            }
        }
    }
    Ok(())
}

fn parse_sort(spec: Val<'_>, ctx: &ParseCtx) -> Result<Op> {
    let Some(d) = spec.as_doc() else {
        bail!(15973, "the $sort key specification must be an object");
    };
    if d.is_empty() {
        bail!(15976, "$sort stage must have at least one sort key");
    }
    let pattern = SortPattern::parse_found(d)?.collated(ctx.env.collation());
    pattern.check_meta(ctx.env.available())?;
    Ok(Op::Sort(Arc::new(pattern), None))
}

fn whole(stage: &str, code: i32, what: &str, v: Val<'_>) -> Result<u64> {
    let fail = |why: &str| {
        Err(errors::Error::coded(
            code,
            format!("invalid argument to {stage} stage: {why}: {what}: {v}"),
        )
        .into())
    };
    if !v.is_number() {
        return fail("Expected a number in");
    }
    match v.to_i64_exact() {
        Some(n) => match u64::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => fail("Expected a non-negative number in"),
        },
        None => fail("Cannot represent as a 64-bit integer"),
    }
}

fn parse_count(spec: Val<'_>) -> Result<&str> {
    let Some(name) = spec.as_str() else {
        bail!(40156, "the count field must be a non-empty string");
    };
    if name.is_empty() {
        bail!(40157, "the count field must be a non-empty string");
    }
    if name.starts_with('$') {
        bail!(40158, "the count field cannot be a $-prefixed path");
    }
    if name.contains('\0') {
        bail!(40159, "the count field cannot contain a null byte");
    }
    if name.contains('.') {
        bail!(40160, "the count field cannot contain '.'");
    }
    if name == "_id" {
        bail!(9039800, "the count field cannot be '_id'");
    }
    Ok(name)
}

fn sort_by_count(spec: Val<'_>, ctx: &ParseCtx, out: &mut Vec<Stage>) -> Result<()> {
    match spec.tag {
        tag::DOCUMENT => {
            let first = spec.as_doc().and_then(Doc::first);
            if !first.is_some_and(|e| e.name.starts_with('$')) {
                bail!(
                    40147,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
                );
            }
        }
        tag::STRING => {
            if !spec.as_str().unwrap_or("").starts_with('$') {
                bail!(
                    40148,
                    "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
                );
            }
        }
        _ => bail!(
            40149,
            "the sortByCount field must be specified as a string or as an object"
        ),
    }
    let mut w = Writer::new();
    w.val("_id", spec);
    w.open_doc("count").i32("$sum", 1).close();
    let group = w.finish();
    let sort = bson::doc! { "count": -1 };
    parse_stage("$group", group.as_doc().as_val(), ctx, out)?;
    parse_stage("$sort", sort.as_doc().as_val(), ctx, out)
}

fn parse_sample(spec: Val<'_>) -> Result<u64> {
    let Some(d) = spec.as_doc() else {
        bail!(28745, "the $sample stage specification must be an object");
    };
    let mut size = None;
    for e in d.iter() {
        if e.name != "size" {
            bail!(28748, "unrecognized option to $sample: {}", e.name);
        }
        if !e.val.is_number() {
            bail!(28746, "size argument to $sample must be a number");
        }
        size = Some(match e.val.as_decimal() {
            // Decimals round half to even, doubles lose their fraction.
            Some(d) => decimal::to_i64(d, decimal::Round::HalfEven)
                .unwrap_or(e.val.to_i64_truncated().unwrap_or(0)),
            None => e.val.to_i64_truncated().unwrap_or(0),
        });
    }
    match size.map(u64::try_from) {
        Some(Ok(n)) if n > 0 => Ok(n),
        Some(_) => bail!(28747, "size argument to $sample must be a positive integer"),
        None => bail!(28749, "$sample stage must specify a size"),
    }
}
