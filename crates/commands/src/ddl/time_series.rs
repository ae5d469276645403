//! Definition of time series: a collection of measurements, which is a view, and that of its buckets.
//!
//! Indexes are created by the fields of measurements, and kept on the fields of buckets; each keeps its
//! definition as `originalSpec`.

use super::index_spec::IndexSpec;
use bson::{Doc, DocBuf, Elem, Val, Writer};
use catalog::{Catalog, CheckInterrupt, Collection, NewIndex};
use errors::{Result, bail};
use front::idl;
use std::sync::Arc;
use time_series::{Granularity, MAX_SPAN_SECONDS, TimeSeriesOptions, buckets_of};

/// The field with the definition of an index as it was given.
const ORIGINAL: &str = "originalSpec";

idl::arguments! {
    struct Given<'a> {
        "timeField" => time: Option<&'a str> = idl::string,
        "metaField" => meta: Option<&'a str> = idl::string,
        "granularity" => granularity: Option<Granularity> = granularity,
        "bucketMaxSpanSeconds" => span: Option<i64> = seconds,
        "bucketRoundingSeconds" => rounding: Option<i64> = seconds,
    }
}

fn granularity(within: &str, e: Elem<'_>) -> Result<Option<Granularity>> {
    let Some(name) = idl::string(within, e)? else {
        return Ok(None);
    };
    match Granularity::parse(name) {
        None => bail!(
            BadValue,
            "Enumeration value '{name}' for field '{within}.granularity' is not a valid value."
        ),
        found => Ok(found),
    }
}

fn seconds(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    let n = idl::int(within, e)?;
    if n.is_some_and(|n| !(1..=MAX_SPAN_SECONDS).contains(&n)) {
        bail!(
            BadValue,
            "BSON field '{}' value must be >= 1 and <= {MAX_SPAN_SECONDS}, actual value '{}'",
            e.name,
            e.val
        );
    }
    Ok(n)
}

/// The argument `timeseries` of `create`.
pub fn options(d: Doc<'_>) -> Result<TimeSeriesOptions> {
    const AT: &str = "create.timeseries";
    let g = Given::parse_document(AT, d)?;
    let time = idl::required(AT, "timeField", g.time)?;
    let options = TimeSeriesOptions::new(time, g.meta, g.granularity, g.span, g.rounding)?;
    options.check_meta()?;
    Ok(options)
}

/// The indexes of a time series as its user sees them.
pub fn indexes(catalog: &Catalog, shown: &Collection, options: &TimeSeriesOptions) -> Vec<DocBuf> {
    let mut all: Vec<DocBuf> = by_order(options).into_iter().collect();
    if let Some(buckets) = catalog.get(&buckets_of(&shown.ns)) {
        all.extend(
            buckets
                .secondary()
                .filter_map(|i| shown_spec(options, i.spec.as_doc())),
        );
    }
    all
}

/// The index that a time series with a meta field has from its beginning: here it is the order in
/// which buckets lie.
fn by_order(options: &TimeSeriesOptions) -> Option<DocBuf> {
    let meta = options.meta.as_ref()?;
    let mut w = Writer::new();
    w.i32("v", 2)
        .open_doc("key")
        .i32(meta, 1)
        .i32(&options.time, 1)
        .close()
        .str("name", &format!("{meta}_1_{}_1", options.time));
    Some(w.finish())
}

fn shown_spec(options: &TimeSeriesOptions, spec: Doc<'_>) -> Option<DocBuf> {
    if let Some(own) = spec.get(ORIGINAL).and_then(|v| v.as_doc()) {
        let mut w = Writer::new();
        for e in own {
            w.val(e.name, e.val);
        }
        // `collMod` changes these two on the index itself.
        for name in ["hidden", "expireAfterSeconds"] {
            if let (None, Some(v)) = (own.get(name), spec.get(name)) {
                w.val(name, v);
            }
        }
        return Some(w.finish());
    }
    let key = time_series::of_measurements(options, spec.get("key")?.as_doc()?)?;
    let mut w = Writer::new();
    for e in spec {
        match e.name {
            "key" => w.doc("key", key.as_doc()),
            _ => w.val(e.name, e.val),
        };
    }
    Some(w.finish())
}

/// The indexes on buckets for these indexes of measurements, without those that exist.
pub fn new_indexes(
    buckets: &Collection,
    options: &TimeSeriesOptions,
    specs: &[IndexSpec],
) -> Result<Vec<NewIndex>> {
    let mut existing: Vec<DocBuf> = buckets.secondary().map(|i| i.spec.clone()).collect();
    let own = by_order(options);
    let mut new = Vec::new();
    for s in specs {
        check_index(options, s.spec.as_doc())?;
        let key = |d: &DocBuf| d.get("key").and_then(|v| v.as_doc()).map(Doc::to_buf);
        if own.as_ref().and_then(key) == key(&s.spec) {
            continue;
        }
        let plain = on_buckets(options, s.spec.as_doc());
        let kept = IndexSpec::parse(plain.as_doc().as_val(), buckets.collation.as_ref())?;
        if kept.exists_among(&existing)? {
            continue;
        }
        existing.push(kept.spec.clone());
        let mut w = Writer::new();
        w.extend(kept.spec.as_doc()).doc(ORIGINAL, s.spec.as_doc());
        new.push(NewIndex { spec: w.finish() });
    }
    Ok(new)
}

/// Whether a path is the meta field or below it.
fn is_meta(options: &TimeSeriesOptions, path: &str) -> bool {
    let rest = options.meta.as_deref().and_then(|m| path.strip_prefix(m));
    rest.is_some_and(|r| r.is_empty() || r.starts_with('.'))
}

