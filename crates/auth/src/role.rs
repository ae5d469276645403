//! Roles: those that every server has, and those that users make of privileges and other roles.
//!
//! What the built-in roles allow is what MongoDB's manual lists (Built-In Roles, version 8.0).
//!
//! Invariant: resolving roles ends, also where they go round in a circle.

use crate::action::{Action, Actions};
use crate::name::RoleName;
use crate::privilege::{Privilege, Privileges, Resource};
use crate::restriction::Restrictions;
use Action::*;
use std::collections::BTreeSet;

/// The stored content of a role.
#[derive(Clone, Debug, Default)]
pub struct Role {
    pub privileges: Vec<Privilege>,
    /// Roles whose privileges it has as well.
    pub roles: Vec<RoleName>,
    pub restrictions: Restrictions,
}

const READ: Actions = Actions::of(&[
    ChangeStream,
    CollStats,
    DbHash,
    DbStats,
    Find,
    KillCursors,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PerformRawDataOperations,
    PlanCacheRead,
]);

const READ_WRITE: Actions = READ.and(Actions::of(&[
    CleanupStructuredEncryptionData,
    CompactStructuredEncryptionData,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DropCollection,
    DropIndex,
    DropSearchIndex,
    Insert,
    Remove,
    RenameCollectionSameDb,
    Update,
    UpdateSearchIndex,
]));

const DB_ADMIN: Actions = Actions::of(&[
    AnalyzeShardKey,
    BypassDocumentValidation,
    CollMod,
    CollStats,
    Compact,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DbStats,
    DropCollection,
    DropDatabase,
    DropIndex,
    DropSearchIndex,
    EnableProfiler,
    IndexStats,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PlanCacheIndexFilter,
    PlanCacheRead,
    PlanCacheWrite,
    ReIndex,
    RenameCollectionSameDb,
    StorageDetails,
    UpdateSearchIndex,
    Validate,
]);

/// What `dbAdmin` may do with the collection of the profiler.
const PROFILE: Actions = READ.and(Actions::of(&[
    ConvertToCapped,
    CreateCollection,
    DropCollection,
]));

const USER_ADMIN: Actions = Actions::of(&[
    ChangeCustomData,
    ChangePassword,
    CreateRole,
    CreateUser,
    DropRole,
    DropUser,
    GrantRole,
    RevokeRole,
    SetAuthenticationRestriction,
    ViewRole,
    ViewUser,
]);

const SHARDING_OF_DB: Actions = Actions::of(&[
    AnalyzeShardKey,
    ClearJumboFlag,
    EnableSharding,
    MoveChunk,
    RefineCollectionShardKey,
    ReshardCollection,
    SplitChunk,
    SplitVector,
]);

const CLUSTER_MANAGER: Actions = Actions::of(&[
    AddShard,
    AppendOplogNote,
    ApplicationMessage,
    CheckMetadataConsistency,
    CleanupOrphaned,
    FlushRouterConfig,
    GetClusterParameter,
    GetDefaultRwConcern,
    ListSessions,
    ListShards,
    MoveCollection,
    QuerySettings,
    RemoveShard,
    ReplSetConfigure,
    ReplSetGetConfig,
    ReplSetGetStatus,
    ReplSetResizeOplog,
    ReplSetStateChange,
    Resync,
    SetClusterParameter,
    SetDefaultRwConcern,
    SetFeatureCompatibilityVersion,
    TransitionFromDedicatedConfigServer,
    TransitionToDedicatedConfigServer,
    UnshardCollection,
]);

const CLUSTER_MONITOR: Actions = Actions::of(&[
    CheckMetadataConsistency,
    ConnPoolStats,
    GetClusterParameter,
    GetCmdLineOpts,
    GetDefaultRwConcern,
    GetLog,
    GetParameter,
    GetShardMap,
    HostInfo,
    Inprog,
    ListClusterCatalog,
    ListDatabases,
    ListSampledQueries,
    ListSessions,
    ListShards,
    OperationMetrics,
    QueryStatsRead,
    QueryStatsReadTransformed,
    ReplSetGetConfig,
    ReplSetGetStatus,
    ServerStatus,
    ShardingState,
    Top,
]);

/// What monitoring reads of `config` and `local`.
const MONITORED: Actions = READ.and(Actions::of(&[IndexStats]));

const HOST_MANAGER: Actions = Actions::of(&[
    ApplicationMessage,
    AuditConfigure,
    AuditLogRotate,
    CloseAllDatabases,
    Compact,
    ConnPoolSync,
    CpuProfiler,
    DropConnections,
    FlushRouterConfig,
    Fsync,
    InvalidateUserCache,
    KillAnyCursor,
    KillAnySession,
    Killop,
    LogRotate,
    OidReset,
    Resync,
    RotateCertificates,
    SetParameter,
    Shutdown,
    Touch,
    Unlock,
]);

