"""Hashed indexes."""

import random

import pytest
from pymongo import HASHED, IndexModel

from harness import execution, leaf, refuses, stages, used


def found(documents):
    return sorted(d["_id"] for d in documents)


def test_equality_uses_it_and_ranges_do_not(coll):
    assert coll.create_index([("user", HASHED)]) == "user_hashed"
    coll.insert_many([{"_id": i, "user": f"u{i % 10}", "n": i} for i in range(100)])
    assert used(coll, {"user": "u3"}) == "user_hashed"
    assert found(coll.find({"user": "u3"})) == list(range(3, 100, 10))
    assert used(coll, {"user": {"$in": ["u1", "u2"]}}) == "user_hashed"
    assert coll.count_documents({"user": {"$in": ["u1", "u2"]}}) == 20
    assert used(coll, {"user": {"$gt": "u3"}}) == "COLLSCAN"
    assert used(coll, {"user": None}) == "user_hashed"
    assert [i for i in coll.list_indexes()][1]["key"] == {"user": "hashed"}


def test_numbers_that_share_a_hash_are_told_apart(coll):
    coll.create_index([("n", HASHED)])
    coll.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 1.5}, {"_id": 3, "n": 1.0}, {"_id": 4}])
    assert used(coll, {"n": 1}) == "n_hashed"
    assert found(coll.find({"n": 1})) == [1, 3]
    assert found(coll.find({"n": 1.5})) == [2]
    assert found(coll.find({"n": None})) == [4]


def test_the_hash_is_that_of_the_expression(coll):
    coll.create_index([("n", HASHED)])
    coll.insert_one({"n": 1})
    [row] = coll.aggregate([{"$project": {"_id": 0, "h": {"$toHashedIndexKey": "$n"}}}])
    plan, _ = execution(coll, {"find": coll.name, "filter": {"n": 1}})
    assert leaf(plan)["indexBounds"] == {"n": [f"[{row['h']}, {row['h']}]"]}


def test_compound(coll):
    coll.create_index([("tenant", 1), ("user", HASHED), ("at", -1)])
    coll.insert_many([{"_id": i, "tenant": i % 2, "user": i % 5, "at": i} for i in range(50)])
    query = {"tenant": 1, "user": 3}
    plan, _ = execution(coll, {"find": coll.name, "filter": query, "sort": {"at": -1}})
    assert "SORT" not in stages(plan) and leaf(plan)["indexName"] == "tenant_1_user_hashed_at_-1"
    assert [d["_id"] for d in coll.find(query).sort("at", -1)] == [43, 33, 23, 13, 3]
    # Fields beside the hashed one can be read from the index.
    rows = list(coll.find({"tenant": 1}, {"_id": 0, "at": 1}).hint("tenant_1_user_hashed_at_-1").limit(2))
    assert all(list(r) == ["at"] for r in rows)


def test_what_is_refused(coll):
    coll.create_index([("a", HASHED)])
    with refuses(16766):
        coll.insert_one({"a": [1, 2]})
    coll.insert_one({"_id": 1, "a": 1})
    with refuses(16766):
        coll.update_one({"_id": 1}, {"$set": {"a": []}})
    assert coll.find_one({"_id": 1})["a"] == 1
    with refuses(16764):
        coll.create_index([("b", HASHED)], unique=True)
    with refuses(31303):
        coll.create_index([("b", HASHED), ("c", HASHED)])
    coll.insert_one({"d": [1]})
    with refuses(16766):
        coll.create_index([("d", HASHED)])
    assert "d_hashed" not in coll.index_information()


def test_id(coll):
    coll.insert_many([{"_id": i} for i in range(20)])
    assert coll.create_index([("_id", HASHED)]) == "_id_hashed"
    assert found(coll.find({"_id": 7}).hint("_id_hashed")) == [7]


@pytest.mark.parametrize("seed", [1, 2])
def test_agrees_with_a_scan(coll, seed):
    r = random.Random(seed)
    value = lambda: r.choice([None, 1, 1.0, 1.7, 2, "x", "y", {"b": 1}, True, -3])
    coll.create_indexes([IndexModel([("a", HASHED)]), IndexModel([("b", 1), ("a.b", HASHED)])])
    coll.insert_many([{"_id": i, **({"a": value()} if r.random() < 0.8 else {}), "b": r.randrange(3)} for i in range(100)])
    for _ in range(60):
        query = r.choice([{"a": value()}, {"a": {"$in": [value(), value()]}}, {"b": r.randrange(3), "a.b": 1}, {"a": {"$ne": value()}}])
        assert found(coll.find(query)) == found(coll.find(query).hint([("$natural", 1)])), query
