#!/usr/bin/env python3
"""What moves of ranges cost in CPU: user and system time of all processes of a cluster (from /proc), while four clients insert in
batches, without moves and while one range after the other moves.

    scripts/count_moves.py target/release/pando [documents of a batch, 50] [rounds, 3] [seconds, 8]

Two shards of one member, a router, nine ranges by `_id`, documents of 450 bytes with random keys. Prints for each round how many
documents were inserted and moved, the CPU of an inserted document without moves, the rest of the CPU with
moves for each document that was copied (read, written, removed at the donor), and that part of all. The rates
are those of clients in Python, which take part in the machine; the CPU of the servers is what counts.
"""

import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ["PANDO_BIN"] = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, str(ROOT / "tests" / "python"))

from sharded_cluster import at_rest  # noqa: E402

BATCH, ROUNDS, SECONDS = (int(given) for given in (*sys.argv[2:], *("50", "3", "8")[len(sys.argv) - 2:]))
TICKS = os.sysconf("SC_CLK_TCK")
CLIENTS, RANGES = 4, range(1, 10)
FILL = "x" * 450


def cpu(servers):
    """Seconds of CPU that processes have used."""
    def of(server):
        fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    return sum(of(server) for server in servers)


def make(client):
    """The collection anew, its ranges on both shards in turn."""
    client.t.drop_collection("c")
    client.admin.command("shardCollection", "t.c", key={"_id": 1})
    for n in RANGES[1:]:
        client.admin.command("split", "t.c", middle={"_id": str(n)})
    for n in RANGES:
        move(client, n)


def move(client, n, turn=0):
    client.admin.command("moveChunk", "t.c", find={"_id": f"{n}5"}, to=f"s{(n + turn) % 2}")


def insert(cluster, stop, done):
    with cluster.client() as client:
        while not stop.is_set():
            batch = [{"_id": str(random.randrange(10**17, 10**18)), "fill": FILL} for _ in range(BATCH)]
            client.t.c.insert_many(batch, ordered=False)
            done.append(BATCH)


def measure(cluster, client, servers, moves):
    """Documents that were inserted, documents that were copied, seconds of CPU."""
    make(client)
    copied = lambda: client.admin.command("serverStatus")["pandodb"]["moves"]["copiedDocuments"]
    stop, done, before, began = threading.Event(), [], copied(), cpu(servers)
    threads = [threading.Thread(target=insert, args=(cluster, stop, done)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    end, turn = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        if moves:
            move(client, RANGES[turn % len(RANGES)], turn // len(RANGES) + 1)
            turn += 1
        else:
            time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done), copied() - before, cpu(servers) - began


def main(place):
    with at_rest(place, shards=2, options=("--cache", "256MB")) as cluster, cluster.client() as client:
        servers = [*cluster.routers, *cluster.shards.values(), cluster.config]
        shares = []
        for _ in range(ROUNDS):
            alone, _, spent = measure(cluster, client, servers, False)
            each = spent / alone
            inserted, copied, spent = measure(cluster, client, servers, True)
            of_moves = spent - each * inserted
            shares.append(of_moves / spent)
            print(
                f"{alone} documents without moves, {each * 1e6:.1f} µs of CPU each; {inserted} with moves of {copied}, "
                f"{of_moves / max(copied, 1) * 1e6:.1f} µs each: {shares[-1]:.2f} of the servers' CPU",
                flush=True,
            )
        print(f"median: {statistics.median(shares):.2f} of the servers' CPU")


with tempfile.TemporaryDirectory() as directory:
    main(pathlib.Path(directory))
