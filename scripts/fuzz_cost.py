#!/usr/bin/env python3
"""Grows one dimension of a command at a time and looks at what the server's work grows by.

    scripts/fuzz.sh cost [SECONDS [NAME…]]       PANDO_BIN names the server (target/debug/pando)

A shape is a command made for a number: branches, depth, lengths, repeats, elements, vertices, words.
The number is doubled until the command is refused or long. What is counted is processor time of the
server, the least of three runs; bytes are those of the command, or of the documents it reads.

Fails where, past TICKS of work, four times the bytes take more than n·log n and SLACK; where
`maxTimeMS: 100` ends later than LATE_MS after that; and where the server's memory grows past
MOST_MB. A finding is printed with its figures, and the next shape goes on.
"""

import os
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

import bson  # noqa: E402
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
MOST_BYTES = 12 << 20


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


R = {"$range": [0, "$n"]}
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
        for i in range(20)
    ]
    db.c.insert_many(docs)
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
        print(f"FOUND  {name}: {what}", flush=True)

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
            before = self.resident_mb()
            ended, cpu, _ = self.run(command)
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
        self.grows(name, costs)
        self.is_late(name, make, costs)

    def grows(self, name, costs):
        for (n, size, cpu, _), (n4, size4, cpu4, ended) in zip(costs, costs[2:]):
            times = size4 / max(size, 1)
            if cpu4 > NOTABLE_S * 4 and cpu4 > max(cpu, 0.02) * times / 4 * SLACK:
                self.tell(name, f"n={n}: {cpu:.2f} s, n={n4}: {cpu4:.2f} s for {times:.1f} times the bytes ({ended})")
                return

    def is_late(self, name, make, costs):
        if not costs:
            return
        n, size, cpu, ended = costs[-1]
        late = min(self.run(make(n), maxTimeMS=100)[2] for _ in range(3)) if "explain" not in make(n) else 0
        print(f"{name}: n={n} {size} bytes {cpu:.2f} s {ended}; with maxTimeMS 100: {late * 1000:.0f} ms", flush=True)
        # What comes and goes on the wire, and is made of it by this client, is not the server's.
        if late * 1000 > 100 + LATE_MS + size / 20_000:
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
            loops = fuzzed.db.client.admin.command("serverStatus")["pandodb"].get("eventLoops")
            print(f"{done} of {len(names)} shapes, {len(fuzzed.findings)} findings; event loops {loops}")
        finally:
            server.kill()
    for name, what in fuzzed.findings:
        print(f"FOUND  {name}: {what}")
    raise SystemExit(1 if fuzzed.findings else 0)


if __name__ == "__main__":
    main()
