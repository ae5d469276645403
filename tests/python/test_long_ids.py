"""Collections whose `_id`s are hashes or random UUIDs: records lie in the order in which they came, and all else is as ever."""

import hashlib
import random
import threading
import uuid

import pytest
from bson.binary import UUID_SUBTYPE, Binary
from pymongo.errors import BulkWriteError, DuplicateKeyError

from agreement import assert_indexes_agree


def md5(n):
    return hashlib.md5(str(n).encode()).hexdigest()


IDS = [md5(n) for n in range(2000)]


@pytest.fixture
def hashed(db):
    db.hashed.insert_many({"_id": i, "n": n} for n, i in enumerate(IDS))
    return db.hashed


def stages(plan):
    while plan:
        yield plan["stage"]
        plan = plan.get("inputStage")


def plan_of(cursor):
    return list(stages(cursor.explain()["queryPlanner"]["winningPlan"]))


def test_lie_in_the_order_of_insertion(hashed):
    assert [d["n"] for d in hashed.find()] == list(range(2000))
    assert [d["n"] for d in hashed.find().hint([("$natural", -1)])] == list(range(1999, -1, -1))
    assert [d["$recordId"] for d in hashed.find({}, show_record_id=True).limit(3)] == [1, 2, 3]


def test_are_found_by_id(hashed):
    for n in (0, 7, 1999):
        assert hashed.find_one({"_id": md5(n)}) == {"_id": md5(n), "n": n}
    assert hashed.find_one({"_id": md5(-1)}) is None
    assert plan_of(hashed.find({"_id": IDS[0]})) == ["EXPRESS_IXSCAN"]
    wanted = IDS[5:300:7] + [md5(-1)]
    found = {d["_id"] for d in hashed.find({"_id": {"$in": wanted}})}
    assert found == set(wanted) - {md5(-1)}


def test_ranges_and_order_of_ids_come_from_the_index(hashed):
    ordered = sorted(IDS)
    assert [d["_id"] for d in hashed.find().sort("_id", 1)] == ordered
    assert [d["_id"] for d in hashed.find().sort("_id", -1).limit(9)] == ordered[:-10:-1]
    between = {"$gt": "4", "$lte": "9"}
    assert [d["_id"] for d in hashed.find({"_id": between}).sort("_id", 1)] == [i for i in ordered if "4" < i <= "9"]
    assert plan_of(hashed.find({"_id": between})) == ["FETCH", "IXSCAN"]
    covered = hashed.find({"_id": between}, {"_id": 1})
    assert plan_of(covered) == ["PROJECTION_COVERED", "IXSCAN"]
    assert sorted(d["_id"] for d in covered) == [i for i in ordered if "4" < i <= "9"]
    assert hashed.count_documents({"_id": {"$lt": "8"}}) == sum(i < "8" for i in IDS)
    assert hashed.distinct("_id", {"_id": {"$lt": "01"}}) == [i for i in ordered if i < "01"]


def test_an_id_is_there_once(hashed):
    with pytest.raises(DuplicateKeyError) as refused:
        hashed.insert_one({"_id": IDS[3]})
    details = refused.value.details
    assert details["keyPattern"] == {"_id": 1} and details["keyValue"] == {"_id": IDS[3]}
    assert f"index: _id_ dup key: {{ _id: \"{IDS[3]}\" }}" in details["errmsg"]
    new = [md5(f"new {n}") for n in range(4)]
    with pytest.raises(BulkWriteError) as refused:
        hashed.insert_many([{"_id": i} for i in (new[0], IDS[9], new[1], new[1], new[2])], ordered=False)
    assert [e["index"] for e in refused.value.details["writeErrors"]] == [1, 3]
    assert hashed.count_documents({"_id": {"$in": new}}) == 3
    assert hashed.delete_one({"_id": IDS[3]}).deleted_count == 1
    hashed.insert_one({"_id": IDS[3], "again": True})
    assert hashed.find_one({"_id": IDS[3]}) == {"_id": IDS[3], "again": True}
    assert_indexes_agree(hashed)


