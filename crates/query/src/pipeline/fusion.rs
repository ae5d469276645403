//! `$rankFusion` and `$scoreFusion` as they are written: several pipelines over one collection, whose
//! documents come out once each, ordered by a score made of their ranks or scores.
//!
//! What an input gives is wrapped (`fusion_run`), grouped by `_id`, scored and sorted, by the operators
//! that `$group`, `$setWindowFields` and `$sort` run on: so it spills as these do.

use super::fusion_run::{Fuse, Inputs};
use super::group::{self, Group};
use super::options::{object, options, required, wrong_type};
use super::parse::{Inside, ParseCtx};
use super::score::{Normalization, Score, shown_expression};
use super::sort::{self, Order};
use super::window::{self, Window};
use super::{Namespace, Op, Pipeline, Source};
use crate::arithmetic::Number;
use crate::expr::{Expression, Vars, check_field_name};
use crate::sort::SortPattern;
use bson::{Doc, Val, Writer, doc};
use errors::{Error, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Fusion {
    pub from: Namespace,
    /// In order of their names.
    pub parts: Vec<FusionInput>,
    pub how: FusionScore,
    pub details: bool,
    /// Scales the scores of each input.
    scale: Option<Arc<Window>>,
    group: Arc<Group>,
    order: Arc<SortPattern>,
}

/// An input.
#[derive(Debug)]
pub(crate) struct FusionInput {
    pub name: String,
    pub pipeline: Pipeline,
    pub weight: f64,
    /// The order by which two documents have the same rank; `None`: each has its own.
    pub ties: Option<Arc<SortPattern>>,
}

/// What the score is made of.
#[derive(Debug)]
pub(crate) enum FusionScore {
    Ranks,
    Scores {
        normalization: Normalization,
        /// Of `docs` and, for each input, `v` with its number; `None`: the mean.
        combine: Option<Expression>,
        /// As `scoreDetails` shows it.
        shown: String,
    },
}

/// The stage that is parsed, and its codes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rank,
    Score,
}

impl Kind {
    fn of(name: &str) -> Kind {
        match name {
            "$rankFusion" => Kind::Rank,
            _ => Kind::Score,
        }
    }

    fn stage(self) -> &'static str {
        match self {
            Kind::Rank => "$rankFusion",
            Kind::Score => "$scoreFusion",
        }
    }

    /// A refusal of an input pipeline.
    fn refuse<T>(self, rank: i32, score: i32, why: &str) -> Result<T> {
        let (code, begin) = match self {
            Kind::Rank => (
                rank,
                "All subpipelines to the $rankFusion stage must begin with one of $search, $vectorSearch, $geoNear, or have a \
                 custom $sort in the pipeline.",
            ),
            Kind::Score => (
                score,
                "All subpipelines to the $scoreFusion stage must begin with one of $search, $vectorSearch, or have a custom \
                 $score in the pipeline.",
            ),
        };
        Err(Error::coded(
            code,
            format!("{} input pipeline {why}. {begin}", self.stage()),
        )
        .into())
    }
}

/// The two stages themselves.
pub(super) fn is_fusion(name: &str) -> bool {
    matches!(name, "$rankFusion" | "$scoreFusion")
}

/// Stages that choose and order documents and leave them as they are.
fn selects(name: &str, spec: Val<'_>) -> bool {
    match name {
        "$match" | "$sort" | "$limit" | "$skip" | "$sample" | "$score" | "$search"
        | "$vectorSearch" => true,
        "$geoNear" => spec.as_doc().is_some_and(|d| {
            d.iter()
                .all(|e| !matches!(e.name, "distanceField" | "includeLocs"))
        }),
        name => is_fusion(name),
    }
}

const OPTIONS: [&str; 3] = ["input", "combination", "scoreDetails"];

fn specification<'a>(stage: &str, spec: Val<'a>) -> Result<Doc<'a>> {
    let Some(d) = spec.as_doc() else {
        bail!(
            FailedToParse,
            "{stage} must take a nested object but found: {spec}"
        );
    };
    Ok(d)
}

