"""The built-in roles' privileges, compared with what MongoDB's manual (8.0, Built-In Roles) lists for each.

Each documented action must be there. What the server grants beyond the manual's lists, as MongoDB's own
server does (the manual leaves out internal and new actions, and speaks of some resources in prose), stands in
documented_roles_beyond.txt.
"""

import os
import pathlib

import pytest

BEYOND = pathlib.Path(__file__).with_name("documented_roles_beyond.txt")

READ = "changeStream collStats dbHash dbStats find killCursors listCollections listIndexes listSearchIndexes"
READ_WRITE = READ + (
    " convertToCapped createCollection createIndex createSearchIndexes dropCollection dropIndex dropSearchIndex insert remove"
    " renameCollectionSameDB update updateSearchIndex"
)
DB_ADMIN = (
    "bypassDocumentValidation collMod collStats compact convertToCapped createCollection createIndex createSearchIndexes dbStats dropCollection"
    " dropDatabase dropIndex dropSearchIndex enableProfiler listCollections listIndexes listSearchIndexes planCacheIndexFilter planCacheRead"
    " planCacheWrite reIndex renameCollectionSameDB updateSearchIndex validate"
)
PROFILE = (
    "changeStream collStats convertToCapped createCollection dbHash dbStats dropCollection find killCursors listCollections listIndexes"
    " listSearchIndexes planCacheRead"
)
USER_ADMIN = (
    "changeCustomData changePassword createRole createUser dropRole dropUser grantRole revokeRole setAuthenticationRestriction viewRole viewUser"
)
LOCAL_READ = "collStats dbHash dbStats find killCursors listCollections listIndexes planCacheRead"
USERS = "collStats createIndex createSearchIndexes dbHash dbStats dropIndex dropSearchIndex find killCursors planCacheRead"
RESTORED = "bypassDocumentValidation collMod createCollection createIndex dropCollection insert updateSearchIndex"

