//! Pipelines: aggregations over the storage, what they write (`$out`, `$merge`), and their
//! explanation.

pub(crate) mod aggregate;
mod distinct;
mod divided;
pub(crate) mod explain;
pub(crate) mod geo_near;
mod idle;
pub(crate) mod merge_into;
pub(crate) mod own_places;
mod remote_collections;
mod semi_join;
mod series_out;

pub use aggregate::{AggregateRequest, MergesApart, PipelineCursor, ServerRows};
pub use distinct::{distinct, distinct_of, distinct_plan};
pub use explain::{ExplainedPipeline, explain_pipeline};
pub use own_places::{OwnPlaces, Owns};
pub use remote_collections::{ReadRemotely, RemoteCollections, RemoteRows};