/// The pipelines that the stage of that name names.
pub(super) fn pipelines<'a>(name: &str, spec: Val<'a>) -> Result<Doc<'a>> {
    let kind = Kind::of(name);
    let stage = kind.stage();
    let [input, _, _] = options(stage, specification(stage, spec)?, OPTIONS)?;
    let input = object(stage, "input", required(stage, "input", input)?)?;
    Ok(inputs_of(kind, input)?.0)
}

impl Fusion {
    pub fn parse(name: &str, spec: Val<'_>, ctx: &ParseCtx) -> Result<Fusion> {
        let kind = Kind::of(name);
        let stage = kind.stage();
        let d = specification(stage, spec)?;
        let Some(coll) = &ctx.coll else {
            bail!(
                InvalidNamespace,
                "{{aggregate: 1}} is not valid for '{stage}'; a collection is required."
            );
        };
        let [input, combination, details] = options(stage, d, OPTIONS)?;
        let input = object(stage, "input", required(stage, "input", input)?)?;
        let details = match details {
            None => false,
            Some(v) => v
                .as_bool()
                .ok_or_else(|| wrong_type(stage, "scoreDetails", v, "bool"))?,
        };
        let combination = combination
            .map(|c| object(stage, "combination", c))
            .transpose()?;
        let from = Namespace::new(&ctx.db, coll);
        let (pipelines, normalization) = inputs_of(kind, input)?;
        let weights = weights_of(kind, combination)?;
        let mut parts = parts(kind, pipelines, &from, ctx)?;
        if let Some(weights) = weights {
            weigh(stage, weights, &mut parts)?;
        }
        let how = match kind {
            Kind::Rank => FusionScore::Ranks,
            Kind::Score => combined(combination, normalization, &parts, ctx)?,
        };
        let scale = match normalization {
            Normalization::MinMaxScaler => {
                let spec = doc! { "partitionBy": "$p", "output": doc! {
                    "value": doc! { "$minMaxScaler": doc! { "input": "$score" } },
                } };
                Some(Arc::new(Window::parse(spec.as_doc().as_val(), &ctx.env)?))
            }
            _ => None,
        };
        let group = doc! {
            "_id": "$_id",
            "docs": doc! { "$first": "$docs" },
            "s": doc! { "$push": doc! {
                "p": "$p", "rank": "$rank", "score": "$score", "value": "$value", "details": "$details",
            } },
        };
        let order = doc! { "score": doc! { "$meta": "score" }, "_id": 1 };
        let order = SortPattern::parse_found(order.as_doc())?.collated(ctx.env.collation());
        Ok(Fusion {
            from,
            parts,
            how,
            details,
            scale,
            group: Arc::new(Group::parse(group.as_doc().as_val(), &ctx.env)?),
            order: Arc::new(order),
        })
    }

    pub fn attach(self: &Arc<Fusion>, vars: &Arc<Vars>) -> Box<dyn Source> {
        let mut out: Box<dyn Source> = Box::new(Inputs::new(self.clone(), vars.clone()));
        if let Some(scale) = &self.scale {
            out = Box::new(window::Run::new(out, scale.clone(), vars.clone()));
        }
        out = Box::new(group::Run::new(out, self.group.clone(), vars.clone()));
        out = Box::new(Fuse::new(out, self.clone(), vars.clone()));
        Box::new(sort::Run::new(out, Order::By(self.order.clone()), None))
    }
}

/// The pipelines and the normalization of `input`.
fn inputs_of(kind: Kind, input: Doc<'_>) -> Result<(Doc<'_>, Normalization)> {
    let (stage, at) = (kind.stage(), format!("{}.input", kind.stage()));
    let (pipelines, normalization) = match kind {
        Kind::Rank => {
            let [pipelines] = options(&at, input, ["pipelines"])?;
            (pipelines, Normalization::None)
        }
        Kind::Score => {
            let [pipelines, n] = options(&at, input, ["pipelines", "normalization"])?;
            let n = required(&at, "normalization", n)?;
            (pipelines, Normalization::parse(&at, n)?)
        }
    };
    let pipelines = object(&at, "pipelines", required(&at, "pipelines", pipelines)?)?;
    if pipelines.is_empty() {
        bail!(
            BadValue,
            "{stage} must have at least one input pipeline in 'input.pipelines'"
        );
    }
    Ok((pipelines, normalization))
}