/// Refuses kinds of indexes that a time series cannot have.
fn check_index(options: &TimeSeriesOptions, spec: Doc<'_>) -> Result<()> {
    let key = spec
        .get("key")
        .and_then(|v| v.as_doc())
        .unwrap_or(Doc::EMPTY);
    let flag = |name: &str| spec.get(name).is_some_and(Val::truthy);
    if flag("unique") {
        bail!(
            InvalidOptions,
            "Unique indexes are not supported on time-series collections"
        );
    }
    let all_meta = key.iter().all(|e| is_meta(options, e.name));
    if flag("sparse") && !all_meta {
        bail!(
            InvalidOptions,
            "Sparse indexes are only supported on the metaField of time-series collections"
        );
    }
    for e in key {
        if e.name == "$**" || e.name.ends_with(".$**") && !is_meta(options, e.name) {
            bail!(
                7246201,
                "Wildcard indexes are only supported on the metaField of time-series collections"
            );
        }
        match e.val.as_str() {
            Some("text") => bail!(
                InvalidOptions,
                "Text indexes are not supported on time-series collections"
            ),
            Some(kind @ ("hashed" | "2d")) if !is_meta(options, e.name) => bail!(
                CannotCreateIndex,
                "Indexes of the kind {kind} are only supported on the metaField of time-series collections"
            ),
            _ => {}
        }
    }
    if spec.get("expireAfterSeconds").is_some() {
        let partial = spec.get("partialFilterExpression").and_then(|v| v.as_doc());
        let by_time = key.count() == 1 && key.contains(&options.time);
        let by_meta = |d: Doc<'_>| d.iter().all(|e| is_meta(options, e.name));
        if !by_time || !partial.is_some_and(by_meta) {
            bail!(
                InvalidOptions,
                "TTL indexes on time-series collections must be on the timeField, with a partialFilterExpression on the \
                 metaField"
            );
        }
    }
    Ok(())
}

/// The specification of the index on buckets.
fn on_buckets(options: &TimeSeriesOptions, spec: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    let expires = spec.get("expireAfterSeconds").is_some();
    for e in spec {
        match (e.name, e.val.as_doc()) {
            // A bucket expires as a whole, with its newest measurement.
            ("key", Some(_)) if expires => {
                w.open_doc("key")
                    .i32(&format!("control.max.{}", options.time), 1)
                    .close();
            }
            ("key", Some(key)) => {
                w.doc("key", time_series::of_buckets(options, key).as_doc());
            }
            // An index of more buckets than were asked for answers as well.
            ("partialFilterExpression", Some(d)) => {
                if d.iter().all(|e| is_meta(options, e.name)) && !d.is_empty() {
                    w.open_doc(e.name);
                    for e in d {
                        let meta = options.meta.as_deref().unwrap_or("");
                        let rest = e.name.strip_prefix(meta).unwrap_or("");
                        w.val(&format!("meta{rest}"), e.val);
                    }
                    w.close();
                }
            }
            _ => {
                w.val(e.name, e.val);
            }
        }
    }
    w.finish()
}

/// The argument `index` of dropIndexes, as it names indexes of buckets.
pub fn dropped(options: &TimeSeriesOptions, buckets: &Collection, index: Val<'_>) -> bson::Value {
    let Some(key) = index.as_doc() else {
        return index.to_value();
    };
    let asked = |spec: Doc<'_>| {
        let own = shown_spec(options, spec)?;
        own.get("key").and_then(|v| v.as_doc()).map(Doc::to_buf)
    };
    let found = buckets.secondary().find(|i| {
        asked(i.spec.as_doc()).is_some_and(|k| super::index_spec::same_key(k.as_doc(), key))
    });
    match found {
        Some(i) => bson::Value::from(i.name()),
        None => index.to_value(),
    }
}

/// `collMod` of a time series: its bucketing, and when measurements expire.
pub fn change(
    catalog: &Catalog,
    shown: &Collection,
    options: &Arc<TimeSeriesOptions>,
    timeseries: Option<Doc<'_>>,
    expire: Option<Option<i64>>,
    interrupt: CheckInterrupt<'_>,
) -> Result<()> {
    let mut next = TimeSeriesOptions::clone(options);
    if let Some(d) = timeseries {
        const AT: &str = "collMod.timeseries";
        if let Some(e) = d
            .iter()
            .find(|e| matches!(e.name, "timeField" | "metaField"))
        {
            return Err(idl::unknown(AT, e.name));
        }
        let c = Given::parse_document(AT, d)?;
        next = options.changed(c.granularity, c.span, c.rounding)?;
    }
    let own = shown.options.as_doc();
    let before = own.get("expireAfterSeconds").and_then(|v| v.to_i64_exact());
    let expires = expire.unwrap_or(before);
    let collation = own.get("collation").and_then(|v| v.as_doc());
    if next == **options && expires == before {
        return Ok(());
    }
    let stored =
        catalog::time_series::options_of_measurements(&shown.ns, &next, expires, collation);
    catalog.change_options(&shown.ns, stored, interrupt)?;
    let buckets = catalog::time_series::options_of_buckets(&next, collation);
    // Both or none.
    catalog.change_options(&buckets_of(&shown.ns), buckets, &catalog::never_interrupted)
}

/// The options of a time series as listCollections shows them.
pub fn shown_options(c: &Collection) -> DocBuf {
    let mut w = Writer::new();
    for e in c.options.as_doc() {
        if !matches!(e.name, "viewOn" | "arrayMetas") {
            w.val(e.name, e.val);
        }
    }
    w.finish()
}
