"""What users may do: built-in roles, roles of their own, and what each command needs."""

import pathlib

import pytest
from bson import Binary, Int64
from pymongo.errors import OperationFailure

from harness import refuses

ROOT = {"username": "root", "password": "p", "authSource": "admin"}
MATRIX = pathlib.Path(__file__).with_name("role_matrix.txt")


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    from harness import Server

    with Server(tmp_path_factory.mktemp("locked") / "data", "--auth") as server:
        server.client().admin.command("createUser", "root", pwd="p", roles=["root"])
        yield server


@pytest.fixture(scope="module")
def root(locked):
    with locked.client(**ROOT) as client:
        yield client


@pytest.fixture
def login(locked, root):
    """Makes a user with these roles, and gives the user's client."""
    clients = []

    def log_in(*roles, db="shop"):
        name = f"u{len(clients)}"
        root[db].command("createUser", name, pwd="p", roles=list(roles))
        clients.append(locked.client(username=name, password="p", authSource=db))
        return clients[-1]

    yield log_in
    for client in clients:
        client.close()
    for db in ("shop", "admin"):
        for user in root[db].command("usersInfo")["users"]:
            if user["user"] != "root":
                root[db].command("dropUser", user["user"])
    for db in ("shop", "admin"):
        root[db].command("dropAllRolesFromDatabase")
    root.drop_database("shop")


def may(client, command, db="shop"):
    """Whether authorization lets a command through, whatever becomes of it then."""
    try:
        client[db].command(command)
    except OperationFailure as e:
        if e.code == 13:
            return False
    return True


def test_read_reads_and_no_more(login, root):
    root.shop.things.insert_one({"_id": 1})
    client = login("read")
    assert client.shop.things.find_one() == {"_id": 1}
    assert [c["name"] for c in client.shop.list_collections()] == ["things"]
    for command in [
        {"insert": "things", "documents": [{}]},
        {"update": "things", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
        {"delete": "things", "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": "things", "remove": True},
        {"create": "other"},
        {"drop": "things"},
        {"createIndexes": "things", "indexes": [{"key": {"a": 1}, "name": "a"}]},
        {"aggregate": "things", "pipeline": [{"$out": "other"}], "cursor": {}},
        {"aggregate": "things", "pipeline": [{"$merge": "other"}], "cursor": {}},
        {"find": "system.users"},
    ]:
        assert not may(client, command), command
    assert not may(client, {"find": "things"}, db="other")
    assert root.shop.things.find_one() == {"_id": 1}


def test_stages_read_only_what_their_user_may(login, root):
    root.admin.command("createRole", "one", privileges=[{"resource": {"db": "shop", "collection": "mine"}, "actions": ["find"]}], roles=[])
    client = login({"role": "one", "db": "admin"})
    lookup = {"from": "secret", "localField": "a", "foreignField": "a", "as": "x"}
    for stage in [
        {"$lookup": lookup},
        {"$lookup": {"from": "secret", "pipeline": [], "as": "x"}},
        {"$lookup": {"from": "mine", "pipeline": [{"$unionWith": "secret"}], "as": "x"}},
        {"$graphLookup": {"from": "secret", "startWith": 1, "connectFromField": "a", "connectToField": "a", "as": "x"}},
        {"$unionWith": "secret"},
        {"$unionWith": {"coll": "secret", "pipeline": []}},
        {"$facet": {"a": [{"$lookup": lookup}]}},
    ]:
        assert not may(client, {"aggregate": "mine", "pipeline": [stage], "cursor": {}}), stage
        explained = {"explain": {"aggregate": "mine", "pipeline": [stage], "cursor": {}}}
        assert not may(client, explained), stage
    assert may(client, {"aggregate": "mine", "pipeline": [{"$match": {}}], "cursor": {}})
    assert not may(client, {"find": "secret"}) and not may(client, {"explain": {"find": "secret"}})


def test_a_view_shows_what_it_shows(login, root):
    root.shop.people.insert_one({"_id": 1, "name": "Ann", "salary": 5})
    root.shop.command("create", "names", viewOn="people", pipeline=[{"$project": {"name": 1}}])
    resource = {"db": "shop", "collection": "names"}
    root.admin.command("createRole", "names", privileges=[{"resource": resource, "actions": ["find"]}], roles=[])
    client = login({"role": "names", "db": "admin"})
    assert client.shop["names"].find_one() == {"_id": 1, "name": "Ann"}
    assert not may(client, {"find": "people"})
    # A user that may create collections makes no view over a collection that it may not read.
    maker = {"db": "shop", "collection": "v"}
    root.admin.command("createRole", "maker", privileges=[{"resource": maker, "actions": ["createCollection"]}], roles=[])
    client = login({"role": "maker", "db": "admin"})
    assert not may(client, {"create": "v", "viewOn": "people", "pipeline": []})


def test_upserts_need_inserts(login, root):
    resource = {"db": "shop", "collection": ""}
    root.shop.command("createRole", "updater", privileges=[{"resource": resource, "actions": ["find", "update"]}], roles=[])
    client = login("updater")
    for upsert, allowed in [(False, True), (True, False)]:
        update = {"q": {}, "u": {"$set": {"a": 1}}, "upsert": upsert}
        assert may(client, {"update": "c", "updates": [update]}) == allowed
        assert may(client, {"findAndModify": "c", "update": {"$set": {"a": 1}}, "upsert": upsert}) == allowed
        ops = [{"update": 0, "filter": {}, "updateMods": {"$set": {"a": 1}}, "upsert": upsert}]
        bulk = {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "shop.c"}]}
        assert may(client, bulk, db="admin") == allowed


