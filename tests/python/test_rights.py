"""No user touches data without the right, however a command is written.

`PANDO_RIGHTS=100000 PANDO_SEED=7` makes the last test longer, and another.
"""

import contextlib
import os

import bson
import pytest

from auth_client import log_in
from harness import Server, Wire, expect_error
from rights import Doc, attack, encode
from sharded_cluster import ShardedCluster

SEED = int(os.environ.get("PANDO_SEED", "6"))
CASES = int(os.environ.get("PANDO_RIGHTS", "2000"))
KEY = "kGv/HPCbK+fFGd0Zl9l8s0/I2bYZPzY="


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("locked") / "data", "--auth") as server:
        server.client().admin.command("createUser", "root", pwd="p", roles=["root"])
        yield server


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    place = tmp_path_factory.mktemp("routed")
    key = place / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    short = ("--setParameter", "userCacheInvalidationIntervalSecs=1")
    with ShardedCluster(place, options=("--keyFile", key), router_options=short) as cluster:
        with cluster.client() as stranger:
            stranger.admin.command("createUser", "root", pwd="p", roles=["root"])
        yield cluster


@pytest.fixture(params=["locked", "routed"])
def place(request):
    """A server, and a router."""
    found = request.getfixturevalue(request.param)
    return found.routers[0] if isinstance(found, ShardedCluster) else found


@pytest.fixture
def logs(place, request):
    """Clients of all that keep a log of the writes at `place`."""
    with contextlib.ExitStack() as opened:
        if "locked" in request.node.callspec.params.values():
            yield [opened.enter_context(root_of(place))]
        else:
            cluster = request.getfixturevalue("routed")
            member = {"username": "__system", "password": KEY, "authSource": "local"}
            yield [opened.enter_context(s.client(**member)) for s in cluster.servers() if s not in cluster.routers]


def root_of(server):
    return server.client(username="root", password="p", authSource="admin")


@pytest.fixture
def unprivileged(place):
    """A user without any role, whose commands are sent byte by byte."""
    with root_of(place) as root:
        root.admin.command("createUser", "nobody", pwd="p", roles=[])
        with Wire(place.port) as wire:
            log_in(wire, "nobody", "p", "admin")
            yield lambda *fields: wire.raw_command(encode(Doc(fields)))
        root.admin.command("dropUser", "nobody")


def test_a_field_given_twice_makes_no_user_root(place, unprivileged):
    root = Doc([("role", "root"), ("db", "admin")])
    for fields in [
        [("grantRolesToUser", "nobody"), ("roles", []), ("roles", [root])],
        [("aggregate", "system.users"), ("pipeline", [Doc([("$documents", [Doc([("a", 1)])])])]), ("pipeline", []), ("cursor", Doc())],
        [("createUser", "x"), ("pwd", "p"), ("roles", []), ("roles", [root])],
        [("grantPrivilegesToRole", "x"), ("privileges", []), ("privileges", [])],
        [("find", "system.users"), ("find", "mine")],
        [("find", "c"), ("$db", "admin")],
    ]:
        reply = unprivileged(*fields, ("$db", "admin"))
        expect_error(reply, 40413, "IDLDuplicateField")
        assert "is a duplicate field" in reply["errmsg"]
    reply = unprivileged(("explain", Doc([("find", "c"), ("filter", Doc()), ("filter", Doc())])), ("$db", "app"))
    expect_error(reply, 40413)
    assert unprivileged(("connectionStatus", 1), ("$db", "admin"))["authInfo"]["authenticatedUserRoles"] == []


