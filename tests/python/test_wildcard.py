"""Wildcard indexes."""

import random

import pytest
from pymongo import IndexModel

from harness import execution, leaf, refuses, stages


def found(documents):
    return sorted(d["_id"] for d in documents)


def bottom(coll, query, **more):
    plan, _ = execution(coll, {"find": coll.name, "filter": query, **more})
    return leaf(plan)


def test_any_field(coll):
    assert coll.create_index([("$**", 1)]) == "$**_1"
    coll.insert_many([
        {"_id": 1, "a": 1, "tags": ["x", "y"]},
        {"_id": 2, "a": {"b": 5, "c": [{"d": 1}, {"d": 2}]}},
        {"_id": 3, "z": None, "a": "text"},
    ])
    for query, want in [
        ({"a": 1}, [1]),
        ({"tags": "y"}, [1]),
        ({"a.b": {"$gte": 3}}, [2]),
        ({"a.c.d": 2}, [2]),
        ({"a": {"$exists": True}}, [1, 2, 3]),
        ({"a": {"$regex": "^te"}}, [3]),
        ({"a.c.d": {"$in": [1, 7]}}, [2]),
        ({"a": {"$ne": None}}, [1, 2, 3]),
    ]:
        scan = bottom(coll, query)
        assert scan["indexName"] == "$**_1", (query, scan)
        assert found(coll.find(query)) == want
    # What may be true of documents without the field, or of documents and arrays themselves, it cannot tell.
    for query, want in [({"z": None}, [1, 2, 3]), ({"a": {"b": 5}}, []), ({"tags": ["x", "y"]}, [1]), ({"a": {"$ne": 1}}, [2, 3])]:
        assert bottom(coll, query)["stage"] == "COLLSCAN", query
        assert found(coll.find(query)) == want


def test_explain(coll):
    coll.create_index([("$**", 1)])
    coll.insert_one({"a": {"b": 3}})
    scan = bottom(coll, {"a.b": {"$gt": 1}})
    assert scan["keyPattern"] == {"$_path": 1, "a.b": 1}
    assert scan["indexBounds"] == {"$_path": ['["a.b", "a.b"]'], "a.b": ["(1, inf.0]"]}
    assert scan["isMultiKey"] is False and scan["isSparse"] is True


def test_order_and_covered(coll):
    coll.create_index([("$**", 1)])
    coll.insert_many([{"_id": i, "a": (i * 7) % 20} for i in range(20)])
    plan, _ = execution(coll, {"find": coll.name, "filter": {"a": {"$gte": 5}}, "sort": {"a": -1}, "projection": {"_id": 0, "a": 1}})
    assert "SORT" not in stages(plan) and "FETCH" not in stages(plan)
    assert [d["a"] for d in coll.find({"a": {"$gte": 5}}, {"_id": 0, "a": 1}).sort("a", -1)] == list(range(19, 4, -1))
    plan, _ = execution(coll, {"find": coll.name, "filter": {}, "sort": {"a": 1}})
    assert "SORT" in stages(plan)


def test_part_of_the_fields(coll):
    coll.create_index([("sub.$**", 1)], name="sub")
    coll.create_index([("$**", 1)], name="some", wildcardProjection={"a": 0, "sub": 0})
    coll.insert_many([{"_id": 1, "a": 1, "b": 2, "sub": {"x": 5}}, {"_id": 2, "a": 3, "b": 4, "sub": {"x": 6}}])
    assert bottom(coll, {"sub.x": 5})["indexName"] == "sub"
    assert bottom(coll, {"b": 2})["indexName"] == "some"
    assert bottom(coll, {"a": 1})["stage"] == "COLLSCAN"
    assert bottom(coll, {"_id": {"$gt": 0}, "a": 1})["stage"] != "COLLSCAN"
    with refuses(291):
        list(coll.find({"a": 1}).hint("some"))
    assert found(coll.find({"$or": [{"b": 2}, {"b": 4}]}).hint("some")) == [1, 2]
    assert coll.index_information()["some"]["wildcardProjection"] == {"a": 0, "sub": 0}


def test_compound(coll):
    coll.create_index([("tenant", 1), ("$**", 1)], name="c", wildcardProjection={"tenant": 0})
    coll.insert_many([{"_id": i, "tenant": i % 3, "v": {"x": i}} for i in range(30)])
    coll.insert_one({"_id": 99, "tenant": 1})
    assert bottom(coll, {"tenant": 1, "v.x": {"$gt": 20}})["indexBounds"]["v.x"] == ["(20, inf.0]"]
    assert found(coll.find({"tenant": 1, "v.x": {"$gt": 20}})) == [22, 25, 28]
    # Without a wildcard field the others serve alone, and every document counts once.
    assert found(coll.find({"tenant": 1}).hint("c")) == [*range(1, 30, 3), 99]
    with refuses(7246301):
        coll.insert_one({"tenant": [1, 2]})


