"""What mechanisms of docs/adaptive.md save, in counts that carry no noise: one line for each, without it and with it.

    scripts/measure.py mechanisms target/debug/pando

There are no switches: each pair is the same work on the same documents, once in a form, or at a time, in which the mechanism
cannot act.
"""

import pathlib
import random

import bson
from harness import OP_MSG, until

from .common import running


def executed(coll, **find):
    """Keys and documents that a find examines."""
    explain = coll.database.command("explain", {"find": coll.name, **find}, verbosity="executionStats")
    stats = explain["executionStats"]
    return stats["totalKeysExamined"], stats["totalDocsExamined"]


def zone_maps(db):
    """A sort with a limit, before and after the map of the index on what it sorts by is there."""
    rng = random.Random(1)
    db.zones.insert_many([{"_id": i, "g": rng.randrange(10), "at": i, "fill": "x" * 200} for i in range(100_000)])
    db.zones.create_index("g")
    db.zones.create_index("at")
    find = {"filter": {"g": 3}, "sort": {"at": -1}, "limit": 10, "hint": "g_1"}

    def documents():
        return executed(db.zones, **find)[1]

    without = documents()

    def saves():
        list(db.zones.find(find["filter"], hint="g_1").sort("at", -1).limit(10))
        return documents() < without

    until("a zone map", saves, timeout_s=60)
    return "documents examined", without, documents()


def join(db):
    """An equality $lookup; with a collation no table can answer it."""
    db.left.insert_many([{"_id": i, "k": i % 200} for i in range(2_000)])
    db.right.insert_many([{"_id": i, "k": i} for i in range(200)])
    stage = {"$lookup": {"from": "right", "localField": "k", "foreignField": "k", "as": "found"}}

    def documents(**options):
        explain = db.command(
            "explain", {"aggregate": "left", "pipeline": [stage], "cursor": {}, **options}, verbosity="executionStats"
        )
        return next(s["totalDocsExamined"] for s in explain["stages"] if "$lookup" in s)

    return "documents examined", int(documents(collation={"locale": "en"})), int(documents())


def skip_scan(db):
    """Bounds on a later field; the test with `$mod` selects the same documents and has no bounds."""
    db.skips.insert_many([{"a": i // 1000, "b": i % 1000} for i in range(50_000)])
    db.skips.create_index([("a", 1), ("b", 1)])

    def keys(b):
        return executed(db.skips, filter={"a": {"$gte": 0}, "b": b}, hint="a_1_b_1")[0]

    return "keys examined", keys({"$mod": [1000, 500]}), keys(500)


def index_spread(db):
    """Two equalities under an index each: the index that comes first, which is as good by rule of thumb, and the one chosen."""
    db.spread.insert_many([{"a": i % 2, "b": i} for i in range(20_000)])
    db.spread.create_index("a")
    db.spread.create_index("b")
    both = {"a": 1, "b": 777}
    return "keys examined", executed(db.spread, filter=both, hint="a_1")[0], executed(db.spread, filter=both)[0]


def group_commit(db, server):
    """Inserts of 50 clients that wait for each other, and that do not: writes of the server to files."""
    def calls():
        text = pathlib.Path(f"/proc/{server.process.pid}/io").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("syscw")))

    def insert(wire, i):
        body = {"insert": "groups", "$db": db.name, "documents": [{"_id": i}], "writeConcern": {"w": 1}}
        return wire.message(OP_MSG, bytes(5) + bson.encode(body))

    def inserted(wire):
        return bson.decode(wire.receive()[2][5:])["n"] == 1

    wires = [server.wire() for _ in range(50)]
    wires[0].send(insert(wires[0], -1))
    assert inserted(wires[0])
    start = calls()
    for i in range(1000):
        wires[i % 50].send(insert(wires[i % 50], i))
        assert inserted(wires[i % 50])
    middle = calls()
    for i in range(1000, 2000, 50):
        for n, wire in enumerate(wires):
            wire.send(insert(wire, i + n))
        assert all(inserted(wire) for wire in wires)
    spent = middle - start, calls() - middle
    for wire in wires:
        wire.close()
    return "writes to files", *spent


def main(_):
    with running("--event-loops", "1") as server, server.client() as client:
        db = client.adaptive
        measured = {
            "zone maps": zone_maps(db),
            "join by a hash table": join(db),
            "skip scan": skip_scan(db),
            "index spread": index_spread(db),
            "group commit": group_commit(db, server),
        }
    print(f"{'mechanism':22} {'counted':20} {'without':>9} {'with':>9}")
    for name, (what, without, with_it) in measured.items():
        print(f"{name:22} {what:20} {without:9} {with_it:9}")
