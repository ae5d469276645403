//! Writing: insert, update, delete, findAndModify, expiry of documents, and index builds.
//!
//! [`record_write`] is the write protocol that all statements share; the statements' own files have the
//! search and the change. Invariant: latches are held from the first read that decides a write until its
//! entry is applied.

pub mod build;
mod candidate;
mod capped;
mod delete;
mod duplicates;
mod expire;
mod find_and_modify;
mod index_changes;
mod index_fill;
mod insert;
mod locked;
mod new_records;
pub(crate) mod record_write;
mod retry;
mod taken_keys;
mod time_series;
mod update;
mod validation;

pub use self::time_series::expire_measurements;
pub use delete::{DeleteRequest, Deleted, delete, delete_in_parts};
pub use duplicates::duplicates;
pub use expire::{Expired, expire};
pub use find_and_modify::{FindAndModify, FoundAndModified, find_and_modify};
pub use insert::{Inserted, insert};
pub use retry::{Retry, StmtResult};
pub use update::{UpdateRequest, Updated, update};
