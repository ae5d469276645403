//! The executor: runs plans over views, keeps indexes in step with records, builds log entries.
//!
//! Entry points, each given an [`OpCtx`]:
//! * reading: [`FindCursor`] (find, and the leaf of a pipeline), [`count`], [`distinct`];
//! * writing: [`insert`], [`update`], [`delete`], [`find_and_modify`];
//! * [`build`]: index builds.
//!
//! Architecture invariants: the executor knows no command and no socket; every write becomes log entries given to
//! [`OpCtx::commit`], and nothing else changes records or (builds aside) index entries.

mod interrupt;
mod op;
pub mod pipeline;
mod read;
mod records;
mod snapshot_history;
pub mod write;

pub use op::{Engine, Gate, Held, INLINE_BUDGET, OpCtx, ReplyMemory, Spent, WriteGroup};
pub use pipeline::{
    AggregateRequest, ExplainedPipeline, PipelineCursor, ServerRows, explain_pipeline,
    temp_collections,
};
pub use query::pipeline::Share;
pub use read::{
    Examined, FindCursor, FindRequest, ReadRequest, RecordStream, TailCursor, ZoneMaps, count,
    distinct, distinct_of, distinct_plan,
};
pub use records::{entries_of, has_entry, identity, keys_of, record_key, told};
pub use snapshot_history::{PinnedSnapshot, SnapshotHistory};
pub use write::{
    DeleteRequest, Deleted, Expired, FindAndModify, FoundAndModified, Inserted, Retry, StmtResult,
    UpdateRequest, Updated, build, delete, duplicates, expire, find_and_modify, insert, update,
};