def test_what_is_refused(coll):
    for key, options, code in [
        ([("$**", 1)], {"unique": True}, 67),
        ([("$**", 1)], {"sparse": True}, 67),
        ([("$**", 1)], {"expireAfterSeconds": 5}, 67),
        ([("$**", "hashed")], {}, 67),
        ([("$**.a", 1)], {}, 67),
        ([("$**", 1), ("a.$**", 1)], {}, 7246201),
        ([("a.$**", 1)], {"wildcardProjection": {"b": 1}}, 9),
        ([("$**", 1)], {"wildcardProjection": {}}, 9),
        ([("$**", 1)], {"wildcardProjection": {"a": 1, "b": 0}}, 31254),
        ([("a", 1), ("$**", 1)], {"wildcardProjection": {"b": 0}}, 7246209),
        ([("a", 1)], {"wildcardProjection": {"b": 0}}, 2),
    ]:
        with refuses(code):
            coll.create_index(key, name="w", **options)


def test_kept_in_step(coll):
    coll.create_index([("$**", 1)])
    coll.insert_one({"_id": 1, "a": {"b": 1}, "c": [1, 2]})
    coll.update_one({"_id": 1}, {"$set": {"a.b": 2}, "$push": {"c": 3}, "$unset": {"x": 1}})
    assert found(coll.find({"a.b": 1})) == [] and found(coll.find({"a.b": 2})) == [1] and found(coll.find({"c": 3})) == [1]
    coll.update_one({"_id": 1}, {"$unset": {"a": 1}})
    assert found(coll.find({"a.b": {"$exists": True}})) == []
    assert coll.database.command("validate", coll.name)["valid"] is True
    coll.delete_one({"_id": 1})
    assert found(coll.find({"c": 3})) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_agrees_with_a_scan(coll, seed):
    r = random.Random(seed)

    def value(depth=2):
        kind = r.randrange(9 if depth else 5)
        if kind < 5:
            return r.choice([None, 1, 2.5, "x", True, 7])
        if kind < 7:
            return {k: value(depth - 1) for k in r.sample("bcd", r.randrange(3))}
        return [value(depth - 1) for _ in range(r.randrange(3))]

    coll.create_indexes([IndexModel([("$**", 1)]), IndexModel([("a.$**", -1)], name="a")])
    coll.insert_many([{"_id": i, **{k: value() for k in r.sample("abc", r.randrange(4))}} for i in range(150)])
    for _ in range(150):
        path = r.choice(["a", "a.b", "a.c", "b", "b.d", "c", "a.b.c"])
        test = r.choice([
            1, "x", {"$gt": 1}, {"$lte": "x"}, {"$in": [1, 7]}, {"$exists": True}, {"$exists": False}, {"$ne": None},
            {"$type": "string"}, {"$gt": 0, "$lt": 3}, {"$elemMatch": {"$gt": 1}}, {"$not": {"$gt": 1}}, None, {"$size": 1},
        ])
        query = {path: test, **({"b": {"$exists": True}} if r.random() < 0.3 else {})}
        assert found(coll.find(query)) == found(coll.find(query).hint([("$natural", 1)])), query


def test_a_hint_asks_for_what_is_there(coll):
    """Where the values cannot be asked of the index, entries on the path still tell which documents may match."""
    coll.create_index([("$**", 1)], name="all")
    coll.insert_many(
        [
            {"_id": 1, "v": [[1, 2]], "o": {"0": "x"}},
            {"_id": 2, "v": 5, "o": ["x"]},
            {"_id": 3, "v": [{"w": 1}], "o": ["y", "x"]},
            {"_id": 4, "v": []},
            {"_id": 5, "o": [["x"]]},
        ]
    )
    for query in ({"v": {"$type": "array"}}, {"o.0": "x"}, {"o.0.0": {"$exists": True}}, {"v": {"$size": 1}}):
        want = found(coll.find(query, hint=[("$natural", 1)]))
        assert want and found(coll.find(query, hint="all")) == want, query
        assert bottom(coll, query, hint="all")["indexName"] == "all"
    with refuses(291):
        list(coll.find({"v": {"$exists": False}}, hint="all"))
