//! What may be done: MongoDB's privilege actions, and sets of them.

use bson::Doc;
use errors::{Fallible, bail};
use std::fmt;

macro_rules! actions {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// An action that a privilege can allow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Action { $($variant),* }

        impl Action {
            /// All, in the order of their names.
            pub const ALL: &[Action] = &[$(Action::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Action::$variant => $name),* }
            }

            pub fn named(name: &str) -> Option<Action> {
                match name { $($name => Some(Action::$variant),)* _ => None }
            }
        }
    };
}

actions! {
    AddShard = "addShard",
    AnalyzeShardKey = "analyzeShardKey",
    AnyAction = "anyAction",
    AppendOplogNote = "appendOplogNote",
    ApplicationMessage = "applicationMessage",
    ApplyOps = "applyOps",
    AuditConfigure = "auditConfigure",
    AuditLogRotate = "auditLogRotate",
    AuthCheck = "authCheck",
    AuthSchemaUpgrade = "authSchemaUpgrade",
    BypassDefaultMaxTimeMs = "bypassDefaultMaxTimeMS",
    BypassDocumentValidation = "bypassDocumentValidation",
    BypassWriteBlockingMode = "bypassWriteBlockingMode",
    ChangeCustomData = "changeCustomData",
    ChangeOwnCustomData = "changeOwnCustomData",
    ChangeOwnPassword = "changeOwnPassword",
    ChangePassword = "changePassword",
    ChangeStream = "changeStream",
    CheckMetadataConsistency = "checkMetadataConsistency",
    CleanupOrphaned = "cleanupOrphaned",
    CleanupStructuredEncryptionData = "cleanupStructuredEncryptionData",
    ClearJumboFlag = "clearJumboFlag",
    CloseAllDatabases = "closeAllDatabases",
    CollMod = "collMod",
    CollStats = "collStats",
    Compact = "compact",
    CompactStructuredEncryptionData = "compactStructuredEncryptionData",
    ConnPoolStats = "connPoolStats",
    ConnPoolSync = "connPoolSync",
    ConvertToCapped = "convertToCapped",
    CpuProfiler = "cpuProfiler",
    CreateCollection = "createCollection",
    CreateDatabase = "createDatabase",
    CreateIndex = "createIndex",
    CreateRole = "createRole",
    CreateSearchIndexes = "createSearchIndexes",
    CreateUser = "createUser",
    DbCheck = "dbCheck",
    DbHash = "dbHash",
    DbStats = "dbStats",
    DropCollection = "dropCollection",
    DropConnections = "dropConnections",
    DropDatabase = "dropDatabase",
    DropIndex = "dropIndex",
    DropRole = "dropRole",
    DropSearchIndex = "dropSearchIndex",
    DropUser = "dropUser",
    EnableProfiler = "enableProfiler",
    EnableSharding = "enableSharding",
    Find = "find",
    FlushRouterConfig = "flushRouterConfig",
    ForceUuid = "forceUUID",
    Fsync = "fsync",
    GetClusterParameter = "getClusterParameter",
    GetCmdLineOpts = "getCmdLineOpts",
    GetDefaultRwConcern = "getDefaultRWConcern",
    GetLog = "getLog",
    GetParameter = "getParameter",
    GetShardMap = "getShardMap",
    GetShardVersion = "getShardVersion",
    GrantRole = "grantRole",
    HostInfo = "hostInfo",
    Impersonate = "impersonate",
    IndexStats = "indexStats",
    Inprog = "inprog",
    Insert = "insert",
    Internal = "internal",
    InvalidateUserCache = "invalidateUserCache",
    IssueDirectShardOperations = "issueDirectShardOperations",
    KillAnyCursor = "killAnyCursor",
    KillAnySession = "killAnySession",
    KillCursors = "killCursors",
    Killop = "killop",
    ListCachedAndActiveUsers = "listCachedAndActiveUsers",
    ListClusterCatalog = "listClusterCatalog",
    ListCollections = "listCollections",
    ListCursors = "listCursors",
    ListDatabases = "listDatabases",
    ListIndexes = "listIndexes",
    ListSampledQueries = "listSampledQueries",
    ListSearchIndexes = "listSearchIndexes",
    ListSessions = "listSessions",
    ListShards = "listShards",
    LogRotate = "logRotate",
    MoveChunk = "moveChunk",
    MoveCollection = "moveCollection",
    OidReset = "oidReset",
    OperationMetrics = "operationMetrics",
    PerformRawDataOperations = "performRawDataOperations",
    PlanCacheIndexFilter = "planCacheIndexFilter",
    PlanCacheRead = "planCacheRead",
    PlanCacheWrite = "planCacheWrite",
    QuerySettings = "querySettings",
    QueryStatsRead = "queryStatsRead",
    QueryStatsReadTransformed = "queryStatsReadTransformed",
    ReIndex = "reIndex",
    RefineCollectionShardKey = "refineCollectionShardKey",
    Remove = "remove",
    RemoveShard = "removeShard",
    RenameCollection = "renameCollection",
    RenameCollectionSameDb = "renameCollectionSameDB",
    ReplSetConfigure = "replSetConfigure",
    ReplSetGetConfig = "replSetGetConfig",
    ReplSetGetStatus = "replSetGetStatus",
    ReplSetHeartbeat = "replSetHeartbeat",
    ReplSetReconfig = "replSetReconfig",
    ReplSetResizeOplog = "replSetResizeOplog",
    ReplSetStateChange = "replSetStateChange",
    ReshardCollection = "reshardCollection",
    Resync = "resync",
    RevokeRole = "revokeRole",
    RotateCertificates = "rotateCertificates",
    ServerStatus = "serverStatus",
    SetAuthenticationRestriction = "setAuthenticationRestriction",
    SetClusterParameter = "setClusterParameter",
    SetDefaultRwConcern = "setDefaultRWConcern",
    SetFeatureCompatibilityVersion = "setFeatureCompatibilityVersion",
    SetParameter = "setParameter",
    SetUserWriteBlockMode = "setUserWriteBlockMode",
    ShardedDataDistribution = "shardedDataDistribution",
    ShardingState = "shardingState",
    Shutdown = "shutdown",
    SplitChunk = "splitChunk",
    SplitVector = "splitVector",
    StorageDetails = "storageDetails",
    Top = "top",
    Touch = "touch",
    TransitionFromDedicatedConfigServer = "transitionFromDedicatedConfigServer",
    TransitionToDedicatedConfigServer = "transitionToDedicatedConfigServer",
    TrafficRecord = "trafficRecord",
    Unlock = "unlock",
    UnshardCollection = "unshardCollection",
    Update = "update",
    UpdateSearchIndex = "updateSearchIndex",
    UseTenant = "useTenant",
    UseUuid = "useUUID",
    Validate = "validate",
    ViewRole = "viewRole",
    ViewUser = "viewUser",
}

