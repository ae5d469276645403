//! What the server tells of its own work: counters, latencies, running operations, and the profiler
//! with the log of slow commands.

pub mod figures;
pub mod latency;
pub mod metrics;
pub mod operations;
pub mod operators;
pub mod profiler;
pub mod replicated;