const RESTORE: Actions = Actions::of(&[
    BypassDocumentValidation,
    CollMod,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DropCollection,
    Insert,
    UpdateSearchIndex,
]);

/// What the administrator of all users may do with the collections of users and roles.
const USERS_READ: Actions = Actions::of(&[
    CollStats,
    CreateIndex,
    CreateSearchIndexes,
    DbHash,
    DbStats,
    DropIndex,
    DropSearchIndex,
    Find,
    KillCursors,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PlanCacheRead,
]);

/// Built-in roles of every database.
const OF_EVERY_DATABASE: [&str; 5] = ["dbAdmin", "dbOwner", "read", "readWrite", "userAdmin"];

/// Built-in roles of `admin` only.
const OF_ADMIN: [&str; 15] = [
    "__queryableBackup",
    "__system",
    "backup",
    "clusterAdmin",
    "clusterManager",
    "clusterMonitor",
    "dbAdminAnyDatabase",
    "directShardOperations",
    "enableSharding",
    "hostManager",
    "readAnyDatabase",
    "readWriteAnyDatabase",
    "restore",
    "root",
    "userAdminAnyDatabase",
];

/// The names of a database's built-in roles, in order.
pub fn built_in_names(db: &str) -> Vec<&'static str> {
    let mut names = OF_EVERY_DATABASE.to_vec();
    if db == "admin" {
        names.extend(OF_ADMIN);
    }
    names.sort_unstable();
    names
}

/// Whether it is one of the server's own.
pub fn is_built_in(name: &RoleName) -> bool {
    let role = name.role.as_str();
    OF_EVERY_DATABASE.contains(&role) && name.db != "$external"
        || name.db == "admin" && OF_ADMIN.contains(&role)
        // What a member of the cluster has.
        || name.db == "local" && role == "__system"
}

/// Privileges under construction.
#[derive(Default)]
struct List(Vec<Privilege>);

impl List {
    fn on(mut self, resource: Resource, actions: Actions) -> List {
        match self.0.iter_mut().find(|p| p.resource == resource) {
            Some(p) => p.actions = p.actions.and(actions),
            None => self.0.push(Privilege { resource, actions }),
        }
        self
    }

    fn cluster(self, actions: Actions) -> List {
        self.on(Resource::Cluster, actions)
    }

    /// All databases but local and config, without collections of the system.
    fn normal(self, actions: Actions) -> List {
        self.on(Resource::AnyNormal, actions)
    }

    fn db(self, db: &str, actions: Actions) -> List {
        self.on(Resource::Database(db.into()), actions)
    }

    fn collection(self, db: &str, collection: &str, actions: Actions) -> List {
        let resource = match db {
            "" => Resource::CollectionOfAny(collection.into()),
            _ => Resource::Collection {
                db: db.into(),
                collection: collection.into(),
            },
        };
        self.on(resource, actions)
    }

    fn all(self, others: List) -> List {
        (others.0.into_iter()).fold(self, |all, p| all.on(p.resource, p.actions))
    }

    /// A role of one database, or of all where `db` is empty.
    fn of_db(self, role: &str, db: &str) -> List {
        let whole = match db {
            "" => Resource::AnyNormal,
            _ => Resource::Database(db.into()),
        };
        match role {
            "read" => self.on(whole, READ).collection(db, "system.js", READ),
            "readWrite" => (self.on(whole, READ_WRITE)).collection(db, "system.js", READ_WRITE),
            "dbAdmin" => (self.on(whole, DB_ADMIN)).collection(db, "system.profile", PROFILE),
            "userAdmin" => self.on(whole, USER_ADMIN),
            "dbOwner" => (self.of_db("readWrite", db).of_db("dbAdmin", db)).of_db("userAdmin", db),
            _ => self,
        }
    }
}

/// The privileges of one of the server's own roles.
pub fn built_in(name: &RoleName) -> Option<Role> {
    if !is_built_in(name) {
        return None;
    }
    let list = match name.role.as_str() {
        role if OF_EVERY_DATABASE.contains(&role) => List::default().of_db(role, &name.db),
        role => of_admin(role),
    };
    Some(Role {
        privileges: list.0,
        ..Role::default()
    })
}

const fn enable_sharding() -> Actions {
    Actions::of(&[
        AnalyzeShardKey,
        EnableSharding,
        MoveCollection,
        RefineCollectionShardKey,
        ReshardCollection,
        UnshardCollection,
    ])
}

