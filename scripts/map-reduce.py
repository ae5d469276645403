#!/usr/bin/env python3
"""Counts words three ways, on a server that runs: by mapReduce, by $group, and by a loop in the bare engine.

    scripts/map-reduce.py URI [DOCUMENTS [PID]]

Each is run three times in turn; the best is told, in documents a second; of the server whose process has
the number PID, by its processor time, which tells of a busy machine too. The bare loop is one call of a
function that makes the same texts itself: no document goes in or out.
"""

import os
import pathlib
import random
import sys
import time

import pymongo

WORDS, PER_TEXT, TEXTS = 1000, 10, 1000

client = pymongo.MongoClient(sys.argv[1])
documents = int(sys.argv[2]) if len(sys.argv) > 2 else 300_000
coll = client["map_reduce"]["texts"]
random.seed(1)
texts = [" ".join(f"w{random.randrange(WORDS)}" for _ in range(PER_TEXT)) for _ in range(TEXTS)]

MAP = "function () { var words = this.text.split(' '); for (var i = 0; i < words.length; i++) emit(words[i], 1) }"
REDUCE = "function (key, values) { return Array.sum(values) }"
BARE = """function (texts, n) {
  var counts = {};
  for (var d = 0; d < n; d++) {
    var words = texts[d % texts.length].split(' ');
    for (var i = 0; i < words.length; i++) counts[words[i]] = (counts[words[i]] || 0) + 1;
  }
  return Object.keys(counts).length;
}"""


def map_reduce():
    reply = coll.database.command("mapReduce", coll.name, map=MAP, reduce=REDUCE, out={"inline": 1})
    return sum(r["value"] for r in reply["results"])


def group():
    pipeline = [
        {"$project": {"word": {"$split": ["$text", " "]}}},
        {"$unwind": "$word"},
        {"$group": {"_id": "$word", "value": {"$sum": 1}}},
    ]
    return sum(r["value"] for r in coll.aggregate(pipeline))


def bare():
    call = {"$function": {"body": BARE, "args": [texts, documents], "lang": "js"}}
    [row] = coll.database.aggregate([{"$documents": [{}]}, {"$project": {"n": call}}])
    return documents * PER_TEXT if row["n"] else 0


def clock():
    """Seconds: of processor time where the process is known."""
    if len(sys.argv) < 4:
        return time.monotonic()
    fields = pathlib.Path(f"/proc/{sys.argv[3]}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


coll.drop()
for at in range(0, documents, 10_000):
    coll.insert_many([{"_id": i, "text": texts[i % TEXTS]} for i in range(at, min(at + 10_000, documents))])
best = {}
for _ in range(3):
    for way in (map_reduce, group, bare):
        begun = clock()
        counted = way()
        took = clock() - begun
        assert counted == documents * PER_TEXT, (way.__name__, counted)
        best[way.__name__] = max(best.get(way.__name__, 0), documents / took)
for name, rate in best.items():
    print(f"{name:12} {rate:12,.0f} documents/s, {1e6 / rate:6.2f} us each   {rate / best['bare']:.2f} of the bare engine")
coll.drop()
