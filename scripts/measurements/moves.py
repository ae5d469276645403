"""What moves of ranges cost in CPU: user and system time of all processes of a cluster (from /proc), while four clients insert in
batches, without moves and while one range after the other moves.

    scripts/measure.py moves target/release/pando [documents of a batch, 50] [rounds, 3] [seconds, 8]

Two shards of one member, a router, nine ranges by `_id`, documents of 450 bytes with random keys. Prints for each round how many
documents were inserted and moved, the CPU of an inserted document without moves, the rest of the CPU with
moves for each document that was copied (read, written, removed at the donor), and that part of all. The rates
are those of clients in Python, which take part in the machine; the CPU of the servers is what counts.
"""

import random
import statistics
import threading
import time

from sharded_cluster import at_rest

from .common import cpu, folder, numbers

CLIENTS, RANGES = 4, range(1, 10)
FILL = "x" * 450


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


def insert(cluster, size, stop, done):
    with cluster.client() as client:
        while not stop.is_set():
            batch = [{"_id": str(random.randrange(10**17, 10**18)), "fill": FILL} for _ in range(size)]
            client.t.c.insert_many(batch, ordered=False)
            done.append(size)


def measure(cluster, client, servers, size, seconds, moves):
    """Documents that were inserted, documents that were copied, seconds of CPU."""
    make(client)
    copied = lambda: client.admin.command("serverStatus")["pandodb"]["moves"]["copiedDocuments"]
    spent = lambda: sum(map(cpu, servers))
    stop, done, before, began = threading.Event(), [], copied(), spent()
    threads = [threading.Thread(target=insert, args=(cluster, size, stop, done)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if moves:
            move(client, RANGES[turn % len(RANGES)], turn // len(RANGES) + 1)
            turn += 1
        else:
            time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done), copied() - before, spent() - began


def main(given):
    size, rounds, seconds = numbers(given, 50, 3, 8)
    with folder() as place, at_rest(place, shards=2, options=("--cache", "256MB")) as cluster, cluster.client() as client:
        servers = [*cluster.routers, *cluster.shards.values(), cluster.config]
        shares = []
        for _ in range(rounds):
            alone, _, spent = measure(cluster, client, servers, size, seconds, False)
            each = spent / alone
            inserted, copied, spent = measure(cluster, client, servers, size, seconds, True)
            of_moves = spent - each * inserted
            shares.append(of_moves / spent)
            print(
                f"{alone} documents without moves, {each * 1e6:.1f} µs of CPU each; {inserted} with moves of {copied}, "
                f"{of_moves / max(copied, 1) * 1e6:.1f} µs each: {shares[-1]:.2f} of the servers' CPU",
                flush=True,
            )
        print(f"median: {statistics.median(shares):.2f} of the servers' CPU")

