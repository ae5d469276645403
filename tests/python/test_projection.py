"""find's projections."""

import pytest

from exact import same
from harness import refuses

DOC = {
    "_id": 1,
    "a": 1,
    "b": {"c": 2, "d": {"e": 3, "f": 4}},
    "l": [1, 2, 3, 4, 5],
    "o": [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}, 7, {"n": 3}],
    "z": None,
}

# name, filter, projection, result
CASES = [
    ("nothing", {}, {}, DOC),
    ("inclusion", {}, {"a": 1}, {"_id": 1, "a": 1}),
    ("inclusion keeps the document's order", {}, {"z": True, "a": 1.0}, {"_id": 1, "a": 1, "z": None}),
    ("inclusion without _id", {}, {"a": 1, "_id": 0}, {"a": 1}),
    ("only _id", {}, {"_id": 1}, {"_id": 1}),
    ("all but _id", {}, {"_id": 0, "b": 0, "l": 0, "o": 0}, {"a": 1, "z": None}),
    ("inclusion inside", {}, {"b.d.e": 1}, {"_id": 1, "b": {"d": {"e": 3}}}),
    ("inclusion inside, nested spelling", {}, {"b": {"d": {"e": 1}}}, {"_id": 1, "b": {"d": {"e": 3}}}),
    ("inclusion in an array of objects", {}, {"o.n": 1}, {"_id": 1, "o": [{"n": 1}, {"n": 2}, {"n": 3}]}),
    ("inclusion of what is not there", {}, {"nope": 1, "a.b": 1}, {"_id": 1}),
    ("exclusion", {}, {"b": 0, "l": 0, "o": 0}, {"_id": 1, "a": 1, "z": None}),
    ("exclusion inside", {}, {"b.d": 0, "l": 0, "o": 0, "a": 0, "z": 0}, {"_id": 1, "b": {"c": 2}}),
    ("exclusion in an array of objects", {}, {"o.n": 0, "a": 0, "b": 0, "l": 0, "z": 0}, {"_id": 1, "o": [{"s": "x"}, {"s": "y"}, 7, {}]}),
    ("slice of the first", {}, {"l": {"$slice": 2}, "a": 1}, {"_id": 1, "a": 1, "l": [1, 2]}),
    ("slice of the last", {}, {"l": {"$slice": -2}, "a": 1}, {"_id": 1, "a": 1, "l": [4, 5]}),
    ("slice from", {}, {"l": {"$slice": [1, 2]}, "a": 1}, {"_id": 1, "a": 1, "l": [2, 3]}),
    ("slice from the end", {}, {"l": {"$slice": [-3, 2]}, "a": 1}, {"_id": 1, "a": 1, "l": [3, 4]}),
    ("slice alone excludes nothing", {}, {"l": {"$slice": 1}, "b": 0, "o": 0}, {"_id": 1, "a": 1, "l": [1], "z": None}),
    ("elemMatch", {}, {"o": {"$elemMatch": {"n": {"$gt": 1}}}}, {"_id": 1, "o": [{"n": 2, "s": "y"}]}),
    ("elemMatch of a value", {}, {"l": {"$elemMatch": {"$gt": 3}}}, {"_id": 1, "l": [4]}),
    ("elemMatch of none", {}, {"l": {"$elemMatch": {"$gt": 99}}}, {"_id": 1}),
    ("positional", {"l": {"$gte": 3}}, {"l.$": 1}, {"_id": 1, "l": [3]}),
    ("positional of objects", {"o.n": 2}, {"o.$": 1}, {"_id": 1, "o": [{"n": 2, "s": "y"}]}),
    ("an expression", {}, {"sum": {"$add": ["$a", "$b.c"]}}, {"_id": 1, "sum": 3}),
    ("another field", {}, {"x": "$b.c", "_id": 0}, {"x": 2}),
    ("a constant", {}, {"x": "text", "y": {"$literal": 1}, "_id": 0}, {"x": "text", "y": 1}),
    ("an expression and inclusion", {}, {"a": 1, "n": {"$size": "$l"}}, {"_id": 1, "a": 1, "n": 5}),
    ("an array of expressions", {}, {"x": ["$a", "$nope", 3], "_id": 0}, {"x": [1, None, 3]}),
    ("a computed object", {}, {"x": {"y": "$a"}, "_id": 0}, {"x": {"y": 1}}),
    ("_id computed", {}, {"_id": "$b.c"}, {"_id": 2}),
]


