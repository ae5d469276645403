//! The catalog: which collections and indexes exist, under which numbers, with which options.
//!
//! Readers load an immutable [`Snapshot`] (one atomic pointer). Every change is a DDL entry of the log,
//! made under the catalog's mutex; the new snapshot is published when the entry is applied
//! (`applied.rs`), for entries of every proposer. A collection's `lock` orders its writes against DDL: a
//! write statement holds the read side from prepare until applied, DDL that changes what writes must do
//! (new index, drop, rename) holds the write side.
//!
//! ```text
//! tablet 0 | space 0 | kind 1 | uuid [16]      collection record, BSON (see record.rs)
//! tablet 0 | space 0 | kind 2 |                 {nextTablet: int64}
//! tablet 0 | space 0 | kind 3 | tablet | index  progress of an index build: the last record key done
//! tablet 0 | space 0 | kind 4 | tablet          count of records, the store's own
//! tablet 0 | space 0 | kind 5 |                 reserved time
//! ```
//!
//! Architecture invariant: names never appear in keys; a tablet number is never used twice.

mod applied;
pub mod capped;
mod change;
mod collection;
mod index_filter;
pub mod keyspace;
mod names;
pub mod numbers;
mod plan_cache;
mod record;
mod shared_map;
pub mod time_series;
mod validator;
pub mod view_definition;
mod zones;

pub use applied::PendingCollection;
pub use capped::{Capped, Tail};
pub use change::{Catalog, NewIndex, Snapshot, build_progress_key, new_uuid};
pub use collection::{
    CheckInterrupt, Collection, Frozen, Index, IndexState, WriteLock, never_interrupted,
};
pub use index_filter::{IndexFilter, IndexFilters, QueryShape};
pub use numbers::Numbers;
pub use plan_cache::{PlanCache, PlanCacheEntry, PlanCacheFigures, PlanKey};
pub use query::namespace::{
    check_collection_name, check_db_name, check_system_name, collection_of, db_of,
};
pub use validator::Validator;
pub use view_definition::ViewDefinition;
pub use zones::{Expected, Samples, Zones, alike, digest};
