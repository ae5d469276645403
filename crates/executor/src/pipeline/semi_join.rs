//! Joins that are turned round ([`query::pipeline::SemiJoin`]): where a pipeline reads its whole
//! collection only to join it to a few documents of another, these are looked for first.
//!
//! The other side is asked before it is known how much is there, so it may tell a quarter of what the
//! collection has, and no more than [`MOST_DOCUMENTS`]; when that is not enough, the pipeline runs as it
//! was, and that much was read in vain. So after the first few its index is asked how many there are:
//! where that is far more than would be read, nothing more is. An index has to serve the query there:
//! without one the whole collection would be read.

use crate::op::OpCtx;
use crate::pipeline::aggregate::{Start, begin};
use catalog::Collection;
use errors::Result;
use planner::{Access, Plan};
use query::expr::Vars;
use query::pipeline::{JoinedValues, Pipeline, SemiJoin};
use std::sync::Arc;

/// Read of the other side, and kept of it.
const MOST_DOCUMENTS: u64 = 1000;
const MOST_BYTES: usize = 256 << 10;
/// After so many it is asked how many there are.
const FIRST: u64 = 16;
/// By so much an estimate is wrong at the most, where it is believed.
const ERROR: f64 = 4.0;
/// Joins of one pipeline that are tried.
const MOST_JOINS: usize = 3;
/// One document of this many may be read in order to find out.
const SHARE_READ: u64 = 4;

/// The pipeline with filters that the other sides of its joins give; `None`: with none. It reads
/// all of `coll` as it is.
pub(crate) fn turned_round(
    ctx: &mut OpCtx,
    coll: &Collection,
    pipeline: &Pipeline,
    vars: &Arc<Vars>,
) -> Result<Option<Pipeline>> {
    let most = ctx.engine.store.counts(coll.tablet).0 / SHARE_READ;
    let most = most.min(MOST_DOCUMENTS);
    let joins = pipeline.semi_joins();
    for join in joins.iter().take(MOST_JOINS).filter(|_| most > 0) {
        if let Some(values) = values_of(ctx, join, vars, most)? {
            return Ok(Some(pipeline.joined_with(join, values)));
        }
    }
    Ok(None)
}

/// The values that the documents have which are asked for; `None` where that takes too much.
fn values_of(
    ctx: &mut OpCtx,
    join: &SemiJoin,
    vars: &Arc<Vars>,
    most: u64,
) -> Result<Option<JoinedValues>> {
    let ns = join.from.to_string();
    if ctx.catalog().resolve(&ns)?.is_some() {
        return Ok(None);
    }
    let mut values = JoinedValues::default();
    let mut cursor = match begin(ctx, &ns, &join.wanted, vars, None)?.start {
        Start::Rows(cursor) => cursor,
        // There is nothing to join.
        Start::Docs(none) => return Ok(none.is_empty().then_some(values)),
    };
    if !reads_results_only(cursor.plan()) {
        return Ok(None);
    }
    let mut seen = 0;
    while cursor.next(ctx)? {
        ctx.tick(1)?;
        seen += 1;
        if seen == FIRST && cursor.expected_reads(ctx)?.keys > ERROR * most as f64 {
            return Ok(None);
        }
        let fits = values.add(cursor.doc()?, &join.foreign);
        let examined = cursor.examined();
        if !fits || values.bytes() > MOST_BYTES || examined.docs.max(examined.keys) > most {
            return Ok(None);
        }
    }
    Ok(Some(values))
}

/// Whether every entry of the plan's index is a result: then the reads up to one are bounded.
fn reads_results_only(plan: &Plan) -> bool {
    let exact = match &plan.access {
        Access::Eof | Access::Ids(_) => true,
        Access::Records { .. } => !plan.access.is_scan(),
        Access::Index(a) => a.key_filter.is_empty(),
        Access::Near(_) | Access::Merge(..) | Access::Or(_) => false,
    };
    exact && plan.residual.is_trivial()
}