def test_cursors_belong_to_who_made_them(login, root):
    root.shop.things.insert_many({"_id": i} for i in range(20))
    ann, bob = login("read"), login("read")
    cursor = ann.shop.command("find", "things", batchSize=2)["cursor"]["id"]
    with refuses(13, containing="was not created by the authenticated user"):
        bob.shop.command("getMore", cursor, collection="things")
    with refuses(13):
        bob.shop.command("killCursors", "things", cursors=[cursor])
    assert len(ann.shop.command("getMore", cursor, collection="things", batchSize=3)["cursor"]["nextBatch"]) == 3
    assert root.shop.command("killCursors", "things", cursors=[cursor])["cursorsKilled"] == [cursor]


def test_names_of_what_one_may_see(login, root):
    root.shop.things.insert_one({})
    root.other.things.insert_one({})
    client = login("read")
    assert client.list_database_names() == ["shop"]
    with refuses(13):
        client.admin.command("listDatabases", authorizedDatabases=False)
    resource = {"db": "shop", "collection": "mine"}
    root.shop.mine.insert_one({})
    root.shop.command("createRole", "mine", privileges=[{"resource": resource, "actions": ["find"]}], roles=[])
    client = login("mine")
    assert not may(client, {"listCollections": 1})
    assert client.shop.list_collection_names(authorizedCollections=True, nameOnly=True) == ["mine"]
    root.drop_database("other")


def test_no_user_grants_what_it_lacks(login, root):
    admin_of_shop = login("userAdmin")
    assert may(admin_of_shop, {"createUser": "x", "pwd": "p", "roles": ["readWrite"]})
    assert not may(admin_of_shop, {"createUser": "y", "pwd": "p", "roles": [{"role": "root", "db": "admin"}]})
    assert not may(admin_of_shop, {"grantRolesToUser": "x", "roles": [{"role": "read", "db": "other"}]})
    far = {"resource": {"db": "other", "collection": ""}, "actions": ["find"]}
    assert not may(admin_of_shop, {"createRole": "r", "privileges": [far], "roles": []})
    client = login("readWrite")
    assert not may(client, {"createUser": "z", "pwd": "p", "roles": []})
    assert not may(client, {"usersInfo": 1}) and may(client, {"usersInfo": "u1"})


def test_one_changes_ones_own_password_where_allowed(login, root, locked):
    resource = {"db": "shop", "collection": ""}
    root.shop.command("createRole", "own", privileges=[{"resource": resource, "actions": ["changeOwnPassword"]}], roles=[])
    client = login("own")
    assert may(client, {"updateUser": "u0", "pwd": "new"})
    assert not may(client, {"updateUser": "root", "pwd": "new"}, db="admin")
    with locked.client(username="u0", password="new", authSource="shop") as again:
        assert not may(again, {"find": "things"})


