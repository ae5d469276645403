//! Time series over shards. The sharded collection is that of the buckets; clients name that of the
//! measurements.
//!
//! ```text
//! measurement {META: v, TIME: t, …}      bucket {meta: v, control: {min: {TIME: t}, …}, …}
//! key of measurements {META: 1}          shard key {meta: 1, "control.min.TIME": 1}
//! ```
//! Invariant: no bound lies within one meta value, so all buckets of that value are on one shard. So
//! packing, deletes and changes stay on that shard, and a query's meta value says which shards to ask.

use crate::{Ownership, Place, PlaceRange, ShardKey};
use bson::{Doc, DocBuf, Val, Writer, tag};
use errors::{Result, bail};

/// What a collection of buckets begins its name with.
const BUCKETS: &str = "system.buckets.";

/// The measurements of sharded buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    time: String,
    meta: Option<String>,
    /// The option `timeseries`, as `config.collections` tells it.
    options: DocBuf,
    /// The shard key by the names of measurements, without the time.
    key: ShardKey,
}

/// The collection of the buckets of a time series.
pub fn buckets_of(ns: &str) -> String {
    match ns.split_once('.') {
        Some((db, coll)) => format!("{db}.{BUCKETS}{coll}"),
        None => ns.into(),
    }
}

/// The time series of a collection of buckets.
pub fn measurements_of(ns: &str) -> Option<String> {
    let (db, coll) = ns.split_once('.')?;
    Some(format!("{db}.{}", coll.strip_prefix(BUCKETS)?))
}

/// The names of buckets for a shard key of measurements, by the option `timeseries`.
pub fn key_of_buckets(options: Doc<'_>, pattern: Doc<'_>) -> Result<DocBuf> {
    let text = |name: &str| options.get(name).and_then(Val::as_str);
    let (time, meta) = (text("timeField").unwrap_or_default(), text("metaField"));
    let many = pattern.count();
    let mut w = Writer::new();
    for (n, e) in pattern.iter().enumerate() {
        if e.name == time {
            if n + 1 < many {
                bail!(
                    5914000,
                    "the time field '{time}' can be only at the end of the shard key pattern"
                );
            }
            if e.val.as_str() == Some("hashed") {
                bail!(BadValue, "the time field '{time}' cannot be hashed");
            }
            w.val(&format!("control.min.{time}"), e.val);
            continue;
        }
        let below = meta.and_then(|m| e.name.strip_prefix(m));
        let Some(below) = below.filter(|b| b.is_empty() || b.starts_with('.')) else {
            bail!(
                5914001,
                "only the time field or meta field can be part of shard key pattern"
            );
        };
        w.val(&format!("meta{below}"), e.val);
    }
    let buckets = w.finish();
    ShardKey::parse(buckets.as_doc())?;
    if !buckets.as_doc().iter().any(|e| !is_time(e.name)) {
        bail!(
            NotImplemented,
            "sharding a time series by its timeField alone is not supported: {pattern}"
        );
    }
    Ok(buckets)
}

/// Whether a field of a shard key of buckets is their time.
fn is_time(name: &str) -> bool {
    name.starts_with("control.")
}

impl Series {
    /// By the option `timeseries` and the shard key of the buckets; `None` where they say nothing of
    /// that kind.
    pub fn new(options: Doc<'_>, key: &ShardKey) -> Option<Series> {
        let text = |name: &str| options.get(name).and_then(Val::as_str);
        let meta = text("metaField");
        let mut w = Writer::new();
        for e in key.pattern().iter().filter(|e| !is_time(e.name)) {
            match (e.name.strip_prefix("meta"), meta) {
                (Some(below), Some(meta)) => w.val(&format!("{meta}{below}"), e.val),
                // One that was moved by itself lies where its ids say: all of it on one shard.
                _ => w.val(e.name, e.val),
            };
        }
        Some(Series {
            time: text("timeField")?.into(),
            meta: meta.map(str::to_string),
            options: options.to_buf(),
            key: ShardKey::parse(w.finish().as_doc()).ok()?,
        })
    }

    pub fn options(&self) -> Doc<'_> {
        self.options.as_doc()
    }

    /// The fields of measurements that say where they lie.
    pub fn key(&self) -> &ShardKey {
        &self.key
    }

    /// Where a measurement belongs, by the shard key of its buckets.
    pub fn place_of(&self, key: &ShardKey, measurement: Doc<'_>) -> Result<Place> {
        let time = measurement.get(&self.time).filter(|v| v.tag == tag::DATE);
        let Some(time) = time else {
            bail!(
                BadValue,
                "'{}' must be present and contain a valid BSON UTC datetime value",
                self.time
            );
        };
        let mut w = Writer::new();
        let meta = self.meta.as_ref().and_then(|m| measurement.get(m));
        if let Some(meta) = meta {
            w.val("meta", meta);
        }
        w.open_doc("control").open_doc("min");
        w.val(&self.time, time);
        key.place_of(w.finish().as_doc())
    }

    /// A filter of measurements that holds for those, of these ranges, outside of the orphan ones.
    pub fn shown_among(&self, known: &Ownership, ranges: &[PlaceRange]) -> Option<DocBuf> {
        known.shown_by(&self.key, ranges)
    }
}

