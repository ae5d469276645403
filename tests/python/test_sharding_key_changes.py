"""Updates that change a document's shard key: it moves to its new shard, once."""

import itertools

import bson
import pytest
from harness import refuses
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError
from sharded_cluster import client_fixture, cluster_fixture, documents_on, shard

sessions = itertools.count(1)


cluster = cluster_fixture(routers=2)
client = client_fixture()


@pytest.fixture
def coll(db):
    """`k` below 50 is on one shard, the rest on the other; a document on each."""
    db.client.admin.command("enableSharding", db.name, primaryShard="s0")
    coll = shard(db, "c", {"k": 1}, at=[50])
    coll.insert_many([{"_id": 1, "k": 1, "n": 0}, {"_id": 2, "k": 99, "n": 0}])
    return coll


def test_a_document_moves(cluster, coll):
    moved = coll.update_one({"_id": 1}, {"$set": {"k": 60}, "$inc": {"n": 1}})
    assert (moved.matched_count, moved.modified_count) == (1, 1)
    assert documents_on(cluster, coll, "s0") == []
    assert documents_on(cluster, coll, "s1") == [{"_id": 1, "k": 60, "n": 1}, {"_id": 2, "k": 99, "n": 0}]
    # On its own shard it stays.
    assert coll.update_one({"k": 60}, {"$inc": {"k": 1}}).modified_count == 1
    assert coll.replace_one({"_id": 1}, {"k": 5, "r": 1}).modified_count == 1
    assert documents_on(cluster, coll, "s0") == [{"_id": 1, "k": 5, "r": 1}]
    assert coll.update_one({"_id": 1, "k": 5}, [{"$set": {"k": {"$add": ["$k", 70]}}}]).modified_count == 1
    assert coll.find_one({"_id": 1}) == {"_id": 1, "k": 75, "r": 1}
    assert coll.update_one({"_id": 7}, {"$set": {"k": 3}}).matched_count == 0
    made = coll.replace_one({"_id": 7}, {"k": 80}, upsert=True)
    assert made.upserted_id == 7 and coll.count_documents({}) == 3
    assert coll.update_one({"_id": 2}, {"$set": {"k": 99}}).modified_count == 0


def test_find_and_modify_moves(coll):
    before = coll.find_one_and_update({"_id": 1}, {"$set": {"k": 70}}, projection={"_id": 0, "k": 1})
    assert before == {"k": 1}
    after = coll.find_one_and_replace({"k": 70}, {"k": 2, "r": 1}, return_document=ReturnDocument.AFTER)
    assert after == {"_id": 1, "k": 2, "r": 1}
    assert coll.find_one_and_update({}, {"$set": {"k": 3}}, sort=[("k", -1)])["_id"] == 2
    assert sorted(d["k"] for d in coll.find()) == [2, 3]


def test_what_is_refused(cluster, client, coll):
    with refuses(72):
        coll.update_many({}, {"$set": {"k": 3}})
    with cluster.client(retryWrites=False) as plain, refuses(20):
        plain[coll.database.name].c.update_one({"_id": 1}, {"$set": {"k": 70}})
    # Where a document of the same `_id` is, nothing has happened.
    coll.insert_one({"_id": 2, "k": 4})
    with pytest.raises(DuplicateKeyError):
        coll.update_one({"k": 4}, {"$set": {"k": 98}})
    assert sorted(d["k"] for d in coll.find()) == [1, 4, 99]
    with client.start_session() as session, session.start_transaction():
        coll.update_one({"k": 1}, {"$set": {"k": 97}}, session=session)
        coll.find_one_and_update({"_id": 1, "k": 97}, {"$set": {"k": 5}}, session=session)
        session.abort_transaction()
    assert sorted(d["k"] for d in coll.find()) == [1, 4, 99]


def test_in_a_transaction(client, coll):
    with client.start_session() as session:
        with session.start_transaction():
            coll.update_one({"k": 1}, {"$set": {"k": 97}}, session=session)
            assert coll.find_one_and_update({"_id": 2}, {"$inc": {"n": 5}}, session=session)["n"] == 0
            assert coll.find_one_and_delete({"n": 5}, session=session)["_id"] == 2
            assert coll.find_one_and_update({"_id": 1}, {"$set": {"k": 98}}, session=session)["k"] == 97
            assert coll.find_one_and_update({"_id": 9}, {"$set": {"k": 3}}, upsert=True, session=session) is None
            assert [d["k"] for d in coll.find(session=session).sort("_id")] == [98, 3]
        assert [d["k"] for d in coll.find().sort("_id")] == [98, 3]


def test_a_retry_does_nothing_twice(cluster, coll):
    lsid = {"id": bson.Binary(next(sessions).to_bytes(16, "big"), 4)}

    def send(number, **command):
        with cluster.routers[number % 2].wire() as wire:
            return wire.command({**command, "lsid": lsid, "$db": coll.database.name})

    updates = [
        {"q": {"_id": 1}, "u": {"$inc": {"k": 60, "n": 1}}},
        {"q": {"_id": 2}, "u": {"$inc": {"k": -60, "n": 1}}},
        {"q": {"_id": 1}, "u": {"$inc": {"k": 1}}},
    ]
    for n in range(4):
        reply = send(n, update="c", updates=updates, txnNumber=bson.Int64(1))
        assert (reply["n"], reply["nModified"]) == (3, 3), reply
    assert [(d["k"], d["n"]) for d in coll.find().sort("_id")] == [(62, 1), (39, 1)]
    for n in range(4):
        reply = send(n, findAndModify="c", query={"_id": 1}, update={"$inc": {"k": -60}}, new=True, txnNumber=bson.Int64(2))
        assert reply["value"]["k"] == 2 and reply["lastErrorObject"] == {"n": 1, "updatedExisting": True}, reply
    assert coll.find_one({"_id": 1})["k"] == 2


@pytest.mark.parametrize("command", ["commitTransaction", "_pandoPrepare", "_pandoDecide"])
def test_a_message_that_is_lost(cluster, coll, command):
    for shard in ("s0", "s1"):
        with cluster.on_shard(shard) as direct:
            data = {"failCommands": [command], "closeConnection": True}
            direct.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
            found = coll.find_one({"_id": 1})
            assert coll.update_one({"_id": 1}, {"$set": {"k": 100 - found["k"]}, "$inc": {"n": 1}}).modified_count == 1
            direct.admin.command("configureFailPoint", "failCommand", mode="off")
    assert coll.find_one({"_id": 1}) == {"_id": 1, "k": 1, "n": 2}
    assert coll.count_documents({}) == 2