def test_roles_of_roles(login, root):
    shop = root.shop
    shop.command("createRole", "inner", privileges=[], roles=["read"])
    shop.command("createRole", "outer", privileges=[], roles=["inner"])
    client = login("outer")
    assert may(client, {"find": "c"}) and not may(client, {"insert": "c", "documents": [{}]})
    [shown] = shop.command("rolesInfo", "outer", showPrivileges=True)["roles"]
    assert shown["roles"] == [{"role": "inner", "db": "shop"}] and shown["isBuiltin"] is False
    assert shown["inheritedRoles"] == [{"role": "inner", "db": "shop"}, {"role": "read", "db": "shop"}]
    assert any("find" in p["actions"] for p in shown["inheritedPrivileges"])
    with refuses(containing="cycle", code=49):
        shop.command("grantRolesToRole", "inner", roles=["outer"])
    shop.command("grantRolesToRole", "inner", roles=["readWrite"])
    assert may(client, {"insert": "c", "documents": [{}]})
    shop.command("revokeRolesFromRole", "inner", roles=["readWrite", "read"])
    assert not may(client, {"find": "c"})
    resource = {"db": "shop", "collection": "c"}
    shop.command("grantPrivilegesToRole", "inner", privileges=[{"resource": resource, "actions": ["find", "insert"]}])
    assert may(client, {"find": "c"}) and not may(client, {"find": "d"})
    shop.command("revokePrivilegesFromRole", "inner", privileges=[{"resource": resource, "actions": ["find"]}])
    assert not may(client, {"find": "c"}) and may(client, {"insert": "c", "documents": [{}]})
    shop.command("updateRole", "outer", roles=["dbAdmin"])
    assert may(client, {"collMod": "c"}) and not may(client, {"insert": "c", "documents": [{}]})
    shop.command("dropRole", "outer")
    assert not may(client, {"collMod": "c"})
    assert shop.command("usersInfo", "u0")["users"][0]["roles"] == []


@pytest.mark.parametrize(
    "command, code",
    [
        ({"createRole": "read", "privileges": [], "roles": []}, 2),
        ({"createRole": "", "privileges": [], "roles": []}, 2),
        ({"createRole": "r", "privileges": []}, 40414),
        ({"createRole": "r", "privileges": [{"resource": {"cluster": True}, "actions": ["serverStatus"]}], "roles": []}, 49),
        ({"createRole": "r", "privileges": [], "roles": [{"role": "read", "db": "other"}]}, 49),
        ({"createRole": "r", "privileges": [], "roles": ["nosuch"]}, 31),
        ({"createRole": "r", "privileges": [{"resource": {"db": "shop", "collection": ""}, "actions": ["fly"]}], "roles": []}, 2),
        ({"createRole": "r", "privileges": [{"resource": {}, "actions": []}], "roles": []}, 2),
        ({"updateRole": "nosuch", "roles": []}, 31),
        ({"updateRole": "read", "roles": []}, 49),
        ({"dropRole": "nosuch"}, 31),
        ({"dropRole": "root"}, 31),
        ({"rolesInfo": True}, 2),
    ],
)
def test_what_roles_are_refused(root, command, code):
    with refuses(code):
        root.shop.command(command)


def test_built_in_roles_are_shown(root):
    shown = root.shop.command("rolesInfo", 1, showBuiltinRoles=True, showPrivileges=True)["roles"]
    assert {r["role"] for r in shown} >= {"read", "readWrite", "dbAdmin", "dbOwner", "userAdmin"}
    assert all(r["isBuiltin"] for r in shown) and "root" not in {r["role"] for r in shown}
    [read] = root.shop.command("rolesInfo", "read", showPrivileges=True)["roles"]
    assert read["privileges"][0]["resource"] == {"db": "shop", "collection": ""}
    assert "find" in read["privileges"][0]["actions"] and "insert" not in read["privileges"][0]["actions"]


