//! The executor: runs plans over views, keeps indexes in step with records, builds log entries.
//!
//! Entry points, each given an [`OpCtx`]:
//! * reading: [`FindCursor`] (find, and the leaf of a pipeline), [`count`];
//! * writing: [`insert`], [`update`], [`delete`], [`find_and_modify`], and [`build`] for indexes;
//! * pipelines: [`PipelineCursor`], [`distinct`].
//!
//! A module uses only modules above it:
//!
//! ```text
//! records, examined, gate, interrupt, build_progress, zone_maps, key_locks,
//!     temp_collections, write_group    independent of operations
//! prepared                             transactions that wait to be decided
//! engine                               state shared by all operations
//! pinned_snapshot, reserved_time       states of the past that can be read
//! transaction                          a multi-document transaction in progress
//! op                                   one operation: budget, interruption, latches, commit
//! decision                             of a prepared transaction
//! read                                 from a plan to documents
//! write                                from a statement to log entries
//! search                               indexes that follow the log, and searches over them
//! pipeline                             aggregations, which read and (`$out`, `$merge`) write
//! ```
//!
//! Architecture invariants: the executor knows no command and no socket; every write becomes log
//! entries given to [`OpCtx::commit`], and nothing else changes records or (builds aside) index
//! entries.

mod build_progress;
pub use build_progress::BuildProgress;
mod conflict_queue;
mod decision;
mod document_keys;
mod engine;
mod examined;
mod follow;
mod fsync_lock;
mod held_documents;
mod interrupt;
mod key_locks;
mod op;
pub mod operation_memory;
mod pinned_snapshot;
pub mod pipeline;
pub mod prepared;
mod query_threads;
mod range_cuts;
mod read;
mod records;
mod reserved_time;
pub mod search;
pub mod temp_collections;
mod transaction;
pub mod write;
mod write_group;
mod zone_maps;

pub use auth::session_id::Lsid;
pub use decision::decide;
pub use document_keys::ShardKeys;
pub use engine::Engine;
pub use examined::Examined;
pub use follow::{
    ChangeStream, ChangeStreamRequest, LogTail, OPLOG, OplogCursor, ShowImage, StreamStart, Wake,
    WantedEvents,
};
pub use fsync_lock::FsyncLock;
pub use held_documents::{CursorMemory, HeldDocuments, HeldKey};
pub use interrupt::stoppable;
pub use key_locks::{OpenTransaction, Transactions};
pub use op::{INLINE_BUDGET, OpCtx, ReplyMemory, Spent, ViewTaken};
pub use pinned_snapshot::PinnedSnapshot;
pub use pipeline::{
    AggregateRequest, ExplainedPipeline, MergesApart, OwnPlaces, Owns, PipelineCursor,
    ReadRemotely, RemoteCollections, RemoteRows, ServerRows, distinct, distinct_of, distinct_plan,
    explain_pipeline,
};
pub use prepared::{Prepared, PreparedTransaction};
pub use query::pipeline::Share;
pub use read::text::bound as bind_text;
pub use read::{
    FindCursor, FindRequest, ReadRequest, RecordStream, TailCursor, Trial, count, has_records,
};
pub use records::{entries_of, has_entry, identity, key_and_types, keys_of, record_key};
pub use reserved_time::{reserve_time, reserved_time};
pub use transaction::{Savepoint, Transaction};
pub use write::{
    DeleteRequest, Deleted, Expired, FindAndModify, FoundAndModified, Inserted, Retry, StmtResult,
    UpdateRequest, Updated, build, delete, delete_in_parts, duplicates, expire,
    expire_measurements, find_and_modify, insert, update,
};
pub use write_group::{Held, WriteGroup};
pub use zone_maps::ZoneMaps;
