#!/usr/bin/env python3
"""What a router costs in CPU: user and system time of each process (from /proc) for the same operations on one server and through a
router at two shards.

    scripts/count_router.py target/release/pando [operations a second, 5000] [rounds, 5] [connections, 32]

The load client is pando-lab, which lies beside the server: reads and updates of one document of
1 KB by its _id, so many a second. The collection is sharded by a hashed _id, and each process of the cluster has one
event loop, as `pando cluster up` gives them on two cores. One server and the cluster take turns. Prints the medians of the rounds.
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

from harness import Server  # noqa: E402
from sharded_cluster import at_rest  # noqa: E402

RATE, ROUNDS, CONNECTIONS = (int(given) for given in (*sys.argv[2:], *("5000", "5", "32")[len(sys.argv) - 2:]))
SECONDS = 3
RECORDS = 20_000
TICKS = os.sysconf("SC_CLK_TCK")
WORK = {"point read": ["C"], "update": ["A", "-p", "readproportion=0", "-p", "updateproportion=1"]}


def cpu(server):
    """Seconds of CPU that a process has used."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def lab(server, *more):
    load = [BINARY.parent / "pando-lab", "run", "--url", f"mongodb://{server.address}/t?w=1", "--overwrite", "--out", "-"]
    load += ["--connections", CONNECTIONS, "--client-threads", 1, "--records", RECORDS, *more]
    done = subprocess.run([str(word) for word in load], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def measure(server, servers, workload):
    """Microseconds of CPU for an operation, by server."""
    before = [cpu(each) for each in servers]
    lab(server, *workload, "--phase", "run", "--rate", RATE, "--operations", RATE * SECONDS)
    time.sleep(0.5)
    return [(cpu(each) - b) / (RATE * SECONDS) * 1e6 for each, b in zip(servers, before)]


def main(place):
    options = ("--cache", "256MB")
    with Server(place / "one", *options) as one, at_rest(place, shards=2, options=(*options, "--event-loops", "1")) as cluster:
        router, shards = cluster.routers[0], list(cluster.shards.values())
        with cluster.client() as client:
            client.admin.command("shardCollection", "t.usertable", key={"_id": "hashed"})
        for server in (one, router):
            lab(server, "C", "--phase", "load")
        print(f"{RATE} operations a second; microseconds of CPU an operation, medians of {ROUNDS} rounds")
        print(f"{'':12} {'one node':>9} {'router':>9} {'shards':>9}")
        for name, workload in WORK.items():
            rounds = []
            for _ in range(ROUNDS):
                [alone] = measure(one, [one], workload)
                [routing, *sharded] = measure(router, [router, *shards], workload)
                rounds.append((alone, routing, sum(sharded)))
            row = " ".join(f"{statistics.median(column):9.1f}" for column in zip(*rounds))
            ratio = statistics.median((r[1] + r[2]) / r[0] for r in rounds)
            print(f"{name:12} {row}   router and shards / one node {ratio:.2f}", flush=True)


with tempfile.TemporaryDirectory() as directory:
    main(pathlib.Path(directory))
