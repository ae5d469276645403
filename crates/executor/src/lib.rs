//! The executor: runs plans over views, keeps indexes in step with records, builds log entries.
//!
//! Entry points, each given an [`OpCtx`]:
//! * reading: [`FindCursor`] (find, and the leaf of a pipeline), [`count`], [`distinct`];
//! * writing: [`insert`], [`update`], [`delete`], [`find_and_modify`];
//! * [`build`]: index builds.
//!
//! Architecture invariants: the executor knows no command and no socket; every write becomes log entries given to
//! [`OpCtx::commit`], and nothing else changes records or (builds aside) index entries.

mod aggregate;
pub mod build;
mod capped;
mod delete;
mod distinct;
mod duplicates;
mod expire;
mod explain;
mod fetch;
mod find;
mod find_and_modify;
mod idle;
mod insert;
mod interrupt;
pub mod leftover;
mod merge;
mod merge_into;
mod moment;
mod op;
mod read;
mod records;
mod request;
mod retry;
mod seen;
mod several;
mod skip;
mod sorter;
mod tail;
mod union;
mod update;
mod validation;
mod zones;

pub use aggregate::{AggregateRequest, PipelineCursor, ServerRows};
pub use delete::{DeleteRequest, Deleted, delete};
pub use distinct::{distinct, distinct_of, distinct_plan};
pub use duplicates::duplicates;
pub use expire::{Expired, expire};
pub use explain::{ExplainedPipeline, explain_pipeline};
pub use find::{FindCursor, FindRequest};
pub use find_and_modify::{FindAndModify, FoundAndModified, find_and_modify};
pub use insert::{Inserted, insert};
pub use moment::{Moment, Moments};
pub use op::{Engine, Gate, Group, Held, INLINE_BUDGET, OpCtx, Room, Spent};
pub use query::pipeline::Share;
pub use read::{Examined, Rows, count};
pub use records::{entries_of, has_entry, identity, keys_of, record_key, told};
pub use request::ReadRequest;
pub use retry::{Retry, StmtResult};
pub use tail::TailCursor;
pub use update::{UpdateRequest, Updated, update};
pub use zones::ZoneMaps;
