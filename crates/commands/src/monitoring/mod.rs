//! What the server tells of its own work: counters, latencies, running operations.

pub mod command_counts;
pub mod latency;
pub mod metrics;
pub mod operations;
pub mod operators;
pub mod prometheus;
pub mod replicated;
