//! The operators that hold at most one document: filter, transformation, limit, skip, count, and
//! the sources.

use super::{DocumentSource, IdleVisitor, MAX_UNDER_WAY, PipelineHost, Source};
use crate::expr::{EvalCtx, Vars, check_depth};
use crate::filter::Filter;
use crate::metadata::Metadata;
use crate::transform::Transform;
use bson::{Doc, DocBuf, Writer};
use errors::{Result, err, operation};
use std::sync::Arc;

pub(super) struct Leaf {
    pub rows: Box<dyn DocumentSource>,
}

impl Source for Leaf {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.advance_rows(&mut *self.rows)
    }

    fn doc(&self) -> Doc<'_> {
        self.rows.doc()
    }

    fn meta(&self) -> &Metadata {
        self.rows.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        to.rows(&mut *self.rows, wanted)
    }

    fn leave_out(&mut self, low: Doc<'_>, high: Doc<'_>) {
        self.rows.leave_out(low, high);
    }
}

pub(super) struct Empty;

impl Source for Empty {
    fn advance(&mut self, _host: &mut dyn PipelineHost) -> Result<bool> {
        Ok(false)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::EMPTY
    }

    fn parts(&mut self, _wanted: bool, _to: &mut dyn IdleVisitor) -> Result<()> {
        Ok(())
    }
}

/// Documents at hand.
pub(super) struct Docs {
    docs: std::vec::IntoIter<DocBuf>,
    current: DocBuf,
}

impl Docs {
    pub fn new(docs: Vec<DocBuf>) -> Docs {
        Docs {
            docs: docs.into_iter(),
            current: DocBuf::new(),
        }
    }
}

impl Source for Docs {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.check()?;
        match self.docs.next() {
            Some(d) => {
                self.current = d;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn doc(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_doc(&mut self.current, wanted, to)
    }
}

pub(super) struct Match {
    input: Box<dyn Source>,
    filter: Arc<Filter>,
    vars: Arc<Vars>,
}

impl Match {
    pub fn new(input: Box<dyn Source>, filter: Arc<Filter>, vars: Arc<Vars>) -> Match {
        Match {
            input,
            filter,
            vars,
        }
    }
}

impl Source for Match {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        while self.input.advance(host)? {
            if self.filter.matches_with(self.input.doc(), &self.vars)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

/// `$project`, `$addFields`, `$unset`, `$replaceRoot`.
pub(super) struct Map {
    input: Box<dyn Source>,
    transform: Arc<Transform>,
    vars: Arc<Vars>,
    out: Vec<u8>,
}

impl Map {
    pub fn new(input: Box<dyn Source>, transform: Arc<Transform>, vars: Arc<Vars>) -> Map {
        Map {
            input,
            transform,
            vars,
            out: Vec::new(),
        }
    }
}

/// The bytes copied in about the time of a step.
const BYTES_A_STEP: usize = 256;

impl Source for Map {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        self.out.clear();
        let ctx = EvalCtx::new(self.input.doc(), &self.vars).with_meta(self.input.meta());
        self.transform.apply(&ctx, &mut self.out)?;
        // A few documents may go through a thousand stages, each of which copies many fields.
        operation::steps(1 + self.out.len() / BYTES_A_STEP)?;
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}

/// The end of a pipeline: nothing too large or too deep to be sent leaves it.
pub(super) struct Checked {
    pub input: Box<dyn Source>,
}

impl Source for Checked {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        super::check_size(self.input.doc().len())?;
        check_depth(self.input.doc().as_val())?;
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

/// The nesting of written documents is no deeper than inserts allow. Their size is checked by the
/// writer.
pub(super) struct DepthCheck {
    pub input: Box<dyn Source>,
}

impl Source for DepthCheck {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if !self.input.advance(host)? {
            return Ok(false);
        }
        check_depth(self.input.doc().as_val())?;
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

/// Counts its stages as under way while it is advanced.
pub(super) struct Nested {
    pub input: Box<dyn Source>,
    pub stages: usize,
}

impl Source for Nested {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        let before = *host.under_way();
        let now = before.saturating_add(self.stages);
        if now > MAX_UNDER_WAY {
            return Err(err!(
                MaxSubPipelineDepthExceeded,
                "Pipelines that run inside of one another have more than {MAX_UNDER_WAY} stages in all"
            ).into());
        }
        *host.under_way() = now;
        let more = self.input.advance(host);
        *host.under_way() = before;
        more
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

pub(super) struct Limit {
    pub input: Box<dyn Source>,
    pub left: u64,
}

impl Source for Limit {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        if self.left == 0 || !self.input.advance(host)? {
            return Ok(false);
        }
        self.left -= 1;
        Ok(true)
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

pub(super) struct Skip {
    pub input: Box<dyn Source>,
    pub left: u64,
}

impl Source for Skip {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        while self.left > 0 {
            if !self.input.advance(host)? {
                return Ok(false);
            }
            self.left -= 1;
        }
        self.input.advance(host)
    }

    fn doc(&self) -> Doc<'_> {
        self.input.doc()
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(wanted, to)
    }
}

/// `$count`: one document, or none when there is nothing to count.
pub(super) struct Count {
    input: Option<Box<dyn Source>>,
    name: Arc<str>,
    n: i64,
    given: bool,
    out: DocBuf,
}

impl Count {
    pub fn new(input: Box<dyn Source>, name: Arc<str>) -> Count {
        Count {
            input: Some(input),
            name,
            n: 0,
            given: false,
            out: DocBuf::new(),
        }
    }

    /// Counts all of the input.
    pub fn gather(&mut self, host: &mut dyn PipelineHost) -> Result<()> {
        while let Some(input) = &mut self.input {
            if input.advance(host)? {
                self.n += 1;
            } else {
                self.input = None;
            }
        }
        Ok(())
    }

    /// Counts what another has counted.
    pub fn absorb(&mut self, next: &Count) {
        self.n += next.n;
    }
}

impl Source for Count {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        self.gather(host)?;
        if std::mem::replace(&mut self.given, true) {
            return Ok(false);
        }
        let mut w = Writer::new();
        w.int(&self.name, self.n);
        self.out = w.finish();
        Ok(self.n > 0)
    }

    fn doc(&self) -> Doc<'_> {
        self.out.as_doc()
    }

    fn parts(&mut self, _wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        super::show_input(&mut self.input, to)
    }
}