fn of_admin(role: &str) -> List {
    let list = List::default();
    let lists_databases = Actions::of(&[ListDatabases]);
    match role {
        "__system" => list.on(Resource::Any, Actions::ALL),
        "readAnyDatabase" => list.of_db("read", "").cluster(lists_databases),
        "readWriteAnyDatabase" => list.of_db("readWrite", "").cluster(lists_databases),
        "dbAdminAnyDatabase" => {
            (list.of_db("dbAdmin", "")).cluster(lists_databases.and(Actions::of(&[ApplyOps])))
        }
        "userAdminAnyDatabase" => user_admin_any_database(),
        "clusterMonitor" => cluster_monitor(),
        "clusterManager" => cluster_manager(),
        "hostManager" => list
            .cluster(HOST_MANAGER)
            .normal(Actions::of(&[KillCursors])),
        "clusterAdmin" => cluster_manager()
            .all(cluster_monitor())
            .all(of_admin("hostManager"))
            .normal(Actions::of(&[DropDatabase])),
        "backup" | "__queryableBackup" => backup(),
        "restore" => restore(),
        "enableSharding" => list.normal(enable_sharding()),
        "directShardOperations" => list.cluster(Actions::of(&[IssueDirectShardOperations])),
        "root" => root(),
        _ => list,
    }
}

fn user_admin_any_database() -> List {
    let cluster = [AuthSchemaUpgrade, InvalidateUserCache, ListDatabases];
    let mut list = List::default()
        .of_db("userAdmin", "")
        .db("local", USER_ADMIN)
        .db("config", USER_ADMIN)
        .cluster(Actions::of(&cluster));
    for collection in ["system.users", "system.roles"] {
        list = list.collection("admin", collection, USERS_READ);
    }
    list
}

fn cluster_monitor() -> List {
    let of_databases = Actions::of(&[CollStats, DbStats, IndexStats, UseUuid, GetShardVersion]);
    let find = Actions::of(&[Find]);
    let mut list = List::default()
        .cluster(CLUSTER_MONITOR)
        .normal(of_databases)
        .collection("", "system.profile", find)
        .collection("local", "system.replset", find)
        .collection("local", "replset.election", find)
        .collection("local", "replset.minvalid", find);
    for db in ["config", "local"] {
        list = list
            .db(db, MONITORED.and(of_databases))
            .collection(db, "system.js", READ);
    }
    list
}

fn cluster_manager() -> List {
    let write = Actions::of(&[Insert, Remove, Update]);
    List::default()
        .cluster(CLUSTER_MANAGER)
        .normal(SHARDING_OF_DB)
        .db("config", READ.and(write).and(SHARDING_OF_DB))
        .collection("config", "system.js", READ)
        .db("local", write.and(SHARDING_OF_DB))
        .collection("local", "system.replset", READ)
}

fn backup() -> List {
    let find = Actions::of(&[Find]);
    let listing = [
        ListDatabases,
        ListCollections,
        ListIndexes,
        ListSearchIndexes,
    ];
    let cluster = [
        AppendOplogNote,
        GetParameter,
        ListDatabases,
        ServerStatus,
        SetUserWriteBlockMode,
    ];
    let mut list = List::default()
        .on(Resource::Any, Actions::of(&listing))
        .cluster(Actions::of(&cluster))
        .normal(find)
        .db("config", find)
        .db("local", find)
        .collection("", "system.js", find)
        .collection("", "system.profile", find)
        .collection("", "system.users", find)
        .collection("", "system.views", find)
        .collection("admin", "mms.backup", Actions::of(&[Insert, Update]))
        .collection("config", "settings", Actions::of(&[Find, Insert, Update]));
    for collection in ["system.users", "system.roles", "system.version"] {
        list = list.collection("admin", collection, find);
    }
    list
}

fn restore() -> List {
    let users = RESTORE.and(Actions::of(&[Find, Insert, Remove, Update]));
    let cluster = [BypassWriteBlockingMode, GetParameter, SetUserWriteBlockMode];
    List::default()
        .on(Resource::Any, Actions::of(&[ListCollections]))
        .cluster(Actions::of(&cluster))
        .normal(RESTORE.and(USER_ADMIN))
        .db("config", RESTORE)
        .db("local", RESTORE)
        .collection("", "system.js", RESTORE)
        .collection(
            "",
            "system.views",
            Actions::of(&[DropCollection, Insert, Find]),
        )
        .collection("", "system.users", users)
        .collection("admin", "system.users", users)
        .collection("admin", "system.roles", RESTORE.and(Actions::of(&[Find])))
        .collection("admin", "system.version", RESTORE.and(Actions::of(&[Find])))
}

fn root() -> List {
    let roles = [
        "readWriteAnyDatabase",
        "dbAdminAnyDatabase",
        "userAdminAnyDatabase",
        "clusterAdmin",
        "restore",
        "backup",
    ];
    let list = (roles.into_iter()).fold(List::default(), |all, role| all.all(of_admin(role)));
    list.on(Resource::Any, Actions::of(&[Validate])).collection(
        "config",
        "system.preimages",
        Actions::of(&[Find, Remove]),
    )
}

