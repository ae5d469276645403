"""distinct, and $group where one document of each group is enough, go through an index from value to value."""

import os
import random

import pytest
from bson import Decimal128, Int64

from harness import execution, leaf, stages

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
NATURAL = {"$natural": 1}


def key(value):
    """Equal for values that MongoDB holds equal."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, str(value))
    if isinstance(value, Decimal128):
        return ("number", float(value.to_decimal()))
    if isinstance(value, (int, float)):
        return ("number", float(value))
    if isinstance(value, list):
        return ("list", tuple(key(v) for v in value))
    return ("document", tuple((k, key(v)) for k, v in value.items()))


def values(coll, path, query=None, **options):
    reply = coll.database.command("distinct", coll.name, key=path, query=query or {}, **options)
    return sorted((key(v) for v in reply["values"]), key=str)


def distinct_plan(coll, path, query=None, **options):
    return execution(coll, {"distinct": coll.name, "key": path, "query": query or {}, **options})


def group_plan(coll, pipeline, **options):
    command = {"aggregate": coll.name, "pipeline": pipeline, "cursor": {}, **options}
    reply = coll.database.command("explain", command, verbosity="executionStats")
    cursor = reply["stages"][0]["$cursor"] if "stages" in reply else reply
    plan = cursor["queryPlanner"]["winningPlan"]
    return plan.get("queryPlan", plan), cursor["executionStats"]


@pytest.fixture
def many(coll):
    """Ten values, each in 200 documents."""
    coll.insert_many([{"_id": i, "a": i % 10, "b": i % 7, "c": i} for i in range(2000)])
    coll.create_index([("a", 1), ("b", 1)])
    return coll


def test_distinct_examines_a_few_keys(many):
    plan, stats = distinct_plan(many, "a")
    assert stages(plan) == ["PROJECTION_COVERED", "DISTINCT_SCAN"]
    scan = leaf(plan)
    assert scan["indexName"] == "a_1_b_1" and scan["direction"] == "forward"
    assert scan["indexBounds"] == {"a": ["[MinKey, MaxKey]"], "b": ["[MinKey, MaxKey]"]}
    assert stats["totalDocsExamined"] == 0 and stats["nReturned"] == 10
    assert stats["totalKeysExamined"] <= 25, "about one or two for each value, not one for each document"
    assert many.distinct("a") == list(range(10))


def test_distinct_within_bounds(many):
    for query, wanted in [({"a": {"$gt": 6}}, [7, 8, 9]), ({"a": {"$in": [3, 5, 77]}}, [3, 5]), ({"a": 4}, [4])]:
        plan, stats = distinct_plan(many, "a", query)
        assert stages(plan) == ["PROJECTION_COVERED", "DISTINCT_SCAN"], query
        assert stats["totalKeysExamined"] <= 2 * len(wanted) + 2
        assert many.distinct("a", query) == wanted
    # The second field, behind one value of the first.
    plan, stats = distinct_plan(many, "b", {"a": 3})
    assert stages(plan) == ["PROJECTION_COVERED", "DISTINCT_SCAN"] and stats["totalKeysExamined"] <= 15
    assert many.distinct("b", {"a": 3}) == list(range(7))


def test_what_the_index_does_not_decide_is_scanned(many):
    for path, query in [("a", {"c": {"$gt": 5}}), ("b", {}), ("a", {"b": 3}), ("b", {"a": {"$gt": 3}})]:
        plan, _ = distinct_plan(many, path, query)
        assert leaf(plan)["stage"] != "DISTINCT_SCAN", (path, query)
        assert values(many, path, query) == values(many, path, query, hint=NATURAL)


def test_hints(many):
    many.create_index("a", name="short")
    assert leaf(distinct_plan(many, "a")[0])["indexName"] == "short"
    assert leaf(distinct_plan(many, "a", hint="a_1_b_1")[0])["indexName"] == "a_1_b_1"
    assert leaf(distinct_plan(many, "a", hint=NATURAL)[0])["stage"] == "COLLSCAN"


def test_missing_is_no_value_but_null_is(coll):
    coll.create_index("a")
    coll.insert_many([{"_id": i} for i in range(50)])
    assert coll.distinct("a") == []
    coll.insert_one({"_id": 99, "a": None})
    coll.insert_one({"_id": 100})
    coll.insert_one({"_id": 101, "a": 1})
    assert coll.distinct("a") == [None, 1]
    assert leaf(distinct_plan(coll, "a")[0])["stage"] == "DISTINCT_SCAN"
    assert [g["_id"] for g in coll.aggregate([{"$group": {"_id": "$a"}}, {"$sort": {"_id": 1}}])] == [None, 1]


def test_equal_numbers_are_one_value(coll):
    coll.create_index("a")
    coll.insert_many([{"a": v} for v in (1, 1.0, Int64(1), Decimal128("1.0"), 2, 2.5, Decimal128("2.50"))])
    assert values(coll, "a") == [("number", 1.0), ("number", 2.0), ("number", 2.5)]


def test_arrays_are_taken_apart(coll):
    coll.create_index("a")
    coll.insert_many([{"a": [1, 2]}, {"a": [2, [3]]}, {"a": []}, {"a": [None]}, {}, {"a": 7}])
    assert values(coll, "a") == values(coll, "a", hint=NATURAL)
    # A filter on an element says nothing about the others.
    assert values(coll, "a", {"a": 1}) == [("number", 1.0), ("number", 2.0)]
    assert leaf(distinct_plan(coll, "a", {"a": 1})[0])["stage"] != "DISTINCT_SCAN"
    # A group is by the whole array.
    assert leaf(group_plan(coll, [{"$group": {"_id": "$a"}}])[0])["stage"] != "DISTINCT_SCAN"


def test_sparse_and_partial(coll):
    coll.insert_many([{"_id": i, "a": i % 5, "b": i % 2} if i % 3 else {"_id": i, "b": i % 2} for i in range(300)])
    coll.create_index("a", sparse=True, name="sparse")
    assert leaf(distinct_plan(coll, "a")[0])["stage"] == "DISTINCT_SCAN", "what it leaves out has no value"
    assert coll.distinct("a") == [0, 1, 2, 3, 4]
    assert len(list(coll.aggregate([{"$group": {"_id": "$a"}}]))) == 6, "a group of those without"
    coll.drop_index("sparse")
    coll.create_index("a", partialFilterExpression={"a": {"$gt": 2}}, name="partial")
    assert coll.distinct("a") == [0, 1, 2, 3, 4]
    assert leaf(distinct_plan(coll, "a", {"a": {"$gt": 3}})[0])["stage"] == "DISTINCT_SCAN"
    assert coll.distinct("a", {"a": {"$gt": 3}}) == [4]


def test_collations(coll):
    coll.insert_many([{"_id": i, "a": "aAbB"[i % 4], "n": i} for i in range(100)])
    ignoring = {"locale": "en", "strength": 2}
    coll.create_index("a", collation=ignoring, name="ignoring")
    assert values(coll, "a") == sorted(key(v) for v in "aAbB")
    assert leaf(distinct_plan(coll, "a")[0])["stage"] == "COLLSCAN"
    plan, stats = distinct_plan(coll, "a", collation=ignoring)
    assert stages(plan) == ["FETCH", "DISTINCT_SCAN"] and stats["totalDocsExamined"] == 2
    assert len(values(coll, "a", collation=ignoring)) == 2
    coll.create_index("a", name="plain")
    assert values(coll, "a") == sorted(key(v) for v in "aAbB")
    assert len(values(coll, "a", collation=ignoring)) == 2
    groups = coll.aggregate([{"$group": {"_id": "$a"}}], collation=ignoring)
    assert len(list(groups)) == 2


def test_group_without_fields(many):
    plan, stats = group_plan(many, [{"$group": {"_id": "$a"}}])
    assert stages(plan) == ["PROJECTION_COVERED", "DISTINCT_SCAN"] and stats["totalKeysExamined"] <= 25
    assert sorted(g["_id"] for g in many.aggregate([{"$group": {"_id": "$a"}}])) == list(range(10))
    # A limit counts documents, not groups; another field counts them.
    for pipeline in ([{"$limit": 50}, {"$group": {"_id": "$a"}}], [{"$group": {"_id": "$a", "n": {"$sum": 1}}}]):
        assert leaf(group_plan(many, pipeline)[0])["stage"] != "DISTINCT_SCAN"


def test_first_and_last_of_each_group(many):
    group = {"_id": "$a", "b": {"$first": "$b"}}
    for sort, name in [({"a": 1, "b": 1}, "$first"), ({"a": -1, "b": -1}, "$first"), ({"b": 1}, "$first"), ({"a": 1, "b": 1}, "$last")]:
        pipeline = [{"$sort": sort}, {"$group": {"_id": "$a", "b": {name: "$b"}}}]
        plan, stats = group_plan(many, pipeline)
        assert stages(plan) == ["PROJECTION_COVERED", "DISTINCT_SCAN"], pipeline
        assert stats["totalKeysExamined"] <= 25
        first = (sort["b"] == 1) == (name == "$first")
        assert sorted((g["_id"], g["b"]) for g in many.aggregate(pipeline)) == [(i, 0 if first else 6) for i in range(10)]
    # What the index does not hold is fetched, once for each group.
    pipeline = [{"$sort": {"a": 1, "b": 1}}, {"$group": {"_id": "$a", "c": {"$first": "$c"}, "all": {"$first": "$$ROOT"}}}]
    plan, stats = group_plan(many, pipeline)
    assert stages(plan) == ["FETCH", "DISTINCT_SCAN"] and stats["totalDocsExamined"] == 10
    for found in many.aggregate(pipeline):
        assert found["all"]["c"] == found["c"] and found["all"]["b"] == 0 and found["all"]["a"] == found["_id"]
    # Not without an order, not in one that the index has not, and not where both ends are asked for.
    for pipeline in (
        [{"$group": group}],
        [{"$sort": {"c": 1}}, {"$group": group}],
        [{"$sort": {"a": 1, "b": -1, "c": 1}}, {"$group": group}],
        [{"$sort": {"a": 1, "b": 1}}, {"$group": {**group, "last": {"$last": "$b"}}}],
    ):
        assert leaf(group_plan(many, pipeline)[0])["stage"] != "DISTINCT_SCAN", pipeline


def test_the_profiler_names_the_stage(many):
    many.database.command("profile", 2)
    many.distinct("a")
    many.database.command("profile", 0)
    entry = many.database["system.profile"].find_one({"command.distinct": many.name})
    assert entry["planSummary"] == "DISTINCT_SCAN { a: 1, b: 1 }" and entry["keysExamined"] <= 25


SCALARS = [None, 1, 1.0, Int64(1), 2, 3, 3.5, "x", "X", "y", True, {"b": 1}, Decimal128("2")]


def random_value(rng, arrays, depth=2):
    kind = rng.random()
    if arrays and kind < 0.25 and depth:
        return [random_value(rng, arrays, depth - 1) for _ in range(rng.randrange(3))]
    if kind < 0.4 and depth:
        return {"b": random_value(rng, arrays, depth - 1)} if rng.random() < 0.8 else {}
    return rng.choice(SCALARS)


def random_query(rng):
    queries = [
        {},
        {},
        {"a": rng.choice(SCALARS)},
        {"a": {"$gte": rng.choice([1, "x"])}},
        {"a": {"$in": [rng.choice(SCALARS), rng.choice(SCALARS)]}},
        {"a": {"$exists": rng.random() < 0.5}},
        {"a": {"$ne": None}},
        {"c": rng.choice([1, 2])},
        {"c": rng.choice([1, 2]), "a": {"$lt": 3}},
        {"c": {"$gt": 1}, "a": 1},
        {"a.b": {"$gte": 1}},
    ]
    return rng.choice(queries)


@pytest.mark.parametrize("arrays", [False, True])
def test_it_is_what_a_collection_scan_gives(coll, arrays):
    print(f"PANDO_SEED={SEED}")
    rng = random.Random(SEED)
    indexes = [
        dict(keys=[("a", 1)]),
        dict(keys=[("a", -1), ("c", 1)]),
        dict(keys=[("c", 1), ("a", 1)]),
        dict(keys=[("a.b", 1)]),
        dict(keys=[("a", 1)], sparse=True),
        dict(keys=[("c", 1), ("a", -1), ("d", 1)], sparse=True),
        dict(keys=[("a", 1)], partialFilterExpression={"a": {"$exists": True}}),
    ]
    scans = 0
    for _ in range(12):
        coll.drop()
        for number, index in enumerate(rng.sample(indexes, rng.randrange(1, 4))):
            coll.create_index(**index, name=f"i{number}")
        docs = []
        for n in range(60):
            doc = {"_id": n, "n": n}
            if rng.random() < 0.8:
                doc["a"] = random_value(rng, arrays)
            if rng.random() < 0.8:
                doc["c"] = rng.choice([1, 2, 3])
            if rng.random() < 0.5:
                doc["d"] = rng.randrange(4)
            docs.append(doc)
        coll.insert_many(docs)
        for _ in range(25):
            query, path = random_query(rng), rng.choice(["a", "a", "a.b", "c"])
            options = {} if rng.random() < 0.7 else {"collation": {"locale": "en", "strength": 2}}
            plan = leaf(distinct_plan(coll, path, query, **options)[0])
            scans += plan["stage"] == "DISTINCT_SCAN"
            got, want = values(coll, path, query, **options), values(coll, path, query, hint=NATURAL, **options)
            # Which of the strings that are equal under a collation is given, is not specified.
            fold = (lambda all: sorted(str(v).lower() for v in all)) if options else (lambda all: all)
            assert fold(got) == fold(want), (path, query, options, plan)
            sort = rng.choice([None, {"a": 1, "c": 1, "_id": 1}, {"c": -1, "a": 1, "_id": -1}, {"c": 1, "_id": 1}])
            name = rng.choice(["$first", "$last"])
            fields = {"n": {name: "$n"}, "c": {name: "$c"}} if sort else {}
            by = rng.choice(["a", "c"])
            pipeline = [{"$match": query}, *([{"$sort": sort}] if sort else []), {"$group": {"_id": f"${by}", **fields}}]
            groups = [
                sorted(((key(g["_id"]), g.get("n"), g.get("c")) for g in coll.aggregate(pipeline, **hint)), key=str)
                for hint in ({}, {"hint": NATURAL})
            ]
            assert groups[0] == groups[1], pipeline
            if "stages" in coll.database.command("explain", {"aggregate": coll.name, "pipeline": pipeline, "cursor": {}}):
                scans += leaf(group_plan(coll, pipeline)[0])["stage"] == "DISTINCT_SCAN"
    assert scans > 5, "the test is about such scans"