ROLES = [
    *("read", "readWrite", "dbAdmin", "userAdmin", "dbOwner"),
    "enableSharding",
    *("readAnyDatabase", "readWriteAnyDatabase", "dbAdminAnyDatabase", "userAdminAnyDatabase"),
    *("clusterMonitor", "clusterManager", "hostManager", "clusterAdmin", "backup", "restore", "root"),
]
# Not run: what would end or block the server, or leave it another one.
UNSAFE = {"shutdown", "fsync", "logRotate", "pandoBackup", "replSetInitiate", "setUserWriteBlockMode", "logout", "autoCompact"}
FORMS = {
    "analyzeShardKey": {"analyzeShardKey": "shop.c"},
    "configureQueryAnalyzer": {"configureQueryAnalyzer": "shop.c"},
    "aggregate": {"aggregate": "c", "pipeline": [], "cursor": {}},
    "bulkWrite": {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "shop.c"}]},
    "createUser": {"createUser": "new", "pwd": "p", "roles": ["nosuch"]},
    "createRole": {"createRole": "new", "privileges": [], "roles": ["nosuch"]},
    "currentOp": {"currentOp": 1},
    "dropDatabase": {"dropDatabase": 1, "nosuch": 1},
    "explain": {"explain": {"find": "c"}},
    "findAndModify": {"findAndModify": "c", "update": {}},
    "grantRolesToUser": {"grantRolesToUser": "nosuch", "roles": ["read"]},
    "revokeRolesFromUser": {"revokeRolesFromUser": "nosuch", "roles": ["read"]},
    "grantRolesToRole": {"grantRolesToRole": "nosuch", "roles": ["read"]},
    "revokeRolesFromRole": {"revokeRolesFromRole": "nosuch", "roles": ["read"]},
    "grantPrivilegesToRole": {"grantPrivilegesToRole": "nosuch", "privileges": [{"resource": {"db": "shop", "collection": ""}, "actions": []}]},
    "revokePrivilegesFromRole": {"revokePrivilegesFromRole": "nosuch", "privileges": [{"resource": {"db": "shop", "collection": ""}, "actions": []}]},
    "updateUser": {"updateUser": "nosuch", "pwd": "p"},
    "killOp": {"killOp": 1, "op": 2**30},
    "profile": {"profile": 0},
    "renameCollection": {"renameCollection": "shop.c", "to": "shop.d"},
    "dataSize": {"dataSize": "shop.c"},
    "cloneCollectionAsCapped": {"cloneCollectionAsCapped": "c", "toCollection": "d"},
    "mapReduce": {"mapReduce": "c", "map": "f", "reduce": "f", "out": {"inline": 1}},
    "filemd5": {"filemd5": 1},
    "usersInfo": {"usersInfo": 1},
    "rolesInfo": {"rolesInfo": 1},
}
# Taken by the first value: a collection.
PLAIN = {"usersInfo", "rolesInfo", "listCollections", "listDatabases", "ping", "hello"}


def test_every_command_times_every_built_in_role(locked, root):
    """Compared with the table beside this file; PANDO_REFRESH=1 writes it anew."""
    import os

    commands = sorted(root.admin.command("listCommands")["commands"])
    flags = root.admin.command("listCommands")["commands"]
    lines = {}
    for role in ROLES:
        db = "shop" if role in ROLES[:5] else "admin"
        root.admin.command("createUser", f"as_{role}", pwd="p", roles=[{"role": role, "db": db}])
        with locked.client(username=f"as_{role}", password="p") as client:
            for name in commands:
                if name in UNSAFE:
                    continue
                form = FORMS.get(name) or {name: "c" if flags[name].get("adminOnly") is not True else 1}
                # An unknown field ends permitted commands before they do anything.
                form = {**form, "$pandoNothing": 1} if name not in ("explain",) else form
                where = "admin" if flags[name].get("adminOnly") else "shop"
                lines.setdefault(name, []).append("+" if may(client, form, db=where) else "-")
        root.admin.command("dropUser", f"as_{role}")
    text = "".join(f"{name:34}{' '.join(marks)}\n" for name, marks in sorted(lines.items()))
    head = "# + the command is let through, - it is refused; columns:\n" + "".join(f"#   {r}\n" for r in ROLES)
    if os.environ.get("PANDO_REFRESH"):
        MATRIX.write_text(head + text)
    assert MATRIX.read_text() == head + text


