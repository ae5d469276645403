//! `$score`: gives each document a score, an expression of it, which `$meta: "score"` shows.

use super::options::{options, required, string, wrong_type};
use super::window::{self, Window};
use super::{IdleVisitor, Op, PipelineHost, Source, Stage};
use crate::arithmetic::Number;
use crate::expr::{Computed, EvalCtx, Expression, ParseEnv, Vars};
use crate::metadata::Metadata;
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::{Result, bail};
use std::sync::Arc;

const STAGE: &str = "$score";

/// How scores are brought to a common range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Normalization {
    None,
    Sigmoid,
    /// Between the least and the greatest.
    MinMaxScaler,
}

impl Normalization {
    pub fn parse(at: &str, v: Val<'_>) -> Result<Normalization> {
        Ok(match string(at, "normalization", v)? {
            "none" => Normalization::None,
            "sigmoid" => Normalization::Sigmoid,
            "minMaxScaler" => Normalization::MinMaxScaler,
            other => bail!(
                BadValue,
                "Enumeration value '{other}' for field '{at}.normalization' is not a valid value."
            ),
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Normalization::None => "none",
            Normalization::Sigmoid => "sigmoid",
            Normalization::MinMaxScaler => "minMaxScaler",
        }
    }
}

/// 1 / (1 + e⁻ˣ)
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[derive(Debug)]
pub(crate) struct Score {
    score: Expression,
    normalization: Normalization,
    weight: f64,
    details: bool,
    /// The expression as `scoreDetails` shows it.
    shown: String,
    /// Scales the scores, where that needs all of them.
    scale: Option<Arc<Window>>,
}

/// An expression as a string.
pub(crate) fn shown_expression(v: Val<'_>) -> String {
    let shown = bson::shell::doc(doc! { "string": v }.as_doc()).to_string();
    shown.replace('"', "'")
}

/// The number that an expression gives as a score.
pub(crate) fn number(v: &Computed<'_>) -> Result<f64> {
    match v.as_val().and_then(Number::of) {
        Some(n) => Ok(n.to_f64()),
        None => bail!(
            TypeMismatch,
            "a score must be a number, but found {}",
            v.type_name()
        ),
    }
}

impl Score {
    pub fn parse(spec: Val<'_>, env: &ParseEnv) -> Result<Score> {
        let Some(d) = spec.as_doc() else {
            bail!(
                FailedToParse,
                "The {STAGE} stage specification must be an object, found {}",
                spec.type_name()
            );
        };
        let [score, normalization, weight, details] = options(
            STAGE,
            d,
            ["score", "normalization", "weight", "scoreDetails"],
        )?;
        let score = required(STAGE, "score", score)?;
        let normalization = match normalization {
            Some(v) => Normalization::parse(STAGE, v)?,
            None => Normalization::None,
        };
        let weight = match weight.map(|v| (v, Number::of(v))) {
            None => 1.0,
            Some((_, Some(n))) => n.to_f64(),
            Some((v, None)) => return Err(wrong_type(STAGE, "weight", v, "double").into()),
        };
        if !(0.0..=1.0).contains(&weight) {
            let bound = if weight > 1.0 { "<= 1" } else { ">= 0" };
            bail!(
                51024,
                "BSON field 'weight' value must be {bound}, actual value '{weight}'"
            );
        }
        let details = match details {
            None => false,
            Some(v) => v
                .as_bool()
                .ok_or_else(|| wrong_type(STAGE, "scoreDetails", v, "bool"))?,
        };
        let scale = match normalization {
            Normalization::MinMaxScaler => {
                let spec = doc! { "sortBy": doc! { "v": -1 }, "output": doc! {
                    "n": doc! { "$minMaxScaler": doc! { "input": "$v" } },
                } };
                Some(Arc::new(Window::parse(spec.as_doc().as_val(), env)?))
            }
            _ => None,
        };
        Ok(Score {
            shown: shown_expression(score),
            score: Expression::parse(score, env)?,
            normalization,
            weight,
            details,
            scale,
        })
    }

    /// The stage that makes what `$text` knows of a document its score.
    pub fn of_text() -> Result<Stage> {
        let spec = doc! { "score": doc! { "$meta": "textScore" } };
        let spec = spec.as_doc().as_val();
        let score = Score::parse(spec, &ParseEnv::new().with_text_score(true))?;
        Ok(Stage::new(STAGE, spec, Op::Score(Arc::new(score))))
    }

    pub fn gives_details(&self) -> bool {
        self.details
    }

    pub fn attach(self: &Arc<Score>, input: Box<dyn Source>, vars: Arc<Vars>) -> Box<dyn Source> {
        let input = match &self.scale {
            None => input,
            Some(scale) => {
                let wrapped = Wrap {
                    input,
                    spec: self.clone(),
                    vars: vars.clone(),
                    out: DocBuf::new(),
                };
                Box::new(window::Run::new(
                    Box::new(wrapped),
                    scale.clone(),
                    vars.clone(),
                ))
            }
        };
        Box::new(Run {
            input,
            spec: self.clone(),
            vars,
            meta: Metadata::default(),
        })
    }

    fn details(&self, value: f64, raw: f64) -> DocBuf {
        let mut w = Writer::new();
        w.f64("value", value)
            .str(
                "description",
                "the score calculated from multiplying a weight in the range [0,1] with either a normalized or nonnormalized value:",
            )
            .f64("rawScore", raw)
            .str("normalization", self.normalization.name())
            .f64("weight", self.weight)
            .str("expression", &self.shown)
            .open_array("details")
            .close();
        w.finish()
    }
}

/// A document and its raw score: `{docs, v}`.
struct Wrap {
    input: Box<dyn Source>,
    spec: Arc<Score>,
    vars: Arc<Vars>,
    out: DocBuf,
}

impl Source for Wrap {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        let ctx = EvalCtx::new(self.input.doc(), &self.vars).with_meta(self.input.meta());
        let raw = number(&self.spec.score.evaluate(&ctx)?)?;
        let mut w = Writer::new();
        w.doc("docs", self.input.doc()).f64("v", raw);
        self.out = w.finish();
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        super::show_doc(&mut self.out, wanted, to)
    }
}

struct Run {
    /// Gives documents, or, where the scores are scaled, `{docs, v, n}`.
    input: Box<dyn Source>,
    spec: Arc<Score>,
    vars: Arc<Vars>,
    meta: Metadata,
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        let doc = self.input.doc();
        let (raw, value) = if self.spec.scale.is_some() {
            let number = |name: &str| doc.get(name).and_then(|v| v.to_f64()).unwrap_or(0.0);
            self.meta = Metadata::default();
            (number("v"), number("n"))
        } else {
            self.meta = self.input.meta().clone();
            let ctx = EvalCtx::new(doc, &self.vars).with_meta(&self.meta);
            let raw = number(&self.spec.score.evaluate(&ctx)?)?;
            match self.spec.normalization {
                Normalization::Sigmoid => (raw, sigmoid(raw)),
                _ => (raw, raw),
            }
        };
        let value = value * self.spec.weight;
        self.meta.score = Some(value);
        self.meta.score_details = match self.spec.details {
            true => Some(Box::new(self.spec.details(value, raw))),
            false => None,
        };
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        let doc = self.input.doc();
        match self.spec.scale {
            Some(_) => doc
                .get("docs")
                .and_then(|v| v.as_doc())
                .unwrap_or(Doc::EMPTY),
            None => doc,
        }
    }

    fn meta(&self) -> &Metadata {
        &self.meta
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}
