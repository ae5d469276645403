//! What outlives one request: open cursors, and what retryable writes have done.
//!
//! Architecture invariant: no command and no socket is known here.

mod cursors;
mod retry;

pub use cursors::{Cursor, Cursors, Figures, Results};
pub use retry::{Lsid, Retries, Retryable, Statements};
