//! What has won the races of plans: for each shape of a query, and the indexes that there were. It
//! lives as long as the process does, as in MongoDB.
//!
//! Invariant: at most [`MOST`] shapes of a collection are kept, and no part of a query that is longer
//! than [`MOST_QUERY_BYTES`].

use crate::index_filter::QueryShape;
use bson::DocBuf;
use parking_lot::Mutex;
use planner::Plan;
use query::filter::Filter;
use query::projection::Projection;
use query::sort::SortPattern;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// The most shapes of a collection.
const MOST: usize = 256;
/// Of longer filters, sorts and projections nothing is kept.
const MOST_QUERY_BYTES: usize = 16 << 10;

/// A shape, and the indexes that its plans were made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanKey {
    pub shape: String,
    pub sort: DocBuf,
    /// Of the limit: how many bits it has. The best plan for one result need not be the best for
    /// thousands.
    pub limit_bits: u32,
    /// The ids of the indexes.
    pub indexes: Vec<u32>,
}

/// What won, and by what query.
#[derive(Clone, Debug)]
pub struct PlanCacheEntry {
    /// Which of its query's plans it is.
    pub form: Vec<u32>,
    /// What it read until it had the first batch.
    pub works: u64,
    pub created: SystemTime,
    pub filter: Filter,
    pub sort: Option<SortPattern>,
    pub projection: Option<Projection>,
    pub plan: Plan,
}

#[derive(Default, Debug)]
pub struct PlanCache {
    all: Mutex<HashMap<PlanKey, Arc<PlanCacheEntry>>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Of a collection's plans, since the process began.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanCacheFigures {
    pub hits: u64,
    pub misses: u64,
    pub shapes: u64,
}

impl PlanCache {
    pub fn find(&self, key: &PlanKey) -> Option<Arc<PlanCacheEntry>> {
        let found = self.all.lock().get(key).cloned();
        let count = match found {
            Some(_) => &self.hits,
            None => &self.misses,
        };
        count.fetch_add(1, Relaxed);
        found
    }

    pub fn figures(&self) -> PlanCacheFigures {
        PlanCacheFigures {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            shapes: self.all.lock().len() as u64,
        }
    }

    /// Remembers; the oldest is forgotten where there are too many.
    pub fn put(&self, key: PlanKey, entry: PlanCacheEntry) {
        let projection = entry.projection.as_ref().map(Projection::to_doc);
        let parts = [
            key.shape.len(),
            key.sort.as_bytes().len(),
            entry.filter.to_doc().as_bytes().len(),
            projection.map_or(0, |d| d.as_bytes().len()),
        ];
        if parts.into_iter().any(|bytes| bytes > MOST_QUERY_BYTES) {
            return;
        }
        let mut all = self.all.lock();
        if all.len() >= MOST && !all.contains_key(&key) {
            let oldest = all.iter().min_by_key(|(_, e)| e.created);
            if let Some(oldest) = oldest.map(|(k, _)| k.clone()) {
                all.remove(&oldest);
            }
        }
        all.insert(key, Arc::new(entry));
        assert!(all.len() <= MOST, "the shapes of a collection are few");
    }

    /// Forgets the plans of a shape, or (`None`) all.
    pub fn clear(&self, shape: Option<&QueryShape>) {
        let other = |k: &PlanKey, s: &QueryShape| k.shape != s.filter || k.sort != s.sort;
        let mut all = self.all.lock();
        all.retain(|k, _| shape.is_some_and(|s| other(k, s)));
    }

    pub fn list(&self) -> Vec<(PlanKey, Arc<PlanCacheEntry>)> {
        let all = self.all.lock();
        let mut all: Vec<_> = all.iter().map(|(k, e)| (k.clone(), e.clone())).collect();
        all.sort_by_key(|(_, e)| e.created);
        all
    }
}
