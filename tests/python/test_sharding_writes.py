"""Writes through the router that do not name a shard, and writes on several: where they end up, and that a retry does nothing twice."""

import itertools

import bson
import pymongo
import pytest
from pymongo.errors import DuplicateKeyError
from sharded_cluster import client_fixture, cluster_fixture, documents_on, shard

sessions = itertools.count(1)


cluster = cluster_fixture(routers=2)
client = client_fixture()


@pytest.fixture
def coll(db):
    """A collection whose `k` below 50 is on one shard, and the rest on the other."""
    db.client.admin.command("enableSharding", db.name, primaryShard="s0")
    return shard(db, "c", {"k": 1}, at=[50])


def retryable(**command):
    """The command as a retryable write of a session of its own."""
    number = next(sessions).to_bytes(16, "big")
    return {**command, "lsid": {"id": bson.Binary(number, 4)}, "txnNumber": bson.Int64(1)}


def send(cluster, **command):
    with cluster.routers[0].wire() as wire:
        return wire.command(command)


def test_an_upsert_that_does_not_name_its_shard(cluster, coll):
    made = coll.update_one({"x": 1}, {"$set": {"y": 2}, "$setOnInsert": {"k": 70}}, upsert=True)
    assert made.upserted_id is not None and made.matched_count == 0
    assert documents_on(cluster, coll, "s1") == [{"_id": made.upserted_id, "x": 1, "y": 2, "k": 70}]
    again = coll.update_one({"x": 1}, {"$set": {"y": 3}, "$setOnInsert": {"k": 10}}, upsert=True)
    assert (again.matched_count, again.modified_count, again.upserted_id) == (1, 1, None)
    assert coll.find_one({"x": 1})["y"] == 3 and coll.count_documents({}) == 1
    # No value of the key is null, which lies below all numbers.
    assert coll.update_one({"_id": 9}, {"$inc": {"n": 5}}, upsert=True).upserted_id == 9
    assert documents_on(cluster, coll, "s0") == [{"_id": 9, "n": 5}]
    piped = coll.update_one({"x": 2}, [{"$set": {"z": {"$add": ["$x", 1]}}}], upsert=True)
    assert coll.find_one({"_id": piped.upserted_id}) == {"_id": piped.upserted_id, "x": 2, "z": 3}
    with pytest.raises(DuplicateKeyError):
        coll.update_one({"_id": 9, "n": 77}, {"$set": {"m": 1}}, upsert=True)
    with pytest.raises(pymongo.errors.WriteError) as failure:
        coll.update_many({"x": 5}, {"$set": {"y": 2}}, upsert=True)
    assert failure.value.code == 61


def test_find_and_modify_that_does_not_name_its_shard(coll):
    after = pymongo.ReturnDocument.AFTER
    made = coll.find_one_and_update({"x": 1}, {"$setOnInsert": {"k": 60}, "$inc": {"n": 1}}, upsert=True, return_document=after)
    assert (made["x"], made["k"], made["n"]) == (1, 60, 1)
    made = coll.find_one_and_update({"x": 1}, {"$setOnInsert": {"k": 5}, "$inc": {"n": 1}}, upsert=True, return_document=after)
    assert (made["k"], made["n"]) == (60, 2) and coll.count_documents({}) == 1
    assert coll.find_one_and_update({"x": 3}, {"$set": {"n": 1}}, upsert=True) is None
    assert coll.find_one({"x": 3})["n"] == 1


def test_a_retry_finds_the_shard_that_did_it(cluster, coll):
    coll.insert_one({"_id": 1, "k": 99, "x": 1, "n": 0})
    name = {"$db": coll.database.name}
    update = retryable(update="c", updates=[{"q": {"x": 1}, "u": {"$inc": {"n": 1}}}], **name)
    delete = retryable(delete="c", deletes=[{"q": {"x": 1}, "limit": 1}], **name)
    upsert = retryable(update="c", updates=[{"q": {"x": 7}, "u": {"$setOnInsert": {"k": 80}}, "upsert": True}], **name)
    change = retryable(findAndModify="c", query={"x": 1}, update={"$inc": {"n": 1}}, new=True, **name)
    assert send(cluster, **update)["n"] == 1
    assert send(cluster, **change)["value"]["n"] == 2
    # The first shard has a document for them too when they come again.
    coll.insert_one({"_id": 2, "k": 1, "x": 1, "n": 0})
    assert send(cluster, **update)["n"] == 1
    assert send(cluster, **change)["value"] == {"_id": 1, "k": 99, "x": 1, "n": 2}
    assert {d["_id"]: d["n"] for d in coll.find({"x": 1})} == {1: 2, 2: 0}
    made = send(cluster, **upsert)
    coll.insert_one({"_id": 3, "k": 2, "x": 7})
    assert send(cluster, **upsert)["upserted"] == made["upserted"]
    assert coll.count_documents({"x": 7}) == 2
    assert send(cluster, **delete)["n"] == 1
    assert send(cluster, **delete)["n"] == 1
    assert coll.count_documents({"x": 1}) == 1


