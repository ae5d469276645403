"""Read concerns as a replica set of one answers them."""

import pytest
from bson import Timestamp
from harness import until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern


def on_disk(client):
    """The newest document of the oplog, which ends where the log is on disk."""
    return client.local["oplog.rs"].find().sort("$natural", -1).limit(1)[0]


@pytest.mark.parametrize("level", ["majority", "linearizable", "snapshot"])
@pytest.mark.parametrize("read", ["find", "aggregate", "count", "distinct"])
def test_what_is_shown_is_on_disk(new_server, level, read):
    if (level, read) == ("snapshot", "count"):
        pytest.skip("refused")
    with new_server("--durability", "30s").client() as client:
        coll = client.test.get_collection("c", write_concern=WriteConcern(w=1), read_concern=ReadConcern(level))
        coll.insert_one({"_id": 1})
        assert on_disk(client).get("o", {}).get("_id") != 1, "it is not yet"
        answer = {
            "find": lambda: coll.find_one()["_id"],
            "aggregate": lambda: list(coll.aggregate([{"$match": {}}]))[0]["_id"],
            "count": lambda: client.test.command("count", "c", readConcern={"level": level})["n"],
            "distinct": lambda: coll.distinct("_id")[0],
        }[read]()
        assert answer == 1 and on_disk(client)["o"]["_id"] == 1


def test_the_default_and_others(new_server):
    with new_server("--durability", "30s").client() as client:
        coll = client.test.get_collection("c", write_concern=WriteConcern(w=1))
        for level, n, waits in (("local", 1, False), ("majority", 2, True)):
            client.admin.command("setDefaultRWConcern", defaultReadConcern={"level": level})
            coll.insert_one({"_id": n})
            assert coll.find_one({"_id": n})
            assert (on_disk(client).get("o", {}).get("_id") == n) == waits
        coll.insert_one({"_id": 3})
        local = coll.with_options(read_concern=ReadConcern("available"))
        assert local.find_one({"_id": 3}) and on_disk(client)["o"]["_id"] != 3


def test_linearizable_alone(client, coll):
    coll.insert_one({"_id": 1})
    linearizable = coll.with_options(read_concern=ReadConcern("linearizable"))
    assert linearizable.find_one() == {"_id": 1}
    with pytest.raises(OperationFailure) as e:
        at = {"level": "linearizable", "afterClusterTime": Timestamp(1, 1)}
        coll.database.command("find", coll.name, readConcern=at)
    assert e.value.code == 72
    with pytest.raises(OperationFailure) as e:
        linearizable.aggregate([{"$out": "x"}])
    assert e.value.code == 72
    secondary = linearizable.with_options(read_preference=ReadPreference.SECONDARY_PREFERRED)
    assert secondary.find_one() == {"_id": 1}


def test_the_window_of_snapshots(new_server):
    with new_server().client(w="majority") as client:
        coll = client.test.c
        coll.insert_one({"_id": 1})

        def find(**concern):
            return client.test.command("find", "c", readConcern={"level": "snapshot", **concern})["cursor"]

        at = find()["atClusterTime"]
        coll.insert_one({"_id": 2})
        assert len(find(atClusterTime=at)["firstBatch"]) == 1 and len(find()["firstBatch"]) == 2
        assert client.admin.command("getParameter", minSnapshotHistoryWindowInSeconds=1)["minSnapshotHistoryWindowInSeconds"] == 300
        with pytest.raises(OperationFailure):
            client.admin.command("setParameter", minSnapshotHistoryWindowInSeconds=-1)
        client.admin.command("setParameter", minSnapshotHistoryWindowInSeconds=1, clientCursorMonitorFrequencySecs=1)

        def code():
            try:
                find(atClusterTime=at)
            except OperationFailure as e:
                return e.code

        assert until("the moment goes", code) == 239
        with pytest.raises(OperationFailure) as e:
            find(atClusterTime=Timestamp(at.time + 10_000, 1))
        assert e.value.code == 72
