#!/usr/bin/env python3
"""What queries near points read, how soon an endless script ends, and what many heavy pipelines hold.

    scripts/language.py SERVER [points] [pipelines]

Starts SERVER (a release build for times and memory; any build for documents examined). Prints one line
for each figure with its bar, and fails where one is missed. The bars: 100 documents examined for the ten
nearest of a million points, 1,500 for a circle that holds 1,000, 100 ms from a limit or a kill to the end of a script.
The memory of 100 pipelines at once, each of which sorts or groups 24 MB, many times what it may hold then (all of them
128 MB), stays below the cache, those 128 MB, the 256 MB of requests and replies and 400 MB for all else.
"""

import math
import pathlib
import random
import sys
import tempfile
import threading
import time

import pymongo
from pymongo.errors import OperationFailure

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/python"))
import harness  # noqa: E402
from watch import Watch  # noqa: E402

CACHE_MB = 64
ENDLESS = {"$function": {"body": "function () { for (;;) {} }", "args": [], "lang": "js"}}
missed = []


def tell(what, got, bar, unit=""):
    print(f"{what}: {got:,.0f}{unit} (bar {bar:,}{unit})", flush=True)
    if got > bar:
        missed.append(what)


def examined(coll, query, limit=0):
    command = {"find": coll.name, "filter": query, "limit": limit}
    said = coll.database.command("explain", command, verbosity="executionStats")
    return said["executionStats"]["totalDocsExamined"], said["executionStats"]["nReturned"]


def near(db, points):
    rnd = random.Random(3)

    def point():
        return [rnd.uniform(-180, 180), math.degrees(math.asin(rnd.uniform(-1, 1)))]

    db.points.create_index([("at", "2dsphere")])
    for first in range(0, points, 5000):
        n = min(5000, points - first)
        db.points.insert_many([{"_id": first + i, "at": {"type": "Point", "coordinates": point()}} for i in range(n)])
    # Of a sphere, a cap that holds so many of points that lie evenly.
    radius = math.acos(1 - 2 * 1000 / points)
    most_near = most_circle = held = 0
    for _ in range(20):
        at = point()
        docs, n = examined(db.points, {"at": {"$near": {"$geometry": {"type": "Point", "coordinates": at}}}}, 10)
        assert n == 10
        most_near = max(most_near, docs)
        docs, n = examined(db.points, {"at": {"$geoWithin": {"$centerSphere": [at, radius]}}})
        if docs / max(n, 1) > most_circle / max(held, 1):
            most_circle, held = docs, n
    tell(f"documents examined for the ten nearest of {points:,} points, the most of 20", most_near, 100)
    tell("documents examined for a circle, for 1,000 that it holds", 1000 * most_circle / max(held, 1), 1500)


def endless(client, uri):
    db = client.scripts
    db.one.insert_one({})
    run = [{"$project": {"x": ENDLESS}}]
    slowest = 0
    for _ in range(5):
        begun = time.monotonic()
        try:
            list(db.one.aggregate(run, maxTimeMS=300))
        except OperationFailure as e:
            assert e.code == 50, e
        slowest = max(slowest, time.monotonic() - begun - 0.3)
    tell("from maxTimeMS to the end of an endless script, the slowest of 5", slowest * 1e3, 100, " ms")
    slowest = 0
    for _ in range(5):
        ended = []

        def loop():
            try:
                list(pymongo.MongoClient(uri, directConnection=True).scripts.one.aggregate(run))
            except OperationFailure as e:
                ended.append((e.code, time.monotonic()))

        thread = threading.Thread(target=loop)
        thread.start()
        ops = []
        while not ops:
            time.sleep(0.05)
            stages = [{"$currentOp": {}}, {"$match": {"ns": "scripts.one", "command.aggregate": "one"}}]
            ops = list(client.admin.aggregate(stages))
        begun = time.monotonic()
        client.admin.command("killOp", op=ops[0]["opid"])
        thread.join()
        assert ended[0][0] == 11601, ended
        slowest = max(slowest, ended[0][1] - begun)
    tell("from killOp to the end of an endless script, the slowest of 5", slowest * 1e3, 100, " ms")


def heavy(client, uri, pid, pipelines):
    pad = "x" * 10_000
    for first in range(0, 2400, 400):
        client.heavy.d.insert_many([{"_id": i, "k": i * 7919 % 2400, "pad": pad} for i in range(first, first + 400)])
    sort = [{"$set": {"pad": {"$concat": ["$pad", "y"]}}}, {"$sort": {"k": 1}}, {"$group": {"_id": None, "n": {"$sum": 1}}}]
    group = [{"$group": {"_id": "$k", "all": {"$push": "$pad"}}}, {"$count": "n"}]
    failed = []

    def run(i):
        with pymongo.MongoClient(uri, directConnection=True) as own:
            try:
                [found] = own.heavy.d.aggregate(group if i % 2 else sort, allowDiskUse=True)
                assert found["n"] == 2400
            except OperationFailure as e:
                failed.append(e.code)

    with Watch(pid) as watch:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(pipelines)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    print(f"{pipelines} pipelines at once: {pipelines - len(failed)} answered, refused with {sorted(set(failed)) or 'nothing'}")
    tell("their server's memory at most", watch.most, CACHE_MB + 128 + 256 + 400, " MB")
    stages = client.admin.command("serverStatus")["pandodb"]["stages"]["bytes"]
    tell("bytes that stages hold afterwards", stages, 0)


def main():
    program = pathlib.Path(sys.argv[1])
    points, pipelines = (int(a) for a in (sys.argv[2:] + ["1000000", "100"][len(sys.argv) - 2 :]))
    harness.BINARY = program
    with tempfile.TemporaryDirectory() as d:
        options = ["--cache", f"{CACHE_MB}m"]
        with harness.Server(pathlib.Path(d) / "data", *options, program=[program, "serve"]) as server, server.client() as client:
            uri = f"mongodb://127.0.0.1:{server.port}/"
            endless(client, uri)
            heavy(client, uri, server.process.pid, pipelines)
            near(client.geo, points)
    if missed:
        sys.exit("missed: " + "; ".join(missed))


main()
