//! Cursors that follow the log: change streams and `local.oplog.rs`.
//!
//! [`LogTail`] watches the end of the log once for all cursors. A cursor without news costs
//! nothing.
//!
//! Invariant: cursors give only durable entries, in the order of the log.

mod change_stream;
mod log_tail;
mod oplog_cursor;

pub use change_stream::{ChangeStream, ChangeStreamRequest, ShowImage, StreamStart, WantedEvents};
pub use log_tail::{LogFollower, LogTail, Wake};
pub use oplog_cursor::{OPLOG, OplogCursor};
