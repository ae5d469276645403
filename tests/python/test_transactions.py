"""Multi-document transactions: what one sees and writes, conflicts, ends, errors with their labels."""

import threading
import time

import pytest
from bson import Binary, Int64
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, PyMongoError

from harness import expect_error, until

TRANSIENT = "TransientTransactionError"


@pytest.fixture
def things(coll):
    """A collection with ten documents and two indexes."""
    coll.create_index("group")
    coll.create_index("unique", unique=True, sparse=True)
    coll.insert_many([{"_id": i, "group": i % 2, "n": i} for i in range(10)])
    return coll


def conflicts(call):
    """The call fails with a write conflict that drivers begin the transaction again for."""
    with pytest.raises(OperationFailure) as e:
        call()
    assert e.value.code == 112 and e.value.has_error_label(TRANSIENT), e.value.details


class Raw:
    """A session whose transaction is spoken byte by byte."""

    def __init__(self, wire, db, name, number=1):
        self.wire, self.db = wire, db
        self.lsid = {"id": Binary(name.encode().ljust(16)[:16], 4)}
        self.number = number

    def __call__(self, command, start=False, **more):
        fields = {"lsid": self.lsid, "txnNumber": Int64(self.number), "autocommit": False}
        if start:
            fields["startTransaction"] = True
        return self.wire.command({**command, "$db": more.pop("db", self.db), **fields, **more})

    def end(self, name, **more):
        return self({name: 1}, db="admin", **more)


@pytest.fixture
def raw(wire, db):
    return lambda name, number=1: Raw(wire, db.name, name, number)


def test_all_or_nothing(client, things):
    with client.start_session() as s:
        with s.start_transaction():
            things.insert_one({"_id": 100, "group": 1}, session=s)
            things.update_one({"_id": 1}, {"$inc": {"n": 100}}, session=s)
            things.delete_one({"_id": 2}, session=s)
            # No other session sees any of it.
            assert things.find_one({"_id": 100}) is None
            assert things.find_one({"_id": 1})["n"] == 1 and things.find_one({"_id": 2})
        assert things.find_one({"_id": 100}) and things.find_one({"_id": 1})["n"] == 101
        assert things.find_one({"_id": 2}) is None and things.count_documents({}) == 10
        s.start_transaction()
        things.delete_many({}, session=s)
        assert things.count_documents({}, session=s) == 0
        s.abort_transaction()
    assert things.count_documents({}) == 10
    assert things.database.command("validate", things.name, full=True)["valid"]


