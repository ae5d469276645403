//! Commands of operators: parameters, fail points, flushing, shutting down.

pub mod auto_compact;
pub mod cluster_parameter;
pub mod compact;
pub mod configure_fail_point;
pub mod drop_connections;
pub mod fsync;
pub mod get_cmd_line_opts;
pub mod get_parameter;
pub mod log_application_message;
pub mod log_rotate;
pub mod pando_backup;
pub mod pando_settings;
pub mod plan_cache_filters;
pub mod profile;
pub mod query_settings;
pub mod rotate_certificates;
pub mod rw_concern;
pub mod set_feature_compatibility_version;
pub mod set_parameter;
pub mod set_profiling_filter_globally;
pub mod shutdown;
pub mod structured_encryption;
pub mod write_block;
