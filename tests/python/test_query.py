"""find's filters: every operator with what it must match, over a collection and again over an index on the field."""

import datetime

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from exact import ids
from harness import refuses

NAN = float("nan")
DAY = datetime.datetime(2026, 1, 2, 3, 4, 5)

ZOO = {
    1: {"a": 1},
    2: {"a": 2.5},
    3: {"a": Int64(3)},
    4: {"a": "x"},
    5: {"a": None},
    6: {},
    7: {"a": [1, 2, 3]},
    8: {"a": []},
    9: {"a": {"b": 1}},
    10: {"a": [{"b": 1}, {"b": 2}]},
    11: {"a": True},
    12: {"a": DAY},
    13: {"a": "X"},
    14: {"a": Decimal128("2.5")},
    15: {"a": [[1, 2]]},
    16: {"a": NAN},
}
ALL = set(ZOO)


def but(*these):
    return ALL - set(these)


CASES = [
    ({}, ALL),
    ({"a": 1}, {1, 7}),
    ({"a": 1.0}, {1, 7}),
    ({"a": 2.5}, {2, 14}),
    ({"a": NAN}, {16}),
    ({"a": None}, {5, 6}),
    ({"a": [1, 2, 3]}, {7}),
    ({"a": [1, 2]}, {15}),
    ({"a": []}, {8}),
    ({"a": {"b": 1}}, {9, 10}),
    ({"a": {"b": 1.0}}, {9, 10}),
    ({"a": True}, {11}),
    ({"a": DAY}, {12}),
    ({"a.b": 1}, {9, 10}),
    ({"a.0": 1}, {7}),  # an array at an index is one value
    ({"a.0": [1, 2]}, {15}),
    ({"a.1.b": 2}, {10}),
    ({"a.b": None}, but(7, 8, 9, 10, 15)),  # an array without objects has no a.b at all
    ({"a.b": {"$exists": False}}, but(9, 10)),
    ({"a.b": {"$ne": 1}}, but(9, 10)),
    ({"a": {"$eq": 1}}, {1, 7}),
    ({"a": {"$ne": 1}}, but(1, 7)),
    ({"a": {"$ne": None}}, but(5, 6)),
    ({"a": {"$gt": 1}}, {2, 3, 7, 14}),
    ({"a": {"$gte": 2.5}}, {2, 3, 7, 14}),
    ({"a": {"$lt": 2}}, {1, 7}),
    ({"a": {"$lte": 1}}, {1, 7}),
    ({"a": {"$gt": 1, "$lt": 3}}, {2, 7, 14}),
    ({"a": {"$gt": 2, "$lt": 2.9}}, {2, 7, 14}),
    ({"a": {"$gt": "a"}}, {4}),
    ({"a": {"$lt": "a"}}, {13}),
    ({"a": {"$gte": None}}, {5, 6}),
    ({"a": {"$gt": None}}, set()),
    ({"a": {"$lt": True}}, set()),
    ({"a": {"$lte": True}}, {11}),
    ({"a": {"$gt": DAY - datetime.timedelta(1)}}, {12}),
    ({"a": {"$gte": {"b": 1}}}, {9, 10}),
    ({"a": {"$gt": {"b": 1}}}, {10}),
    ({"a": {"$gte": NAN}}, {16}),
    ({"a": {"$in": [1, "x", None]}}, {1, 4, 5, 6, 7}),
    ({"a": {"$in": []}}, set()),
    ({"a": {"$in": [Regex("^x$", "i"), 3]}}, {3, 4, 7, 13}),
    ({"a": {"$in": [[1, 2, 3], [1, 2]]}}, {7, 15}),
    ({"a": {"$nin": [1, None]}}, but(1, 5, 6, 7)),
    ({"a": {"$nin": []}}, ALL),
    ({"a": {"$exists": True}}, but(6)),
    ({"a": {"$exists": False}}, {6}),
    ({"a": {"$exists": 0}}, {6}),
    ({"a.b": {"$exists": True}}, {9, 10}),
    ({"a": {"$type": "number"}}, {1, 2, 3, 7, 14, 16}),
    ({"a": {"$type": "array"}}, {7, 8, 10, 15}),
    ({"a": {"$type": 4}}, {7, 8, 10, 15}),
    ({"a": {"$type": "object"}}, {9, 10}),
    ({"a": {"$type": ["string", "bool"]}}, {4, 11, 13}),
    ({"a": {"$type": 10}}, {5}),
    ({"a": {"$type": "decimal"}}, {14}),
    ({"a": {"$type": "double"}}, {2, 16}),
    ({"a": {"$type": "int"}}, {1, 7}),
    ({"a": {"$type": "long"}}, {3}),
    ({"a": {"$type": "date"}}, {12}),
    ({"a": {"$mod": [2, 1]}}, {1, 3, 7}),
    ({"a": {"$mod": [2, 0]}}, {2, 7, 14}),
    ({"a": {"$regex": "x"}}, {4}),
    ({"a": {"$regex": "x", "$options": "i"}}, {4, 13}),
    ({"a": {"$regex": Regex("^X")}}, {13}),
    ({"a": Regex("x", "i")}, {4, 13}),
    ({"a": {"$all": [1, 2]}}, {7}),
    ({"a": {"$all": [1]}}, {1, 7}),
    ({"a": {"$all": [[1, 2]]}}, {15}),
    ({"a": {"$all": []}}, set()),
    ({"a": {"$all": [{"$elemMatch": {"b": 1}}, {"$elemMatch": {"b": 2}}]}}, {10}),
    ({"a": {"$elemMatch": {"b": {"$gt": 1}}}}, {10}),
    ({"a": {"$elemMatch": {"$gt": 2}}}, {7}),
    ({"a": {"$elemMatch": {"$gt": 1, "$lt": 3}}}, {7}),
    ({"a": {"$elemMatch": {"$gt": 3}}}, set()),
    ({"a": {"$size": 3}}, {7}),
    ({"a": {"$size": 0}}, {8}),
    ({"a": {"$size": 1}}, {15}),
    ({"a": {"$not": {"$gt": 1}}}, but(2, 3, 7, 14)),
    ({"a": {"$not": Regex("x")}}, but(4)),
    ({"a": {"$not": {"$size": 0}}}, but(8)),
    ({"$and": [{"a": {"$gt": 1}}, {"a": {"$lt": 2.6}}]}, {2, 7, 14}),
    ({"$or": [{"a": 1}, {"a": "x"}]}, {1, 4, 7}),
    ({"$or": [{"a": {"$gt": 2, "$lt": 3}}, {"_id": 4}, {"a.b": 2}]}, {2, 4, 7, 10, 14}),
    ({"$nor": [{"a": 1}, {"a": "x"}]}, but(1, 4, 7)),
    ({"$and": [{"$or": [{"a": 1}, {"a": None}]}, {"_id": {"$gt": 4}}]}, {5, 6, 7}),
    ({"$expr": {"$eq": ["$a", 1]}}, {1}),
    ({"$expr": {"$gt": ["$a", 2]}}, but(1, 5, 6, 16)),
    ({"$expr": {"$eq": ["$a", "$_id"]}}, {1, 3}),
    ({"a": 1, "$comment": "why"}, {1, 7}),
    ({"_id": {"$in": [3, 1, 99]}}, {1, 3}),
    ({"_id": {"$gte": 14}}, {14, 15, 16}),
    ({"_id": 5, "a": None}, {5}),
    ({"_id": 5, "a": 1}, set()),
]


