"""Instructions that the server spends on an operation, by room: a point read, an update, an insert, a batch and a delete.

    scripts/measure.py operations PANDO [OPERATIONS, 500, at most 1,000] [--functions N] [--long-ids] [--engine-options …]

Needs valgrind; PANDO is built with optimization (`cargo build --profile profiling`).
Each count is the difference of a server's whole life with and without the operations, its last
flush included. Two runs of one binary differ by up to 2% (threads in the background). A room is a
crate: code that the compiler inlined counts with the crate that it was inlined into.
`--functions N` names the N functions of each operation that cost most. `--long-ids`: `_id` is a
string of 32 hexadecimal digits, so records lie under numbers. `--engine-options dead_ranges=off`: as
without dead ranges.
"""

import argparse
import collections
import hashlib
import re
import sys

import pymongo

from .common import counted

DOCUMENTS = 1000
BATCH = 100
ROOMS = (
    "bson errors alloc_meter uring own_process script wire query oplog storage planner catalog changes executor "
    "session replication auth service commands server pando"
).split()
LONG_IDS = "--long-ids" in sys.argv
C_ROOMS = {"rocksdb": "engine", "mi_": "allocator", "_mi_": "allocator"}


def id_of(i):
    return hashlib.md5(str(i).encode()).hexdigest() if LONG_IDS else i


def document(i):
    return {"_id": id_of(i), "a": i * 7919 % 100_003, "b": f"name {i % 997}", "c": i % 31, "n": 0, "fill": "x" * 300}


def read(coll, n):
    for i in range(n):
        coll.find_one({"_id": id_of(i % DOCUMENTS)})


def update(coll, n):
    for i in range(n):
        coll.update_one({"_id": id_of(i % DOCUMENTS)}, {"$inc": {"n": 1}})


def insert(coll, n):
    for i in range(n):
        coll.insert_one(document(DOCUMENTS + i))


def batch(coll, n):
    for first in range(0, n, BATCH):
        coll.insert_many([document(DOCUMENTS + i) for i in range(first, first + BATCH)])


def delete(coll, n):
    for i in range(n):
        coll.delete_one({"_id": id_of(i)})


def nothing(_coll, _n):
    pass


def room_of(name):
    """The crate of a demangled symbol: the first path in it that names one."""
    for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*(?=::)", name):
        if word in ROOMS:
            return word
        if word in C_ROOMS:
            return C_ROOMS[word]
        if word in ("core", "alloc", "std", "hashbrown", "smallvec", "parking_lot", "parking_lot_core"):
            continue
    for prefix, room in C_ROOMS.items():
        if name.startswith(prefix):
            return room
    if "::" in name:
        return "libraries"
    return "libc"


def count(work, n, engine_options):
    with counted("--engine-options", engine_options) as server:
        with server.client() as client:
            coll = client.test.get_collection("counted", write_concern=pymongo.WriteConcern(w=1))
            for field in "abc":
                coll.create_index(field)
            coll.insert_many([document(i) for i in range(DOCUMENTS)])
            work(coll, n)
        return server.by_function()


def main(given):
    arguments = argparse.ArgumentParser()
    arguments.add_argument("pando")
    arguments.add_argument("operations", nargs="?", type=int, default=500)
    arguments.add_argument("--functions", type=int, default=0)
    arguments.add_argument("--long-ids", action="store_true")
    arguments.add_argument("--engine-options", default="")
    a = arguments.parse_args(given)
    idle = count(nothing, 0, a.engine_options)
    for work in (read, update, insert, batch, delete):
        costs = count(work, a.operations, a.engine_options)
        costs.subtract(idle)
        rooms = collections.Counter()
        for name, cost in costs.items():
            rooms[room_of(name)] += cost / a.operations
        what = "document of a batch" if work is batch else work.__name__
        print(f"{what}: {sum(rooms.values()):,.0f} instructions")
        print("  " + ", ".join(f"{room} {cost:,.0f}" for room, cost in rooms.most_common() if cost >= 20))
        for name, cost in costs.most_common(a.functions):
            print(f"  {cost / a.operations:>8,.0f}  {name[:150]}")