def test_a_retry_after_the_range_has_moved(cluster, coll):
    coll.insert_many([{"_id": n, "k": n, "n": 0} for n in (10, 60, 70)])
    updates = [{"q": {"k": n}, "u": {"$inc": {"n": 1}}} for n in (10, 60, 70)] + [{"q": {"_id": 60}, "u": {"$inc": {"n": 1}}}]
    command = retryable(update="c", updates=updates, **{"$db": coll.database.name})
    assert send(cluster, **command)["n"] == 4
    coll.database.client.admin.command("moveChunk", coll.full_name, find={"k": 75}, to="s0")
    assert send(cluster, **command)["n"] == 4
    coll.database.client.admin.command("moveChunk", coll.full_name, find={"k": 10}, to="s1")
    assert send(cluster, **command)["n"] == 4
    assert {d["_id"]: d["n"] for d in coll.find()} == {10: 1, 60: 2, 70: 1}


def bulk(cluster, ops, *namespaces, **options):
    return {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": ns} for ns in namespaces], "$db": "admin", **options}


def test_bulk_write_over_shards_and_collections(cluster, coll):
    plain = f"{coll.database.name}.plain"
    ops = [
        {"insert": 0, "document": {"_id": 1, "k": 1}},
        {"insert": 0, "document": {"_id": 2, "k": 99}},
        {"insert": 1, "document": {"_id": 3}},
        {"update": 0, "filter": {"_id": 2}, "updateMods": {"$set": {"a": 1}}},
        {"update": 0, "filter": {}, "updateMods": {"$inc": {"b": 1}}, "multi": True},
        {"update": 0, "filter": {"x": 4}, "updateMods": {"$setOnInsert": {"_id": 4, "k": 77}}, "upsert": True},
        {"delete": 0, "filter": {"k": 1}},
    ]
    reply = send(cluster, **bulk(cluster, ops, coll.full_name, plain))
    counts = {n: reply[n] for n in ("nErrors", "nInserted", "nMatched", "nModified", "nUpserted", "nDeleted")}
    assert counts == {"nErrors": 0, "nInserted": 3, "nMatched": 3, "nModified": 3, "nUpserted": 1, "nDeleted": 1}
    assert reply["cursor"]["ns"] == "admin.$cmd.bulkWrite" and reply["cursor"]["id"] == 0
    items = reply["cursor"]["firstBatch"]
    assert [(i["ok"], i["idx"], i["n"]) for i in items] == [(1, 0, 1), (1, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 2), (1, 5, 1), (1, 6, 1)]
    assert items[5]["upserted"] == {"_id": 4}
    assert list(coll.find().sort("_id")) == [{"_id": 2, "k": 99, "a": 1, "b": 1}, {"_id": 4, "x": 4, "k": 77}]
    assert coll.database.plain.count_documents({}) == 1


def test_bulk_write_tells_what_failed_and_reads_on(cluster, coll):
    ops = [{"insert": 0, "document": {"_id": n, "k": n * 30}} for n in (0, 1, 1, 2)]
    reply = send(cluster, **bulk(cluster, ops, coll.full_name, ordered=False, errorsOnly=True))
    assert (reply["nInserted"], reply["nErrors"]) == (3, 1)
    assert [(i["ok"], i["idx"], i["code"]) for i in reply["cursor"]["firstBatch"]] == [(0, 2, 11000)]
    ops = [{"insert": 0, "document": {"_id": n, "k": n}} for n in (3, 3, 4)]
    reply = send(cluster, **bulk(cluster, ops, coll.full_name, cursor={"batchSize": 1}))
    assert (reply["nInserted"], reply["nErrors"], len(reply["cursor"]["firstBatch"])) == (1, 1, 1)
    more = send(cluster, getMore=reply["cursor"]["id"], collection="$cmd.bulkWrite", **{"$db": "admin"})
    assert [i["idx"] for i in more["cursor"]["nextBatch"]] == [1] and coll.count_documents({"_id": 4}) == 0
    for op, code in [({"upset": 0}, 40415), ({"insert": 5, "document": {}}, 2), ({"update": 0, "filter": {}}, 40414)]:
        assert send(cluster, **bulk(cluster, [op], coll.full_name))["code"] == code


def test_a_bulk_write_that_comes_again(cluster, coll):
    ops = [
        {"insert": 0, "document": {"_id": 1, "k": 1, "n": 0}},
        {"update": 0, "filter": {"_id": 1}, "updateMods": {"$inc": {"n": 1}}},
        {"insert": 0, "document": {"_id": 2, "k": 99, "n": 0}},
        {"update": 0, "filter": {"k": 99}, "updateMods": {"$inc": {"n": 1}}},
    ]
    command = retryable(**bulk(cluster, ops, coll.full_name))
    for _ in range(3):
        reply = send(cluster, **command)
        assert (reply["nInserted"], reply["nMatched"], reply["nErrors"]) == (2, 2, 0)
    assert [d["n"] for d in coll.find().sort("_id")] == [1, 1]


def statement(coll, number, first=False, **command):
    start = {"startTransaction": True} if first else {}
    lsid = {"id": bson.Binary(number.to_bytes(16, "big"), 4)}
    return {**command, "lsid": lsid, "txnNumber": bson.Int64(1), "autocommit": False, **start, "$db": coll.database.name}


def end(command, number, **fields):
    lsid = {"id": bson.Binary(number.to_bytes(16, "big"), 4)}
    return {command: 1, "lsid": lsid, "txnNumber": bson.Int64(1), "autocommit": False, "$db": "admin", **fields}


def test_a_transaction_reads_all_shards_and_writes_one(client, coll):
    coll.insert_many([{"_id": n, "k": n} for n in range(100)])
    with client.start_session() as session:
        with session.start_transaction():
            assert len(list(coll.find({}, batch_size=7, session=session))) == 100
            assert coll.count_documents({}, session=session) == 100
            assert coll.update_many({"_id": 3}, {"$set": {"x": 1}}, session=session).modified_count == 1
            assert coll.update_one({"_id": 4}, {"$set": {"x": 1}}, session=session).modified_count == 1
            assert coll.find_one({"k": 99}, session=session)["_id"] == 99
            assert [d["_id"] for d in coll.find({"x": 1}, session=session).sort("_id")] == [3, 4]
            assert coll.count_documents({"x": 1}) == 0
        assert coll.count_documents({"x": 1}) == 2
        session.start_transaction()
        coll.update_one({"k": 60}, {"$set": {"x": 2}}, session=session)
        assert coll.find_one({"k": 1}, session=session)["_id"] == 1
        session.abort_transaction()
        with session.start_transaction():
            assert coll.find_one({"k": 1}, session=session) and coll.find_one({"k": 99}, session=session)
    assert coll.count_documents({"x": 2}) == 0


def test_a_commit_that_comes_again_through_another_router(cluster, coll):
    number = next(sessions)
    send(cluster, **statement(coll, number, first=True, find="c", filter={"k": 1}))
    wrote = send(cluster, **statement(coll, number, insert="c", documents=[{"_id": 2, "k": 99}]))
    token = wrote["recoveryToken"]
    assert token == {"recoveryShardId": "s1"}
    with cluster.routers[1].wire() as other:
        assert other.command(statement(coll, number, find="c"))["code"] == 251
        assert other.command(end("commitTransaction", number))["code"] == 251
        for _ in range(2):
            assert send(cluster, **end("commitTransaction", number))["ok"] == 1
            assert other.command(end("commitTransaction", number, recoveryToken=token))["ok"] == 1
    assert coll.find_one({"_id": 2}) == {"_id": 2, "k": 99}


def test_a_transaction_that_is_older_than_a_range_does_not_miss_it(cluster, coll):
    coll.insert_many([{"_id": n, "k": n} for n in (1, 99)])
    number = next(sessions)
    assert send(cluster, **statement(coll, number, first=True, find="c", filter={"k": 1}))["cursor"]["firstBatch"]
    coll.database.client.admin.command("moveChunk", coll.full_name, find={"k": 99}, to="s0")
    late = send(cluster, **statement(coll, number, find="c", filter={"k": 99}))
    assert late["code"] == 272 and "TransientTransactionError" in late["errorLabels"]


def messages(cluster, command):
    """How many of these commands each shard was sent."""
    sent = {}
    for name in ("s0", "s1"):
        with cluster.on_shard(name) as direct:
            sent[name] = direct.admin.command("serverStatus")["metrics"]["commands"][command]["total"]
    return sent


def test_an_ordered_batch_costs_a_message_for_each_run_and_ends_where_it_fails(cluster, coll):
    """What stands next to each other for one shard is sent at once; nothing behind what fails is there."""
    runs = [(10, 7), (60, 1), (20, 3), (80, 40), (30, 2)]
    documents = [{"_id": f"{at}.{n}", "k": at} for at, many in runs for n in range(many)]
    before = messages(cluster, "insert")
    coll.insert_many(documents)
    assert messages(cluster, "insert") == {"s0": before["s0"] + 3, "s1": before["s1"] + 2}
    coll.delete_many({})
    coll.insert_many(documents, ordered=False)
    assert messages(cluster, "insert") == {"s0": before["s0"] + 4, "s1": before["s1"] + 3}
    coll.delete_many({})
    coll.insert_one({"_id": "80.5", "k": 80})
    with pytest.raises(pymongo.errors.BulkWriteError) as failed:
        coll.insert_many(documents)
    [error] = failed.value.details["writeErrors"]
    assert error["index"] == 7 + 1 + 3 + 5 and failed.value.details["nInserted"] == error["index"]
    there = {d["_id"] for d in coll.find()}
    assert there == {d["_id"] for d in documents[: error["index"] + 1]}
