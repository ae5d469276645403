"""Bounds of the later fields of a compound index: what lies between them is passed over, not read."""

import random

import pytest


@pytest.fixture
def coll(db):
    # 40 values of a, each with 100 of b.
    docs = [{"_id": i, "a": i % 40, "b": i // 40, "c": i % 7} for i in range(4000)]
    db.c.create_index([("a", 1), ("b", 1), ("c", -1)])
    db.c.insert_many(docs)
    return db.c


def stats(cursor):
    s = cursor.explain()["executionStats"]
    stage = s["executionStages"]
    while stage["stage"] != "IXSCAN":
        stage = stage["inputStage"]
    return s, stage


QUERY = {"a": {"$gte": 10, "$lt": 30}, "b": 50}


def test_entries_between_are_not_read(coll):
    assert sorted(d["_id"] for d in coll.find(QUERY)) == list(range(2010, 2030))
    s, scan = stats(coll.find(QUERY))
    assert scan["indexBounds"] == {"a": ["[10, 30)"], "b": ["[50, 50]"], "c": ["[MaxKey, MinKey]"]}
    assert "filter" not in scan
    assert s["nReturned"] == s["totalDocsExamined"] == 20
    # 2,000 entries lie in the range of a. For each a: the one that matches, the one behind it, the first of the next a, and a
    # step before each of two seeks.
    assert 60 <= s["totalKeysExamined"] <= 120
    assert 35 <= scan["seeks"] <= 41


def test_in_reverse(coll):
    found = [d["a"] for d in coll.find(QUERY).sort("a", -1)]
    assert found == list(range(29, 9, -1))
    s, scan = stats(coll.find(QUERY).sort("a", -1))
    assert scan["direction"] == "backward" and s["totalKeysExamined"] <= 120 and scan["seeks"] <= 41


def test_short_runs_are_stepped_over(db):
    db.c.create_index([("a", 1), ("b", 1)])
    db.c.insert_many([{"_id": i, "a": i, "b": i % 3} for i in range(300)])
    query = {"a": {"$gte": 30}, "b": 1}
    assert [d["_id"] for d in db.c.find(query).sort("a", 1)] == list(range(31, 300, 3))
    s, scan = stats(db.c.find(query))
    # Each entry is looked at once, as seeks to each would.
    assert (scan["seeks"], s["totalDocsExamined"]) == (1, 90) and s["totalKeysExamined"] <= 270


def test_a_bound_value_does_not_hide_the_order_behind_it(coll):
    query = {"a": {"$gte": 10}, "b": 50}
    order = [("a", 1), ("c", -1)]
    found = list(coll.find(query).sort(order))
    assert [d["a"] for d in found] == list(range(10, 40))
    plan = coll.find(query).sort(order).explain()["queryPlanner"]["winningPlan"]
    assert plan["stage"] == "FETCH" and plan["inputStage"]["stage"] == "IXSCAN"


def test_counts_and_batches(coll):
    assert coll.count_documents(QUERY) == 20
    assert coll.database.command("count", "c", query=QUERY)["n"] == 20
    assert len(list(coll.find(QUERY, batch_size=3))) == 20
    assert [d["a"] for d in coll.find(QUERY).skip(5).limit(2)] == [15, 16]
    assert coll.update_many(QUERY, {"$set": {"b": 1000}}).modified_count == 20
    assert coll.count_documents(QUERY) == 0


def test_keys_read_grow_with_values_not_with_entries(db):
    for c, each in ((db.few, 50), (db.many, 200)):
        c.create_index([("a", 1), ("b", 1)])
        c.insert_many([{"a": a, "b": b} for a in range(20) for b in range(each)])
    few, many = (stats(c.find({"a": {"$gte": 0}, "b": 7}))[0] for c in (db.few, db.many))
    assert few["nReturned"] == many["nReturned"] == 20
    assert few["totalKeysExamined"] == many["totalKeysExamined"] <= 120


def test_the_field_between_may_be_free(coll):
    # a is one value, b any, c one: 100 entries have the a, each its own b.
    query = {"a": 7, "c": 3}
    want = [i for i in range(4000) if i % 40 == 7 and i % 7 == 3]
    assert sorted(d["_id"] for d in coll.find(query)) == want
    s, scan = stats(coll.find(query))
    assert scan["indexBounds"] == {"a": ["[7, 7]"], "b": ["[MinKey, MaxKey]"], "c": ["[3, 3]"]}
    assert s["totalDocsExamined"] == len(want) and s["totalKeysExamined"] <= 100


def test_an_order_with_bounds_behind_it(coll):
    # The index gives the order of a; b bounds the entries read.
    found = coll.find({"b": {"$in": [3, 97]}}).sort("a", 1).hint([("a", 1), ("b", 1), ("c", -1)])
    assert [d["a"] for d in found] == [a for a in range(40) for _ in range(2)]
    s, scan = stats(coll.find({"b": {"$in": [3, 97]}}).sort("a", 1))
    assert scan["indexBounds"]["b"] == ["[3, 3]", "[97, 97]"]
    # Of 4,000: distances are short and long by turns.
    assert s["totalKeysExamined"] < 1000


def test_array_fields_take_only_safe_bounds(db):
    db.c.create_index([("a", 1), ("x.y", 1), ("x.z", 1)])
    db.c.insert_many([
        {"_id": 1, "a": 1, "x": [{"y": 1, "z": 9}, {"y": 9, "z": 1}]},
        {"_id": 2, "a": 2, "x": [{"y": 1, "z": 1}, {"y": 9, "z": 9}]},
        {"_id": 3, "a": 3, "x": {"y": 1, "z": 1}},
    ])
    # Two elements may match together; `$elemMatch` asks for one that does alone.
    assert [d["_id"] for d in db.c.find({"a": {"$gt": 0}, "x.y": 1, "x.z": 1}).sort("a", 1)] == [1, 2, 3]
    one = {"a": {"$gt": 0}, "x": {"$elemMatch": {"y": 1, "z": 1}}}
    assert [d["_id"] for d in db.c.find(one).sort("a", 1)] == [2]
    assert stats(db.c.find(one))[1]["indexBounds"]["x.z"] == ["[1, 1]"]
    assert stats(db.c.find({"a": {"$gt": 0}, "x.y": 1, "x.z": 1}))[1]["indexBounds"]["x.z"] == ["[MinKey, MaxKey]"]


def test_hashed_and_collated_fields(db):
    db.c.insert_many([{"_id": i, "a": i % 10, "h": i // 10, "s": "aA"[i % 2] + str(i // 10)} for i in range(400)])
    db.c.create_index([("a", 1), ("h", "hashed")])
    query = {"a": {"$gte": 2, "$lt": 6}, "h": 17}
    assert sorted(d["_id"] for d in db.c.find(query)) == [172, 173, 174, 175]
    s, scan = stats(db.c.find(query))
    assert s["totalDocsExamined"] == 4 and s["totalKeysExamined"] < 160 and scan["seeks"] > 1
    strength = {"locale": "en", "strength": 2}
    db.c.create_index([("a", -1), ("s", 1)], collation=strength)
    query = {"a": {"$gte": 2, "$lt": 6}, "s": "A17"}
    found = db.c.find(query, collation=strength).sort("a", -1)
    assert [d["_id"] for d in found] == [175, 174, 173, 172]
    s, scan = stats(db.c.find(query, collation=strength).sort("a", -1))
    assert scan["indexName"] == "a_-1_s_1" and s["totalDocsExamined"] == 4 and s["totalKeysExamined"] < 160


def test_counting_examines_no_documents(coll):
    plan = coll.database.command("explain", {"count": "c", "query": QUERY}, verbosity="executionStats")
    s = plan["executionStats"]
    assert s["totalDocsExamined"] == 0 and s["totalKeysExamined"] <= 120
    assert coll.count_documents(QUERY, skip=3, limit=10) == 10
    assert coll.count_documents({"a": {"$gte": 10, "$lt": 30}, "b": {"$gt": 97}}) == 40


def test_against_every_document(db):
    rng = random.Random(3)
    value = lambda n: rng.choice([None, "x", rng.randrange(n), rng.randrange(n) + 0.5, rng.randrange(n)])
    docs = [{"_id": i, "a": value(6), "b": value(20), "c": rng.choice([[1, 2], [], rng.randrange(5)])} for i in range(3000)]
    db.plain.insert_many(docs)
    for key in ([("a", 1), ("b", 1), ("c", 1)], [("a", -1), ("c", 1), ("b", -1)]):
        db.drop_collection("c")
        db.c.create_index(key)
        db.c.insert_many(docs)
        for _ in range(60):
            clause = lambda n: rng.choice(
                [{"$gt": rng.randrange(n)}, {"$lte": rng.randrange(n)}, rng.randrange(n), {"$in": [rng.randrange(n), None]},
                 {"$gte": rng.randrange(n), "$lt": n}, {"$ne": rng.randrange(n)}]
            )
            query = {"a": rng.choice([{"$gte": 1}, {"$in": [1, 3, "x"]}, {"$lt": 4}]), "b": clause(20), "c": clause(5)}
            want = sorted(d["_id"] for d in db.plain.find(query))
            for direction in (1, -1):
                found = list(db.c.find(query).sort(key[0][0], direction).hint(key).batch_size(50))
                assert sorted(d["_id"] for d in found) == want, query
