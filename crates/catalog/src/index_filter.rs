//! Index filters: which indexes the planner may choose from for queries of one shape
//! (`planCacheSetFilter`). They live as long as the process does, as in MongoDB.

use bson::{Doc, DocBuf, Value};
use parking_lot::RwLock;
use planner::IndexInfo;
use query::collation::Collation;
use query::filter::Filter;
use std::sync::atomic::{AtomicBool, Ordering};

/// What makes up a query's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryShape {
    pub(crate) filter: String,
    pub sort: DocBuf,
    pub projection: DocBuf,
    pub collation: Option<Collation>,
}

#[derive(Clone, Debug)]
pub struct IndexFilter {
    pub shape: QueryShape,
    /// The query as it was given.
    pub query: DocBuf,
    /// Names and key patterns.
    pub indexes: Vec<Value>,
}

/// The filters of one collection.
#[derive(Default, Debug)]
pub struct IndexFilters {
    any: AtomicBool,
    all: RwLock<Vec<IndexFilter>>,
}

impl QueryShape {
    pub fn new(
        filter: &Filter,
        sort: Option<Doc<'_>>,
        projection: Option<Doc<'_>>,
        collation: Option<Collation>,
    ) -> QueryShape {
        let part = |d: Option<Doc<'_>>| d.map(|d| d.to_buf()).unwrap_or_default();
        QueryShape {
            filter: filter.shape(),
            sort: part(sort),
            projection: part(projection),
            collation: collation.or_else(|| filter.root().collation()),
        }
    }
}

impl IndexFilter {
    /// Whether an index is among those allowed.
    pub fn allows(&self, index: &IndexInfo) -> bool {
        self.indexes.iter().any(|v| {
            let v = v.as_val();
            match v.as_doc() {
                Some(d) => {
                    let key = index.key.as_doc();
                    key.count() == d.count()
                        && key
                            .iter()
                            .zip(d.iter())
                            .all(|(a, b)| a.name == b.name && bson::order::equal(a.val, b.val))
                }
                None => v.as_str() == Some(index.name.as_str()),
            }
        })
    }
}

impl IndexFilters {
    /// Whether there is any: asked for every query.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Sets one; a former one of the same shape is forgotten.
    pub fn set(&self, filter: IndexFilter) {
        let mut all = self.all.write();
        all.retain(|f| f.shape != filter.shape);
        all.push(filter);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Forgets those of a shape, or (`None`) all.
    pub fn clear(&self, shape: Option<&QueryShape>) {
        let mut all = self.all.write();
        all.retain(|f| shape.is_some_and(|s| f.shape != *s));
        self.any.store(!all.is_empty(), Ordering::Relaxed);
    }

    pub fn list(&self) -> Vec<IndexFilter> {
        self.all.read().clone()
    }

    /// The filter for a query. Where no string is compared, its collation is not known and makes no
    /// difference.
    pub fn find(&self, shape: &QueryShape) -> Option<IndexFilter> {
        let all = self.all.read();
        let fits = |f: &&IndexFilter| {
            (&f.shape.filter, &f.shape.sort, &f.shape.projection)
                == (&shape.filter, &shape.sort, &shape.projection)
                && (shape.collation.is_none() || f.shape.collation == shape.collation)
        };
        let exact = all.iter().find(|f| f.shape == *shape);
        exact.or_else(|| all.iter().find(fits)).cloned()
    }
}