@pytest.fixture(scope="module", params=["collection scan", "index on a", "sparse index on a", "compound index"])
def zoo(request, client):
    collection = client.test_query.zoo
    collection.drop()
    collection.insert_many([{"_id": i, **d} for i, d in ZOO.items()])
    if request.param == "index on a":
        collection.create_index("a")
    elif request.param == "sparse index on a":
        collection.create_index("a", sparse=True)
    elif request.param == "compound index":
        collection.create_index([("a", -1), ("_id", 1)])
    yield collection
    collection.drop()


@pytest.mark.parametrize("query, expected", CASES, ids=[str(c[0]) for c in CASES])
def test_matches(zoo, query, expected):
    assert sorted(ids(zoo.find(query))) == sorted(expected)
    assert zoo.count_documents(query) == len(expected)


BITS = [
    ({"$bitsAllClear": [1, 5]}, {2, 3}),
    ({"$bitsAllClear": 35}, {2, 3}),
    ({"$bitsAllClear": Binary(b"\x23")}, {2, 3}),
    ({"$bitsAllSet": [1, 5]}, {1, 4}),
    ({"$bitsAllSet": 50}, {1}),
    ({"$bitsAnyClear": [1, 5]}, {2, 3}),
    ({"$bitsAnyClear": 35}, {1, 2, 3, 4}),
    ({"$bitsAnySet": [1, 5]}, {1, 4}),
    ({"$bitsAnySet": 35}, {1, 4}),
    ({"$bitsAllSet": []}, {1, 2, 3, 4}),
]


