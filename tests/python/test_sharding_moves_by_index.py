"""A range that moves is read, and removed, by the index of the shard key: other documents are not looked at."""

import datetime

import pytest
from bson import Int64, MinKey
from sharded_cluster import cluster_fixture

DOCUMENTS = 400


cluster = cluster_fixture()


def series(n):
    return {"t": datetime.datetime(2026, 1, 1), "m": n, "n": n}


def keyed(n):
    return {"_id": n, "k": n, "a": n % 2, "b": n, "c": [n, n + 1]}


KEYS = {
    "plain": ({"k": 1}, keyed, ({"k": 100}, {"k": 140}), 40),
    "compound": ({"a": 1, "b": 1}, keyed, ({"a": 1, "b": 100}, {"a": 1, "b": 140}), 20),
    "hashed": ({"k": "hashed"}, keyed, ({"k": Int64(0)}, {"k": Int64(2**60)}), None),
    "longer": ({"b": 1}, keyed, ({"b": MinKey()}, {"b": 40}), 40),
    "id": ({"_id": 1}, keyed, ({"_id": 100}, {"_id": 140}), 40),
    "series": ({"m": 1}, series, ({"meta": 100}, {"meta": 140}), 40),
}


def examined(direct):
    return direct.admin.command("serverStatus")["metrics"]["queryExecutor"]["scannedObjects"]


@pytest.mark.parametrize("name", KEYS)
def test_only_the_range_is_looked_at(cluster, name):
    key, document, (low, high), wanted = KEYS[name]
    with cluster.client() as client:
        db, admin = client[name], client.admin
        if name == "longer":
            db.c.create_index([("b", 1), ("a", -1), ("c", 1)])
        options = {"timeseries": {"timeField": "t", "metaField": "m"}} if name == "series" else {}
        initial = {"numInitialChunks": 1} if name == "hashed" else {}
        admin.command("shardCollection", f"{name}.c", key=key, **options, **initial)
        db.c.insert_many([document(n) for n in range(DOCUMENTS)])
        here = client.config.databases.find_one({"_id": name})["primary"]
        there = "s1" if here == "s0" else "s0"
        records = "system.buckets.c" if name == "series" else "c"
        with cluster.on_shard(here) as direct, cluster.on_shard(there) as other:
            direct[name].command("profile", 2)
            before = examined(direct)
            admin.command("moveRange", f"{name}.{records}", min=low, max=high, toShard=there)
            after = examined(direct)
            direct[name].command("profile", 0)
            moved = other[name][records].count_documents({})
            assert moved == (wanted or moved) and direct[name][records].count_documents({}) == DOCUMENTS - moved
            [read] = direct[name]["system.profile"].find({"op": "query", "command.find": records})
            assert (read["docsExamined"], read["nreturned"]) == (moved, moved), read
            # Each was read once, and removed.
            assert 2 * moved <= after - before < 3 * moved
        assert 0 < moved < DOCUMENTS / 4 and db.c.count_documents({}) == DOCUMENTS