def test_own_writes_by_every_way_of_reading(client, things):
    with client.start_session() as s, s.start_transaction():
        things.insert_one({"_id": 50, "group": 1, "n": 50, "tags": ["x", "y"]}, session=s)
        things.update_many({"group": 0}, {"$set": {"group": 7}}, session=s)
        things.delete_one({"_id": 9}, session=s)
        by = lambda q, **kw: [d["_id"] for d in things.find(q, session=s, **kw)]
        assert by({"group": 7}) == [0, 2, 4, 6, 8]
        assert by({"group": 0}) == []
        assert by({"group": 1}) == [1, 3, 5, 7, 50]
        assert by({"group": 1}, sort=[("n", -1)], limit=2) == [50, 7]
        assert by({"group": {"$gte": 1}}, sort=[("group", -1), ("_id", 1)])[:3] == [0, 2, 4]
        assert by({"_id": {"$in": [9, 50, 0]}}) == [0, 50]
        assert by({"n": {"$gt": 6}}, skip=1) == [8, 50]
        assert by({"tags": "y"}) == [50]
        pipeline = [{"$group": {"_id": "$group", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
        assert list(things.aggregate(pipeline, session=s)) == [{"_id": 1, "n": 5}, {"_id": 7, "n": 5}]
        assert sorted(things.distinct("group", session=s)) == [1, 7]
        lookup = [{"$match": {"_id": 50}}, {"$lookup": {"from": things.name, "localField": "group", "foreignField": "group", "as": "x"}}]
        assert len(next(things.aggregate(lookup, session=s))["x"]) == 5
        found = things.find_one_and_update({"_id": 50}, {"$inc": {"n": 1}}, session=s, return_document=True)
        assert found["n"] == 51
        assert things.count_documents({"n": 51}, session=s) == 1
    assert things.find_one({"_id": 50})["n"] == 51


def test_a_snapshot_does_not_move(client, things):
    with client.start_session() as s, s.start_transaction():
        assert things.find_one({"_id": 1}, session=s)["n"] == 1
        things.update_one({"_id": 1}, {"$set": {"n": "new"}})
        things.insert_one({"_id": 77, "group": 0})
        assert things.find_one({"_id": 1}, session=s)["n"] == 1
        assert things.find_one({"_id": 77}, session=s) is None
        assert things.count_documents({"group": 0}, session=s) == 5
        # What the snapshot does not show is not matched either.
        assert things.update_one({"_id": 77}, {"$set": {"n": 1}}, session=s).matched_count == 0


def test_the_first_writer_wins(client, things):
    with client.start_session() as a, client.start_session() as b:
        a.start_transaction()
        b.start_transaction()
        things.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=a)
        conflicts(lambda: things.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=b))
        # A conflict has aborted the whole transaction.
        with pytest.raises(OperationFailure) as e:
            things.find_one({}, session=b)
        assert e.value.code == 251 and e.value.has_error_label(TRANSIENT)
        b.abort_transaction()
        a.commit_transaction()
    assert things.find_one({"_id": 1})["n"] == 2


@pytest.mark.parametrize("write", ["update", "delete", "replace", "modify", "many"])
def test_what_changed_since_the_snapshot_is_a_conflict(client, things, write):
    with client.start_session() as s:
        s.start_transaction()
        assert things.find_one({"_id": 5}, session=s)
        things.update_one({"_id": 3}, {"$set": {"n": "changed"}})
        call = {
            "update": lambda: things.update_one({"_id": 3}, {"$set": {"x": 1}}, session=s),
            "delete": lambda: things.delete_one({"_id": 3}, session=s),
            "replace": lambda: things.replace_one({"n": 3}, {"n": 4}, session=s),
            "modify": lambda: things.find_one_and_update({"_id": 3}, {"$set": {"x": 1}}, session=s),
            "many": lambda: things.update_many({"group": 1}, {"$set": {"x": 1}}, session=s),
        }[write]
        conflicts(call)
    assert things.find_one({"_id": 3}) == {"_id": 3, "group": 1, "n": "changed"}
    assert things.count_documents({"x": 1}) == 0


def test_unique_keys(client, things):
    with client.start_session() as a, client.start_session() as b:
        a.start_transaction()
        things.insert_one({"_id": 20, "unique": "k"}, session=a)
        b.start_transaction()
        conflicts(lambda: things.insert_one({"_id": 21, "unique": "k"}, session=b))
        with pytest.raises(DuplicateKeyError):
            things.insert_one({"_id": 22, "unique": "k"}, session=a)
        # The duplicate key has aborted it.
        things.insert_one({"_id": 23, "unique": "k"})
        a._transaction.reset()
        # Inserted by another after the snapshot: a conflict, not a duplicate key.
        a.start_transaction()
        things.find_one({"_id": 1}, session=a)
        things.insert_one({"_id": 24, "unique": "later"})
        conflicts(lambda: things.insert_one({"_id": 25, "unique": "later"}, session=a))
        a._transaction.reset()
        a.start_transaction()
        things.find_one({"_id": 1}, session=a)
        things.insert_one({"_id": 26})
        conflicts(lambda: things.insert_one({"_id": 26}, session=a))
    assert things.find_one({"unique": "k"})["_id"] == 23


def test_a_unique_key_moves_inside(client, things):
    things.insert_one({"_id": 20, "unique": "k"})
    with client.start_session() as s, s.start_transaction():
        things.delete_one({"_id": 20}, session=s)
        things.insert_one({"_id": 21, "unique": "k"}, session=s)
        things.update_one({"_id": 21}, {"$set": {"unique": "l"}}, session=s)
        things.insert_one({"_id": 20, "unique": "k"}, session=s)
    assert {d["_id"]: d["unique"] for d in things.find({"unique": {"$exists": True}})} == {20: "k", 21: "l"}
    assert things.database.command("validate", things.name, full=True)["valid"]


def test_a_plain_write_waits_for_the_transaction(client, things):
    with client.start_session() as s:
        s.start_transaction()
        things.update_one({"_id": 1}, {"$set": {"n": 100}}, session=s)
        done = []

        def plain():
            things.update_one({"_id": 1}, {"$inc": {"n": 1}})
            done.append(time.monotonic())

        thread = threading.Thread(target=plain)
        thread.start()
        # Others are not held up, nor are reads of the document.
        things.update_one({"_id": 2}, {"$inc": {"n": 1}})
        assert things.find_one({"_id": 1})["n"] == 1
        assert not done
        s.commit_transaction()
        thread.join(10)
        assert done
    assert things.find_one({"_id": 1})["n"] == 101


def test_a_plain_write_that_waits_obeys_its_time_limit(client, things):
    with client.start_session() as s:
        s.start_transaction()
        things.update_one({"_id": 1}, {"$set": {"n": 100}}, session=s)
        with pytest.raises(OperationFailure) as e:
            things.database.command("update", things.name, updates=[{"q": {"_id": 1}, "u": {"$set": {"n": 5}}}], maxTimeMS=200)
        assert e.value.code == 50
        s.abort_transaction()
    assert things.find_one({"_id": 1})["n"] == 1


def test_with_transaction_under_contention(client, things):
    """Every increment counts once, however often transactions begin again."""

    def add():
        with client.start_session() as s:
            for _ in range(20):
                def body(s):
                    n = things.find_one({"_id": 0}, session=s)["n"]
                    things.update_one({"_id": 0}, {"$set": {"n": n + 1}}, session=s)
                s.with_transaction(body)

    threads = [threading.Thread(target=add) for _ in range(6)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert things.find_one({"_id": 0})["n"] == 120


def test_several_collections_and_databases(client, things):
    other = client[things.database.name + "_other"]["far"]
    other.insert_one({"_id": 1})
    try:
        with client.start_session() as s, s.start_transaction():
            things.update_one({"_id": 1}, {"$set": {"n": -1}}, session=s)
            other.update_one({"_id": 1}, {"$set": {"n": -1}}, session=s)
            assert other.find_one({"_id": 1})== {"_id": 1}
        assert other.find_one({"_id": 1}) == {"_id": 1, "n": -1} and things.find_one({"_id": 1})["n"] == -1
    finally:
        client.drop_database(other.database.name)


def test_cursors_inside(client, things):
    with client.start_session() as s:
        s.start_transaction()
        cursor = things.find({}, session=s, batch_size=3, sort=[("_id", 1)])
        first = [next(cursor)["_id"] for _ in range(3)]
        things.delete_many({"_id": {"$gte": 5}})
        assert first + [d["_id"] for d in cursor] == list(range(10))
        left = things.find({}, session=s, batch_size=3)
        next(left)
        s.commit_transaction()
        with pytest.raises(PyMongoError):
            list(left)


def test_commit_and_abort_again(raw, things):
    t = raw("again")
    assert t({"insert": things.name, "documents": [{"_id": 60}]}, start=True)["ok"] == 1
    assert t.end("commitTransaction")["ok"] == 1
    assert t.end("commitTransaction")["ok"] == 1
    expect_error(t.end("abortTransaction"), 256, "TransactionCommitted")
    expect_error(t({"find": things.name}), 256, "TransactionCommitted")
    expect_error(t({"find": things.name}, start=True), 50911)
    t.number = 2
    t({"insert": things.name, "documents": [{"_id": 61}]}, start=True)
    assert t.end("abortTransaction")["ok"] == 1
    reply = t.end("commitTransaction")
    expect_error(reply, 251, "NoSuchTransaction")
    assert reply["errorLabels"] == [TRANSIENT]
    t.number = 1
    expect_error(t({"find": things.name}), 225, "TransactionTooOld")
    t.number = 9
    reply = t({"find": things.name})
    expect_error(reply, 251, "NoSuchTransaction")
    assert reply["errorLabels"] == [TRANSIENT]
    assert things.find_one({"_id": 60}) and not things.find_one({"_id": 61})


def test_a_newer_number_aborts_the_older(raw, things):
    t = raw("newer")
    t({"update": things.name, "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 5}}}]}, start=True)
    t.number = 2
    assert t({"update": things.name, "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 6}}}]}, start=True)["n"] == 1
    assert t.end("commitTransaction")["ok"] == 1
    assert things.find_one({"_id": 1})["n"] == 6


def test_what_is_not_allowed_inside(raw, things):
    def fresh():
        fresh.n = getattr(fresh, "n", 0) + 1
        return raw("forbidden", fresh.n)

    for command in [{"count": things.name}, {"drop": things.name}, {"dropIndexes": things.name, "index": "*"}, {"ping": 1}, {"explain": {"find": things.name}}]:
        expect_error(fresh()(command, start=True), 263, "OperationNotSupportedInTransaction")
    expect_error(fresh()({"find": "x"}, start=True, db="local"), 263)
    expect_error(fresh()({"find": "x"}, start=True, db="config"), 263)
    t = fresh()
    expect_error(t({"insert": things.name, "documents": [{}]}, start=True, writeConcern={"w": 1}), 72)
    t = fresh()
    expect_error(t({"find": things.name}, start=True, readConcern={"level": "linearizable"}), 72)
    t = fresh()
    assert t({"find": things.name}, start=True, readConcern={"level": "snapshot"})["ok"] == 1
    expect_error(t({"find": things.name}, readConcern={"level": "snapshot"}), 72)
    for stage in [{"$out": "x"}, {"$merge": "x"}, {"$collStats": {}}, {"$indexStats": {}}, {"$planCacheStats": {}}, {"$unionWith": "x"}]:
        expect_error(fresh()({"aggregate": things.name, "pipeline": [stage], "cursor": {}}, start=True), 263)


def test_capped_collections_are_not_written_to(client, db, raw):
    db.create_collection("ring", capped=True, size=4096)
    t = raw("capped")
    expect_error(t({"insert": "ring", "documents": [{"_id": 1}]}, start=True), 263)


def test_bad_arguments(wire, db, raw):
    lsid = {"id": Binary(b"bad arguments...", 4)}
    base = {"find": "c", "$db": db.name}
    expect_error(wire.command({**base, "lsid": lsid, "startTransaction": True, "autocommit": False}), 72)
    expect_error(wire.command({**base, "txnNumber": Int64(1), "startTransaction": True, "autocommit": False}), 72)
    expect_error(wire.command({**base, "lsid": lsid, "txnNumber": Int64(1), "autocommit": True}), 72)
    expect_error(wire.command({**base, "lsid": lsid, "txnNumber": Int64(1), "startTransaction": True}), 72)
    expect_error(raw("nothing").end("commitTransaction"), 251)
    for command in ("commitTransaction", "abortTransaction"):
        expect_error(wire.command({command: 1, "$db": "admin", "lsid": lsid}), 125, "CommandFailed")
        expect_error(wire.command({command: 1, "$db": "admin", "lsid": lsid, "txnNumber": Int64(1)}), 50768)
        expect_error(wire.command({command: 1, "$db": "admin", "lsid": lsid, "query": {}}), 40415)
    expect_error(raw("first kill")({"killCursors": "c", "cursors": [Int64(1)]}, start=True), 263)
    wire.ping()


def test_a_commit_survives_kill_9(new_server):
    server = new_server()
    # A client that is closed looks for the dead server that long, to end its sessions there.
    with server.client(serverSelectionTimeoutMS=2000) as client, server.wire() as wire:
        client.test.things.insert_one({"_id": 0})
        t = Raw(wire, "test", "survives a kill.", 4)
        assert t({"insert": "things", "documents": [{"_id": 1}, {"_id": 2}]}, start=True)["n"] == 2
        assert t({"delete": "things", "deletes": [{"q": {"_id": 0}, "limit": 1}]})["n"] == 1
        assert t.end("commitTransaction")["ok"] == 1
        t.number = 5
        assert t({"insert": "things", "documents": [{"_id": 3}]}, start=True)["n"] == 1
        server.kill()
    server.start()
    with server.client() as client, server.wire() as wire:
        assert [d["_id"] for d in client.test.things.find()] == [1, 2]
        t = Raw(wire, "test", "survives a kill.", 4)
        # The answer may have been lost on the way: the commit is sent again.
        assert t.end("commitTransaction")["ok"] == 1
        t.number = 5
        expect_error(t.end("commitTransaction"), 251, "NoSuchTransaction")
        assert client.test.things.find_one({"_id": 3}) is None


def test_one_that_is_left_is_aborted(new_server):
    server = new_server("--setParameter", "transactionLifetimeLimitSeconds=1", "--setParameter", "clientCursorMonitorFrequencySecs=1")
    with server.client() as client:
        coll = client.test.things
        coll.insert_one({"_id": 1, "n": 0})
        with client.start_session() as s:
            s.start_transaction()
            coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=s)
            assert client.admin.command("serverStatus")["transactions"]["currentOpen"] == 1
            # A plain write gets its turn when the lifetime is over.
            coll.update_one({"_id": 1}, {"$inc": {"n": 10}})
            assert coll.find_one({"_id": 1})["n"] == 10
            with pytest.raises(OperationFailure) as e:
                s.commit_transaction()
            assert e.value.code == 251
        status = client.admin.command("serverStatus")["transactions"]
        assert status["currentOpen"] == 0 and status["totalAborted"] == 1 and status["totalStarted"] == 1


def test_killing_the_session_aborts(client, things):
    with client.start_session() as s:
        s.start_transaction()
        things.update_one({"_id": 1}, {"$set": {"n": 1000}}, session=s)
        client.admin.command("killSessions", [s.session_id])
        things.update_one({"_id": 1}, {"$inc": {"n": 1}})
        with pytest.raises(OperationFailure):
            s.commit_transaction()
    assert things.find_one({"_id": 1})["n"] == 2


def test_write_errors_abort(client, things):
    with client.start_session() as s:
        s.start_transaction()
        things.insert_one({"_id": 30}, session=s)
        with pytest.raises(BulkWriteError) as e:
            things.insert_many([{"_id": 31}, {"_id": 1}], session=s)
        assert e.value.details["writeErrors"][0]["code"] == 11000
        with pytest.raises(OperationFailure) as e:
            things.find_one({}, session=s)
        assert e.value.code == 251
        s.abort_transaction()
    assert things.find_one({"_id": {"$in": [30, 31]}}) is None


def test_bulk_write_inside(client, things):
    from pymongo import DeleteOne, InsertOne, UpdateMany, UpdateOne

    with client.start_session() as s, s.start_transaction():
        result = things.bulk_write(
            [InsertOne({"_id": 40}), UpdateOne({"_id": 41}, {"$set": {"n": 1}}, upsert=True), UpdateMany({"group": 1}, {"$set": {"n": 0}}), DeleteOne({"_id": 0})],
            session=s,
        )
        assert (result.inserted_count, result.upserted_count, result.modified_count, result.deleted_count) == (1, 1, 5, 1)
    assert things.count_documents({}) == 11 and things.count_documents({"n": 0}) == 5


def test_ids_in_no_order(client, coll):
    """Where records lie under numbers, an insert takes one, and a lookup by _id goes through an index."""
    ids = [f"{i * 7919 % 1000:032d}" for i in range(20)]
    coll.insert_many([{"_id": i, "n": 0} for i in ids[:10]])
    with client.start_session() as s, s.start_transaction():
        coll.insert_many([{"_id": i, "n": 1} for i in ids[10:]], session=s)
        coll.update_one({"_id": ids[0]}, {"$set": {"n": 5}}, session=s)
        coll.delete_one({"_id": ids[1]}, session=s)
        assert coll.find_one({"_id": ids[12]}, session=s)["n"] == 1
        coll.insert_one({"_id": "f" * 32})
    assert coll.count_documents({}) == 20 and coll.find_one({"_id": ids[0]})["n"] == 5
    assert coll.database.command("validate", coll.name, full=True)["valid"]


def test_a_cursor_shows_what_was_written_before_it(client, things):
    with client.start_session() as s, s.start_transaction():
        things.insert_one({"_id": 20}, session=s)
        cursor = things.find({}, session=s, batch_size=3)
        first = [next(cursor)["_id"] for _ in range(3)]
        things.insert_one({"_id": 21}, session=s)
        assert first + [d["_id"] for d in cursor] == [*range(10), 20]
        assert things.count_documents({}, session=s) == 12


def test_a_transaction_has_a_size(raw, things):
    """A transaction that is too large is refused with a code of its own, and nothing of it stays."""
    t = raw("large")
    document = {"fill": "x" * (8 << 20)}
    reply = t({"insert": things.name, "documents": [{**document, "_id": 1000}]}, start=True)
    for i in range(1001, 1040):
        if reply["ok"] == 0:
            break
        reply = t({"insert": things.name, "documents": [{**document, "_id": i}]})
    expect_error(reply, 388, "TransactionTooLargeForCache")
    expect_error(t.end("commitTransaction"), 251)
    assert things.count_documents({}) == 10


def test_writes_that_wait_have_a_number(new_server):
    """A hundred plain writes wait for one key; the others are told at once, and the commit goes through."""
    server = new_server()
    with server.client(maxPoolSize=200) as client:
        things = client.test.things
        things.insert_one({"_id": 1, "n": 0})
        with client.start_session() as s:
            s.start_transaction()
            things.update_one({"_id": 1}, {"$set": {"n": 0}, "$inc": {"t": 1}}, session=s)
            outcomes = []

            def plain():
                try:
                    things.update_one({"_id": 1}, {"$inc": {"n": 1}})
                    outcomes.append("done")
                except OperationFailure as e:
                    outcomes.append(e.code)

            threads = [threading.Thread(target=plain) for _ in range(130)]
            [t.start() for t in threads]
            until("those beyond the queue are refused", lambda: len(outcomes) >= 30)
            assert set(outcomes) == {112}
            s.commit_transaction()
            [t.join(30) for t in threads]
        assert outcomes.count("done") == things.find_one()["n"] == 100


def test_collections_are_made_inside(client, db):
    """Explicitly and by the first insert, with indexes; others see them when the transaction commits."""
    with client.start_session() as s:
        s.start_transaction()
        db.create_collection("made", session=s)
        db.made.create_index("a", unique=True, session=s)
        db.made.insert_one({"_id": 1, "a": [1, 2]}, session=s)
        db.implied.insert_one({"_id": 1}, session=s)
        db.unborn.create_index("b", session=s)
        assert db.list_collection_names() == []
        assert db.made.find_one({"a": 2}, session=s) == {"_id": 1, "a": [1, 2]}
        lookup = [{"$lookup": {"from": "made", "localField": "_id", "foreignField": "_id", "as": "x"}}]
        assert next(db.implied.aggregate(lookup, session=s))["x"]
        assert db.implied.find_one() is None
        s.commit_transaction()
    assert sorted(db.list_collection_names()) == ["implied", "made", "unborn"]
    assert sorted(db.made.index_information()) == ["_id_", "a_1"] and "b_1" in db.unborn.index_information()
    with pytest.raises(DuplicateKeyError):
        db.made.insert_one({"a": 2})
    assert db.command("validate", "made", full=True)["valid"]
    db.implied.insert_one({"_id": 2})


def test_what_an_aborted_transaction_made_is_not_there(client, db):
    with client.start_session() as s:
        s.start_transaction()
        db.gone.insert_one({"_id": 1}, session=s)
        s.abort_transaction()
        assert db.list_collection_names() == []
        db.create_collection("gone")
        db.gone.insert_one({"_id": 1})


def test_a_name_is_made_once(client, db):
    with client.start_session() as a, client.start_session() as b:
        a.start_transaction()
        b.start_transaction()
        db.both.insert_one({"_id": 1}, session=a)
        conflicts(lambda: db.both.insert_one({"_id": 2}, session=b))
        waits = threading.Thread(target=lambda: db.both.insert_one({"_id": 3}))
        waits.start()
        a.commit_transaction()
        waits.join(20)
    assert {d["_id"] for d in db.both.find()} == {1, 3}


def test_a_name_is_made_once_while_the_commit_is_applied(client, db):
    """A transaction creates many collections; another wants the first of them until it may write to it."""
    for n in range(5):
        names = [f"c{n}_{i:02}" for i in range(50)]
        with client.start_session() as a, client.start_session() as b:
            a.start_transaction()
            for name in names:
                db[name].insert_one({"_id": 1}, session=a)

            def rival():
                while True:
                    try:
                        with b.start_transaction():
                            db[names[0]].insert_one({"_id": 2}, session=b)
                        return
                    except OperationFailure as e:
                        assert e.has_error_label(TRANSIENT), e.details

            wants = threading.Thread(target=rival)
            wants.start()
            a.commit_transaction()
            wants.join(20)
        assert [d["_id"] for d in db[names[0]].find().sort("_id")] == [1, 2]


def test_indexes_of_collections_that_exist_are_not_made_inside(raw, things):
    t = raw("indexes")
    new = {"createIndexes": things.name, "indexes": [{"key": {"z": 1}, "name": "z"}]}
    expect_error(t(new, start=True), 263, "OperationNotSupportedInTransaction")
    t.number = 2
    there = {"createIndexes": things.name, "indexes": [{"key": {"group": 1}, "name": "group_1"}]}
    assert t(there, start=True)["ok"] == 1
    expect_error(t({"create": things.name}), 48, "NamespaceExists")


def test_what_was_made_inside_survives_kill_9(new_server):
    server = new_server()
    # A client that is closed looks for the dead server that long, to end its sessions there.
    with server.client(serverSelectionTimeoutMS=2000) as client:
        with client.start_session() as s, s.start_transaction():
            client.test.made.create_index("a", session=s)
            client.test.made.insert_one({"_id": 1, "a": [1, 2]}, session=s)
        server.kill()
    server.start()
    with server.client() as client:
        assert client.test.made.find_one({"a": 2})["_id"] == 1
        client.test.another.insert_one({})
        assert client.test.command("validate", "made", full=True)["valid"]


@pytest.mark.parametrize("way", ["bulkWrite", "update", "delete", "insert"])
def test_a_later_write_of_a_command_waits(client, things, way):
    """As the first one does: until the transaction that has the document has ended, however long that takes."""
    db, ns = things.database, {"ns": things.full_name}
    command = {
        "bulkWrite": {"bulkWrite": 1, "ops": [{"update": 0, "filter": {"_id": i}, "updateMods": {"$inc": {"n": 100}}} for i in (1, 2)], "nsInfo": [ns]},
        "update": {"update": things.name, "updates": [{"q": {"_id": i}, "u": {"$inc": {"n": 100}}} for i in (1, 2)]},
        "delete": {"delete": things.name, "deletes": [{"q": {"_id": i}, "limit": 1} for i in (1, 2)]},
        # The second collides with a key that the transaction has taken, and gives up.
        "insert": {"insert": things.name, "documents": [{"_id": 100 + i} for i in range(50)] + [{"_id": 200}]},
    }[way]
    outcome = []
    with client.start_session() as s:
        s.start_transaction()
        things.update_one({"_id": 2}, {"$inc": {"n": 1}}, session=s)
        things.insert_one({"_id": 200, "by": "the transaction"}, session=s)
        run = client.admin if way == "bulkWrite" else db
        waiting = threading.Thread(target=lambda: outcome.append(run.command(command)))
        waiting.start()
        waiting.join(0.3)
        assert not outcome
        s.commit_transaction()
        waiting.join(30)
    reply = outcome[0]
    assert reply["ok"] == 1
    if way == "insert":
        assert reply["n"] == 50 and reply["writeErrors"][0]["code"] == 11000
        assert things.find_one({"_id": 200})["by"] == "the transaction"
    elif way == "delete":
        assert reply["n"] == 2 and things.find_one({"_id": {"$in": [1, 2]}}) is None
    else:
        assert reply["nModified"] == 2 and "writeErrors" not in reply
        assert [things.find_one({"_id": i})["n"] for i in (1, 2)] == [101, 103]
