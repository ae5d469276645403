"""First queries through the package `pandodb` and the driver: data is there again after a restart. Then it says how long a server
in a temporary directory took to be ready.

    first_query.py [STARTS]     20 of them; fewer where a program for another processor is emulated"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from pandodb import Server
from pymongo import MongoClient

# An emulated program on a busy machine takes its time.
PATIENCE = 300.0


def data_stays():
    """Two servers, one after the other, on one directory."""
    with tempfile.TemporaryDirectory() as directory:
        for start in (1, 2):
            with Server(path=Path(directory, "data"), timeout=PATIENCE) as server, MongoClient(server.uri) as client:
                things = client.shop.things
                assert [t["_id"] for t in things.find({"name": "oak"}).sort("_id")] == list(range(1, start))
                things.insert_one({"_id": start, "name": "oak"})
                assert things.find_one({"_id": start}) == {"_id": start, "name": "oak"}


def milliseconds_to_be_ready():
    began = time.monotonic()
    with Server(timeout=PATIENCE) as server:
        took = time.monotonic() - began
        with MongoClient(server.uri) as client:
            client.shop.things.insert_one({"_id": 1, "name": "oak"})
            assert client.shop.things.find_one({"name": "oak"}) == {"_id": 1, "name": "oak"}
    return took * 1000


data_stays()
times = [milliseconds_to_be_ready() for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20)]
print(f"first query answered; {len(times)} servers ready in {min(times):.0f} to {max(times):.0f} ms, median {statistics.median(times):.0f}")
