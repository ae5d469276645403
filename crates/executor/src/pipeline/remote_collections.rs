//! Collections of a pipeline that are not in this engine: the router that runs the pipeline reads them
//! where they are.
//!
//! Invariant: the filter, the order and the limits that a pipeline begins with are applied where
//! the documents are; everything behind them here. Of what comes, one batch is held.

use bson::{Doc, DocBuf, Writer};
use errors::{Fallible, Result};
use query::expr::{SearchMeta, Vars};
use query::metadata::Metadata;
use query::path::FieldPath;
use query::pipeline::merged::going_on;
use query::pipeline::{
    IdleVisitor, JoinedCollection, Namespace, Pipeline, PipelineHost, SearchStage, Source,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Reads collections that other shards have.
pub trait RemoteCollections: Send + Sync {
    /// Runs a find: `query` has the fields of the command behind its name.
    fn find(&self, ns: &Namespace, query: Doc<'_>) -> Fallible<Box<dyn RemoteRows>>;

    /// Runs an aggregate of such stages, all of whose fields but the pipeline are in `options`.
    fn aggregate(
        &self,
        ns: &Namespace,
        stages: &[DocBuf],
        options: Doc<'_>,
    ) -> Fallible<Box<dyn RemoteRows>>;

    /// As [`PipelineHost::joined_collection`].
    fn size(&self, ns: &Namespace, path: &FieldPath) -> Option<JoinedCollection>;

    /// The time of the cluster, as far as it is known.
    fn time(&self) -> u64;
}

/// What others find, document by document.
pub trait RemoteRows: Send {
    fn next(&mut self) -> Fallible<Option<DocBuf>>;

    /// Between two batches: keeps in memory only what there is room for.
    fn release(&mut self) -> Fallible<()>;
}

/// For one pipeline.
#[derive(Clone)]
pub struct ReadRemotely {
    pub collections: Arc<dyn RemoteCollections>,
    /// What the pipeline compares by; `None`: by bytes.
    pub collation: Option<DocBuf>,
    /// Fields that each of its reads carries: its transaction, or its snapshot.
    pub within: DocBuf,
}

impl ReadRemotely {
    /// [`PipelineHost::open`].
    pub(crate) fn open(
        &self,
        ns: &Namespace,
        pipeline: &Pipeline,
        vars: &Arc<Vars>,
    ) -> Result<Box<dyn Source>> {
        if pipeline.makes_input() {
            return Ok(pipeline.run_alone(vars));
        }
        let pipeline = &pipeline.optimized();
        if let Some((there, rest)) = pipeline.found_elsewhere() {
            let mut w = Writer::new();
            write_variables(&mut w, vars);
            self.write_options(&mut w);
            let options = w.finish();
            let found = self.collections.aggregate(ns, &there, options.as_doc())?;
            return Ok(rest.attach(0, over(found), vars));
        }
        let push = pipeline.pushdown();
        let mut w = Writer::new();
        w.doc("filter", push.filter.to_doc().as_doc());
        if let Some(sort) = &push.sort {
            w.doc("sort", sort.to_doc().as_doc());
        }
        if push.skip > 0 {
            w.i64("skip", i64::try_from(push.skip).unwrap_or(i64::MAX));
        }
        if let Some(limit) = push.limit {
            w.i64("limit", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        if push.filter.wants_vars() {
            write_variables(&mut w, vars);
        }
        self.write_options(&mut w);
        if let Some(fields) = pipeline.needed_fields_from(push.consumed) {
            write_projection(&mut w, &fields);
        }
        let rows = match push.limit {
            Some(0) => None,
            _ => Some(self.collections.find(ns, w.finish().as_doc())?),
        };
        Ok(pipeline.attach(push.consumed, Box::new(Rows::of(rows)), vars))
    }

    /// [`PipelineHost::search`].
    pub(crate) fn search(
        &self,
        stage: &SearchStage,
        limit: Option<u64>,
        known: Option<&SearchMeta>,
    ) -> Result<Box<dyn Source>> {
        let (there, found) = stage.remote_stages(limit);
        let mut w = Writer::new();
        self.write_options(&mut w);
        let options = w.finish();
        if let Some(known) = known {
            let (asked, options) = ([stage.meta_elsewhere()], options.as_doc());
            let mut told = self.collections.aggregate(&stage.ns, &asked, options)?;
            let _ = known.set(told.next()?.unwrap_or_default());
        }
        let rows = self
            .collections
            .aggregate(&stage.ns, &there, options.as_doc())?;
        Ok(going_on(over(rows), found))
    }

    fn write_options(&self, w: &mut Writer) {
        w.extend(self.within.as_doc());
        match &self.collation {
            Some(collation) => w.doc("collation", collation.as_doc()),
            None => w.open_doc("collation").str("locale", "simple").close(),
        };
    }
}

/// Only the fields that the stages here read.
fn write_projection(w: &mut Writer, fields: &BTreeSet<String>) {
    let plain = |f: &String| !f.is_empty() && !f.starts_with('$');
    if !fields.iter().all(plain) {
        return;
    }
    w.open_doc("projection");
    let id = fields.is_empty() || fields.contains("_id");
    w.i32("_id", i32::from(id));
    for field in fields.iter().filter(|f| *f != "_id") {
        w.i32(field, 1);
    }
    w.close();
}

fn write_variables(w: &mut Writer, vars: &Vars) {
    w.open_doc("let");
    for (name, v) in vars.user() {
        match v {
            Some(v) => w.open_doc(name).val("$literal", v).close(),
            None => w.str(name, "$$REMOVE"),
        };
    }
    w.close();
}

/// What others have found, as a pipeline's input.
pub(super) fn over(rows: Box<dyn RemoteRows>) -> Box<dyn Source> {
    Box::new(Rows::of(Some(rows)))
}

struct Rows {
    /// `None` at the end.
    rows: Option<Box<dyn RemoteRows>>,
    current: DocBuf,
}

impl Rows {
    fn of(rows: Option<Box<dyn RemoteRows>>) -> Rows {
        Rows {
            rows,
            current: DocBuf::new(),
        }
    }
}

impl Source for Rows {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        host.check()?;
        let Some(rows) = &mut self.rows else {
            return Ok(false);
        };
        match rows.next()? {
            Some(doc) => self.current = doc,
            None => self.rows = None,
        }
        Ok(self.rows.is_some())
    }

    fn doc(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn meta(&self) -> &Metadata {
        Metadata::NONE
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        if let Some(rows) = &mut self.rows {
            to.held(&mut || Ok(rows.release()?))?;
        }
        let mut bytes = std::mem::take(&mut self.current).into_vec();
        let shown = to.doc(&mut bytes, wanted);
        self.current = DocBuf::from_vec(bytes).unwrap_or_default();
        shown
    }
}
