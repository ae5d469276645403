//! Cursors that follow the log: change streams and `local.oplog.rs`.
//!
//! [`LogTail`] watches the end of the log once for all of them. A cursor that it tells of nothing costs nothing.
//!
//! Invariant: what a cursor gives comes from entries that are durable, in the order of the log.

mod change_stream;
mod log_tail;
mod oplog_cursor;

pub use change_stream::{ChangeStream, ChangeStreamRequest, ShowImage, Start};
pub use log_tail::LogTail;
pub use oplog_cursor::{OPLOG, OplogCursor};