fn weights_of<'a>(kind: Kind, combination: Option<Doc<'a>>) -> Result<Option<Doc<'a>>> {
    let Some(d) = combination else {
        return Ok(None);
    };
    let at = format!("{}.combination", kind.stage());
    let weights = match kind {
        Kind::Rank => {
            let [weights] = options(&at, d, ["weights"])?;
            Some(required(&at, "weights", weights)?)
        }
        Kind::Score => options(&at, d, ["weights", "method", "expression"])?[0],
    };
    weights.map(|w| object(&at, "weights", w)).transpose()
}

fn parts(
    kind: Kind,
    pipelines: Doc<'_>,
    from: &Namespace,
    ctx: &ParseCtx,
) -> Result<Vec<FusionInput>> {
    let mut by_name = BTreeMap::new();
    for e in pipelines.iter() {
        check_field_name(e.name)?;
        let part = part(kind, e.name, e.val, from, ctx)?;
        if by_name.insert(e.name, part).is_some() {
            bail!(
                9921000,
                "{} pipeline names must be unique, but found duplicate name '{}'",
                kind.stage(),
                e.name
            );
        }
    }
    Ok(by_name.into_values().collect())
}

fn part(
    kind: Kind,
    name: &str,
    stages: Val<'_>,
    from: &Namespace,
    ctx: &ParseCtx,
) -> Result<FusionInput> {
    let at = format!("{}.input.pipelines", kind.stage());
    let Some(list) = stages.as_array() else {
        return Err(wrong_type(&at, name, stages, "array").into());
    };
    check_input(kind, list)?;
    let inner = ctx.inside(Inside::UnionWith, Some(from), ctx.env.clone());
    let mut pipeline = Pipeline::parse(stages, &inner)?;
    if begins_with_text(&pipeline) && !list.values().any(|s| name_of(s) == "$score") {
        // What `$text` knows of a document is kept where a stage asks for it.
        pipeline.stages.push(Score::of_text()?);
    }
    let mut ties = None;
    for s in &pipeline.stages {
        match &s.op {
            Op::Sort(p, _) => ties = Some(p.clone()),
            Op::Sample(_) => ties = None,
            _ => {}
        }
    }
    Ok(FusionInput {
        name: name.to_string(),
        pipeline,
        weight: 1.0,
        ties,
    })
}

fn name_of(stage: Val<'_>) -> &str {
    stage.as_doc().and_then(Doc::first).map_or("", |e| e.name)
}

fn begins_with_text(pipeline: &Pipeline) -> bool {
    matches!(pipeline.stages.first().map(|s| &s.op), Some(Op::Match(f)) if f.text().is_some())
}

/// Whether stages may be an input: they order or score documents, and change none.
fn check_input(kind: Kind, list: Doc<'_>) -> Result<()> {
    for (i, v) in list.values().enumerate() {
        let Some(d) = v.as_doc() else {
            bail!(
                TypeMismatch,
                "Each element of the 'pipeline' array must be an object"
            );
        };
        if d.count() != 1 {
            bail!(
                40323,
                "A pipeline stage specification object must contain exactly one field."
            );
        }
        super::check_stage(name_of(v))?;
        if i > 0 && is_fusion(name_of(v)) {
            return Err(not_first(name_of(v)).into());
        }
    }
    let Some(first) = list.values().next() else {
        return kind.refuse(9834300, 9402503, "cannot be empty");
    };
    if is_fusion(name_of(first)) {
        let why = "has a nested hybrid search stage ($rankFusion/$scoreFusion)";
        return kind.refuse(10473002, 10473003, why);
    }
    let has = |name: &str| list.values().any(|v| name_of(v) == name);
    let searches = matches!(name_of(first), "$search" | "$vectorSearch");
    let by_text = || memchr::memmem::find(first.bytes, b"$text\0").is_some();
    let good = match kind {
        Kind::Rank => searches || name_of(first) == "$geoNear" || has("$sort"),
        Kind::Score => searches || has("$score") || name_of(first) == "$match" && by_text(),
    };
    if !good {
        let what = match kind {
            Kind::Rank => "is not ranked",
            Kind::Score => "is not scored",
        };
        return kind.refuse(9191100, 9402500, what);
    }
    for v in list.values() {
        let spec = v.as_doc().and_then(Doc::first).map_or(Val::NULL, |e| e.val);
        if !selects(name_of(v), spec) {
            let code = match kind {
                Kind::Rank => 9191103,
                Kind::Score => 9402502,
            };
            return Err(Error::coded(
                code,
                format!(
                    "{} is not a selection stage: only stages that retrieve, limit, or order documents are allowed in an input \
                     pipeline of {}",
                    name_of(v),
                    kind.stage()
                ),
            )
            .into());
        }
    }
    Ok(())
}

