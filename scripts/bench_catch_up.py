#!/usr/bin/env python3
"""How fast a paused follower of a set of three catches up, to how fast what it lacks was written.

    scripts/bench_catch_up.py target/release/pando [entries, 1000000] [clients, 64]

One follower is stopped (SIGSTOP); clients insert documents one by one with w: 1, each an entry of the log; then the follower goes on,
and the time is taken until it has all of them on its disk, and until it has applied them. Nobody writes meanwhile. Prints one line.
"""

import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ["PANDO_BIN"] = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import until  # noqa: E402
from pymongo import MongoClient  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402

ENTRIES = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
CLIENTS = int(sys.argv[3]) if len(sys.argv) > 3 else 64
PROCESSES = 4


def insert(uri, first, step):
    def work(at):
        for n in range(at, ENTRIES, step * threads_each):
            coll.insert_one({"n": n, "fill": "x" * 100})

    threads_each = CLIENTS // PROCESSES
    with MongoClient(uri, maxPoolSize=threads_each) as client:
        coll = client.t.c
        threads = [threading.Thread(target=work, args=(first + step * n,)) for n in range(threads_each)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


with tempfile.TemporaryDirectory() as place:
    with ReplicaSet(pathlib.Path(place), options=["--cache", "256MB"]) as members:
        members.initiate()
        primary, follower = members.primary(), members.secondaries()[0]
        with primary.client() as client:
            client.t.c.insert_one({"warm": 1})
            follower.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            context = multiprocessing.get_context("fork")
            uri = f"mongodb://{primary.address}/?directConnection=true"
            writers = [context.Process(target=insert, args=(uri, n, PROCESSES)) for n in range(PROCESSES)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            wrote = time.monotonic() - began
            assert client.t.c.estimated_document_count() == ENTRIES + 1

            def known():
                status = client.admin.command("replSetGetStatus")
                last = status["optimes"]["appliedOpTime"]["ts"]
                return last, next(m for m in status["members"] if m["name"] == follower.address)

            follower.process.send_signal(signal.SIGCONT)
            began = time.monotonic()
            until("all is on its disk", lambda: (k := known())[1]["optimeDurable"]["ts"] >= k[0], 600)
            on_disk = time.monotonic() - began
            with follower.client() as other:
                until("all is applied", lambda: other.t.c.estimated_document_count() == ENTRIES + 1, 600)
            caught_up = time.monotonic() - began
    print(
        f"{ENTRIES} entries written in {wrote:.1f} s ({ENTRIES / wrote:.0f}/s), on the follower's disk after {on_disk:.1f} s, applied after "
        f"{caught_up:.1f} s ({ENTRIES / caught_up:.0f}/s): {wrote / caught_up:.1f} times as fast"
    )