/// Fails where a bound would lie within one meta value.
pub fn check_bound(bound: Doc<'_>) -> Result<()> {
    let least = |v: Val<'_>| matches!(v.tag, tag::MIN_KEY | tag::MAX_KEY);
    match bound.iter().any(|e| is_time(e.name) && !least(e.val)) {
        false => Ok(()),
        true => bail!(
            NotImplemented,
            "{bound} would divide the buckets of one meta value: the time of a bound is MinKey"
        ),
    }
}

/// The shard key of buckets without the time: where they may be cut.
pub fn cut_key(key: &ShardKey) -> Result<ShardKey> {
    let mut w = Writer::new();
    for e in key.pattern().iter().filter(|e| !is_time(e.name)) {
        w.val(e.name, e.val);
    }
    ShardKey::parse(w.finish().as_doc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Value, doc};
    use query::expr::{ParseEnv, Vars};
    use query::filter::Filter;

    fn options() -> DocBuf {
        doc! {"timeField": "t", "metaField": "m", "granularity": "seconds"}
    }

    fn parsed(pattern: DocBuf) -> (ShardKey, Series) {
        let buckets = key_of_buckets(options().as_doc(), pattern.as_doc()).unwrap();
        let key = ShardKey::parse(buckets.as_doc()).unwrap();
        let series = Series::new(options().as_doc(), &key).unwrap();
        (key, series)
    }

    #[test]
    fn keys_of_measurements_and_of_buckets() {
        for (given, buckets, cut) in [
            (doc! {"m": 1}, doc! {"meta": 1}, doc! {"m": 1}),
            (
                doc! {"m.a": "hashed"},
                doc! {"meta.a": "hashed"},
                doc! {"m.a": "hashed"},
            ),
            (
                doc! {"m": 1, "t": 1},
                doc! {"meta": 1, "control.min.t": 1},
                doc! {"m": 1},
            ),
        ] {
            let (key, series) = parsed(given);
            assert_eq!(key.pattern().to_buf(), buckets);
            assert_eq!(series.key().pattern().to_buf(), cut);
        }
        for (pattern, code) in [
            (doc! {"t": 1, "m": 1}, 5914000),
            (doc! {"x": 1}, 5914001),
            (doc! {"mm": 1}, 5914001),
            (doc! {"t": 1}, 238),
            (doc! {"m": 1, "t": "hashed"}, 2),
        ] {
            let refused = key_of_buckets(options().as_doc(), pattern.as_doc()).unwrap_err();
            assert_eq!(refused.into_error().code.0, code, "{pattern:?}");
        }
        assert_eq!(buckets_of("d.a.b"), "d.system.buckets.a.b");
        assert_eq!(
            measurements_of("d.system.buckets.a.b").as_deref(),
            Some("d.a.b")
        );
        assert_eq!(measurements_of("d.a"), None);
    }

    /// A measurement lies where its bucket does, and where a query of its meta value looks.
    #[test]
    fn places() {
        let (key, series) = parsed(doc! {"m": 1, "t": 1});
        let time = Value::date(5000);
        let measured = doc! {"t": time.clone(), "m": "a", "v": 1};
        let place = series.place_of(&key, measured.as_doc()).unwrap();
        let bucket = doc! {"meta": "a", "control": doc! {"min": doc! {"t": time}}};
        assert_eq!(place, key.place_of(bucket.as_doc()).unwrap());
        let filter = Filter::parse(doc! {"m": "a"}.as_doc(), &ParseEnv::new()).unwrap();
        let found = crate::targeting::ranges(&filter, series.key(), &Vars::new(0));
        assert!(found.iter().any(|r| r.contains(&place)));
        let other = doc! {"t": Value::date(5000), "m": "b"};
        let other = series.place_of(&key, other.as_doc()).unwrap();
        assert!(!found.iter().any(|r| r.contains(&other)));
        let late = series.place_of(&key, doc! {"m": "a"}.as_doc());
        assert_eq!(late.unwrap_err().into_error().code.0, 2);
        let whole = key.whole_bound(doc! {"meta": "a"}.as_doc()).unwrap();
        assert!(check_bound(whole.as_doc()).is_ok());
        assert!(check_bound(doc! {"meta": "a", "control.min.t": Value::date(1)}.as_doc()).is_err());
    }

    #[test]
    fn orphans_are_told_by_the_meta_value() {
        let (key, series) = parsed(doc! {"m": 1, "t": 1});
        let bound = |m: &str| key.whole_bound(doc! {"meta": m}.as_doc()).unwrap();
        let range = key.range(bound("b").as_doc(), bound("d").as_doc()).unwrap();
        let version = crate::Version::UNSHARDED;
        let known = Ownership::nothing("d.system.buckets.s", key.clone(), version).receive(range);
        let shown = series.shown_among(&known, &[PlaceRange::all()]).unwrap();
        let shown = Filter::parse(shown.as_doc(), &ParseEnv::new()).unwrap();
        for (meta, seen) in [("a", true), ("b", false), ("c", false), ("d", true)] {
            let measured = doc! {"t": Value::date(1), "m": meta};
            assert_eq!(shown.matches(measured.as_doc()).unwrap(), seen, "{meta}");
        }
    }
}
