//! Threads that work without a request: the TTL monitor, and the reaper of cursors and sessions.

pub mod reaper;
pub mod ttl_monitor;