def test_what_is_wrong_with_a_pipeline_comes_before_its_rights(place, unprivileged):
    """As in MongoDB: names of stages and of collections are read first, expressions afterwards."""
    for stages, code in [
        ([{"$nothing": 1}], 40324),
        ([{"$match": {}}, {"$nothing": 1}], 40324),
        ([{"$match": {}, "$limit": 1}], 40323),
        ([1], 14),
        ([{"$lookup": 1}], 9),
        ([{"$lookup": {"from": "a", "pipeline": [{"$nothing": 1}], "as": "x"}}], 40324),
        ([{"$unionWith": {"coll": ""}}], 73),
        ([{"$facet": {"a": 1}}], 40170),
        ([{"$merge": {"into": 1}}], 51178),
        ([{"$out": 1}], 16990),
        ([{"$match": {"$nothing": 1}}], 13),
        ([{"$unionWith": "kept"}], 13),
        ([{"$graphLookup": {"from": "kept", "startWith": {"$nothing": 1}}}], 13),
    ]:
        reply = unprivileged(("aggregate", "c"), ("pipeline", stages), ("cursor", Doc()), ("$db", "app"))
        expect_error(reply, code)
        explained = Doc([("aggregate", "c"), ("pipeline", stages), ("cursor", Doc())])
        expect_error(unprivileged(("explain", explained), ("$db", "app")), code)


def test_options_given_twice_are_refused(locked):
    """The check of a right and the command see the same value."""
    with Wire(locked.port) as wire:
        log_in(wire, "root", "p", "admin")

        def run(*fields):
            return wire.raw_command(encode(Doc([*fields, ("$db", "app")])))

        def stages(*pairs):
            return run(("aggregate", "c"), ("pipeline", [Doc([pairs])]), ("cursor", Doc()))

        assert run(("insert", "c"), ("documents", [Doc([("_id", 1), ("a", 1), ("a", 2)])]))["ok"] == 1, "data may"
        assert run(("find", "c"), ("filter", Doc([("_id", 1), ("_id", 1)])))["cursor"]["firstBatch"], "so may filters"
        role = Doc([("role", "read"), ("db", "app"), ("db", "admin")])
        where = Doc([("db", "app"), ("collection", "a"), ("collection", "b")])
        graph = [("startWith", 1), ("connectFromField", "a"), ("connectToField", "a"), ("as", "x")]
        for reply in [
            stages("$lookup", Doc([("from", "a"), ("from", "b"), ("pipeline", []), ("as", "x")])),
            stages("$graphLookup", Doc([("from", "a"), ("from", "b"), *graph])),
            stages("$unionWith", Doc([("coll", "a"), ("coll", "b")])),
            stages("$out", Doc([("db", "app"), ("coll", "a"), ("coll", "b")])),
            stages("$merge", Doc([("into", "a"), ("into", "b")])),
            stages("$merge", Doc([("into", Doc([("db", "a"), ("db", "b"), ("coll", "c")]))])),
            run(("update", "c"), ("updates", [Doc([("q", Doc()), ("u", Doc()), ("upsert", False), ("upsert", True)])])),
            run(("delete", "c"), ("deletes", [Doc([("q", Doc([("_id", 7)])), ("q", Doc()), ("limit", 0)])])),
            run(("grantRolesToUser", "root"), ("roles", [role])),
            run(("createRole", "r"), ("roles", []), ("privileges", [Doc([("resource", where), ("actions", ["find"])])])),
            run(("mapReduce", "c"), ("map", "function(){}"), ("reduce", "function(){}"), ("out", Doc([("merge", "a"), ("merge", "b")]))),
            run(("usersInfo", Doc([("user", "root"), ("db", "admin"), ("user", "x")]))),
            run(("createIndexes", "c"), ("indexes", [Doc([("key", Doc([("a", 1)])), ("name", "a"), ("name", "b")])])),
        ]:
            expect_error(reply, 40413)


