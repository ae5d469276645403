"""Whether a long log slows the start: the time from the start of the process to the first answer, with a short and with a long window.

    scripts/measure.py window target/release/pando [GB, 10] [STARTS, 5]

The long log is made by inserts of batches of 1 KB documents into a collection that is dropped again and again: the log keeps what the data
no longer has. Both servers are killed before each start, so that each recovers. Starts of the two alternate. Needs twice the disk.
"""

import os
import statistics
import time

import pymongo
from harness import Server

from .common import folder, numbers

BATCH, DROP_EVERY = 1000, 200


def fill(server, gb):
    """Inserts so many GB, and leaves a collection of one batch."""
    with server.client() as client:
        coll = client.test.get_collection("filled", write_concern=pymongo.WriteConcern(w=1))
        for n in range(max(1, int(gb * 1e9 / (BATCH * 1024)))):
            if n % DROP_EVERY == 0:
                coll.drop()
            coll.insert_many([{"fill": os.urandom(990)} for _ in range(BATCH)], ordered=False)
        coll.drop()
        coll.insert_many([{"n": i} for i in range(BATCH)])
        stats = client.local.command("collStats", "oplog.rs")
        print(f"a window of {stats['size'] / 1e9:.2f} GB, {stats['count']} entries")


def start(server):
    """Milliseconds until a start answers a ping."""
    server.kill()
    begun = time.monotonic()
    server.start()
    with server.client() as client:
        client.admin.command("ping")
    return (time.monotonic() - begun) * 1000


def main(given):
    gb, starts = numbers(given, 10.0, 5)
    options = ["--oplogSize", int(gb * 1000) + 2000]
    with folder() as place, Server(place / "short", *options) as short, Server(place / "long", *options) as long:
        fill(short, 0.001)
        fill(long, gb)
        # What the log holds and the data files do not is applied again by a start: let them catch up.
        for server in (short, long):
            with server.client() as client:
                client.admin.command("fsync")
        took = {"short": [], "long": []}
        for _ in range(starts):
            for name, server in (("short", short), ("long", long)):
                took[name].append(start(server))
    one, other = (statistics.median(ms) for ms in took.values())
    print(f"started in {one:.0f} ms with the short window, {other:.0f} with the long one (medians of {starts}): × {other / one:.2f}")
