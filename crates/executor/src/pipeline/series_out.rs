//! `$out` to a time series, and what pipelines over one need to know of its buckets.
//!
//! Measurements are laid into the buckets of a time series aside, which then replace those of the
//! target: readers see the old measurements or the new ones.

use super::aggregate::{self, AggregateHost};
use crate::op::OpCtx;
use bson::{Doc, DocBuf, Val, Writer};
use catalog::Collection;
use errors::{Result, bail};
use planner::Hint;
use query::pipeline::{OutSpec, Source};
use std::sync::Arc;
use time_series::{Granularity, TimeSeriesOptions, buckets_of};

fn options_of(d: Doc<'_>) -> Result<TimeSeriesOptions> {
    let text = |name: &str| d.get(name).and_then(|v| v.as_str());
    let number = |name: &str| d.get(name).and_then(whole);
    TimeSeriesOptions::new(
        text("timeField").unwrap_or(""),
        text("metaField"),
        text("granularity").and_then(Granularity::parse),
        number("bucketMaxSpanSeconds"),
        number("bucketRoundingSeconds"),
    )
}

/// Doubles are cut off, decimals rounded to even, as MongoDB does.
fn whole(v: Val<'_>) -> Option<i64> {
    match v.as_decimal() {
        Some(_) => v.to_f64().map(|n| n.round_ties_even() as i64),
        None => v.to_i64_truncated(),
    }
}

/// The options of the target, as the stage asks for them or as it has them.
fn target_options(
    spec: &OutSpec,
    target: &str,
    before: Option<&Collection>,
) -> Result<TimeSeriesOptions> {
    let asked = match &spec.timeseries {
        Some(d) => Some(options_of(d.as_doc())?),
        None => None,
    };
    let there = before.and_then(|c| c.measurements());
    Ok(match (asked, there) {
        (Some(_), None) if before.is_some() => bail!(
            7268700,
            "Cannot create a time-series collection from a non time-series collection: {target}"
        ),
        (Some(asked), Some(there)) => {
            let same = TimeSeriesOptions {
                array_metas: there.array_metas,
                ..asked
            };
            if same != **there {
                bail!(
                    7406103,
                    "Time-series options given do not match those of {target}"
                );
            }
            same
        }
        (Some(asked), None) => asked,
        (None, Some(there)) => TimeSeriesOptions::clone(there),
        (None, None) => bail!(InvalidOptions, "{target} is no time series"),
    })
}

/// `$out` to a time series that is there, or that comes to be.
pub(super) fn run(
    outside: &mut AggregateHost<'_, '_>,
    spec: &OutSpec,
    before: Option<Arc<Collection>>,
    input: &mut dyn Source,
) -> Result<()> {
    let target = spec.target.to_string();
    let options = target_options(spec, &target, before.as_deref())?;
    let own = before.as_ref().map(|c| c.options.as_doc());
    let expires = own.and_then(|o| o.get("expireAfterSeconds")?.to_i64_exact());
    let collation = own.and_then(|o| o.get("collation")?.as_doc());
    let shown =
        |ns: &str| catalog::time_series::options_of_measurements(ns, &options, expires, collation);
    let buckets = || catalog::time_series::options_of_buckets(&options, collation);
    let engine = outside.ctx.engine.clone();
    let catalog = &engine.catalog;
    let aside = crate::temp_collections::of_out(&spec.target.db);
    catalog.create_time_series(&aside, shown(&aside), buckets(), None)?;
    let done = (|| {
        copy_indexes(outside.ctx, &target, &aside)?;
        outside.fill(&aside, input)?;
        let arrays = catalog
            .get(&aside)
            .and_then(|c| Some(c.measurements()?.array_metas));
        if catalog.get(&target).is_none() {
            catalog.create_time_series(&target, shown(&target), buckets(), None)?;
        }
        if arrays == Some(true) && !options.array_metas {
            let noted = TimeSeriesOptions {
                array_metas: true,
                ..options.clone()
            };
            let stored =
                catalog::time_series::options_of_measurements(&target, &noted, expires, collation);
            catalog.change_options(&target, stored, &|| outside.ctx.check())?;
        }
        catalog.rename(&buckets_of(&aside), &buckets_of(&target), true, &|| {
            outside.ctx.check()
        })
    })();
    let gone = catalog.drop_collection(&aside, &catalog::never_interrupted);
    if done.is_err() {
        let _ = catalog.drop_collection(&buckets_of(&aside), &catalog::never_interrupted);
    }
    outside.ctx.last_index = engine.store.last_index();
    done.and(gone.map(|_| ()))
}

fn copy_indexes(ctx: &mut OpCtx, from: &str, to: &str) -> Result<()> {
    let Some(old) = ctx.engine.catalog.get(&buckets_of(from)) else {
        return Ok(());
    };
    let new: Vec<catalog::NewIndex> = old
        .secondary()
        .map(|i| catalog::NewIndex {
            spec: i.spec.clone(),
        })
        .collect();
    match new.is_empty() {
        true => Ok(()),
        false => crate::write::build::create_indexes(ctx, &buckets_of(to), &new).map(|_| ()),
    }
}

/// A hint on a time series, as it names an index of its buckets.
pub(super) fn hint_of_buckets(ctx: &OpCtx, ns: &str, hint: Option<Hint>) -> Option<Hint> {
    let shown = ctx.engine.catalog.get(ns)?;
    let Some(options) = shown.measurements() else {
        return hint;
    };
    let first = |meta: &str| {
        let mut w = Writer::new();
        w.i32(meta, 1).i32(&options.time, 1);
        w.finish()
    };
    match hint? {
        Hint::Key(key) => {
            let by_order = options.meta.as_deref().map(first);
            match by_order.is_some_and(|k| k == key) {
                true => None,
                false => Some(Hint::Key(time_series::of_buckets(options, key.as_doc()))),
            }
        }
        Hint::Name(name) => {
            let meta = options.meta.as_deref().unwrap_or("");
            (name != format!("{meta}_1_{}_1", options.time)).then_some(Hint::Name(name))
        }
        other => Some(other),
    }
}

/// `$indexStats` of a time series, by the indexes that were asked for; the order of its buckets is
/// the first.
pub(super) fn index_stats(options: &TimeSeriesOptions, buckets: &Collection) -> Vec<DocBuf> {
    let own = |row: &DocBuf| {
        let spec = row.get("spec")?.as_doc()?.get("originalSpec")?.as_doc()?;
        let mut w = Writer::new();
        for e in row.as_doc() {
            match e.name {
                "key" => w.val("key", spec.get("key")?),
                "spec" => w.doc("spec", spec),
                _ => w.val(e.name, e.val),
            };
        }
        Some(w.finish())
    };
    let rows = aggregate::index_stats(buckets);
    let by_order = |row: &DocBuf| {
        let meta = options.meta.as_ref()?;
        let name = format!("{meta}_1_{}_1", options.time);
        let mut key = Writer::new();
        key.i32(meta, 1).i32(&options.time, 1);
        let key = key.finish();
        let mut w = Writer::new();
        for e in row.as_doc() {
            match e.name {
                "name" => w.str("name", &name),
                "key" => w.doc("key", key.as_doc()),
                "spec" => w
                    .open_doc("spec")
                    .i32("v", 2)
                    .doc("key", key.as_doc())
                    .str("name", &name)
                    .close(),
                _ => w.val(e.name, e.val),
            };
        }
        Some(w.finish())
    };
    let first = rows.first().and_then(by_order);
    first
        .into_iter()
        .chain(rows.iter().filter_map(own))
        .collect()
}