@pytest.mark.parametrize("query, projection, expected", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_projection(coll, query, projection, expected):
    coll.insert_one(DOC)
    reply = coll.database.command("find", coll.name, filter=query, projection=projection)
    same(reply["cursor"]["firstBatch"], [expected])


@pytest.mark.parametrize(
    "projection, code",
    [
        ({"a": 1, "b": 0}, 31254),
        ({"a": 0, "b": 1}, 31253),
        ({"a": 1, "a.b": 1}, 31249),
        ({"a.b": 1, "a": 1}, 31250),
        ({"a": {"$nope": 1}}, 31325),
        ({"a": 0, "x": "$y"}, 31310),
        ({"a": 0, "x": {"$add": [1, 2]}}, 31252),
        ({"a.$": 1, "b.$": 1}, 31276),
        ({"a..b": 1}, 15998),
        ({"$a": 1}, 16410),
        ({"a": {}}, 51270),
        ({"a": {"$elemMatch": 1}}, 31274),
    ],
)
def test_errors(coll, projection, code):
    coll.insert_one({"_id": 1, "a": [1]})
    with refuses(code):
        coll.database.command("find", coll.name, projection=projection)


def test_covered_projection_gives_what_is_stored(coll):
    """A covered query rebuilds values from the index: types and order of fields must be those of the document."""
    from bson import Decimal128, Int64, Timestamp

    values = [1, 1.0, Int64(1), Decimal128("1.0"), Decimal128("1.00"), -0.0, 0.0, "text", "", True, None, Timestamp(3, 4), 2**40, -1.5e300]
    coll.create_index([("a", 1), ("b", -1)])
    coll.insert_many([{"_id": i, "b": v, "x": 0, "a": v} for i, v in enumerate(values)])
    found = coll.find({}, {"_id": 0, "b": 1, "a": 1}).hint("a_1_b_-1")
    stored = {repr((v, v)) for v in values}
    assert {repr((d["a"], d["b"])) for d in found} == stored


def test_the_key_of_the_index(coll):
    coll.insert_many([{"_id": i, "a": i, "b": "x"} for i in range(5)])
    shown = {"a": 1, "key": {"$meta": "indexKey"}}
    assert coll.find_one({"a": 3}, shown) == {"_id": 3, "a": 3}, "there is no index"
    coll.create_index([("a", 1), ("b", -1)])
    assert coll.find_one({"a": 3}, shown) == {"_id": 3, "a": 3, "key": {"a": 3, "b": "x"}}
    assert coll.find_one({"a": 3}, {"_id": 0, "a": 1, "key": {"$meta": "indexKey"}}) == {"a": 3, "key": {"a": 3, "b": "x"}}
    assert coll.find_one({"_id": 3}, {"key": {"$meta": "indexKey"}})["key"] == {"_id": 3}


def test_the_key_of_the_index_in_a_pipeline(coll):
    def keys(query, *between):
        pipeline = [{"$match": query}, *between, {"$project": {"key": {"$meta": "indexKey"}}}]
        return list(coll.aggregate(pipeline))

    coll.insert_many([{"_id": i, "a": i, "b": "x", "t": ["p", "q"], "words": "red apple", "h": i} for i in range(5)])
    assert keys({"a": 3}) == [{"_id": 3}], "there is no index"
    assert keys({"_id": 3}) == [{"_id": 3, "key": {"_id": 3}}]
    coll.create_index([("a", 1), ("b", -1)])
    coll.create_index("t")
    coll.create_index([("words", "text")])
    coll.create_index([("h", "hashed")])
    assert keys({"a": 3}) == [{"_id": 3, "key": {"a": 3, "b": "x"}}]
    assert [d["key"] for d in keys({"t": "q"})] == [{"t": "q"}] * 5
    assert keys({"$text": {"$search": "apple"}}, {"$sort": {"_id": 1}}, {"$limit": 1}) == [{"_id": 0}]
    [hashed] = coll.aggregate([{"$match": {"h": 3}}, {"$set": {"key": {"$meta": "indexKey"}}}, {"$project": {"_id": 0, "type": {"$type": "$key.h"}}}])
    assert hashed == {"type": "long"}
    # It goes with the document through a sort.
    assert [d["key"]["a"] for d in keys({"a": {"$gte": 3}}, {"$set": {"n": {"$multiply": ["$a", -1]}}}, {"$sort": {"n": 1}})] == [4, 3]
