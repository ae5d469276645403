//! Commands that tell sizes and counts of collections and databases.

pub mod coll_stats;
pub mod data_size;
pub mod db_hash;
pub mod db_stats;
pub mod split_vector;
pub mod validate;

use catalog::Collection;
use catalog::keyspace::{self, SPACE_RECORD};
use catalog::numbers::ID_INDEX;
use executor::Engine;

/// Bytes and counts of one collection.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    pub count: u64,
    /// Documents, uncompressed.
    pub data: u64,
    /// Records on disk, about.
    pub storage: u64,
    /// Indexes on disk by name, about; `_id_` first, which takes nothing of its own where records
    /// lie under their `_id`.
    pub indexes: Vec<(String, u64)>,
}

impl Sizes {
    pub fn index_total(&self) -> u64 {
        self.indexes.iter().map(|(_, n)| n).sum()
    }

    pub fn average(&self) -> u64 {
        self.data.checked_div(self.count).unwrap_or(0)
    }
}

/// The sizes of a collection: counts are exact, what lies on disk is the engine's estimate.
pub fn sizes(engine: &Engine, c: &Collection) -> Sizes {
    let (count, data) = engine.store.counts(c.tablet);
    let between = |p: &keyspace::Prefix| engine.store.approximate_size(p, &keyspace::prefix_end(p));
    let own = c.index(ID_INDEX).map_or(0, |i| between(&i.prefix));
    let mut indexes = vec![("_id_".to_string(), own)];
    indexes.extend(
        c.secondary()
            .map(|i| (i.name().to_string(), between(&i.prefix))),
    );
    Sizes {
        count,
        data,
        storage: between(&keyspace::prefix(c.tablet, SPACE_RECORD, 0)),
        indexes,
    }
}
