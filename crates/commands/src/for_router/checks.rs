//! What a router checks of a client's command before it acts on it: what the command says of sessions,
//! transactions and concerns, as every server does, and the arguments of commands that no shard sees
//! as they came.

use crate::Commands;
use crate::admin::{plan_cache_filters, structured_encryption};
use crate::crud::{
    aggregate, count, distinct, explain, file_md5, find, get_more, kill_cursors, schema,
};
use crate::ddl::{
    clone_collection_as_capped, convert_to_capped, drop, drop_database, list_collections,
    list_databases, rename_collection, search_indexes, set_index_commit_quorum,
    validate_db_metadata,
};
use crate::dispatch::admission;
use crate::request::{check_generic, transaction};
use crate::sessions::transactions;
use crate::stats::{coll_stats, data_size, validate};
use bson::{Val, Writer};
use errors::{Result, err};
use front::Args;
use front::Specification;
use service::ServerConfig;

pub fn check(command: &Specification, args: &Args<'_>, config: &ServerConfig) -> Result<()> {
    admission::check_session(command, args, config)?;
    check_generic(command, args, &config.topology)?;
    if transaction::is_statement(args) {
        transaction::check_stages(args.field("pipeline").unwrap_or(Val::NULL))?;
    }
    match command.name {
        "aggregate" => aggregate::check(args),
        "explain" => explain::check(args),
        "dropDatabase" => drop_database::check(args),
        "commitTransaction" | "abortTransaction" => transactions::check_routed(args),
        "getMore" => get_more::check(args),
        "killCursors" => kill_cursors::check(args),
        "filemd5" => file_md5::check(args),
        "pandoSchema" => schema::check(args),
        "drop" => drop::check(args),
        "renameCollection" => rename_collection::check(args),
        "convertToCapped" => convert_to_capped::check(args),
        "cloneCollectionAsCapped" => clone_collection_as_capped::check(args),
        "listDatabases" => list_databases::check(args),
        "listCollections" => list_collections::check(args),
        "validateDBMetadata" => validate_db_metadata::check(args),
        "createSearchIndexes" | "updateSearchIndex" | "dropSearchIndex" | "listSearchIndexes" => {
            search_indexes::check(args)
        }
        "compactStructuredEncryptionData" | "cleanupStructuredEncryptionData" => {
            structured_encryption::check(args)
        }
        _ => Ok(()),
    }
}

/// Writes the reply to a command about a collection that is not there, where the shards that have one
/// would each say something of it.
pub fn write_absent(args: &Args<'_>, config: &ServerConfig, w: &mut Writer) -> Result<()> {
    match args.command {
        "collStats" => coll_stats::write_absent(args, w),
        "dataSize" => data_size::write_absent(args, w),
        "validate" => validate::check_absent(args, &config.topology),
        "planCacheClear"
        | "planCacheClearFilters"
        | "planCacheListFilters"
        | "planCacheSetFilter" => plan_cache_filters::write_absent(args, w),
        "setIndexCommitQuorum" => set_index_commit_quorum::check_absent(args),
        "compactStructuredEncryptionData" | "cleanupStructuredEncryptionData" => {
            structured_encryption::check_absent(args)
        }
        name => Err(err!(InternalError, "{name} is about no collection").into()),
    }
}

/// Checks a read of a collection that is not there, as far as it would fail over that.
pub fn check_over_nothing(app: &Commands, args: &Args<'_>) -> Result<()> {
    match args.command {
        "find" => find::check_over_nothing(app, args),
        "count" => count::check_over_nothing(app, args),
        "distinct" => distinct::check_over_nothing(app, args),
        _ => Ok(()),
    }
}
