//! Plans of `$near`: by an index of shapes, or not at all.

use super::by_index::key_filter;
use super::work::PlanningWork;
use super::{Chosen, Planner, ranges, rest};
use crate::hint::Hinted;
use crate::implied::implies;
use crate::interval::{Interval, bounded};
use crate::plan::{Access, CellPrefixes, IndexInfo, NearAccess, Plan, PlanRequest};
use crate::predicate::{clauses, collect};
use errors::{Result, bail};
use query::expr::Vars;
use query::filter::{NearTest, Node, Test};
use query::index_keys::{FieldKind, Geospatial};
use query::path::FieldPath;
use std::sync::Arc;

/// The plan of a filter with a `$near` on `path`.
pub(super) fn plan(
    req: &PlanRequest<'_>,
    path: &FieldPath,
    near: &Arc<NearTest>,
    hinted: &Hinted<'_>,
    work: &PlanningWork<'_>,
) -> Result<Plan> {
    let none = Vars::default();
    let p = Planner {
        req,
        vars: req.vars.unwrap_or(&none),
        sort: req.sort.filter(|s| !s.is_empty()),
        only: None,
        work,
        multiplied: false,
    };
    let only = match hinted {
        Hinted::Nothing => None,
        Hinted::Index(info) => Some(*info),
        Hinted::Natural { .. } => bail!(
            BadValue,
            "geoNear expression not allowed with $natural sort order"
        ),
        Hinted::Id => bail_no_index(req)?,
    };
    let indexes = match only {
        Some(info) => std::slice::from_ref(info),
        None => req.indexes,
    };
    // On the sphere first: what it measures is what both can answer.
    let sphere = |i: &&IndexInfo| matches!(i.key.geospatial(), Some(Geospatial::Sphere { .. }));
    let (first, second): (Vec<&IndexInfo>, Vec<&IndexInfo>) = indexes.iter().partition(sphere);
    for info in first.into_iter().chain(second) {
        if let Some(mut plan) = by(&p, info, path, near)? {
            plan.sort = p.sort.cloned();
            return Ok(plan);
        }
    }
    bail_no_index(req)
}

fn bail_no_index<T>(req: &PlanRequest<'_>) -> Result<T> {
    bail!(
        NoQueryExecutionPlans,
        "error processing query: {} planner returned error :: caused by :: unable to find index for $geoNear query",
        crate::query_text::of(req)
    )
}

/// By one index; `None` where it does not serve.
fn by(
    p: &Planner<'_>,
    info: &IndexInfo,
    path: &FieldPath,
    near: &Arc<NearTest>,
) -> Result<Option<Plan>> {
    let serves = match info.key.geospatial() {
        Some(Geospatial::Sphere { .. }) => near.near.is_for_sphere(),
        Some(Geospatial::Plane(_)) => near.near.is_for_plane(),
        None => false,
    };
    let cells = |f: &query::index_keys::KeyField| f.kind == FieldKind::Cells && f.path == *path;
    let Some(field) = info.key.fields.iter().position(cells) else {
        return Ok(None);
    };
    let root = p.req.filter.root();
    let partial = info.partial.as_ref();
    let whole = partial.is_none_or(|partial| implies(root, partial.root()));
    if !serves || !whole || !info.ready || info.hidden {
        return Ok(None);
    }
    let all = clauses(root);
    let preds = collect(all, p.vars);
    let mut chosen = Chosen::of(&preds, info, None);
    let before = chosen.intervals.get(..field).unwrap_or(&[]);
    if !before.iter().all(|list| bounded(list)) {
        return Ok(None);
    }
    if let Some(Geospatial::Plane(grid)) = info.key.geospatial()
        && !grid.holds(near.near.center.flat)
    {
        bail!(
            16433,
            "point not in interval of [ {}, {} ]",
            grid.min,
            grid.max
        );
    }
    let mut done: Vec<bool> = all.iter().map(is_near).collect();
    let key_filter = key_filter(info, &preds, &chosen.intervals, &mut done);
    let residual = rest(all, &done);
    if before.iter().any(Vec::is_empty) {
        return Ok(Some(Plan::new(Access::Eof, residual)));
    }
    let points = before.iter().flatten().all(Interval::is_point);
    let (fields, intervals) = (
        info.key.fields.get(..field).unwrap_or(&[]),
        chosen.intervals.get_mut(..field).unwrap_or(&mut []),
    );
    let spread = ranges(fields, intervals);
    let starts = match points && spread.used == field {
        true => CellPrefixes::Prefixes(spread.ranges.into_iter().map(|(low, _)| low).collect()),
        false => CellPrefixes::Ranges(spread.ranges),
    };
    let access = NearAccess {
        index: info.id,
        field,
        path: path.clone(),
        test: near.clone(),
        starts,
        key_filter,
    };
    Ok(Some(Plan::new(Access::Near(Arc::new(access)), residual)))
}

fn is_near(n: &Node) -> bool {
    matches!(
        n,
        Node::Pred {
            test: Test::Near(_),
            ..
        }
    )
}
