//! Threads that work without a request: the TTL monitor, the reaper of cursors and sessions, and the
//! writer of entries on idle servers.

pub mod noop_writer;
pub mod reaper;
pub mod scrub;
pub mod ttl_monitor;
