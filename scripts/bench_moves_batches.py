#!/usr/bin/env python3
"""What moves of chunks cost those who load in batches, and whether the moves end.

    scripts/bench_moves_batches.py target/release/pando [seconds, 20] [rounds, 3] [clients, 4]

Two shards of one member each and a router; a collection with a ranged key in eight chunks. Clients insert batches of 50 documents of
500 bytes with random keys, w: 1, through the router: without moves, then while one chunk after the other is moved to the other shard.
Prints for each the rate, the slowest second, and how long each move took; then the medians' ratios. Every acknowledged document is
counted. The clients are Python's, on the same cores: read the ratios.
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
BINARY = pathlib.Path(sys.argv[1]).resolve()
os.environ["PANDO_BIN"] = str(BINARY)
sys.path.insert(0, str(ROOT / "tests" / "python"))

import pymongo  # noqa: E402
from pymongo.errors import OperationFailure  # noqa: E402
from sharded_cluster import at_rest  # noqa: E402

SECONDS, ROUNDS, CLIENTS = (int(given) for given in (*sys.argv[2:], *("20", "3", "4")[len(sys.argv) - 2:]))
CHUNKS, KEYS, BATCH = 8, 1_000_000, 50
NS = "t.loaded"


class Loader(threading.Thread):
    """Inserts batches, and counts what was acknowledged in each second."""

    def __init__(self, cluster, number, began):
        super().__init__()
        self.cluster, self.random, self.began, self.counts = cluster, random.Random(number), began, [0] * (SECONDS + 600)
        self.done = threading.Event()

    def run(self):
        with self.cluster.client() as client:
            coll = client.t.get_collection("loaded", write_concern=pymongo.WriteConcern(1))
            while not self.done.is_set():
                coll.insert_many([{"k": self.random.randrange(KEYS), "fill": "x" * 450} for _ in range(BATCH)])
                self.counts[int(time.monotonic() - self.began)] += BATCH


def move_on(client, until):
    """Moves one chunk after the other until then; how long each move took, and what was refused."""
    uuid, took, refused = client.config.collections.find_one({"_id": NS})["uuid"], [], []
    while time.monotonic() < until:
        for chunk in list(client.config.chunks.find({"uuid": uuid}).sort("min", 1)):
            if time.monotonic() >= until:
                break
            began = time.monotonic()
            try:
                to = "s1" if chunk["shard"] == "s0" else "s0"
                client.admin.command("moveRange", NS, min=chunk["min"], max=chunk["max"], toShard=to)
                took.append(time.monotonic() - began)
            except OperationFailure as failure:
                refused.append(str(failure)[:100])
    return took, refused


def one_round(cluster, client, moves):
    client.t.drop_collection("loaded")
    client.admin.command("shardCollection", NS, key={"k": 1})
    for n in range(1, CHUNKS):
        client.admin.command("split", NS, middle={"k": n * KEYS // CHUNKS})
    began = time.monotonic()
    loaders = [Loader(cluster, n, began) for n in range(CLIENTS)]
    for loader in loaders:
        loader.start()
    took, refused = [], []
    time.sleep(3)
    if moves:
        took, refused = move_on(client, began + SECONDS)
    time.sleep(max(0, began + SECONDS - time.monotonic()))
    for loader in loaders:
        loader.done.set()
    for loader in loaders:
        loader.join()
    seconds = [sum(loader.counts[s] for loader in loaders) for s in range(3, SECONDS)]
    acknowledged = sum(sum(loader.counts) for loader in loaders)
    found = client.t.loaded.count_documents({})
    assert found == acknowledged, f"{acknowledged} documents were acknowledged, {found} are there"
    longest = f", {len(took)} moves, median {statistics.median(took):.1f} s, longest {max(took):.1f} s" if took else ""
    print(f"{statistics.mean(seconds):8.0f}/s, slowest second {min(seconds)}{longest}, {len(refused)} refused {refused[:1]}", flush=True)
    return statistics.mean(seconds), min(seconds)


def main(place):
    options = ("--cache", "512MB", "--event-loops", "1")
    with at_rest(place, shards=2, options=options) as cluster, cluster.client() as client:
        rounds = []
        for _ in range(ROUNDS):
            without, _ = one_round(cluster, client, False)
            rate, slowest = one_round(cluster, client, True)
            rounds.append((rate / without, slowest / without))
    moving, slowest = (statistics.median(column) for column in zip(*rounds))
    print(f"with moves {moving:.2f} of the rate without, the slowest second {slowest:.2f}; medians of {ROUNDS}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(pathlib.Path(directory))
