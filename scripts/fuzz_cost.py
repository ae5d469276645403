#!/usr/bin/env python3
"""Grows one dimension of a command at a time and looks at what the server's work grows by.

    scripts/fuzz.sh cost [SECONDS [NAME…]]       PANDO_BIN names the server (target/debug/pando)

A shape is a command made for a number: branches, depth, lengths, repeats, elements, vertices, words.
The number is doubled until the command is refused or long. Counted is processor time of the server, the least
of three runs; bytes are those of the command, or of the documents it reads. What others do on the machine
makes time longer, never shorter: what looks bad is run again, and the least of all runs counts. A shape that looks bad then is
run once more after all others; what is found is what looks bad both times.

Fails where, past NOTABLE_S of work, four times the bytes take more than n·log n and SLACK; where
`maxTimeMS: 100` ends when the server has worked for longer than that and LATE_MS; and where the
server's memory grows past MOST_MB, or its log by more than MOST_LOG_KB a command. A finding is printed with its figures, and the next shape goes on.
"""

import os
import pathlib
import random
import re
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

import bson  # noqa: E402
import bson.raw_bson  # noqa: E402
from bson import Regex  # noqa: E402
from harness import Server  # noqa: E402
from pymongo.errors import PyMongoError  # noqa: E402

# Work that is long enough to be compared, in seconds of the processor.
NOTABLE_S = 0.1
LONG_S = 2.0
# n·log n is 4.3 to 4.8 for four times n.
SLACK = 8.0
LATE_MS = int(os.environ.get("PANDO_LATE_MS", "100"))
MOST_MB = 512
MOST_LOG_KB = 64
# How often what looks bad is run again.
AGAIN = 5
# What time a shape has that looked bad, at the end.
AGAIN_S = 120
MOST_BYTES = 12 << 20
# What may grow by more, for a reason; what it may take is bounded, and asks. For so many times the bytes so many times more:
MORE = {
    # A text that is made longer by each element is copied for each, as in MongoDB.
    "reduce of a text": lambda times: times,
    # So is an array.
    "reduce": lambda times: times,
    # Constants past their budget are computed for each of the documents.
    "let of ranges": lambda _: DOCUMENTS,
}
DOCUMENTS = 20


def nested(n, leaf, wrap):
    for _ in range(n):
        leaf = wrap(leaf)
    return leaf


def find(f, **more):
    return {"find": "c", "filter": f, **more}


def aggregate(*stages):
    return {"aggregate": "c", "pipeline": list(stages), "cursor": {}}


def project(e):
    return aggregate({"$project": {"x": e}})


def insert(doc):
    return {"insert": "w", "documents": [doc]}


def ring(n):
    import math

    points = [[math.cos(i * 2 * math.pi / n), math.sin(i * 2 * math.pi / n)] for i in range(n)]
    return {"type": "Polygon", "coordinates": [[*points, points[0]]]}


def line(n, at):
    return {"type": "LineString", "coordinates": [at(i) for i in range(n)]}


def walk(i):
    return [i * 1e-4 % 170, (i * 7919 % 1000) * 1e-4]


def repeated(n):
    """A document with one name n times."""
    one = b"\x10s\x00\x01\x00\x00\x00"
    return (5 + len(one) * n).to_bytes(4, "little", signed=True) + one * n + b"\x00"


KEYS = ["a", "b", "c", "d"]

