"""What a replica set costs in CPU: user and system time of each process (from /proc) for the same inserts into one server and
into a set of three, with w: 1 and with majority.

    scripts/measure.py set target/release/pando [inserts a second, 10000] [rounds, 5] [connections, 64]

The load client is pando-lab, which lies beside the server: 100 bytes a document, one insert a message, so many a second. One server
and the set take turns, each for some seconds a round, with the others idle. Prints the medians of the rounds.
"""

import statistics
import time

from harness import Server, until
from replica_set import ReplicaSet

from .common import cpu, folder, lab, numbers

SECONDS = 4


def insert(server, concern, rate, connections):
    """Inserts at the rate, and what the load client calls its throughput."""
    words = ["C.S1", "--reload", "--connections", connections, "--client-threads", 1, "--records", 1000, "--rate", rate]
    lab(server, *words, "--operations", rate * SECONDS, "-p", "fieldcount=1", "-p", "fieldlength=100", concern=concern)


def measure(servers, concern, rate, connections):
    """Microseconds of CPU for an insert, by server; all have it at the end."""
    before = [cpu(server) for server in servers]
    insert(servers[0], concern, rate, connections)

    def counts():
        found = []
        for server in servers:
            with server.client() as client:
                found.append(client.t.usertable.estimated_document_count())
        return found

    until("all is there", lambda: len(set(counts())) == 1, 120)
    # Work after the last acknowledgement belongs to it.
    time.sleep(1)
    return [(cpu(server) - b) / (rate * SECONDS) * 1e6 for server, b in zip(servers, before)]


def main(given):
    rate, many, connections = numbers(given, 10_000, 5, 64)
    with folder() as place, Server(place / "one", "--cache", "256MB") as one, ReplicaSet(place, options=["--cache", "256MB"]) as members:
        members.initiate()
        primary = members.primary()
        servers = [primary, *(m for m in members.members if m is not primary)]
        print(f"{rate} inserts a second; microseconds of CPU an insert, medians of {many} rounds")
        print(f"{'':10} {'one node':>9} {'primary':>9} {'follower':>9} {'follower':>9}")
        for concern in (1, "majority"):
            rounds = [measure([one], concern, rate, connections) + measure(servers, concern, rate, connections) for _ in range(many)]
            assert members.primary() is primary, "there was an election: run it again"
            row = " ".join(f"{statistics.median(column):9.1f}" for column in zip(*rounds))
            ratio = statistics.median(r[1] / r[0] for r in rounds)
            follower = statistics.median(max(r[2:]) / r[1] for r in rounds)
            print(f"w: {concern!s:7} {row}   primary / one node {ratio:.2f}, follower / primary {follower:.2f}", flush=True)

