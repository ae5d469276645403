//! `analyzeShardKey` on one replica set.

use super::sampling::SAMPLES;
use super::{AT, AnalyzeRequest, Analyzed, Size};
use crate::request::{CommandContext, Done};
use crate::settings::documents;
use bson::{Doc, DocBuf, Writer, doc};
use catalog::Collection;
use errors::{Fallible, Result, bail};
use executor::{AggregateRequest, PipelineCursor};
use query::expr::Vars;
use query::pipeline::{Namespace, ParseCtx, Pipeline};
use std::sync::Arc;

const BATCH_BYTES: usize = 16 << 20;

struct OfServer<'a, 'c, 'r> {
    cx: &'a mut CommandContext<'c, 'r>,
    coll: Arc<Collection>,
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let request = AnalyzeRequest::parse(cx.request.body)?;
    let coll = collection(cx, &request.ns)?;
    let answer = request.answer(&mut OfServer { cx, coll })?;
    cx.w.extend(answer.as_doc());
    debug_assert_eq!(cx.command.name, AT);
    Ok(Done::Reply)
}

/// The collection, if its keys can be analyzed.
pub(super) fn collection(cx: &CommandContext<'_, '_>, ns: &str) -> Result<Arc<Collection>> {
    let Some(coll) = cx.app.engine.catalog.get(ns) else {
        bail!(NamespaceNotFound, "The namespace does not exist: {ns}");
    };
    if coll.measurements().is_some() {
        bail!(
            IllegalOperation,
            "Operation not supported for a timeseries collection"
        );
    }
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Operation not supported for a view"
        );
    }
    Ok(coll)
}

impl OfServer<'_, '_, '_> {
    fn pipeline(&mut self, stages: &[DocBuf]) -> Result<Vec<DocBuf>> {
        let mut list = Writer::new_array();
        stages.iter().for_each(|s| {
            list.push(s.as_doc().as_val());
        });
        let (db, coll) = self.coll.ns.split_once('.').unwrap_or((&self.coll.ns, ""));
        let ctx = ParseCtx::new(db, Some(coll), Default::default());
        let request = AggregateRequest {
            causal: false,
            merges_apart: None,
            ns: Namespace::new(db, coll),
            pipeline: Pipeline::parse(list.finish_array().as_val(), &ctx)?,
            vars: Arc::new(Vars::new(crate::clock::now_millis())),
            hint: None,
            allow_disk_use: true,
            server_rows: None,
            remote: None,
        };
        let mut cursor = PipelineCursor::open(&mut self.cx.op, request)?;
        let mut found = Vec::new();
        loop {
            let mut w = Writer::new_array();
            let done = cursor.fill(&mut self.cx.op, &mut w, 1000, BATCH_BYTES)?;
            let batch = w.finish_array();
            let docs = batch.as_val().as_array().unwrap_or(Doc::EMPTY);
            found.extend(docs.values().filter_map(|v| v.as_doc()).map(Doc::to_buf));
            if done {
                return Ok(found);
            }
        }
    }
}

impl Analyzed for OfServer<'_, '_, '_> {
    fn indexes(&mut self) -> Fallible<Vec<DocBuf>> {
        let id = doc! {"key": doc! {"_id": 1}, "name": "_id_"};
        let others = self.coll.secondary().map(|i| i.spec.clone());
        Ok(std::iter::once(id).chain(others).collect())
    }

    fn size(&mut self) -> Fallible<Size> {
        let (documents, bytes) = self.cx.app.engine.store.counts(self.coll.tablet);
        Ok(Size {
            documents,
            bytes,
            orphans: None,
            clustered: self.coll.option("clusteredIndex").is_some(),
        })
    }

    fn aggregate(&mut self, stages: &[DocBuf]) -> Fallible<Vec<DocBuf>> {
        self.pipeline(stages).map_err(|stop| stop.into_error())
    }

    fn in_order(&mut self, stages: &[DocBuf]) -> Fallible<Vec<DocBuf>> {
        self.aggregate(stages)
    }

    fn samples(&mut self) -> Fallible<Vec<DocBuf>> {
        let mut found = Vec::new();
        let filter = doc! {"ns": &*self.coll.ns};
        let read = documents::each(&self.cx.app.engine, SAMPLES, filter.as_doc(), |d| {
            found.push(d.to_buf());
            Ok(true)
        });
        read.map(|()| found).map_err(|stop| stop.into_error())
    }
}
