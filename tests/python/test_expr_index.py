"""Comparisons of `$expr` with values that no document changes look up indexes: in queries, and in `$lookup` with variables."""

import pytest

from harness import execution, leaf, stages

SCALARS = [None, 5, 5.5, "5", "x", True, {"b": 5}]


@pytest.fixture
def coll(db):
    docs = [{"_id": i, "a": v} for i, v in enumerate([*SCALARS, *range(100, 200)])]
    db.c.insert_many([*docs, {"_id": 1000}])
    db.c.create_index("a")
    return db.c


def found(coll, condition, **arguments):
    return [d["_id"] for d in coll.find({"$expr": condition}, **arguments).sort("_id", 1)]


def plan_of(coll, condition, **arguments):
    plan, stats = execution(coll, {"find": coll.name, "filter": {"$expr": condition}, **arguments})
    return stages(plan), leaf(plan).get("indexBounds"), stats["totalKeysExamined"]


def test_equality_uses_the_index(coll):
    assert found(coll, {"$eq": ["$a", 150]}) == [57]
    assert plan_of(coll, {"$eq": ["$a", 150]}) == (["FETCH", "IXSCAN"], {"a": ["[150, 150]"]}, 1)
    assert plan_of(coll, {"$eq": [150, "$a"]})[2] == 1
    assert plan_of(coll, {"$eq": ["$a", {"$add": [100, 50]}]})[2] == 1
    assert plan_of(coll, {"$eq": ["$a", "$$x"]}, let={"x": 150}) == (["FETCH", "IXSCAN"], {"a": ["[150, 150]"]}, 1)
    assert plan_of(coll, {"$eq": ["$_id", 5]})[0] == ["FETCH", "IXSCAN"]


def test_null_is_not_missing(coll):
    assert found(coll, {"$eq": ["$a", None]}) == [0]
    # The index holds null for both.
    assert plan_of(coll, {"$eq": ["$a", None]})[1:] == ({"a": ["[null, null]"]}, 2)
    assert found(coll, {"$lt": ["$a", None]}) == [1000]
    assert found(coll, {"$lte": ["$a", None]}) == [0, 1000]


def test_ranges_hold_for_all_types(coll):
    for operator in ("$lt", "$lte", "$gt", "$gte"):
        for value in (5, "5", None, True, 150):
            condition = {operator: ["$a", value]}
            by_index = found(coll, condition)
            assert by_index == found(coll, condition, hint={"$natural": 1}), condition
            assert plan_of(coll, condition)[0] == ["FETCH", "IXSCAN"], condition
    assert plan_of(coll, {"$lt": ["$a", 120]})[1] == {"a": ["[MinKey, 120)"]}
    assert plan_of(coll, {"$gte": ["$a", 120]})[1] == {"a": ["[120, MaxKey]"]}
    both = {"$and": [{"$gte": ["$a", 110]}, {"$lt": ["$a", 112]}]}
    assert plan_of(coll, both) == (["FETCH", "IXSCAN"], {"a": ["[110, 112)"]}, 2)


def test_what_cannot_use_it(coll):
    for condition in ({"$eq": ["$a", "$_id"]}, {"$ne": ["$a", 5]}, {"$eq": ["$a", [5]]}, {"$gt": [{"$rand": {}}, "$a"]}):
        assert plan_of(coll, condition)[0] == ["COLLSCAN"], condition
    # An array is one value for `$expr`, but the index holds its elements.
    coll.insert_one({"_id": 2000, "a": [150, 151]})
    assert plan_of(coll, {"$eq": ["$a", 150]})[0] == ["COLLSCAN"]
    assert found(coll, {"$eq": ["$a", [150, 151]]}) == [2000]
    assert found(coll, {"$eq": ["$a", 150]}) == [57]
    assert 2000 in found(coll, {"$gt": ["$a", 5]})