def test_map_reduce_writes_no_other_database(locked):
    with root_of(locked) as root:
        root.app.c.insert_one({"a": 1})
        root.other.kept.insert_one({"_id": 1})
        root.admin.command("createUser", "mapper", pwd="p", roles=[{"role": "readWrite", "db": "app"}])
        with locked.client(username="mapper", password="p", authSource="admin") as client:
            for out in [{"replace": "kept", "db": "other"}, {"db": "other", "merge": "kept"}, {"reduce": "kept", "db": "other"}]:
                with pytest.raises(Exception, match="not authorized"):
                    client.app.command("mapReduce", "c", map="function(){emit(1,1)}", reduce="function(){return 1}", out=out)
            client.app.command("mapReduce", "c", map="function(){emit(1,1)}", reduce="function(){return 1}", out={"replace": "mine"})
        assert root.other.kept.find_one() == {"_id": 1}


def test_a_view_is_changed_by_both_its_halves(locked):
    with root_of(locked) as root:
        root.app.seen.insert_one({"_id": 1})
        root.app.kept.insert_one({"_id": 2})
        root.app.command("create", "window", viewOn="seen", pipeline=[])
        granted = [{"resource": {"db": "app", "collection": c}, "actions": a} for c, a in (("window", ["find", "collMod"]), ("seen", ["find"]))]
        root.admin.command("createRole", "window", privileges=granted, roles=[])
        root.admin.command("createUser", "watcher", pwd="p", roles=["window"])
        with locked.client(username="watcher", password="p", authSource="admin") as client:
            with pytest.raises(Exception, match="Must specify both 'viewOn' and 'pipeline'") as e:
                client.app.command("collMod", "window", pipeline=[{"$unionWith": "kept"}])
            assert e.value.code == 72
            with pytest.raises(Exception, match="not authorized"):
                client.app.command("collMod", "window", viewOn="seen", pipeline=[{"$unionWith": "kept"}])
            client.app.command("collMod", "window", viewOn="seen", pipeline=[{"$match": {}}])
            assert list(client.app.window.find()) == [{"_id": 1}]


def test_a_place_of_bulk_write_is_read_one_way(locked):
    """0.51 as a decimal is 1: the right asked for is that of the collection written."""
    with root_of(locked) as root:
        root.admin.command("createUser", "writer", pwd="p", roles=[{"role": "readWrite", "db": "app"}])
        with Wire(locked.port) as wire:
            log_in(wire, "writer", "p", "admin")
            spaces = [{"ns": "app.c"}, {"ns": "other.kept"}]
            op = {"insert": bson.Decimal128("0.51"), "document": {"_id": "sneaked"}}
            expect_error(wire.command({"bulkWrite": 1, "ops": [op], "nsInfo": spaces, "$db": "admin"}), 13)
        assert root.other.kept.count_documents({"_id": "sneaked"}) == 0


def test_a_cursor_ends_with_the_right_to_it(place):
    with root_of(place) as root:
        root.app.many.insert_many([{"_id": i} for i in range(10)])
        root.admin.command("createUser", "reader", pwd="p", roles=[{"role": "read", "db": "app"}])
        with Wire(place.port) as wire:
            log_in(wire, "reader", "p", "admin")
            opened = wire.command({"find": "many", "batchSize": 2, "$db": "app"})["cursor"]
            assert len(wire.command({"getMore": opened["id"], "collection": "many", "batchSize": 2, "$db": "app"})["cursor"]["nextBatch"]) == 2
            root.admin.command("revokeRolesFromUser", "reader", roles=[{"role": "read", "db": "app"}])
            reply = wire.command({"getMore": opened["id"], "collection": "many", "batchSize": 2, "$db": "app"})
            expect_error(reply, 13)
            assert "not authorized for getMore with cursor id" in reply["errmsg"]
        root.admin.command("dropUser", "reader")


def test_nothing_is_touched_that_is_not_allowed(place, logs):
    with root_of(place) as root:
        found, answered = attack(root, place.port, logs, SEED, CASES)
    assert not found, f"{len(found)} of {CASES} with seed {SEED}: {found[:3]}"
    assert answered > CASES // 25, "hardly a command was answered: the cases test nothing"
