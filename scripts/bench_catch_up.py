#!/usr/bin/env python3
"""How fast a paused follower of a set of three catches up, to how fast what it lacks was written.

    scripts/bench_catch_up.py target/release/pando [entries, 1000000] [connections, 64]

One follower is stopped (SIGSTOP); pando-lab, which lies beside the server, inserts documents of 100 bytes one by one with w: 1, each an
entry of the log, as fast as it can on the same machine; then the follower goes on, and the time is taken until it has all of them on its
disk, and until it has applied them. There are no writes meanwhile. Prints one line.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = pathlib.Path(sys.argv[1]).resolve()
os.environ["PANDO_BIN"] = str(BINARY)
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import until  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402

ENTRIES = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
CONNECTIONS = sys.argv[3] if len(sys.argv) > 3 else "64"


def insert(server, entries):
    load = [BINARY.parent / "pando-lab", "run", "C.S1", "--url", f"mongodb://{server.address}/t?w=1", "--overwrite", "--reload"]
    load += ["--connections", CONNECTIONS, "--client-threads", "1", "--records", "1000", "--operations", str(entries)]
    subprocess.run([*load, "-p", "fieldcount=1", "-p", "fieldlength=100"], check=True, capture_output=True)


def count(client):
    return client.t.usertable.estimated_document_count()


with tempfile.TemporaryDirectory() as place:
    with ReplicaSet(pathlib.Path(place), options=["--cache", "256MB"]) as members:
        members.initiate()
        primary, follower = members.primary(), members.secondaries()[0]
        with primary.client() as client, follower.client() as other:
            insert(primary, 1000)
            until("all is there", lambda: count(other) == count(client), 60)
            before = count(client)
            follower.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            insert(primary, ENTRIES)
            wrote = time.monotonic() - began
            written = count(client)
            assert written >= before + ENTRIES - 2000, "the collection was made anew"

            def known():
                status = client.admin.command("replSetGetStatus")
                last = status["optimes"]["appliedOpTime"]["ts"]
                return last, next(m for m in status["members"] if m["name"] == follower.address)

            follower.process.send_signal(signal.SIGCONT)
            began = time.monotonic()
            until("all is on its disk", lambda: (k := known())[1]["optimeDurable"]["ts"] >= k[0], 600)
            on_disk = time.monotonic() - began
            until("all is applied", lambda: count(other) == written, 600)
            caught_up = time.monotonic() - began
    print(
        f"{ENTRIES} entries written in {wrote:.1f} s ({ENTRIES / wrote:.0f}/s), on the follower's disk after {on_disk:.1f} s, applied after "
        f"{caught_up:.1f} s ({ENTRIES / caught_up:.0f}/s): {wrote / caught_up:.1f} times as fast"
    )
