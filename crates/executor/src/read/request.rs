//! Read requests and their plans. The planner has the entries of candidates counted, and obeys the
//! operator's rules (query settings, index filters, `notablescan`).

use crate::engine::Engine;
use crate::op::OpCtx;
use crate::read::measure::Measure;
use crate::read::text;
use bson::Doc;
use catalog::{Collection, IndexFilter, PlanCacheEntry, PlanKey, QueryShape};
use errors::{Result, Stop, bail};
use planner::{Access, Choice, DistinctRequest, Hint, Plan, PlanRequest, Reads};
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use storage::View;

/// A read request.
#[derive(Clone)]
pub struct ReadRequest<'a> {
    pub filter: &'a Filter,
    pub sort: Option<&'a SortPattern>,
    pub projection: Option<&'a Projection>,
    /// The most results wanted, skipped ones included.
    pub limit: Option<u64>,
    pub hint: Option<Hint>,
    pub min: Option<Doc<'a>>,
    pub max: Option<Doc<'a>>,
    /// Values of variables that `$expr` in the filter names.
    pub vars: Option<Arc<query::expr::Vars>>,
    /// Only one document of each value matters.
    pub distinct: Option<DistinctRequest<'a>>,
}

impl<'a> ReadRequest<'a> {
    pub fn new(filter: &'a Filter) -> ReadRequest<'a> {
        ReadRequest {
            filter,
            sort: None,
            projection: None,
            limit: None,
            hint: None,
            min: None,
            max: None,
            vars: None,
            distinct: None,
        }
    }

    /// The index filter that holds for the query.
    pub fn index_filter(&self, coll: &Collection) -> Option<IndexFilter> {
        if coll.index_filters.is_empty() {
            return None;
        }
        let (sort, projection) = (
            self.sort.map(|s| s.to_doc()),
            // The projection of a distinct was not given by the client.
            self.projection
                .filter(|_| self.distinct.is_none_or(|d| d.group))
                .map(|p| p.to_doc()),
        );
        coll.index_filters.find(&QueryShape::new(
            self.filter,
            sort.as_ref().map(|d| d.as_doc()),
            projection.as_ref().map(|d| d.as_doc()),
            self.sort.and_then(|s| s.collation()).cloned(),
        ))
    }

    /// Chooses a plan; in `view` entries are counted when there is a choice.
    pub fn plan(
        &self,
        engine: &Arc<Engine>,
        view: &View,
        coll: &Arc<Collection>,
        count: bool,
    ) -> Result<Plan> {
        self.choose(engine, view, coll, count).map(|c| c.plan)
    }

    /// What its plans are remembered by.
    pub(crate) fn plan_key(&self, coll: &Collection) -> PlanKey {
        PlanKey {
            shape: self.filter.shape(),
            sort: self.sort.map(|s| s.to_doc()).unwrap_or_default(),
            limit_bits: self.limit.map_or(0, |l| u64::BITS - l.leading_zeros()),
            indexes: coll.usable.iter().map(|i| i.id).collect(),
        }
    }

    pub(crate) fn cache_entry(&self, form: Vec<u32>, works: u64, plan: &Plan) -> PlanCacheEntry {
        PlanCacheEntry {
            form,
            works,
            created: SystemTime::now(),
            filter: self.filter.clone(),
            sort: self.sort.cloned(),
            projection: self.projection.cloned(),
            plan: plan.clone(),
        }
    }

    /// As [`ReadRequest::choose`], with the time that counting takes counted for the operation.
    pub(crate) fn choose_timed(
        &self,
        ctx: &mut OpCtx,
        view: &View,
        coll: &Arc<Collection>,
        count: bool,
    ) -> Result<Choice> {
        let choice = self.choose(ctx.engine, view, coll, count)?;
        ctx.examined.planning_nanos += choice.nanos;
        Ok(choice)
    }

    /// As [`ReadRequest::plan`], with the plans that were not chosen.
    pub fn choose(
        &self,
        engine: &Arc<Engine>,
        view: &View,
        coll: &Arc<Collection>,
        count: bool,
    ) -> Result<Choice> {
        if let Cow::Owned(filter) = text::bound(self.filter, Some(coll))? {
            let bound = ReadRequest {
                filter: &filter,
                ..self.clone()
            };
            return bound.choose(engine, view, coll, count);
        }
        let choice = self.choose_any(engine, view, coll, count)?;
        if engine.no_table_scan.load(Ordering::Relaxed) {
            self.check_scan(&choice.plan, &coll.ns)?;
        }
        Ok(choice)
    }

    /// Refuses a collection scan with a filter, except in the server's own databases.
    fn check_scan(&self, plan: &Plan, ns: &str) -> Result<()> {
        let (db, name) = ns.split_once('.').unwrap_or((ns, ""));
        let own = matches!(db, "admin" | "config" | "local") || name.starts_with("system.");
        if own || self.filter.is_trivial() || !plan.access.is_scan() {
            return Ok(());
        }
        let why = match self.hint {
            Some(Hint::Natural { .. }) => {
                "hint $natural is not allowed, because 'notablescan' is enabled"
            }
            _ => "No indexed plans available, and running with 'notablescan'",
        };
        bail!(
            NoQueryExecutionPlans,
            "error processing query: ns={ns} planner returned error :: caused by :: {why}"
        );
    }

    fn choose_any(
        &self,
        engine: &Arc<Engine>,
        view: &View,
        coll: &Arc<Collection>,
        count: bool,
    ) -> Result<Choice> {
        let store = &engine.store;
        let lacks = Cell::new(None);
        let measure = Measure::new(engine, view, coll, self.limit.filter(|l| *l > 0));
        let estimate = |asked: &[&Access]| measure.reads(asked);
        let size = |low: &[u8], high: &[u8]| store.approximate_size(low, high);
        let fewest = |id: u32, ranges: &[(Vec<u8>, Vec<u8>)]| {
            text::fewest(view, coll, id, ranges, &size, &lacks)
        };
        let mut choice = self.choose_by(&estimate, &fewest, coll, count)?;
        choice.counted = measure.counted();
        choice.nanos = measure.nanos();
        // On an event loop counting may need a disk read, or take too long. A plan made without it
        // would be arbitrary, so that comes first.
        match lacks
            .take()
            .or(measure.stopped())
            .filter(Stop::is_suspension)
        {
            Some(suspended) => Err(suspended),
            None => Ok(choice),
        }
    }

    fn choose_by(
        &self,
        estimate: &dyn Fn(&[&Access]) -> Vec<Reads>,
        fewest: &dyn Fn(u32, &[(Vec<u8>, Vec<u8>)]) -> usize,
        coll: &Collection,
        count: bool,
    ) -> Result<Choice> {
        // The clustered index may have a name of its own.
        let own_name = match &self.hint {
            Some(Hint::Name(n)) => coll
                .option("clusteredIndex")
                .and_then(|v| v.as_doc()?.get("name"))
                .is_some_and(|v| v.as_str() == Some(n)),
            _ => false,
        };
        let id_hint = own_name.then(|| Hint::Name("_id_".to_string()));
        let request = PlanRequest {
            filter: self.filter,
            vars: self.vars.as_deref(),
            sort: self.sort,
            projection: self.projection,
            limit: self.limit,
            hint: id_hint.as_ref().or(self.hint.as_ref()),
            min: self.min,
            max: self.max,
            indexes: &coll.usable,
            clustered: !coll.is_numbered(),
            count,
            distinct: self.distinct,
            ns: &coll.ns,
            fewest: Some(fewest),
            estimate: Some(estimate),
        };
        // Query settings take precedence over an index filter, and that over a hint.
        if let Some(Hint::Among(list)) = &self.hint
            && let Some(choice) = choose_among(list, &request)?
        {
            return Ok(choice);
        }
        let allowed: Option<Vec<_>> = self.index_filter(coll).map(|f| {
            let allowed = coll.usable.iter().filter(|i| f.allows(i));
            allowed.cloned().collect()
        });
        match &allowed {
            Some(indexes) => planner::choose(&PlanRequest {
                hint: None,
                indexes,
                ..request
            }),
            None => planner::choose(&request),
        }
    }
}

/// Plans with only the indexes that query settings allow; `None` when none of them serves the
/// query.
fn choose_among(list: &[Hint], request: &PlanRequest<'_>) -> Result<Option<Choice>> {
    let named = request.indexes.iter();
    let named: Vec<_> = named
        .filter(|i| list.iter().any(|h| h.names(i)))
        .cloned()
        .collect();
    let clustered = request.clustered && list.iter().any(Hint::names_id);
    let natural = list.iter().find(|h| matches!(h, Hint::Natural { .. }));
    if named.is_empty() && !clustered {
        let natural = natural.map(|h| PlanRequest {
            hint: Some(h),
            ..*request
        });
        return natural.map(|r| planner::choose(&r)).transpose();
    }
    let choice = planner::choose(&PlanRequest {
        hint: None,
        indexes: &named,
        clustered,
        ..*request
    })?;
    let serves = natural.is_some() || !choice.plan.access.is_scan();
    Ok(serves.then_some(choice))
}
