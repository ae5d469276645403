//! What clients read: of one shard, of several, of pipelines over what these give.

pub(crate) mod aggregate;
mod change_stream;
pub(crate) mod cluster_stages;
pub(crate) mod cursors;
pub(crate) mod explain;
pub(crate) mod file_md5;
pub(crate) mod find;
pub(crate) mod joins;
pub(crate) mod map_reduce;
mod merge_into;
pub(crate) mod merging;
mod parted_merge;
mod pipeline_parts;
pub(crate) mod schema;
pub(crate) mod search;
pub(crate) mod shard_joins;
mod small_side;
mod stream_token;
mod synonyms;
pub(crate) mod views;
mod waiting_streams;