# (database, collection) of the resource; "cluster" for the cluster, "any" for any resource.
SHOP, ALL = ("shop", ""), ("", "")
DOCUMENTED = {
    "read": {SHOP: READ},
    "readWrite": {SHOP: READ_WRITE, ("shop", "system.js"): READ_WRITE},
    "dbAdmin": {SHOP: DB_ADMIN, ("shop", "system.profile"): PROFILE},
    "userAdmin": {SHOP: USER_ADMIN},
    "dbOwner": {SHOP: f"{READ_WRITE} {DB_ADMIN} {USER_ADMIN}"},
    "readAnyDatabase": {ALL: READ, "cluster": "listDatabases"},
    "readWriteAnyDatabase": {ALL: READ_WRITE, "cluster": "listDatabases"},
    "dbAdminAnyDatabase": {ALL: DB_ADMIN, "cluster": "listDatabases applyOps"},
    "userAdminAnyDatabase": {
        ALL: USER_ADMIN,
        "cluster": "authSchemaUpgrade invalidateUserCache listDatabases",
        ("admin", "system.users"): USERS,
        ("admin", "system.roles"): USERS,
    },
    "clusterManager": {
        "cluster": "addShard appendOplogNote applicationMessage checkMetadataConsistency cleanupOrphaned flushRouterConfig getClusterParameter"
        " getDefaultRWConcern listSessions listShards moveCollection removeShard replSetConfigure replSetGetConfig replSetGetStatus"
        " replSetStateChange resync setClusterParameter setDefaultRWConcern setFeatureCompatibilityVersion"
        " transitionFromDedicatedConfigServer transitionToDedicatedConfigServer unshardCollection",
        ALL: "analyzeShardKey clearJumboFlag enableSharding moveChunk refineCollectionShardKey reshardCollection",
        ("config", ""): f"{LOCAL_READ} enableSharding insert listSearchIndexes moveChunk remove update",
        ("config", "system.js"): f"{LOCAL_READ} listSearchIndexes",
        ("local", ""): "enableSharding insert moveChunk remove update",
        ("local", "system.replset"): f"{LOCAL_READ} listSearchIndexes",
    },
    "clusterMonitor": {
        "cluster": "connPoolStats getCmdLineOpts getDefaultRWConcern getLog getParameter getShardMap hostInfo inprog listClusterCatalog"
        " listDatabases listSessions listShards replSetGetConfig replSetGetStatus serverStatus shardingState top",
        ALL: "collStats dbStats indexStats useUUID",
        ("", "system.profile"): "find",
        ("config", ""): f"{LOCAL_READ} indexStats listSearchIndexes",
        ("config", "system.js"): LOCAL_READ,
        ("local", ""): f"{LOCAL_READ} indexStats listSearchIndexes",
        ("local", "system.js"): f"{LOCAL_READ} listSearchIndexes",
        ("local", "system.replset"): "find",
        ("local", "system.profile"): "find",
    },
    "enableSharding": {ALL: "analyzeShardKey enableSharding moveCollection refineCollectionShardKey reshardCollection unshardCollection"},
    "hostManager": {
        "cluster": "applicationMessage closeAllDatabases compact connPoolSync flushRouterConfig fsync invalidateUserCache killAnyCursor"
        " killAnySession killop logRotate oidReset resync rotateCertificates setParameter shutdown touch unlock",
        ALL: "killCursors",
    },
    "backup": {
        "cluster": "appendOplogNote getParameter listDatabases serverStatus setUserWriteBlockMode",
        "any": "listDatabases listCollections listIndexes listSearchIndexes",
        ALL: "find",
        ("config", ""): "find",
        ("local", ""): "find",
        ("", "system.js"): "find",
        ("", "system.profile"): "find",
        ("admin", "system.users"): "find",
        ("admin", "system.roles"): "find",
        ("config", "settings"): "find insert update",
    },
    "restore": {
        "cluster": "getParameter bypassWriteBlockingMode setUserWriteBlockMode",
        "any": "listCollections",
        ALL: f"{RESTORED} changeCustomData changePassword convertToCapped createRole createSearchIndexes createUser dropRole dropUser grantRole"
        " revokeRole viewRole viewUser",
        ("", "system.js"): RESTORED,
        ("config", ""): RESTORED,
        ("local", ""): RESTORED,
        ("admin", "system.version"): f"{RESTORED} find",
        ("admin", "system.roles"): "createIndex",
        ("admin", "system.users"): f"{RESTORED} find remove update",
        ("", "system.views"): "dropCollection",
    },
}

def place(resource):
    if resource.get("cluster"):
        return "cluster"
    return "any" if resource.get("anyResource") else (resource["db"], resource["collection"])


def granted(client, role):
    db = "shop" if role in ("read", "readWrite", "dbAdmin", "userAdmin", "dbOwner") else "admin"
    [shown] = client[db].command("rolesInfo", role, showPrivileges=True)["roles"]
    return {place(p["resource"]): set(p["actions"]) for p in shown["inheritedPrivileges"]}


@pytest.mark.parametrize("role", DOCUMENTED)
def test_what_the_manual_lists_is_granted(client, role):
    has = granted(client, role)
    missing = {}
    for where, actions in DOCUMENTED[role].items():
        # A collection of that name in any database is one in this.
        wider = has.get(("", where[1]), set()) if where != "cluster" and where != "any" and where[1] else set()
        lacks = set(actions.split()) - has.get(where, set()) - has.get("any", set()) - wider
        if lacks:
            missing[where] = sorted(lacks)
    assert missing == {}


def written(where):
    return where if isinstance(where, str) else f"{where[0] or '*'}.{where[1] or '*'}"


def test_no_more_is_granted_than_is_known(client):
    """What goes beyond the manual's lists stands in the table beside this file; PANDO_REFRESH=1 writes it anew."""
    lines = []
    for role in DOCUMENTED:
        for where, actions in granted(client, role).items():
            extra = actions - set(DOCUMENTED[role].get(where, "").split())
            if extra:
                lines.append(f"{role} {written(where)}: {' '.join(sorted(extra))}\n")
    text = "".join(sorted(lines))
    if os.environ.get("PANDO_REFRESH"):
        BEYOND.write_text(text)
    assert BEYOND.read_text() == text