/// A set of actions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Actions([u64; 3]);

impl Actions {
    pub const NONE: Actions = Actions([0; 3]);
    pub const ALL: Actions = Actions([u64::MAX; 3]);

    pub const fn of(list: &[Action]) -> Actions {
        let mut set = Actions::NONE;
        let mut i = 0;
        while i < list.len() {
            let bit = list[i] as usize;
            set.0[bit / 64] |= 1 << (bit % 64);
            i += 1;
        }
        set
    }

    pub const fn and(self, other: Actions) -> Actions {
        let (a, b) = (self.0, other.0);
        Actions([a[0] | b[0], a[1] | b[1], a[2] | b[2]])
    }

    pub fn without(self, other: Actions) -> Actions {
        let (a, b) = (self.0, other.0);
        Actions([a[0] & !b[0], a[1] & !b[1], a[2] & !b[2]])
    }

    #[inline]
    pub fn has(self, action: Action) -> bool {
        let bit = action as usize;
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }

    pub fn has_all(self, other: Actions) -> bool {
        other.without(self) == Actions::NONE
    }

    pub fn is_empty(self) -> bool {
        self == Actions::NONE
    }

    /// In the order of their names; `anyAction` alone where it is among them.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        let any = self.has(Action::AnyAction);
        let shown = move |a: &Action| self.has(*a) && (!any || *a == Action::AnyAction);
        Action::ALL.iter().copied().filter(shown)
    }

    /// A list of names; those that are no action are given back.
    pub fn parse(list: Doc<'_>) -> Fallible<(Actions, Vec<String>)> {
        let (mut set, mut unknown) = (Actions::NONE, Vec::new());
        for v in list.values() {
            let Some(name) = v.as_str() else {
                bail!(BadValue, "Actions of a privilege must be strings");
            };
            match Action::named(name) {
                Some(Action::AnyAction) => set = Actions::ALL,
                Some(action) => set = set.and(Actions::of(&[action])),
                None => unknown.push(name.to_string()),
            }
        }
        Ok((set, unknown))
    }
}

impl fmt::Debug for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(Action::name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set = Actions::of(&[Action::Find, Action::ViewUser, Action::AddShard]);
        let names: Vec<_> = set.iter().map(Action::name).collect();
        assert_eq!(names, ["addShard", "find", "viewUser"]);
        assert!(set.has(Action::Find) && !set.has(Action::Insert));
        assert!(Actions::ALL.has_all(set) && !set.has_all(Actions::ALL));
        assert!(set.without(set).is_empty());
        assert!(Action::ALL.len() <= 192, "a bit for each");
        for a in Action::ALL {
            assert_eq!(Action::named(a.name()), Some(*a));
        }
    }
}
