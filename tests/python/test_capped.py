"""Capped collections: bounds, order, what may be done in them, and what a crash leaves."""

import os
import random
import threading
from collections import Counter

import pytest
from bson import encode
from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError, CollectionInvalid, DuplicateKeyError, PyMongoError

from agreement import assert_indexes_agree
from harness import leaf, refuses, until, winning

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))


def ids(cursor):
    return [d["_id"] for d in cursor]


def assert_valid(coll):
    report = coll.database.command("validate", coll.name, full=True)
    assert report["valid"], report
    assert report["nrecords"] == coll.count_documents({}) == coll.estimated_document_count()


@pytest.fixture
def log(db):
    return db.create_collection("log", capped=True, size=100_000, max=5)


class TestBounds:
    def test_the_newest_documents_stay_in_the_order_of_insertion(self, log):
        for i in [10, 7, 3, 8, 1, 5, 9, 2, 6, 4]:
            log.insert_one({"_id": i})
        assert ids(log.find()) == [5, 9, 2, 6, 4]
        assert ids(log.find().sort("$natural", -1)) == [4, 6, 2, 9, 5]
        assert ids(log.aggregate([{"$match": {"x": None}}])) == [5, 9, 2, 6, 4]
        assert_valid(log)

    def test_a_batch_larger_than_the_collection(self, log):
        assert len(log.insert_many([{"_id": i} for i in range(1200)]).inserted_ids) == 1200
        assert ids(log.find()) == [1195, 1196, 1197, 1198, 1199]
        assert_valid(log)

    def test_bytes(self, db):
        coll = db.create_collection("bytes", capped=True, size=4096)
        for i in range(50):
            coll.insert_one({"_id": i, "pad": "x" * 500})
            stats = db.command("collStats", "bytes")
            assert stats["size"] <= 4096
        size = len(encode({"_id": 1, "pad": "x" * 500}))
        assert ids(coll.find()) == list(range(50 - 4096 // size, 50))
        assert db.command("collStats", "bytes")["size"] == 4096 // size * size
        # One that is larger than all that there may be is taken, and goes with the next.
        coll.insert_one({"_id": "large", "pad": "x" * 10_000})
        assert ids(coll.find()) == ["large"]
        coll.insert_one({"_id": "small"})
        assert ids(coll.find()) == ["small"]
        assert_valid(coll)

    def test_an_upsert_and_an_unordered_bulk_make_room_too(self, log):
        log.insert_many([{"_id": i} for i in range(5)])
        log.update_one({"_id": "u"}, {"$set": {"x": 1}}, upsert=True)
        log.find_one_and_update({"_id": "f"}, {"$set": {"x": 1}}, upsert=True)
        assert ids(log.find()) == [2, 3, 4, "u", "f"]
        with pytest.raises(BulkWriteError) as e:
            log.insert_many([{"_id": "u"}, {"_id": "n"}, {"_id": "n"}], ordered=False)
        assert [x["code"] for x in e.value.details["writeErrors"]] == [11000, 11000]
        assert ids(log.find()) == [3, 4, "u", "f", "n"]
        log.bulk_write([UpdateOne({"_id": k}, {"$set": {"y": 1}}, upsert=True) for k in "abcdefg"])
        # "f" had gone by the time that its turn came.
        assert ids(log.find()) == ["c", "d", "e", "f", "g"]
        assert_valid(log)

    def test_changing_the_bounds(self, db, log):
        log.insert_many([{"_id": i} for i in range(5)])
        db.command("collMod", "log", cappedMax=3)
        assert ids(log.find()) == [0, 1, 2, 3, 4]
        log.insert_one({"_id": 5})
        assert ids(log.find()) == [3, 4, 5]
        db.command("collMod", "log", cappedMax=0, cappedSize=256)
        log.insert_one({"_id": 6, "pad": "x" * 150})
        assert ids(log.find()) == [3, 4, 5, 6]
        log.insert_one({"_id": 7, "pad": "x" * 150})
        assert ids(log.find()) == [7]
        assert log.options() == {"capped": True, "size": 256}
        db.plain.insert_one({})
        with refuses(72):
            db.command("collMod", "plain", cappedMax=3)


class TestIds:
    def test_ids_are_unique_until_their_document_is_gone(self, log):
        log.insert_one({"_id": 1})
        with pytest.raises(DuplicateKeyError) as e:
            log.insert_one({"_id": 1.0})
        assert e.value.details["keyValue"] == {"_id": 1.0} and "index: _id_" in str(e.value)
        log.insert_many([{"_id": i} for i in range(2, 7)])
        log.insert_one({"_id": 1})
        assert ids(log.find()) == [3, 4, 5, 6, 1]

    def test_by_id(self, log):
        log.insert_many([{"_id": i, "x": -i} for i in [3, 1, 2]])
        assert log.find_one({"_id": 1}) == {"_id": 1, "x": -1}
        assert log.find_one({"_id": 9}) is None
        assert ids(log.find({"_id": {"$in": [2, 3, 9]}}).sort("_id", 1)) == [2, 3]
        assert ids(log.find({"_id": {"$gt": 1}})) == [2, 3]
        assert ids(log.find().sort("_id", -1)) == [3, 2, 1]
        assert ids(log.find().hint("_id_")) == [1, 2, 3]
        assert ids(log.find({"_id": {"$gte": 1}}).hint([("$natural", 1)])) == [3, 1, 2]
        assert ids(log.find().hint([("_id", 1)]).min([("_id", 2)]).max([("_id", 3)])) == [2]
        assert winning(log.find({"_id": 1}).explain())["stage"] == "EXPRESS_IXSCAN"
        assert leaf(winning(log.find({"_id": {"$gt": 1}}).explain()))["indexName"] == "_id_"
        assert leaf(winning(log.find().explain()))["stage"] == "COLLSCAN"
        assert log.find({"_id": {"$lt": 3}}, {"_id": 1}).explain()["queryPlanner"]["winningPlan"]["stage"] == "PROJECTION_COVERED"

    def test_secondary_indexes_follow(self, log):
        log.create_index([("x", ASCENDING)], unique=True)
        log.create_index("tags")
        for i in range(20):
            log.insert_one({"_id": i, "x": i % 6, "tags": [i, i + 1]})
        assert ids(log.find({"x": {"$gte": 0}})) == [18, 19, 15, 16, 17]
        assert log.find_one({"x": 2}) is None
        assert ids(log.find({"tags": 17})) == [16, 17]
        with pytest.raises(DuplicateKeyError):
            log.insert_one({"_id": 99, "x": 0})
        assert_valid(log)
        assert_indexes_agree(log)
        assert sorted(i["name"] for i in log.list_indexes()) == ["_id_", "tags_1", "x_1"]
        log.drop_indexes()
        assert [i["name"] for i in log.list_indexes()] == ["_id_"]
        assert log.find_one({"_id": 18})["x"] == 0


class TestChanges:
    def test_updates_leave_documents_where_they_are(self, log):
        log.insert_many([{"_id": 1, "x": 1}, {"_id": 2, "x": 1}, {"_id": 3, "x": 2}])
        log.update_one({"_id": 1}, {"$set": {"pad": "x" * 1000}})
        log.update_many({"x": 1}, {"$set": {"x": 5}})
        log.replace_one({"_id": 2}, {"y": 1})
        assert list(log.find({}, {"pad": 0})) == [{"_id": 1, "x": 5}, {"_id": 2, "y": 1}, {"_id": 3, "x": 2}]
        assert_valid(log)

    def test_deletes(self, log):
        log.insert_many([{"_id": i} for i in range(5)])
        assert log.delete_one({"_id": 2}).deleted_count == 1
        assert log.find_one_and_delete({"_id": 0}) == {"_id": 0}
        log.insert_one({"_id": 2})
        assert ids(log.find()) == [1, 3, 4, 2]
        assert log.delete_many({}).deleted_count == 4
        log.insert_one({"_id": 1})
        assert ids(log.find()) == [1]
        assert_valid(log)

    def test_room_is_made_among_concurrent_changes(self, db):
        coll = db.create_collection("busy", capped=True, size=1 << 20, max=50)
        coll.create_index("x")
        stop, faults, done = threading.Event(), [], Counter()

        def run(work):
            rng = random.Random(SEED)
            while not stop.is_set():
                try:
                    work(rng)
                    done[work] += 1
                except PyMongoError as e:
                    faults.append(e)
                    return

        def insert(rng):
            coll.insert_many([{"x": rng.randrange(9), "pad": "x" * rng.randrange(300)} for _ in range(rng.randrange(1, 9))])

        def update(rng):
            coll.update_many({"x": rng.randrange(9)}, {"$set": {"pad": "y" * rng.randrange(600)}})

        def delete(rng):
            coll.delete_one({"x": rng.randrange(9)})
            assert coll.count_documents({}) <= 50

        threads = [threading.Thread(target=run, args=[w]) for w in [insert, insert, update, delete]]
        for t in threads:
            t.start()
        until("each has done its share", lambda: faults or min(done[w] for w in (insert, update, delete)) >= 200)
        stop.set()
        for t in threads:
            t.join()
        assert not faults, faults[0]
        assert coll.count_documents({}) <= 50
        assert_valid(coll)
        assert_indexes_agree(coll)


class TestOptions:
    def test_what_is_shown(self, db, log):
        assert log.options() == {"capped": True, "size": 100_096, "max": 5}
        log.insert_one({})
        stats = db.command("collStats", "log")
        assert (stats["capped"], stats["max"], stats["maxSize"]) == (True, 5, 100_096)
        assert db.command("serverStatus")["catalogStats"]["capped"] >= 1
        with pytest.raises(CollectionInvalid):
            db.create_collection("log", capped=True, size=100_000, max=5)
        # The command itself is content when nothing would change.
        db.command("create", "log", capped=True, size=100_000, max=5)
        with refuses(48):
            db.command("create", "log", capped=True, size=100_000, max=6)
        with refuses(72):
            db.command("create", "other", capped=True)

    def test_renamed_and_dropped(self, db, log):
        log.insert_many([{"_id": i} for i in [2, 1]])
        log.rename("renamed")
        db.renamed.insert_many([{"_id": i} for i in range(3, 8)])
        assert ids(db.renamed.find()) == [3, 4, 5, 6, 7]
        db.renamed.drop()
        assert db.list_collection_names() == []

    def test_convert_to_capped(self, db):
        db.c.insert_many([{"_id": i, "x": -i} for i in range(1000)])
        db.c.create_index("x")
        db.command("convertToCapped", "c", size=8192)
        kept = ids(db.c.find())
        assert kept == list(range(kept[0], 1000)) and len(kept) > 100
        assert db.command("collStats", "c")["size"] <= 8192
        assert [i["name"] for i in db.c.list_indexes()] == ["_id_"]
        assert db.list_collection_names() == ["c"]
        db.c.insert_one({"_id": "next"})
        assert db.c.find_one(sort=[("$natural", -1)]) == {"_id": "next"}
        assert_valid(db.c)
        with refuses(26):
            db.command("convertToCapped", "missing", size=8192)
        with refuses(72):
            db.command("convertToCapped", "c", size=0)

    def test_a_validator_does_not_stop_a_conversion(self, db):
        db.c.insert_many([{"_id": i} for i in range(5)])
        db.command("collMod", "c", validator={"x": 1})
        db.command("convertToCapped", "c", size=8192)
        assert ids(db.c.find()) == [0, 1, 2, 3, 4]
        assert db.c.options()["validator"] == {"x": 1}
        with refuses(121):
            db.c.insert_one({"_id": 5})

    def test_writes_go_on_after_a_conversion(self, db):
        """Nothing that was acknowledged is lost while the collection is replaced."""
        stop, done = threading.Event(), []

        def write():
            while not stop.is_set():
                done.append(db.c.insert_one({}).inserted_id)

        db.c.insert_one({"_id": 0})
        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(5):
            before = len(done)
            until("it writes", lambda: len(done) > before + 20)
            db.command("convertToCapped", "c", size=1 << 30)
        stop.set()
        thread.join()
        assert ids(db.c.find()) == [0, *done]
        assert_valid(db.c)

    def test_clone_collection_as_capped(self, db):
        db.c.insert_many([{"_id": i} for i in range(10)])
        db.command("cloneCollectionAsCapped", "c", toCollection="copy", size=256)
        assert db["copy"].options()["capped"]
        assert ids(db["copy"].find()) == list(range(10))
        assert ids(db.c.find()) == list(range(10))
        with refuses(48):
            db.command("cloneCollectionAsCapped", "c", toCollection="copy", size=256)


class TestRecordIds:
    def test_show_record_id(self, db, log):
        log.insert_many([{"_id": i} for i in "abcdefg"])
        shown = list(log.find({}, {"_id": 1}, show_record_id=True))
        assert [d["_id"] for d in shown] == list("cdefg")
        numbers = [d["$recordId"] for d in shown]
        assert numbers == list(range(numbers[0], numbers[0] + 5))
        assert log.find_one({"_id": "e"}, show_record_id=True)["$recordId"] == numbers[2]
        db.plain.insert_many([{"_id": i} for i in range(100)])
        assert len({d["$recordId"] for d in db.plain.find(show_record_id=True)}) == 100

    def test_return_key(self, db):
        db.c.insert_many([{"_id": 1, "a": {"b": 5}, "t": [3, 9]}, {"_id": 2, "t": [4]}])
        db.c.create_index([("a.b", -1), ("t", 1)])
        db.c.create_index("t")
        by = [("a.b", -1), ("t", 1)]
        assert list(db.c.find({"t": {"$gt": 3}}, return_key=True).hint("t_1")) == [{"t": 4}, {"t": 9}]
        assert list(db.c.find({}, return_key=True).hint(by))[0] == {"a.b": 5, "t": 3}
        assert list(db.c.find({"_id": 2}, return_key=True)) == [{"_id": 2}]
        assert list(db.c.find({"zz": None}, return_key=True)) == [{}, {}]
        ordered = db.c.find({}, return_key=True, show_record_id=True, sort=[("_id", -1)])
        assert list(ordered) == [{"_id": 2}, {"_id": 1}], "keys have no record id"
        assert list(db.c.find({}, return_key=True, sort=[("_id", -1)])) == [{"_id": 2}, {"_id": 1}]
        assert list(db.c.find({}, return_key=True, sort=[("x", 1)])) == [{}, {}]


def test_restart_and_kill(new_server):
    """Kills the server while it inserts into capped collections: bounds, order, counts and indexes hold afterwards."""
    print("PANDO_SEED", SEED)
    rng, server = random.Random(SEED), new_server()
    with server.client() as client:
        client.t.create_collection("few", capped=True, size=1 << 20, max=100)
        client.t.create_collection("small", capped=True, size=20_000)
        for name in ["few", "small"]:
            client.t[name].create_index("x")
    last = {"few": -1, "small": -1}
    for round_ in range(4):
        if round_ > 0:
            server.start()
        acknowledged = dict(last)
        with server.client(retryWrites=False) as client:
            for name in ["few", "small"]:
                coll = client.t[name]
                kept = ids(coll.find())
                # The documents that stayed are one piece, in order, up to at least the last acknowledged
                # one.
                assert kept == list(range(kept[0], kept[-1] + 1)) if kept else last[name] == -1
                if kept:
                    assert kept[-1] >= last[name]
                    assert ids(coll.find().sort("_id", 1)) == kept
                    assert coll.find_one({"_id": kept[0] - 1}) is None
                    acknowledged[name] = kept[-1]
                stats = client.t.command("collStats", name)
                assert stats["count"] == len(kept) and (name == "small" or len(kept) <= 100)
                assert stats["size"] == sum(len(encode(d)) for d in coll.find())
                assert stats["size"] <= (20_000 + 255) // 256 * 256 or name == "few"
                assert_valid(coll)
                assert_indexes_agree(coll)

        def write(name):
            with server.client(retryWrites=False) as client:
                own, n = random.Random(rng.random()), acknowledged[name]
                try:
                    while True:
                        batch = own.randrange(1, 40)
                        docs = [{"_id": n + 1 + i, "x": own.randrange(20), "pad": "x" * own.randrange(200)} for i in range(batch)]
                        client.t[name].insert_many(docs)
                        n += batch
                        acknowledged[name] = n
                except PyMongoError:
                    pass

        threads = [threading.Thread(target=write, args=[name]) for name in last]
        for t in threads:
            t.start()
        wanted = rng.randrange(50, 3000)
        until("each has so many documents more", lambda: all(acknowledged[n] >= last[n] + wanted for n in last))
        server.kill()
        for t in threads:
            t.join()
        last = acknowledged
    server.start()
    with server.client() as client:
        assert ids(client.t.few.find())[-1] >= last["few"]
        client.t.few.insert_one({"_id": "after"})
        assert ids(client.t.few.find())[-1] == "after"
