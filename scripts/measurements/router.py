"""What a router costs in CPU: user and system time of each process (from /proc) for the same operations on one server and through a
router at two shards.

    scripts/measure.py router target/release/pando [operations a second, 5000] [rounds, 5] [connections, 32]

The load client is pando-lab, which lies beside the server: reads and updates of one document of
1 KB by its _id, so many a second. The collection is sharded by a hashed _id, and each process of the cluster has one
event loop, as `pando cluster up` gives them on two cores. One server and the cluster take turns. Prints the medians of the rounds.
"""

import statistics
import time

from harness import Server
from sharded_cluster import at_rest

from .common import cpu, folder, lab, numbers

SECONDS = 3
RECORDS = 20_000
WORK = {"point read": ["C"], "update": ["A", "-p", "readproportion=0", "-p", "updateproportion=1"]}


def load(server, connections, *more):
    lab(server, *more, "--out", "-", "--connections", connections, "--client-threads", 1, "--records", RECORDS)


def measure(server, servers, workload, rate, connections):
    """Microseconds of CPU for an operation, by server."""
    before = [cpu(each) for each in servers]
    load(server, connections, *workload, "--phase", "run", "--rate", rate, "--operations", rate * SECONDS)
    time.sleep(0.5)
    return [(cpu(each) - b) / (rate * SECONDS) * 1e6 for each, b in zip(servers, before)]


def main(given):
    rate, rounds, connections = numbers(given, 5000, 5, 32)
    options = ("--cache", "256MB")
    with folder() as place, Server(place / "one", *options) as one, at_rest(place, shards=2, options=(*options, "--event-loops", "1")) as cluster:
        router, shards = cluster.routers[0], list(cluster.shards.values())
        with cluster.client() as client:
            client.admin.command("shardCollection", "t.usertable", key={"_id": "hashed"})
        for server in (one, router):
            load(server, connections, "C", "--phase", "load")
        print(f"{rate} operations a second; microseconds of CPU an operation, medians of {rounds} rounds")
        print(f"{'':12} {'one node':>9} {'router':>9} {'shards':>9}")
        for name, workload in WORK.items():
            spent = []
            for _ in range(rounds):
                [alone] = measure(one, [one], workload, rate, connections)
                [routing, *sharded] = measure(router, [router, *shards], workload, rate, connections)
                spent.append((alone, routing, sum(sharded)))
            row = " ".join(f"{statistics.median(column):9.1f}" for column in zip(*spent))
            ratio = statistics.median((r[1] + r[2]) / r[0] for r in spent)
            print(f"{name:12} {row}   router and shards / one node {ratio:.2f}", flush=True)

