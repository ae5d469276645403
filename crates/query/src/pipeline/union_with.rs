//! `$unionWith`: the input, then another collection's documents.

use super::lookup::collection;
use super::options::{options, string};
use super::parse::{Inside, ParseCtx};
use super::{IdleVisitor, Namespace, Pipeline, PipelineHost, Source};
use crate::expr::Vars;
use crate::metadata::Metadata;
use bson::{Doc, Val, tag};
use errors::{Result, bail};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct UnionWith {
    /// Nothing when the pipeline makes its own documents.
    pub from: Option<Namespace>,
    pub pipeline: Pipeline,
}

impl UnionWith {
    pub fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<UnionWith> {
        const STAGE: &str = "$unionWith";
        let (coll, pipeline) = match spec.tag {
            tag::STRING => (spec.as_str(), None),
            tag::DOCUMENT => {
                let d = spec.as_doc().unwrap_or(Doc::EMPTY);
                let [coll, db, pipeline] = options(STAGE, d, ["coll", "db", "pipeline"])?;
                if db.is_some() {
                    bail!(FailedToParse, "$unionWith: 'db' is not supported");
                }
                let coll = coll.map(|c| string(STAGE, "coll", c)).transpose()?;
                (coll, pipeline)
            }
            t => bail!(
                FailedToParse,
                "the $unionWith stage specification must be an object or string, but found {}",
                tag::name(t)
            ),
        };
        let from = coll.map(|c| collection(&ctx.db, c)).transpose()?;
        let inner = ctx.inside(Inside::UnionWith, from.as_ref(), ctx.env.clone());
        let pipeline = match pipeline {
            Some(p) => Pipeline::parse(p, &inner)?,
            None => Pipeline::default(),
        };
        if from.is_none() && !pipeline.makes_input() {
            bail!(
                FailedToParse,
                "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
            );
        }
        Ok(UnionWith { from, pipeline })
    }
}

pub(super) struct Run {
    first: Option<Box<dyn Source>>,
    second: Option<Box<dyn Source>>,
    spec: Arc<UnionWith>,
    vars: Arc<Vars>,
}

impl Run {
    pub fn new(input: Box<dyn Source>, spec: Arc<UnionWith>, vars: Arc<Vars>) -> Run {
        Run {
            first: Some(input),
            second: None,
            spec,
            vars,
        }
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if let Some(s) = &mut self.first {
            if s.advance(host)? {
                return Ok(true);
            }
            self.first = None;
        }
        let second = match &mut self.second {
            Some(s) => s,
            None => {
                let s = match &self.spec.from {
                    Some(ns) => host.open(ns, &self.spec.pipeline, &self.vars)?,
                    None => self.spec.pipeline.run_alone(&self.vars),
                };
                self.second.insert(s)
            }
        };
        second.advance(host)
    }

    fn doc(&self) -> Doc<'_> {
        match (&self.first, &self.second) {
            (Some(s), _) | (None, Some(s)) => s.doc(),
            _ => Doc::EMPTY,
        }
    }

    fn meta(&self) -> &Metadata {
        match (&self.first, &self.second) {
            (Some(s), _) | (None, Some(s)) => s.meta(),
            _ => Metadata::NONE,
        }
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        match (&mut self.first, &mut self.second) {
            (Some(s), _) | (None, Some(s)) => s.parts(wanted, to),
            _ => Ok(()),
        }
    }
}
