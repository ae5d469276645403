//! What outlives one request: open cursors, logical sessions, and what retryable writes have done.
//!
//! Architecture invariant: no command and no socket is known here.

mod cursors;
mod session_table;
mod sessions;
mod transaction;
pub mod two_phase;

pub use cursors::{Cursor, CursorFigures, Cursors, IdleCursor, OtherCursors, Results};
pub use executor::Lsid;
pub use session_table::{Retryable, SessionTable, StatementRecorder};
pub use sessions::{SESSION_TIMEOUT_MINUTES, Sessions};
pub use transaction::TransactionHold;
