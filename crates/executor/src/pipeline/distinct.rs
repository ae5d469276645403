//! distinct: the different values of a field among the documents that match.

use crate::op::OpCtx;
use crate::pipeline::aggregate::{AggregateRequest, PipelineCursor, covering};
use crate::read::RecordStream;
use crate::read::request::ReadRequest;
use crate::read::text;
use bson::{Doc, Value, key};
use catalog::Collection;
use errors::{Result, bail};
use planner::{Access, DistinctRequest, Plan};
use query::collation::Collation;
use query::path::{FieldPath, Leaf};
use query::pipeline::Share;
use query::projection::Projection;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage::View;

/// The distinct values of `path`, in comparison order. Arrays on the path and at its end are
/// unwound, as in MongoDB.
pub fn distinct(
    ctx: &mut OpCtx,
    ns: &str,
    path: &FieldPath,
    req: &ReadRequest,
    collation: Option<&Collation>,
) -> Result<Vec<Value>> {
    let (view, Some(coll)) = ctx.view(ns) else {
        return text::bound(req.filter, None).map(|_| Vec::new());
    };
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    ctx.check_snapshot(&coll)?;
    let needed = covering(&BTreeSet::from([path.to_string()]));
    let read = read_of(req, path, needed.as_ref(), collation);
    let mut rows = open(ctx, view, coll, &read)?;
    let mut found = Found::default();
    let mut share = ctx.engine.stage_memory.share();
    while rows.next(ctx)? {
        found.add(rows.doc(), path, collation)?;
        found.count(&mut share, ctx)?;
    }
    Ok(found.values.into_values().collect())
}

/// The read request of a distinct.
fn read_of<'a>(
    req: &ReadRequest<'a>,
    path: &'a FieldPath,
    needed: Option<&'a Projection>,
    collation: Option<&'a Collation>,
) -> ReadRequest<'a> {
    ReadRequest {
        projection: needed,
        distinct: Some(DistinctRequest {
            path,
            collation,
            group: false,
        }),
        ..req.clone()
    }
}

/// Opens the plan of a distinct, or the one that wins where only a race can tell. A scan that jumps from value
/// to value gives fewer rows than others for the same answer: it runs against none.
fn open(
    ctx: &mut OpCtx,
    view: View,
    coll: Arc<Collection>,
    read: &ReadRequest<'_>,
) -> Result<RecordStream> {
    let choice = read.choose_timed(ctx, &view, &coll, false)?;
    let jumps = |p: &Plan| matches!(&p.access, Access::Index(a) if a.distinct.is_some());
    if jumps(&choice.plan) || choice.others.iter().any(|o| jumps(&o.plan)) {
        ctx.examined.planning += choice.counted;
        let plan = Arc::new(choice.plan);
        return RecordStream::with_plan(ctx, view, coll, plan, None, read.vars.clone());
    }
    RecordStream::open_chosen(ctx, view, coll, choice, read)
}

/// The plan of a distinct, and the projection when an index covers it.
pub fn distinct_plan(
    ctx: &OpCtx,
    view: &View,
    coll: &Arc<Collection>,
    path: &FieldPath,
    req: &ReadRequest,
    collation: Option<&Collation>,
) -> Result<(Plan, Option<Projection>)> {
    let needed = covering(&BTreeSet::from([path.to_string()]));
    let read = read_of(req, path, needed.as_ref(), collation);
    let plan = read.plan(ctx.engine, view, coll, false)?;
    let needed = needed.filter(|_| plan.covered);
    Ok((plan, needed))
}

/// The same over the results of a pipeline.
pub fn distinct_of(
    ctx: &mut OpCtx,
    request: AggregateRequest,
    path: &FieldPath,
    collation: Option<&Collation>,
) -> Result<Vec<Value>> {
    let mut rows = PipelineCursor::open(ctx, request)?;
    let mut found = Found::default();
    let mut share = ctx.engine.stage_memory.share();
    while rows.advance(ctx)? {
        found.add(rows.doc(), path, collation)?;
        found.count(&mut share, ctx)?;
    }
    Ok(found.values.into_values().collect())
}

/// The memory of a distinct value besides its bytes and those of its key.
const ENTRY_BYTES: usize = 96;

#[derive(Default)]
struct Found {
    values: BTreeMap<Vec<u8>, Value>,
    scratch: Vec<u8>,
    /// Bytes in the reply.
    bytes: usize,
    /// The approximate memory: small values take many times their length.
    held: usize,
}

impl Found {
    /// Charges the memory to `share`.
    fn count(&self, share: &mut Share, ctx: &mut OpCtx) -> Result<()> {
        share.hold(self.held, "distinct", || ctx.wait_for_memory())
    }

    fn add(&mut self, doc: Doc<'_>, path: &FieldPath, collation: Option<&Collation>) -> Result<()> {
        let Found {
            values,
            scratch,
            bytes,
            held,
        } = self;
        path.visit(doc, Leaf::Whole, &mut |v, _| {
            let Some(v) = v else { return false };
            let mut add = |v: bson::Val<'_>| {
                scratch.clear();
                Collation::with(collation, v, |v| key::encode(v, false, scratch, None));
                if !values.contains_key(scratch) {
                    *bytes += v.bytes.len() + 8;
                    *held += scratch.len() + v.bytes.len() + ENTRY_BYTES;
                    values.insert(scratch.clone(), v.to_value());
                }
            };
            match v.as_array() {
                Some(a) => a.values().for_each(add),
                None => add(v),
            }
            false
        });
        if *bytes > bson::MAX_DOC_BYTES {
            bail!(17217, "distinct too big, 16mb cap");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use query::pipeline::StageMemory;

    /// Short values take more memory than room in the reply, and memory is limited.
    #[test]
    fn what_is_held_is_counted() {
        let memory = Arc::new(StageMemory::default());
        let (mut found, mut share) = (Found::default(), memory.share());
        let path = FieldPath::new("a");
        for i in 0..20_000 {
            let doc = bson::doc! { "a": i % 10_000 };
            found.add(doc.as_doc(), &path, None).unwrap();
        }
        share.hold(found.held, "distinct", || Ok(())).unwrap();
        assert_eq!(found.values.len(), 10_000);
        assert!(memory.used() > 1_000_000 && found.bytes < 200_000);
        drop(share);
        assert_eq!(memory.used(), 0);
    }
}
