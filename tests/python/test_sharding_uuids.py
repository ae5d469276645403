"""A collection has one UUID: in the configuration, on each shard, and in what its change streams say."""

import pytest
from sharded_cluster import cluster_fixture


cluster = cluster_fixture()


@pytest.fixture(scope="module")
def admin(cluster):
    with cluster.client() as client:
        yield client.admin


def uuids(cluster, admin, db, name):
    """By source: the configuration, the router, each shard that has the collection."""
    found = {}
    entry = admin.client.config.collections.find_one({"_id": f"{db}.{name}"})
    if entry:
        found["config"] = bytes(entry["uuid"])
    for info in admin.client[db].list_collections(filter={"name": name}):
        found["router"] = bytes(info["info"]["uuid"])
    for shard in cluster.sets:
        with cluster.on_shard(shard) as direct:
            for info in direct[db].list_collections(filter={"name": name}):
                found[shard] = bytes(info["info"]["uuid"])
    return found


def one(found, *wanted):
    assert found.keys() >= set(wanted), found
    assert len(set(found.values())) == 1, found
    return next(iter(found.values()))


def test_of_a_collection_that_is_sharded_moved_and_resharded(cluster, admin):
    admin.command("enableSharding", "u", primaryShard="s0")
    coll = admin.client.u.c
    coll.insert_many([{"_id": n, "k": n} for n in range(20)])
    (plain,) = set(uuids(cluster, admin, "u", "c").values())
    coll.create_index("k")
    admin.command("shardCollection", "u.c", key={"k": 1})
    assert one(uuids(cluster, admin, "u", "c"), "config", "router", "s0") == plain
    admin.command("split", "u.c", middle={"k": 10})
    admin.command("moveChunk", "u.c", find={"k": 15}, to="s1")
    assert one(uuids(cluster, admin, "u", "c"), "config", "router", "s0", "s1") == plain
    with coll.watch(show_expanded_events=True, max_await_time_ms=50) as stream:
        coll.insert_many([{"k": 1}, {"k": 19}])
        assert {bytes(stream.next()["collectionUUID"]) for _ in range(2)} == {plain}
    admin.command("reshardCollection", "u.c", key={"_id": 1}, numInitialChunks=2)
    shards = [name for name in cluster.sets if name in uuids(cluster, admin, "u", "c")]
    assert one(uuids(cluster, admin, "u", "c"), "config", "router", *shards) != plain
    assert coll.count_documents({}) == 22


def test_of_one_that_begins_on_all_shards(cluster, admin):
    admin.command("enableSharding", "u", primaryShard="s0")
    admin.command("shardCollection", "u.hashed", key={"k": "hashed"}, numInitialChunks=4)
    one(uuids(cluster, admin, "u", "hashed"), "config", "router", "s0", "s1")


def test_of_one_that_moves_whole(cluster, admin):
    admin.command("enableSharding", "u", primaryShard="s0")
    admin.client.u.whole.insert_one({})
    (plain,) = set(uuids(cluster, admin, "u", "whole").values())
    admin.command("moveCollection", "u.whole", toShard="s1")
    assert one(uuids(cluster, admin, "u", "whole"), "config", "router", "s1") == plain


def test_of_a_time_series(cluster, admin):
    admin.command("enableSharding", "u", primaryShard="s0")
    series = {"timeField": "t", "metaField": "m"}
    admin.command("shardCollection", "u.series", key={"m": 1}, timeseries=series)
    admin.command("split", "u.system.buckets.series", middle={"meta": 5})
    admin.command("moveChunk", "u.system.buckets.series", find={"meta": 9}, to="s1")
    one(uuids(cluster, admin, "u", "system.buckets.series"), "config", "s0", "s1")