# What a command makes of a number. `c` has the documents of `documents`, `w` the indexes of `INDEXES`.
SHAPES = {
    "and of clauses": lambda n: find({"$and": [{f"a{i}": i} for i in range(n)]}),
    "or of clauses": lambda n: find({"$or": [{f"a{i}": i} for i in range(n)]}),
    "or on an index": lambda n: find({"$or": [{"a": i} for i in range(n)]}),
    "nor of clauses": lambda n: find({"$nor": [{f"a{i}": i} for i in range(n)]}),
    "same clause again": lambda n: find({"$and": [{"a": {"$gt": 1}}] * n}),
    "fields of a filter": lambda n: find({f"a{i}": i for i in range(n)}),
    "in": lambda n: find({"a": {"$in": list(range(n))}}),
    "in, not indexed": lambda n: find({"z": {"$in": list(range(n))}}),
    "nin": lambda n: find({"a": {"$nin": list(range(n))}}),
    "in of texts, collated": lambda n: find(
        {"a": {"$in": [f"s{i}" for i in range(n)]}}, collation={"locale": "en", "strength": 1}
    ),
    "in of regular expressions": lambda n: find({"s": {"$in": [Regex(f"^x{i}[ab]+$") for i in range(n // 4)]}}),
    "product of two in": lambda n: find({"a": {"$in": list(range(n))}, "b": {"$in": list(range(n))}}),
    "product of four in": lambda n: find({k: {"$in": list(range(n // 4))} for k in KEYS}),
    "product of two in, sorted": lambda n: find(
        {"a": {"$in": list(range(n))}, "b": {"$in": list(range(n))}}, sort={"c": 1}, limit=5
    ),
    "all": lambda n: find({"arr": {"$all": list(range(n))}}),
    "not": lambda n: find({"a": nested(min(n // 100, 40), {"$gt": 1}, lambda x: {"$not": x})}),
    "elemMatch": lambda n: find({"arr": {"$elemMatch": {"$in": list(range(n))}}}),
    "expr of comparisons": lambda n: find({"$expr": {"$and": [{"$gt": ["$a", i]} for i in range(n)]}}),
    "expr or of comparisons": lambda n: find({"$expr": {"$or": [{"$eq": ["$a", i]} for i in range(n)]}}),
    "expr in": lambda n: find({"$expr": {"$in": ["$a", list(range(n))]}}),
    "path of many parts": lambda n: find({".".join(["a"] * min(n, 200)): 1}),
    "schema of properties": lambda n: find({"$jsonSchema": {"properties": {f"a{i}": {"bsonType": "int"} for i in range(n)}}}),
    "schema of patterns": lambda n: find(
        {"$jsonSchema": {"patternProperties": {f"^a{i}[0-9]$": {"bsonType": "int"} for i in range(n // 4)}}}
    ),
    "schema anyOf": lambda n: find({"$jsonSchema": {"anyOf": [{"required": [f"a{i}"]} for i in range(n)]}}),
    "schema unique items": lambda n: find({"$jsonSchema": {"properties": {"arr": {"uniqueItems": True}}}}),
    "schema enum": lambda n: find({"$jsonSchema": {"properties": {"a": {"enum": list(range(n))}}}}),
    "sort fields": lambda n: find({}, sort={f"a{i}": 1 for i in range(min(n, 32))}),
    "projection": lambda n: find({}, projection={f"a{i}": 1 for i in range(n)}),
    "project": lambda n: aggregate({"$project": {f"a{i}": "$a" for i in range(n)}}),
    "set": lambda n: aggregate({"$set": {f"a{i}": "$a" for i in range(n)}}),
    "unset": lambda n: aggregate({"$unset": [f"a{i}" for i in range(n)]}),
    "stages": lambda n: aggregate(*([{"$match": {"a": 1}}] * min(n, 900))),
    "set stages": lambda n: aggregate(*({"$set": {f"a{i}": i}} for i in range(min(n, 900)))),
    "facet": lambda n: aggregate({"$facet": {f"f{i}": [{"$match": {"a": i}}] for i in range(n // 4)}}),
    "group accumulators": lambda n: aggregate({"$group": {"_id": None, **{f"a{i}": {"$sum": "$a"} for i in range(n)}}}),
    "bucket boundaries": lambda n: aggregate({"$bucket": {"groupBy": "$a", "boundaries": list(range(n + 2)), "default": -1}}),
    "unionWith": lambda n: aggregate(*([{"$unionWith": "none"}] * min(n, 900))),
    "documents": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": i} for i in range(n)]}, {"$sort": {"a": -1}}],
        "cursor": {},
    },
    "graph search": lambda n: aggregate(
        {"$match": {"_id": 0}},
        {"$graphLookup": {"from": "g", "startWith": list(range(n)), "connectFromField": "to", "connectToField": "_id", "as": "r"}},
    ),
    "lookup": lambda n: aggregate(
        {"$limit": 1},
        {"$set": {"l": {"$range": [0, n]}}},
        {"$lookup": {"from": "c", "localField": "l", "foreignField": "a", "as": "r"}},
    ),
    "window": lambda n: {
        "aggregate": 1,
        "pipeline": [
            {"$documents": [{"a": i} for i in range(n)]},
            {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"m": {"$max": "$a", "window": {"documents": [-50, 50]}}}}},
            {"$count": "n"},
        ],
        "cursor": {},
    },
    "let": lambda n: project({"$let": {"vars": {f"v{i}": i for i in range(n)}, "in": "$$v0"}}),
    "let, read": lambda n: project(
        {"$let": {"vars": {f"v{i}": "$a" for i in range(n)}, "in": {"$add": [f"$$v{i}" for i in range(n)]}}}
    ),
    "let of ranges": lambda n: project({"$let": {"vars": {f"v{i}": {"$range": [0, 1000]} for i in range(n)}, "in": "$$v0"}}),
    "switch": lambda n: project(
        {"$switch": {"branches": [{"case": {"$eq": ["$a", -i]}, "then": i} for i in range(1, n + 1)], "default": 0}}
    ),
    "concat": lambda n: project({"$concat": ["x"] * n}),
    "concatArrays": lambda n: project({"$concatArrays": [["$a"]] * n}),
    "setUnion": lambda n: project({"$setUnion": [["$a", i] for i in range(n)]}),
    "setIntersection": lambda n: project({"$setIntersection": [list(range(n)), {"$concatArrays": [list(range(n)), ["$a"]]}]}),
    "setDifference": lambda n: project({"$setDifference": [{"$range": [0, {"$add": [n, "$zero"]}]}, list(range(n))]}),
    "setEquals": lambda n: project({"$setEquals": [{"$range": [0, {"$add": [n, "$zero"]}]}, list(range(n))]}),
    "mergeObjects": lambda n: project({"$mergeObjects": [{f"a{i}": "$a"} for i in range(n)]}),
    "arrayToObject": lambda n: project({"$arrayToObject": [[[f"a{i}", "$a"] for i in range(n)]]}),
    "replaceAll": lambda n: project({"$replaceAll": {"input": {"$concat": ["a" * n, "$s"]}, "find": "a", "replacement": "bb"}}),
    "split": lambda n: project({"$size": {"$split": [{"$concat": ["a," * n, "$s"]}, ","]}}),
    "trim": lambda n: project({"$trim": {"input": {"$concat": ["a" * n, "$s"]}, "chars": "ab" * n}}),
    "indexOfCP": lambda n: project({"$indexOfCP": [{"$concat": ["a" * n, "$s"]}, "a" * (n // 2) + "b"]}),
    "regexFindAll": lambda n: project({"$size": {"$regexFindAll": {"input": {"$concat": ["ab" * n, "$s"]}, "regex": "a"}}}),
    "regex alternatives": lambda n: find({"s": Regex("|".join(f"w{i}" for i in range(min(n, 2000))))}),
    "dateToString": lambda n: project({"$dateToString": {"date": "$$NOW", "format": "%Y" * n}}),
    "sortArray": lambda n: project({"$sortArray": {"input": {"$concatArrays": [list(range(n)), ["$a"]]}, "sortBy": -1}}),
    "update fields": lambda n: {"update": "w", "updates": [{"q": {"_id": 0}, "u": {"$set": {f"s{i}": i for i in range(n)}}, "upsert": True}]},
    "update deep fields": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 1}, "u": {"$set": {f"s.a{i}.b": i for i in range(n)}}, "upsert": True}]
    },
    "push": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 2}, "u": {"$push": {"l": {"$each": list(range(n)), "$sort": -1}}}, "upsert": True}]
    },
    "addToSet": lambda n: {
        "update": "w", "updates": [{"q": {"_id": f"set{n}"}, "u": {"$addToSet": {"l": {"$each": list(range(n))}}}, "upsert": True}]
    },
    "pullAll": lambda n: {
        "update": "w", "updates": [{"q": {"_id": f"set{n}"}, "u": {"$pullAll": {"l": list(range(n))}}, "upsert": True}]
    },
    "arrayFilters": lambda n: {
        "update": "w",
        "updates": [{
            "q": {"_id": 3},
            "u": {"$set": {f"l{i}.$[f{i}]": 1 for i in range(n // 8)}},
            "arrayFilters": [{f"f{i}": 1} for i in range(n // 8)],
        }],
    },
    "updates": lambda n: {"update": "w", "updates": [{"q": {"_id": i}, "u": {"$inc": {"n": 1}}} for i in range(n // 4)]},
    "deletes": lambda n: {"delete": "w", "deletes": [{"q": {"_id": -i}, "limit": 1} for i in range(n // 4)]},
    "insert elements": lambda n: insert({"arr": list(range(n))}),
    "insert elements of two paths": lambda n: insert({"o": [{"x": i, "y": i} for i in range(n)]}),
    "insert a wildcard's paths": lambda n: insert({"wild": {f"a{i}": i for i in range(n)}}),
    "insert deep": lambda n: insert({"wild": nested(min(n // 50, 90), 1, lambda x: {"a": x})}),
    "insert words": lambda n: insert({"t": " ".join(f"word{i % 300_000}" for i in range(n))}),
    "insert one word": lambda n: insert({"t": "y" * (4 * n)}),
    "insert a line": lambda n: insert({"geo": line(n, walk)}),
    "insert a line upon itself": lambda n: insert({"geo": line(n, lambda i: [i % 2, i // 2 % 2])}),
    "insert a ring": lambda n: insert({"geo": ring(max(n // 4, 3))}),
    "insert points": lambda n: insert({"geo": {"type": "MultiPoint", "coordinates": [walk(i) for i in range(n // 4)]}}),
    "within a ring": lambda n: find({"geo": {"$geoWithin": {"$geometry": ring(max(n // 4, 3))}}}),
    "meets a line": lambda n: find({"geo": {"$geoIntersects": {"$geometry": line(n, walk)}}}),
    "within corners": lambda n: find({"p": {"$geoWithin": {"$polygon": [walk(i) for i in range(n + 3)]}}}),
    "text words": lambda n: find({"$text": {"$search": " ".join(f"w{i}" for i in range(n))}}),
    "text negated": lambda n: find({"$text": {"$search": "word1 " + " ".join(f"-w{i}" for i in range(n))}}),
    "text phrases": lambda n: find({"$text": {"$search": " ".join(f'"q{i} z"' for i in range(n))}}),
    "text negated phrases": lambda n: find({"$text": {"$search": "word1 " + " ".join(f'-"q{i} z"' for i in range(n))}}),
    "distinct": lambda n: {"distinct": "c", "key": "arr", "query": {"a": {"$in": list(range(n))}}},
    "createIndexes": lambda n: {
        "createIndexes": "i", "indexes": [{"key": {f"a{i}": 1}, "name": f"a{i}"} for i in range(min(n // 50, 60))]
    },
    "partial filter": lambda n: {
        "createIndexes": "i",
        "indexes": [{"key": {"p": 1}, "name": f"p{n}", "partialFilterExpression": {"$and": [{"a": {"$gt": i}} for i in range(n)]}}],
    },
    "view upon view": lambda n: find({"a": 1}) | {"find": f"v{min(n // 100, 15)}"},
    "roles": lambda n: {"rolesInfo": [{"role": f"r{i}", "db": "cost"} for i in range(n)]},
    "hint of a pattern": lambda n: find({}, hint={f"a{i}": 1 for i in range(min(n, 32))}),
    "explain of an or": lambda n: {"explain": find({"$or": [{"a": i, "b": i} for i in range(n)]}), "verbosity": "queryPlanner"},
    "or in and in or": lambda n: find(nested(min(n // 100, 45), {"a": 1}, lambda x: {"$or": [{"b": 1}, {"$and": [{"c": 1}, x]}]})),
    "or of or, a partial index": lambda n: find(nested(min(n // 100, 45), {"q": 1}, lambda x: {"$and": [{"q": 2}, {"$or": [{"q": 3}, x]}]})),
    "and of or": lambda n: find({"$and": [{"$or": [{"a": i}, {"b": i}]} for i in range(n // 8)]}),
    "or of and": lambda n: find({"$or": [{"a": i, "b": i, "c": i} for i in range(n // 8)]}),
    "elemMatch in elemMatch": lambda n: find({"arr": nested(min(n // 100, 45), {"$gt": 1}, lambda x: {"$elemMatch": {"o": x}})}),
    "regular expressions": lambda n: find({"$or": [{"s": Regex(f"^w{i}")} for i in range(n // 4)]}),
    "mod": lambda n: find({"$and": [{"a": {"$mod": [i + 2, 1]}} for i in range(n)]}),
    "bits": lambda n: find({"a": {"$bitsAllSet": list(range(n))}}),
    "type": lambda n: find({"a": {"$type": ["int", "string"] * (n // 2)}}),
    "min and max": lambda n: find({}, min={"a": "x" * n, "b": 1, "c": 1}, max={"a": "y" * n, "b": 1, "c": 1}, hint="a_1_b_1_c_1"),
    "schema of schemas": lambda n: find({"$jsonSchema": nested(min(n // 100, 40), {"bsonType": "int"}, lambda x: {"properties": {"a": x}})}),
    "schema oneOf": lambda n: find({"$jsonSchema": {"oneOf": [{"properties": {"a": {"minimum": i}}} for i in range(n)]}}),
    "schema dependencies": lambda n: find({"$jsonSchema": {"dependencies": {f"a{i}": [f"b{i}"] for i in range(n)}}}),
    "schema required": lambda n: find({"$jsonSchema": {"required": [f"a{i}" for i in range(n)]}}),
    "schema items": lambda n: find({"$jsonSchema": {"properties": {"arr": {"items": [{"bsonType": "int"}] * n}}}}),
    "let in let": lambda n: project(nested(min(n // 100, 60), "$a", lambda x: {"$let": {"vars": {"v": x}, "in": {"$add": ["$$v", 1]}}})),
    "cond in cond": lambda n: project(nested(min(n // 100, 60), 1, lambda x: {"$cond": [{"$gt": ["$a", 100]}, 0, x]})),
    "reduce": lambda n: project(
        {"$reduce": {"input": list(range(n)), "initialValue": [], "in": {"$concatArrays": ["$$value", ["$$this"]]}}}
    ),
    "reduce of a text": lambda n: project(
        {"$strLenBytes": {"$reduce": {"input": list(range(n)), "initialValue": "", "in": {"$concat": ["$$value", "x"]}}}}
    ),
    "zip": lambda n: project({"$size": {"$zip": {"inputs": [list(range(n)), {"$concatArrays": ["$arr", list(range(n))]}]}}}),
    "zip of many": lambda n: project({"$size": {"$zip": {"inputs": [["$a"] for _ in range(n)]}}}),
    "map": lambda n: project({"$size": {"$map": {"input": list(range(n)), "in": {"$add": ["$$this", "$a"]}}}}),
    "filter": lambda n: project({"$size": {"$filter": {"input": list(range(n)), "cond": {"$in": ["$$this", "$arr"]}}}}),
    "indexOfArray in map": lambda n: project(
        {"$size": {"$map": {"input": "$arr", "in": {"$indexOfArray": [list(range(n)), "$$this"]}}}}
    ),
    "setIsSubset": lambda n: project({"$setIsSubset": [{"$concatArrays": [list(range(n)), ["$a"]]}, list(range(n))]}),
    "objectToArray": lambda n: project({"$size": {"$objectToArray": {f"a{i}": "$a" for i in range(n)}}}),
    "setField": lambda n: aggregate({"$project": {"x": nested(min(n // 100, 60), "$$ROOT", lambda x: {"$setField": {"field": "q", "input": x, "value": 1}})}}),
    "percentile": lambda n: project({"$percentile": {"input": list(range(n)), "p": [0.5], "method": "approximate"}}),
    "maxN": lambda n: project({"$maxN": {"input": {"$concatArrays": [list(range(n)), ["$a"]]}, "n": max(n // 2, 1)}}),
    "group by an array": lambda n: aggregate({"$group": {"_id": list(range(n))}}),
    "group pushes": lambda n: aggregate({"$group": {"_id": None, "x": {"$push": {"$concat": ["$s", "x" * n]}}}}),
    "sort by many": lambda n: aggregate({"$sort": {f"a{i}": 1 for i in range(min(n, 32))}}),
    "bucketAuto": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": i} for i in range(n)]}, {"$bucketAuto": {"groupBy": "$a", "buckets": max(n // 4, 1)}}],
        "cursor": {},
    },
    "densify": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": i * 2} for i in range(n)]}, {"$densify": {"field": "a", "range": {"step": 1, "bounds": "full"}}},
                     {"$count": "n"}],
        "cursor": {},
    },
    "fill": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": i} | ({} if i % 50 else {"x": i}) for i in range(n)]},
                     {"$fill": {"sortBy": {"a": 1}, "output": {"x": {"method": "linear"}}}}, {"$count": "n"}],
        "cursor": {},
    },
    "window of ranges": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": i} for i in range(n)]},
                     {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"m": {"$addToSet": "$a", "window": {"range": [-20, 20]}}}}},
                     {"$count": "n"}],
        "cursor": {},
    },
    "sort of arrays": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": list(range(n // 20)), "b": i} for i in range(20)]}, {"$sort": {"a": 1, "b": 1}},
                     {"$project": {"b": 1}}],
        "cursor": {},
    },
    "sort of arrays of documents": lambda n: {
        "aggregate": 1,
        "pipeline": [{"$documents": [{"a": [{"x": j, "y": -j} for j in range(n // 20)]} for i in range(20)]},
                     {"$sort": {"a.x": 1, "a.y": 1}}, {"$project": {"b": 1}}],
        "cursor": {},
    },
    "unwind": lambda n: aggregate({"$limit": 1}, {"$set": {"l": list(range(n))}}, {"$unwind": "$l"}, {"$count": "n"}),
    "redact": lambda n: aggregate({"$redact": {"$cond": [{"$in": ["$a", list(range(n))]}, "$$KEEP", "$$PRUNE"]}}),
    "lookup in lookup": lambda n: aggregate(
        {"$limit": 1}, nested(min(n // 100, 18), {"$limit": 1}, lambda x: {"$lookup": {"from": "c", "pipeline": [{"$limit": 1}, x], "as": "r"}})
    ),
    "unionWith in unionWith": lambda n: aggregate(
        nested(min(n // 100, 18), {"$limit": 1}, lambda x: {"$unionWith": {"coll": "c", "pipeline": [{"$limit": 1}, x]}})
    ),
    "facets of lookups": lambda n: aggregate(
        {"$facet": {f"f{i}": [{"$lookup": {"from": "g", "localField": "a", "foreignField": "_id", "as": "r"}}] for i in range(n // 100)}}
    ),
    "lookups": lambda n: aggregate(*(
        {"$lookup": {"from": "c", "localField": "a", "foreignField": "a", "as": f"r{i}"}} for i in range(min(n // 50, 60))
    ), {"$count": "n"}),
    "graph search, a cycle": lambda n: aggregate(
        {"$limit": 1},
        {"$graphLookup": {"from": "g", "startWith": "$a", "connectFromField": "to", "connectToField": "_id", "as": "r", "maxDepth": n}},
        {"$project": {"n": {"$size": "$r"}}},
    ),
    "set and unset by turns": lambda n: aggregate(*({"$set": {"x": "$a"}} if i % 2 else {"$unset": "x"} for i in range(min(n, 900)))),
    "matches and projections": lambda n: aggregate(*(
        {"$match": {f"x{i}": None}} if i % 2 else {"$set": {f"x{i + 1}": "$nothing"}} for i in range(min(n, 900))
    )),
    "replacement": lambda n: {"update": "w", "updates": [{"q": {"_id": 5}, "u": {f"s{i}": i for i in range(n)}, "upsert": True}]},
    "update by a pipeline": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 6}, "u": [{"$set": {f"s{i}": i for i in range(n)}}], "upsert": True}]
    },
    "update all elements": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 7}, "u": {"$set": {f"l{i}.$[]": 1 for i in range(n // 8)}}}]
    },
    "update elements in elements": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 8}, "u": {"$set": {"l" + ".$[]" * min(n // 100, 90): 1}}}]
    },
    "update by a long path": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 9}, "u": {"$set": {"s." + ".".join(f"p{i}" for i in range(min(n // 100, 90))): 1}}, "upsert": True}]
    },
    "rename": lambda n: {"update": "w", "updates": [{"q": {"_id": 10}, "u": {"$rename": {f"s{i}": f"r{i}" for i in range(n)}}, "upsert": True}]},
    "unset fields": lambda n: {"update": "w", "updates": [{"q": {"_id": 0}, "u": {"$unset": {f"s{i}": 1 for i in range(n)}}, "upsert": True}]},
    "pull": lambda n: {"update": "w", "updates": [{"q": {"_id": f"set{n}"}, "u": {"$pull": {"l": {"$in": list(range(n))}}}, "upsert": True}]},
    "push at a place": lambda n: {
        "update": "w", "updates": [{"q": {"_id": 11}, "u": {"$push": {"l": {"$each": list(range(n)), "$position": 0, "$slice": 10}}}, "upsert": True}]
    },
    "bit": lambda n: {"update": "w", "updates": [{"q": {"_id": 12}, "u": {"$bit": {f"s{i}": {"or": 1} for i in range(n)}}, "upsert": True}]},
    "mul and inc": lambda n: {"update": "w", "updates": [{"q": {"_id": 13}, "u": {"$inc": {f"s{i}": 1 for i in range(n)}}, "upsert": True}]},
    "findAndModify": lambda n: {"findAndModify": "w", "query": {"_id": 14}, "update": {"$set": {f"s{i}": i for i in range(n)}}, "upsert": True},
    "insert fields": lambda n: insert({f"s{i}": i for i in range(n)}),
    "insert one name again": lambda n: insert(bson.raw_bson.RawBSONDocument(repeated(n))),
    "insert documents": lambda n: {"insert": "w", "documents": [{"s": i} for i in range(n // 4)]},
    "bulkWrite namespaces": lambda n: {
        "bulkWrite": 1, "ops": [{"update": i, "filter": {"_id": 1}, "updateMods": {"$set": {"a": 1}}} for i in range(n // 8)],
        "nsInfo": [{"ns": f"cost.none{i}"} for i in range(n // 8)],
    },
    "bulkWrite of one namespace": lambda n: {
        "bulkWrite": 1, "ops": [{"delete": 0, "filter": {"_id": -i}} for i in range(n // 8)], "nsInfo": [{"ns": "cost.w"}],
    },
    "create with a validator": lambda n: {"create": f"val{n}_{time.time_ns()}", "validator": {f"a{i}": {"$exists": False} for i in range(n)}},
    "dropIndexes": lambda n: {"dropIndexes": "i", "index": [f"none{i}" for i in range(n)]},
    "killCursors": lambda n: {"killCursors": "c", "cursors": [bson.Int64(i + 1) for i in range(n)]},
    "endSessions": lambda n: {"endSessions": [{"id": bson.Binary(i.to_bytes(16, "big"), 4)} for i in range(n // 2)]},
    "refreshSessions": lambda n: {"refreshSessions": [{"id": bson.Binary(i.to_bytes(16, "big"), 4)} for i in range(n // 2)]},
    "killSessions": lambda n: {"killSessions": [{"id": bson.Binary(i.to_bytes(16, "big"), 4)} for i in range(n // 2)]},
    "listCollections": lambda n: {"listCollections": 1, "filter": {"name": {"$in": [f"x{i}" for i in range(n)]}}},
    "listCollections or": lambda n: {"listCollections": 1, "filter": {"$or": [{"name": f"x{i}"} for i in range(n)]}},
    "count": lambda n: {"count": "c", "query": {"$or": [{"a": i, "b": i} for i in range(n)]}},
    "users": lambda n: {"usersInfo": [{"user": f"r{i}", "db": "cost"} for i in range(n)]},
    "privileges": lambda n: {
        "createRole": f"many{n}_{time.time_ns()}",
        "privileges": [{"resource": {"db": "cost", "collection": f"c{i}"}, "actions": ["find"]} for i in range(n // 8)], "roles": [],
    },
    "unknown fields": lambda n: {"ping": 1, **{f"x{i}": 1 for i in range(n)}},
}
INDEXES = [
    [("arr", 1)], [("o.x", 1), ("o.y", 1)], [("wild.$**", 1)], [("t", "text")], [("geo", "2dsphere")],
]


def filled(db):
    for keys in ([("a", 1), ("b", 1), ("c", 1)], [("b", 1)], [("c", 1), ("d", 1)], [("s", "text")], [("geo", "2dsphere")]):
        db.c.create_index(keys)
    for keys in INDEXES:
        db.w.create_index(keys)
    docs = [
        {"_id": i, "a": i % 10, "b": i % 7, "c": i, "d": -i, "z": i, "n": 100, "zero": 0, "s": f"word{i} some text",
         "arr": list(range(50)), "p": [i, i], "geo": {"type": "Point", "coordinates": [i * 0.01, 0]}}
        for i in range(DOCUMENTS)
    ]
    db.c.insert_many(docs)
    db.c.create_index([("q", 1)], partialFilterExpression={"$or": [{"q": 7}, {"$and": [{"q": {"$gt": 4}}, {"$or": [{"q": 8}, {"q": 9}]}]}]})
    db.g.insert_many([{"_id": i, "to": [i + 1, i + 2]} for i in range(2000)])
    below = "c"
    for i in range(16):
        db.command("create", f"v{i}", viewOn=below, pipeline=[{"$match": {"a": {"$gte": 0}}}])
        below = f"v{i}"


class Fuzzed:
    def __init__(self, server):
        self.server = server
        self.db = server.client(socketTimeoutMS=600_000).cost
        self.findings = []

    def cpu(self):
        with open(f"/proc/{self.server.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self):
        with open(f"/proc/{self.server.process.pid}/statm") as f:
            return int(f.read().split()[1]) * 4096 >> 20

    def log_kb(self):
        return self.server.log.stat().st_size >> 10

    def run(self, command, **more):
        """How it ended, its processor time and its time."""
        before, started = self.cpu(), time.monotonic()
        try:
            self.db.command({**command, **more})
            ended = "ok"
        except PyMongoError as e:
            ended = getattr(e, "code", None) or type(e).__name__
        return ended, self.cpu() - before, time.monotonic() - started

    def tell(self, name, what):
        self.findings.append((name, what))
        print(f"LOOKS BAD  {name}: {what}", flush=True)

    def shape(self, name, make, end):
        costs, n = [], 500
        while time.monotonic() < end:
            command = make(n)
            try:
                size = len(bson.encode(command))
            except Exception:  # noqa: BLE001 - too long for one message
                break
            if size > MOST_BYTES:
                break
            before, logged = self.resident_mb(), self.log_kb()
            ended, cpu, _ = self.run(command)
            if self.log_kb() - logged > MOST_LOG_KB:
                self.tell(name, f"n={n}: {self.log_kb() - logged} KB of log")
            # Short work is run again: the least of it is what it takes.
            for _ in range(2 if cpu < 0.5 else 0):
                ended, again, _ = self.run(command)
                cpu = min(cpu, again)
            if not self.server.running():
                self.tell(name, f"the server ended at n={n}:\n{self.server.tail(20)}")
                raise SystemExit(1)
            grown = self.resident_mb() - before
            if grown > MOST_MB:
                self.tell(name, f"n={n}: {grown} MB of memory")
            costs.append((n, size, cpu, ended))
            if cpu > LONG_S or (len(costs) > 2 and size == costs[-2][1]):
                break
            n *= 2
        self.grows(name, make, costs)
        self.is_late(name, make, costs)

    def grows(self, name, make, costs):
        for (n, size, cpu, _), (n4, size4, cpu4, ended) in zip(costs, costs[2:]):
            times = size4 / max(size, 1)
            times *= MORE.get(name, lambda _: 1)(times)

            def bad(cpu, cpu4):
                return cpu4 > NOTABLE_S * 4 and cpu4 > max(cpu, 0.02) * times / 4 * SLACK

            # By turns, so that both have the same neighbours. The shorter one is kept as it was found, or as it is at its
            # dearest now: in few ticks of the clock there is little to tell.
            again = []
            while bad(cpu, cpu4) and len(again) < AGAIN:
                again.append(self.run(make(n))[1])
                cpu, cpu4 = max(cpu, sorted(again)[len(again) // 2]), min(cpu4, self.run(make(n4))[1])
            if bad(cpu, cpu4):
                self.tell(name, f"n={n}: {cpu:.2f} s, n={n4}: {cpu4:.2f} s for {times:.1f} times the bytes ({ended})")
                return

    def slow_s(self, behind):
        """How long the server says that the last of the slow commands took that its log has gained."""
        with self.server.log.open("rb") as f:
            f.seek(behind)
            told = re.findall(rb'"durationMillis":(\d+)', f.read())
        return float(told[-1]) / 1000 if told else 0.0

    def late(self, command):
        """How long the server works on it at most, of 100 ms: the time, or its processors' where others have it too, or what
        its log says where a long command takes the client and the socket long."""
        least = float("inf")
        for _ in range(AGAIN):
            behind = self.server.log.stat().st_size
            _, cpu, seconds = self.run(command, maxTimeMS=100)
            time.sleep(0.02)
            least = min(least, cpu, seconds, self.slow_s(behind))
            if least * 1000 <= 100 + LATE_MS:
                break
        return least

    def is_late(self, name, make, costs):
        if not costs:
            return
        n, size, cpu, ended = costs[-1]
        late = self.late(make(n))
        print(f"{name}: n={n} {size} bytes {cpu:.2f} s {ended}; with maxTimeMS 100: {late * 1000:.0f} ms", flush=True)
        if late * 1000 > 100 + LATE_MS:
            self.tell(name, f"n={n}: maxTimeMS 100 ended after {late * 1000:.0f} ms")


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600
    names = sys.argv[2:] or list(SHAPES)
    seed = int(os.environ.get("PANDO_SEED", time.time_ns() % 10**6))
    print(f"seed {seed}", flush=True)
    random.Random(seed).shuffle(names)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as directory:
        server = Server(pathlib.Path(directory) / "data", "--cache", "256m")
        server.start()
        try:
            fuzzed = Fuzzed(server)
            filled(fuzzed.db)
            done = 0
            for name in names:
                if time.monotonic() >= end:
                    break
                fuzzed.shape(name, SHAPES[name], end)
                done += 1
            # What looked bad beside work of others is looked at again, when all else is done.
            suspects, fuzzed.findings = {name for name, _ in fuzzed.findings}, []
            for name in sorted(suspects):
                fuzzed.shape(name, SHAPES[name], time.monotonic() + AGAIN_S)
            loops = fuzzed.db.client.admin.command("serverStatus")["pandodb"].get("eventLoops")
            print(f"{done} of {len(names)} shapes, {len(fuzzed.findings)} findings; event loops {loops}")
        finally:
            server.kill()
    for name, what in fuzzed.findings:
        print(f"FOUND  {name}: {what}")
    raise SystemExit(1 if fuzzed.findings else 0)


if __name__ == "__main__":
    main()
