#!/usr/bin/env python3
"""What a replica set costs in CPU: user and system time of each process (from /proc) for the same inserts into one server and
into a set of three, with w: 1 and with majority. CPU time of other processes does not count, but a machine that does something
else has colder caches: compare figures of one run only.

    scripts/count_set.py target/release/pando [documents, 20000] [clients, 8]
"""

import os
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ["PANDO_BIN"] = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import Server, until  # noqa: E402
from pymongo import MongoClient, WriteConcern  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402

DOCUMENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
CLIENTS = int(sys.argv[3]) if len(sys.argv) > 3 else 8
TICKS = os.sysconf("SC_CLK_TCK")


def cpu(server):
    """Seconds of CPU that a process has used."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def insert(uri, concern):
    def work(first):
        with MongoClient(uri) as client:
            coll = client.t.get_collection("c", write_concern=WriteConcern(concern))
            for n in range(first, DOCUMENTS, CLIENTS):
                coll.insert_one({"n": n, "fill": "x" * 100})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(servers, uri, concern):
    """Microseconds of CPU for an insert, by server; all have it at the end."""
    before = [cpu(s) for s in servers]
    insert(uri, concern)
    for server in servers:
        with server.client() as client:
            until("all is there", lambda: client.t.c.estimated_document_count() % DOCUMENTS == 0, 120)
    # What is left to do after the last acknowledgement belongs to it.
    time.sleep(1)
    return [(cpu(s) - b) / DOCUMENTS * 1e6 for s, b in zip(servers, before)]


with tempfile.TemporaryDirectory() as place:
    place = pathlib.Path(place)
    single = {}
    with Server(place / "one", "--cache", "256MB") as one:
        uri = f"mongodb://{one.address}/?directConnection=true"
        insert(uri, 1)
        for concern in (1, "majority"):
            [single[concern]] = measure([one], uri, concern)
    print(f"{'':10} {'one node':>9} {'primary':>9} {'follower':>9} {'follower':>9}   microseconds of CPU an insert")
    with ReplicaSet(place, options=["--cache", "256MB"]) as members:
        members.initiate()
        insert(members.uri(), 1)
        for concern in (1, "majority"):
            primary = members.primary()
            servers = [primary, *(m for m in members.members if m is not primary)]
            costs = measure(servers, members.uri(), concern)
            assert members.primary() is primary, "there was an election: run it again"
            row = " ".join(f"{c:9.1f}" for c in [single[concern], *costs])
            print(f"w: {concern!s:7} {row}   primary / one node {costs[0] / single[concern]:.2f}, follower / primary {max(costs[1:]) / costs[0]:.2f}")
