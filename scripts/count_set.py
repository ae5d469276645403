#!/usr/bin/env python3
"""What a replica set costs in CPU: user and system time of each process (from /proc) for the same inserts into one server and
into a set of three, with w: 1 and with majority.

    scripts/count_set.py target/release/pando [inserts a second, 10000] [rounds, 5] [connections, 64]

The load client is pando-lab, which lies beside the server: 100 bytes a document, one insert a message, so many a second. One server
and the set take turns, each for some seconds a round, with the others idle. Prints the medians of the rounds.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = pathlib.Path(sys.argv[1]).resolve()
os.environ["PANDO_BIN"] = str(BINARY)
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import Server, until  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402

RATE, ROUNDS, CONNECTIONS = (int(given) for given in (*sys.argv[2:], *("10000", "5", "64")[len(sys.argv) - 2:]))
SECONDS = 4
TICKS = os.sysconf("SC_CLK_TCK")


def cpu(server):
    """Seconds of CPU that a process has used."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def insert(server, concern):
    """Inserts at the rate, and what the load client calls its throughput."""
    load = [BINARY.parent / "pando-lab", "run", "C.S1", "--url", f"mongodb://{server.address}/t?w={concern}", "--overwrite", "--reload"]
    load += ["--connections", str(CONNECTIONS), "--client-threads", "1", "--records", "1000", "--rate", str(RATE)]
    load += ["--operations", str(RATE * SECONDS), "-p", "fieldcount=1", "-p", "fieldlength=100"]
    subprocess.run(load, check=True, capture_output=True)


def measure(servers, concern):
    """Microseconds of CPU for an insert, by server; all have it at the end."""
    before = [cpu(server) for server in servers]
    insert(servers[0], concern)

    def counts():
        found = []
        for server in servers:
            with server.client() as client:
                found.append(client.t.usertable.estimated_document_count())
        return found

    until("all is there", lambda: len(set(counts())) == 1, 120)
    # Work after the last acknowledgement belongs to it.
    time.sleep(1)
    return [(cpu(server) - b) / (RATE * SECONDS) * 1e6 for server, b in zip(servers, before)]


def main(place):
    with Server(place / "one", "--cache", "256MB") as one, ReplicaSet(place, options=["--cache", "256MB"]) as members:
        members.initiate()
        primary = members.primary()
        servers = [primary, *(m for m in members.members if m is not primary)]
        print(f"{RATE} inserts a second; microseconds of CPU an insert, medians of {ROUNDS} rounds")
        print(f"{'':10} {'one node':>9} {'primary':>9} {'follower':>9} {'follower':>9}")
        for concern in (1, "majority"):
            rounds = [measure([one], concern) + measure(servers, concern) for _ in range(ROUNDS)]
            assert members.primary() is primary, "there was an election: run it again"
            row = " ".join(f"{statistics.median(column):9.1f}" for column in zip(*rounds))
            ratio = statistics.median(r[1] / r[0] for r in rounds)
            follower = statistics.median(max(r[2:]) / r[1] for r in rounds)
            print(f"w: {concern!s:7} {row}   primary / one node {ratio:.2f}, follower / primary {follower:.2f}", flush=True)


with tempfile.TemporaryDirectory() as directory:
    main(pathlib.Path(directory))
