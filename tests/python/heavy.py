"""Clients that ask much, as a program of their own so that its work is not taken for the server's.

    python tests/python/heavy.py KIND PORT COUNT ROUNDS

COUNT connections run the query of a KIND at once over heavy.things, ROUNDS times each, and check what comes; `mixed` gives each
kind to some of them. `idle` sort, read a first batch and leave the cursor. Prints how many were answered, and the errors.
"""

import collections
import os
import random
import sys
import threading

import pymongo
from pymongo.errors import OperationFailure

PAD = 10_000
COMPUTED = {"$set": {"z": {"$concat": ["$pad", "y"]}}}


def fill(db, count):
    """Documents of 10 KB, in no order of `k`, which is a number from 0 to `count` - 1."""
    numbers = random.Random(1).sample(range(count), count)
    for at in range(0, count, 500):
        some = enumerate(numbers[at : at + 500], at)
        db.things.insert_many([{"_id": i, "k": k, "g": k // 2, "pad": os.urandom(PAD // 2).hex()} for i, k in some])


def sort(db, count):
    """Without leave for files, where it is not too much for one."""
    stages = [COMPUTED, {"$sort": {"k": 1, "z": 1}}, {"$project": {"k": 1}}]
    found = list(db.things.aggregate(stages, allowDiskUse=2 * count * PAD > 90 << 20))
    assert [d["k"] for d in found] == list(range(count))


def find(db, count):
    """The keys that are sorted by are most of the documents."""
    found = [d["k"] for d in db.things.find({}, {"k": 1}).sort([("pad", 1), ("k", 1)])]
    assert len(found) == count and sum(found) == count * (count - 1) // 2


def group(db, count):
    stages = [{"$group": {"_id": "$g", "pads": {"$push": "$pad"}}}, {"$group": {"_id": {"$size": "$pads"}, "n": {"$sum": 1}}}]
    assert list(db.things.aggregate(stages)) == [{"_id": 2, "n": count // 2}]


def keys(db, count):
    stages = [{"$group": {"_id": {"$concat": ["$pad", "y"]}, "n": {"$sum": 1}}}, {"$count": "n"}]
    assert list(db.things.aggregate(stages)) == [{"n": count}]


def facet(db, count):
    stages = [COMPUTED, {"$facet": {"n": [{"$count": "n"}], "last": [{"$sort": {"k": -1}}, {"$limit": 1}, {"$project": {"k": 1}}]}}]
    (found,) = db.things.aggregate(stages)
    assert found["n"] == [{"n": count}] and found["last"][0]["k"] == count - 1


def window(db, count):
    output = {"before": {"$sum": "$one", "window": {"documents": ["unbounded", "current"]}}}
    over = {"partitionBy": {"$mod": ["$k", 100]}, "sortBy": {"k": 1}, "output": output}
    stages = [{"$set": {"one": 1}}, {"$setWindowFields": over}, {"$group": {"_id": None, "n": {"$sum": "$before"}}}]
    part = count // 100
    assert list(db.things.aggregate(stages)) == [{"_id": None, "n": 100 * part * (part + 1) // 2}]


def lookup(db, count):
    joined = {"from": "things", "pipeline": [{"$match": {"k": {"$lt": count // 4}}}], "as": "all"}
    stages = [{"$limit": 3}, {"$lookup": joined}, {"$project": {"n": {"$size": "$all"}}}]
    assert [d["n"] for d in db.things.aggregate(stages)] == [count // 4] * 3


def listed(db, count):
    wanted = list(range(0, 200_000))
    assert db.things.count_documents({"k": {"$in": wanted}}) == count


def idle(db, count):
    cursor = db.things.aggregate([COMPUTED, {"$sort": {"k": 1}}], batchSize=1)
    assert next(cursor)["k"] == 0
    cursor._killed = True  # so that nobody closes it


KINDS = {f.__name__: f for f in (sort, find, group, keys, facet, window, lookup, listed, idle)}


def main(kind, port, count, rounds):
    kinds = list(KINDS.values()) if kind == "mixed" else [KINDS[kind]]
    client = pymongo.MongoClient("127.0.0.1", port, directConnection=True, maxPoolSize=count, serverSelectionTimeoutMS=600_000)
    db = client.heavy
    have = db.things.count_documents({})
    start, outcomes = threading.Barrier(count), collections.Counter()

    def one(number):
        start.wait()
        for _ in range(rounds):
            run = kinds[number % len(kinds)]
            try:
                run(db, have)
                outcomes["answered"] += 1
            except OperationFailure as e:
                outcomes[f"{run.__name__}: {e.code} {(e.details or {}).get('errmsg', '')[:80]}"] += 1
            except Exception as e:
                outcomes[f"WRONG {run.__name__}: {type(e).__name__} {str(e)[:200]}"] += 1

    threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(dict(outcomes))
    sys.exit(any(o.startswith("WRONG") for o in outcomes))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