def test_updates_upserts_and_deletes(hashed):
    hashed.create_index("n")
    assert hashed.update_one({"_id": IDS[1]}, {"$inc": {"n": 5000}}).modified_count == 1
    assert hashed.find_one({"n": 5001})["_id"] == IDS[1]
    assert hashed.replace_one({"_id": IDS[2]}, {"n": -2}).modified_count == 1
    assert hashed.update_one({"_id": md5("up")}, {"$set": {"n": -3}}, upsert=True).upserted_id == md5("up")
    assert hashed.update_one({"_id": md5("up")}, {"$set": {"n": -4}}, upsert=True).matched_count == 1
    assert hashed.find_one_and_delete({"_id": md5("up")}) == {"_id": md5("up"), "n": -4}
    assert hashed.delete_many({"n": {"$gte": 1000, "$lt": 3000}}).deleted_count == 1000
    assert [d["n"] for d in hashed.find({"n": {"$lt": 3}}).sort("n", 1)] == [-2, 0]
    assert hashed.count_documents({}) == 1000
    assert_indexes_agree(hashed)


def test_other_ids_may_follow(hashed):
    hashed.insert_many([{"_id": 1}, {"_id": "short"}, {"_id": {"a": [1]}}])
    assert hashed.find_one({"_id": 1.0}) == {"_id": 1}
    assert [d["_id"] for d in hashed.find({}, {"_id": 1}).sort("_id", 1).limit(1)] == [1]
    with pytest.raises(DuplicateKeyError):
        hashed.insert_one({"_id": 1.0})
    assert hashed.find_one({"_id": {"a": [1]}}) is not None
    assert_indexes_agree(hashed)


@pytest.mark.parametrize(
    "first, numbered",
    [
        ("x" * 31, False),
        ("x" * 32, True),
        (b"x" * 15, False),
        (b"x" * 20, True),
        (Binary(uuid.UUID(int=0x0192_0000_0000_4000_8000_000000000000).bytes, UUID_SUBTYPE), True),
        (Binary(uuid.UUID(int=0x0192_0000_0000_7000_8000_000000000000).bytes, UUID_SUBTYPE), False),
        (1, False),
        ({"a": "x" * 40}, False),
    ],
)
def test_the_first_id_decides(db, first, numbered):
    """A record's number, which counts from 1, tells how records lie."""
    db.create_collection("some")
    db.some.insert_one({"_id": first})
    assert (db.some.find_one({}, show_record_id=True)["$recordId"] == 1) == numbered
    assert db.some.find_one({"_id": first}) == {"_id": first}


def test_an_upsert_may_be_the_first(db):
    db.some.create_index("n", unique=True)
    db.some.update_one({"_id": IDS[0]}, {"$set": {"n": 1}}, upsert=True)
    assert db.some.find_one({}, show_record_id=True)["$recordId"] == 1
    with pytest.raises(DuplicateKeyError):
        db.some.insert_one({"_id": IDS[1], "n": 1})
    assert_indexes_agree(db.some)


def test_what_else_says_how_records_lie(db):
    db.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
    db.create_collection("collated", collation={"locale": "fr"})
    for name in ("clustered", "collated"):
        db[name].insert_many({"_id": i} for i in IDS[:9])
        assert [d["_id"] for d in db[name].find()] == sorted(IDS[:9])
        assert db[name].find_one({"_id": IDS[4]}) == {"_id": IDS[4]}


def test_many_write_the_first_records_at_once(db):
    threads = [
        threading.Thread(target=lambda t=t: [db.some.insert_one({"_id": md5(f"{t} {n}"), "t": t}) for n in range(40)])
        for t in range(8)
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert db.some.count_documents({}) == 320
    assert len({d["$recordId"] for d in db.some.find({}, show_record_id=True)}) == 320
    assert_indexes_agree(db.some)


def test_stay_over_a_restart_and_a_rename(new_server):
    server = new_server()
    with server.client() as client:
        client.test.a.insert_many({"_id": i, "n": n} for n, i in enumerate(IDS))
        client.test.a.rename("b")
    server.kill()
    server.start()
    with server.client() as client:
        some = client.test.b
        some.insert_one({"_id": md5("new"), "n": -1})
        assert [d["n"] for d in some.find()] == [*range(2000), -1]
        assert some.find_one({"_id": md5("new")})["n"] == -1
        assert client.test.command("validate", "b")["valid"]
        hashes = client.test.command("dbHash")["collections"]
        # The same documents in another order of insertion have the same digest.
        everything = list(some.find())
        random.Random(1).shuffle(everything)
        client.other.b.insert_many(everything)
        assert client.other.command("dbHash")["collections"] == hashes
