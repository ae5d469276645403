"""Long lists for `$in`: a seek for a value at most, in reads and in writes, and none where the values lie together."""

import os
import random

import pytest
from pymongo import DeleteMany, UpdateMany

from harness import execution, leaf, stages

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
MANY = 3000


@pytest.fixture
def many(coll):
    coll.insert_many([{"_id": i, "a": i * 2, "b": i % 3, "c": [i, -i]} for i in range(MANY)])
    coll.create_index("a")
    coll.create_index([("b", 1), ("a", -1)])
    coll.create_index("c")
    return coll


def test_ids(many):
    wanted = list(range(0, 2 * MANY, 2))
    _, stats = execution(many, {"find": many.name, "filter": {"_id": {"$in": wanted}}})
    assert stats["nReturned"] == stats["totalDocsExamined"] == MANY // 2
    assert stats["totalKeysExamined"] <= len(wanted)
    assert [d["_id"] for d in many.find({"_id": {"$in": wanted[::-1]}}).sort("_id", -1)] == wanted[: MANY // 2][::-1]


def test_an_index(many):
    """Every other value is there; those that are lie side by side."""
    wanted = list(range(2 * MANY))
    plan, stats = execution(many, {"find": many.name, "filter": {"a": {"$in": wanted}}})
    assert stages(plan) == ["FETCH", "IXSCAN"] and leaf(plan)["indexName"] == "a_1"
    assert stats["totalKeysExamined"] == stats["totalDocsExamined"] == MANY
    assert leaf(stats["executionStages"])["seeks"] <= 5, "the scan goes from value to value without looking for them"
    _, stats = execution(many, {"count": many.name, "query": {"a": {"$in": wanted}}})
    assert stats["totalKeysExamined"] == MANY and many.count_documents({"a": {"$in": wanted}}) == MANY
    far = list(range(0, 2 * MANY, 20))
    _, stats = execution(many, {"find": many.name, "filter": {"a": {"$in": far}}})
    assert stats["totalKeysExamined"] == stats["nReturned"] == len(far)
    assert leaf(stats["executionStages"])["seeks"] <= len(far)


def test_the_second_field(many):
    wanted = list(range(0, 2 * MANY, 6))
    query = {"b": 0, "a": {"$in": wanted}}
    plan, stats = execution(many, {"find": many.name, "filter": query, "hint": "b_1_a_-1"})
    assert stats["totalKeysExamined"] == stats["nReturned"] == len(wanted) and stages(plan) == ["FETCH", "IXSCAN"]
    assert [d["a"] for d in many.find(query, hint="b_1_a_-1").sort("a", -1)] == wanted[::-1]


def examined(many, operation):
    many.database.command("profile", 2)
    operation()
    many.database.command("profile", 0)
    (entry,) = many.database["system.profile"].find({"op": {"$in": ["remove", "update"]}}).sort("$natural", -1).limit(1)
    return entry["keysExamined"], entry["docsExamined"]


@pytest.mark.parametrize("field", ["_id", "a"])
def test_writes(many, field):
    values = [i if field == "_id" else 2 * i for i in range(500, 1500)]
    query = {field: {"$in": [*values, -1, -2, "none"]}}
    keys, docs = examined(many, lambda: many.update_many(query, {"$set": {"n": 1}}))
    assert keys <= 1003 and docs == 1000, "each is read once"
    assert many.count_documents({"n": 1}) == 1000
    assert many.update_many(query, {"$set": {"n": 1}}).raw_result["nModified"] == 0
    keys, docs = examined(many, lambda: many.delete_many(query))
    assert keys <= 1003 and docs == 1000
    assert many.count_documents({}) == MANY - 1000 and many.count_documents({"n": 1}) == 0
    result = many.bulk_write([UpdateMany(query, {"$set": {"n": 1}}), DeleteMany({field: {"$in": values[:1] + [0]}})])
    assert (result.matched_count, result.deleted_count) == (0, 1)


def test_an_array_is_written_once(many):
    assert many.update_many({"c": {"$in": list(range(-10, 11))}}, {"$inc": {"n": 1}}).matched_count == 11
    assert many.count_documents({"n": 1}) == 11
    assert many.delete_many({"c": {"$in": list(range(-10, 11))}}).deleted_count == 11


def test_it_is_what_a_collection_scan_gives(coll):
    print(f"PANDO_SEED={SEED}")
    rng = random.Random(SEED)
    for keys in ([("a", 1)], [("a", -1), ("b", 1)], [("b", 1), ("a", 1), ("c", 1)]):
        coll.drop()
        coll.create_index(keys)
        coll.insert_many(
            [{"_id": i, "a": rng.choice([rng.randrange(60), "x", None]), "b": rng.randrange(3), "c": i % 4} for i in range(400)]
        )
        for _ in range(40):
            values = [rng.randrange(-5, 65) for _ in range(rng.randrange(1, 40))] + rng.sample(["x", "y", None], rng.randrange(3))
            a = rng.choice([{"$in": values}, {"$nin": values}, {"$in": values, "$gt": 20}])
            query = {"a": a, **rng.choice([{}, {"b": {"$in": [0, 2]}}, {"b": 1}, {"c": {"$lte": 2}}])}
            sort = rng.choice([[("a", 1), ("b", 1), ("c", 1), ("_id", 1)], [("a", -1), ("b", -1), ("c", -1), ("_id", -1)], keys])
            if sort is keys:
                got = sorted(d["_id"] for d in coll.find(query, hint=keys, batch_size=7).sort(sort))
                assert got == sorted(d["_id"] for d in coll.find(query, hint=[("$natural", 1)])), query
            else:
                found = coll.find(query, hint=keys, batch_size=7).sort(sort)
                plain = coll.find(query, hint=[("$natural", 1)]).sort(sort)
                assert list(found) == list(plain), (query, sort)
