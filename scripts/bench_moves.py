#!/usr/bin/env python3
"""What moves of chunks cost those who insert: the rate through a router, second by second, without moves and with moves without pause.

    scripts/bench_moves.py target/release/pando [seconds, 15] [rounds, 3] [connections, 32]

Two shards of one member each, with one event loop in each process, as `pando cluster up` gives them on two cores; the collection is
sharded by a hashed _id. pando-lab, which lies beside the server, inserts documents of
1 KB one by one with w: 1 as fast as it can: into one process alone; through the router; through the router while a client moves one chunk
after the other to the other shard. Prints for each the rate, the slowest second, and how many chunks were moved; then the medians'
ratios. Every acknowledged insert is counted.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = pathlib.Path(sys.argv[1]).resolve()
os.environ["PANDO_BIN"] = str(BINARY)
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import Server  # noqa: E402
from pymongo.errors import OperationFailure  # noqa: E402
from sharded_cluster import at_rest  # noqa: E402

SECONDS, ROUNDS, CONNECTIONS = (int(given) for given in (*sys.argv[2:], *("15", "3", "32")[len(sys.argv) - 2:]))
CHUNKS = 16
NS = "t.usertable"


class Mover(threading.Thread):
    """Moves one chunk after the other to the shard that does not have it."""

    def __init__(self, client):
        super().__init__()
        self.client, self.done, self.moved, self.refused = client, threading.Event(), 0, 0

    def run(self):
        config = self.client.config
        uuid = config.collections.find_one({"_id": NS})["uuid"]
        while not self.done.is_set():
            for chunk in list(config.chunks.find({"uuid": uuid})):
                if self.done.is_set():
                    break
                to = "s1" if chunk["shard"] == "s0" else "s0"
                try:
                    self.client.admin.command("moveRange", NS, min=chunk["min"], max=chunk["max"], toShard=to)
                    self.moved += 1
                except OperationFailure:
                    self.refused += 1

    def stop(self):
        self.done.set()
        self.join()


def insert(server):
    """Operations a second, second by second, without the first."""
    load = [BINARY.parent / "pando-lab", "ycsb", "load", "mongodb", "-s", "--overwrite", "-threads", CONNECTIONS]
    given = {"mongodb.url": f"mongodb://{server.address}/t?w=1", "status.interval": 1, "maxexecutiontime": SECONDS}
    given |= {"recordcount": 100_000_000}
    load += [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    done = subprocess.run([str(word) for word in load], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    failed = re.findall(r"\[INSERT(?:-FAILED)?\], Return=(?!OK)\S+ \d+", done.stdout)
    assert not failed, failed
    told = int(re.search(r"\[INSERT\], Return=OK, (\d+)", done.stdout)[1])
    return told, [float(n) for n in re.findall(r"([\d.]+) current ops/sec", done.stderr)][1:SECONDS]


def one_round(cluster, client, moves):
    client.t.drop_collection("usertable")
    client.admin.command("shardCollection", NS, key={"_id": "hashed"}, numInitialChunks=CHUNKS)
    mover = Mover(client) if moves else None
    if mover:
        mover.start()
    told, seconds = insert(cluster.routers[0])
    if mover:
        mover.stop()
    found = client.t.usertable.count_documents({})
    assert found == told, f"{told} inserts were acknowledged, {found} documents are there"
    rate = statistics.mean(seconds)
    what = f"{mover.moved} moves, {mover.refused} refused" if mover else "no moves"
    print(f"{rate:8.0f}/s, slowest second {min(seconds):.0f}: {what}", flush=True)
    return rate, min(seconds)


def main(place):
    options = ("--cache", "256MB")
    with Server(place / "one", *options) as one, at_rest(place, shards=2, options=(*options, "--event-loops", "1")) as cluster, cluster.client() as client:
        rounds = []
        for _ in range(ROUNDS):
            with one.client() as alone:
                alone.drop_database("t")
            _, seconds = insert(one)
            print(f"{statistics.mean(seconds):8.0f}/s, slowest second {min(seconds):.0f}: one process", flush=True)
            without, _ = one_round(cluster, client, False)
            rate, slowest = one_round(cluster, client, True)
            rounds.append((without / statistics.mean(seconds), rate / without, slowest / without))
    routed, moving, slowest = (statistics.median(column) for column in zip(*rounds))
    print(f"through the router {routed:.2f} of one process")
    print(f"with moves {moving:.2f} of the rate without, the slowest second {slowest:.2f}; medians of {ROUNDS}")


with tempfile.TemporaryDirectory() as directory:
    main(pathlib.Path(directory))
