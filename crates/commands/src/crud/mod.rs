//! The commands on data: a file each. Reading ones give cursors (`cursor`), writing ones statements
//! (`batch`).

pub(crate) mod batch;
mod candidates;
pub(crate) mod cursor;
mod execution_stats;
mod explain_pipeline;
mod oplog;
pub(crate) mod query_settings;
pub(crate) mod rows;
pub mod schema;
pub(crate) mod shape;
pub(crate) mod stored_config;
pub(crate) mod variables;
mod view_rewrite;

pub mod aggregate;
pub mod bulk_write;
pub mod change_stream;
pub mod count;
pub mod delete;
pub mod distinct;
pub mod explain;
pub mod file_md5;
pub mod find;
pub mod find_and_modify;
pub mod get_more;
pub mod insert;
pub mod kill_cursors;
pub mod map_reduce;
pub(crate) mod snapshot;
mod through_primary;
pub mod update;

pub use view_rewrite::check_find as check_find_of_view;
