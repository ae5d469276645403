"""`bulkWrite`: inserts, updates and deletes on several collections in one command, as drivers send it and by hand."""

import uuid

import bson
import pytest
from bson import Binary, Int64
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne, WriteConcern
from pymongo.errors import ClientBulkWriteException

from harness import refuses, until


def on(coll, kind, *args, **options):
    return kind(*args, namespace=f"{coll.database.name}.{coll.name}", **options)


def bulk(db, ops, *targets, **options):
    info = [{"ns": f"{db.name}.{name}"} for name in targets]
    return db.client.admin.command("bulkWrite", 1, ops=ops, nsInfo=info, **options)


def items(reply):
    return reply["cursor"]["firstBatch"]


def log_bytes(client):
    return client.admin.command("serverStatus")["pandodb"]["log"]["bytes"]


def test_the_server_says_so(client):
    assert client.admin.command("hello")["maxWireVersion"] == 25


def test_all_kinds_over_two_collections(client, db):
    a, b = db.a, db.b
    a.insert_many([{"_id": i, "n": i} for i in range(5)])
    result = client.bulk_write(
        [
            on(b, InsertOne, {"_id": "new"}),
            on(a, UpdateOne, {"_id": 0}, {"$inc": {"n": 10}}),
            on(a, UpdateMany, {"n": {"$lt": 3}}, {"$set": {"small": True}}),
            on(b, ReplaceOne, {"_id": "new"}, {"replaced": 1}),
            on(b, UpdateOne, {"_id": "up"}, {"$set": {"x": 1}}, upsert=True),
            on(a, DeleteOne, {"_id": 4}),
            on(a, DeleteMany, {"small": True}),
        ],
        verbose_results=True,
    )
    assert (result.inserted_count, result.matched_count, result.modified_count) == (1, 4, 4)
    assert (result.upserted_count, result.deleted_count) == (1, 3)
    assert result.update_results[4].upserted_id == "up"
    assert result.delete_results[6].deleted_count == 2
    assert list(a.find().sort("_id", 1)) == [{"_id": 0, "n": 10}, {"_id": 3, "n": 3}]
    assert list(b.find().sort("_id", 1)) == [{"_id": "new", "replaced": 1}, {"_id": "up", "x": 1}]


@pytest.mark.parametrize("ordered", [True, False])
def test_errors_are_the_operations_own(client, db, ordered):
    db.a.insert_one({"_id": 1})
    models = [on(db.a, InsertOne, {"_id": i}) for i in (0, 1, 2)]
    models += [on(db.a, UpdateOne, {"_id": 0}, {"$bad": 1}), on(db.b, InsertOne, {"_id": 9})]
    with pytest.raises(ClientBulkWriteException) as raised:
        client.bulk_write(models, ordered=ordered, verbose_results=True)
    failed = {e["idx"]: e["code"] for e in raised.value.write_errors}
    assert failed == ({1: 11000} if ordered else {1: 11000, 3: 9})
    assert db.a.count_documents({}) == (2 if ordered else 3)
    assert db.b.count_documents({}) == (0 if ordered else 1)
    assert raised.value.partial_result.inserted_count == (1 if ordered else 3)


def test_many_operations_and_their_cursor(client, db):
    n = 3000
    result = client.bulk_write([on(db.a, InsertOne, {"_id": i, "pad": "x" * 100}) for i in range(n)], verbose_results=True)
    assert result.inserted_count == n and len(result.insert_results) == n
    reply = bulk(db, [{"insert": 0, "document": {"_id": -i}} for i in range(1, 6)], "a", cursor={"batchSize": 2})
    assert [i["idx"] for i in items(reply)] == [0, 1] and reply["cursor"]["ns"] == "admin.$cmd.bulkWrite"
    more = client.admin.command("getMore", reply["cursor"]["id"], collection="$cmd.bulkWrite")
    assert [i["idx"] for i in more["cursor"]["nextBatch"]] == [2, 3, 4] and more["cursor"]["id"] == 0


def test_errors_only(db):
    db.a.insert_one({"_id": 1})
    ops = [{"insert": 0, "document": {"_id": i}} for i in range(3)]
    reply = bulk(db, ops, "a", errorsOnly=True, ordered=False)
    assert [(i["idx"], i["ok"], i["code"], i["keyValue"]) for i in items(reply)] == [(1, 0.0, 11000, {"_id": 1})]
    assert (reply["nInserted"], reply["nErrors"]) == (2, 1)


def test_options_of_updates(db):
    db.a.insert_many([{"_id": i, "k": i % 2, "items": [1, 5]} for i in range(4)])
    db.a.create_index("k")
    reply = bulk(
        db,
        [
            {"update": 0, "filter": {"_id": 0}, "updateMods": {"$set": {"items.$[e]": 0}}, "arrayFilters": [{"e": {"$gt": 2}}]},
            {"update": 0, "filter": {"k": 1}, "updateMods": {"$set": {"last": 1}}, "sort": {"_id": -1}, "hint": "k_1"},
            {"update": 0, "filter": {"_id": 2}, "updateMods": [{"$set": {"v": "$$v", "w": "$$w"}}], "constants": {"v": 7}},
            {"delete": 0, "filter": {"$expr": {"$eq": ["$_id", "$$w"]}}, "multi": True},
        ],
        "a",
        let={"w": 1},
    )
    assert (reply["nErrors"], reply["nModified"], reply["nDeleted"]) == (0, 3, 1)
    docs = {d["_id"]: d for d in db.a.find()}
    assert docs[0]["items"] == [1, 0] and docs[3]["last"] == 1 and (docs[2]["v"], docs[2]["w"]) == (7, 1)
    assert sorted(docs) == [0, 2, 3]


