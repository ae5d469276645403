//! Read requests and their plans. The planner asks the store for the size of ranges, and obeys the
//! operator's rules (query settings, index filters, `notablescan`).

use crate::engine::Engine;
use crate::read::text;
use crate::records;
use bson::Doc;
use catalog::keyspace;
use catalog::{Collection, Index, IndexFilter, QueryShape};
use errors::{Result, Stop, bail};
use planner::{DistinctRequest, Hint, Plan, PlanRequest};
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::{Store, View};

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

    /// Chooses a plan; `view` and the store estimate the size of ranges when there is a choice.
    pub fn plan(
        &self,
        engine: &Engine,
        view: &View,
        coll: &Collection,
        count: bool,
    ) -> Result<Plan> {
        if let Cow::Owned(filter) = text::bound(self.filter, Some(coll))? {
            let bound = ReadRequest {
                filter: &filter,
                ..self.clone()
            };
            return bound.plan(engine, view, coll, count);
        }
        let plan = self.plan_any(&engine.store, view, coll, count)?;
        if engine.no_table_scan.load(Ordering::Relaxed) {
            self.check_scan(&plan, &coll.ns)?;
        }
        Ok(plan)
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

    fn plan_any(&self, store: &Store, view: &View, coll: &Collection, count: bool) -> Result<Plan> {
        let lacks = Cell::new(None);
        let estimate =
            |id: u32, low: &[u8], high: &[u8]| estimate(store, view, coll, id, low, high, &lacks);
        let size = |low: &[u8], high: &[u8]| store.approximate_size(low, high);
        let fewest = |id: u32, ranges: &[(Vec<u8>, Vec<u8>)]| {
            text::fewest(view, coll, id, ranges, &size, &lacks)
        };
        let plan = self.plan_by(&estimate, &fewest, coll, count)?;
        // On an event loop an estimate may need a disk read. A plan made without it would be
        // arbitrary, so the read comes first.
        match lacks.take().filter(Stop::is_suspension) {
            Some(suspended) => Err(suspended),
            None => Ok(plan),
        }
    }

    fn plan_by(
        &self,
        estimate: &dyn Fn(u32, &[u8], &[u8]) -> u64,
        fewest: &dyn Fn(u32, &[(Vec<u8>, Vec<u8>)]) -> usize,
        coll: &Collection,
        count: bool,
    ) -> Result<Plan> {
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
            && let Some(plan) = plan_among(list, &request)?
        {
            return Ok(plan);
        }
        let allowed: Option<Vec<_>> = self.index_filter(coll).map(|f| {
            let allowed = coll.usable.iter().filter(|i| f.allows(i));
            allowed.cloned().collect()
        });
        match &allowed {
            Some(indexes) => planner::plan(&PlanRequest {
                hint: None,
                indexes,
                ..request
            }),
            None => planner::plan(&request),
        }
    }
}

/// Plans with only the indexes that query settings allow; `None` when none of them serves the
/// query.
fn plan_among(list: &[Hint], request: &PlanRequest<'_>) -> Result<Option<Plan>> {
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
        return natural.map(|r| planner::plan(&r)).transpose();
    }
    let plan = planner::plan(&PlanRequest {
        hint: None,
        indexes: &named,
        clustered,
        ..*request
    })?;
    let serves = natural.is_some() || !plan.access.is_scan();
    Ok(serves.then_some(plan))
}

/// The number of entries that are counted one by one before the engine's estimate is used.
const COUNTED: u64 = 64;
/// The number of index entries in a sample.
const SAMPLED: u64 = 1024;

/// The approximate number of entries of an index (0: records) in `[low, high)`. For a single value
/// the index's cached sample answers without a read; the sample is renewed when the number of
/// records has doubled. When a read fails the result is what was counted until then, and `lacks`
/// holds the error.
fn estimate(
    store: &Store,
    view: &View,
    coll: &Collection,
    id: u32,
    low: &[u8],
    high: &[u8],
    lacks: &Cell<Option<Stop>>,
) -> u64 {
    let index = coll.index(id);
    let prefix = index.map_or(coll.record_prefix, |i| i.prefix);
    let records = store.counts(coll.tablet).0;
    let single = index.filter(|_| bson::key::successor(low).as_deref() == Some(high));
    if let Some(index) = single {
        let (spread, at) = (&index.spread.0, &index.spread.1);
        let then = at.load(Ordering::Relaxed);
        if then == 0 || records > then * 2 {
            match sample(view, index) {
                Ok(sampled) => spread.store(sampled, Ordering::Relaxed),
                Err(e) => {
                    lacks.set(Some(e));
                    return 1;
                }
            }
            at.store(records.max(1), Ordering::Relaxed);
        }
        return spread.load(Ordering::Relaxed);
    }
    let low = keyspace::join(&prefix, low);
    let high = match high {
        [] => keyspace::prefix_end(&prefix),
        h => keyspace::join(&prefix, h),
    };
    let mut scan = view.scan(&low, &high, storage::Direction::Forward);
    let mut n = 0;
    while n < COUNTED {
        match scan.next() {
            Ok(true) => n += 1,
            Ok(false) => return n,
            Err(e) => {
                lacks.set(Some(e));
                return n;
            }
        }
    }
    (store.approximate_size(&low, &high) / 48).clamp(COUNTED, records.max(COUNTED))
}

/// The entries for each value of the first field, in a sample of an index's first entries.
fn sample(view: &View, index: &Index) -> Result<u64> {
    let end = keyspace::prefix_end(&index.prefix);
    let mut scan = view.scan(&index.prefix, &end, storage::Direction::Forward);
    let descending = index.info.key.fields.first().is_some_and(|f| f.descending);
    let (mut entries, mut values, mut last) = (0, 0, Vec::new());
    while entries < SAMPLED && scan.next()? {
        let key = records::own_part(scan.key());
        let first = bson::key::field_len(key, descending).and_then(|len| key.get(..len));
        let first = first.ok_or_else(|| records::damaged_entry(index))?;
        entries += 1;
        if values == 0 || first != last {
            values += 1;
            last = first.to_vec();
        }
    }
    Ok(match (entries, values) {
        // One value fills the sample: it has an unknown, large number of entries.
        (SAMPLED, 1) => SAMPLED * 16,
        (_, 0) => 1,
        (e, v) => (e / v).max(1),
    })
}
