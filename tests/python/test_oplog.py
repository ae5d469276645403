"""`local.oplog.rs`: the log as its tailing readers see it."""

import threading
import time

import pytest
from bson import Timestamp
from pymongo import CursorType
from pymongo.errors import OperationFailure


@pytest.fixture
def oplog(client):
    return client.local["oplog.rs"]


def of(oplog, coll):
    """The entries of a collection, in order."""
    return list(oplog.find({"ns": {"$in": [coll.full_name, f"{coll.database.name}.$cmd"]}}))


def test_entries_of_documents(oplog, coll):
    coll.insert_one({"_id": 1, "a": 1, "l": [1]})
    coll.update_one({"_id": 1}, {"$set": {"a": 2, "n": 1}, "$push": {"l": 2}})
    coll.replace_one({"_id": 1}, {"r": 1})
    coll.delete_one({"_id": 1})
    create, insert, update, replace, delete = of(oplog, coll)
    assert create["op"] == "c" and create["o"]["create"] == coll.name
    assert insert["op"] == "i" and insert["o"] == {"_id": 1, "a": 1, "l": [1]} and insert["o2"] == {"_id": 1}
    assert update["op"] == "u" and update["o2"] == {"_id": 1}
    assert update["o"] == {"$v": 2, "diff": {"u": {"a": 2}, "i": {"n": 1}, "sl": {"a": True, "u1": 2}}}
    assert replace["op"] == "u" and replace["o"] == {"_id": 1, "r": 1}
    assert delete["op"] == "d" and delete["o"] == {"_id": 1}
    for entry in (insert, update, replace, delete):
        assert entry["ns"] == coll.full_name and entry["v"] == 2 and entry["t"] >= 1
        assert isinstance(entry["ts"], Timestamp) and entry["ui"] == create["ui"]
        assert abs(entry["wall"].timestamp() - time.time()) < 24 * 3600
        # Retryable writes carry their session.
        assert {"lsid", "txnNumber", "stmtId"} <= set(entry)


def test_a_batch_is_one_entry(oplog, coll):
    coll.insert_many([{"_id": i} for i in range(3)])
    at = coll.database.command("ping")["operationTime"]
    entry = oplog.find_one({"ts": {"$lte": at}, "o.applyOps.ns": coll.full_name}, sort=[("$natural", -1)])
    assert [(op["op"], op["o"]["_id"]) for op in entry["o"]["applyOps"]] == [("i", 0), ("i", 1), ("i", 2)]


def test_ranges_of_ts_and_both_orders(oplog, coll):
    for i in range(20):
        coll.insert_one({"_id": i})
    times = [e["ts"] for e in oplog.find({"ns": coll.full_name, "op": "i"})]
    assert times == sorted(times) and len(times) == 20
    mine = {"ns": coll.full_name}
    assert len(list(oplog.find({**mine, "ts": {"$gte": times[5], "$lt": times[10]}}))) == 5
    assert oplog.find_one({"ts": times[7]})["o"] == {"_id": 7}
    newest = oplog.find(mine).sort("$natural", -1).limit(3)
    assert [e["o"]["_id"] for e in newest] == [19, 18, 17]
    back = oplog.find({**mine, "ts": {"$lte": times[10]}}).sort("$natural", -1).batch_size(2)
    assert [e["ts"] for e in back if e["op"] == "i"] == times[10::-1]
    assert oplog.find_one(mine, {"ts": 1, "_id": 0}, sort=[("ts", -1)]) == {"ts": times[19]}
    assert oplog.estimated_document_count() >= 20
    query = {"ts": {"$gte": times[18], "$lte": times[19]}}
    assert oplog.database.command("count", "oplog.rs", query=query)["n"] == 2
    with pytest.raises(OperationFailure):
        list(oplog.find().sort("wall", 1))


def test_it_is_tailed(oplog, coll):
    coll.insert_one({"_id": 0})
    last = oplog.find_one(sort=[("$natural", -1)])["ts"]
    query = {"ts": {"$gt": last}, "ns": coll.full_name}
    cursor = oplog.find(query, cursor_type=CursorType.TAILABLE_AWAIT, oplog_replay=True).max_await_time_ms(5000)
    threading.Timer(0.4, lambda: coll.insert_one({"_id": 1})).start()
    start = time.time()
    # The first batch is empty and does not wait.
    assert next(cursor, None) is None
    assert next(cursor)["o"] == {"_id": 1}
    assert 0.3 < time.time() - start < 3
    assert cursor.alive
    cursor.close()


def test_how_it_is_listed_and_measured(client, oplog):
    assert "oplog.rs" in client.local.list_collection_names()
    stats = client.local.command("collStats", "oplog.rs")
    assert stats["capped"] and stats["maxSize"] > stats["size"] > 0 and stats["count"] > 0
    row = next(oplog.aggregate([{"$collStats": {"storageStats": {}}}]))["storageStats"]
    assert row["maxSize"] == stats["maxSize"]
    with pytest.raises(OperationFailure):
        oplog.insert_one({})


def test_the_diff_is_applied_again(client, oplog, coll):
    coll.insert_one({"_id": 1, "a": [1, 2, {"b": 1}], "gone": 1})
    coll.update_one({"_id": 1}, {"$set": {"a.2.b": 5, "a.4": 9, "new": 1}, "$unset": {"gone": 1}})
    want = coll.find_one()
    entries = [e for e in of(oplog, coll) if e["op"] in "iu"]
    coll.delete_many({})
    for e in entries:
        client.admin.command("applyOps", [{k: e[k] for k in ("op", "ns", "o", "o2")}])
    assert coll.find_one() == want


def test_it_survives_a_kill(new_server):
    server = new_server()
    with server.client() as client:
        client.test.c.insert_one({"_id": 1})
        before = list(client.local["oplog.rs"].find())
    server.kill()
    server.start()
    with server.client() as client:
        after = list(client.local["oplog.rs"].find().limit(len(before)))
        assert after == before
