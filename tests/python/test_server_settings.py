"""Settings of the whole server that survive a restart: default concerns, the user write block, cluster
parameters; and `validate`."""

import json

import pytest
from pymongo.errors import OperationFailure

from harness import refuses


def test_default_concerns(new_server):
    server = new_server()
    with server.client() as client:
        admin = client.admin
        before = admin.command("getDefaultRWConcern")
        assert before["defaultWriteConcernSource"] == "implicit" and before["defaultWriteConcern"]["w"] == "majority"
        reply = admin.command(
            "setDefaultRWConcern", 1, defaultReadConcern={"level": "majority"}, defaultWriteConcern={"w": 1, "wtimeout": 50}
        )
        assert reply["defaultWriteConcern"] == {"w": 1, "wtimeout": 50} and reply["defaultReadConcernSource"] == "global"
        for command, code in [
            ({}, 2),
            ({"defaultWriteConcern": {"w": 0}}, 2),
            ({"defaultWriteConcern": {"w": "nobody"}}, 79),
            ({"defaultWriteConcern": {}}, 20),
            ({"defaultReadConcern": {"level": "snapshot"}}, 2),
        ]:
            with refuses(code):
                admin.command("setDefaultRWConcern", 1, **command)
        client.t.c.insert_one({"_id": 1})
    server.restart()
    with server.client() as client:
        after = client.admin.command("getDefaultRWConcern")
        assert after["defaultWriteConcern"] == {"w": 1, "wtimeout": 50}
        assert after["defaultReadConcern"] == {"level": "majority"} and after["updateOpTime"] == reply["updateOpTime"]
        client.admin.command("setDefaultRWConcern", 1, defaultReadConcern={})
        assert client.admin.command("getDefaultRWConcern")["defaultReadConcernSource"] == "implicit"
        assert client.t.c.count_documents({}) == 1


def test_user_write_block(new_server):
    server = new_server()
    with server.client() as client:
        client.t.c.insert_one({"_id": 1})
        client.admin.command("setUserWriteBlockMode", 1, **{"global": True})
    server.restart()
    with server.client() as client:
        c = client.t.c
        for write in [
            lambda: c.insert_one({}),
            lambda: c.update_one({}, {"$set": {"a": 1}}),
            lambda: c.delete_one({}),
            lambda: c.create_index("a"),
            lambda: c.drop(),
            lambda: list(c.aggregate([{"$out": "d"}])),
        ]:
            with pytest.raises(OperationFailure) as raised:
                write()
            assert raised.value.code == 371
        assert list(c.find()) == [{"_id": 1}] == list(c.aggregate([{"$match": {}}]))
        with refuses(20):
            client.admin.command("setUserWriteBlockMode", 1, reason="DiskUseThresholdExceeded", **{"global": False})
        client.admin.command("setUserWriteBlockMode", 1, **{"global": False})
        c.insert_one({"_id": 2})


def test_cluster_parameters(new_server):
    server = new_server()
    with server.client() as client:
        client.admin.command("setClusterParameter", {"changeStreams": {"expireAfterSeconds": 60}})
        with refuses(4):
            client.admin.command("setClusterParameter", {"nope": {}})
    server.restart()
    with server.client() as client:
        (shown,) = client.admin.command("getClusterParameter", "changeStreams")["clusterParameters"]
        assert shown["_id"] == "changeStreams" and shown["expireAfterSeconds"] == 60
        assert len(client.admin.command("getClusterParameter", "*")["clusterParameters"]) > 1


def test_validate_agrees(db):
    db.c.insert_many([{"_id": i, "a": i % 7, "tags": [i, i + 1], "p": i} for i in range(500)])
    db.c.create_index("a")
    db.c.create_index("tags")
    db.c.create_index("p", partialFilterExpression={"p": {"$gte": 250}})
    db.c.create_index("s", sparse=True)
    db.c.update_many({"a": 3}, {"$set": {"tags": [0]}})
    db.c.delete_many({"a": 5})
    reply = db.command("validate", "c", full=True)
    n = db.c.count_documents({})
    assert reply["valid"] is True and reply["nrecords"] == n and reply["errors"] == reply["warnings"] == []
    keys = reply["keysPerIndex"]
    assert (keys["_id_"], keys["a_1"], keys["s_1"]) == (n, n, 0)
    assert keys["p_1"] == db.c.count_documents({"p": {"$gte": 250}})
    assert reply["missingIndexEntries"] == reply["extraIndexEntries"] == reply["corruptRecords"] == []
    assert all(d["valid"] for d in reply["indexDetails"].values())


