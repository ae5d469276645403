//! The table of commands: names, flags, and needed privileges.
//!
//! Invariant: knows no function that runs a command. A command cannot be written here without what it
//! needs.

use crate::needs::{self, RequiredAccess};
use RequiredAccess::*;
use auth::Action::*;
use bson::Val;

/// Properties of a command, or-ed together.
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
    /// A router runs it, and no other server knows it.
    pub const ROUTER: u16 = 2048;
}
use flag::*;

/// The fixed properties of a command.
pub struct Specification {
    pub name: &'static str,
    /// Its place in [`SPECIFICATIONS`].
    pub index: usize,
    pub flags: u16,
    /// The privileges that it needs, with authorization on.
    pub needs: RequiredAccess,
    /// For `listCommands`.
    pub help: &'static str,
}

impl Specification {
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether servers that are no routers know it.
    pub const fn is_of_servers(&self) -> bool {
        self.flags & ROUTER == 0
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

/// The commands of servers that are no routers.
pub fn of_servers() -> impl Iterator<Item = &'static Specification> {
    SPECIFICATIONS.iter().filter(|c| c.is_of_servers())
}

/// Where the command of that name stands in [`SPECIFICATIONS`]. For constants: a name that is not
/// there does not compile.
pub const fn index_of(name: &str) -> usize {
    let mut at = 0;
    while at < NAMES.len() {
        if is_same(NAMES[at], name) {
            return at;
        }
        at += 1;
    }
    panic!("no such command")
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

macro_rules! commands {
    ($($name:literal $(| $alias:literal)* => $flags:expr, $needs:expr, $help:literal;)*) => {
        /// The wire names of all commands, without aliases, in the table's order.
        pub const NAMES: &[&str] = &[$($name),*];

        /// All commands, in the table's order.
        pub static SPECIFICATIONS: [Specification; NAMES.len()] = [$(
            Specification {
                name: $name,
                index: index_of($name),
                flags: $flags,
                needs: $needs,
                help: $help,
            },
        )*];

        /// The command of that name or old name, whichever program runs it. Compared in the table's
        /// order: the frequent ones stand first.
        pub fn lookup(name: &str) -> Option<&'static Specification> {
            match name {
                $($name $(| $alias)* => Some(&SPECIFICATIONS[const { index_of($name) }]),)*
                _ => None,
            }
        }
    };
}

commands! {
    "find" => READ | API | COUNTED | OF_COLLECTION, Collection(&[Find]), "documents that match";
    "insert" => WRITE | RETRY | API | COUNTED | OF_COLLECTION, Own(needs::insert), "new documents";
    "update" => WRITE | RETRY | API | COUNTED | OF_COLLECTION, Own(needs::update), "changes of documents";
    "delete" => WRITE | RETRY | API | COUNTED | OF_COLLECTION, Collection(&[Remove]), "removal of documents";
    "getMore" => READ | API | COUNTED | WORKER, Login, "a cursor's next batch";
    "findAndModify" | "findandmodify" => WRITE | RETRY | API | LONG | OF_COLLECTION, Own(needs::find_and_modify), "one document changed and given back";
    "bulkWrite" => ADMIN | WRITE | RETRY | API | WORKER | COUNTED, Own(needs::bulk_write), "writes of several kinds to several collections";
    "count" => READ | API | OF_COLLECTION, Collection(&[Find]), "how many documents match";
    "aggregate" => READ | WRITE | API | OF_COLLECTION, Own(needs::aggregate), "documents through the stages of a pipeline";
    "mapReduce" | "mapreduce" => READ | WRITE | WORKER | OF_COLLECTION, Own(needs::map_reduce), "what functions of the user's make of documents";
    "explain" => READ | API | WORKER, Own(needs::explain), "how a command is answered";
    "distinct" => READ | LONG | OF_COLLECTION, Collection(&[Find]), "the different values of a field";
    "killCursors" => API | OF_COLLECTION, Login, "ends cursors";
    "hello" => HANDSHAKE | API, Nothing, "what a client must know of this server";
    "isMaster" | "ismaster" => HANDSHAKE, Nothing, "what a client must know of this server (old name)";
    "ping" => HANDSHAKE | API, Nothing, "whether the server answers";
    "buildInfo" | "buildinfo" => HANDSHAKE, Nothing, "version and build of the server";
    "saslStart" => HANDSHAKE | API | WORKER, Nothing, "begins an authentication";
    "saslContinue" => HANDSHAKE | API | WORKER, Nothing, "goes on with an authentication";
    "authenticate" => HANDSHAKE | API | WORKER, Nothing, "authenticates with a certificate";
    "getnonce" => HANDSHAKE, Nothing, "a number for the logins of old drivers";
    "logout" => HANDSHAKE, Nothing, "ends authentications";
    "connectionStatus" => HANDSHAKE, Nothing, "who the client is";
    "whatsmyuri" => HANDSHAKE, Nothing, "the client's own address";
    "getLastError" | "getlasterror" => HANDSHAKE, Nothing, "how the last write fared";
    "listCollections" => API, Own(needs::list_collections), "the collections of a database";
    "listIndexes" => API | OF_COLLECTION, Collection(&[ListIndexes]), "the indexes of a collection";
    "listDatabases" => ADMIN | API, Own(needs::list_databases), "the databases";
    "create" => WRITE | API | WORKER | OF_COLLECTION, Own(needs::create), "a new collection";
    "drop" => WRITE | API | WORKER | OF_COLLECTION, Collection(&[DropCollection]), "removes a collection";
    "dropDatabase" => WRITE | API | WORKER, Database(&[DropDatabase]), "removes a database";
    "renameCollection" => ADMIN | WRITE | WORKER | OF_NAMESPACE, Own(needs::rename_collection), "gives a collection another name";
    "createIndexes" => WRITE | API | WORKER | OF_COLLECTION, Collection(&[CreateIndex]), "new indexes";
    "setIndexCommitQuorum" => WORKER | OF_COLLECTION, Collection(&[CreateIndex]), "sets the commit quorum of index builds";
    "reIndex" => WRITE | WORKER | OF_COLLECTION, Collection(&[ReIndex]), "builds the indexes of a collection anew; standalone only";
    "dropIndexes" | "deleteIndexes" => WRITE | API | WORKER | OF_COLLECTION, Collection(&[DropIndex]), "removes indexes";
    "collMod" => WRITE | API | WORKER | OF_COLLECTION, Own(needs::coll_mod), "changes options of a collection";
    "convertToCapped" => WRITE | WORKER | OF_COLLECTION, Collection(&[ConvertToCapped]), "makes a collection a capped one";
    "cloneCollectionAsCapped" => WRITE | WORKER | OF_COLLECTION, Own(needs::clone_collection_as_capped), "a capped copy of a collection";
    "validateDBMetadata" => 0, Database(&[Validate]), "what a version of the API does not allow";
    "dbStats" | "dbstats" => 0, Database(&[DbStats]), "sizes and counts of a database";
    "collStats" | "collstats" => OF_COLLECTION, Collection(&[CollStats]), "sizes and counts of a collection";
    "dataSize" | "datasize" => OF_NAMESPACE, Own(needs::data_size), "bytes of a collection or a range of it";
    "analyzeShardKey" => ADMIN | WORKER | OF_NAMESPACE, Namespace(&[AnalyzeShardKey]), "how well a key would serve as a shard key";
    "configureQueryAnalyzer" => ADMIN | WORKER | OF_NAMESPACE, Namespace(&[AnalyzeShardKey]), "how many queries of a collection are sampled";
    "dbHash" | "dbhash" => READ | WORKER, Database(&[DbHash]), "digests of collections";
    "dbCheck" => WORKER, Own(needs::db_check), "compares what the members of a set have, in the background";
    "filemd5" => READ | WORKER | OF_COLLECTION, Own(needs::file_md5), "the digest of a file of GridFS";
    "pandoSchema" => READ | WORKER | OF_COLLECTION, Collection(&[Find]), "what the documents of a collection look like";
    "validate" => WORKER | OF_COLLECTION, Collection(&[Validate]), "compares records and indexes of a collection";
    "serverStatus" => WORKER, Cluster(&[ServerStatus]), "how the server does";
    "getDiagnosticData" => ADMIN | WORKER, Cluster(&[ServerStatus, ReplSetGetStatus]), "what serverStatus and others tell, in one reply";
    "hostInfo" => WORKER, Cluster(&[HostInfo]), "the machine";
    "getLog" => ADMIN, Cluster(&[GetLog]), "the newest lines of the log";
    "listCommands" => HANDSHAKE, Nothing, "the commands";
    "currentOp" => ADMIN | WORKER, Own(needs::current_op), "what runs now";
    "shardingState" => ADMIN, Cluster(&[ShardingState]), "which shard this server is";
    "getShardMap" => ADMIN, Cluster(&[GetShardMap]), "what this shard knows of its cluster";
    "splitVector" => READ | WORKER, Own(needs::split_vector), "where a collection would be cut into chunks";
    "lockInfo" => ADMIN, Cluster(&[ServerStatus]), "who holds and awaits locks";
    "killOp" => ADMIN, Login, "stops an operation";
    "top" => ADMIN, Cluster(&[Top]), "where time went";
    "features" => HANDSHAKE, Nothing, "features of the build";
    "connPoolStats" => 0, Cluster(&[ConnPoolStats]), "connections to other servers";
    "getParameter" => ADMIN, Cluster(&[GetParameter]), "values of parameters";
    "setParameter" => ADMIN, Cluster(&[SetParameter]), "sets parameters";
    "getCmdLineOpts" => ADMIN, Cluster(&[GetCmdLineOpts]), "how the server was started";
    "configureFailPoint" => ADMIN, Cluster(&[SetParameter]), "makes commands fail";
    "fsync" => ADMIN | WORKER, Cluster(&[Fsync]), "writes everything to the disk";
    "pandoBackup" => ADMIN | WORKER, Own(needs::backup), "a copy of all data into a directory of the server's machine";
    "fsyncUnlock" => ADMIN, Cluster(&[Unlock]), "undoes fsync's lock";
    "compact" => WORKER | OF_COLLECTION, Collection(&[Compact]), "has a collection rewritten";
    "compactStructuredEncryptionData" => WORKER | OF_COLLECTION, Collection(&[CompactStructuredEncryptionData]), "compacts the state of encrypted fields";
    "cleanupStructuredEncryptionData" => WORKER | OF_COLLECTION, Collection(&[CleanupStructuredEncryptionData]), "cleans up the state of encrypted fields";
    "rotateCertificates" => ADMIN, Cluster(&[RotateCertificates]), "reads certificates anew";
    "logRotate" => ADMIN | WORKER, Cluster(&[LogRotate]), "starts a new log file";
    "logApplicationMessage" => ADMIN, Cluster(&[ApplicationMessage]), "a message of an application to the audit log";
    "profile" => WORKER, Own(needs::profile), "the profiler";
    "setProfilingFilterGlobally" => ADMIN | WORKER, Own(needs::profile_everywhere), "the profiler's filter everywhere";
    "planCacheClear" => OF_COLLECTION, Collection(&[PlanCacheWrite]), "forgets cached plans";
    "planCacheClearFilters" => OF_COLLECTION, Collection(&[PlanCacheIndexFilter]), "forgets index filters";
    "planCacheListFilters" => OF_COLLECTION, Collection(&[PlanCacheIndexFilter]), "the index filters";
    "planCacheSetFilter" => OF_COLLECTION, Collection(&[PlanCacheIndexFilter]), "sets an index filter";
    "setQuerySettings" => ADMIN | WORKER, Cluster(&[QuerySettings]), "sets how queries of a shape are answered";
    "removeQuerySettings" => ADMIN | WORKER, Cluster(&[QuerySettings]), "forgets what was set for queries of a shape";
    "getDefaultRWConcern" => ADMIN, Cluster(&[GetDefaultRwConcern]), "the default concerns";
    "setDefaultRWConcern" => ADMIN | WRITE | WORKER, Cluster(&[SetDefaultRwConcern]), "sets the default concerns";
    "setUserWriteBlockMode" => ADMIN | WRITE | WORKER, Cluster(&[SetUserWriteBlockMode]), "refuses users' writes";
    "autoCompact" => ADMIN | WORKER, Cluster(&[Compact]), "compaction in the background";
    "dropConnections" => ADMIN, Cluster(&[DropConnections]), "ends connections to other servers";
    "getClusterParameter" => ADMIN | WORKER, Cluster(&[GetClusterParameter]), "values of cluster parameters";
    "setClusterParameter" => ADMIN | WORKER, Cluster(&[SetClusterParameter]), "sets a cluster parameter";
    "setFeatureCompatibilityVersion" => ADMIN | WRITE | WORKER, Cluster(&[SetFeatureCompatibilityVersion]), "sets the feature version";
    "usersInfo" => WORKER, Own(needs::users_info), "the users";
    "rolesInfo" => WORKER, Own(needs::roles_info), "the roles";
    "createUser" => WRITE | WORKER, Own(needs::create_user), "a new user";
    "updateUser" => WRITE | WORKER, Own(needs::update_user), "changes a user";
    "dropUser" => WRITE | WORKER, Database(&[DropUser]), "removes a user";
    "dropAllUsersFromDatabase" => WRITE | WORKER, Database(&[DropUser]), "removes the users of a database";
    "grantRolesToUser" => WRITE | WORKER, Own(needs::grant_roles), "gives roles to a user";
    "revokeRolesFromUser" => WRITE | WORKER, Own(needs::revoke_roles), "takes roles from a user";
    "invalidateUserCache" => WORKER, Cluster(&[InvalidateUserCache]), "has users and roles read anew";
    "_getUserCacheGeneration" => ADMIN, Cluster(&[Internal]), "a number that changes with users and roles";
    "_mergeAuthzCollections" => ADMIN | WRITE | WORKER, Own(needs::merge_users), "takes over users and roles that were restored";
    "createRole" => WRITE | WORKER, Own(needs::create_role), "a new role";
    "updateRole" => WRITE | WORKER, Own(needs::update_role), "changes a role";
    "dropRole" => WRITE | WORKER, Database(&[DropRole]), "removes a role";
    "dropAllRolesFromDatabase" => WRITE | WORKER, Database(&[DropRole]), "removes the roles of a database";
    "grantPrivilegesToRole" => WRITE | WORKER, Own(needs::grant_privileges), "gives privileges to a role";
    "revokePrivilegesFromRole" => WRITE | WORKER, Own(needs::revoke_privileges), "takes privileges from a role";
    "grantRolesToRole" => WRITE | WORKER, Own(needs::grant_roles), "gives a role the privileges of others";
    "revokeRolesFromRole" => WRITE | WORKER, Own(needs::revoke_roles), "takes other roles' privileges from a role";
    "shutdown" => ADMIN, Cluster(&[Shutdown]), "stops the server";
    "startSession" => HANDSHAKE, Login, "a new session";
    "endSessions" => HANDSHAKE | API, Nothing, "ends sessions";
    "refreshSessions" => HANDSHAKE | API, Login, "keeps sessions";
    "killSessions" => 0, Login, "ends sessions with what runs in them";
    "killAllSessions" => 0, Cluster(&[KillAnySession]), "ends the sessions of users";
    "killAllSessionsByPattern" => 0, Cluster(&[KillAnySession]), "ends sessions by pattern";
    "commitTransaction" => ADMIN | WRITE | API, Login, "commits a transaction";
    "abortTransaction" => ADMIN | WRITE | API, Login, "aborts a transaction";
    "appendOplogNote" => ADMIN | WRITE | WORKER, Cluster(&[AppendOplogNote]), "notes a document in the log";
    "applyOps" => ADMIN | WRITE | WORKER, Own(needs::apply_ops), "applies entries of an oplog";
    "replSetGetStatus" => ADMIN, Cluster(&[ReplSetGetStatus]), "state of the replica set";
    "replSetGetConfig" => ADMIN, Cluster(&[ReplSetGetConfig]), "configuration of the replica set";
    "replSetGetRBID" => ADMIN, Cluster(&[Internal]), "a number that changes when writes are taken back";
    "replSetFreeze" => ADMIN, Cluster(&[ReplSetStateChange]), "keeps a secondary from becoming primary";
    "replSetStepDown" => ADMIN | WORKER, Cluster(&[ReplSetStateChange]), "makes the primary a secondary";
    "replSetStepUp" => ADMIN | WORKER, Cluster(&[ReplSetStateChange]), "has a secondary stand for election";
    "replSetMaintenance" => ADMIN | WORKER, Cluster(&[ReplSetStateChange]), "takes a secondary out of reading and of elections";
    "replSetAbortPrimaryCatchUp" => ADMIN, Cluster(&[ReplSetStateChange]), "has a new primary take writes at once";
    "replSetSyncFrom" => ADMIN, Cluster(&[ReplSetStateChange]), "whom a secondary has its entries from";
    "createSearchIndexes" => WRITE | WORKER | OF_COLLECTION, Collection(&[CreateSearchIndexes]), "new search indexes";
    "updateSearchIndex" => WRITE | WORKER | OF_COLLECTION, Collection(&[UpdateSearchIndex]), "changes a search index";
    "dropSearchIndex" => WRITE | WORKER | OF_COLLECTION, Collection(&[DropSearchIndex]), "removes a search index";
    "listSearchIndexes" => WORKER | OF_COLLECTION, Collection(&[ListSearchIndexes]), "the search indexes of a collection";
    "replSetResizeOplog" => ADMIN | WORKER, Cluster(&[ReplSetResizeOplog]), "changes how much of the oplog is kept";
    "replSetReconfig" => ADMIN | WORKER, Cluster(&[ReplSetConfigure]), "another configuration of the replica set";
    "pandoCopyFiles" => ADMIN | WORKER | LONG, Cluster(&[Internal]), "the files of this member, for one that the log does not reach";
    "pandoCheckBatch" => ADMIN | WORKER, Cluster(&[Internal]), "what members say to each other of a check";
    "pandoReplicate" => ADMIN, Cluster(&[Internal]), "what members of a replica set send each other";
    "_pandoSettings" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "settings of the whole cluster";
    "_pandoQueryShape" => ADMIN | WORKER, Cluster(&[Internal]), "what is set for a query";
    "_pandoOwnership" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "tells a shard what it has of a collection";
    "_pandoReceive" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "tells a shard of a range that comes in";
    "_pandoChanges" => ADMIN | WORKER, Cluster(&[Internal]), "which documents of a collection were touched";
    "_pandoTime" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "the time of a shard's log, and that it be late enough";
    "_pandoServed" => ADMIN, Cluster(&[Internal]), "how much a shard does for routers";
    "_pandoRangeSize" => ADMIN | WORKER, Cluster(&[Internal]), "about how much lies in a range";
    "_pandoSizes" => ADMIN | WORKER, Cluster(&[Internal]), "how much a shard has of collections";
    "_pandoStamp" => WORKER | OF_COLLECTION, Cluster(&[Internal]), "whether a collection was written to";
    "_pandoFence" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "lets routers wait while a range changes its owner";
    "_pandoChange" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "writes to the metadata, all or none";
    "_pandoHome" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "tells a shard which databases it is the primary of";
    "_pandoSwap" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "puts one collection in the place of another";
    "_pandoSessions" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "outcomes of retryable writes, for another shard";
    "_pandoPrepare" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "a shard promises to commit its part of a transaction";
    "_pandoDecide" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "a shard hears what became of a transaction over several shards";
    "_pandoOutcome" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "what became of a transaction that this shard decides";
    "_pandoPrepared" => ADMIN | WORKER, Cluster(&[Internal]), "transactions and decisions that wait for others";
    "_pandoSnapshot" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "a shard keeps its state at a time for transactions over several shards";
    "_pandoClean" => ADMIN | WRITE | WORKER, Cluster(&[Internal]), "removes the documents of a range that the shard does not own";
    "replSetInitiate" => ADMIN | WORKER, Cluster(&[ReplSetConfigure]), "makes the replica set";
    // Of routers only.
    "addShard" | "addshard" => ROUTER, Cluster(&[AddShard]), "adds a replica set to the cluster as a shard";
    "listShards" | "listshards" => ROUTER, Cluster(&[ListShards]), "the shards of the cluster";
    "removeShard" | "removeshard" => ROUTER, Cluster(&[RemoveShard]), "takes a shard out of the cluster";
    "isdbgrid" | "isDbGrid" => ROUTER, Nothing, "whether this server is a router";
    "enableSharding" | "enablesharding" => ROUTER, NamedDatabase(&[EnableSharding]), "makes a database known to the cluster";
    "shardCollection" | "shardcollection" => ROUTER, Namespace(&[EnableSharding]), "distributes a collection over shards";
    "getShardVersion" => ROUTER, Namespace(&[GetShardVersion]), "the version of a collection's distribution";
    "split" => ROUTER, Namespace(&[SplitChunk]), "splits a chunk";
    "moveChunk" | "movechunk" => ROUTER, Namespace(&[MoveChunk]), "moves a chunk to another shard";
    "moveRange" => ROUTER, Namespace(&[MoveChunk]), "moves a range to another shard";
    "mergeChunks" => ROUTER, Namespace(&[SplitChunk]), "merges neighbouring chunks";
    "mergeAllChunksOnShard" => ROUTER, Namespace(&[MoveChunk]), "merges the neighbouring chunks of a shard";
    "clearJumboFlag" => ROUTER, Namespace(&[ClearJumboFlag]), "has a chunk that was too large moved again";
    "addShardToZone" => ROUTER, Fixed("config", "shards", &[Find, Update]), "puts a shard into a zone";
    "removeShardFromZone" => ROUTER, Fixed("config", "shards", &[Find, Update]), "takes a shard out of a zone";
    "updateZoneKeyRange" => ROUTER, Fixed("config", "tags", &[Find, Update]), "gives a range to a zone";
    "balancerStart" => ROUTER, Fixed("config", "settings", &[Update]), "starts the balancer";
    "balancerStop" => ROUTER, Fixed("config", "settings", &[Update]), "stops the balancer";
    "balancerStatus" => ROUTER, Fixed("config", "settings", &[Find]), "state of the balancer";
    "balancerCollectionStatus" => ROUTER, Namespace(&[EnableSharding]), "whether a collection is balanced";
    "configureCollectionBalancing" => ROUTER, Namespace(&[EnableSharding]), "settings of the balancer for a collection";
    "checkMetadataConsistency" => ROUTER, Cluster(&[CheckMetadataConsistency]), "compares the metadata of shards and configuration";
    "setAllowMigrations" => ROUTER, Namespace(&[MoveChunk]), "allows or forbids moves of a collection's ranges";
    "flushRouterConfig" => ROUTER, Cluster(&[FlushRouterConfig]), "has the router read the metadata anew";
    "movePrimary" => ROUTER, NamedDatabase(&[MoveChunk]), "gives a database another primary shard";
    "moveCollection" => ROUTER, Namespace(&[MoveCollection]), "moves an unsharded collection to another shard";
    "unshardCollection" => ROUTER, Namespace(&[UnshardCollection]), "brings a sharded collection together on one shard";
    "reshardCollection" => ROUTER, Namespace(&[ReshardCollection]), "gives a collection another shard key";
    "abortReshardCollection" => ROUTER, Namespace(&[ReshardCollection]), "gives a change of the shard key up";
    "commitReshardCollection" => ROUTER, Namespace(&[ReshardCollection]), "ends the copying of a change of the shard key";
    "cleanupReshardCollection" => ROUTER, Namespace(&[ReshardCollection]), "removes what a failed change of the shard key left";
    "refineCollectionShardKey" => ROUTER, Namespace(&[RefineCollectionShardKey]), "adds fields to a shard key";
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