# Invalid arguments of these, so that a permitted command fails with another error, and nothing happens.
MALFORMED = {
    "shutdown": {"shutdown": 1, "timeoutSecs": "soon"},
    "fsync": {"fsync": 1, "lock": "maybe"},
    "logRotate": {"logRotate": {"a": 1}},
    "pandoBackup": {"pandoBackup": 1, "path": 5},
    "replSetInitiate": {"replSetInitiate": "x"},
    "setUserWriteBlockMode": {"setUserWriteBlockMode": 1, "global": "x"},
    "autoCompact": {"autoCompact": "x"},
}
MAY = {
    "shutdown": {"hostManager", "clusterAdmin", "root"},
    "fsync": {"hostManager", "clusterAdmin", "root"},
    "logRotate": {"hostManager", "clusterAdmin", "root"},
    "pandoBackup": {"root"},
    "replSetInitiate": {"clusterManager", "clusterAdmin", "root"},
    "setUserWriteBlockMode": {"backup", "restore", "root"},
    "autoCompact": {"hostManager", "clusterAdmin", "root"},
}


def test_who_may_run_what_would_end_the_server_or_change_it(locked, root):
    """The commands that the matrix leaves out, and logout, which every user may run."""
    assert UNSAFE == {*MALFORMED, "logout"}
    found = {name: set() for name in MALFORMED}
    for role in ROLES:
        db = "shop" if role in ROLES[:5] else "admin"
        root.admin.command("createUser", f"as_{role}", pwd="p", roles=[{"role": role, "db": db}])
        with locked.client(username=f"as_{role}", password="p") as client:
            for name, form in MALFORMED.items():
                try:
                    client.admin.command(form)
                    raise AssertionError(f"{name} has run")
                except OperationFailure as e:
                    if e.code != 13:
                        found[name].add(role)
            assert client.admin.command("logout")["ok"] == 1
        root.admin.command("dropUser", f"as_{role}")
    assert found == MAY
    assert locked.running() and root.admin.command("ping")["ok"] == 1


# All that a client may ask before it has logged in. None of them reads or changes data, or tells of any.
BEFORE_LOGIN = set(
    "authenticate buildInfo connectionStatus endSessions features getLastError getnonce hello isMaster listCommands logout ping saslContinue"
    " saslStart whatsmyuri".split()
)


def test_nothing_runs_before_login(locked, root):
    root.shop.c.insert_one({"_id": 1})
    commands = root.admin.command("listCommands")["commands"]
    let_through = set()
    with locked.client() as stranger:
        for name, shown in commands.items():
            where = "admin" if shown.get("adminOnly") else "shop"
            form = FORMS.get(name) or MALFORMED.get(name) or {name: 1 if shown.get("adminOnly") else "c"}
            if may(stranger, form, db=where):
                let_through.add(name)
        # Nor does a session, an old way of asking, or a command in another bring one in.
        for command in ({"find": "c", "lsid": {"id": Binary(b"x" * 16, 4)}}, {"explain": {"find": "c"}}, {"getMore": Int64(1), "collection": "c"}):
            assert not may(stranger, command), command
    assert let_through == BEFORE_LOGIN
    assert root.shop.c.find_one() == {"_id": 1}


def test_a_pipeline_within_another_tells_no_more_than_alone(locked, root):
    """One of no collection may only bring its documents along: no right is asked for what else it would tell."""
    root.admin.command("createUser", "curious", pwd="p", roles=[])
    root.t.things.insert_one({})
    with locked.client(username="curious", password="p", authSource="admin") as client:
        for stage in ("$currentOp", "$listLocalSessions"):
            told = {stage: {"allUsers": True}}
            with refuses(13):
                list(client.admin.aggregate([told]))
            for pipeline in ([told], [told, {"$documents": []}], [told, {"$limit": 1}]):
                for outer in ({"$unionWith": {"pipeline": pipeline}}, {"$lookup": {"pipeline": pipeline, "as": "told"}}):
                    with refuses(9):
                        list(client.admin.aggregate([{"$documents": [{}]}, outer]))
        with refuses(9, containing="must have a pipeline with $documents as first stage"):
            list(client.admin.aggregate([{"$documents": [{}]}, {"$unionWith": {"pipeline": []}}]))
        brought = {"$unionWith": {"pipeline": [{"$documents": [{"a": 2}]}]}}
        assert list(client.admin.aggregate([{"$documents": [{"a": 1}]}, brought])) == [{"a": 1}, {"a": 2}]
