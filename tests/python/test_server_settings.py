"""What is set for the whole server and outlives it: default concerns, the user write block, cluster parameters; and `validate`."""

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
