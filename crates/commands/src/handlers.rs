//! The function that runs each command.
//!
//! Invariant: every command of the table of the front room that is not the router's alone has one.

use crate::request::{CommandContext, Done};
use errors::Result;
use front::specification::{NAMES, SPECIFICATIONS, Specification, index_of};

/// Runs a command and writes its reply.
pub type Handler = for<'c, 'r> fn(&mut CommandContext<'c, 'r>) -> Result<Done>;

macro_rules! handlers {
    ($($name:literal => $run:path,)*) => {
        static HANDLERS: [Option<Handler>; NAMES.len()] = {
            let mut handlers: [Option<Handler>; NAMES.len()] = [None; NAMES.len()];
            $(
                assert!(handlers[index_of($name)].is_none(), "a command with two handlers");
                handlers[index_of($name)] = Some($run);
            )*
            handlers
        };
    };
}

handlers! {
    "find" => crate::crud::find::run,
    "insert" => crate::crud::insert::run,
    "update" => crate::crud::update::run,
    "delete" => crate::crud::delete::run,
    "getMore" => crate::crud::get_more::run,
    "findAndModify" => crate::crud::find_and_modify::run,
    "bulkWrite" => crate::crud::bulk_write::run,
    "count" => crate::crud::count::run,
    "aggregate" => crate::crud::aggregate::run,
    "mapReduce" => crate::crud::map_reduce::run,
    "explain" => crate::crud::explain::run,
    "distinct" => crate::crud::distinct::run,
    "killCursors" => crate::crud::kill_cursors::run,
    "hello" => crate::handshake::hello::run,
    "isMaster" => crate::handshake::hello::run_legacy,
    "ping" => crate::handshake::ping::run,
    "buildInfo" => crate::handshake::build_info::run,
    "saslStart" => crate::handshake::sasl::start,
    "saslContinue" => crate::handshake::sasl::continues,
    "authenticate" => crate::handshake::sasl::authenticate,
    "getnonce" => crate::handshake::get_nonce::run,
    "logout" => crate::handshake::logout::run,
    "connectionStatus" => crate::handshake::connection_status::run,
    "whatsmyuri" => crate::handshake::whatsmyuri::run,
    "getLastError" => crate::handshake::get_last_error::run,
    "listCollections" => crate::ddl::list_collections::run,
    "listIndexes" => crate::ddl::list_indexes::run,
    "listDatabases" => crate::ddl::list_databases::run,
    "create" => crate::ddl::create::run,
    "drop" => crate::ddl::drop::run,
    "dropDatabase" => crate::ddl::drop_database::run,
    "renameCollection" => crate::ddl::rename_collection::run,
    "createIndexes" => crate::ddl::create_indexes::run,
    "setIndexCommitQuorum" => crate::ddl::set_index_commit_quorum::run,
    "reIndex" => crate::ddl::re_index::run,
    "dropIndexes" => crate::ddl::drop_indexes::run,
    "collMod" => crate::ddl::coll_mod::run,
    "convertToCapped" => crate::ddl::convert_to_capped::run,
    "cloneCollectionAsCapped" => crate::ddl::clone_collection_as_capped::run,
    "validateDBMetadata" => crate::ddl::validate_db_metadata::run,
    "dbStats" => crate::stats::db_stats::run,
    "collStats" => crate::stats::coll_stats::run,
    "dataSize" => crate::stats::data_size::run,
    "analyzeShardKey" => crate::analysis::analyze_shard_key::run,
    "configureQueryAnalyzer" => crate::analysis::configure_query_analyzer::run,
    "dbHash" => crate::stats::db_hash::run,
    "dbCheck" => crate::db_check::command::run,
    "filemd5" => crate::crud::file_md5::run,
    "pandoSchema" => crate::crud::schema::run,
    "validate" => crate::stats::validate::run,
    "serverStatus" => crate::diagnostic::server_status::run,
    "getDiagnosticData" => crate::replication::diagnostic_data::run,
    "hostInfo" => crate::diagnostic::host_info::run,
    "getLog" => crate::diagnostic::get_log::run,
    "listCommands" => crate::diagnostic::list_commands::run,
    "currentOp" => crate::diagnostic::current_op::run,
    "shardingState" => crate::shard::identity::state,
    "getShardMap" => crate::shard::identity::map,
    "splitVector" => crate::stats::split_vector::run,
    "lockInfo" => crate::diagnostic::lock_info::run,
    "killOp" => crate::diagnostic::kill_op::run,
    "top" => crate::diagnostic::top::run,
    "features" => crate::diagnostic::features::run,
    "connPoolStats" => crate::diagnostic::conn_pool_stats::run,
    "getParameter" => crate::admin::get_parameter::run,
    "setParameter" => crate::admin::set_parameter::run,
    "getCmdLineOpts" => crate::admin::get_cmd_line_opts::run,
    "configureFailPoint" => crate::admin::configure_fail_point::run,
    "fsync" => crate::admin::fsync::run,
    "pandoBackup" => crate::admin::pando_backup::run,
    "fsyncUnlock" => crate::admin::fsync::unlock,
    "compact" => crate::admin::compact::run,
    "compactStructuredEncryptionData" => crate::admin::structured_encryption::compact,
    "cleanupStructuredEncryptionData" => crate::admin::structured_encryption::cleanup,
    "rotateCertificates" => crate::admin::rotate_certificates::run,
    "logRotate" => crate::admin::log_rotate::run,
    "logApplicationMessage" => crate::admin::log_application_message::run,
    "profile" => crate::admin::profile::run,
    "setProfilingFilterGlobally" => crate::admin::set_profiling_filter_globally::run,
    "planCacheClear" => crate::admin::plan_cache_filters::clear,
    "planCacheClearFilters" => crate::admin::plan_cache_filters::clear_filters,
    "planCacheListFilters" => crate::admin::plan_cache_filters::list,
    "planCacheSetFilter" => crate::admin::plan_cache_filters::set,
    "setQuerySettings" => crate::admin::query_settings::set,
    "removeQuerySettings" => crate::admin::query_settings::remove,
    "getDefaultRWConcern" => crate::admin::rw_concern::get,
    "setDefaultRWConcern" => crate::admin::rw_concern::set,
    "setUserWriteBlockMode" => crate::admin::write_block::run,
    "autoCompact" => crate::admin::auto_compact::run,
    "dropConnections" => crate::admin::drop_connections::run,
    "getClusterParameter" => crate::admin::cluster_parameter::get,
    "setClusterParameter" => crate::admin::cluster_parameter::set,
    "setFeatureCompatibilityVersion" => crate::admin::set_feature_compatibility_version::run,
    "usersInfo" => crate::users::users_info::run,
    "rolesInfo" => crate::roles::roles_info::run,
    "createUser" => crate::users::create_user::run,
    "updateUser" => crate::users::update_user::run,
    "dropUser" => crate::users::drop_user::run,
    "dropAllUsersFromDatabase" => crate::users::drop_user::run_all,
    "grantRolesToUser" => crate::users::user_roles::grant,
    "revokeRolesFromUser" => crate::users::user_roles::revoke,
    "invalidateUserCache" => crate::users::invalidate_user_cache::run,
    "_getUserCacheGeneration" => crate::users::user_cache_generation::run,
    "_mergeAuthzCollections" => crate::users::merge::run,
    "createRole" => crate::roles::create_role::run,
    "updateRole" => crate::roles::update_role::run,
    "dropRole" => crate::roles::drop_role::run,
    "dropAllRolesFromDatabase" => crate::roles::drop_role::run_all,
    "grantPrivilegesToRole" => crate::roles::role_privileges::grant,
    "revokePrivilegesFromRole" => crate::roles::role_privileges::revoke,
    "grantRolesToRole" => crate::roles::role_roles::grant,
    "revokeRolesFromRole" => crate::roles::role_roles::revoke,
    "shutdown" => crate::admin::shutdown::run,
    "startSession" => crate::sessions::start_session::run,
    "endSessions" => crate::sessions::end_sessions::run,
    "refreshSessions" => crate::sessions::end_sessions::refresh,
    "killSessions" => crate::sessions::kill_sessions::run,
    "killAllSessions" => crate::sessions::kill_sessions::run,
    "killAllSessionsByPattern" => crate::sessions::kill_sessions::run,
    "commitTransaction" => crate::sessions::transactions::commit,
    "abortTransaction" => crate::sessions::transactions::abort,
    "appendOplogNote" => crate::replication::append_oplog_note::run,
    "applyOps" => crate::replication::apply_ops::run,
    "replSetGetStatus" => crate::replication::repl_set_get_status::run,
    "replSetGetConfig" => crate::replication::repl_set_get_config::run,
    "replSetGetRBID" => crate::replication::repl_set_get_rbid::run,
    "replSetFreeze" => crate::replication::repl_set_freeze::run,
    "replSetStepDown" => crate::replication::repl_set_step_down::run,
    "replSetStepUp" => crate::replication::repl_set_step_up::run,
    "replSetMaintenance" => crate::replication::repl_set_maintenance::run,
    "replSetAbortPrimaryCatchUp" => crate::replication::repl_set_abort_primary_catch_up::run,
    "replSetSyncFrom" => crate::replication::repl_set_sync_from::run,
    "createSearchIndexes" => crate::ddl::search_indexes::create,
    "updateSearchIndex" => crate::ddl::search_indexes::update,
    "dropSearchIndex" => crate::ddl::search_indexes::drop_one,
    "listSearchIndexes" => crate::ddl::search_indexes::list,
    "replSetResizeOplog" => crate::replication::repl_set_resize_oplog::run,
    "replSetReconfig" => crate::replication::repl_set_reconfig::run,
    "pandoCopyFiles" => crate::replication::pando_copy_files::run,
    "pandoCheckBatch" => crate::db_check::command::of_member,
    "pandoReplicate" => crate::replication::pando_replicate::run,
    "_pandoSettings" => crate::admin::pando_settings::run,
    "_pandoQueryShape" => crate::admin::query_settings::shape,
    "_pandoOwnership" => crate::shard::pando_ownership::run,
    "_pandoReceive" => crate::shard::pando_receive::run,
    "_pandoChanges" => crate::shard::pando_changes::run,
    "_pandoTime" => crate::shard::pando_time::run,
    "_pandoServed" => crate::shard::pando_served::run,
    "_pandoRangeSize" => crate::shard::pando_range_size::run,
    "_pandoSizes" => crate::shard::pando_sizes::run,
    "_pandoStamp" => crate::shard::pando_stamp::run,
    "_pandoFence" => crate::shard::pando_fence::run,
    "_pandoChange" => crate::shard::pando_change::run,
    "_pandoHome" => crate::shard::pando_home::run,
    "_pandoSwap" => crate::shard::pando_swap::run,
    "_pandoSessions" => crate::shard::pando_sessions::run,
    "_pandoPrepare" => crate::shard::pando_prepare::run,
    "_pandoDecide" => crate::shard::pando_decide::run,
    "_pandoOutcome" => crate::shard::pando_outcome::run,
    "_pandoPrepared" => crate::shard::pando_prepared::run,
    "_pandoSnapshot" => crate::shard::pando_snapshot::run,
    "_pandoClean" => crate::shard::pando_clean::run,
    "replSetInitiate" => crate::replication::repl_set_initiate::run,
}

/// What runs a command; `None`: this program does not.
#[inline]
pub fn handler(command: &Specification) -> Option<Handler> {
    HANDLERS[command.index]
}

// Checked by the compiler.
const _: () = {
    let mut at = 0;
    while at < NAMES.len() {
        assert!(
            HANDLERS[at].is_some() == SPECIFICATIONS[at].is_of_servers(),
            "a command without a handler, or a router's with one"
        );
        at += 1;
    }
};
