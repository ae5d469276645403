//! Commands on collections and indexes: what there is, and its changes.

pub mod clone_collection_as_capped;
pub mod coll_mod;
pub mod convert_to_capped;
pub mod create;
pub mod create_indexes;
pub mod drop;
pub mod drop_database;
pub mod drop_indexes;
mod encrypted_fields;
mod engine_options;
mod index_spec;
pub mod list_collections;
pub mod list_databases;
pub mod list_indexes;
mod listing;
pub mod re_index;
pub mod rename_collection;
pub mod search_indexes;
pub mod set_index_commit_quorum;
mod time_series;
pub mod validate_db_metadata;
mod validator;
mod view;

use crate::request::CommandContext;
use errors::{Result, err};

/// After a change of the catalog: its reply waits for it as a write's does.
pub(crate) fn changed(cx: &mut CommandContext<'_, '_>) {
    cx.after_commit = true;
}

/// A surface that this version does not have; asked for, it is refused rather than ignored.
pub(crate) fn unsupported<T>(what: &str) -> Result<T> {
    Err(err!(NotImplemented, "PandoDB does not support {what} yet").into())
}
