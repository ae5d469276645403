"""Expressions that MongoDB 4.0 had, each with a value or an error."""

import datetime

import pytest
from bson import Decimal128, Int64, ObjectId

from exact import same
from harness import refuses
from watch import Watch

DAY = datetime.datetime(2026, 11, 21, 13, 14, 15, 167000)
DOC = {"_id": 1, "i": 7, "d": 2.5, "n": None, "s": "Hello", "l": [3, 1, 2], "o": {"x": 1, "y": "z"}, "t": DAY, "b": True, "e": []}
MISSING = object()

CASES = [
    # arithmetic
    ({"$add": [1, 2]}, 3),
    ({"$add": ["$i", 0.5]}, 7.5),
    ({"$add": [2**31 - 1, 1]}, Int64(2**31)),
    ({"$add": ["$i", "$n"]}, None),
    ({"$add": ["$t", 1000]}, DAY + datetime.timedelta(seconds=1)),
    ({"$add": []}, 0),
    ({"$subtract": [5, 7]}, -2),
    ({"$subtract": ["$t", DAY - datetime.timedelta(seconds=2)]}, Int64(2000)),
    ({"$multiply": [2, 3.5]}, 7.0),
    ({"$divide": [7, 2]}, 3.5),
    ({"$divide": [6, 2]}, 3.0),
    ({"$mod": [7, 3]}, 1),
    ({"$mod": [-7, 3]}, -1),
    ({"$abs": -5}, 5),
    ({"$ceil": 2.1}, 3.0),
    ({"$floor": -2.1}, -3.0),
    ({"$trunc": -2.9}, -2.0),
    ({"$exp": 0}, 1.0),
    ({"$ln": 1}, 0.0),
    ({"$log": [8, 2]}, 3.0),
    ({"$log10": 1000}, 3.0),
    ({"$pow": [2, 10]}, 1024),
    ({"$pow": [2, -1]}, 0.5),
    ({"$sqrt": 16}, 4.0),
    ({"$multiply": [Decimal128("1.1"), 3]}, Decimal128("3.3")),
    # comparison and logic
    ({"$cmp": [1, 2]}, -1),
    ({"$cmp": ["a", 1]}, 1),
    ({"$eq": [1, 1.0]}, True),
    ({"$ne": ["$i", 7]}, False),
    ({"$gt": ["$d", 2]}, True),
    ({"$gte": ["$l", 5]}, True),
    ({"$lt": ["$nope", 1]}, True),
    ({"$lte": [None, None]}, True),
    ({"$and": ["$b", "$i", 0]}, False),
    ({"$and": []}, True),
    ({"$or": [None, "$e"]}, True),
    ({"$or": []}, False),
    ({"$not": ["$n"]}, True),
    ({"$cond": ["$b", "yes", "no"]}, "yes"),
    ({"$cond": {"if": {"$gt": ["$i", 10]}, "then": 1, "else": "$s"}}, "Hello"),
    ({"$ifNull": ["$n", "$nope", "last"]}, "last"),
    ({"$switch": {"branches": [{"case": {"$eq": ["$i", 1]}, "then": "one"}, {"case": "$b", "then": "b"}], "default": "d"}}, "b"),
    ({"$switch": {"branches": [{"case": False, "then": 1}], "default": "d"}}, "d"),
    # strings
    ({"$concat": ["$s", ", ", "you"]}, "Hello, you"),
    ({"$concat": ["$s", "$n"]}, None),
    ({"$toUpper": "$s"}, "HELLO"),
    ({"$toLower": "$s"}, "hello"),
    ({"$substr": ["$s", 1, 3]}, "ell"),
    ({"$substrBytes": ["$s", 3, -1]}, "lo"),
    # A decimal is rounded, half to even; a double is cut.
    ({"$substrBytes": ["$s", Decimal128("0.5"), Decimal128("1.5")]}, "He"),
    ({"$substrBytes": ["$s", Decimal128("2.5"), Decimal128("2.6")]}, "llo"),
    ({"$substrBytes": ["$s", 0.9, 1.9]}, "H"),
    ({"$substrCP": ["grüße", 2, 2]}, "üß"),
    ({"$strLenBytes": "grüße"}, 7),
    ({"$strLenCP": "grüße"}, 5),
    ({"$indexOfBytes": ["$s", "l"]}, 2),
    ({"$indexOfCP": ["grüße", "e"]}, 4),
    ({"$indexOfCP": ["$s", "q"]}, -1),
    ({"$split": ["a,b,,c", ","]}, ["a", "b", "", "c"]),
    ({"$strcasecmp": ["$s", "hello"]}, 0),
    ({"$trim": {"input": "  x y  "}}, "x y"),
    ({"$ltrim": {"input": "xxay", "chars": "x"}}, "ay"),
    ({"$rtrim": {"input": "ayxx", "chars": "x"}}, "ay"),
    # arrays
    ({"$arrayElemAt": ["$l", 0]}, 3),
    ({"$arrayElemAt": ["$l", -1]}, 2),
    ({"$arrayElemAt": ["$l", 9]}, MISSING),
    ({"$concatArrays": ["$l", [9]]}, [3, 1, 2, 9]),
    ({"$filter": {"input": "$l", "as": "x", "cond": {"$gt": ["$$x", 1]}}}, [3, 2]),
    ({"$map": {"input": "$l", "as": "x", "in": {"$multiply": ["$$x", 10]}}}, [30, 10, 20]),
    ({"$map": {"input": "$l", "in": "$$this"}}, [3, 1, 2]),
    ({"$reduce": {"input": "$l", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}, 6),
    ({"$in": [2, "$l"]}, True),
    ({"$indexOfArray": ["$l", 1]}, 1),
    ({"$isArray": "$l"}, True),
    ({"$isArray": "$s"}, False),
    ({"$range": [0, 10, 3]}, [0, 3, 6, 9]),
    ({"$reverseArray": "$l"}, [2, 1, 3]),
    ({"$size": "$l"}, 3),
    ({"$slice": ["$l", 2]}, [3, 1]),
    ({"$slice": ["$l", -2]}, [1, 2]),
    ({"$slice": ["$l", 1, 1]}, [1]),
    ({"$zip": {"inputs": [[1, 2], ["a"]], "useLongestLength": True, "defaults": [0, "z"]}}, [[1, "a"], [2, "z"]]),
    ({"$zip": {"inputs": [[1, 2], ["a"]]}}, [[1, "a"]]),
    ({"$arrayToObject": [[["k", 1], ["l", 2]]]}, {"k": 1, "l": 2}),
    ({"$arrayToObject": [[{"k": "a", "v": 1}]]}, {"a": 1}),
    ({"$objectToArray": "$o"}, [{"k": "x", "v": 1}, {"k": "y", "v": "z"}]),
    ({"$max": "$l"}, 3),
    ({"$min": ["$i", "$d"]}, 2.5),
    ({"$sum": "$l"}, 6),
    ({"$avg": "$l"}, 2.0),
    ({"$stdDevPop": [[1, 3]]}, 1.0),
    # sets
    ({"$setEquals": [[1, 2, 2], [2, 1]]}, True),
    ({"$setIntersection": [[3, 1, 2], [1, 3]]}, [1, 3]),
    ({"$setUnion": [[2, 1], [3, 1]]}, [1, 2, 3]),
    ({"$setDifference": [[3, 1, 2], [1]]}, [3, 2]),
    ({"$setIsSubset": [[1], [1, 2]]}, True),
    ({"$anyElementTrue": [[0, None, 1]]}, True),
    ({"$allElementsTrue": [[1, 0]]}, False),
    # dates
    ({"$year": "$t"}, 2026),
    ({"$month": "$t"}, 11),
    ({"$dayOfMonth": "$t"}, 21),
    ({"$hour": "$t"}, 13),
    ({"$minute": "$t"}, 14),
    ({"$second": "$t"}, 15),
    ({"$millisecond": "$t"}, 167),
    ({"$dayOfWeek": "$t"}, 7),
    ({"$dayOfYear": "$t"}, 325),
    ({"$week": "$t"}, 46),
    ({"$isoWeek": "$t"}, 47),
    ({"$isoWeekYear": "$t"}, Int64(2026)),
    ({"$isoDayOfWeek": "$t"}, 6),
    ({"$hour": {"date": "$t", "timezone": "+02:00"}}, 15),
    ({"$hour": {"date": "$t", "timezone": "America/New_York"}}, 8),
    ({"$dateToString": {"date": "$t", "format": "%Y-%m-%d %H:%M:%S.%L"}}, "2026-11-21 13:14:15.167"),
    ({"$dateToString": {"date": "$t"}}, "2026-11-21T13:14:15.167Z"),
    ({"$dateToString": {"date": None, "onNull": "none"}}, "none"),
    ({"$dateFromString": {"dateString": "2026-11-21T13:14:15.167Z"}}, DAY),
    ({"$dateFromString": {"dateString": "21.11.2026", "format": "%d.%m.%Y"}}, datetime.datetime(2026, 11, 21)),
    ({"$dateFromString": {"dateString": "junk", "onError": "bad"}}, "bad"),
    ({"$dateFromParts": {"year": 2026, "month": 2, "day": 30}}, datetime.datetime(2026, 3, 2)),
    ({"$dateToParts": {"date": "$t"}}, {"year": 2026, "month": 11, "day": 21, "hour": 13, "minute": 14, "second": 15, "millisecond": 167}),
    # types and conversions
    ({"$type": "$i"}, "int"),
    ({"$type": "$nope"}, "missing"),
    ({"$toString": 2.5}, "2.5"),
    ({"$toString": Int64(7)}, "7"),
    ({"$toInt": "42"}, 42),
    ({"$toLong": 2.9}, Int64(2)),
    ({"$toDouble": "1.5"}, 1.5),
    ({"$toDecimal": "1.10"}, Decimal128("1.10")),
    ({"$toBool": "false"}, True),
    ({"$toBool": 0}, False),
    ({"$toDate": Int64(0)}, datetime.datetime(1970, 1, 1)),
    ({"$toObjectId": "5f0000000000000000000000"}, ObjectId("5f0000000000000000000000")),
    ({"$toDate": ObjectId("5f0000000000000000000000")}, datetime.datetime(2020, 7, 4, 4, 5, 20)),
    ({"$convert": {"input": "x", "to": "int", "onError": -1}}, -1),
    ({"$convert": {"input": None, "to": "int", "onNull": "null"}}, "null"),
    # objects, variables, literals
    ({"$mergeObjects": ["$o", {"x": 9}]}, {"x": 9, "y": "z"}),
    ({"$let": {"vars": {"a": "$i", "b": 2}, "in": {"$multiply": ["$$a", "$$b"]}}}, 14),
    ({"$literal": "$i"}, "$i"),
    ({"a": "$i", "b": ["$s", {"$size": "$l"}]}, {"a": 7, "b": ["Hello", 3]}),
    ("$o.x", 1),
    ("$$ROOT.o.y", "z"),
    ("$$CURRENT.i", 7),
    ({"$cond": ["$n", 1, "$$REMOVE"]}, MISSING),
]


@pytest.fixture(scope="module")
def one(client):
    coll = client.test_expressions.one
    coll.drop()
    coll.insert_one(DOC)
    yield coll
    coll.drop()


@pytest.mark.parametrize("expression, expected", CASES, ids=[str(c[0]) for c in CASES])
def test_value(one, expression, expected):
    expected = {} if expected is MISSING else {"v": expected}
    found = list(one.aggregate([{"$project": {"_id": 0, "v": expression}}]))
    if isinstance(expected.get("v"), list) and isinstance(expression, dict) and next(iter(expression)) in ("$setUnion", "$setIntersection"):
        assert sorted(found[0]["v"]) == expected["v"]
    else:
        same(found, [expected])


@pytest.mark.parametrize("expression, expected", [c for c in CASES if c[1] is not MISSING][::3], ids=lambda c: str(c))
def test_value_in_expr(one, expression, expected):
    assert one.count_documents({"$expr": {"$eq": [expression, {"$literal": expected}]}}) == 1


ERRORS = [
    ({"$add": ["$s", 1]}, 14),
    ({"$add": ["$t", "$t"]}, 16612),
    ({"$subtract": [1, "x"]}, 14),
    ({"$multiply": ["x", 1]}, 14),
    ({"$divide": ["$i", 0]}, 2),
    ({"$divide": [1]}, 16020),
    ({"$mod": ["$i", 0]}, 16610),
    ({"$abs": "x"}, 28765),
    ({"$sqrt": -1}, 28714),
    ({"$ln": 0}, 28766),
    ({"$log10": 0}, 28761),
    ({"$pow": [0, -1]}, 28764),
    ({"$concat": ["$i"]}, 16702),
    ({"$size": "$s"}, 17124),
    ({"$arrayElemAt": ["$s", 0]}, 28689),
    ({"$in": [1, "$s"]}, 40081),
    ({"$filter": {"input": "$s", "cond": True}}, 28651),
    ({"$map": {"input": "$s", "in": 1}}, 16883),
    ({"$split": ["$s", ""]}, 40087),
    ({"$toInt": "x"}, 241),
    ({"$toInt": 1e20}, 241),
    ({"$strLenCP": "$i"}, 34471),
    ({"$range": [0, 10, 0]}, 34449),
    ({"$switch": {"branches": [{"case": False, "then": 1}]}}, 40069),
    ({"$cond": [1, 2]}, 16020),
    ({"$nope": 1}, 168),
    ({"$dateToString": {"date": "$t", "timezone": "Nowhere/Land"}}, 40485),
    ({"$dateFromString": {"dateString": "junk"}}, 241),
    ({"$year": "$s"}, 16006),
    ({"$arrayToObject": "$i"}, 40386),
    ({"$objectToArray": "$i"}, 40390),
    ({"$mergeObjects": ["$i"]}, 40400),
    ({"$add": 1, "$subtract": 2}, 40181),
    ("$", 16872),
    ("$a.", 40353),
]


@pytest.mark.parametrize("expression, code", ERRORS, ids=[str(e[0]) for e in ERRORS])
def test_error(one, expression, code):
    with refuses(code):
        list(one.aggregate([{"$addFields": {"v": expression}}]))


def test_values_on_the_way_are_bounded(new_server):
    """An expression names a value of 15 MB a hundred times: it is refused before it takes a hundred times the memory."""
    server = new_server("--cache", "64m")
    with server.client() as client:
        client.t.large.insert_one({"_id": 1, "pad": "x" * 15_000_000})
        longer = {"$concat": ["$pad", "x"]}
        for stage in (
            {"$project": {"n": {"$let": {"vars": {f"v{i}": longer for i in range(100)}, "in": 1}}}},
            {"$project": {f"v{i}": longer for i in range(100)}},
            {"$set": {f"v{i}": "$pad" for i in range(100)}},
        ):
            with Watch(server.process.pid) as watch, refuses(146):
                list(client.t.large.aggregate([stage, {"$project": {"n": 1}}]))
            # Half a gigabyte is what one may have, and beside it are the cache, the document, and a value that grows.
            assert watch.most < 1000, watch.most
        # The server goes on, and a smaller evaluation succeeds.
        few = {"$let": {"vars": {f"v{i}": longer for i in range(10)}, "in": {"$strLenBytes": "$$v9"}}}
        assert list(client.t.large.aggregate([{"$project": {"n": few}}])) == [{"_id": 1, "n": 15_000_001}]
