"""How much a move takes from those who write meanwhile: it rests while routers are served, and who waits for its end asks once."""

import contextlib
import threading
import time

import bson
import pytest
from harness import until
from sharded_cluster import at_rest

DOCUMENTS = 4000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with at_rest(tmp_path_factory.mktemp("pace"), routers=2) as running:
        yield running


@contextlib.contextmanager
def writing(cluster, coll, threads=4):
    """Clients that insert all the time into the lower half of the keys; gives what they have inserted."""
    stop, kept, failures = threading.Event(), [], []

    def write(number):
        try:
            with cluster.client(number % 2) as client:
                n = 0
                while not stop.is_set():
                    client[coll.database.name][coll.name].insert_one({"_id": f"{number}.{n}", "k": n % 500})
                    kept.append(f"{number}.{n}")
                    n += 1
        except Exception as failure:
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for writer in writers:
        writer.start()
    try:
        until("all write", lambda: len(kept) > 50)
        yield kept
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
    assert not failures, failures


def sharded(client, db):
    """A collection with a chunk of documents on one shard, and the name of the other shard."""
    client.admin.command("shardCollection", f"{db}.c", key={"k": 1})
    client.admin.command("split", f"{db}.c", middle={"k": 500})
    client[db].c.insert_many([{"_id": n, "k": n % 500, "pad": "x" * 200} for n in range(DOCUMENTS)])
    here = client.config.databases.find_one({"_id": db})["primary"]
    return client[db].c, here, "s1" if here == "s0" else "s0"


def served(cluster, shard):
    with cluster.on_shard(shard) as direct:
        return direct.admin.command("_pandoServed")["served"]


def test_a_move_under_constant_writes_ends(cluster):
    with cluster.client() as client:
        coll, here, there = sharded(client, "busy")
        with writing(cluster, coll) as kept:
            for to in (there, here, there):
                before = len(kept)
                client.admin.command("moveChunk", "busy.c", find={"k": 1}, to=to)
                until("they go on", lambda b=before: len(kept) > b)
        assert coll.count_documents({}) == DOCUMENTS + len(kept)
        found = {d["_id"] for d in coll.find({"_id": {"$type": "string"}}, {"_id": 1})}
        assert found == set(kept)
        with cluster.on_shard(here) as direct:
            assert direct.busy.c.count_documents({}) == 0


def test_a_move_is_no_load_of_its_own(cluster):
    with cluster.client() as client:
        _, here, there = sharded(client, "idle")
        before = {shard: served(cluster, shard) for shard in (here, there)}
        client.admin.command("moveChunk", "idle.c", find={"k": 1}, to=there)
        for shard, n in before.items():
            assert served(cluster, shard) - n < 5, shard


def test_pauses_that_are_asked_for(cluster):
    with cluster.client() as client:
        coll, here, there = sharded(client, "paused")

        def move(to):
            began = time.monotonic()
            client.admin.command("moveChunk", "paused.c", find={"k": 1}, to=to)
            return time.monotonic() - began

        def ask(**parameters):
            for shard in (here, there):
                with cluster.on_shard(shard) as direct:
                    direct.admin.command({"setParameter": 1, **parameters})

        ask(migrateCloneInsertionBatchDelayMS=700)
        try:
            assert move(there) > 1.4, "there are two batches at least"
        finally:
            ask(migrateCloneInsertionBatchDelayMS=0)
        ask(rangeDeleterBatchDelayMS=100)
        try:
            assert move(here) > DOCUMENTS / 128 * 0.1 - 0.2
        finally:
            ask(rangeDeleterBatchDelayMS=0)
        assert coll.count_documents({}) == DOCUMENTS


def test_one_of_many_asks_about_a_fence(cluster):
    with cluster.client() as client, cluster.client(0) as writer:
        coll, here, _ = sharded(client, "fenced")
        with cluster.on_shard(here) as direct:
            fence = {"_pandoFence": 1, "ns": "fenced.c", "by": "nobody"}
            turn = direct.config.ownership.find_one({"_id": "fenced.c"})["turn"]
            direct.admin.command({**fence, "range": {"low": bson.Binary(b"")}, "turn": bson.Int64(turn)})
            before = served(cluster, here)
            threads = [threading.Thread(target=writer.fenced.c.insert_one, args=({"k": n},)) for n in range(16)]
            for thread in threads:
                thread.start()
            time.sleep(1)
            # Each of them tries again when one was told that the fence stands still.
            assert served(cluster, here) - before < 16 * 5
            direct.admin.command({**fence, "lift": True, "turn": bson.Int64(turn)})
            for thread in threads:
                thread.join(20)
        assert coll.count_documents({"pad": {"$exists": False}}) == 16
