"""A server that is told to end while its engine flushes and merges ends cleanly, and what it acknowledged is there."""

import random
import threading

import pymongo
from harness import until
from pymongo.errors import PyMongoError


def test_ends_cleanly_under_load(new_server):
    server = new_server("--cache", "16MB")
    acknowledged = 0
    for turn in range(3):
        client = server.client(serverSelectionTimeoutMS=1000, retryWrites=False)
        things = client.test.get_collection("things", write_concern=pymongo.WriteConcern(w=1))
        things.create_index("number")
        done = []

        def load(seed, things=things, done=done):
            draw = random.Random(seed)
            try:
                while True:
                    things.insert_many([{"number": draw.random(), "bytes": draw.randbytes(1000)} for _ in range(200)])
                    done.append(200)
            except PyMongoError:
                pass

        loaders = [threading.Thread(target=load, args=(turn * 2 + n,)) for n in range(2)]
        for loader in loaders:
            loader.start()
        until("they have written", lambda: sum(done) >= 20_000 or not any(loader.is_alive() for loader in loaders), 120)
        assert server.stop() == 0
        for loader in loaders:
            loader.join()
        client.close()
        acknowledged += sum(done)
        server.start()
        assert server.client().test.things.count_documents({}) >= acknowledged
