//! The table of commands: wire name, manners, and the function that runs each.

use crate::request::{CommandContext, Done};
use crate::security::needs::{self, RequiredAccess};
use RequiredAccess::*;
use auth::Action::*;
use bson::Val;
use errors::Result;
use std::sync::atomic::AtomicU64;

pub type Run = for<'c, 'r> fn(&mut CommandContext<'c, 'r>) -> Result<Done>;

/// Manners of a command, or-ed together.
pub mod flag {
    /// Runs against the admin database only.
    pub const ADMIN: u16 = 1;
    /// Writes: takes a write concern.
    pub const WRITE: u16 = 2;
    /// Takes read concerns other than local.
    pub const READ: u16 = 4;
    /// May be a retryable write.
    pub const RETRY: u16 = 8;
    /// Belongs to version 1 of the versioned API.
    pub const API: u16 = 16;
    /// Never runs on an event loop: it waits, or is long.
    pub const WORKER: u16 = 32;
    /// Not counted among `opcounters.command`, because it has a counter of its own.
    pub const COUNTED: u16 = 64;
    /// A client may send it before it is known (handshake, authentication).
    pub const HANDSHAKE: u16 = 128;
    /// Its reply may be long, and not by a batch that looks for room itself.
    pub const LONG: u16 = 256;
    /// Its first value is the name of a collection of its database.
    pub const OF_COLLECTION: u16 = 512;
    /// Its first value is the name of a collection with that of its database.
    pub const OF_NAMESPACE: u16 = 1024;
}
use flag::*;

/// One command.
pub struct Command {
    pub name: &'static str,
    pub flags: u16,
    /// The privileges that it needs, with authorization on.
    pub needs: RequiredAccess,
    pub run: Run,
    /// For `listCommands`.
    pub help: &'static str,
    /// How often it ran and failed since the process started (`serverStatus.metrics.commands`).
    pub total: AtomicU64,
    pub failed: AtomicU64,
}

impl Command {
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The database and the collection that it says it is about, if it is about one.
    pub fn target<'a>(&self, db: &'a str, first: Val<'a>) -> Option<(&'a str, &'a str)> {
        let name = first.as_str().filter(|n| !n.is_empty())?;
        match () {
            _ if self.is(OF_COLLECTION) => Some((db, name)),
            _ if self.is(OF_NAMESPACE) => name.split_once('.'),
            _ => None,
        }
    }
}

macro_rules! commands {
    ($($name:literal $(| $alias:literal)* => $flags:expr, $needs:expr, $run:path, $help:literal;)*) => {
        /// The wire names of all commands, without aliases, in the table's order.
        pub static NAMES: &[&str] = &[$($name),*];

        /// The command of that name or old name. Compared in the table's order: the frequent ones
        /// stand first.
        pub fn lookup(name: &str) -> Option<&'static Command> {
            match name {
                $($name $(| $alias)* => {
                    static COMMAND: Command = Command {
                        name: $name,
                        flags: $flags,
                        needs: $needs,
                        run: $run,
                        help: $help,
                        total: AtomicU64::new(0),
                        failed: AtomicU64::new(0),
                    };
                    Some(&COMMAND)
                })*
                _ => None,
            }
        }
    };
}

