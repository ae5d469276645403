//! Pipelines: aggregations over the storage, what they write (`$out`, `$merge`), and their explanation.

pub(crate) mod aggregate;
pub(crate) mod explain;
pub(crate) mod merge_into;
pub mod temp_collections;

pub use aggregate::{AggregateRequest, PipelineCursor, ServerRows};
pub use explain::{ExplainedPipeline, explain_pipeline};
