//! Writing: insert, update, delete, findAndModify, expiry of documents, and index builds.
//!
//! Every write here becomes log entries given to [`crate::OpCtx::commit`]. Invariant: latches are held from the first look
//! at what a write changes until its entry is applied.

pub mod build;
pub(crate) mod capped;
pub(crate) mod delete;
pub(crate) mod duplicates;
pub(crate) mod expire;
pub(crate) mod find_and_modify;
pub(crate) mod insert;
pub(crate) mod retry;
pub(crate) mod update;
pub(crate) mod validation;

pub use delete::{DeleteRequest, Deleted, delete};
pub use duplicates::duplicates;
pub use expire::{Expired, expire};
pub use find_and_modify::{FindAndModify, FoundAndModified, find_and_modify};
pub use insert::{Inserted, insert};
pub use retry::{Retry, StmtResult};
pub use update::{UpdateRequest, Updated, update};