commands! {
    "find" => READ | API | COUNTED | OF_COLLECTION, Collection(&[Find]), crate::crud::find::run, "documents that match";
    "insert" => WRITE | RETRY | API | COUNTED | OF_COLLECTION, Own(needs::insert), crate::crud::insert::run, "new documents";
    "update" => WRITE | RETRY | API | COUNTED | OF_COLLECTION, Own(needs::update), crate::crud::update::run, "changes of documents";
    "delete" => WRITE | RETRY | API | COUNTED | OF_COLLECTION, Collection(&[Remove]), crate::crud::delete::run, "removal of documents";
    "getMore" => READ | API | COUNTED | WORKER, Login, crate::crud::get_more::run, "a cursor's next batch";
    "findAndModify" | "findandmodify" => WRITE | RETRY | API | LONG | OF_COLLECTION, Own(needs::find_and_modify), crate::crud::find_and_modify::run, "one document changed and given back";
    "bulkWrite" => ADMIN | WRITE | RETRY | API | WORKER | COUNTED, Own(needs::bulk_write), crate::crud::bulk_write::run, "writes of several kinds to several collections";
    "count" => READ | API | OF_COLLECTION, Collection(&[Find]), crate::crud::count::run, "how many documents match";
    "aggregate" => READ | WRITE | API | OF_COLLECTION, Own(needs::aggregate), crate::crud::aggregate::run, "documents through the stages of a pipeline";
    "mapReduce" | "mapreduce" => READ | WRITE | WORKER | OF_COLLECTION, Own(needs::map_reduce), crate::crud::map_reduce::run, "what functions of the user's make of documents";
    "explain" => READ | API | WORKER, Own(needs::explain), crate::crud::explain::run, "how a command is answered";
    "distinct" => READ | LONG | OF_COLLECTION, Collection(&[Find]), crate::crud::distinct::run, "the different values of a field";
    "killCursors" => API | OF_COLLECTION, Login, crate::crud::kill_cursors::run, "ends cursors";
    "hello" => HANDSHAKE | API, Nothing, crate::handshake::hello::run, "what a client must know of this server";
    "isMaster" | "ismaster" => HANDSHAKE, Nothing, crate::handshake::hello::run_legacy, "what a client must know of this server (old name)";
    "ping" => HANDSHAKE | API, Nothing, crate::handshake::ping::run, "whether the server answers";
    "buildInfo" | "buildinfo" => HANDSHAKE, Nothing, crate::handshake::build_info::run, "version and build of the server";
    "saslStart" => HANDSHAKE | API | WORKER, Nothing, crate::handshake::sasl::start, "begins an authentication";
    "saslContinue" => HANDSHAKE | API | WORKER, Nothing, crate::handshake::sasl::continues, "goes on with an authentication";
    "authenticate" => HANDSHAKE | API | WORKER, Nothing, crate::handshake::sasl::authenticate, "authenticates with a certificate";
    "getnonce" => HANDSHAKE, Nothing, crate::handshake::get_nonce::run, "a number for the logins of old drivers";
    "logout" => HANDSHAKE, Nothing, crate::handshake::logout::run, "ends authentications";
    "connectionStatus" => HANDSHAKE, Nothing, crate::handshake::connection_status::run, "who the client is";
    "whatsmyuri" => HANDSHAKE, Nothing, crate::handshake::whatsmyuri::run, "the client's own address";
    "getLastError" | "getlasterror" => HANDSHAKE, Nothing, crate::handshake::get_last_error::run, "how the last write fared";
    "listCollections" => API, Own(needs::list_collections), crate::ddl::list_collections::run, "the collections of a database";
    "listIndexes" => API | OF_COLLECTION, Collection(&[ListIndexes]), crate::ddl::list_indexes::run, "the indexes of a collection";
    "listDatabases" => ADMIN | API, Own(needs::list_databases), crate::ddl::list_databases::run, "the databases";
    "create" => WRITE | API | WORKER | OF_COLLECTION, Own(needs::create), crate::ddl::create::run, "a new collection";
    "drop" => WRITE | API | WORKER | OF_COLLECTION, Collection(&[DropCollection]), crate::ddl::drop::run, "removes a collection";
    "dropDatabase" => WRITE | API | WORKER, Database(&[DropDatabase]), crate::ddl::drop_database::run, "removes a database";
    "renameCollection" => ADMIN | WRITE | WORKER | OF_NAMESPACE, Own(needs::rename_collection), crate::ddl::rename_collection::run, "gives a collection another name";
    "createIndexes" => WRITE | API | WORKER | OF_COLLECTION, Collection(&[CreateIndex]), crate::ddl::create_indexes::run, "new indexes";
    "setIndexCommitQuorum" => WORKER | OF_COLLECTION, Collection(&[CreateIndex]), crate::ddl::set_index_commit_quorum::run, "sets the commit quorum of index builds";
    "reIndex" => WRITE | WORKER | OF_COLLECTION, Collection(&[ReIndex]), crate::ddl::re_index::run, "builds the indexes of a collection anew; standalone only";
    "dropIndexes" | "deleteIndexes" => WRITE | API | WORKER | OF_COLLECTION, Collection(&[DropIndex]), crate::ddl::drop_indexes::run, "removes indexes";
    "collMod" => WRITE | API | WORKER | OF_COLLECTION, Own(needs::coll_mod), crate::ddl::coll_mod::run, "changes options of a collection";
    "convertToCapped" => WRITE | WORKER | OF_COLLECTION, Collection(&[ConvertToCapped]), crate::ddl::convert_to_capped::run, "makes a collection a capped one";
    "cloneCollectionAsCapped" => WRITE | WORKER | OF_COLLECTION, Own(needs::clone_collection_as_capped), crate::ddl::clone_collection_as_capped::run, "a capped copy of a collection";
    "validateDBMetadata" => 0, Database(&[Validate]), crate::ddl::validate_db_metadata::run, "what a version of the API does not allow";
    "dbStats" | "dbstats" => 0, Database(&[DbStats]), crate::stats::db_stats::run, "sizes and counts of a database";
    "collStats" | "collstats" => OF_COLLECTION, Collection(&[CollStats]), crate::stats::coll_stats::run, "sizes and counts of a collection";
    "dataSize" | "datasize" => OF_NAMESPACE, Own(needs::data_size), crate::stats::data_size::run, "bytes of a collection or a range of it";
    "analyzeShardKey" => ADMIN | WORKER | OF_NAMESPACE, Namespace(&[AnalyzeShardKey]), crate::analysis::analyze_shard_key::run, "how well a key would serve as a shard key";
    "configureQueryAnalyzer" => ADMIN | WORKER | OF_NAMESPACE, Namespace(&[AnalyzeShardKey]), crate::analysis::configure_query_analyzer::run, "how many queries of a collection are sampled";
    "dbHash" | "dbhash" => READ | WORKER, Database(&[DbHash]), crate::stats::db_hash::run, "digests of collections";
    "dbCheck" => WORKER, Own(needs::db_check), crate::db_check::command::run, "compares what the members of a set have, in the background";
    "filemd5" => READ | WORKER | OF_COLLECTION, Own(needs::file_md5), crate::crud::file_md5::run, "the digest of a file of GridFS";
    "pandoSchema" => READ | WORKER | OF_COLLECTION, Collection(&[Find]), crate::stats::schema::run, "what the documents of a collection look like";
    "validate" => WORKER | OF_COLLECTION, Collection(&[Validate]), crate::stats::validate::run, "compares records and indexes of a collection";
    "serverStatus" => WORKER, Cluster(&[ServerStatus]), crate::diagnostic::server_status::run, "how the server does";
    "getDiagnosticData" => ADMIN | WORKER, Cluster(&[ServerStatus, ReplSetGetStatus]), crate::diagnostic::diagnostic_data::run, "what serverStatus and others tell, in one reply";
    "hostInfo" => WORKER, Cluster(&[HostInfo]), crate::diagnostic::host_info::run, "the machine";
    "getLog" => ADMIN, Cluster(&[GetLog]), crate::diagnostic::get_log::run, "the newest lines of the log";
    "listCommands" => HANDSHAKE, Nothing, crate::diagnostic::list_commands::run, "the commands";
    "currentOp" => ADMIN | WORKER, Own(needs::current_op), crate::diagnostic::current_op::run, "what runs now";
    "shardingState" => ADMIN, Cluster(&[ShardingState]), crate::shard::identity::state, "which shard this server is";
    "getShardMap" => ADMIN, Cluster(&[GetShardMap]), crate::shard::identity::map, "what this shard knows of its cluster";
    "splitVector" => READ | WORKER, Own(needs::split_vector), crate::stats::split_vector::run, "where a collection would be cut into chunks";
    "lockInfo" => ADMIN, Cluster(&[ServerStatus]), crate::diagnostic::lock_info::run, "who holds and awaits locks";
    "killOp" => ADMIN, Login, crate::diagnostic::kill_op::run, "stops an operation";
    "top" => ADMIN, Cluster(&[Top]), crate::diagnostic::top::run, "where time went";
    "features" => HANDSHAKE, Nothing, crate::diagnostic::features::run, "features of the build";
    "connPoolStats" => 0, Cluster(&[ConnPoolStats]), crate::diagnostic::conn_pool_stats::run, "connections to other servers";
    "getParameter" => ADMIN, Cluster(&[GetParameter]), crate::admin::get_parameter::run, "values of parameters";
    "setParameter" => ADMIN, Cluster(&[SetParameter]), crate::admin::set_parameter::run, "sets parameters";
    "getCmdLineOpts" => ADMIN, Cluster(&[GetCmdLineOpts]), crate::admin::get_cmd_line_opts::run, "how the server was started";
    "configureFailPoint" => ADMIN, Cluster(&[SetParameter]), crate::admin::configure_fail_point::run, "makes commands fail";
    "fsync" => ADMIN | WORKER, Cluster(&[Fsync]), crate::admin::fsync::run, "writes everything to the disk";
    "pandoBackup" => ADMIN | WORKER, Own(needs::backup), crate::admin::pando_backup::run, "a copy of all data into a directory of the server's machine";
    "fsyncUnlock" => ADMIN, Cluster(&[Unlock]), crate::admin::fsync::unlock, "undoes fsync's lock";
    "compact" => WORKER | OF_COLLECTION, Collection(&[Compact]), crate::admin::compact::run, "has a collection rewritten";
    "compactStructuredEncryptionData" => WORKER | OF_COLLECTION, Collection(&[CompactStructuredEncryptionData]), crate::admin::structured_encryption::compact, "compacts the state of encrypted fields";
    "cleanupStructuredEncryptionData" => WORKER | OF_COLLECTION, Collection(&[CleanupStructuredEncryptionData]), crate::admin::structured_encryption::cleanup, "cleans up the state of encrypted fields";
    "rotateCertificates" => ADMIN, Cluster(&[RotateCertificates]), crate::admin::rotate_certificates::run, "reads certificates anew";
    "logRotate" => ADMIN | WORKER, Cluster(&[LogRotate]), crate::admin::log_rotate::run, "starts a new log file";
    "logApplicationMessage" => ADMIN, Cluster(&[ApplicationMessage]), crate::admin::log_application_message::run, "a message of an application to the audit log";
    "profile" => WORKER, Own(needs::profile), crate::admin::profile::run, "the profiler";
    "setProfilingFilterGlobally" => ADMIN | WORKER, Own(needs::profile_everywhere), crate::admin::set_profiling_filter_globally::run, "the profiler's filter everywhere";
    "planCacheClear" => OF_COLLECTION, Collection(&[PlanCacheWrite]), crate::admin::plan_cache_filters::clear, "forgets cached plans";
    "planCacheClearFilters" => OF_COLLECTION, Collection(&[PlanCacheIndexFilter]), crate::admin::plan_cache_filters::clear_filters, "forgets index filters";
    "planCacheListFilters" => OF_COLLECTION, Collection(&[PlanCacheIndexFilter]), crate::admin::plan_cache_filters::list, "the index filters";
    "planCacheSetFilter" => OF_COLLECTION, Collection(&[PlanCacheIndexFilter]), crate::admin::plan_cache_filters::set, "sets an index filter";
    "setQuerySettings" => ADMIN | WORKER, Cluster(&[QuerySettings]), crate::admin::query_settings::set, "sets how queries of a shape are answered";
    "removeQuerySettings" => ADMIN | WORKER, Cluster(&[QuerySettings]), crate::admin::query_settings::remove, "forgets what was set for queries of a shape";
    "getDefaultRWConcern" => ADMIN, Cluster(&[GetDefaultRwConcern]), crate::admin::rw_concern::get, "the default concerns";
    "setDefaultRWConcern" => ADMIN | WRITE | WORKER, Cluster(&[SetDefaultRwConcern]), crate::admin::rw_concern::set, "sets the default concerns";
    "setUserWriteBlockMode" => ADMIN | WRITE | WORKER, Cluster(&[SetUserWriteBlockMode]), crate::admin::write_block::run, "refuses users' writes";
    "autoCompact" => ADMIN | WORKER, Cluster(&[Compact]), crate::admin::auto_compact::run, "compaction in the background";
    "dropConnections" => ADMIN, Cluster(&[DropConnections]), crate::admin::drop_connections::run, "ends connections to other servers";
    "getClusterParameter" => ADMIN | WORKER, Cluster(&[GetClusterParameter]), crate::admin::cluster_parameter::get, "values of cluster parameters";
    "setClusterParameter" => ADMIN | WORKER, Cluster(&[SetClusterParameter]), crate::admin::cluster_parameter::set, "sets a cluster parameter";
    "setFeatureCompatibilityVersion" => ADMIN | WRITE | WORKER, Cluster(&[SetFeatureCompatibilityVersion]), crate::admin::set_feature_compatibility_version::run, "sets the feature version";
    "usersInfo" => WORKER, Own(needs::users_info), crate::users::users_info::run, "the users";
    "rolesInfo" => WORKER, Own(needs::roles_info), crate::roles::roles_info::run, "the roles";
    "createUser" => WRITE | WORKER, Own(needs::create_user), crate::users::create_user::run, "a new user";
    "updateUser" => WRITE | WORKER, Own(needs::update_user), crate::users::update_user::run, "changes a user";
    "dropUser" => WRITE | WORKER, Database(&[DropUser]), crate::users::drop_user::run, "removes a user";
    "dropAllUsersFromDatabase" => WRITE | WORKER, Database(&[DropUser]), crate::users::drop_user::run_all, "removes the users of a database";
    "grantRolesToUser" => WRITE | WORKER, Own(needs::grant_roles), crate::users::user_roles::grant, "gives roles to a user";
    "revokeRolesFromUser" => WRITE | WORKER, Own(needs::revoke_roles), crate::users::user_roles::revoke, "takes roles from a user";
    "invalidateUserCache" => WORKER, Cluster(&[InvalidateUserCache]), crate::users::invalidate_user_cache::run, "has users and roles read anew";
    "_getUserCacheGeneration" => ADMIN, Cluster(&[Internal]), crate::users::user_cache_generation::run, "a number that changes with users and roles";
    "_mergeAuthzCollections" => ADMIN | WRITE | WORKER, Own(needs::merge_users), crate::users::merge::run, "takes over users and roles that were restored";
    "createRole" => WRITE | WORKER, Own(needs::create_role), crate::roles::create_role::run, "a new role";
    "updateRole" => WRITE | WORKER, Own(needs::update_role), crate::roles::update_role::run, "changes a role";
    "dropRole" => WRITE | WORKER, Database(&[DropRole]), crate::roles::drop_role::run, "removes a role";
    "dropAllRolesFromDatabase" => WRITE | WORKER, Database(&[DropRole]), crate::roles::drop_role::run_all, "removes the roles of a database";
    "grantPrivilegesToRole" => WRITE | WORKER, Own(needs::grant_privileges), crate::roles::role_privileges::grant, "gives privileges to a role";
    "revokePrivilegesFromRole" => WRITE | WORKER, Own(needs::revoke_privileges), crate::roles::role_privileges::revoke, "takes privileges from a role";
    "grantRolesToRole" => WRITE | WORKER, Own(needs::grant_roles), crate::roles::role_roles::grant, "gives a role the privileges of others";
    "revokeRolesFromRole" => WRITE | WORKER, Own(needs::revoke_roles), crate::roles::role_roles::revoke, "takes other roles' privileges from a role";
    "shutdown" => ADMIN, Cluster(&[Shutdown]), crate::admin::shutdown::run, "stops the server";
    "startSession" => HANDSHAKE, Login, crate::sessions::start_session::run, "a new session";
    "endSessions" => HANDSHAKE | API, Nothing, crate::sessions::end_sessions::run, "ends sessions";
    "refreshSessions" => HANDSHAKE | API, Login, crate::sessions::end_sessions::refresh, "keeps sessions";
    "killSessions" => 0, Login, crate::sessions::kill_sessions::run, "ends sessions with what runs in them";
    "killAllSessions" => 0, Cluster(&[KillAnySession]), crate::sessions::kill_sessions::run_all, "ends the sessions of users";
    "killAllSessionsByPattern" => 0, Cluster(&[KillAnySession]), crate::sessions::kill_sessions::run_by_pattern, "ends sessions by pattern";
    "commitTransaction" => ADMIN | WRITE | API, Login, crate::sessions::transactions::commit, "commits a transaction";
    "abortTransaction" => ADMIN | WRITE | API, Login, crate::sessions::transactions::abort, "aborts a transaction";
    "appendOplogNote" => ADMIN | WRITE | WORKER, Cluster(&[AppendOplogNote]), crate::replication::append_oplog_note::run, "notes a document in the log";
    "applyOps" => ADMIN | WRITE | WORKER, Own(needs::apply_ops), crate::replication::apply_ops::run, "applies entries of an oplog";
    "replSetGetStatus" => ADMIN, Cluster(&[ReplSetGetStatus]), crate::replication::repl_set_get_status::run, "state of the replica set";
    "replSetGetConfig" => ADMIN, Cluster(&[ReplSetGetConfig]), crate::replication::repl_set_get_config::run, "configuration of the replica set";
    "replSetGetRBID" => ADMIN, Cluster(&[Internal]), crate::replication::repl_set_get_rbid::run, "a number that changes when writes are taken back";
    "replSetFreeze" => ADMIN, Cluster(&[ReplSetStateChange]), crate::replication::repl_set_freeze::run, "keeps a secondary from becoming primary";
    "replSetStepDown" => ADMIN | WORKER, Cluster(&[ReplSetStateChange]), crate::replication::repl_set_step_down::run, "makes the primary a secondary";
    "replSetStepUp" => ADMIN | WORKER, Cluster(&[ReplSetStateChange]), crate::replication::repl_set_step_up::run, "has a secondary stand for election";
    "replSetMaintenance" => ADMIN | WORKER, Cluster(&[ReplSetStateChange]), crate::replication::repl_set_maintenance::run, "takes a secondary out of reading and of elections";
    "replSetAbortPrimaryCatchUp" => ADMIN, Cluster(&[ReplSetStateChange]), crate::replication::repl_set_abort_primary_catch_up::run, "has a new primary take writes at once";
    "replSetSyncFrom" => ADMIN, Cluster(&[ReplSetStateChange]), crate::replication::repl_set_sync_from::run, "whom a secondary has its entries from";
    "createSearchIndexes" => WRITE | WORKER | OF_COLLECTION, Collection(&[CreateSearchIndexes]), crate::ddl::search_indexes::create, "new search indexes";
    "updateSearchIndex" => WRITE | WORKER | OF_COLLECTION, Collection(&[UpdateSearchIndex]), crate::ddl::search_indexes::update, "changes a search index";
    "dropSearchIndex" => WRITE | WORKER | OF_COLLECTION, Collection(&[DropSearchIndex]), crate::ddl::search_indexes::drop_one, "removes a search index";
    "listSearchIndexes" => WORKER | OF_COLLECTION, Collection(&[ListSearchIndexes]), crate::ddl::search_indexes::list, "the search indexes of a collection";
    "replSetResizeOplog" => ADMIN | WORKER, Cluster(&[ReplSetResizeOplog]), crate::replication::repl_set_resize_oplog::run, "changes how much of the oplog is kept";
    "replSetReconfig" => ADMIN | WORKER, Cluster(&[ReplSetConfigure]), crate::replication::repl_set_reconfig::run, "another configuration of the replica set";
    "pandoCopyFiles" => ADMIN | WORKER | LONG, Cluster(&[Internal]), crate::replication::pando_copy_files::run, "the files of this member, for one that the log does not reach";
    "pandoCheckBatch" => ADMIN | WORKER, Cluster(&[Internal]), crate::db_check::command::of_member, "what members say to each other of a check";
    "pandoReplicate" => ADMIN, Cluster(&[Internal]), crate::replication::pando_replicate::run, "what members of a replica set send each other";
    "_pandoSettings" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::admin::pando_settings::run, "settings of the whole cluster";
    "_pandoQueryShape" => ADMIN | WORKER, Cluster(&[Internal]), crate::admin::query_settings::shape, "what is set for a query";
    "_pandoOwnership" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_ownership::run, "tells a shard what it has of a collection";
    "_pandoReceive" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_receive::run, "tells a shard of a range that comes in";
    "_pandoChanges" => ADMIN | WORKER, Cluster(&[Internal]), crate::shard::pando_changes::run, "which documents of a collection were touched";
    "_pandoTime" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_time::run, "the time of a shard's log, and that it be late enough";
    "_pandoServed" => ADMIN, Cluster(&[Internal]), crate::shard::pando_served::run, "how much a shard does for routers";
    "_pandoRangeSize" => ADMIN | WORKER, Cluster(&[Internal]), crate::shard::pando_range_size::run, "about how much lies in a range";
    "_pandoFence" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_fence::run, "lets routers wait while a range changes its owner";
    "_pandoChange" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_change::run, "writes to the metadata, all or none";
    "_pandoHome" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_home::run, "tells a shard which databases it is the primary of";
    "_pandoSwap" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_swap::run, "puts one collection in the place of another";
    "_pandoSessions" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_sessions::run, "outcomes of retryable writes, for another shard";
    "_pandoPrepare" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_prepare::run, "a shard promises to commit its part of a transaction";
    "_pandoDecide" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_decide::run, "a shard hears what became of a transaction over several shards";
    "_pandoOutcome" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_outcome::run, "what became of a transaction that this shard decides";
    "_pandoPrepared" => ADMIN | WORKER, Cluster(&[Internal]), crate::shard::pando_prepared::run, "transactions and decisions that wait for others";
    "_pandoSnapshot" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_snapshot::run, "a shard keeps its state at a time for transactions over several shards";
    "_pandoClean" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), crate::shard::pando_clean::run, "removes the documents of a range that the shard does not own";
    "replSetInitiate" => ADMIN | WORKER, Cluster(&[ReplSetConfigure]), crate::replication::repl_set_initiate::run, "makes the replica set";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_once() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
        for name in NAMES {
            assert_eq!(lookup(name).unwrap().name, *name);
        }
        assert!(lookup("Ping").is_none());
    }

    #[test]
    fn only_some_name_a_collection() {
        let target = |command: &str, first: &'static str| {
            let first = bson::Value::from(first);
            let target = lookup(command).unwrap().target("db", first.as_val());
            target.map(|(db, coll)| format!("{db}.{coll}"))
        };
        assert_eq!(target("find", "c").as_deref(), Some("db.c"));
        assert_eq!(
            target("renameCollection", "a.b.c").as_deref(),
            Some("a.b.c")
        );
        for (command, first) in [
            ("getLog", "global"),
            ("find", ""),
            ("ping", "x"),
            ("getParameter", "*"),
            ("dataSize", "nowhere"),
        ] {
            assert_eq!(target(command, first), None, "{command}");
        }
    }
}
