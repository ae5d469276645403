"""The rate of writers while backups are taken, against their rate without: windows in turns, and the median of the pairs.

    scripts/measure.py backup target/release/pando [MEMBERS, 1] [WRITERS, 4] [PAIRS, 5] [SECONDS, 15] [RECORDS, 200000]

Writers insert documents of 500 bytes, one at a time, with the default write concern. In every second window one `pando backup` into a
new directory follows the other. Writers are processes of their own.
"""

import contextlib
import multiprocessing
import os
import shutil
import statistics
import subprocess
import time

import pymongo
from harness import BINARY
from replica_set import ReplicaSet

from .common import folder, numbers, running

FILL = 500


@contextlib.contextmanager
def written_to(members, place):
    """Gives the URI of a server, or of a set."""
    if members > 1:
        (place / "set").mkdir()
        with ReplicaSet(place / "set", size=members) as replicas:
            replicas.initiate()
            yield replicas.uri()
    else:
        with running() as server:
            yield f"mongodb://{server.address}/"


def write(uri, number, counts):
    with pymongo.MongoClient(uri) as client:
        while True:
            client.d.c.insert_one({"_id": f"{number}-{counts[number]}", "fill": "x" * FILL})
            counts[number] += 1


def backups(uri, place, until):
    """Takes backups until then; how many."""
    taken = 0
    while time.monotonic() < until:
        subprocess.run([BINARY, "backup", uri, place / "backup"], check=True, capture_output=True)
        shutil.rmtree(place / "backup")
        taken += 1
    return taken


def wait(until):
    time.sleep(max(until - time.monotonic(), 0))


def window(counts, seconds, work):
    """Inserts a second while `work` goes on, and what it gives."""
    before, began = sum(counts), time.monotonic()
    result = work(began + seconds)
    return (sum(counts) - before) / (time.monotonic() - began), result


def main(given):
    members, writers, pairs, seconds, records = numbers(given, 1, 4, 5, 15.0, 200_000)
    counts = multiprocessing.Array("q", writers)
    with folder() as place, written_to(members, place) as uri:
        with pymongo.MongoClient(uri) as client:
            for first in range(0, records, 10_000):
                client.d.c.insert_many([{"n": n, "fill": os.urandom(FILL)} for n in range(first, first + 10_000)])
        processes = [multiprocessing.Process(target=write, args=(uri, n, counts), daemon=True) for n in range(writers)]
        for process in processes:
            process.start()
        time.sleep(3)
        ratios = []
        for _ in range(pairs):
            quiet, _ = window(counts, seconds, wait)
            beside, taken = window(counts, seconds, lambda until: backups(uri, place, until))
            ratios.append(beside / quiet)
            print(f"{quiet:.0f}/s alone, {beside:.0f}/s beside {taken} backups: {beside / quiet:.2f}", flush=True)
        for process in processes:
            process.terminate()
            process.join()
    print(f"median of {pairs}: {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