def test_alternatives_and_other_indexes(db):
    db.c.create_index([("a", 1), ("b", -1)])
    db.c.create_index("h")
    db.c.create_index([("s", 1)], sparse=True)
    db.c.insert_many([{"_id": i, "a": i % 20, "b": i, "h": i % 50, **({"s": i} if i % 2 else {})} for i in range(500)])
    either = {"$or": [{"$eq": ["$a", 3]}, {"$eq": ["$h", 7]}]}
    assert found(db.c, either) == [i for i in range(500) if i % 20 == 3 or i % 50 == 7]
    assert "OR" in plan_of(db.c, either)[0] and "COLLSCAN" not in plan_of(db.c, either)[0]
    names, bounds, keys = plan_of(db.c, {"$and": [{"$eq": ["$a", 3]}, {"$lt": ["$b", 100]}]})
    assert bounds == {"a": ["[3, 3]"], "b": ["(100, MinKey]"]} and keys == 5
    # A sparse index lacks documents that `$lt` wants.
    assert plan_of(db.c, {"$eq": ["$s", 5]})[0] == ["FETCH", "IXSCAN"]
    assert plan_of(db.c, {"$lt": ["$s", 5]})[0] == ["COLLSCAN"]
    assert found(db.c, {"$lt": ["$s", 5]})[:4] == [0, 1, 2, 3]


def test_collation(db):
    strength = {"locale": "en", "strength": 2}
    db.c.insert_many([{"_id": i, "a": v} for i, v in enumerate(["x", "X", "y", 1])])
    db.c.create_index("a")
    assert plan_of(db.c, {"$eq": ["$a", "x"]}, collation=strength)[0] == ["COLLSCAN"]
    assert plan_of(db.c, {"$eq": ["$a", 1]}, collation=strength)[0] == ["FETCH", "IXSCAN"]
    db.c.create_index("a", name="folded", collation=strength)
    assert found(db.c, {"$eq": ["$a", "x"]}, collation=strength) == [0, 1]
    names, _, keys = plan_of(db.c, {"$eq": ["$a", "x"]}, collation=strength)
    assert names == ["FETCH", "IXSCAN"] and keys == 2


def test_updates_and_counts(coll):
    assert coll.count_documents({"$expr": {"$gte": ["$a", 190]}}) == len(found(coll, {"$gte": ["$a", 190]}))
    assert coll.update_many({"$expr": {"$eq": ["$a", 150]}}, {"$set": {"a": 300}}).modified_count == 1
    assert coll.delete_many({"$expr": {"$eq": ["$a", 300]}}).deleted_count == 1


JOIN = [{"$match": {"$expr": {"$and": [{"$eq": ["$item", "$$item"]}, {"$gte": ["$stock", "$$wanted"]}]}}}, {"$project": {"_id": 1}}]


def lookup(db, pipeline=JOIN):
    stage = {"from": "stock", "let": {"item": "$item", "wanted": "$wanted"}, "pipeline": pipeline, "as": "held"}
    run = [{"$match": {}}, {"$lookup": stage}]
    explained = db.command("explain", {"aggregate": "orders", "pipeline": run, "cursor": {}}, verbosity="executionStats")
    [stage] = [s for s in explained["stages"] if "$lookup" in s]
    return {d["_id"]: [h["_id"] for h in d["held"]] for d in db.orders.aggregate(run)}, stage


def test_lookup_with_variables(db):
    db.orders.insert_many([{"_id": i, "item": i, "wanted": 5} for i in range(10)])
    db.orders.insert_many([{"_id": 10, "item": None, "wanted": 0}, {"_id": 11, "wanted": 0}])
    db.stock.insert_many([{"_id": i, "item": i % 50, "stock": i // 50} for i in range(500)])
    db.stock.insert_many([{"_id": 500, "item": None, "stock": 9}, {"_id": 501, "stock": 9}])
    without, stage = lookup(db)
    assert stage["indexesUsed"] == [] and stage["collectionScans"] == 12
    want = {i: [j for j in range(500) if j % 50 == i and j // 50 >= 5] for i in range(10)}
    assert without == {**want, 10: [500], 11: [501]}
    db.stock.create_index([("item", 1), ("stock", 1)])
    with_index, stage = lookup(db)
    assert {k: sorted(v) for k, v in with_index.items()} == without
    assert stage["indexesUsed"] == ["item_1_stock_1"]
    # Five of each item, and both that have null or nothing; a variable without a value finds no bounds.
    assert stage["totalKeysExamined"] == 52 and stage["collectionScans"] == 1


def test_lookup_again_without_bounds_where_arrays_are(db):
    db.orders.insert_many([{"_id": i, "item": i, "wanted": 0} for i in range(3)])
    db.stock.insert_many([{"_id": 1, "item": [1, 2], "stock": 1}, {"_id": 2, "item": 1, "stock": 1}])
    db.stock.create_index("item")
    held, stage = lookup(db)
    assert held == {0: [], 1: [2], 2: []} and stage["indexesUsed"] == []
