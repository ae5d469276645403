//! How `$rankFusion` and `$scoreFusion` run: what the inputs give, and what becomes of a document that
//! some of them have given.

use super::fusion::{Fusion, FusionInput, FusionScore};
use super::score::{Normalization, number, sigmoid};
use super::{IdleVisitor, PipelineHost, Source};
use crate::expr::{EvalCtx, Expression, Vars};
use crate::metadata::Metadata;
use bson::{Doc, DocBuf, Val, Writer};
use errors::Result;
use std::sync::Arc;

/// Of a rank r an input makes 1 / (60 + r).
const RANK_CONSTANT: f64 = 60.0;

/// The documents of all inputs, one input after the other, as
/// `{_id, docs: document, p: number of the input, rank | score and value, details}`.
pub(super) struct Inputs {
    spec: Arc<Fusion>,
    vars: Arc<Vars>,
    part: usize,
    running: Option<Box<dyn Source>>,
    /// Documents of this input so far.
    n: i64,
    rank: i64,
    /// What the last one was ordered by, and this one is.
    last: Vec<u8>,
    key: Vec<u8>,
    out: DocBuf,
}

impl Inputs {
    pub fn new(spec: Arc<Fusion>, vars: Arc<Vars>) -> Inputs {
        Inputs {
            spec,
            vars,
            part: 0,
            running: None,
            n: 0,
            rank: 0,
            last: Vec::new(),
            key: Vec::new(),
            out: DocBuf::new(),
        }
    }

    /// Wraps the document that the running input stands on.
    fn wrap(&mut self, part: &FusionInput) -> Result<()> {
        let Some(source) = &self.running else {
            return Ok(());
        };
        let (doc, meta) = (source.doc(), source.meta());
        self.n += 1;
        self.key.clear();
        if let Some(order) = &part.ties {
            order.sort_key_with(doc, meta, &mut self.key)?;
        }
        if self.n == 1 || part.ties.is_none() || self.key != self.last {
            self.rank = self.n;
            std::mem::swap(&mut self.key, &mut self.last);
        }
        let mut w = Writer::new();
        w.val("_id", doc.get("_id").unwrap_or(Val::NULL))
            .doc("docs", doc)
            .i32("p", i32::try_from(self.part).unwrap_or(i32::MAX));
        match &self.spec.how {
            FusionScore::Ranks => {
                w.int("rank", self.rank);
            }
            FusionScore::Scores { normalization, .. } => {
                let score = meta.any_score().unwrap_or(0.0);
                let value = match normalization {
                    Normalization::Sigmoid => sigmoid(score),
                    _ => score,
                };
                w.f64("score", score).f64("value", value);
            }
        }
        if self.spec.details {
            w.open_doc("details");
            write_details(&self.spec.how, meta, &mut w);
            w.close();
        }
        self.out = w.finish();
        Ok(())
    }
}

/// What an input itself says of the score that it gave.
fn write_details(how: &FusionScore, meta: &Metadata, w: &mut Writer) {
    match (&meta.score_details, how) {
        (Some(d), FusionScore::Ranks) => {
            w.extend(d.as_doc());
        }
        (Some(d), FusionScore::Scores { .. }) => {
            w.doc("details", d.as_doc());
        }
        (None, _) => {
            if let (FusionScore::Ranks, Some(score)) = (how, meta.any_score()) {
                w.f64("value", score);
            }
            w.open_array("details").close();
        }
    }
}

impl Source for Inputs {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let spec = self.spec.clone();
        while let Some(part) = spec.parts.get(self.part) {
            let running = match &mut self.running {
                Some(r) => r,
                None => {
                    let source = host.open(&spec.from, &part.pipeline, &self.vars)?;
                    self.running.insert(source)
                }
            };
            if running.advance(host)? {
                self.wrap(part)?;
                return Ok(true);
            }
            (self.running, self.n) = (None, 0);
            self.part += 1;
        }
        Ok(false)
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        if let Some(running) = &mut self.running {
            running.parts(false, to)?;
        }
        super::show_doc(&mut self.out, wanted, to)
    }
}

/// Scores the groups of documents: the document of each, with its score.
pub(super) struct Fuse {
    input: Box<dyn Source>,
    spec: Arc<Fusion>,
    vars: Arc<Vars>,
    meta: Metadata,
}

/// What one input says of a document.
#[derive(Clone, Copy)]
struct Given<'a> {
    entry: Option<Doc<'a>>,
    weight: f64,
}

impl<'a> Given<'a> {
    fn number(self, name: &str) -> Option<f64> {
        self.entry?.get(name)?.to_f64()
    }