/// What follows from roles: all that they allow, and every role that they lead to, themselves among
/// them, in order.
#[derive(Debug, Default)]
pub struct ResolvedRoles {
    pub privileges: Privileges,
    pub roles: BTreeSet<RoleName>,
    /// Of all roles: each must be met.
    pub restrictions: Vec<Restrictions>,
}

/// Follows roles to what they allow. `look_up` finds those that users made; a role that is not there
/// allows nothing.
pub fn resolve<E>(
    roles: &[RoleName],
    mut look_up: impl FnMut(&RoleName) -> Result<Option<Role>, E>,
) -> Result<ResolvedRoles, E> {
    let mut resolved = ResolvedRoles::default();
    let mut left: Vec<RoleName> = roles.to_vec();
    while let Some(name) = left.pop() {
        if resolved.roles.contains(&name) {
            continue;
        }
        let found = match built_in(&name) {
            Some(role) => Some(role),
            None => look_up(&name)?,
        };
        if let Some(role) = found {
            role.privileges
                .iter()
                .for_each(|p| resolved.privileges.add(p));
            left.extend(role.roles);
            resolved.restrictions.push(role.restrictions);
        }
        resolved.roles.insert(name);
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::Target::{self, Cluster, Collection, Database};

    fn may(role: &str, db: &str, action: Action, target: Target<'_>) -> bool {
        let resolved =
            resolve(&[RoleName::new(role, db)], |_| Ok::<_, errors::Error>(None)).unwrap();
        resolved.privileges.allows(action, target)
    }

    #[test]
    fn roles_of_a_database_stay_in_it() {
        assert!(may("read", "d", Find, Collection("d", "c")));
        assert!(may("read", "d", Find, Collection("d", "system.js")));
        assert!(!may("read", "d", Find, Collection("d", "system.users")));
        assert!(!may("read", "d", Insert, Collection("d", "c")));
        assert!(!may("read", "d", Find, Collection("e", "c")));
        assert!(may("readWrite", "d", Insert, Collection("d", "c")));
        assert!(!may("readWrite", "d", CollMod, Collection("d", "c")));
        assert!(may("dbAdmin", "d", CollMod, Collection("d", "c")));
        assert!(!may("dbAdmin", "d", Find, Collection("d", "c")));
        assert!(may("dbAdmin", "d", Find, Collection("d", "system.profile")));
        assert!(may("userAdmin", "d", CreateUser, Database("d")));
        assert!(!may("userAdmin", "d", CreateUser, Database("admin")));
        for action in [Find, CollMod, Insert, DropDatabase, CreateUser] {
            assert!(may("dbOwner", "d", action, Collection("d", "c")));
        }
    }

    #[test]
    fn roles_of_all_databases_are_of_admin_only() {
        assert!(may("readAnyDatabase", "admin", Find, Collection("d", "c")));
        assert!(!may("readAnyDatabase", "d", Find, Collection("d", "c")));
        assert!(!may(
            "readAnyDatabase",
            "admin",
            Find,
            Collection("local", "c")
        ));
        assert!(may(
            "readWriteAnyDatabase",
            "admin",
            Insert,
            Collection("d", "c")
        ));
        assert!(may("clusterMonitor", "admin", ServerStatus, Cluster));
        assert!(!may("clusterMonitor", "admin", Find, Collection("d", "c")));
        assert!(may(
            "clusterMonitor",
            "admin",
            Find,
            Collection("local", "oplog.rs")
        ));
        assert!(may(
            "backup",
            "admin",
            Find,
            Collection("admin", "system.users")
        ));
        assert!(!may("backup", "admin", Insert, Collection("d", "c")));
        assert!(may("restore", "admin", Insert, Collection("d", "c")));
        assert!(!may("restore", "admin", Find, Collection("d", "c")));
        for (action, target) in [
            (Find, Collection("d", "c")),
            (Insert, Collection("d", "c")),
            (Shutdown, Cluster),
            (CreateUser, Database("x")),
            (Validate, Collection("d", "system.js")),
        ] {
            assert!(may("root", "admin", action, target), "{action:?}");
        }
        assert!(!may("root", "admin", Internal, Cluster));
        assert!(may("__system", "local", Internal, Cluster));
    }

    #[test]
    fn a_circle_of_roles_ends() {
        let look_up = |name: &RoleName| {
            let other = if name.role == "a" { "b" } else { "a" };
            Ok::<_, errors::Error>(Some(Role {
                roles: vec![RoleName::new(other, "d"), RoleName::new("read", "d")],
                ..Role::default()
            }))
        };
        let resolved = resolve(&[RoleName::new("a", "d")], look_up).unwrap();
        assert_eq!(resolved.roles.len(), 3);
        assert!(resolved.privileges.allows(Find, Collection("d", "c")));
    }
}
