//! Time series in the catalog: a collection of measurements is a view of the collection that holds
//! their buckets, whose name begins with `system.buckets.`. Both have the option `timeseries`.
//!
//! [`OpenBuckets`] counts the measurements that are not packed yet, by meta value, so that writers know when
//! there are enough of them. It is a hint: what it has forgotten is packed later, or stays as it is.

use crate::Catalog;
use ::time_series::{PACKED_ROWS, TimeSeriesOptions};
use bson::{DocBuf, Writer};
use errors::Result;
use foldhash::HashMap;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;

/// Of so many meta values it counts; then it begins anew.
const MOST_METAS: usize = 100_000;

/// Writes to a collection's buckets since the process began.
#[derive(Debug, Default)]
pub struct BucketFigures {
    /// Buckets that were made.
    pub made: AtomicU64,
    /// Buckets that were packed out of others.
    pub packed: AtomicU64,
    pub measurements: AtomicU64,
    /// Buckets that took no more because they had as many measurements as there may be, as many bytes,
    /// or because the next measurement lay behind their span.
    pub full_by_count: AtomicU64,
    pub full_by_size: AtomicU64,
    pub full_by_time: AtomicU64,
}

#[derive(Debug, Default)]
pub struct OpenBuckets {
    pub figures: BucketFigures,
    counts: Mutex<HashMap<Vec<u8>, Count>>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    rows: usize,
    from: i64,
    to: i64,
}

impl OpenBuckets {
    /// Notes measurements of one meta value, whose key this is, between two times. Gives the times
    /// between which there are enough to be packed.
    pub fn add(
        &self,
        meta: &[u8],
        rows: usize,
        times: (i64, i64),
        span: i64,
    ) -> Option<(i64, i64)> {
        let mut counts = self.counts.lock();
        if counts.get(meta).is_none() {
            if counts.len() >= MOST_METAS {
                counts.clear();
            }
            // Of one that is new here, some may have been left by a process before.
            let first = Count {
                rows: 0,
                from: times.0.saturating_sub(span),
                to: times.1,
            };
            counts.insert(meta.to_vec(), first);
        }
        let count = counts.get_mut(meta)?;
        count.rows += rows;
        count.from = count.from.min(times.0);
        count.to = count.to.max(times.1);
        if count.rows < PACKED_ROWS {
            return None;
        }
        let range = (count.from, count.to);
        *count = Count {
            rows: 0,
            from: i64::MAX,
            to: i64::MIN,
        };
        Some(range)
    }
}

/// The options of the collection of buckets.
pub fn options_of_buckets(options: &TimeSeriesOptions, collation: Option<bson::Doc<'_>>) -> DocBuf {
    let mut w = Writer::new();
    w.bool("clusteredIndex", true)
        .doc("timeseries", options.to_doc().as_doc());
    if let Some(c) = collation {
        w.doc("collation", c);
    }
    w.finish()
}

/// The options of the view that shows the measurements.
pub fn options_of_measurements(
    ns: &str,
    options: &TimeSeriesOptions,
    expire_after_seconds: Option<i64>,
    collation: Option<bson::Doc<'_>>,
) -> DocBuf {
    let mut w = Writer::new();
    w.doc("timeseries", options.to_doc().as_doc());
    if let Some(n) = expire_after_seconds {
        w.i64("expireAfterSeconds", n);
    }
    if let Some(c) = collation {
        w.doc("collation", c);
    }
    if options.array_metas {
        w.bool("arrayMetas", true);
    }
    let buckets = ::time_series::buckets_of(ns);
    w.str("viewOn", crate::collection_of(&buckets));
    w.finish()
}

impl Catalog {
    /// Creates a time series; false when there is something of that name. Its buckets come first, so
    /// that they exist when it is visible. `uuid`: that of the buckets, where another shard has some of
    /// them.
    pub fn create_time_series(
        &self,
        ns: &str,
        shown: DocBuf,
        buckets: DocBuf,
        uuid: Option<[u8; 16]>,
    ) -> Result<bool> {
        if self.get(ns).is_some() {
            return Ok(false);
        }
        let below = ::time_series::buckets_of(ns);
        // Left by a process that ended between the two.
        if self.get(&below).is_some() {
            self.drop_collection(&below, &crate::never_interrupted)?;
        }
        crate::check_collection_name(&below)?;
        self.create_as(&below, buckets, uuid)?;
        match self.create(ns, shown) {
            Ok(Some(_)) => Ok(true),
            other => {
                self.drop_collection(&below, &crate::never_interrupted)?;
                other.map(|_| false)
            }
        }
    }
}