@pytest.mark.parametrize("condition, expected", BITS)
def test_bits(coll, condition, expected):
    coll.insert_many([{"_id": 1, "a": 54}, {"_id": 2, "a": 20}, {"_id": 3, "a": 20.0}, {"_id": 4, "a": Binary(b"f")}])
    coll.insert_many([{"_id": 5, "a": 20.5}, {"_id": 6, "a": "54"}, {"_id": 7}])
    assert set(ids(coll.find({"a": condition}))) == expected


def test_nested_arrays_of_objects(coll):
    coll.insert_many(
        [
            {"_id": 1, "o": {"items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 5}]}},
            {"_id": 2, "o": {"items": [{"sku": "a", "n": 5}]}},
            {"_id": 3, "o": {"items": []}},
            {"_id": 4, "o": [{"items": [{"sku": "a", "n": 9}]}]},
        ]
    )
    for index in (None, [("o.items.sku", 1), ("o.items.n", 1)]):
        if index:
            coll.create_index(index)
        assert set(ids(coll.find({"o.items.sku": "a", "o.items.n": 5}))) == {1, 2}
        assert set(ids(coll.find({"o.items": {"$elemMatch": {"sku": "a", "n": 5}}}))) == {2}
        assert set(ids(coll.find({"o.items": {"$elemMatch": {"sku": "a", "n": {"$gte": 5}}}}))) == {2, 4}
        assert set(ids(coll.find({"o.items.sku": "a"}))) == {1, 2, 4}
        assert set(ids(coll.find({"o.items.0.n": {"$gt": 4}}))) == {2, 4}


def test_regexes(coll):
    coll.insert_many([{"_id": i, "s": s} for i, s in enumerate(["apple", "Apple pie", "grape\napple", "a.b", "äpfel", ""])])
    for index in (False, True):
        if index:
            coll.create_index("s")
        assert ids(coll.find({"s": Regex("^apple")})) == [0]
        assert set(ids(coll.find({"s": Regex("^apple", "m")}))) == {0, 2}
        assert set(ids(coll.find({"s": Regex("^apple", "i")}))) == {0, 1}
        assert ids(coll.find({"s": Regex("grape.apple", "s")})) == [2]
        assert set(ids(coll.find({"s": Regex("a p p l e $ # the end", "x")}))) == {0, 2}
        assert ids(coll.find({"s": Regex(r"^a\.b")})) == [3]
        assert ids(coll.find({"s": Regex("^ä")})) == [4]
        assert ids(coll.find({"s": Regex("^$")})) == [5]
        assert ids(coll.find({"s": {"$regex": "p{2}l", "$options": "", "$ne": "apple"}}).sort("_id")) == [1, 2]


def test_dates_and_ids(coll):
    first = ObjectId("5f0000000000000000000000")
    second = ObjectId("5f0000000000000000000001")
    coll.insert_many([{"_id": first, "at": DAY}, {"_id": second, "at": DAY + datetime.timedelta(milliseconds=1)}])
    assert coll.find_one({"_id": second})["at"] == DAY + datetime.timedelta(milliseconds=1)
    assert ids(coll.find({"_id": {"$gt": first}})) == [second]
    assert ids(coll.find({"at": {"$lte": DAY}})) == [first]


def test_comparison_by_expr_of_two_fields(coll):
    coll.insert_many([{"_id": 1, "spent": 5, "budget": 4}, {"_id": 2, "spent": 3, "budget": 4}])
    assert ids(coll.find({"$expr": {"$gt": ["$spent", "$budget"]}})) == [1]
    reply = coll.database.command("find", coll.name, filter={"$expr": {"$lt": ["$spent", "$$max"]}}, let={"max": 4})
    assert ids(reply["cursor"]["firstBatch"]) == [2]


ORDER = [
    MinKey(),
    [],
    None,
    -5,
    Decimal128("0.1"),
    7.5,
    Int64(2**53 + 1),
    "",
    "B",
    "a",
    {},
    {"a": 1},
    {"a": 1, "b": 0},
    {"b": 0},
    Binary(b"z"),
    Binary(b"aa"),
    ObjectId("5f0000000000000000000000"),
    False,
    True,
    datetime.datetime(1960, 1, 1),
    DAY,
    Timestamp(1, 1),
    Regex("a"),
    MaxKey(),
]


@pytest.mark.parametrize("indexed", [False, True])
def test_order_across_types(coll, indexed):
    if indexed:
        coll.create_index("v")
    coll.insert_many([{"_id": i, "v": v} for i, v in reversed(list(enumerate(ORDER)))])
    assert ids(coll.find().sort("v", 1)) == list(range(len(ORDER)))
    assert ids(coll.find().sort("v", -1)) == list(reversed(range(len(ORDER))))


@pytest.mark.parametrize("indexed", [False, True])
def test_order_of_arrays(coll, indexed):
    """An array sorts by its least element upwards and by its greatest downwards."""
    if indexed:
        coll.create_index("v")
    coll.insert_many([{"_id": 1, "v": [5, 10]}, {"_id": 2, "v": 7}, {"_id": 3, "v": [1, 20]}, {"_id": 4, "v": []}, {"_id": 5}])
    assert ids(coll.find().sort("v", 1)) == [4, 5, 3, 1, 2]
    assert ids(coll.find().sort("v", -1)) == [3, 1, 2, 5, 4]


def test_sorts(coll):
    coll.insert_many([{"_id": i, "a": i % 3, "b": {"c": -i}} for i in range(12)])
    by_two = sorted(range(12), key=lambda i: (i % 3, i))
    for index in (None, [("a", 1), ("b.c", -1)], [("a", -1), ("b.c", 1)]):
        if index:
            coll.create_index(index)
        assert ids(coll.find().sort([("a", 1), ("b.c", -1)])) == by_two
        assert ids(coll.find().sort([("a", -1), ("b.c", 1)])) == by_two[::-1]
        assert ids(coll.find().sort([("a", 1), ("b.c", -1)]).skip(3).limit(4)) == by_two[3:7]
        assert ids(coll.find({"a": 1}).sort("b.c", 1)) == [10, 7, 4, 1]


def test_skip_and_limit(coll):
    coll.insert_many([{"_id": i} for i in range(300)])
    assert ids(coll.find().sort("_id").skip(290)) == list(range(290, 300))
    assert ids(coll.find().sort("_id").limit(150)) == list(range(150))
    assert ids(coll.find().sort("_id", -1).skip(10).limit(3)) == [289, 288, 287]
    assert ids(coll.find().skip(1000)) == []
    assert len(list(coll.find().limit(0))) == 300
    assert ids(coll.find().sort("_id").limit(-5)) == [0, 1, 2, 3, 4]


def test_natural_order(coll):
    coll.insert_many([{"_id": i} for i in range(10)])
    assert sorted(ids(coll.find().sort("$natural", 1))) == list(range(10))
    assert ids(coll.find().sort("$natural", -1)) == ids(coll.find().sort("$natural", 1))[::-1]
    assert sorted(ids(coll.find().hint([("$natural", 1)]))) == list(range(10))


def test_hint_min_max(coll):
    coll.create_index("a")
    coll.create_index([("a", 1), ("b", -1)], name="two")
    coll.insert_many([{"_id": i, "a": i, "b": i} for i in range(20)])
    assert ids(coll.find({"a": {"$gt": 15}}).hint("a_1")) == [16, 17, 18, 19]
    assert ids(coll.find().hint([("a", 1)]).min([("a", 5)]).max([("a", 8)])) == [5, 6, 7]
    assert ids(coll.find().hint("two").min([("a", 18), ("b", 0)])) == [19]
    with refuses(2):
        list(coll.find().hint("nosuch"))
    with refuses(2):
        list(coll.find().hint([("zzz", 1)]))
    with refuses(51174):
        list(coll.find().hint([("a", 1)]).min([("b", 5)]))


ERRORS = [
    ({"$foo": 1}, 2),
    ({"a": {"$foo": 1}}, 2),
    ({"a": {"$in": 1}}, 2),
    ({"a": {"$nin": 1}}, 2),
    ({"a": {"$in": [{"$gt": 1}]}}, 2),
    ({"$and": []}, 2),
    ({"$or": {}}, 2),
    ({"$or": [1]}, 2),
    ({"a": {"$size": -1}}, 2),
    ({"a": {"$size": 1.5}}, 2),
    ({"a": {"$regex": "("}}, 51091),
    ({"a": {"$regex": "x", "$options": "q"}}, 51108),
    ({"a": {"$options": "i"}}, 2),
    ({"a": {"$mod": [0, 1]}}, 2),
    ({"a": {"$mod": [2]}}, 2),
    ({"a": {"$mod": "x"}}, 2),
    ({"a": {"$type": "nope"}}, 2),
    ({"a": {"$type": 99}}, 2),
    ({"a": {"$elemMatch": 1}}, 2),
    ({"a": {"$not": 1}}, 2),
    ({"a": {"$all": 1}}, 2),
    ({"a": {"$bitsAllSet": "x"}}, 2),
    ({"a": {"$bitsAllSet": -1}}, 9),
    ({"$expr": {"$nope": 1}}, 168),
    ({"$expr": "$$nope"}, 17276),
]


@pytest.mark.parametrize("query, code", ERRORS, ids=[str(e[0]) for e in ERRORS])
def test_errors(coll, client, query, code):
    coll.insert_one({"_id": 1, "a": 1})
    with refuses(code):
        list(coll.find(query))
    assert client.admin.command("ping")["ok"] == 1


@pytest.mark.parametrize(
    "arguments, code",
    [
        ({"filter": 1}, 14),
        ({"sort": 1}, 14),
        ({"sort": {"a": 2}}, 15975),
        ({"sort": {"a": "x"}}, 15974),
        ({"sort": {"$a": 1}}, 16410),
        ({"sort": {"a": 0}}, 15975),
        ({"limit": "x"}, 14),
        ({"skip": -1}, 2),
        ({"limit": -1}, 2),
        ({"batchSize": -1}, 2),
        ({"projection": 1}, 14),
        ({"hint": 1}, 9),
        ({"nonsense": 1}, 40415),
        ({"tailable": True}, 2),
        ({"awaitData": True}, 9),
        ({"maxTimeMS": -1}, 2),
        ({"maxTimeMS": "x"}, 14),
        ({"readConcern": {"level": "nope"}}, 2),
        ({"min": {"a": 1}}, 51173),
    ],
)
def test_bad_arguments(coll, arguments, code):
    coll.insert_one({"_id": 1, "a": 1})
    with refuses(code):
        coll.database.command("find", coll.name, **arguments)


def test_max_time(coll):
    coll.insert_many([{"_id": i, "s": "x" * 50} for i in range(30_000)])
    heavy = {"$expr": {"$eq": [{"$reduce": {"input": {"$range": [0, 500]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}, -1]}}
    with refuses(50, "MaxTimeMSExpired"):
        list(coll.find(heavy).max_time_ms(20))
    assert coll.count_documents({}) == 30_000