def test_what_is_wrong_with_the_command(db):
    insert = {"insert": 0, "document": {}}
    for ops, targets, code in [
        ([], ["a"], 16),
        ([{"insert": 1, "document": {}}], ["a"], 2),
        ([{"insert": -1, "document": {}}], ["a"], 2),
        ([{"replace": 0, "document": {}}], ["a"], 40415),
        ([{"insert": 0}], ["a"], 40414),
        ([{"update": 0, "filter": {}, "updateMods": 1}], ["a"], 9),
        ([insert], [], 2),
    ]:
        with refuses(code):
            bulk(db, ops, *targets)
    with refuses(73):
        db.client.admin.command("bulkWrite", 1, ops=[insert], nsInfo=[{"ns": "nodot"}])
    with refuses(13):
        db.command("bulkWrite", 1, ops=[insert], nsInfo=[{"ns": "a.b"}])
    assert db.a.count_documents({}) == 0


def test_exactly_once(server, db):
    db.a.insert_one({"_id": 1, "n": 0})
    info = [{"ns": f"{db.name}.{c}"} for c in "ab"]
    first_ops = [
        {"update": 0, "filter": {"_id": 1}, "updateMods": {"$inc": {"n": 1}}},
        {"insert": 1, "document": {"x": 1}},
        {"update": 1, "filter": {"_id": "u"}, "updateMods": {"$inc": {"n": 1}}, "upsert": True},
    ]
    more_ops = [{"insert": 1, "document": {"x": 2}}, {"delete": 0, "filter": {"_id": 1}}]
    lsid = {"id": Binary.from_uuid(uuid.uuid4())}

    def send(ops, number=1):
        command = {"bulkWrite": 1, "ops": ops, "nsInfo": info, "lsid": lsid, "txnNumber": Int64(number), "$db": "admin"}
        with server.wire() as wire:
            return wire.command(command)

    # The first three arrived, their answer did not; the driver sends all five again.
    send(first_ops)
    reply = send(first_ops + more_ops)
    assert reply["retriedStmtIds"] == [0, 1, 2]
    counts = [reply[n] for n in ("nInserted", "nMatched", "nModified", "nUpserted", "nDeleted", "nErrors")]
    assert counts == [2, 1, 1, 1, 1, 0]
    assert items(reply)[2]["upserted"] == {"_id": "u"}
    assert db.a.count_documents({}) == 0 and db.b.count_documents({"x": {"$exists": True}}) == 2
    assert db.b.find_one({"_id": "u"})["n"] == 1
    refused = send([{"delete": 0, "filter": {}, "multi": True}], number=2)
    assert refused["ok"] == 0 and refused["code"] == 72


def test_unacknowledged(client, db):
    client.bulk_write([on(db.a, InsertOne, {"_id": 1})], ordered=False, write_concern=WriteConcern(w=0))
    for _ in range(200):
        if db.a.count_documents({}):
            break
    assert db.a.count_documents({}) == 1


def test_many_statements_survive_a_kill_exactly_once(new_server):
    """Sent again after a kill, whatever was done is not done twice; and the log grows with the statements, not their square."""
    server = new_server()
    lsid, many = {"id": Binary.from_uuid(uuid.uuid4())}, 3000
    ops = [{"update": 0, "filter": {"_id": i}, "updateMods": {"$inc": {"n": 1}}, "upsert": i % 2 == 0} for i in range(many)]
    command = {"bulkWrite": 1, "nsInfo": [{"ns": "t.c"}], "lsid": lsid, "txnNumber": Int64(1), "$db": "admin"}
    with server.client() as client:
        client.t.c.insert_many([{"_id": i, "n": 0} for i in range(many)])
        before = log_bytes(client)
        with server.wire() as wire:
            assert wire.command({**command, "ops": ops[: many // 2]})["nModified"] == many // 2
        written = log_bytes(client) - before
    assert written < many // 2 * 2000, written
    # Killed in the middle of the second half.
    with server.wire() as wire:
        with server.client() as client:
            begun = log_bytes(client)
            wire.send_body(bson.encode({**command, "ops": ops}))
            until("some of it is written", lambda: log_bytes(client) > begun)
        server.kill()
    server.start()
    with server.wire() as wire:
        reply = wire.command({**command, "ops": ops})
        assert reply["nModified"] == many and reply["nErrors"] == 0
        assert len(reply["retriedStmtIds"]) >= many // 2
        again = wire.command({**command, "ops": ops})
        assert again["retriedStmtIds"] == list(range(many)) and again["nModified"] == many
    with server.client() as client:
        assert client.t.c.count_documents({"n": 1}) == many


def test_top_counts_the_namespaces(client, db):
    client.bulk_write([on(db.a, InsertOne, {"_id": 1}), on(db.b, InsertOne, {"_id": 1}), on(db.b, DeleteOne, {"_id": 1})])
    totals = client.admin.command("top")["totals"]
    assert totals[f"{db.name}.a"]["insert"]["count"] == 1
    assert totals[f"{db.name}.b"]["insert"]["count"] == totals[f"{db.name}.b"]["remove"]["count"] == 1
    assert totals[f"{db.name}.b"]["update"]["count"] == 0
