//! `$unionWith`: the input, then another collection's documents. Where several stages have the same
//! text, the first keeps what it finds for the others, as far as memory goes.

use super::lookup::{collection, starts_with_documents};
use super::optimizer::whole::gives_the_same;
use super::options::{options, string};
use super::parse::{Inside, ParseCtx};
use super::{IdleVisitor, Namespace, Op, Pipeline, PipelineHost, Share, Source, Stage};
use crate::expr::Vars;
use crate::metadata::Metadata;
use bson::{Doc, DocBuf, Val, tag};
use errors::{Result, bail};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct UnionWith {
    /// Nothing when the pipeline makes its own documents.
    pub from: Option<Namespace>,
    pub pipeline: Pipeline,
}

/// The collection and the pipeline that the stage names.
pub(super) fn written<'a>(spec: Val<'a>, db: &str) -> Result<(Option<Namespace>, Option<Val<'a>>)> {
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
    // Rights are asked for what a pipeline reads of a collection: one of none may only have brought its
    // documents along.
    if coll.is_none() && !starts_with_documents(pipeline) {
        bail!(
            FailedToParse,
            "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
        );
    }
    Ok((coll.map(|c| collection(db, c)).transpose()?, pipeline))
}

impl UnionWith {
    pub fn parse(spec: Val<'_>, ctx: &ParseCtx) -> Result<UnionWith> {
        let (from, pipeline) = written(spec, &ctx.db)?;
        let inner = ctx.inside(Inside::UnionWith, from.as_ref(), ctx.env.clone());
        let pipeline = match pipeline {
            Some(p) => Pipeline::parse(p, &inner)?,
            None => Pipeline::default(),
        };
        assert!(
            from.is_some() || pipeline.makes_input(),
            "the documents of a pipeline come from somewhere"
        );
        Ok(UnionWith { from, pipeline })
    }
}

/// What the first of several stages of one text has found, for those behind it.
#[derive(Clone, Default)]
pub(super) struct Found(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    /// No reader has begun.
    #[default]
    Unread,
    Reading(Vec<DocBuf>),
    Read(Arc<Kept>),
    /// It is too much to keep.
    TooMuch,
}

/// Documents, and what they hold of the memory of stages.
struct Kept {
    docs: Vec<DocBuf>,
    _share: Share,
}

impl Found {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The documents, where they are known to the last.
    fn known(&self) -> Option<Arc<Kept>> {
        match &*self.state() {
            State::Read(kept) => Some(kept.clone()),
            _ => None,
        }
    }

    /// Whether the caller is the first: then it keeps the documents that it finds.
    fn begin(&self) -> bool {
        let mut state = self.state();
        let first = matches!(*state, State::Unread);
        if first {
            *state = State::Reading(Vec::new());
        }
        first
    }
}

/// Keeps the documents that are found.
struct Keeping {
    found: Found,
    share: Share,
    bytes: usize,
}

impl Keeping {
    /// `false`: there is no room.
    fn add(&mut self, doc: Doc<'_>, limit: usize) -> bool {
        self.bytes += doc.len() + size_of::<DocBuf>();
        let fits = self.bytes <= limit && self.share.fits(self.bytes);
        let mut state = self.found.state();
        match &mut *state {
            State::Reading(docs) if fits => docs.push(doc.to_buf()),
            state => *state = State::TooMuch,
        }
        fits
    }

    fn end(self) {
        let mut state = self.found.state();
        if let State::Reading(docs) = &mut *state {
            let docs = std::mem::take(docs);
            let _share = self.share;
            *state = State::Read(Arc::new(Kept { docs, _share }));
        }
    }
}

pub(super) struct Run {
    first: Option<Box<dyn Source>>,
    second: Option<Box<dyn Source>>,
    spec: Arc<UnionWith>,
    vars: Arc<Vars>,
    /// Of the stages of this text, where there are several.
    found: Option<Found>,
    keeping: Option<Keeping>,
}

impl Run {
    pub fn new(
        input: Box<dyn Source>,
        spec: Arc<UnionWith>,
        vars: Arc<Vars>,
        found: Option<Found>,
    ) -> Run {
        Run {
            first: Some(input),
            second: None,
            spec,
            vars,
            found,
            keeping: None,
        }
    }

    /// The other collection's documents.
    fn open(&mut self, host: &mut dyn PipelineHost) -> Result<Box<dyn Source>> {
        if let Some(kept) = self.found.as_ref().and_then(Found::known) {
            return Ok(Box::new(RepeatedDocuments { kept, next: 0 }));
        }
        let source = match &self.spec.from {
            Some(ns) => host.open(ns, &self.spec.pipeline, &self.vars)?,
            None => self.spec.pipeline.run_alone(&self.vars),
        };
        if let Some(found) = self.found.as_ref().filter(|f| f.begin()) {
            self.keeping = Some(Keeping {
                found: found.clone(),
                share: host.share(),
                bytes: 0,
            });
        }
        Ok(source)
    }
}

/// Documents that were found before.
struct RepeatedDocuments {
    kept: Arc<Kept>,
    next: usize,
}

impl Source for RepeatedDocuments {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.check()?;
        let more = self.next < self.kept.docs.len();
        self.next += usize::from(more);
        Ok(more)
    }

    fn doc(&self) -> Doc<'_> {
        let at = self.next.checked_sub(1);
        at.and_then(|at| self.kept.docs.get(at))
            .map_or(Doc::EMPTY, DocBuf::as_doc)
    }

    fn parts(&mut self, _wanted: bool, _to: &mut dyn IdleVisitor) -> Result<()> {
        Ok(())
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
        if self.second.is_none() {
            self.second = Some(self.open(host)?);
        }
        let Some(second) = &mut self.second else {
            return Ok(false);
        };
        let more = second.advance(host)?;
        if let Some(mut keeping) = self.keeping.take() {
            match more {
                true if keeping.add(second.doc(), host.memory_limit()) => {
                    self.keeping = Some(keeping);
                }
                true => {}
                false => keeping.end(),
            }
        }
        Ok(more)
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

/// Whether two stages of a pipeline are one and the same `$unionWith`.
pub(super) fn is_same(a: &Stage, b: &Stage) -> bool {
    matches!((&a.op, &b.op), (Op::UnionWith(_), Op::UnionWith(_)))
        && a.spec == b.spec
        && gives_the_same(a.spec.as_val())
}