    /// What it adds to the score.
    fn value(self, how: &FusionScore) -> f64 {
        match how {
            FusionScore::Ranks => self
                .number("rank")
                .map_or(0.0, |rank| self.weight * (1.0 / (RANK_CONSTANT + rank))),
            FusionScore::Scores { .. } => self.number("value").map_or(0.0, |v| v * self.weight),
        }
    }
}

impl Fuse {
    pub fn new(input: Box<dyn Source>, spec: Arc<Fusion>, vars: Arc<Vars>) -> Fuse {
        Fuse {
            input,
            spec,
            vars,
            meta: Metadata::default(),
        }
    }

    /// The score and its details of the group that the input stands on.
    fn score(&self) -> Result<Metadata> {
        let group = self.input.doc();
        let parts = &self.spec.parts;
        let mut given: Vec<Given<'_>> = parts
            .iter()
            .map(|p| Given {
                entry: None,
                weight: p.weight,
            })
            .collect();
        let entries = group.get("s").and_then(|v| v.as_array());
        for entry in entries.unwrap_or(Doc::EMPTY).values() {
            let entry = entry.as_doc();
            let at = entry.and_then(|d| d.get("p")?.to_i64_exact());
            let slot = at.and_then(|i| given.get_mut(usize::try_from(i).ok()?));
            if let Some(slot) = slot {
                slot.entry = entry;
            }
        }
        let how = &self.spec.how;
        let sum = given.iter().fold(0.0, |sum, g| sum + g.value(how));
        let score = match how {
            FusionScore::Ranks => sum,
            FusionScore::Scores { combine: None, .. } => sum / parts.len() as f64,
            FusionScore::Scores {
                combine: Some(e), ..
            } => self.combine(e, group, &given)?,
        };
        let score_details = match self.spec.details {
            true => Some(Box::new(self.details(score, &given))),
            false => None,
        };
        Ok(Metadata {
            score: Some(score),
            score_details,
            ..Metadata::default()
        })
    }

    fn combine(&self, e: &Expression, group: Doc<'_>, given: &[Given<'_>]) -> Result<f64> {
        let mut w = Writer::new();
        w.val("docs", group.get("docs").unwrap_or(Val::NULL));
        for (i, g) in given.iter().enumerate() {
            w.f64(&format!("v{i}"), g.value(&self.spec.how));
        }
        let values = w.finish();
        let ctx = EvalCtx::new(values.as_doc(), &self.vars);
        number(&e.evaluate(&ctx)?)
    }

    fn details(&self, score: f64, given: &[Given<'_>]) -> DocBuf {
        let mut w = Writer::new();
        w.f64("value", score);
        match &self.spec.how {
            FusionScore::Ranks => {
                w.str(
                    "description",
                    "value output by reciprocal rank fusion algorithm, computed as sum of (weight * (1 / (60 + rank))) across \
                     input pipelines from which this document is output, from:",
                );
            }
            FusionScore::Scores {
                normalization,
                combine,
                shown,
            } => {
                w.str(
                    "description",
                    "the value calculated by combining the scores (either normalized or raw) across input pipelines from which \
                     this document is output from:",
                )
                .str("normalization", normalization.name())
                .open_doc("combination");
                match combine {
                    None => w.str("method", "average"),
                    Some(_) => w
                        .str("method", "custom expression")
                        .str("expression", shown),
                };
                w.close();
            }
        }
        w.open_array("details");
        for (part, g) in self.spec.parts.iter().zip(given) {
            w.open_doc("").str("inputPipelineName", &part.name);
            self.write_given(*g, &mut w);
            w.close();
        }
        w.close();
        w.finish()
    }

    fn write_given(&self, g: Given<'_>, w: &mut Writer) {
        let how = &self.spec.how;
        match (how, g.entry) {
            (FusionScore::Ranks, None) => {
                w.str("rank", "NA");
                return;
            }
            (FusionScore::Ranks, Some(e)) => {
                w.val("rank", e.get("rank").unwrap_or(Val::NULL))
                    .f64("weight", g.weight);
            }
            (FusionScore::Scores { .. }, _) => {
                w.f64("inputPipelineRawScore", g.number("score").unwrap_or(0.0))
                    .f64("weight", g.weight)
                    .f64("value", g.value(how));
            }
        }
        let details = g.entry.and_then(|e| e.get("details")?.as_doc());
        w.extend(details.unwrap_or(Doc::EMPTY));
    }
}

impl Source for Fuse {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        self.meta = self.score()?;
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        let docs = self.input.doc().get("docs");
        docs.and_then(|v| v.as_doc()).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        &self.meta
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}
