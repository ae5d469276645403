//! Retryable writes: the results of a session's statements travel in the log entry of the write
//! itself.

use bson::{DocBuf, Value};
use storage::{Effect, OpSession};

/// The result of a statement, returned again when it is retried.
#[derive(Clone, Debug, Default)]
pub struct StmtResult {
    /// Position of the statement in its command.
    pub at: usize,
    pub n: u64,
    pub n_modified: u64,
    pub upserted: Option<Value>,
    /// findAndModify's `value`.
    pub image: Option<DocBuf>,
}

/// The recorder of results, given by the session layer. Its effect is committed with the write.
pub trait Retry {
    /// Records what statements did: the session of the log entry, and the put of the session's
    /// record.
    fn record(&mut self, results: &[StmtResult]) -> (OpSession, Effect);
}
