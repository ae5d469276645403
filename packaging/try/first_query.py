"""A first query through the package `pandodb` and the driver; says how long the server took to be ready."""

import time

from pandodb import Server
from pymongo import MongoClient

times = []
for _ in range(5):
    began = time.monotonic()
    with Server() as server:
        times.append(time.monotonic() - began)
        with MongoClient(server.uri) as client:
            client.shop.things.insert_one({"_id": 1, "name": "oak"})
            assert client.shop.things.find_one({"name": "oak"}) == {"_id": 1, "name": "oak"}
print(f"first query answered; ready in {min(times) * 1000:.0f} to {max(times) * 1000:.0f} ms")
