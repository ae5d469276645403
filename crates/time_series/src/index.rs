//! Indexes: of measurements as their user writes them, of buckets as they are kept.
//!
//! A field of the meta value has one value in a bucket, so an index on it is one on the bucket's.
//! The time lies between two bounds, `control.min` and `control.max`; so do other fields (see
//! `measured`).

use crate::TimeSeriesOptions;
use crate::selection::below;
use bson::{Doc, DocBuf, Val, Writer};

/// The key of an index of buckets for a key of an index of measurements.
pub fn of_buckets(options: &TimeSeriesOptions, key: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    for e in key {
        if let Some(rest) = options.meta.as_deref().and_then(|m| below(e.name, m)) {
            w.val(&format!("meta{rest}"), e.val);
            continue;
        }
        match e.val.to_f64() {
            Some(n) if n < 0.0 => {
                w.val(&format!("control.max.{}", e.name), e.val)
                    .val(&format!("control.min.{}", e.name), e.val);
            }
            Some(_) => {
                w.val(&format!("control.min.{}", e.name), e.val)
                    .val(&format!("control.max.{}", e.name), e.val);
            }
            None => {
                w.val(&format!("data.{}", e.name), e.val);
            }
        }
    }
    w.finish()
}

/// The other way round; `None` for an index that no index of measurements stands for.
pub fn of_measurements(options: &TimeSeriesOptions, key: Doc<'_>) -> Option<DocBuf> {
    let mut w = Writer::new();
    let mut rest = key.iter().peekable();
    while let Some(e) = rest.next() {
        if let Some(path) = below(e.name, "meta") {
            w.val(&format!("{}{path}", options.meta.as_ref()?), e.val);
        } else if let Some(name) = e.name.strip_prefix("data.") {
            w.val(name, e.val);
        } else {
            let bound = |n: &str| -> Option<String> {
                let n = n
                    .strip_prefix("control.min.")
                    .or_else(|| n.strip_prefix("control.max."));
                n.map(str::to_string)
            };
            let name = bound(e.name)?;
            let next: Option<(String, Val<'_>)> =
                rest.next().and_then(|n| Some((bound(n.name)?, n.val)));
            if next?.0 != name {
                return None;
            }
            w.val(&name, e.val);
        }
    }
    Some(w.finish())
}
