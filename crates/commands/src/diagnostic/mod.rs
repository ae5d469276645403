//! Commands that tell how the server and its host do.

mod command_metrics;
pub mod conn_pool_stats;
pub mod current_op;
mod election_metrics;
mod engine_figures;
pub mod features;
pub mod get_log;
pub mod host_info;
pub mod kill_op;
pub mod list_commands;
pub mod lock_info;
pub mod server_status;
pub mod top;