/// Neither of the stages follows another.
pub(super) fn not_first(name: &str) -> Error {
    Error::coded(
        10170100,
        format!("{name} must be the first stage in the pipeline"),
    )
}

/// Gives the inputs their weights.
fn weigh(stage: &str, weights: Doc<'_>, parts: &mut [FusionInput]) -> Result<()> {
    if weights.count() > parts.len() {
        bail!(
            9460301,
            "{stage} input has more weights ({}) than pipelines ({}). If 'combination.weights' is specified, there must be a \
             less than or equal number of weights as pipelines, each of which is unique and existing.",
            weights.count(),
            parts.len()
        );
    }
    for e in weights.iter() {
        let Some(part) = parts.iter_mut().find(|p| p.name == e.name) else {
            bail!(
                9967500,
                "{stage} stage contained ({}) weight(s) in 'combination.weights' that did not reference valid pipeline names.",
                e.name
            );
        };
        let Some(weight) = Number::of(e.val).map(Number::to_f64) else {
            bail!(
                13118,
                "{stage} pipeline weight must be a number: '{}' is of type {}",
                e.name,
                e.val.type_name()
            );
        };
        if weight.is_nan() || weight < 0.0 {
            bail!(
                9460300,
                "{stage} pipeline weight must be non-negative, but given {weight}"
            );
        }
        part.weight = weight;
    }
    Ok(())
}

/// How `$scoreFusion` makes one score of several.
fn combined(
    combination: Option<Doc<'_>>,
    normalization: Normalization,
    parts: &[FusionInput],
    ctx: &ParseCtx,
) -> Result<FusionScore> {
    const AT: &str = "$scoreFusion.combination";
    let d = combination.unwrap_or(Doc::EMPTY);
    let [weights, method, expression] = options(AT, d, ["weights", "method", "expression"])?;
    let by_expression = match method.map(|v| (v, v.as_str())) {
        None | Some((_, Some("avg"))) => false,
        Some((_, Some("expression"))) => true,
        Some((_, Some(other))) => bail!(
            BadValue,
            "Enumeration value '{other}' for field '{AT}.method' is not a valid value."
        ),
        Some((v, None)) => return Err(wrong_type(AT, "method", v, "string").into()),
    };
    if by_expression != expression.is_some() {
        bail!(
            10017300,
            "combination.expression should only be specified when combination.method has the value \"expression\""
        );
    }
    if by_expression && weights.is_some() {
        bail!(
            10017301,
            "both combination.expression and combination.weights cannot be specified"
        );
    }
    let combine = expression
        .map(|e| {
            let mut w = Writer::new();
            w.open_doc("$let").open_doc("vars");
            for (i, p) in parts.iter().enumerate() {
                w.str(&p.name, &format!("$v{i}"));
            }
            w.close().val("in", e).close();
            Expression::parse(w.finish().as_doc().as_val(), &ctx.env)
        })
        .transpose()?;
    Ok(FusionScore::Scores {
        normalization,
        combine,
        shown: expression.map(shown_expression).unwrap_or_default(),
    })
}