def test_feature_compatibility_version(new_server):
    server = new_server()
    with server.client() as client:
        admin = client.admin

        def version():
            return admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]

        assert version() == {"version": "8.0"}
        for value, more, code in [("8.2", {}, 7369100), ("8.2", {"confirm": False}, 7369100), ("7.5", {"confirm": True}, 4926900)]:
            with refuses(code):
                admin.command("setFeatureCompatibilityVersion", value, **more)
        assert version() == {"version": "8.0"}
        admin.command("setFeatureCompatibilityVersion", "8.2", confirm=True)
        assert version() == {"version": "8.2"}
        with refuses(20):
            admin.command("setParameter", 1, featureCompatibilityVersion="8.0")
    server.restart()
    with server.client() as client:
        shown = client.admin.command("getParameter", 1, featureCompatibilityVersion=1)
        assert shown["featureCompatibilityVersion"] == {"version": "8.2"}


def test_log_levels_of_components(new_server):
    with new_server().client() as client:
        admin = client.admin

        def logged(name):
            lines = admin.command("getLog", "global")["log"]
            return [line for line in lines if '"Slow query"' in line and name in line]

        def level(**levels):
            return admin.command("setParameter", 1, logComponentVerbosity=levels)["was"]

        client.t.quiet_one.find_one()
        was = level(command=1, storage={"wt": {"verbosity": 2}})
        assert was["verbosity"] == 0 and was["command"] == {"verbosity": -1}
        client.t.told_one.find_one()
        shown = admin.command("getParameter", 1, logComponentVerbosity=1)["logComponentVerbosity"]
        assert shown["command"]["verbosity"] == 1 and shown["storage"]["wt"]["verbosity"] == 2
        level(command=-1)
        client.t.quiet_again.find_one()
        assert logged("told_one") and not logged("quiet_one") and not logged("quiet_again")
        admin.command("setParameter", 1, logLevel=1)
        client.t.told_again.find_one()
        assert logged("told_again"), "the level of all components is that of those that have none"
        assert admin.command("getParameter", 1, logComponentVerbosity=1)["logComponentVerbosity"]["verbosity"] == 1
        for levels, code in [({"nope": 1}, 2), ({"command": {"verbosity": "x"}}, 2), ({"network": 2, "nope": 1}, 2)]:
            with refuses(code):
                level(**levels)
        with refuses(14):
            admin.command("setParameter", 1, logComponentVerbosity="x")
        shown = admin.command("getParameter", 1, logComponentVerbosity=1)["logComponentVerbosity"]
        assert shown["network"]["verbosity"] == -1, "refused as a whole"


def test_queries_that_read_a_whole_collection_can_be_refused(new_server, tmp_path):
    with new_server().client() as client:
        things = client.t.things
        things.insert_many([{"_id": i, "k": i, "x": i} for i in range(10)])
        things.create_index("k")
        client.admin.command("setParameter", 1, notablescan=True)
        assert things.find_one({"k": 3})["x"] == 3 and things.find_one({"_id": 3})["x"] == 3
        assert len(list(things.find())) == 10, "who asks for all means it"
        for run in (
            lambda: things.find_one({"x": 3}),
            lambda: things.find_one({"x": 3}, hint=[("$natural", 1)]),
            lambda: things.count_documents({"x": 3}),
            lambda: things.distinct("k", {"x": 3}),
            lambda: things.update_many({"x": 3}, {"$set": {"y": 1}}),
            lambda: things.delete_one({"x": 3}),
            lambda: list(things.aggregate([{"$match": {"x": 3}}])),
        ):
            with refuses(291, containing="notablescan"):
                run()
        assert things.count_documents({"y": 1, "k": {"$gte": 0}}) == 0
        client.admin.command("setParameter", 1, notablescan=False)
        assert things.find_one({"x": 3})["k"] == 3
    with new_server("--notablescan", path=tmp_path / "from_start").client() as client:
        client.t.things.insert_one({"x": 1})
        with refuses(291):
            client.t.things.find_one({"x": 1})


def test_who_sets_what_has_no_effect_is_told(new_server):
    with new_server().client() as client:
        assert client.admin.command("setParameter", 1, syncdelay=30)["was"] == 60
        lines = [json.loads(line) for line in client.admin.command("getLog", "global")["log"]]
        told = [line["attr"]["parameter"] for line in lines if "has no effect here" in line["msg"]]
        assert told == ["syncdelay"]
