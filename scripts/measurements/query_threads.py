"""What aggregations gain by a second thread, and what short reads beside them lose by it.

    scripts/measure.py query_threads target/release/pando [documents, 300000] [rounds, 9]

Two servers have the same documents of about 700 bytes: one may use one thread for an aggregation, the other as many as there are
cores. They are asked in turn, in milliseconds; the medians' ratio is shown, and whether all results were equal but for the last bits
of sums. Then four clients read by `_id` without and beside an endless `$group`: the 99th percentile of each, in milliseconds.
"""

import contextlib
import multiprocessing
import time

from pymongo import MongoClient

from .common import numbers, running

BESIDE_S = 6
CLIENTS = 4


def documents(ids):
    def words(i, ks):
        return [f"word{(i * 13 + k) * 7919 % 2000}" for k in ks]

    return [
        {
            "_id": i,
            "user": i * 7919 % 1000,
            "shop": i * 104_729 % 30_000,
            "amount": 1 + i * 15_485_863 % 49_901 / 100,
            "day": i // 1000,
            "city": f"city{i % 50}",
            "tags": words(i, (1, 3, 7, 11)),
            "text": " ".join(words(i, range(60))),
        }
        for i in ids
    ]


def pipelines(n):
    join = {"from": "s", "localField": "shop", "foreignField": "_id", "as": "x"}
    return {
        "filter and count": [{"$match": {"amount": {"$gt": 400}}}, {"$count": "n"}],
        "group into 1,000": [{"$group": {"_id": "$user", "s": {"$sum": "$amount"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}],
        "group into 30,000": [{"$group": {"_id": "$shop", "m": {"$max": "$amount"}}}, {"$sort": {"m": -1, "_id": 1}}, {"$limit": 10}],
        "unwind and group": [{"$unwind": "$tags"}, {"$group": {"_id": "$tags", "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}],
        "join of a third": [
            {"$match": {"_id": {"$lt": n // 3}}},
            {"$lookup": join},
            {"$unwind": "$x"},
            {"$group": {"_id": "$x.region", "s": {"$sum": "$amount"}}},
        ],
        "two facets": [{"$facet": {f: [{"$group": {"_id": f"${f}", "n": {"$sum": 1}}}] for f in ("city", "day")}}],
        "top 20": [{"$sort": {"amount": -1, "_id": 1}}, {"$limit": 20}],
        "push by city": [{"$group": {"_id": "$city", "f": {"$first": "$_id"}, "p": {"$push": "$_id"}}}],
    }


def fill(db, n):
    for at in range(0, n, 5000):
        db.d.insert_many(documents(range(at, min(n, at + 5000))))
    db.s.insert_many([{"_id": i, "region": i % 12} for i in range(30_000)])


def rounded(v):
    if isinstance(v, float):
        return f"{v:.9g}"
    if isinstance(v, dict):
        return {k: rounded(x) for k, x in v.items()}
    return [rounded(x) for x in v] if isinstance(v, list) else v


def median(values):
    return sorted(values)[len(values) // 2]


def in_turn(dbs, n, rounds):
    for name, pipeline in pipelines(n).items():
        times, results = ([], []), [None, None]
        for _ in range(rounds):
            for k, db in enumerate(dbs):
                began = time.perf_counter()
                results[k] = list(db.d.aggregate(pipeline))
                times[k].append((time.perf_counter() - began) * 1000)
        one, more = map(median, times)
        same = "equal" if rounded(results[0]) == rounded(results[1]) else "DIFFERENT"
        print(f"{name}: {one:.1f} ms with one thread, {more:.1f} with more, {one / more:.2f} times as fast; {same}", flush=True)


def read(port, n, end, told):
    with MongoClient("127.0.0.1", port, directConnection=True) as client:
        times, i = [], 0
        while time.time() < end:
            began = time.perf_counter()
            client.bench.d.find_one({"_id": i % n})
            times.append((time.perf_counter() - began) * 1000)
            i += 7919
            time.sleep(0.004)
    told.put(times)


def percentile_of_reads(port, db, n, beside):
    told, end = multiprocessing.Queue(), time.time() + BESIDE_S
    readers = [multiprocessing.Process(target=read, args=(port, n, end, told)) for _ in range(CLIENTS)]
    for r in readers:
        r.start()
    while time.time() < end:
        if beside:
            list(db.d.aggregate([{"$group": {"_id": "$user", "s": {"$sum": "$amount"}}}]))
        else:
            time.sleep(0.1)
    times = sorted(t for _ in readers for t in told.get())
    for r in readers:
        r.join()
    return times[len(times) * 99 // 100]


def main(given):
    n, rounds = numbers(given, 300_000, 9)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(running("--cache", "1g", *o)) for o in (("--query-threads", "1"), ())]
        dbs = [stack.enter_context(server.client()).bench for server in servers]
        for db in dbs:
            fill(db, n)
        in_turn(dbs, n, rounds)
        found = {}
        for _ in range(3):
            for beside in (False, True):
                for k, server in enumerate(servers):
                    found.setdefault((beside, k), []).append(percentile_of_reads(server.port, dbs[k], n, beside))
    for (beside, k), values in found.items():
        where, threads = "beside a group" if beside else "alone", "more threads" if k else "one thread"
        print(f"99th percentile of a read {where}, {threads}: {median(values):.2f} ms")
