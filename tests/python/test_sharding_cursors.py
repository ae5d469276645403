"""Documents that a router has from shards and has not given yet: they count, go to files where there is no room, and come back in
their order."""

import pytest
from sharded_cluster import at_rest
from watch import Watch

COUNT, LENGTH = 300, 100_000
MOST = 450
# So many of each kind are left. Each has some ten megabytes of documents at the router.
COPIES = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with at_rest(tmp_path_factory.mktemp("cursors"), shards=2) as cluster, cluster.client() as client:
        client.admin.command("enableSharding", "left", primaryShard="s0")
        client.admin.command("shardCollection", "left.split", key={"k": 1})
        client.admin.command("split", "left.split", middle={"k": COUNT // 2})
        client.admin.command("moveChunk", "left.split", find={"k": COUNT}, to="s1")
        client.left.split.insert_many([{"_id": n, "k": n, "x": -n, "v": f"{n:05}" * (LENGTH // 5)} for n in range(COUNT)])
        client.left.other.insert_one({"_id": "alone"})
        yield cluster


def kept(client):
    return client.admin.command("serverStatus")["pandodb"]["cursors"]


def whole(d):
    return d["v"] == f"{d['_id']:05}" * (LENGTH // 5)


KINDS = {
    "find": lambda db, batch: db.split.find(batch_size=batch),
    "sort": lambda db, batch: db.split.find(batch_size=batch).sort("x", 1),
    "aggregate": lambda db, batch: db.split.aggregate([{"$sort": {"x": 1}}, {"$set": {"y": 1}}], batchSize=batch),
    "stages behind the merge": lambda db, batch: db.split.aggregate(
        [{"$sort": {"x": 1}}, {"$limit": COUNT}, {"$unwind": "$v"}], batchSize=batch
    ),
    "joined": lambda db, batch: db.other.aggregate([{"$unionWith": "split"}, {"$match": {"_id": {"$ne": "alone"}}}], batchSize=batch),
}


@pytest.mark.parametrize("kind", KINDS)
def test_documents_of_idle_cursors_are_bounded_and_come_back(cluster, kind):
    run = KINDS[kind]
    router = cluster.routers[0]
    with cluster.client() as client, Watch(router.process.pid) as watch:
        limit = kept(client)["limitBytes"]
        left = []
        for n in range(COPIES):
            cursor = run(client.left, 50 if n % 2 else 2)
            first = next(cursor)
            left.append((cursor, first))
        held = kept(client)
        assert held["bytes"] <= limit * 4 // 3
        for cursor, first in [left[0], left[-1], left[COPIES // 2]]:
            found = [first, *cursor]
            assert all(whole(d) for d in found)
            ids = [d["_id"] for d in found]
            assert sorted(ids) == list(range(COUNT))
            if kind not in ("find", "joined"):
                assert ids == sorted(ids, reverse=True)
        for cursor, _ in left:
            cursor.close()
        after = kept(client)
        assert (after["bytes"], after["ownBytes"], after["temporaryFiles"]) == (0, 0, 0)
    print(f"\n{kind}: at most {watch.most} MB; {held}")
    assert watch.most < MOST


def test_a_stream_with_events_at_hand(cluster):
    with cluster.client() as client:
        streams = []
        for _ in range(12):
            stream = client.left.split.watch(batch_size=1)
            stream.try_next()
            streams.append(stream)
        client.left.split.update_many({}, {"$set": {"w": 1}})
        client.left.split.replace_one({"_id": 0, "k": 0}, {"k": 0, "x": 0, "v": "00000" * (LENGTH // 5)})
        for stream in streams:
            seen = []
            while len(seen) < COUNT + 1:
                seen.append(next(stream)["documentKey"]["_id"])
            assert sorted(seen) == sorted([*range(COUNT), 0])
            stream.close()
        assert kept(client)["bytes"] == 0
