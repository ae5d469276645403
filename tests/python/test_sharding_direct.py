"""What a router's event loops send to shards and receive themselves: without a thread, in order, and whatever becomes of a shard
meanwhile."""

import pathlib
import subprocess
import sys
import threading

import pytest
from harness import until
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError, PyMongoError
from sharded_cluster import at_rest
from watch import Watch

COUNT = 200
# Megabytes: the budget of long replies, and a router without any, with copies that are under way.
IN_FLIGHT, OVERHEAD = 96, 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with at_rest(tmp_path_factory.mktemp("direct"), shards=2, router_options=("--event-loops", "1")) as cluster:
        with cluster.client() as client:
            client.admin.command("enableSharding", "direct", primaryShard="s0")
            client.admin.command("shardCollection", "direct.split", key={"k": 1})
            client.admin.command("split", "direct.split", middle={"k": COUNT // 2})
            client.admin.command("moveChunk", "direct.split", find={"k": COUNT}, to="s1")
            client.direct.split.insert_many([{"_id": n, "k": n, "v": 0} for n in range(COUNT)])
            client.direct.whole.insert_many([{"_id": n, "v": 0} for n in range(COUNT)])
            for _ in range(3):
                everything(client.direct, 7)
        yield cluster


def everything(db, n):
    """One command of each kind, on one shard each; two over both."""
    split, whole = db.split, db.whole
    assert split.find_one({"k": n})["_id"] == n
    assert whole.find_one({"_id": n})["_id"] == n
    v = split.find_one_and_update({"k": n}, {"$inc": {"v": 1}}, return_document=ReturnDocument.AFTER)["v"]
    assert split.update_one({"k": n}, {"$inc": {"v": 1}}).modified_count == 1
    assert whole.update_one({"_id": n}, {"$inc": {"v": 1}}).modified_count == 1
    assert split.count_documents({"k": n, "v": v + 1}) == 1
    assert split.distinct("v", {"k": n}) == [v + 1]
    assert [d["v"] for d in split.aggregate([{"$match": {"k": n}}, {"$project": {"v": 1}}])] == [v + 1]
    split.insert_one({"_id": -1 - n, "k": n})
    assert split.delete_one({"k": n, "_id": -1 - n}).deleted_count == 1
    middle = list(split.find({"k": {"$gte": COUNT // 2 - 5}}, sort=[("k", 1)], skip=1, limit=8))
    assert [d["k"] for d in middle] == list(range(COUNT // 2 - 4, COUNT // 2 + 4))


def offloaded(client):
    return client.admin.command("serverStatus")["pandodb"]["loops"]["offloaded"]


def test_what_is_known_needs_no_thread(cluster):
    with cluster.client() as client:
        before = offloaded(client)
        for n in range(0, COUNT, 5):
            everything(client.direct, n)
        # The driver's own commands may need one.
        assert offloaded(client) - before < COUNT // 20


def test_errors_are_the_shards(cluster):
    with cluster.client() as client:
        split = client.direct.split
        with pytest.raises(DuplicateKeyError):
            split.insert_one({"_id": 3, "k": 3})
        reply = client.direct.command("update", "split", updates=[{"q": {"k": 3}, "u": {"$wrong": 1}}])
        assert [(e["index"], e["code"]) for e in reply["writeErrors"]] == [(0, 9)]
        reply = client.direct.command("update", "split", updates=[{"q": {"k": 3, "_id": 3.5}, "u": {"$set": {"v": 1}}, "upsert": True}])
        assert reply["upserted"] == [{"index": 0, "_id": 3.5}]
        split.delete_one({"k": 3, "_id": 3.5})
        with pytest.raises(PyMongoError, match="unknown operator"):
            split.find_one({"k": 3, "v": {"$wrong": 1}})


def test_large_messages_both_ways(cluster):
    with cluster.client() as client:
        split = client.direct.split
        text = "x" * 200_000
        split.insert_one({"_id": "large", "k": 1, "text": text})
        split.insert_many([{"_id": f"large{n}", "k": COUNT - 1, "text": text} for n in range(20)])
        assert split.find_one({"k": 1, "_id": "large"})["text"] == text
        found = list(split.find({"k": COUNT - 1, "text": {"$exists": True}}))
        assert len(found) == 20 and all(d["text"] == text for d in found)
        assert len(list(split.find({"text": {"$exists": True}}, limit=30))) == 21
        assert split.delete_many({"text": {"$exists": True}}).deleted_count == 21


def slowly(collection, k, milliseconds, told):
    try:
        told.append(collection.find_one({"k": k, "$where": f"sleep({milliseconds}) || true"}))
    except PyMongoError as e:
        told.append(e)


def start(clients, k, milliseconds, told):
    threads = [threading.Thread(target=slowly, args=(c.direct.split, k, milliseconds, told)) for c in clients]
    for thread in threads:
        thread.start()
    return threads


def running(cluster, name):
    with cluster.on_shard(name) as shard:
        return len(list(shard.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.filter.$where": {"$exists": True}}}])))


def test_a_slow_shard_holds_up_no_client(cluster):
    clients = [cluster.client() for _ in range(6)]
    told = []
    with cluster.client() as client:
        client.direct.split.find_one({"k": 1})
        threads = start(clients, COUNT - 1, 3000, told)
        until("they run", lambda: running(cluster, "s1") == 6)
        for n in range(50):
            client.direct.split.find_one({"k": n})
        assert told == []
    for thread in threads:
        thread.join()
    assert [d["k"] for d in told] == [COUNT - 1] * 6


def test_a_shard_that_dies_under_a_read(cluster):
    clients = [cluster.client() for _ in range(6)]
    told = []
    threads = start(clients, COUNT - 1, 2000, told)
    until("they run", lambda: running(cluster, "s1") == 6)
    cluster.shards["s1"].kill()
    with cluster.client() as client:
        assert client.direct.split.find_one({"k": 1})["k"] == 1
    cluster.shards["s1"].start()
    for thread in threads:
        thread.join()
    # A read is asked again when its shard is back.
    assert [getattr(d, "get", lambda _, d=d: d)("k") for d in told] == [COUNT - 1] * 6
    with cluster.client() as client:
        everything(client.direct, COUNT - 1)


def test_ranges_that_are_spread_empty_leave_no_orphans(cluster):
    with cluster.client() as client:
        client.admin.command("shardCollection", "direct.hashed", key={"_id": "hashed"})
    parts = []
    for name in cluster.shards:
        with cluster.on_shard(name) as shard:
            parts.append(shard.config.ownership.find_one({"_id": "direct.hashed"}))
    assert [bool(part["owned"]) for part in parts] == [True, True]
    assert [part["orphans"] for part in parts] == [[], []]


def test_unread_replies_stay_within_their_memory(cluster):
    """256 clients ask for 16 MB each and never read it; the others are served."""
    router = cluster.routers[0]
    with cluster.client() as client:
        client.hostile.large.insert_many([{"x": bytes(1 << 20)} for _ in range(32)])
        program = pathlib.Path(__file__).with_name("hostile.py")
        command = [sys.executable, program, "greedy", router.port, 256, 6]
        with Watch(router.process.pid) as watch, subprocess.Popen(["nice", *map(str, command)]) as attack:
            served = 0
            while attack.poll() is None:
                assert client.direct.split.find_one({"k": served % COUNT})["k"] == served % COUNT
                served += 1
        assert attack.returncode == 0 and served > 100
        assert watch.most < IN_FLIGHT + OVERHEAD, watch.most
        until("nobody holds memory", lambda: client.admin.command("serverStatus")["pandodb"]["inFlight"]["bytes"] == 0, 120)
