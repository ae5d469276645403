//! What clients write: each statement to the shards of its documents.

pub(crate) mod bulk_write;
pub(crate) mod find_and_modify;
mod key_change;
mod upsert;
pub(crate) mod write;
